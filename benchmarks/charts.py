# SPDX-License-Identifier: Apache-2.0
"""Charts of a run, as SVG files.

    python -m benchmarks.charts [RESULTS.json]

draws them beside the results.
"""

import argparse
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot, ticker

from benchmarks.report import RESULTS, number
from benchmarks.results import Results
from benchmarks.scenarios import FRONTEND, LAZY, SCENARIOS, SERVING, STOCK, UNBOUNDED
from benchmarks.stats import Spread
from benchmarks.targets import AT_LEAST, Verdict, judge

matplotlib.use("svg")
# The same figures give the same file, and text stays text.
matplotlib.rcParams.update(
    {
        "svg.hashsalt": "benchmarks",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
)

Bar = tuple[str, Spread, str, float | None]

# Told apart by whoever sees red and green alike, and on paper without colour.
GOOD, BAD, PLAIN, MARK = "#3b75af", "#c8553d", "#9aa5b1", "#222222"


def gains(verdicts: Sequence[Verdict]) -> Any:
    """Where media repeat: a bar for each target, and a mark where it should be."""
    figure, axes = _bars(
        _against_stock(verdicts, repeated=True),
        "times better than stock vLLM (log scale)",
    )
    axes.set_title("Where media repeat: gain over stock vLLM", loc="left")
    _legend(axes)
    return figure


def parity(verdicts: Sequence[Verdict]) -> Any:
    """Where nothing repeats: the same, close to 1."""
    figure, axes = _bars(
        _against_stock(verdicts, repeated=False),
        "times as good as stock vLLM",
        log=False,
        start=1.0,
    )
    axes.set_title("Where nothing repeats: no slower than stock vLLM", loc="left")
    _legend(axes)
    return figure


def _against_stock(verdicts: Sequence[Verdict], *, repeated: bool) -> list[Bar]:
    return [
        (v.target.title, v.found, GOOD if v.met else BAD, v.target.limit)
        for v in verdicts
        if v.found is not None and v.target.gain and (v.target.limit > 1) == repeated
    ]


def _legend(axes: Any) -> None:
    axes.scatter([], [], marker="|", s=150, color=MARK, label="target (at least)")
    axes.barh([0], [0], left=1, color=GOOD, label="met")
    axes.barh([0], [0], left=1, color=BAD, label="missed")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def costs(verdicts: Sequence[Verdict]) -> Any:
    """The other targets, each as a share of what it may be."""
    bars: list[Bar] = []
    for verdict in verdicts:
        found, target = verdict.found, verdict.target
        if found is None or target.gain:
            continue
        share = [
            target.limit / value if target.bound == AT_LEAST else value / target.limit
            for value in (found.median, found.low, found.high)
            if value or target.bound != AT_LEAST
        ]
        if len(share) < 3:
            continue
        middle, low, high = share
        title = (
            f"{target.title}: {number(found.median)}{target.unit}"
            f" ({target.bound} {number(target.limit)})"
        )
        scaled = Spread(middle, min(low, high), max(low, high), found.number)
        bars.append((title, scaled, GOOD if verdict.met else BAD, None))
    figure, axes = _bars(
        bars, "share of what the target allows", log=False, shown="{:.0%}".format
    )
    axes.xaxis.set_major_formatter(ticker.PercentFormatter(1))
    axes.axvline(1, color=MARK, linewidth=1)
    axes.set_title("Costs, against what the targets allow", loc="left")
    return figure


def scenarios(results: Results, level: str, value: str, title: str) -> Any:
    """The gain of each scenario at a level, by one value."""
    bars = []
    for name in results.scenarios(level):
        gain = results.gain(level, name, value)
        if gain is not None:
            colour = GOOD if gain.median >= 1 else PLAIN
            bars.append((SCENARIOS[name].title, gain, colour, None))
    figure, axes = _bars(bars, "times better than stock vLLM (log scale)")
    axes.set_title(title, loc="left")
    return figure


def memory(results: Results) -> Any:
    """Peak memory above idle, where it is of interest."""
    bars = []
    for name in ("video_720p_c8", "cold_videos", "burst"):
        for mode, colour in ((STOCK, PLAIN), (UNBOUNDED, BAD), (LAZY, GOOD)):
            found = results.spread(FRONTEND, name, mode, "peak_mb")
            if found is not None:
                bars.append((f"{SCENARIOS[name].title}: {mode}", found, colour, None))
    figure, axes = _bars(bars, "megabytes above idle", log=False)
    axes.set_title("Peak memory of the front end", loc="left")
    return figure


def _bars(
    bars: Sequence[Bar],
    unit: str,
    log: bool = True,
    start: float | None = None,
    shown: Callable[[float], str] = number,
) -> tuple[Any, Any]:
    """Horizontal bars with whiskers and figures, the first on top.

    They begin at `start`: 1 on a logarithmic axis, where None, and 0 on another.
    """
    figure, axes = pyplot.subplots(
        figsize=(10, 1.0 + 0.4 * max(1, len(bars))), layout="constrained"
    )
    if start is None:
        start = 1.0 if log else 0.0
    # Before there are bars: on a linear axis they would begin elsewhere.
    if log:
        axes.set_xscale("log")
    axes.axvline(start, color=MARK, linewidth=1)
    for place, (_, found, colour, mark) in enumerate(bars):
        axes.barh(place, found.median - start, left=start, color=colour, height=0.65)
        axes.plot([found.low, found.high], [place, place], color=MARK, linewidth=1)
        if mark is not None:
            axes.scatter([mark], [place], marker="|", s=150, color=MARK, zorder=3)
        axes.annotate(
            shown(found.median),
            (max(found.high, found.median, start, mark or start), place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
        )
    labels = [textwrap.fill(bar[0], 44) for bar in bars]
    axes.set_yticks(range(len(bars)), labels)
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    axes.margins(x=0.12)
    if log:
        axes.xaxis.set_major_formatter(ticker.FuncFormatter(_plainly))
        axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    return figure, axes


def _plainly(value: float, _: int) -> str:
    return number(value)


def write(results: Results, folder: Path) -> None:
    """Draws every chart into `folder`."""
    verdicts = judge(results)
    drawn = {
        "gains": gains(verdicts),
        "parity": parity(verdicts),
        "costs": costs(verdicts),
        "frontend": scenarios(
            results, FRONTEND, "latency_ms", "Front end: latency of a request"
        ),
        "serving": scenarios(
            results, SERVING, "throughput", "Serving: requests a second"
        ),
        "memory": memory(results),
    }
    for name, figure in drawn.items():
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
        pyplot.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS)
    path = parser.parse_args().results
    write(Results.load(path), path.parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
