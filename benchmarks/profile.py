# SPDX-License-Identifier: Apache-2.0
"""Where the time of a repeated request goes, in both modes.

    python -m benchmarks.profile [--into PAGE] [--cprofile] [SCENARIO ...]

times the steps of a request that runs alone in the front end, and those of the API
server that come before and after it: parsing JSON, and packing for the engine. What
no step accounts for is in *hops*: the moves between threads. With `--cprofile` it
prints Python's own profiles of the mm worker's thread and of the event loop's.
"""

import argparse
import asyncio
import cProfile
import io
import json
import os
import pathlib
import pstats
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from benchmarks import report, scenarios, worker
from benchmarks.frontend import ENVIRONMENTS
from benchmarks.pool import Pool, media_web
from benchmarks.scenarios import MODES, SCENARIOS, Request
from benchmarks.stopwatch import Stopwatch

DEFAULT = ("text", "jpeg_data", "video_720p", "history", "audio_30s")
REPEATS = 30

JSON = "JSON and its checks"
READ = "file read"
BASE64 = "base64"
SHA256 = "sha256"
DECODE = "decode"
HASH = "item hashes"
TEMPLATE = "chat template and tokenizer"
HF = "HF processor"
WORKER = "rest on the mm worker"
LOOP = "event loop"
HOPS = "hops"
IPC = "packing for the engine"

STEPS = (
    *(JSON, LOOP, READ, BASE64, SHA256, DECODE, TEMPLATE),
    *(HASH, HF, WORKER, HOPS, IPC),
)


class Profiler:
    """A renderer whose steps are timed."""

    def __init__(self) -> None:
        from benchmarks import inside

        self.inside = inside
        self.watch = Stopwatch()
        self._time_steps()
        self.pool = Pool()
        self.runner = asyncio.Runner()
        self.renderer = inside.make_renderer(True, self.pool.folder)
        self._parse, self._pack = _server_steps(self.renderer)

    def _time_steps(self) -> None:
        # Before there is a renderer, which keeps some of these for itself.
        import pybase64

        from vllm.multimodal.media import AudioMediaIO, ImageMediaIO, VideoMediaIO
        from vllm.multimodal.processing import ProcessorInputs, context
        from vllm.renderers import base, hf

        wrap = self.watch.wrap
        wrap(asyncio.events.Handle, "_run", LOOP)
        # Waking a thread often means that it takes the interpreter at once.
        wrap(ThreadPoolExecutor, "submit", HOPS)
        wrap(pathlib.Path, "read_bytes", READ)
        wrap(pybase64, "b64decode", BASE64)
        for media_io in (AudioMediaIO, ImageMediaIO, VideoMediaIO):
            wrap(media_io, "load_bytes", DECODE)
        wrap(hf, "safe_apply_chat_template", TEMPLATE)
        renderer = cast(Any, base).BaseRenderer
        wrap(ProcessorInputs, "get_mm_hashes", HASH)
        wrap(cast(Any, context).InputProcessingContext, "call_hf_processor", HF)
        if self.inside.is_lazy():
            from vllm.multimodal.media import base as media_base

            wrap(media_base, "digest_chunks", SHA256)
            wrap(renderer, "_apply_phase1", WORKER)
            wrap(renderer, "_apply_phase2", WORKER)
        else:
            wrap(renderer, "_process_multimodal", WORKER)

    def handle(self, question: worker.Answer) -> worker.Answer:
        return self.split(**question)

    def split(
        self, scenario: str, web: str, repeats: int, cprofile: bool
    ) -> worker.Answer:
        """Median milliseconds of each step, and of the whole, over some requests."""
        requests = SCENARIOS[scenario].build(scenarios.Maker(self.pool, web, True))
        (request,) = requests
        for _ in range(3):
            self._once(request)
        found = [self._once(request) for _ in range(repeats)]
        steps = {
            step: statistics.median(times.get(step, 0.0) for times in found)
            for step in STEPS
        }
        answer: worker.Answer = {"steps": steps}
        if cprofile:
            answer["profile"] = self._cprofile(request, repeats)
        return answer

    def _once(self, request: Request) -> dict[str, float]:
        body = json.dumps({"messages": request.messages, **request.options})
        before = self.watch.seconds.copy()
        start = time.perf_counter()
        self._parse(body)
        parsed = time.perf_counter()
        made = self.runner.run(self.inside.render(self.renderer, request))
        rendered = time.perf_counter()
        self._pack(made)
        packed = time.perf_counter()

        after = self.watch.seconds
        spent = {step: after[step] - before.get(step, 0.0) for step in after}
        steps = sum(spent.values()) - spent.get(HOPS, 0.0)
        hops = (rendered - parsed) - steps
        taken = {JSON: parsed - start, **spent, HOPS: hops, IPC: packed - rendered}
        return {step: seconds * 1000 for step, seconds in taken.items()}

    def _cprofile(self, request: Request, repeats: int) -> str:
        profile = cProfile.Profile()
        loop = cProfile.Profile()
        executor = self.renderer._mm_executor
        # A profile is of one thread: the mm worker, which is one, and this one.
        executor.submit(profile.enable).result()
        loop.enable()
        for _ in range(repeats):
            self.runner.run(self.inside.render(self.renderer, request))
        loop.disable()
        executor.submit(profile.disable).result()
        return f"mm worker:\n{_printed(profile)}\nevent loop:\n{_printed(loop)}"


def _printed(profile: cProfile.Profile) -> str:
    out = io.StringIO()
    pstats.Stats(profile, stream=out).sort_stats("tottime").print_stats(15)
    return out.getvalue()


def _server_steps(renderer: Any) -> tuple[Any, Any]:
    """What the API server does to a request before the renderer has it, and after."""
    from vllm import SamplingParams
    from vllm.entrypoints.openai.chat_completion.protocol import (
        ChatCompletionRequest,
    )
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.serial_utils import MsgpackEncoder

    processor = InputProcessor(renderer.config, renderer)
    encoder = MsgpackEncoder()

    def parse(body: str) -> None:
        ChatCompletionRequest.model_validate(json.loads(body))

    def pack(made: Any) -> None:
        params = SamplingParams(max_tokens=1)
        encoder.encode(processor.process_inputs("0", made, params, ("generate",)))

    return parse, pack


def table(splits: dict[str, dict[str, dict[str, float]]]) -> str:
    """Milliseconds of each step, by scenario and mode."""
    columns = [(name, mode) for name, modes in splits.items() for mode in modes]
    rows = [
        (step, *(_cell(splits[name][mode][step]) for name, mode in columns))
        for step in STEPS
    ]
    whole = [sum(splits[name][mode].values()) for name, mode in columns]
    rows.append(("**together**", *map(_cell, whole)))
    titles = [f"{SCENARIOS[name].title}: {mode}" for name, mode in columns]
    return report.table(("milliseconds of", *titles), rows)


def _cell(milliseconds: float) -> str:
    return f"{milliseconds:.2f}" if milliseconds >= 0.005 else "–"


def compare(names: list[str], cprofile: bool) -> dict[str, Any]:
    """The split of each scenario in each mode, by name and then by mode."""
    splits: dict[str, Any] = {}
    with ExitStack() as running:
        web = running.enter_context(media_web(Pool()))
        workers = {
            mode: running.enter_context(
                worker.Worker(
                    "benchmarks.profile", "--worker", mode, env=ENVIRONMENTS[mode]
                )
            )
            for mode in MODES
        }
        for name in names:
            splits[name] = {}
            for mode in MODES:
                answer = workers[mode].ask(
                    scenario=name, web=web, repeats=REPEATS, cprofile=cprofile
                )
                splits[name][mode] = answer["steps"]
                if cprofile:
                    print(f"{name}, {mode}:\n{answer['profile']}", flush=True)
    return splits


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--cprofile", action="store_true")
    parser.add_argument("--into", type=Path, help="a page to put the table into")
    parser.add_argument("scenario", nargs="*", default=list(DEFAULT))
    arguments = parser.parse_args()
    if arguments.worker:
        os.environ.update(ENVIRONMENTS[arguments.worker])
        worker.serve(lambda: Profiler().handle)
        return 0
    made = table(compare(arguments.scenario, arguments.cprofile))
    print(made)
    if arguments.into:
        report.put(arguments.into, "split", made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
