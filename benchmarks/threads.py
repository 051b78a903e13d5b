# SPDX-License-Identifier: Apache-2.0
"""How many decodes at a time are best, on few CPUs and on more.

    python -m benchmarks.threads [--into PAGE] [--repeats N]

measures the cold scenarios in lazy mode, with decode threads of several numbers in
turn, on one CPU and on all that this process may use.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks import report
from benchmarks.frontend import make_worker
from benchmarks.pool import Pool, media_web
from benchmarks.say import say
from benchmarks.scenarios import LAZY, SCENARIOS

COUNTS = (1, 2, 4, 8, 16)
NAMES = ("cold_images", "cold_videos")


@contextmanager
def only(cpus: int) -> Iterator[None]:
    """Lets this process, and those that it starts, use no more CPUs than that."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cpus])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def measure(cpus: int, repeats: int, web: str) -> dict[str, list[float]]:
    """Median requests a second of each scenario, by number of threads."""
    with ExitStack() as running:
        with only(cpus):
            workers = [
                running.enter_context(
                    make_worker(LAZY, VLLM_MEDIA_LOADING_THREAD_COUNT=str(count))
                )
                for count in COUNTS
            ]
        found: dict[str, list[list[float]]] = {name: [] for name in NAMES}
        for name in NAMES:
            for _ in range(repeats):
                say(f"{cpus} CPUs: {SCENARIOS[name].title}")
                answers = [
                    asked.ask(
                        do="sample", scenario=name, web=web, quick=True, watch=False
                    )
                    for asked in workers
                ]
                found[name].append([a["values"]["throughput"] for a in answers])
    return {
        name: [statistics.median(column) for column in zip(*rows, strict=True)]
        for name, rows in found.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--into", type=Path, help="a page to put the table into")
    arguments = parser.parse_args()
    rows = []
    with media_web(Pool()) as web:
        for cpus in sorted({1, len(os.sched_getaffinity(0))}):
            for name, found in measure(cpus, arguments.repeats, web).items():
                cells = map(report.number, found)
                rows.append((f"{SCENARIOS[name].title}; {cpus} CPUs", *cells))
    made = report.table(("requests a second with threads", *map(str, COUNTS)), rows)
    print(made)
    if arguments.into:
        report.put(arguments.into, "threads", made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
