# SPDX-License-Identifier: Apache-2.0
"""The tables of a run, and where they are shown.

    python -m benchmarks.report [RESULTS.json] [--into FILE ...]

writes `report.md` beside the results, and puts the table of targets between the
markers of each FILE.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.pool import ROOT
from benchmarks.results import MICRO, Results
from benchmarks.scenarios import FRONTEND, LAZY, SCENARIOS, SERVING, STOCK, UNBOUNDED
from benchmarks.stats import Spread
from benchmarks.targets import Verdict, judge

FOLDER = ROOT / "benchmarks" / "results"
RESULTS = FOLDER / "results.json"

BEGIN = "<!-- benchmark {name} -->"
END = "<!-- end of benchmark {name} -->"

Row = Sequence[str]


def number(value: float) -> str:
    """With three significant digits, and no exponent."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{float(f'{value:.3g}'):g}"


def ranged(found: Spread | None, unit: str = "") -> str:
    """A median with its spread."""
    if found is None:
        return "–"
    shown = number(found.median) + unit
    if found.number < 2:
        return shown
    return f"{shown} ({number(found.low)} to {number(found.high)})"


def table(head: Row, rows: Sequence[Row]) -> str:
    """A Markdown table whose first column is text and whose others are figures."""
    lines = [
        "| " + " | ".join(head) + " |",
        "|---|" + "---:|" * (len(head) - 1),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
    return "\n".join(lines)


def targets_table(verdicts: Sequence[Verdict]) -> str:
    """Every target with what was measured."""
    words = {True: "met", False: "**missed**", None: "not measured"}
    rows = [
        (
            verdict.target.title,
            f"{verdict.target.bound} {number(verdict.target.limit)}"
            f"{verdict.target.unit}",
            ranged(verdict.found, verdict.target.unit),
            words[verdict.met],
        )
        for verdict in verdicts
    ]
    return table(("what", "target", "measured (range)", ""), rows)


def _milliseconds(results: Results, level: str, name: str, value: str) -> list[str]:
    cells = []
    for mode in (STOCK, LAZY):
        found = results.spread(level, name, mode, value)
        cells.append("–" if found is None else number(found.median))
    return cells


def frontend_table(results: Results) -> str:
    rows = []
    for name in results.scenarios(FRONTEND):
        rows.append(
            (
                SCENARIOS[name].title,
                ranged(results.gain(FRONTEND, name, "latency_ms")),
                ranged(results.gain(FRONTEND, name, "throughput")),
                *_milliseconds(results, FRONTEND, name, "latency_ms"),
                *_milliseconds(results, FRONTEND, name, "peak_mb"),
                *_milliseconds(results, FRONTEND, name, "held_mb"),
            )
        )
    head = (
        "scenario",
        "latency, stock/lazy",
        "throughput, lazy/stock",
        *("ms, stock", "ms, lazy"),
        *("peak MB, stock", "peak MB, lazy"),
        *("held MB, stock", "held MB, lazy"),
    )
    return table(head, rows)


def loop_table(results: Results) -> str:
    rows = []
    for name in results.scenarios(FRONTEND):
        if not results.values(FRONTEND, name, LAZY, "loop_block_ms"):
            continue
        worst = results.notes.get(f"loop {LAZY} {name}", "").partition(" in ")[2]
        rows.append(
            (
                SCENARIOS[name].title,
                *_milliseconds(results, FRONTEND, name, "loop_block_ms"),
                *_milliseconds(results, FRONTEND, name, "loop_cpu_ms"),
                *_milliseconds(results, FRONTEND, name, "loop_late_ms"),
                f"`{worst}`" if worst else "",
            )
        )
    head = (
        "scenario",
        *("block, stock", "block, lazy"),
        *("computing, stock", "computing, lazy"),
        *("timer late, stock", "timer late, lazy"),
        "longest block in, lazy",
    )
    return table(head, rows)


def serving_table(results: Results) -> str:
    rows = []
    for name in results.scenarios(SERVING):
        rows.append(
            (
                SCENARIOS[name].title,
                ranged(results.gain(SERVING, name, "ttft_ms")),
                ranged(results.gain(SERVING, name, "ttft_p99_ms")),
                ranged(results.gain(SERVING, name, "throughput")),
                *_milliseconds(results, SERVING, name, "ttft_ms"),
                *_milliseconds(results, SERVING, name, "ttft_p99_ms"),
                *_milliseconds(results, SERVING, name, "throughput"),
                "`vllm bench serve`" if SCENARIOS[name].client == "vllm" else "own",
            )
        )
    head = (
        "scenario",
        "TTFT, stock/lazy",
        "TTFT p99, stock/lazy",
        "throughput, lazy/stock",
        *("TTFT ms, stock", "lazy"),
        *("p99 ms, stock", "lazy"),
        *("requests/s, stock", "lazy"),
        "client",
    )
    return table(head, rows)


def other_table(results: Results) -> str:
    rows = [
        (f"{name}: {value}, {mode}", ranged(results.spread(MICRO, name, mode, value)))
        for name, mode, value in dict.fromkeys(
            (sample.scenario, sample.mode, value)
            for sample in results.samples
            if sample.level == MICRO
            for value in sample.values
        )
    ]
    for value in ("peak_mb", "throughput"):
        for mode in (STOCK, UNBOUNDED, LAZY):
            found = results.spread(FRONTEND, "burst", mode, value)
            if found is not None:
                rows.append((f"burst: {value}, {mode}", ranged(found)))
    return table(("value", "median (range)"), rows)


def failures(results: Results) -> str:
    if not results.failures:
        return "None."
    return "\n".join(
        f"* {failure.level}, {failure.scenario}, {failure.mode}:\n\n"
        f"      {failure.error}"
        for failure in results.failures
    )


def report(results: Results) -> str:
    """The whole report, in Markdown."""
    about = "\n".join(f"* {name}: {value}" for name, value in results.about.items())
    parts = [
        "# Stock vLLM against lazy media decode",
        about,
        "Ratios are of medians, and above 1 where lazy decode is better; in brackets "
        "the smallest and the largest of the pairs measured in turn. Milliseconds and "
        "megabytes are of this machine, and only context.",
        "## Targets",
        targets_table(judge(results)),
        "## Front end",
        frontend_table(results),
        "Longest hold-up of the event loop, milliseconds:",
        loop_table(results),
        "## Serving",
        serving_table(results),
        "## Other",
        other_table(results),
        "## Failed scenarios",
        failures(results),
    ]
    return "\n\n".join(parts) + "\n"


def insert(page: str, name: str, text: str) -> str:
    """`page` with `text` between the markers called `name`.

    Raises:
        ValueError: The page has no such markers.
    """
    begin, end = BEGIN.format(name=name), END.format(name=name)
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"no place for {name!r}: {begin} ... {end}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def put(page: Path, name: str, text: str) -> None:
    """Changes a page in its place; see `insert`."""
    page.write_text(insert(page.read_text(), name, text))


def write(results: Results, folder: Path, pages: Sequence[Path]) -> None:
    """Writes the report to `folder`, and the table of targets into `pages`."""
    (folder / "report.md").write_text(report(results))
    for page in pages:
        put(page, "targets", targets_table(judge(results)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS)
    parser.add_argument("--into", type=Path, nargs="*", default=[])
    arguments = parser.parse_args()
    results = Results.load(arguments.results)
    write(results, arguments.results.parent, arguments.into)
    print(targets_table(judge(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
