# SPDX-License-Identifier: Apache-2.0
"""The targets: what each is of, its limit, and whether a run met it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from benchmarks.micro import PYTHON_START, WITH, WITHOUT
from benchmarks.results import MICRO, Results
from benchmarks.scenarios import FRONTEND, LAZY, SCENARIOS, SERVING, STOCK, UNBOUNDED
from benchmarks.serving import STARTUP
from benchmarks.stats import Spread, ratio, spread

AT_LEAST: Final = "at least"
AT_MOST: Final = "at most"

Bound = Literal["at least", "at most"]
Measure = Callable[[Results], Spread | None]


@dataclass(frozen=True)
class Target:
    """One line of the table. `measure` finds its figure in the results of a run."""

    name: str
    title: str
    bound: Bound
    limit: float
    measure: Measure
    unit: str = ""
    gain: bool = True
    """Whether the figure says how many times better than stock lazy decode is."""

    def judge(self, results: Results) -> "Verdict":
        return Verdict(self, self.measure(results))


@dataclass(frozen=True)
class Verdict:
    """A target and what was measured; None where it was not."""

    target: Target
    found: Spread | None

    @property
    def met(self) -> bool | None:
        if self.found is None:
            return None
        # The figure as the table shows it, so that nobody reads "1.00, missed, 1.00".
        figure = float(f"{self.found.median:.3g}")
        if self.target.bound == AT_LEAST:
            return figure >= self.target.limit
        return figure <= self.target.limit


def _gain(level: str, scenario: str, value: str) -> Measure:
    return lambda results: results.gain(level, scenario, value)


def _above_text(level: str) -> Measure:
    """How many times less a JPEG costs above a text-only request."""

    def measure(results: Results) -> Spread | None:
        lazy = results.spread(level, "jpeg_and_text", LAZY, "above_ms")
        if lazy is None or lazy.median <= 0:
            # It costs no more than noise: there is no ratio to give.
            return None
        return results.gain(level, "jpeg_and_text", "above_ms")

    return measure


def _lazy_ratio(above: tuple[str, str, str], below: tuple[str, str, str]) -> Measure:
    """The ratio of two values of lazy decode: (level, scenario, value)."""

    def measure(results: Results) -> Spread | None:
        values = [
            results.values(level, scenario, LAZY, value)
            for level, scenario, value in (above, below)
        ]
        return ratio(*values) if all(values) else None

    return measure


def _decodes(results: Results) -> Spread | None:
    return results.spread(FRONTEND, "identical", LAZY, "decoded")


def _longest_block(results: Results) -> Spread | None:
    blocks = [
        block
        for scenario in results.scenarios(FRONTEND)
        for block in results.values(FRONTEND, scenario, LAZY, "loop_block_ms")
    ]
    # The longest of all is what is asked for; the low end is the text-only one.
    texts = results.values(FRONTEND, "text", LAZY, "loop_block_ms")
    if not blocks:
        return None
    return Spread(max(blocks), min(texts or blocks), max(blocks), len(blocks))


def _memory(results: Results) -> Spread | None:
    lazy, stock = (
        results.values(FRONTEND, "video_720p_c8", mode, "peak_mb")
        for mode in (LAZY, STOCK)
    )
    return ratio(lazy, stock) if lazy and stock else None


def _startup(results: Results) -> Spread | None:
    lazy, stock = (
        results.values(MICRO, STARTUP, mode, "wall_ms") for mode in (LAZY, STOCK)
    )
    return ratio(lazy, stock) if lazy and stock else None


def _python(results: Results) -> Spread | None:
    starts = [
        results.values(MICRO, PYTHON_START, mode, "wall_ms") for mode in (WITH, WITHOUT)
    ]
    if not all(starts):
        return None
    # Of neighbours in time: the machine changes by more than what is looked for.
    middle = spread([a - b for a, b in zip(*starts, strict=False)]).median
    # The line's own time says how far the difference can be trusted.
    line = results.spread(MICRO, PYTHON_START, WITH, "line_ms")
    if line is None:
        return None
    low, high = sorted((middle, line.median))
    return Spread(middle, low, high, len(starts[0]))


def _cold(level: str, scenario: str) -> Iterable[Target]:
    where = "front end" if level == FRONTEND else "serving"
    title = SCENARIOS[scenario].title
    for value, what in (("throughput", "throughput"), ("latency_ms", "latency")):
        yield Target(
            f"{level}_{scenario}_{value}",
            f"{title}: {what}, {where}",
            AT_LEAST,
            0.97,
            _gain(level, scenario, value),
        )


TARGETS = [
    Target(
        "video_frontend",
        "repeated 720p 6 s video, front end",
        AT_LEAST,
        100,
        _gain(FRONTEND, "video_720p", "latency_ms"),
    ),
    Target(
        "video_latency",
        "repeated 720p 6 s video, serving latency at concurrency 1",
        AT_LEAST,
        25,
        _gain(SERVING, "video_720p", "latency_ms"),
    ),
    Target(
        "video_throughput",
        "repeated 720p 6 s video, serving throughput at concurrency 8",
        AT_LEAST,
        20,
        _gain(SERVING, "video_720p_c8", "throughput"),
    ),
    Target(
        "jpeg_frontend",
        "repeated 720p JPEG, cost above text only, front end",
        AT_LEAST,
        4,
        _above_text(FRONTEND),
    ),
    Target(
        "jpeg_serving",
        "repeated 720p JPEG, cost above text only, serving",
        AT_LEAST,
        4,
        _above_text(SERVING),
    ),
    Target(
        "history",
        "five-image history, front end",
        AT_LEAST,
        5,
        _gain(FRONTEND, "history", "latency_ms"),
    ),
    Target(
        "mixed_frontend",
        "90 % repeated video, throughput, front end",
        AT_LEAST,
        5,
        _gain(FRONTEND, "mixed_videos", "throughput"),
    ),
    Target(
        "mixed_serving",
        "90 % repeated video, throughput, serving",
        AT_LEAST,
        5,
        _gain(SERVING, "mixed_videos", "throughput"),
    ),
    *_cold(FRONTEND, "cold_images"),
    *_cold(SERVING, "cold_images"),
    *_cold(FRONTEND, "cold_videos"),
    *_cold(SERVING, "cold_videos"),
    Target(
        "text_frontend",
        "text only, front end",
        AT_LEAST,
        0.98,
        _gain(FRONTEND, "text", "latency_ms"),
    ),
    Target(
        "text_latency",
        "text only, serving latency",
        AT_LEAST,
        0.98,
        _gain(SERVING, "text", "latency_ms"),
    ),
    Target(
        "text_throughput",
        "text only, serving throughput at concurrency 48",
        AT_LEAST,
        0.98,
        _gain(SERVING, "text_c48", "throughput"),
    ),
    Target(
        "identical_decodes",
        "sixteen identical cold videos at once: decodes",
        AT_MOST,
        1,
        _decodes,
        gain=False,
    ),
    Target(
        "identical_wall",
        "sixteen identical cold videos at once: wall time, against one alone",
        AT_MOST,
        1.3,
        _lazy_ratio(
            (FRONTEND, "identical", "wall_ms"), (FRONTEND, "cold_one", "wall_ms")
        ),
        gain=False,
    ),
    Target(
        "ref",
        "building a ref from 10 MB, against bare sha256",
        AT_MOST,
        1.15,
        _lazy_ratio((MICRO, "ref", "ref_ms"), (MICRO, "ref", "sha256_ms")),
        gain=False,
    ),
    Target(
        "loop",
        "longest event-loop block, any scenario",
        AT_MOST,
        10,
        _longest_block,
        unit=" ms",
        gain=False,
    ),
    Target(
        "memory",
        "peak memory above idle, repeated video at concurrency 8, against stock",
        AT_MOST,
        0.25,
        _memory,
        gain=False,
    ),
    Target(
        "startup",
        "start-up of `vllm serve`, against stock",
        AT_MOST,
        1.02,
        _startup,
        gain=False,
    ),
    Target(
        "python",
        "a Python process that never imports vLLM",
        AT_MOST,
        1,
        _python,
        unit=" ms",
        gain=False,
    ),
    Target(
        "bound",
        "burst of different videos, bound reached: throughput, against no bound",
        AT_LEAST,
        0.97,
        lambda results: results.gain(
            FRONTEND, "burst", "throughput", (UNBOUNDED, LAZY)
        ),
        gain=False,
    ),
]


def judge(results: Results) -> list[Verdict]:
    """Every target, in the order of the table."""
    return [target.judge(results) for target in TARGETS]
