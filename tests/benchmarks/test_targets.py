# SPDX-License-Identifier: Apache-2.0
"""What a run's figures say about the targets."""

from pathlib import Path

import pytest

from benchmarks.results import MICRO, Results
from benchmarks.scenarios import (
    FRONTEND,
    LAZY,
    SCENARIOS,
    SERVING,
    STOCK,
    UNBOUNDED,
)
from benchmarks.stats import Spread
from benchmarks.targets import AT_LEAST, AT_MOST, TARGETS, Target, Verdict, judge


def measured(*samples: tuple[str, str, str, str, float]) -> Results:
    """Results with samples of (level, scenario, mode, value's name, value)."""
    results = Results()
    for level, scenario, mode, name, value in samples:
        results.add(level, scenario, mode, {name: value})
    return results


def verdict(results: Results, name: str) -> Verdict:
    (found,) = (v for v in judge(results) if v.target.name == name)
    return found


@pytest.mark.parametrize(
    ("bound", "limit", "median", "met"),
    [
        (AT_LEAST, 100, 100.0, True),
        (AT_LEAST, 100, 99.0, False),
        # As three digits show it.
        (AT_LEAST, 100, 99.96, True),
        (AT_MOST, 1.15, 1.15, True),
        (AT_MOST, 1.15, 1.16, False),
        (AT_MOST, 1, 0.2, True),
    ],
)
def test_verdict(bound, limit, median, met) -> None:
    target = Target("it", "it", bound, limit, lambda _: None)
    assert Verdict(target, Spread(median, 0, 0, 1)).met is met


def test_nothing_measured_is_neither_met_nor_missed() -> None:
    assert {v.met for v in judge(Results())} == {None}


def test_each_target_has_a_name_of_its_own() -> None:
    assert len({target.name for target in TARGETS}) == len(TARGETS)


def test_a_gain_in_time_is_stock_over_lazy() -> None:
    results = measured(
        (FRONTEND, "video_720p", STOCK, "latency_ms", 400.0),
        (FRONTEND, "video_720p", LAZY, "latency_ms", 2.0),
    )
    found = verdict(results, "video_frontend")
    assert found.found == Spread(200.0, 200.0, 200.0, 1)
    assert found.met


def test_a_gain_in_throughput_is_lazy_over_stock() -> None:
    results = measured(
        (SERVING, "video_720p_c8", STOCK, "throughput", 2.0),
        (SERVING, "video_720p_c8", LAZY, "throughput", 30.0),
    )
    found = verdict(results, "video_throughput")
    assert found.found is not None
    assert found.found.median == 15.0
    assert found.met is False


def test_a_jpeg_is_counted_above_text() -> None:
    results = measured(
        (SERVING, "jpeg_and_text", STOCK, "above_ms", 20.0),
        (SERVING, "jpeg_and_text", LAZY, "above_ms", 4.0),
    )
    found = verdict(results, "jpeg_serving")
    assert found.found is not None
    assert found.found.median == 5.0


def test_a_jpeg_that_costs_nothing_above_text_gives_no_ratio() -> None:
    results = measured(
        (SERVING, "jpeg_and_text", STOCK, "above_ms", 20.0),
        (SERVING, "jpeg_and_text", LAZY, "above_ms", -0.1),
    )
    assert verdict(results, "jpeg_serving").met is None


def test_identical_requests_are_held_against_one_alone() -> None:
    results = measured(
        (FRONTEND, "identical", LAZY, "wall_ms", 1400.0),
        (FRONTEND, "cold_one", LAZY, "wall_ms", 1000.0),
        (FRONTEND, "identical", LAZY, "decoded", 16.0),
    )
    wall, decodes = (
        verdict(results, f"identical_{what}") for what in ("wall", "decodes")
    )
    assert wall.found is not None and wall.found.median == 1.4
    assert wall.met is False
    assert decodes.found is not None and decodes.found.median == 16.0
    assert decodes.met is False


def test_the_longest_block_of_any_scenario_counts() -> None:
    results = measured(
        (FRONTEND, "text", LAZY, "loop_block_ms", 1.0),
        (FRONTEND, "video_720p", LAZY, "loop_block_ms", 2.0),
        (FRONTEND, "video_720p", LAZY, "loop_block_ms", 12.0),
        (FRONTEND, "video_720p", STOCK, "loop_block_ms", 500.0),
    )
    found = verdict(results, "loop")
    assert found.found == Spread(12.0, 1.0, 12.0, 3)
    assert found.met is False


def test_memory_is_lazy_over_stock() -> None:
    results = measured(
        (FRONTEND, "video_720p_c8", LAZY, "peak_mb", 20.0),
        (FRONTEND, "video_720p_c8", STOCK, "peak_mb", 400.0),
    )
    found = verdict(results, "memory")
    assert found.found is not None and found.found.median == 0.05
    assert found.met


def test_a_start_is_held_against_stock() -> None:
    results = measured(
        (MICRO, "startup", LAZY, "wall_ms", 51.0),
        (MICRO, "startup", STOCK, "wall_ms", 50.0),
    )
    assert verdict(results, "startup").met
    results.add(MICRO, "startup", LAZY, {"wall_ms": 60.0})
    results.add(MICRO, "startup", LAZY, {"wall_ms": 60.0})
    assert verdict(results, "startup").met is False


def test_python_start_is_the_difference_of_neighbours() -> None:
    results = measured(
        *((MICRO, "python_start", "without", "wall_ms", ms) for ms in (10, 10, 20)),
        *((MICRO, "python_start", "with", "wall_ms", ms) for ms in (10.5, 21, 20.5)),
        (MICRO, "python_start", "with", "line_ms", 0.3),
    )
    found = verdict(results, "python")
    assert found.found is not None
    assert found.found.median == 0.5
    assert (found.found.low, found.found.high) == (0.3, 0.5)
    assert found.met


def test_the_bound_is_held_against_no_bound() -> None:
    results = measured(
        (FRONTEND, "burst", LAZY, "throughput", 95.0),
        (FRONTEND, "burst", UNBOUNDED, "throughput", 100.0),
        (FRONTEND, "burst", STOCK, "throughput", 1.0),
    )
    found = verdict(results, "bound")
    assert found.found is not None and found.found.median == 0.95
    assert found.met is False


def test_results_survive_saving(tmp_path: Path) -> None:
    results = measured((SERVING, "text", LAZY, "latency_ms", 1.5))
    results.about["run"] = "quick"
    results.fail(SERVING, "text", STOCK, RuntimeError("no"))
    results.notes["loop"] = "1 ms"
    results.save(tmp_path / "deeper" / "results.json")
    assert Results.load(tmp_path / "deeper" / "results.json") == results


VALUES = (
    *("latency_ms", "above_ms", "throughput", "wall_ms"),
    *("peak_mb", "decoded", "loop_block_ms"),
)


@pytest.mark.parametrize("quick", [True, False])
def test_a_run_measures_every_target(quick: bool) -> None:
    results = Results()
    for scenario in SCENARIOS.values():
        for level in (FRONTEND, SERVING):
            modes = scenario.modes(quick)
            if scenario.runs(level, quick):
                for mode in (*modes, UNBOUNDED):
                    results.add(level, scenario.name, mode, dict.fromkeys(VALUES, 1.0))
    results.add(MICRO, "ref", LAZY, {"ref_ms": 1.0, "sha256_ms": 1.0})
    for mode in (STOCK, LAZY):
        results.add(MICRO, "startup", mode, {"wall_ms": 1.0})
    for mode in ("with", "without"):
        values = {"wall_ms": 1.0, "line_ms": 1.0}
        results.add(MICRO, "python_start", mode, values)
    assert [v.target.name for v in judge(results) if v.found is None] == []
