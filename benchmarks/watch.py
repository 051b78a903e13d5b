# SPDX-License-Identifier: Apache-2.0
"""Instruments for this process: its memory, and its event loop."""

import asyncio
import ctypes
import gc
import inspect
import os
import threading
import time
from typing import Any, cast

MEGABYTE = 1 << 20


class Memory:
    """Resident memory now and at its highest since `reset`, in megabytes.

    Linux keeps the highest value itself, so that no peak falls between two looks.
    """

    def settle(self) -> float:
        """Gives back what is free, and returns what is left."""
        gc.collect()
        # The C library keeps freed memory for itself, and would be taken for a peak.
        ctypes.CDLL(None).malloc_trim(0)
        return self._read("VmRSS:")

    def reset(self) -> None:
        """Starts a new peak."""
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")

    def peak(self) -> float:
        return self._read("VmHWM:")

    def _read(self, key: str) -> float:
        with open("/proc/self/status") as file:
            for line in file:
                if line.startswith(key):
                    return int(line.split()[1]) * 1024 / MEGABYTE
        raise OSError(f"no {key} in /proc/self/status")


class LoopWatch:
    """How long this thread's event loop was held up, while a `with` block runs.

    * `block`: the longest that one callback held the loop, in milliseconds, without
      the time in which the machine gave the thread no processor. With it the time
      in which another thread had the interpreter, or a lock.
    * `cpu`: the longest that one callback computed.
    * `late`: the most that a timer fired behind its time, all causes together.
    * `worst`: which callback the first figure is of.

    It costs some microseconds for each callback, so nothing is timed under it.
    """

    BEAT = 0.001

    def __init__(self) -> None:
        self.block = 0.0
        self.cpu = 0.0
        self.late = 0.0
        self.worst = ""

    def __enter__(self) -> "LoopWatch":
        self._loop = asyncio.get_running_loop()
        self._run = asyncio.events.Handle._run
        self._delays = _RunDelay()
        self._on = True
        asyncio.events.Handle._run = self._watched()  # type: ignore[method-assign]
        self._due = self._loop.time() + self.BEAT
        self._timer = self._loop.call_at(self._due, self._beat)
        return self

    def __exit__(self, *error: object) -> None:
        self._on = False
        asyncio.events.Handle._run = self._run  # type: ignore[method-assign]
        self._timer.cancel()
        self._delays.close()

    def values(self) -> dict[str, float]:
        """The figures by the names that samples give them."""
        return {
            "loop_block_ms": self.block,
            "loop_cpu_ms": self.cpu,
            "loop_late_ms": self.late,
        }

    def _beat(self) -> None:
        now = self._loop.time()
        self.late = max(self.late, (now - self._due) * 1000)
        self._due = now + self.BEAT
        self._timer = self._loop.call_at(self._due, self._beat)

    def _note(self, name: str, start: float, cpu: float, delay: float) -> None:
        self.cpu = max(self.cpu, (time.thread_time() - cpu) * 1000)
        wall = time.perf_counter() - start
        block = (wall - (self._delays.now() - delay)) * 1000
        if block > self.block:
            self.block, self.worst = block, name

    def _watched(self) -> Any:
        run, thread, watch = self._run, threading.get_ident(), self

        def _run(handle: Any) -> None:
            if threading.get_ident() != thread:
                return run(handle)
            # Before it runs: a task forgets its coroutine when it ends.
            name = _name(handle)
            delay, start, cpu = (
                watch._delays.now(),
                time.perf_counter(),
                time.thread_time(),
            )
            try:
                return run(handle)
            finally:
                # Not where this is the callback that left the block.
                if watch._on:
                    watch._note(name, start, cpu, delay)

        return _run


def _name(handle: Any) -> str:
    """Which code a callback is: of a task, where it goes on."""
    callback = handle._callback
    owner = getattr(callback, "__self__", None)
    if not isinstance(owner, asyncio.Task):
        return getattr(callback, "__qualname__", repr(callback))
    # Not by its `repr`, which has the result that it waits for, tensors and all.
    name, inner = owner.get_name(), cast(Any, owner.get_coro())
    while inspect.iscoroutine(inner):
        name, inner = inner.__qualname__, inner.cr_await
    return name


class _RunDelay:
    """Seconds for which this thread was ready to run and had no processor."""

    def __init__(self) -> None:
        try:
            path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
            self._file: int | None = os.open(path, os.O_RDONLY)
        except OSError:
            # A kernel without the statistic: all the waiting counts as blocking.
            self._file = None

    def now(self) -> float:
        if self._file is None:
            return 0.0
        return int(os.pread(self._file, 100, 0).split()[1]) / 1e9

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
