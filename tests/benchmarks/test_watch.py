# SPDX-License-Identifier: Apache-2.0
"""The instruments see what they are there to see."""

import asyncio
import threading

import numpy as np
import pytest

from benchmarks import watch
from benchmarks.watch import LoopWatch, Memory


class Clocks:
    """Stands for the clocks, so that a callback takes as long as it says."""

    def __init__(self) -> None:
        self.wall = 0.0
        self.cpu = 0.0
        self.delay = 0.0

    def perf_counter(self) -> float:
        return self.wall

    def thread_time(self) -> float:
        return self.cpu


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    monkeypatch.setattr(watch, "time", made)
    monkeypatch.setattr(watch._RunDelay, "now", lambda self: made.delay)
    return made


async def test_the_longest_callback_is_found_and_named(clocks: Clocks) -> None:
    async def short() -> None:
        clocks.wall += 0.001
        clocks.cpu += 0.001

    go = asyncio.get_running_loop().create_future()

    async def outer() -> None:
        await long()

    async def long() -> None:
        await go
        clocks.wall += 0.020
        clocks.cpu += 0.004
        clocks.delay += 0.003

    with LoopWatch() as seen:
        tasks = asyncio.gather(short(), outer(), short())
        await asyncio.sleep(0)
        go.set_result(None)
        await tasks
    assert seen.block == pytest.approx(17)
    assert seen.cpu == pytest.approx(4)
    assert seen.worst.endswith(".long")


async def test_naming_a_callback_prints_nothing_that_it_waits_for(
    clocks: Clocks,
) -> None:
    printed = []

    class Result:
        def __repr__(self) -> str:
            # As long as it takes to print a tensor.
            printed.append(self)
            return "result"

    go = asyncio.get_running_loop().create_future()

    async def wait() -> None:
        await go

    with LoopWatch():
        task = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        go.set_result(Result())
        await task
    assert not printed


async def test_leaving_puts_the_loop_back(clocks: Clocks) -> None:
    before = asyncio.events.Handle._run
    with LoopWatch() as seen:
        await asyncio.sleep(0)
    assert asyncio.events.Handle._run is before
    clocks.wall += 5
    await asyncio.sleep(0)
    assert seen.block == 0


async def test_another_loop_is_not_watched(clocks: Clocks) -> None:
    async def elsewhere() -> None:
        await asyncio.sleep(0)
        clocks.wall += 9
        await asyncio.sleep(0)

    with LoopWatch() as seen:
        thread = threading.Thread(target=asyncio.run, args=(elsewhere(),))
        # In one callback of this loop, so that the clock moves in that one alone.
        await asyncio.sleep(0)
        thread.start()
        thread.join()
        clocks.wall -= 9
        await asyncio.sleep(0)
    assert seen.block == 0


async def test_a_held_loop_shows_in_late_timers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)
    with LoopWatch() as seen:
        for step, late in ((0.001, 0), (0.051, 50), (0.001, 50)):
            now += step
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert seen.late == pytest.approx(late, abs=1e-6)


def test_a_peak_is_seen_after_it_has_gone() -> None:
    memory = Memory()
    idle = memory.settle()
    memory.reset()
    large = np.ones(64 * watch.MEGABYTE, np.uint8)
    assert large[-1] == 1
    del large
    after = memory.settle()
    assert memory.peak() - idle > 56
    assert after - idle < 32
    memory.reset()
    assert memory.peak() - idle < 32


def test_what_the_allocator_keeps_is_given_back() -> None:
    memory = Memory()
    idle = memory.settle()
    small = [bytearray(100_000) for _ in range(640)]
    # Above the others, so that the heap can't shrink by itself.
    fence = bytearray(100_000)
    del small
    assert memory.settle() - idle < 32
    del fence
