# SPDX-License-Identifier: Apache-2.0
"""The tables and charts that a run ends in."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from benchmarks import charts, report
from benchmarks.results import Results
from benchmarks.scenarios import FRONTEND, LAZY, STOCK
from benchmarks.stats import Spread
from benchmarks.targets import TARGETS, judge


@pytest.fixture
def results() -> Results:
    made = Results({"run": "quick"})
    for ms in (300.0, 310.0, 290.0):
        made.add(FRONTEND, "video_720p", STOCK, {"latency_ms": ms})
        made.add(FRONTEND, "video_720p", LAZY, {"latency_ms": 2.0, "peak_mb": 3.0})
        made.add(FRONTEND, "text", STOCK, {"latency_ms": 0.9})
        made.add(FRONTEND, "text", LAZY, {"latency_ms": 1.0})
    made.fail(FRONTEND, "history", STOCK, RuntimeError("no"), "the log")
    return made


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1234.5, "1234"), (99.96, "100"), (12.345, "12.3"), (0.98765, "0.988"), (0, "0")],
)
def test_numbers_have_three_digits(value: float, shown: str) -> None:
    assert report.number(value) == shown


def test_a_single_value_has_no_range() -> None:
    assert report.ranged(Spread(2.0, 2.0, 2.0, 1), " ms") == "2 ms"
    assert report.ranged(Spread(2.0, 1.0, 3.5, 4)) == "2 (1 to 3.5)"
    assert report.ranged(None) == "–"


def test_the_table_has_every_target_and_its_verdict(results: Results) -> None:
    lines = report.targets_table(judge(results)).splitlines()
    assert len(lines) == len(TARGETS) + 2
    video = next(line for line in lines if "720p 6 s video, front end" in line)
    assert video.endswith("| at least 100 | 150 (145 to 155) | met |")
    text = next(line for line in lines if "| text only, front end" in line)
    assert text.endswith("| at least 0.98 | 0.9 (0.9 to 0.9) | **missed** |")
    assert sum("not measured" in line for line in lines) == len(TARGETS) - 2


def test_tables_are_rectangular(results: Results) -> None:
    for made in (report.frontend_table(results), report.serving_table(results)):
        assert len({line.count("|") for line in made.splitlines()}) == 1


def test_a_failure_is_reported_and_its_log_only_printed(
    results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    text = report.report(results)
    assert "* frontend, history, stock:\n\n      no" in text
    assert "the log" not in text
    results.fail(FRONTEND, "history", STOCK, RuntimeError("no"), "the log")
    assert "the log" in "".join(capsys.readouterr())


def test_a_page_takes_the_table_between_its_markers() -> None:
    begin, end = (mark.format(name="x") for mark in (report.BEGIN, report.END))
    page = f"before\n{begin}\nold\n{end}\nafter\n"
    once = report.insert(page, "x", "new")
    assert once == f"before\n{begin}\n\nnew\n\n{end}\nafter\n"
    assert report.insert(once, "x", "new") == once


@pytest.mark.parametrize("page", ["", report.BEGIN.format(name="x")])
def test_a_page_without_markers_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="'x'"):
        report.insert(page, "x", "new")


def test_the_pages_have_their_markers(results: Results, tmp_path: Path) -> None:
    from benchmarks.__main__ import PAGES

    for page in PAGES:
        copy = tmp_path / page.name
        copy.write_text(page.read_text())
        report.write(results, tmp_path, [copy])
        assert "150 (145 to 155)" in copy.read_text()


def test_charts_are_drawn_and_the_same_each_time(
    results: Results, tmp_path: Path
) -> None:
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        charts.write(results, folder)
    drawn = sorted((tmp_path / "one").iterdir())
    assert [path.name for path in drawn] == [
        "costs.svg",
        "frontend.svg",
        "gains.svg",
        "memory.svg",
        "parity.svg",
        "serving.svg",
    ]
    for path in drawn:
        ElementTree.parse(path)
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
    text = (tmp_path / "one" / "gains.svg").read_text()
    assert "repeated 720p 6 s video, front end" in text
    assert ">150<" in text
    # Each in its place: what repeats, and what does not.
    assert "text only" not in text
    text = (tmp_path / "one" / "parity.svg").read_text()
    assert "text only, front end" in text
    assert ">0.9<" in text


def test_charts_of_nothing(tmp_path: Path) -> None:
    charts.write(Results(), tmp_path)
    assert (tmp_path / "gains.svg").exists()
