# SPDX-License-Identifier: Apache-2.0
"""The renderer leaves its worker while media decode, and cleans up in every case."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.harness import (
    PATIENCE,
    Decoder,
    Gate,
    bytes_held,
    chat,
    chat_async,
    data_part,
    decoder_of,
    gated,
    image_bytes,
    payload,
    plain,
    process,
    process_async,
    ref_of,
    result_of,
    same,
    turns,
    video_bytes,
    wait_for,
)
from tiny import media
from vllm.exceptions import VLLMUnprocessableEntityError
from vllm.multimodal.media import AudioMediaIO, ImageMediaIO, VideoMediaIO
from vllm.multimodal.media import base as media_base
from vllm.multimodal.media.admission import decoded_size
from vllm.multimodal.media.executor import decode_thread_count
from vllm.multimodal.media.flights import decode_flights
from vllm.renderers.base import BaseRenderer

IMAGE = data_part("image", image_bytes(), "image/jpeg")
TRUNCATED = data_part("image", media.truncated(image_bytes()), "image/jpeg")


def start(renderer: BaseRenderer, modality: str, *decoders: Decoder) -> asyncio.Task:
    """Begin to process refs that nobody else holds."""
    data = {
        modality: [d.ref(payload(modality, i)) for i, d in enumerate(decoders)],
    }
    return asyncio.ensure_future(process_async(renderer, data))


async def ends_cancelled(tasks: list[asyncio.Task]) -> bool:
    """Whether the task in `tasks` ends so. Takes it out: it holds a traceback."""
    try:
        await tasks.pop()
    except asyncio.CancelledError:
        return True
    return False


async def held_after(renderer: BaseRenderer) -> float:
    """Encoded bytes held once the event loop has done what it had to."""
    await turns()
    # A fetched item stays with the thread that fetched it until that turns to the
    # next one, which may be some time after the item was handed over.
    return bytes_held(renderer)


async def assert_as_new(renderer: BaseRenderer) -> None:
    """The renderer takes the next request, with the same items."""
    decoder = decoder_of("image")
    made = await process_async(renderer, {"image": [decoder.ref(payload("image"))]})
    assert decoder.calls == 1 and made["mm_kwargs"]["image"] != [None]
    assert (await chat_async(renderer, IMAGE))["mm_placeholders"]["image"]


# --- The worker is free -----------------------------------------------------------


async def test_worker_is_free_while_media_decode(renderer: BaseRenderer) -> None:
    video = decoder_of("video", held=True)
    task = start(renderer, "video", video)
    await wait_for(video.began)
    # Another request is rendered from end to end meanwhile, worker and all.
    made = await chat_async(renderer, IMAGE)
    assert made["mm_placeholders"]["image"] and not task.done()
    video.go.set()
    assert (await task)["mm_placeholders"]["video"]


@pytest.mark.parametrize("cached", [False, True])
async def test_the_worker_wakes_the_loop_once(
    renderer: BaseRenderer, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cached:
        await process_async(renderer, {"image": [ref_of("image")[0]]})
    loop = asyncio.get_running_loop()
    worker = renderer._mm_executor.submit(threading.get_ident).result(PATIENCE)
    wake, woken_by = loop.call_soon_threadsafe, []

    def noted(*args: Any, **kwargs: Any) -> Any:
        woken_by.append(threading.get_ident())
        return wake(*args, **kwargs)

    monkeypatch.setattr(loop, "call_soon_threadsafe", noted)
    decoder = decoder_of("image", held=not cached)
    task = start(renderer, "image", decoder)
    if not cached:
        await wait_for(decoder.began)
        # The worker has done with phase 1, and the decode has not ended.
        renderer._mm_executor.submit(lambda: None).result(PATIENCE)
        decoder.go.set()
    assert (await task)["mm_placeholders"]["image"]
    assert woken_by.count(worker) == 1


async def test_requests_overtake_many_videos(renderer: BaseRenderer) -> None:
    videos = [decoder_of("video", seed % 2, held=True) for seed in range(10)]
    refs = [d.ref(payload("video", seed)) for seed, d in enumerate(videos)]
    tasks = [
        asyncio.ensure_future(process_async(renderer, {"video": [ref]})) for ref in refs
    ]
    for decoder in videos[: decode_thread_count()]:
        await wait_for(decoder.began)
    made = await chat_async(renderer, IMAGE)
    assert made["mm_placeholders"]["image"]
    assert not any(task.done() for task in tasks)
    for decoder in videos:
        decoder.go.set()
    for made in await asyncio.gather(*tasks):
        assert len(made["mm_placeholders"]["video"]) == 1
    assert [decoder.calls for decoder in videos] == [1] * 10


async def test_later_request_fills_the_cache_meanwhile(renderer: BaseRenderer) -> None:
    # One item by the client's word, and two payloads, so there is no decode to share.
    held, other = decoder_of("image", held=True), decoder_of("image")
    uuids = {"image": ["same"]}
    data = {"image": [held.ref(b"one encoding")]}
    task = asyncio.ensure_future(process_async(renderer, data, uuids))
    await wait_for(held.began)
    data = {"image": [other.ref(b"another")]}
    first = await process_async(renderer, data, uuids)
    held.go.set()
    second = await task
    assert second["prompt_token_ids"] == first["prompt_token_ids"]
    assert second["mm_kwargs"]["image"] == [None]


async def test_async_and_sync_agree(renderer: BaseRenderer) -> None:
    def data() -> dict[str, Any]:
        return {m: [ref_of(m)[0]] for m in ("image", "video", "audio")}

    for _ in range(2):
        made = await process_async(renderer, data())
        hit = await process_async(renderer, data())
        renderer.clear_mm_cache()
        assert same(plain(process(renderer, data())), plain(made))
        assert same(plain(process(renderer, data())), plain(hit))
        renderer.clear_mm_cache()


async def test_skipping_the_cache(renderer: BaseRenderer) -> None:
    made = [ref_of("image") for _ in range(3)]
    for ref, _ in made[:2]:
        await process_async(renderer, {"image": [ref]}, skip_mm_cache=True)
    await process_async(renderer, {"image": [made[2][0]]})
    assert [decoder.calls for _, decoder in made] == [1, 0, 1]


async def test_without_a_cache(uncached_renderer: BaseRenderer) -> None:
    video = decoder_of("video", held=True)
    task = start(uncached_renderer, "video", video)
    await wait_for(video.began)
    assert (await chat_async(uncached_renderer, IMAGE))["mm_placeholders"]["image"]
    video.go.set()
    assert (await task)["mm_kwargs"]["video"] != [None]


# --- Single flight ----------------------------------------------------------------


async def test_requests_for_one_new_item_decode_it_once(
    renderer: BaseRenderer, processed: list[int]
) -> None:
    decoders = [decoder_of("video", held=True) for _ in range(16)]
    tasks = [start(renderer, "video", decoder) for decoder in decoders]
    await wait_for(decoders[0].began)
    await phase1_of_all(renderer)
    decoders[0].go.set()
    made = await asyncio.gather(*tasks)
    assert [decoder.calls for decoder in decoders] == [1] + [0] * 15
    # Processed once as well: the others find it in the cache by then.
    assert processed == [1]
    assert len({tuple(one["prompt_token_ids"]) for one in made}) == 1


async def test_one_decode_without_a_cache(uncached_renderer: BaseRenderer) -> None:
    decoders = [decoder_of("image", held=True) for _ in range(4)]
    tasks = [start(uncached_renderer, "image", decoder) for decoder in decoders]
    await wait_for(decoders[0].began)
    await phase1_of_all(uncached_renderer)
    decoders[0].go.set()
    first, *others = await asyncio.gather(*tasks)
    assert [decoder.calls for decoder in decoders] == [1, 0, 0, 0]
    assert all(same(plain(first), plain(other)) for other in others)


async def test_each_requester_gets_the_error(renderer: BaseRenderer) -> None:
    decoders = [Decoder(error=ValueError("broken"), held=True) for _ in range(3)]
    first, *others = decoders
    tasks = [start(renderer, "image", first)]
    # The same item in another place: each error names its own request's index.
    good = decoder_of("image", 7)
    tasks += [
        asyncio.ensure_future(
            process_async(
                renderer,
                {"image": [good.ref(payload("image", 7)), d.ref(payload("image"))]},
            )
        )
        for d in others
    ]
    await wait_for(first.began)
    await phase1_of_all(renderer)
    first.go.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(error) for error in outcomes] == [
        "Failed to decode image at index 0: broken",
        "Failed to decode image at index 1: broken",
        "Failed to decode image at index 1: broken",
    ]
    assert [decoder.calls for decoder in decoders] == [1, 0, 0]
    # It is not remembered.
    good = decoder_of("image")
    assert await process_async(renderer, {"image": [good.ref(payload("image"))]})


async def test_a_cancelled_requester_leaves_the_decode_to_the_others(
    renderer: BaseRenderer,
) -> None:
    blockers = [decoder_of("image", n, held=True) for n in range(decode_thread_count())]
    busy = start(renderer, "image", *blockers)
    for blocker in blockers:
        await wait_for(blocker.began)
    wanted = [Decoder(result_of("image", 9)) for _ in range(2)]
    tasks = [
        asyncio.ensure_future(
            process_async(renderer, {"image": [d.ref(payload("image", 9))]})
        )
        for d in wanted
    ]
    await phase1_of_all(renderer)
    first, second = tasks
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        # At once: its decode has not begun, and so there is nothing to wait for.
        await first
    for blocker in blockers:
        blocker.go.set()
    await busy
    assert (await second)["mm_kwargs"]["image"] != [None]
    # By the decoder of the one that was cancelled: it came first.
    assert [d.calls for d in wanted] == [1, 0]


async def phase1_of_all(renderer: BaseRenderer) -> None:
    """Returns when the requests started so far have been through phase 1."""
    await turns()
    await asyncio.wrap_future(renderer._mm_executor.submit(lambda: None))
    await turns()


@pytest.fixture
def processed(renderer: BaseRenderer, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each call of the HF processor, from now on."""
    calls: list[int] = []
    cls: Any = type(renderer.get_mm_processor())
    released = cls._call_hf_processor

    def counting(*args: Any) -> Any:
        calls.append(1)
        return released(*args)

    monkeypatch.setattr(cls, "_call_hf_processor", counting)
    return calls


# --- The memory bound -------------------------------------------------------------


async def test_a_burst_holds_no_more_than_the_bound(
    renderer: BaseRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = decoded_size(result_of("video"))
    admission = decode_flights._admission
    held_before = admission.held
    monkeypatch.setattr(admission, "limit", held_before + 2 * size)
    decoders = [decoder_of("video", seed) for seed in range(8)]
    highest = watch_highest(monkeypatch)
    worker = threading.Event()
    tasks = [
        asyncio.ensure_future(
            process_async(renderer, {"video": [d.ref(payload("video", seed))]})
        )
        for seed, d in enumerate(decoders)
    ]
    await turns()
    # The one mm worker is behind: phase 1 of all is over, phase 2 of none has begun.
    blocked = renderer._mm_executor.submit(worker.wait, PATIENCE)
    for decoder in decoders[:2]:
        await wait_for(decoder.ended)
    worker.set()
    await asyncio.gather(*tasks)
    assert blocked.done()
    assert [d.calls for d in decoders] == [1] * 8
    highest = [held - held_before for held in highest]
    assert size <= max(highest) <= 2 * size + decode_thread_count() * size
    assert admission.held == held_before


def watch_highest(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    admission = decode_flights._admission
    seen: list[int] = []
    released = admission.end

    def end(decode: Any, size: int) -> None:
        released(decode, size)
        seen.append(admission.held)

    monkeypatch.setattr(admission, "end", end)
    return seen


# --- Cancellation -----------------------------------------------------------------


async def test_cancelled_before_phase1(renderer: BaseRenderer) -> None:
    before = bytes_held(renderer)
    gate = Gate()
    renderer._mm_executor.submit(gate.wait)
    await wait_for(gate.reached)
    decoder = decoder_of("image")
    tasks = [start(renderer, "image", decoder)]
    await turns()
    tasks[0].cancel()
    # It ends at once, while the worker is still busy with something else.
    ended = await ends_cancelled(tasks)
    gate.go.set()
    assert ended
    await assert_as_new(renderer)
    assert decoder.calls == 0 and await held_after(renderer) == before


async def cancel_often(task: asyncio.Task) -> None:
    for _ in range(3):
        task.cancel()
        await turns()
        assert not task.done()


async def test_cancelled_in_phase1(
    renderer: BaseRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = bytes_held(renderer)
    decoder = decoder_of("image", held=True)
    with monkeypatch.context() as patch:
        gate = Gate()
        phase1 = renderer._apply_phase1

        def ends_while_decoding(*args: Any) -> Any:
            gate.wait()
            state = phase1(*args)
            # Or the decode might be dropped before it begins.
            assert decoder.began.wait(PATIENCE)
            return state

        patch.setattr(renderer, "_apply_phase1", ends_while_decoding)
        tasks = [start(renderer, "image", decoder)]
        await wait_for(gate.reached)
        await cancel_often(tasks[0])
        held = bytes_held(renderer)
        gate.go.set()
        # The decode that the phase submitted is waited for as well.
        await asyncio.wrap_future(renderer._mm_executor.submit(int))
        await cancel_often(tasks[0])
        decoder.go.set()
        assert await ends_cancelled(tasks)
    assert held > before and await held_after(renderer) == before
    await assert_as_new(renderer)


async def test_cancelled_in_a_phase1_that_fails(
    renderer: BaseRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = bytes_held(renderer)
    gate = Gate()

    def fail(*args: Any, **kwargs: Any) -> None:
        gate.wait()
        raise RuntimeError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(renderer, "_prepare_multimodal_inputs", fail)
        tasks = [start(renderer, "image", decoder_of("image"))]
        await wait_for(gate.reached)
        await cancel_often(tasks[0])
        gate.go.set()
        assert await ends_cancelled(tasks)
    assert await held_after(renderer) == before
    await assert_as_new(renderer)


async def test_cancelled_while_decoding(renderer: BaseRenderer) -> None:
    before = bytes_held(renderer)
    decoders = [decoder_of("image", seed, held=True) for seed in range(2)]
    tasks = [start(renderer, "image", *decoders)]
    for decoder in decoders:
        await wait_for(decoder.began)
    await cancel_often(tasks[0])
    decoders[0].go.set()
    await wait_for(decoders[0].ended)
    await turns()
    # One still reads its payload.
    assert not tasks[0].done() and bytes_held(renderer) > before
    decoders[1].go.set()
    assert await ends_cancelled(tasks)
    assert all(decoder.ended.is_set() for decoder in decoders)
    assert await held_after(renderer) == before
    await assert_as_new(renderer)


async def test_cancelled_while_a_broken_item_decodes(renderer: BaseRenderer) -> None:
    before = bytes_held(renderer)
    bad = Decoder(error=ValueError("broken"), held=True)
    tasks = [start(renderer, "image", bad)]
    await wait_for(bad.began)
    await cancel_often(tasks[0])
    bad.go.set()
    assert await ends_cancelled(tasks)
    assert await held_after(renderer) == before
    await assert_as_new(renderer)


async def test_cancelled_in_phase2(
    renderer: BaseRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = bytes_held(renderer)
    decoder = decoder_of("image")
    processor = renderer.get_mm_processor()
    with monkeypatch.context() as patch:
        gate = gated(processor, "_apply_hf_processor_main", patch)
        tasks = [start(renderer, "image", decoder)]
        await wait_for(gate.reached)
        await cancel_often(tasks[0])
        held = bytes_held(renderer)
        gate.go.set()
        assert held > before
        assert await ends_cancelled(tasks)
    assert decoder.calls == 1 and await held_after(renderer) == before
    # The step came to its end, but what it made does not go to the engine, and so
    # must not stay in the cache that says what the engine has.
    await assert_as_new(renderer)


async def test_cancelled_in_phase2_keeps_the_hits(
    renderer: BaseRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await process_async(renderer, {"image": [ref_of("image", 0)[0]]})
    with monkeypatch.context() as patch:
        gate = gated(renderer.get_mm_processor(), "_apply_hf_processor_main", patch)
        tasks = [start(renderer, "image", decoder_of("image", 0), decoder_of("image"))]
        await wait_for(gate.reached)
        tasks[0].cancel()
        gate.go.set()
        assert await ends_cancelled(tasks)
    made = await process_async(
        renderer, {"image": [ref_of("image", seed)[0] for seed in range(2)]}
    )
    assert made["mm_kwargs"]["image"][0] is None
    assert made["mm_kwargs"]["image"][1] is not None


async def test_cancelled_before_phase2(renderer: BaseRenderer) -> None:
    before = bytes_held(renderer)
    decoder = decoder_of("image", held=True)
    tasks = [start(renderer, "image", decoder)]
    await wait_for(decoder.began)
    gate = Gate()
    renderer._mm_executor.submit(gate.wait)
    await wait_for(gate.reached)
    decoder.go.set()
    await wait_for(decoder.ended)
    tasks[0].cancel()
    ended = await ends_cancelled(tasks)
    held = await held_after(renderer)
    gate.go.set()
    assert ended and held == before
    await assert_as_new(renderer)


async def test_one_cancellation_leaves_others_alone(renderer: BaseRenderer) -> None:
    ref, decoder = ref_of("image", held=True)
    first, second = (
        asyncio.ensure_future(process_async(renderer, {"image": [ref]}))
        for _ in range(2)
    )
    await wait_for(decoder.began)
    first.cancel()
    await turns()
    decoder.go.set()
    assert (await second)["mm_placeholders"]["image"]
    assert first.cancelled() or await ends_cancelled([first])
    assert decoder.calls == 1


# --- Payloads and errors ----------------------------------------------------------


async def test_payloads_are_let_go(renderer: BaseRenderer) -> None:
    before = bytes_held(renderer)
    parts = [
        IMAGE,
        data_part("video", video_bytes(), "video/mp4"),
        data_part("audio", media.audio_wav(0.2), "audio/wav"),
    ]
    for _ in range(2):
        await chat_async(renderer, *parts)
        assert await held_after(renderer) == before
        chat(renderer, *parts)
        assert await held_after(renderer) == before


@pytest.mark.parametrize("wait", [True, False])
async def test_payloads_are_let_go_after_an_error(
    renderer: BaseRenderer, wait: bool
) -> None:
    before = bytes_held(renderer)
    try:
        if wait:
            await chat_async(renderer, IMAGE, TRUNCATED)
        else:
            chat(renderer, IMAGE, TRUNCATED)
        raise AssertionError("it should have failed")
    except VLLMUnprocessableEntityError as e:
        assert "image at index 1" in str(e)
    assert await held_after(renderer) == before


async def test_payloads_are_let_go_after_an_error_in_phase1(
    renderer: BaseRenderer,
) -> None:
    before = bytes_held(renderer)
    try:
        data = {"image": [ref_of("image")[0]]}
        await process_async(renderer, data, {"image": ["one", "too many"]})
        raise AssertionError("it should have failed")
    except ValueError:
        del data
    assert await held_after(renderer) == before


async def test_a_bad_item_fails_its_own_request_alone(renderer: BaseRenderer) -> None:
    good = data_part("image", image_bytes(1), "image/jpeg")
    results = await asyncio.gather(
        chat_async(renderer, IMAGE, good),
        chat_async(renderer, IMAGE, TRUNCATED, TRUNCATED),
        chat_async(renderer, good),
        return_exceptions=True,
    )
    assert isinstance(results[1], VLLMUnprocessableEntityError)
    assert "image at index 1" in str(results[1])
    assert results[1].parameter is None
    for result, count in ((results[0], 2), (results[2], 1)):
        assert not isinstance(result, BaseException)
        assert len(result["mm_placeholders"]["image"]) == count
    await assert_as_new(renderer)


async def test_an_error_in_phase2_is_raised(
    renderer: BaseRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("on purpose")

    before = bytes_held(renderer)
    with monkeypatch.context() as patch:
        patch.setattr(renderer.get_mm_processor(), "_merge_mm_kwargs", fail)
        try:
            await chat_async(renderer, IMAGE)
            raise AssertionError("it should have failed")
        except RuntimeError as e:
            assert str(e) == "on purpose"
    assert await held_after(renderer) == before
    await assert_as_new(renderer)


# --- UUIDs ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "items, uuids, message",
    [
        (2, ["a"], "must have same length"),
        (2, ["a", "b", "c"], "must have same length"),
    ],
)
async def test_wrong_uuids_decode_nothing(
    renderer: BaseRenderer, items: int, uuids: list[str], message: str
) -> None:
    made = [ref_of("image", seed) for seed in range(items)]
    data = {"image": [ref for ref, _ in made]}
    with pytest.raises(ValueError, match=message):
        process(renderer, data, {"image": uuids})
    with pytest.raises(ValueError, match=message):
        await process_async(renderer, data, {"image": uuids})
    assert not any(decoder.calls for _, decoder in made)


def test_an_empty_item_needs_a_uuid(renderer: BaseRenderer) -> None:
    ref, decoder = ref_of("image")
    with pytest.raises(ValueError, match=r"multi_modal_uuids\['image'\]\[1\]"):
        process(renderer, {"image": [ref, None]}, {"image": ["id", None]})
    assert decoder.calls == 0


def test_counting_decodes_nothing(renderer: BaseRenderer) -> None:
    made = [ref_of(m) for m in ("image", "video", "audio")]
    data = {"image": [made[0][0]], "video": [made[1][0]], "audio": [made[2][0]]}
    prepared = renderer._prepare_multimodal_inputs(
        [1], data, {"image": ["id"]}, None, None, skip_mm_cache=False
    )
    counts = prepared.inputs.mm_data_items.get_all_counts()
    assert counts == {"image": 1, "video": 1, "audio": 1}
    assert prepared.inputs.mm_uuid_items == {"image": ["id"]}
    assert prepared.inputs.cache is renderer.mm_processor_cache
    assert not any(decoder.calls for _, decoder in made)


# --- The blocking path ------------------------------------------------------------


@pytest.fixture
def blocking(renderer: BaseRenderer, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The processor has no two phases; grows with each blocking call."""
    released = renderer.get_mm_processor()
    base: Any = type(released)

    def apply(self: Any, *args: Any) -> Any:
        return base.apply(self, *args)

    derived = type("Overriding", (base,), {"apply": apply})
    processor = derived(released.info, released.dummy_inputs)
    monkeypatch.setattr(renderer, "mm_processor", processor)
    calls: list[str] = []
    process_blocking = renderer._process_multimodal_blocking_async

    def recorded(*args: Any, **kwargs: Any) -> Any:
        calls.append("blocking")
        return process_blocking(*args, **kwargs)

    monkeypatch.setattr(renderer, "_process_multimodal_blocking_async", recorded)
    return calls


async def test_blocking_where_there_are_no_two_phases(
    renderer: BaseRenderer, blocking: list[str]
) -> None:
    first, second = decoder_of("image"), decoder_of("image")
    made = await process_async(renderer, {"image": [first.ref(payload("image"))]})
    again = await process_async(renderer, {"image": [second.ref(payload("image"))]})
    assert blocking == ["blocking"] * 2
    assert (first.calls, second.calls) == (1, 0)
    assert made["prompt_token_ids"] == again["prompt_token_ids"]
    await process_async(
        renderer, {"image": [second.ref(payload("image"))]}, skip_mm_cache=True
    )
    assert second.calls == 1


async def test_not_blocking_where_there_are(
    renderer: BaseRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renderer, "_process_multimodal_blocking_async", None)
    monkeypatch.setattr(renderer, "_process_multimodal", None)
    assert (await chat_async(renderer, IMAGE))["mm_placeholders"]["image"]


# --- Threads ----------------------------------------------------------------------


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[int]]:
    """Which threads decode, and which derive keys, from now on."""
    seen: dict[str, set[int]] = {}

    def watch(owner: Any, name: str, kind: str) -> None:
        function: Callable = getattr(owner, name)
        seen[kind] = set()

        def watched(*args: Any, **kwargs: Any) -> Any:
            seen[kind].add(threading.get_ident())
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, watched)

    watch(media_base, "derive_media_key", "keys")
    watch(ImageMediaIO, "_decode", "images")
    watch(VideoMediaIO, "load_bytes", "videos")
    watch(AudioMediaIO, "load_bytes", "audio")
    return seen


async def all_kinds(renderer: BaseRenderer) -> None:
    parts = [
        IMAGE,
        data_part("video", video_bytes(audio=True), "video/mp4"),
        data_part("audio", media.audio_wav(0.2), "audio/wav"),
    ]
    kwargs = {"mm_processor_kwargs": {"use_audio_in_video": True}}
    await chat_async(renderer, *parts[:2], **kwargs)
    await chat_async(renderer, *parts)


async def test_event_loop_is_left_alone(
    renderer: BaseRenderer, threads: dict[str, set[int]]
) -> None:
    worker = renderer._mm_executor.submit(threading.get_ident).result(PATIENCE)
    await all_kinds(renderer)
    for kind, idents in threads.items():
        assert idents, kind
        assert not idents & {threading.get_ident(), worker}, kind


async def test_event_loop_is_left_alone_by_the_blocking_path(
    renderer: BaseRenderer, blocking: list[str], threads: dict[str, set[int]]
) -> None:
    await all_kinds(renderer)
    assert len(blocking) == 2
    for kind, idents in threads.items():
        assert idents and threading.get_ident() not in idents, kind
