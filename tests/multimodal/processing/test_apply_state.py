# SPDX-License-Identifier: Apache-2.0
"""What is carried between the phases, and how it ends."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest

from tests.harness import (
    PATIENCE,
    Decoder,
    decoder_of,
    no_timing,
    payload,
    ref_of,
    result_of,
    turns,
    wait_for,
)
from vllm.exceptions import VLLMUnprocessableEntityError
from vllm.multimodal.media import MediaRef
from vllm.multimodal.media.executor import decode_thread_count
from vllm.multimodal.parse import MultiModalDataParser
from vllm.multimodal.processing import ProcessorInputs, apply_state
from vllm.multimodal.processing.apply_state import MultiModalApplyState


def state_of(**data: Any) -> MultiModalApplyState:
    items = MultiModalDataParser(target_sr=16000).parse_mm_data(data)
    return MultiModalApplyState(ProcessorInputs([1], items), no_timing())


def submitted(*decoders: Decoder) -> MultiModalApplyState:
    refs = [d.ref(payload("image", i)) for i, d in enumerate(decoders)]
    state = state_of(image=refs)
    state.submit_decodes(state.inputs.mm_data_items)
    return state


def held_image() -> Decoder:
    return decoder_of("image", held=True)


def owned(state: MultiModalApplyState) -> list[MediaRef]:
    return [
        items.get_raw(i)
        for items in state.inputs.mm_data_items.values()
        for i in range(len(items))
        if isinstance(items.get_raw(i), MediaRef)
    ]


def test_it_owns_forks() -> None:
    ref, decoder = ref_of("image")
    state = state_of(image=[ref, result_of("image")], audio=[result_of("audio")])
    (fork,) = owned(state)
    assert fork is not ref and fork.key == ref.key

    state.close()
    assert fork.data == b"" and ref.data == payload("image")
    assert ref.decode() is decoder.result


def test_each_item_is_submitted_once() -> None:
    first, second = decoder_of("image"), decoder_of("image", 1)
    refs = [first.ref(b"1"), second.ref(b"2")]
    with state_of(image=refs) as state:
        items = state.inputs.mm_data_items
        some = type(items)({"image": items["image"].select([1])})
        (job,) = state.submit_decodes(some)
        assert (job.item.modality, job.item.index) == ("image", 1)
        (other,) = state.submit_decodes(items)
        assert other.item.index == 0
        assert state.submit_decodes(items) == []
        assert state.jobs == [job, other]
        state.wait_decodes()
    assert (first.calls, second.calls) == (1, 1)


def test_decoded_items_are_not_submitted() -> None:
    ref, decoder = ref_of("image")
    ref.decode()
    with state_of(image=[ref, None, result_of("image")]) as state:
        assert state.submit_decodes(state.inputs.mm_data_items) == []
    assert decoder.calls == 1


def test_waiting_raises_the_first_failure_in_request_order() -> None:
    first, last = held_image(), decoder_of("image")
    first.error = ValueError("the first")
    early = Decoder(error=ValueError("the early one"))
    with submitted(last, first, early) as state, ThreadPoolExecutor() as pool:
        waiting = pool.submit(state.wait_decodes)
        # The second failure is there, and is not what is raised.
        assert early.ended.wait(PATIENCE) and not waiting.done()
        first.go.set()
        with pytest.raises(
            VLLMUnprocessableEntityError, match=r"image at index 1: the first"
        ):
            waiting.result(PATIENCE)
        assert all(job.future.done() for job in state.jobs)


async def test_waiting_on_the_event_loop() -> None:
    decoder = held_image()
    async with submitted(decoder) as state:
        waiting = asyncio.ensure_future(state.wait_decodes_async())
        await wait_for(decoder.began)
        assert not waiting.done()
        decoder.go.set()
        await waiting
    assert decoder.calls == 1


def test_it_tells_when_all_is_decoded() -> None:
    first, last = held_image(), held_image()
    with submitted(first, last) as state:
        assert first.began.wait(PATIENCE) and last.began.wait(PATIENCE)
        told = threading.Semaphore(0)
        state.timing_ctx.enabled = True
        state.tell_when_decoded(told.release)
        first.go.set()
        state.jobs[0].future.result(PATIENCE)
        assert not told.acquire(blocking=False)
        assert "decode_media" not in state.timing_ctx.stage_secs
        last.go.set()
        assert told.acquire(timeout=PATIENCE)
        assert state.timing_ctx.stage_secs["decode_media"] > 0
        # Once, and also where all has ended before.
        assert not told.acquire(blocking=False)
        state.tell_when_decoded(told.release)
        assert told.acquire(blocking=False)


def test_it_tells_of_a_failure_as_well() -> None:
    with submitted(Decoder(error=ValueError("broken"))) as state:
        told = threading.Event()
        state.tell_when_decoded(told.set)
        assert told.wait(PATIENCE)


async def test_waiting_on_the_event_loop_raises() -> None:
    async with submitted(Decoder(error=ValueError("broken"))) as state:
        with pytest.raises(VLLMUnprocessableEntityError, match="image at index 0"):
            await state.wait_decodes_async()


async def test_waiting_is_not_cut_short_by_cancellation() -> None:
    decoder = held_image()
    async with submitted(decoder) as state:
        waiting = asyncio.ensure_future(state.wait_decodes_async())
        await wait_for(decoder.began)
        for _ in range(3):
            waiting.cancel()
            await turns()
            assert not waiting.done()
        assert [ref.data for ref in owned(state)] == [payload("image")]
        decoder.go.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert state.jobs[0].future.done()


@pytest.fixture
def busy_lane() -> Iterator[list[Decoder]]:
    """Decodes of another request that take every thread there is for images."""
    decoders = [held_image() for _ in range(decode_thread_count())]
    state = submitted(*decoders)
    for decoder in decoders:
        assert decoder.began.wait(PATIENCE)
    yield decoders
    for decoder in decoders:
        decoder.go.set()
    state.close()


def test_closing_waits_for_what_runs() -> None:
    decoder = held_image()
    state = submitted(decoder)
    assert decoder.began.wait(PATIENCE)
    with ThreadPoolExecutor() as pool:
        closing = pool.submit(state.close)
        assert not closing.done() and owned(state)[0].data
        decoder.go.set()
        closing.result(PATIENCE)
    assert decoder.ended.is_set() and owned(state)[0].data == b""


def test_closing_drops_what_has_not_begun(busy_lane: list[Decoder]) -> None:
    waiting = decoder_of("image")
    state = submitted(waiting)
    with ThreadPoolExecutor() as pool:
        # It doesn't wait for a thread either, only to find that there is no work.
        closing = pool.submit(state.close)
        done = not wait([closing], PATIENCE / 4).not_done
        for decoder in busy_lane:
            decoder.go.set()
    assert done and waiting.calls == 0
    assert state.jobs[0].future.cancelled() and owned(state)[0].data == b""


async def test_closing_on_the_event_loop_drops_what_has_not_begun(
    busy_lane: list[Decoder],
) -> None:
    waiting = decoder_of("image")
    state = submitted(waiting)
    await state.aclose()
    assert waiting.calls == 0 and owned(state)[0].data == b""
    assert not any(decoder.ended.is_set() for decoder in busy_lane)


async def test_cancelled_waiting_drops_what_has_not_begun(
    busy_lane: list[Decoder],
) -> None:
    waiting = decoder_of("image")
    async with submitted(waiting) as state:
        task = asyncio.ensure_future(state.wait_decodes_async())
        await turns()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, PATIENCE / 4)
    assert waiting.calls == 0 and state.jobs[0].future.cancelled()
    assert not any(decoder.ended.is_set() for decoder in busy_lane)


async def test_closing_on_the_event_loop_survives_cancellation() -> None:
    decoder = held_image()
    state = submitted(decoder)
    await wait_for(decoder.began)
    closing = asyncio.ensure_future(state.aclose())
    for _ in range(3):
        await turns()
        closing.cancel()
    await turns()
    assert not closing.done() and owned(state)[0].data
    decoder.go.set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert owned(state)[0].data == b""


async def test_closing_does_not_wait_for_another_requests_decode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left_to_pool: list[Future] = []
    submit = apply_state.global_thread_pool.submit

    def recorded(*work: Any) -> Future:
        left_to_pool.append(submit(*work))
        return left_to_pool[-1]

    monkeypatch.setattr(apply_state.global_thread_pool, "submit", recorded)
    ref, decoder = ref_of("image", held=True)
    state = state_of(image=[ref])
    (fork,) = owned(state)
    with ThreadPoolExecutor() as pool:
        other = pool.submit(ref.decode)
        await wait_for(decoder.began)
        await state.aclose()
        assert not other.done() and fork.data
        decoder.go.set()
        assert other.result(PATIENCE) is decoder.result
    (release,) = left_to_pool
    await asyncio.wrap_future(release)
    assert fork.data == b""


def test_closing_twice() -> None:
    state = submitted(decoder_of("image"))
    state.close()
    state.close()
    assert owned(state)[0].data == b""


def test_decoded_results_outlive_it() -> None:
    decoder = decoder_of("image")
    with submitted(decoder) as state:
        state.wait_decodes()
    assert state.inputs.mm_data_items["image"].get(0) is decoder.result


@pytest.mark.parametrize("error", [ValueError("of the block"), KeyboardInterrupt()])
def test_leaving_the_block_by_an_error(error: BaseException) -> None:
    with pytest.raises(type(error)), submitted(decoder_of("image")) as state:
        raise error
    assert owned(state)[0].data == b"" and state.jobs[0].future.done()


async def test_leaving_the_async_block_by_an_error() -> None:
    with pytest.raises(ValueError):
        async with submitted(decoder_of("image")) as state:
            raise ValueError("of the block")
    assert owned(state)[0].data == b"" and state.jobs[0].future.done()
