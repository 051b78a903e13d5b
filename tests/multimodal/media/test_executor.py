# SPDX-License-Identifier: Apache-2.0
"""Decodes of one modality do not wait for those of another, nor for reads."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from vllm.multimodal.media.executor import (
    decode_thread_count,
    global_thread_pool,
    submit_decode,
)

PATIENCE = 60


@pytest.fixture
def blocked() -> Iterator[Callable[[str], list[Future]]]:
    """Fills every thread of a lane, until the test ends."""
    go = threading.Event()
    futures: list[Future] = []

    def block(modality: str) -> list[Future]:
        started = threading.Semaphore(0)

        def wait() -> None:
            started.release()
            go.wait(PATIENCE)

        threads = decode_thread_count()
        made = [submit_decode(modality, wait) for _ in range(threads)]
        futures.extend(made)
        for _ in range(threads):
            assert started.acquire(timeout=PATIENCE), "fewer threads than configured"
        return made

    yield block
    go.set()
    for future in futures:
        future.result(PATIENCE)


@pytest.mark.parametrize(
    ("busy", "free"), [("video", "image"), ("image", "audio"), ("audio", "video")]
)
def test_a_busy_lane_holds_up_no_other(
    busy: str, free: str, blocked: Callable[[str], list[Future]]
) -> None:
    waiting = blocked(busy)
    assert submit_decode(free, lambda: "decoded").result(PATIENCE) == "decoded"
    assert not any(future.done() for future in waiting)


def test_busy_lanes_hold_up_no_read(blocked: Callable[[str], list[Future]]) -> None:
    for modality in ("image", "video", "audio"):
        blocked(modality)
    assert global_thread_pool.submit(lambda: "read").result(PATIENCE) == "read"


def test_submitting_to_a_busy_lane_does_not_block(
    blocked: Callable[[str], list[Future]],
) -> None:
    blocked("video")
    future = submit_decode("video", lambda: "decoded")
    assert not future.running()
    assert future.cancel()


def test_failures_are_left_to_the_future() -> None:
    def fail() -> None:
        raise KeyError("broken")

    assert isinstance(submit_decode("image", fail).exception(PATIENCE), KeyError)


def test_threads_tell_their_modality() -> None:
    future = submit_decode("audio", lambda: threading.current_thread().name)
    assert "audio" in future.result(PATIENCE)


@pytest.mark.parametrize(
    ("cpus", "configured", "threads"),
    [(1, None, 1), (2, None, 2), (64, None, 8), (2, "1", 1), (2, "16", 16)],
)
def test_how_many_decode_at_a_time(
    cpus: int, configured: str | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "VLLM_MEDIA_LOADING_THREAD_COUNT"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cpus)))
    if configured is None:
        monkeypatch.delenv(name, raising=False)
    else:
        monkeypatch.setenv(name, configured)
    assert decode_thread_count() == threads
