# SPDX-License-Identifier: Apache-2.0
"""Submitting decodes to the media pool, and collecting what became of them.

The processor and the vision-chunk parser both decode through here; each brings an
error factory, because only the caller knows what the client calls the item.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TypeAlias

from vllm.exceptions import VLLMError, VLLMUnprocessableEntityError

from . import metrics
from .admission import DecodeRequest
from .flights import DecodeJob, MediaItemRef, decode_flights

__all__ = ["DecodeJob", "DecodeRequest", "MediaItemRef"]

ErrorFactory: TypeAlias = Callable[[MediaItemRef, Exception], Exception]
"""Makes the error to raise for an item from what its decoder raised, its cause."""


def media_decode_error(item: MediaItemRef, error: Exception) -> Exception:
    """The error that tells a client which item could not be decoded (HTTP 422).

    It names no parameter: an `audio_url` and an `input_audio` are both "audio" by
    now. Errors that are not the item's fault come back as they are.
    """
    if isinstance(error, (VLLMError, ImportError, MemoryError)):
        return error
    made = VLLMUnprocessableEntityError(
        f"Failed to decode {item.modality} at index {item.index}: {error}"
    )
    made.__cause__ = error
    return made


def decode_item(item: MediaItemRef) -> None:
    """Decode one item here and now, and count the outcome. Not on the event loop.

    Raises:
        Exception: Whatever the decoder raises, unchanged.
    """
    try:
        with metrics.DecodeTimer(item.modality):
            ran = item.ref.settle()
    except BaseException:
        metrics.count_item(item.modality, metrics.FAILED)
        raise
    outcome = metrics.DECODED if ran else metrics.SHARED
    metrics.count_item(item.modality, outcome)


def submit_media_decodes(
    items: Iterable[MediaItemRef],
    jobs: list[DecodeJob],
    request: DecodeRequest | None = None,
    *,
    urgent: bool = False,
) -> None:
    """Submit a decode for each item. Any thread; never blocks.

    Each job is in `jobs` as soon as it is submitted, so that whoever owns the list
    can drain it even where a later submission fails. It is the owner, too, who calls
    each job's `leave()` once the decoded media are not needed any more.

    Args:
        items: What to decode, by refs that belong to the caller alone.
        jobs: Where the jobs go.
        request: Whose items they are; a new one by default, that shares no decode.
        urgent: Let them begin whatever is held already: for the mm worker.
    """
    if request is None:
        request = DecodeRequest()
    for item in items:
        jobs.append(decode_flights.board(item, request, urgent=urgent))


def leave_media_decodes(jobs: Iterable[DecodeJob]) -> None:
    """Give each job's share of the memory bound back. Any thread; never blocks."""
    for job in jobs:
        job.leave()


def drain_media_decodes(jobs: Sequence[DecodeJob]) -> None:
    """Wait until no job runs any more, whatever became of it."""
    # `wait` would wait for a dropped job until a thread comes by it in the queue.
    wait([job.future for job in jobs if not job.future.done()])


async def drain_media_decodes_async(jobs: Sequence[DecodeJob]) -> None:
    """`drain_media_decodes` for the event loop.

    Cancelled, however often, it drops what has not begun, goes on waiting for what
    has, because threads use the payloads until then, and raises CancelledError at
    the end.
    """

    def drop_unstarted() -> None:
        for job in jobs:
            job.cancel()

    running = [job.future for job in jobs if not job.future.done()]
    await drain_futures_async(running, drop_unstarted)


async def drain_futures_async(
    futures: Sequence["Future"], drop_unstarted: Callable[[], object]
) -> None:
    """Wait for all of `futures`, also through cancellation, which is raised after.

    What has ended already is heard of through the event loop as well, so that of two
    callers that each wait for one future, the one whose future ended first goes on
    first.

    Args:
        futures: Work on executors.
        drop_unstarted: Called when this is cancelled, to give up what has not begun.
    """
    cancelled: asyncio.CancelledError | None = None
    while futures:
        try:
            await _all_ended(futures)
            break
        except asyncio.CancelledError as e:
            cancelled = e
            drop_unstarted()
    if cancelled is not None:
        try:
            raise cancelled
        finally:
            # A frame that refers to the error it raises is a cycle, which would keep
            # the request's payloads until the garbage collector runs.
            del cancelled


def call_when_ended(futures: Sequence["Future"], tell: Callable[[], object]) -> None:
    """Call `tell` once all of `futures` have ended, whatever became of them: on the
    thread that ends the last of them, or here and now where none is left. Never
    blocks."""
    if not futures:
        tell()
        return
    others = itertools.count(len(futures) - 1, -1)

    def count_down(_ended: object) -> None:
        # `next` of a count is atomic.
        if next(others) == 0:
            tell()

    for future in futures:
        future.add_done_callback(count_down)


def _all_ended(futures: Sequence["Future"]) -> "asyncio.Future[None]":
    """Done when all of `futures` are, whatever became of them. On the event loop.

    It wakes the loop once, where `asyncio.wait` would do so for each future and then
    take another turn: each time, the loop competes for the interpreter with the mm
    worker. Cancelling it leaves `futures` alone.
    """
    loop = asyncio.get_running_loop()
    all_ended = loop.create_future()

    def set_result() -> None:
        # It is done where its waiter was cancelled.
        if not all_ended.done():
            all_ended.set_result(None)

    def tell() -> None:
        # Nobody waits any more where the loop has been closed meanwhile.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(set_result)

    call_when_ended(futures, tell)
    return all_ended


def collect_media_decodes(
    jobs: Sequence[DecodeJob], make_error: ErrorFactory = media_decode_error
) -> None:
    """Wait for every job, then raise for the first in request order that failed.

    Blocks: for a thread that may wait.
    """
    drain_media_decodes(jobs)
    _raise_first_failure(jobs, make_error)


async def collect_media_decodes_async(
    jobs: Sequence[DecodeJob], make_error: ErrorFactory = media_decode_error
) -> None:
    """`collect_media_decodes` for the event loop, draining through cancellation."""
    await drain_media_decodes_async(jobs)
    _raise_first_failure(jobs, make_error)


def _raise_first_failure(jobs: Sequence[DecodeJob], make_error: ErrorFactory) -> None:
    for job in jobs:
        error = job.future.exception()
        if isinstance(error, Exception):
            raise make_error(job.item, error)
        if error is not None:
            raise error
