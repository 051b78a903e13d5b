# SPDX-License-Identifier: Apache-2.0
"""A renderer, and a process, that end while media decode."""

import asyncio
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from tests.harness import (
    PATIENCE,
    bytes_held,
    decoder_of,
    make_renderer,
    payload,
    process_async,
    turns,
    wait_for,
)

ROOT = Path(__file__).resolve().parents[2]


async def test_shutdown_waits_for_no_decode() -> None:
    renderer = make_renderer()
    before = bytes_held(renderer)
    decoder = decoder_of("video", held=True)
    data = {"video": [decoder.ref(payload("video"))]}
    task = asyncio.ensure_future(process_async(renderer, data))
    del data
    await wait_for(decoder.began)
    await asyncio.wait_for(asyncio.to_thread(renderer.shutdown), PATIENCE)
    assert not decoder.ended.is_set() and not task.done()
    decoder.go.set()
    # Its worker is gone, so the request fails; and lets go of what it held.
    try:
        await task
        raise AssertionError("it should have failed")
    except RuntimeError as e:
        assert "after shutdown" in str(e)
    del task
    await turns()
    assert decoder.calls == 1 and bytes_held(renderer) == before


# One decode that ends when the standard input does, and others behind it.
ENDING = """
import asyncio, sys
from tests.harness import (
    Decoder, decoder_of, make_renderer, payload, process_async, wait_for
)

def say(what):
    print(what, file=sys.stderr, flush=True)

class UntilTold(Decoder):
    def __call__(self):
        self.began.set()
        sys.stdin.read()
        say("decoded the first")
        return self.result

class Behind(Decoder):
    def __call__(self):
        say("decoded another")
        return self.result

async def main():
    renderer = make_renderer()
    result = decoder_of("image").result
    first = UntilTold(result)
    decoders = [first] + [Behind(result) for _ in range(3)]
    tasks = [
        asyncio.ensure_future(
            process_async(renderer, {"image": [decoder.ref(payload("image", n))]})
        )
        for n, decoder in enumerate(decoders)
    ]
    await wait_for(first.began)
    await asyncio.wrap_future(renderer._mm_executor.submit(int))
    # Cancelled when this returns; those behind the first have nothing to wait for.
    for task in tasks[1:]:
        task.add_done_callback(lambda task: say(f"cancelled: {task.cancelled()}"))

asyncio.run(main())
say("left")
"""


def test_process_ends_when_the_running_decode_has() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ENDING],
        cwd=ROOT,
        env={**os.environ, "VLLM_MEDIA_LOADING_THREAD_COUNT": "1"},
        stdin=subprocess.PIPE,
        # Logs go to the standard output.
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines = (line for line in process.stderr if line.startswith("cancelled:"))
    assert list(islice(lines, 3)) == ["cancelled: True\n"] * 3
    try:
        _, said = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail("it did not end")
    # What had not begun was dropped.
    assert said.splitlines() == ["decoded the first", "left"]
    assert process.returncode == 0
