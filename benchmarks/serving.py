# SPDX-License-Identifier: Apache-2.0
"""A real `vllm serve` on the tiny model, stock and lazy side by side.

    python -m benchmarks.serving [--mode lazy] [--quick] [SCENARIO ...]

measures the scenarios (all by default) in one mode, and prints the values of each.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from benchmarks import scenarios, worker
from benchmarks.client import Client
from benchmarks.frontend import ENVIRONMENTS
from benchmarks.pool import Pool, media_web
from benchmarks.results import MICRO, Results
from benchmarks.say import say
from benchmarks.scenarios import LAZY, MODES, SCENARIOS, SERVING, Request, Scenario
from tiny import models
from tiny.server import ServeProcess

STARTUP = "startup"
ITEMS = "vllm:mm_media_items_total"
STEPS = "vllm:iteration_tokens_total_count"
NO_CACHE = ("--mm-processor-cache-gb=0",)
# A video of a minute has more tokens than the engine takes at once by default.
ROOM = "--max-num-batched-tokens=8192"


class Bench:
    """Samples from servers that stand by at once, of which one works at a time."""

    def __init__(self, pool: Pool, web: str, quick: bool, client: worker.Worker):
        self._maker = scenarios.Maker(pool, web, quick)
        self._quick = quick
        self._vllm = client

    def warm_up(self, server: ServeProcess) -> None:
        """What only the first request of each kind pays: imports, compilation."""
        client = Client(server.base_url, server.model)
        names = ("text", "jpeg_data", "jpeg_http", "video_360p", "audio_30s")
        for name in (*names, "own_sound"):
            asyncio.run(client.warm(SCENARIOS[name].build(self._maker)))

    def sample(self, server: ServeProcess, scenario: Scenario) -> dict[str, float]:
        """Returns the figures of one sample."""
        client = Client(server.base_url, server.model)
        requests = self._prepare(client, scenario)
        steps = server.metrics().total(STEPS)
        if scenario.client == "own":
            effort = scenario.effort(self._quick)
            values = asyncio.run(client.sample(requests, effort, scenario.concurrency))
        else:
            values = self._vllm_sample(server, scenario)
        values["engine_steps"] = server.metrics().total(STEPS) - steps
        return values

    def _prepare(self, client: Client, scenario: Scenario) -> list[Request]:
        """Fills or empties the caches, and returns the requests to be timed."""
        requests = scenario.build(self._maker)
        if scenario.cold:
            asyncio.run(client.empty_caches())
            warm, requests = requests[: scenario.warm], requests[scenario.warm :]
        else:
            warm = requests
        asyncio.run(client.warm(warm))
        return requests

    def _vllm_sample(
        self, server: ServeProcess, scenario: Scenario
    ) -> dict[str, float]:
        """The figures of `vllm bench serve`, which builds the same requests itself."""
        return self._vllm.ask(
            do="sample",
            scenario=scenario.name,
            web=self._maker.web,
            quick=self._quick,
            base_url=server.base_url,
            model=server.model,
        )["values"]


def start(mode: str, pool: Pool, arguments: Sequence[str] = ()) -> ServeProcess:
    """Returns a server, to be started by a `with` block."""
    return ServeProcess(
        models.build_omni(),
        [ROOM, *arguments],
        # Development mode has the endpoints that empty the caches.
        {
            **worker.ALLOCATOR,
            **ENVIRONMENTS[mode],
            "VLLM_SERVER_DEV_MODE": "1",
        },
        media_dir=pool.folder,
    )


def run(results: Results, web: str, quick: bool, names: Sequence[str]) -> None:
    """Measures serving in both modes in turn, and adds to `results`."""
    wanted = [
        s for s in SCENARIOS.values() if s.name in names and s.runs(SERVING, quick)
    ]
    pool = Pool()
    with worker.Worker("benchmarks.vllm_client") as client:
        # Its import must not slow a start that is timed.
        client.ask(do="ready")
        bench = Bench(pool, web, quick, client)
        cached = [scenario for scenario in wanted if scenario.cache]
        for number in range(1 if quick else 2):
            order = MODES if number % 2 == 0 else MODES[::-1]
            _round(results, bench, pool, cached, quick, order)
        if uncached := [scenario for scenario in wanted if not scenario.cache]:
            _round(results, bench, pool, uncached, quick, MODES, NO_CACHE)
    if not quick:
        for number in range(3):
            for mode in MODES if number % 2 else MODES[::-1]:
                with ExitStack() as running:
                    _timed_start(results, running, mode, pool)


def _round(
    results: Results,
    bench: Bench,
    pool: Pool,
    wanted: Sequence[Scenario],
    quick: bool,
    order: Sequence[str],
    arguments: Sequence[str] = (),
) -> None:
    with ExitStack() as running:
        servers = {}
        for mode in order:
            servers[mode] = _timed_start(results, running, mode, pool, arguments)
            bench.warm_up(servers[mode])
            # Only now: before there were media there is nothing to count.
            lazy = servers[mode].metrics().has(ITEMS)
            if lazy != (mode == LAZY):
                raise worker.WorkerError(f"{mode}: lazy decode is {lazy}")
        for scenario in wanted:
            _alternate(results, bench, servers, scenario, quick)


def _timed_start(
    results: Results,
    running: ExitStack,
    mode: str,
    pool: Pool,
    arguments: Sequence[str] = (),
) -> ServeProcess:
    say(f"serving: starting {mode} (a minute or two)")
    begin = time.perf_counter()
    server = running.enter_context(start(mode, pool, arguments))
    taken = (time.perf_counter() - begin) * 1000
    if not arguments:
        computed = server.cpu_seconds() * 1000
        results.add(MICRO, STARTUP, mode, {"wall_ms": taken, "cpu_ms": computed})
    return server


def _alternate(
    results: Results,
    bench: Bench,
    servers: Mapping[str, ServeProcess],
    scenario: Scenario,
    quick: bool,
) -> None:
    say(f"serving: {scenario.title}")
    modes = [mode for mode in MODES if mode in scenario.modes(quick)]
    for _ in range(scenario.repeats(quick)):
        for mode in list(modes):
            try:
                values = bench.sample(servers[mode], scenario)
                results.add(SERVING, scenario.name, mode, values)
            # One scenario that can't be measured must not end the run.
            except Exception as error:
                log = servers[mode].tail()
                results.fail(SERVING, scenario.name, mode, repr(error), log)
                modes.remove(mode)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=MODES, default=LAZY)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("scenario", nargs="*", help="all where none is given")
    arguments = parser.parse_args()
    pool = Pool()
    with ExitStack() as running:
        web = running.enter_context(media_web(pool))
        client = running.enter_context(worker.Worker("benchmarks.vllm_client"))
        bench = Bench(pool, web, arguments.quick, client)
        server = running.enter_context(start(arguments.mode, pool))
        bench.warm_up(server)
        for name in arguments.scenario or SCENARIOS:
            scenario = SCENARIOS[name]
            if scenario.cache and scenario.runs(SERVING, arguments.quick):
                print(name, json.dumps(bench.sample(server, scenario)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
