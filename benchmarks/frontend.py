# SPDX-License-Identifier: Apache-2.0
"""The front end alone, in process: a real renderer and processor without an engine.

    python -m benchmarks.frontend [--mode lazy] [--quick] [SCENARIO ...]

measures the scenarios (all by default) in one mode, and prints the values of each.
With `--worker` it is asked through its standard input instead; see `worker`.
"""

import argparse
import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from benchmarks import scenarios, worker
from benchmarks.pace import Exchange, Pacer
from benchmarks.pool import Pool, media_web
from benchmarks.results import MICRO, Results
from benchmarks.say import say
from benchmarks.scenarios import FRONTEND, LAZY, MODES, SCENARIOS, STOCK, UNBOUNDED
from benchmarks.watch import MEGABYTE, LoopWatch, Memory

BURST = "burst"

ENVIRONMENTS = {
    STOCK: {"VLLM_LAZY_MEDIA": "0"},
    LAZY: {"VLLM_LAZY_MEDIA": "1"},
    # Without the limit on decoded media that wait for the mm worker.
    UNBOUNDED: {"VLLM_LAZY_MEDIA": "1", "VLLM_MEDIA_DECODE_BYTES_LIMIT": "0"},
}

# What the tiny model's burst decodes ahead of the mm worker is far below the default.
TIGHT = {"VLLM_MEDIA_DECODE_BYTES_LIMIT": str(128 << 20)}


class FrontEnd:
    """Renderers with and without a processor cache, and an event loop for them."""

    def __init__(self) -> None:
        from benchmarks import inside

        self.inside = inside
        self.runner = asyncio.Runner()
        self.pool = Pool()
        self.memory = Memory()
        self._renderers: dict[bool, Any] = {}

    def handle(self, question: worker.Answer) -> worker.Answer:
        """Answers one question of the driver."""
        what = question.pop("do")
        if what == "sample":
            return self.sample(**question)
        if what == "ref":
            return {"samples": self.inside.ref_against_sha256(**question)}
        if what == "ready":
            self._renderer(True)
            return {"lazy": self.inside.is_lazy()}
        raise ValueError(what)

    def sample(
        self, scenario: str, web: str, quick: bool, watch: bool
    ) -> worker.Answer:
        """Measures a scenario once; with `watch` the event loop, else all the rest."""
        wanted = SCENARIOS[scenario]
        requests = wanted.build(scenarios.Maker(self.pool, web, quick))
        renderer = self._renderer(wanted.cache)
        effort = wanted.effort(quick, FRONTEND)
        return self.runner.run(self._sample(renderer, wanted, requests, effort, watch))

    async def _sample(
        self,
        renderer: Any,
        scenario: scenarios.Scenario,
        requests: list[scenarios.Request],
        effort: scenarios.Effort,
        watch: bool,
    ) -> worker.Answer:
        inside = self.inside
        if scenario.cold:
            renderer.clear_mm_cache()
            warm, requests = requests[: scenario.warm], requests[scenario.warm :]
        else:
            warm = requests
        for request in warm:
            await inside.render(renderer, request)
        pacer = Pacer(requests, effort, scenario.concurrency)

        async def send(request: scenarios.Request) -> Exchange:
            start = time.perf_counter()
            await inside.render(renderer, request)
            return Exchange(time.perf_counter() - start)

        if watch:
            with LoopWatch() as loop:
                await pacer.run(send)
            return {"values": loop.values(), "worst": loop.worst}

        idle = self.memory.settle()
        self.memory.reset()
        before = inside.items_decoded()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        start = time.process_time()
        await pacer.run(send)
        values = pacer.values()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        values["page_faults"] = faults / values["requests"]
        values["cpu_ms"] = (time.process_time() - start) * 1000 / values["requests"]
        values["peak_mb"] = max(0.0, self.memory.peak() - idle)
        values["held_mb"] = self.memory.settle() - idle
        if inside.is_lazy():
            values["decoded"] = inside.items_decoded() - before
            values["encoded_mb"] = inside.encoded_bytes() / MEGABYTE
        return {"values": values}

    def _renderer(self, cache: bool) -> Any:
        if cache not in self._renderers:
            renderer = self.inside.make_renderer(cache, self.pool.folder)
            self._renderers[cache] = renderer
            # What only the first request of each kind pays: imports, compilation.
            web = "http://127.0.0.1:9"
            maker = scenarios.Maker(self.pool, web, True)
            for name in ("text", "jpeg_data", "video_360p", "audio_30s", "own_sound"):
                for request in SCENARIOS[name].build(maker):
                    self.runner.run(self.inside.render(renderer, request))
            renderer.clear_mm_cache()
        return self._renderers[cache]


def run(results: Results, web: str, quick: bool, names: Sequence[str]) -> None:
    """Measures the front end in both modes in turn, and adds to `results`."""
    wanted = [
        s for s in SCENARIOS.values() if s.name in names and s.runs(FRONTEND, quick)
    ]
    for _ in range(1 if quick else 2):
        with ExitStack() as running:
            workers = {mode: running.enter_context(make_worker(mode)) for mode in MODES}
            for mode, standing_by in workers.items():
                lazy = standing_by.ask(do="ready")["lazy"]
                if lazy != (mode == LAZY):
                    raise worker.WorkerError(f"{mode}: lazy decode is {lazy}")
            for scenario in wanted:
                if scenario.name != BURST:
                    _alternate(results, workers, scenario, web, quick)
            _measure_ref(results, workers[LAZY])
            if any(s.name == BURST for s in wanted):
                # Only now: an idle process costs memory, if no time.
                workers[LAZY] = running.enter_context(make_worker(LAZY, **TIGHT))
                workers[UNBOUNDED] = running.enter_context(make_worker(UNBOUNDED))
                _alternate(results, workers, SCENARIOS[BURST], web, quick)


def make_worker(mode: str, **env: str) -> worker.Worker:
    """A process that is asked for samples in `mode`."""
    return worker.Worker(
        "benchmarks.frontend",
        "--worker",
        "--mode",
        mode,
        env={**ENVIRONMENTS[mode], **env},
    )


def _alternate(
    results: Results,
    workers: Mapping[str, worker.Worker],
    scenario: scenarios.Scenario,
    web: str,
    quick: bool,
) -> None:
    """Takes samples in one mode and the other, and again."""
    say(f"front end: {scenario.title}")
    modes = [m for m in workers if m in scenario.modes(quick) or m == UNBOUNDED]
    # No target is of stock vLLM's event loop.
    watched_modes = (LAZY,) if quick else MODES
    for repeat in range(scenario.repeats(quick)):
        for mode in list(modes):
            ask = partial(
                workers[mode].ask,
                do="sample",
                scenario=scenario.name,
                web=web,
                quick=quick,
            )
            try:
                values = ask(watch=False)["values"]
                if repeat == 0 and scenario.name != BURST and mode in watched_modes:
                    watched = ask(watch=True)
                    values |= watched["values"]
                    _note_worst(results, scenario.name, mode, watched)
                results.add(FRONTEND, scenario.name, mode, values)
            except worker.WorkerError as error:
                results.fail(FRONTEND, scenario.name, mode, error, error.log)
                modes.remove(mode)


def _note_worst(
    results: Results, scenario: str, mode: str, watched: worker.Answer
) -> None:
    name = f"loop {mode} {scenario}"
    block = watched["values"]["loop_block_ms"]
    so_far = float(results.notes.get(name, "0").split()[0])
    if block >= so_far:
        results.notes[name] = f"{block:.2f} ms in {watched['worst']}"


def _measure_ref(results: Results, lazy: worker.Worker) -> None:
    try:
        for values in lazy.ask(do="ref", megabytes=10, repeats=15)["samples"]:
            results.add(MICRO, "ref", LAZY, values)
    except worker.WorkerError as error:
        results.fail(MICRO, "ref", LAZY, error, error.log)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=list(ENVIRONMENTS), default=LAZY)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("scenario", nargs="*", help="all where none is given")
    arguments = parser.parse_args()
    for name, value in ENVIRONMENTS[arguments.mode].items():
        if os.environ.get(name, value) != value:
            parser.error(f"{name} is set to something else")
        # The layers look at it when vLLM is imported, which is later.
        os.environ[name] = value
    # The standard output is for figures.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    if arguments.worker:
        worker.serve(lambda: FrontEnd().handle)
        return 0
    front_end = FrontEnd()
    with media_web(front_end.pool) as web:
        for name in arguments.scenario or SCENARIOS:
            if not SCENARIOS[name].runs(FRONTEND, arguments.quick):
                continue
            for watch in (False, True):
                answer = front_end.sample(name, web, arguments.quick, watch)
                print(name, json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
