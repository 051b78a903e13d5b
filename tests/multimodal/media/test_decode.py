# SPDX-License-Identifier: Apache-2.0
"""Decodes are submitted one by one and collected all together."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tiny.media import noise
from vllm.exceptions import (
    VLLMError,
    VLLMUnprocessableEntityError,
    VLLMValidationError,
)
from vllm.multimodal.media import ImageMediaIO, MediaRef
from vllm.multimodal.media import decode as decode_module
from vllm.multimodal.media import flights as flights_module
from vllm.multimodal.media.admission import Admission
from vllm.multimodal.media.decode import (
    DecodeJob,
    MediaItemRef,
    collect_media_decodes,
    collect_media_decodes_async,
    decode_item,
    drain_futures_async,
    drain_media_decodes,
    drain_media_decodes_async,
    media_decode_error,
    submit_media_decodes,
)
from vllm.multimodal.media.flights import DecodeFlights

PATIENCE = 60


def item(decode: Callable[[], Any], index: int = 0) -> MediaItemRef:
    return MediaItemRef("image", index, MediaRef(decode, b"payload"))


def failing(error: BaseException) -> Callable[[], Any]:
    def decode() -> Any:
        raise error

    return decode


class Gate:
    """A decode that tells when it begins and waits to be let go."""

    def __init__(self, outcome: Any = "media") -> None:
        self.outcome = outcome
        self.began = threading.Event()
        self.go = threading.Event()
        self.ended = False

    def __call__(self) -> Any:
        self.began.set()
        assert self.go.wait(PATIENCE)
        self.ended = True
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


@pytest.fixture
def gates() -> Iterator[Callable[..., Gate]]:
    made: list[Gate] = []

    def make(outcome: Any = "media") -> Gate:
        made.append(Gate(outcome))
        return made[-1]

    yield make
    for gate in made:
        gate.go.set()


def submitted(*decodes: Callable[[], Any]) -> list[DecodeJob]:
    jobs: list[DecodeJob] = []
    submit_media_decodes((item(d, n) for n, d in enumerate(decodes)), jobs)
    return jobs


async def turns() -> None:
    """Lets the event loop do all that is ready to be done."""
    for _ in range(10):
        await asyncio.sleep(0)


# Submitting


def test_each_item_gets_a_job_in_order() -> None:
    items = [item(lambda n=n: n, n) for n in range(3)]
    jobs: list[DecodeJob] = []
    submit_media_decodes(items, jobs)
    assert [job.item for job in jobs] == items
    collect_media_decodes(jobs)
    assert [one.ref.decode() for one in items] == [0, 1, 2]


def test_earlier_jobs_are_kept() -> None:
    jobs = submitted(lambda: 1)
    submit_media_decodes([item(lambda: 2)], jobs)
    assert len(jobs) == 2
    collect_media_decodes(jobs)


def test_submitting_does_not_wait(gates: Callable[..., Gate]) -> None:
    first, second = gates(), gates()
    jobs = submitted(first, second)
    assert first.began.wait(PATIENCE) and second.began.wait(PATIENCE)
    assert not any(job.future.done() for job in jobs)


def test_jobs_submitted_before_a_failure_can_be_drained(
    monkeypatch: pytest.MonkeyPatch, gates: Callable[..., Gate]
) -> None:
    gate = gates()
    refuse_all_but_the_first(monkeypatch)
    use_threads(monkeypatch, 2)
    jobs: list[DecodeJob] = []
    decodes = [gate, lambda: "never", lambda: "never"]
    with pytest.raises(RuntimeError, match="after shutdown"):
        submit_media_decodes((item(d, n) for n, d in enumerate(decodes)), jobs)
    assert [job.item.index for job in jobs] == [0]
    gate.go.set()
    drain_media_decodes(jobs)
    assert jobs[0].item.ref.is_decoded


def test_a_job_that_is_refused_after_it_waited_fails(
    monkeypatch: pytest.MonkeyPatch, gates: Callable[..., Gate]
) -> None:
    gate = gates()
    refuse_all_but_the_first(monkeypatch)
    use_threads(monkeypatch, 1)
    jobs = submitted(gate, lambda: "never")
    gate.go.set()
    with pytest.raises(RuntimeError, match="after shutdown"):
        collect_media_decodes(jobs, lambda _, error: error)
    assert jobs[0].item.ref.is_decoded and not jobs[1].item.ref.is_decoded


def use_threads(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Flights of this test alone: others may have left decodes running."""
    flights = DecodeFlights(Admission(limit=0, threads=count))
    monkeypatch.setattr(decode_module, "decode_flights", flights)


def refuse_all_but_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool takes one decode, and ends."""
    original = flights_module.submit_decode
    taken: list[str] = []

    def submit(modality: str, decode: Callable[[], Any]) -> Future:
        if taken:
            raise RuntimeError("cannot schedule new futures after shutdown")
        taken.append(modality)
        return original(modality, decode)

    monkeypatch.setattr(flights_module, "submit_decode", submit)


def test_a_failing_iterable_leaves_what_was_submitted() -> None:
    def items() -> Iterator[MediaItemRef]:
        yield item(lambda: "media")
        raise KeyError("next")

    jobs: list[DecodeJob] = []
    with pytest.raises(KeyError):
        submit_media_decodes(items(), jobs)
    assert len(jobs) == 1
    collect_media_decodes(jobs)


def test_decode_item_passes_the_failure_on() -> None:
    error = ValueError("broken")
    with pytest.raises(ValueError) as failure:
        decode_item(item(failing(error)))
    assert failure.value is error


# Collecting


async def collect_sync(jobs: list[DecodeJob], *args: Any) -> None:
    await asyncio.to_thread(collect_media_decodes, jobs, *args)


BOTH = pytest.mark.parametrize("collect", [collect_sync, collect_media_decodes_async])


@BOTH
async def test_nothing_to_collect(collect: Callable) -> None:
    await collect([])


@BOTH
async def test_first_failure_in_request_order_is_raised_after_all_have_ended(
    collect: Callable, gates: Callable[..., Gate]
) -> None:
    slow_failure, slow = gates(ValueError("second in order")), gates()
    failed_first = threading.Event()

    def fail_first() -> Any:
        failed_first.set()
        raise ValueError("first in time")

    jobs = submitted(lambda: "media", slow_failure, fail_first, slow)
    collecting = asyncio.ensure_future(collect(jobs))
    await asyncio.to_thread(failed_first.wait, PATIENCE)
    slow_failure.go.set()
    await asyncio.to_thread(jobs[1].future.exception, PATIENCE)
    await turns()
    # Two have failed, one still runs.
    assert not collecting.done()
    slow.go.set()
    with pytest.raises(VLLMUnprocessableEntityError) as failure:
        await collecting
    assert str(failure.value) == "Failed to decode image at index 1: second in order"
    assert failure.value.__cause__ is slow_failure.outcome
    assert slow.ended


def test_no_error_is_made_while_a_decode_runs(
    gates: Callable[..., Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing, slow = gates(ValueError("broken")), gates()
    jobs = submitted(failing, slow)
    failing.go.set()
    assert jobs[0].future.exception(PATIENCE) is failing.outcome
    wait = decode_module.wait

    def let_go_and_wait(futures: Any) -> Any:
        slow.go.set()
        return wait(futures)

    # Only waiting for all of them lets the other one end.
    monkeypatch.setattr(decode_module, "wait", let_go_and_wait)
    ended: list[bool] = []

    def make_error(item: MediaItemRef, error: Exception) -> Exception:
        ended.append(slow.ended)
        return error

    with pytest.raises(ValueError, match="broken"):
        collect_media_decodes(jobs, make_error)
    assert ended == [True]


@BOTH
async def test_error_names_modality_and_index_and_no_parameter(
    collect: Callable,
) -> None:
    jobs: list[DecodeJob] = []
    ref = ImageMediaIO().load_bytes_ref(noise())
    submit_media_decodes([MediaItemRef("image", 7, ref)], jobs)
    with pytest.raises(VLLMUnprocessableEntityError) as failure:
        await collect(jobs)
    assert "image at index 7: Failed to load image" in str(failure.value)
    assert failure.value.parameter is None


@BOTH
async def test_error_factory_makes_the_error(collect: Callable) -> None:
    cause = ValueError("broken")
    seen: list[tuple[MediaItemRef, Exception]] = []

    def make_error(one: MediaItemRef, error: Exception) -> Exception:
        seen.append((one, error))
        return LookupError("made")

    jobs = submitted(lambda: "media", failing(cause), failing(KeyError()))
    with pytest.raises(LookupError, match="made"):
        await collect(jobs, make_error)
    assert seen == [(jobs[1].item, cause)]


@BOTH
@pytest.mark.parametrize(
    "error",
    [
        ImportError("no decoder installed"),
        MemoryError("full"),
        VLLMValidationError("too large", parameter="audio_filesize_mb"),
        VLLMUnprocessableEntityError("known"),
        VLLMError("known"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_errors_that_are_not_of_the_media_stay_as_they_are(
    collect: Callable, error: Exception
) -> None:
    with pytest.raises(type(error)) as failure:
        await collect(submitted(failing(error)))
    assert failure.value is error


@pytest.mark.parametrize(
    "error", [ValueError("x"), OSError("x"), RuntimeError("x"), KeyError("x")]
)
def test_every_other_error_is_the_medium_s(error: Exception) -> None:
    made = media_decode_error(MediaItemRef("audio", 2, item(str).ref), error)
    assert isinstance(made, VLLMUnprocessableEntityError)
    assert str(made).startswith("Failed to decode audio at index 2: ")
    assert made.__cause__ is error


@BOTH
async def test_what_is_no_exception_of_a_decoder_is_not_wrapped(
    collect: Callable,
) -> None:
    class Stop(BaseException):
        pass

    with pytest.raises(Stop):
        await collect(submitted(failing(Stop())))


@pytest.fixture
def lane(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadPoolExecutor]:
    """A lane of one thread, which ends when the test says so."""
    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(
            flights_module, "submit_decode", lambda _, decode: pool.submit(decode)
        )
        yield pool


@pytest.mark.parametrize("way", ["sync", "async", "cancelled"])
async def test_an_error_keeps_no_payload_until_garbage_is_collected(
    way: str, lane: ThreadPoolExecutor, gates: Callable[..., Gate]
) -> None:
    gate = gates(ValueError("broken"))
    jobs = submitted(gate)
    watched = weakref.ref(jobs[0].item.ref)
    gc.disable()
    try:
        if way == "cancelled":
            collecting = asyncio.ensure_future(collect_media_decodes_async(jobs))
            assert await asyncio.to_thread(gate.began.wait, PATIENCE)
            collecting.cancel()
            await turns()
            gate.go.set()
            try:
                await collecting
            except asyncio.CancelledError:
                pass
            del collecting
        else:
            gate.go.set()
            try:
                if way == "sync":
                    collect_media_decodes(jobs)
                else:
                    await collect_media_decodes_async(jobs)
            except VLLMUnprocessableEntityError:
                pass
        # The thread lets go of its work only after the future is done.
        lane.shutdown()
        await turns()
        del jobs, gate.outcome
        assert watched() is None
    finally:
        gc.enable()


# Cancellation


@pytest.mark.parametrize(
    "collect", [collect_media_decodes_async, drain_media_decodes_async]
)
@pytest.mark.parametrize("outcome", ["media", ValueError("broken")])
async def test_cancelled_collection_drains_first(
    collect: Callable, outcome: Any, gates: Callable[..., Gate]
) -> None:
    first, second = gates(), gates(outcome)
    jobs = submitted(first, second)
    collecting = asyncio.ensure_future(collect(jobs))
    for gate in (first, second):
        assert await asyncio.to_thread(gate.began.wait, PATIENCE)
    for _ in range(3):
        collecting.cancel()
        await turns()
        assert not collecting.done()
    first.go.set()
    await asyncio.to_thread(jobs[0].future.result, PATIENCE)
    collecting.cancel()
    await turns()
    assert not collecting.done()
    second.go.set()
    with pytest.raises(asyncio.CancelledError):
        await collecting
    assert first.ended and second.ended
    assert all(job.future.done() and not job.future.cancelled() for job in jobs)


async def test_event_loop_is_free_while_it_drains(gates: Callable[..., Gate]) -> None:
    gate = gates()
    collecting = asyncio.ensure_future(collect_media_decodes_async(submitted(gate)))
    assert await asyncio.to_thread(gate.began.wait, PATIENCE)
    await turns()
    assert not collecting.done()
    gate.go.set()
    await collecting


async def test_draining_raises_no_failure() -> None:
    jobs = submitted(failing(ValueError("broken")))
    await drain_media_decodes_async(jobs)
    await asyncio.to_thread(drain_media_decodes, jobs)
    assert isinstance(jobs[0].future.exception(), ValueError)


@pytest.mark.parametrize("drop", [False, True])
async def test_cancellation_may_drop_what_has_not_begun(
    drop: bool, gates: Callable[..., Gate]
) -> None:
    running, waiting = gates(), gates()
    with ThreadPoolExecutor(1) as pool:
        futures = [pool.submit(running), pool.submit(waiting)]

        def drop_unstarted() -> None:
            if drop:
                futures[1].cancel()

        draining = asyncio.ensure_future(drain_futures_async(futures, drop_unstarted))
        assert await asyncio.to_thread(running.began.wait, PATIENCE)
        await turns()
        draining.cancel()
        await turns()
        assert not draining.done()
        running.go.set()
        if not drop:
            assert await asyncio.to_thread(waiting.began.wait, PATIENCE)
            assert not draining.done()
            waiting.go.set()
        with pytest.raises(asyncio.CancelledError):
            await draining
    assert running.ended
    assert waiting.ended == (not drop)
    assert [future.cancelled() for future in futures] == [False, drop]


async def test_nothing_is_dropped_without_cancellation() -> None:
    with ThreadPoolExecutor(1) as pool:
        futures = [pool.submit(str, n) for n in range(3)]
        await drain_futures_async(futures, lambda: pytest.fail("not cancelled"))
    assert [future.result() for future in futures] == ["0", "1", "2"]


async def test_the_loop_is_woken_once_however_many_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    futures: list[Future] = [Future() for _ in range(5)]
    draining = asyncio.ensure_future(drain_futures_async(futures, lambda: None))
    await turns()
    loop, woken = asyncio.get_running_loop(), []
    wake = loop.call_soon_threadsafe

    def counted(*args: Any, **kwargs: Any) -> Any:
        woken.append(args)
        return wake(*args, **kwargs)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    futures[0].set_exception(ValueError("broken"))
    futures[1].cancel()
    for future in futures[2:4]:
        future.set_result(None)
    await turns()
    assert not woken
    assert not draining.done()
    futures[4].set_result(None)
    await draining
    assert len(woken) == 1


async def test_who_waits_for_what_ended_first_goes_on_first() -> None:
    first, second = Future(), Future()  # type: ignore[var-annotated]
    went_on: list[str] = []

    async def wait_for(name: str, future: Future) -> None:
        await drain_futures_async([future], lambda: None)
        went_on.append(name)

    waiting = asyncio.ensure_future(wait_for("first", first))
    await turns()
    first.set_result(None)
    second.set_result(None)
    # It has ended when it is first waited for, and the other is not told yet.
    late = asyncio.ensure_future(wait_for("second", second))
    await asyncio.gather(waiting, late)
    assert went_on == ["first", "second"]


def test_a_future_may_end_after_its_loop(caplog: pytest.LogCaptureFixture) -> None:
    future: Future = Future()

    async def give_up() -> None:
        draining = asyncio.ensure_future(drain_futures_async([future], lambda: None))
        await turns()
        # Or the loop would not end without it.
        draining.get_coro().close()  # type: ignore[union-attr]

    asyncio.run(give_up())
    future.set_result(None)
    # A future logs what those raise whom it tells of its end.
    assert "concurrent.futures" not in {record.name for record in caplog.records}
