# SPDX-License-Identifier: Apache-2.0
"""Runs every benchmark, stock and lazy in turn, and writes what came out.

python -m benchmarks [--quick] [--level LEVEL] [--out FOLDER] [SCENARIO ...]
"""

import argparse
import importlib.metadata
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import charts, frontend, micro, report, serving
from benchmarks.pool import ROOT, Pool, media_web
from benchmarks.results import MICRO, Results
from benchmarks.say import say
from benchmarks.scenarios import FRONTEND, SCENARIOS, SERVING, Maker
from benchmarks.targets import judge
from tiny import models

LEVELS = (MICRO, FRONTEND, SERVING)
PAGES = (ROOT / "docs" / "performance.md",)


def about(quick: bool) -> dict[str, str]:
    """What the figures are of, as far as it can change them."""
    kind = "quick" if quick else "full"
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    return {
        "run": f"{kind}, {time.strftime('%Y-%m-%d')}",
        "commit": commit.stdout.strip() or "unknown",
        "machine": f"{_processor()}, {os.cpu_count()} processors, {_memory()}",
        "software": ", ".join(
            [f"Python {platform.python_version()}", *map(_version, ("vllm", "torch"))]
        ),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory() -> str:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{pages / (1 << 30):.0f} GiB"


def _version(package: str) -> str:
    return f"{package} {importlib.metadata.version(package)}"


def prepare(quick: bool, names: list[str], web: str) -> None:
    """Makes the model and all media, which workers would make twice."""
    say("building the model and the media (a minute, the first time)")
    models.build_omni()
    maker = Maker(Pool(), web, quick)
    for name in names:
        if any(SCENARIOS[name].runs(level, quick) for level in LEVELS):
            SCENARIOS[name].build(maker)


def measure(
    results: Results, path: Path, quick: bool, levels: list[str], names: list[str]
) -> None:
    """Runs each level; one that fails altogether is noted, and the others go on.

    What there is by then is saved after each, in case the next is interrupted.
    """
    with media_web(Pool()) as web:
        prepare(quick, names, web)
        runs: dict[str, Callable[[], None]] = {
            MICRO: lambda: micro.run(results, quick),
            FRONTEND: lambda: frontend.run(results, web, quick, names),
            SERVING: lambda: serving.run(results, web, quick, names),
        }
        for level in levels:
            try:
                runs[level]()
            except Exception as error:
                log = getattr(error, "log", "")
                results.fail(level, "all that was left", "both", repr(error), log)
            results.save(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under ten minutes")
    parser.add_argument("--level", choices=LEVELS, action="append")
    parser.add_argument("--out", type=Path, default=report.FOLDER)
    parser.add_argument(
        "--no-pages", action="store_true", help="leave the documentation as it is"
    )
    parser.add_argument("scenario", nargs="*", help="all where none is given")
    arguments = parser.parse_args()
    if unknown := set(arguments.scenario) - SCENARIOS.keys():
        parser.error(f"no scenario {', '.join(sorted(unknown))}")

    # Ended politely, it ends its servers and workers, as it does on Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = Results(about(arguments.quick))
    measure(
        results,
        arguments.out / "results.json",
        arguments.quick,
        arguments.level or list(LEVELS),
        arguments.scenario or list(SCENARIOS),
    )
    # A quick run is for whoever runs it; the pages show a full one.
    pages = () if arguments.no_pages or arguments.quick else PAGES
    report.write(results, arguments.out, pages)
    charts.write(results, arguments.out)
    print(report.targets_table(judge(results)))
    print(f"\nAll of it: {arguments.out}/report.md")
    for failure in results.failures:
        print(
            f"FAILED  {failure.level} {failure.scenario} {failure.mode}: "
            f"{failure.error}",
            file=sys.stderr,
        )
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main())
