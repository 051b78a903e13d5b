# SPDX-License-Identifier: Apache-2.0
"""Content parts become refs; vision chunks are decoded before they are split."""

import asyncio
import base64
import threading
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from tests.harness import (
    PATIENCE,
    Decoder,
    decoded_video,
    image_bytes,
    part,
    turns,
    video_bytes,
    wait_for,
)
from tests.omni import message
from tiny import media
from tiny.http import MediaServer
from vllm.connections import global_http_connection
from vllm.entrypoints import chat_utils
from vllm.entrypoints.chat_utils import (
    AsyncMultiModalItemTracker,
    MultiModalItemTracker,
    parse_chat_messages,
    parse_chat_messages_async,
)
from vllm.exceptions import VLLMUnprocessableEntityError
from vllm.multimodal.media import (
    DecodeSpec,
    ImageMediaIO,
    MediaRef,
    MediaWithBytes,
    VideoMediaIO,
)
from vllm.multimodal.processing.context import BaseProcessingInfo
from vllm.renderers.base import BaseRenderer

Parse = Callable[..., tuple[dict[str, Any], dict[str, Any]]]
OWN_SOUND = {"use_audio_in_video": True}


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run `work` on an event loop of its own, with an HTTP client of its own."""

    async def working() -> Any:
        try:
            return await work
        finally:
            if global_http_connection._async_client is not None:
                await global_http_connection._async_client.close()
                global_http_connection._async_client = None

    assert global_http_connection._async_client is None
    return asyncio.run(working())


@pytest.fixture(params=["sync", "async"])
def parse(request: pytest.FixtureRequest, renderer: BaseRenderer) -> Parse:
    """Parses one message, by either parser."""
    model_config = renderer.model_config

    def parsed(*parts: Any, **kwargs: Any) -> Any:
        messages = [message(*parts)]
        if request.param == "sync":
            return parse_chat_messages(messages, model_config, "openai", **kwargs)[1:]
        made = parse_chat_messages_async(messages, model_config, "openai", **kwargs)
        return run(made)[1:]

    return parsed


def all_parts(web: MediaServer) -> list[dict[str, Any]]:
    sound = media.audio_wav(0.2)
    return [
        part("image", web.serve("/i", image_bytes(), "image/jpeg")),
        part("video", web.serve("/v", video_bytes(), "video/mp4")),
        part("audio", web.serve("/a", sound, "audio/wav")),
    ]


def test_urls_become_refs(parse: Parse, web: MediaServer) -> None:
    data, uuids = parse(*all_parts(web))
    assert set(data) == {"image", "video", "audio"}
    for modality, (ref,) in data.items():
        assert isinstance(ref, MediaRef) and not ref.is_decoded
        assert uuids[modality] == [None]
    assert data["image"][0].data == image_bytes()
    assert data["image"][0].decode().size == (96, 64)
    frames, metadata = data["video"][0].decode()
    assert frames.shape[1:] == (48, 64, 3) and metadata["fps"] == 8
    samples, rate = data["audio"][0].decode()
    assert rate == 16000 and len(samples) == 3200
    assert web.gets == {"/i": 1, "/v": 1, "/a": 1}


def test_uuids_stay_with_their_items(parse: Parse, web: MediaServer) -> None:
    url = web.serve("/i", image_bytes(), "image/jpeg")
    data, uuids = parse(part("image", url, "one"), part("image", url))
    assert uuids == {"image": ["one", None]} and len(data["image"]) == 2


@pytest.mark.parametrize("modality", ["image", "video", "audio"])
def test_no_url_but_a_uuid(parse: Parse, modality: str) -> None:
    data, uuids = parse(part(modality, None, "known"))
    assert data == {modality: [None]} and uuids == {modality: ["known"]}


def test_no_url_but_a_uuid_with_own_sound(parse: Parse) -> None:
    found = parse(part("video", None, "known"), mm_processor_kwargs=OWN_SOUND)
    assert found == ({"video": [None]}, {"video": ["known"]})


def test_input_audio(parse: Parse) -> None:
    sound = media.audio_wav(0.2)
    text = base64.b64encode(sound).decode()
    data, uuids = parse(
        {
            "type": "input_audio",
            "input_audio": {"data": text, "format": "wav"},
            "uuid": "id",
        }
    )
    (ref,) = data["audio"]
    assert isinstance(ref, MediaRef) and not ref.is_decoded and ref.data == sound
    assert uuids == {"audio": ["id"]}


def test_own_sound_is_fetched_once(parse: Parse, web: MediaServer) -> None:
    url = web.serve("/v", video_bytes(audio=True), "video/mp4")
    other = web.serve("/w", video_bytes(1, audio=True), "video/mp4")
    data, uuids = parse(
        part("video", url, "id"), part("video", other), mm_processor_kwargs=OWN_SOUND
    )
    assert web.gets == {"/v": 1, "/w": 1}
    assert uuids == {"video": ["id", None], "audio": ["id", None]}
    assert [len(refs) for refs in data.values()] == [2, 2]
    for video, audio in zip(data["video"], data["audio"], strict=True):
        assert not video.is_decoded and not audio.is_decoded
        assert video.data == audio.data and video.key != audio.key
    assert data["video"][0].data == video_bytes(audio=True)
    assert len(data["audio"][0].decode()[0]) > 0


def test_no_sound_unless_wanted(parse: Parse, web: MediaServer) -> None:
    url = web.serve("/v", video_bytes(audio=True), "video/mp4")
    data, _ = parse(
        part("video", url), mm_processor_kwargs={"use_audio_in_video": False}
    )
    assert list(data) == ["video"] and web.gets["/v"] == 1


def test_own_sound_that_cannot_be_fetched(parse: Parse, web: MediaServer) -> None:
    url = web.fail("/v", 404)
    with pytest.raises(VLLMUnprocessableEntityError):
        parse(part("video", url), mm_processor_kwargs=OWN_SOUND)
    assert web.gets["/v"] == 1


def test_the_models_decoder_is_asked_for(
    parse: Parse, web: MediaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, Any]] = []
    get_media_io: Any = BaseProcessingInfo.get_media_io

    def recorded(self: Any, modality: str, media_io_kwargs: Any = None) -> Any:
        asked.append((modality, media_io_kwargs))
        return get_media_io(self, modality, media_io_kwargs)

    monkeypatch.setattr(BaseProcessingInfo, "get_media_io", recorded)
    settings = {"video": {"num_frames": 3}, "image": {"image_mode": "L"}}
    data, _ = parse(*all_parts(web), media_io_kwargs=settings)
    assert sorted(asked, key=lambda call: call[0]) == [
        ("audio", settings),
        ("image", settings),
        ("video", settings),
    ]
    assert data["video"][0].spec.settings["num_frames"] == 3
    assert data["image"][0].decode().mode == "L"


# --- Vision chunks ----------------------------------------------------------------


class ChunkProcessor:
    """As much of a vision-chunk model's processor as the trackers ask for."""

    def __init__(self) -> None:
        self.split: list[Any] = []
        self.info = SimpleNamespace(
            validate_num_items=lambda modality, count: None,
            get_media_io=self._get_media_io,
        )

    def _get_media_io(self, modality: str, media_io_kwargs: Any) -> Any:
        image_io = ImageMediaIO()
        return image_io if modality == "image" else VideoMediaIO(image_io)

    def split_video_chunks(self, frames: Any) -> list[dict[str, Any]]:
        self.split.append(frames)
        half = len(frames) // 2
        return [
            {"video_chunk": frames[:half], "prompt": "first"},
            {"video_chunk": frames[half:], "prompt": "second"},
        ]


@pytest.mark.parametrize("make", [MultiModalItemTracker, AsyncMultiModalItemTracker])
def test_a_request_makes_one_connector(
    renderer: BaseRenderer, make: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    load = chat_utils.MEDIA_CONNECTOR_REGISTRY.load

    def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(kwargs)
        return load(*args, **kwargs)

    monkeypatch.setattr(chat_utils.MEDIA_CONNECTOR_REGISTRY, "load", counted)
    tracker = make(renderer.model_config)
    # A parser for each message, as the release makes them.
    first, second = tracker.create_parser(), tracker.create_parser()
    assert first._connector is second._connector
    assert made == [
        {
            "allowed_local_media_path": tracker.allowed_local_media_path,
            "allowed_media_domains": tracker.allowed_media_domains,
        }
    ]
    assert make(renderer.model_config).create_parser()._connector is not (
        first._connector
    )


def chunk_tracker(renderer: BaseRenderer, make: type) -> Any:
    tracker = make(renderer.model_config)
    tracker.use_unified_vision_chunk_modality = True
    tracker.mm_processor = ChunkProcessor()
    tracker.model_cls = SimpleNamespace(get_placeholder_str=lambda *_: "<item>")
    return tracker


def resolved(tracker: Any) -> Any:
    found = tracker.resolve_items()
    return run(found) if asyncio.iscoroutine(found) else found


TRACKERS = [MultiModalItemTracker, AsyncMultiModalItemTracker]


@pytest.mark.parametrize("make", TRACKERS)
def test_vision_chunks_are_made_of_decoded_media(
    renderer: BaseRenderer, web: MediaServer, make: type
) -> None:
    tracker = chunk_tracker(renderer, make)
    parser = tracker.create_parser()
    parser.parse_image(web.serve("/i", image_bytes(), "image/jpeg"), "picture")
    parser.parse_video(web.serve("/v", video_bytes(), "video/mp4"), "film")
    parser.parse_image(None, "known")
    data, uuids = resolved(tracker)

    image, first, second, empty = data["vision_chunk"]
    assert image["type"] == "image" and image["uuid"] == "picture"
    assert isinstance(image["image"], Image.Image) and image["image"].size == (96, 64)
    (frames,) = tracker.mm_processor.split
    assert (frames == decoded_video()[0]).all()
    assert (first["video_chunk"] == frames[:4]).all()
    assert [c["uuid"] for c in (first, second)] == ["film-0", "film-1"]
    assert [c["prompt"] for c in (first, second)] == ["first", "second"]
    assert empty is None
    assert uuids == {"vision_chunk": ["picture", "film", "known"]}


@pytest.mark.parametrize("make", TRACKERS)
def test_a_broken_vision_chunk_fails_the_request(
    renderer: BaseRenderer, web: MediaServer, make: type
) -> None:
    tracker = chunk_tracker(renderer, make)
    parser = tracker.create_parser()
    bad_image, bad_video = media.truncated(image_bytes()), media.noise()
    parser.parse_video(web.serve("/v", video_bytes(), "video/mp4"))
    parser.parse_image(web.serve("/i", image_bytes(), "image/jpeg"))
    parser.parse_video(web.serve("/w", bad_video, "video/mp4"))
    parser.parse_image(web.serve("/j", bad_image, "image/jpeg"))
    # Of the two that are broken, the first; its number is that among the videos.
    with pytest.raises(VLLMUnprocessableEntityError, match="decode video at index 1"):
        resolved(tracker)
    assert tracker.mm_processor.split == []


@pytest.mark.parametrize("make", TRACKERS)
def test_a_broken_picture_among_vision_chunks(
    renderer: BaseRenderer, web: MediaServer, make: type
) -> None:
    tracker = chunk_tracker(renderer, make)
    parser = tracker.create_parser()
    bad = media.truncated(image_bytes())
    parser.parse_image(web.serve("/j", bad, "image/jpeg"))
    with pytest.raises(VLLMUnprocessableEntityError, match="decode image at index 0"):
        resolved(tracker)


@pytest.mark.parametrize("make", TRACKERS)
def test_a_vision_chunk_that_cannot_be_fetched(
    renderer: BaseRenderer, web: MediaServer, make: type
) -> None:
    tracker = chunk_tracker(renderer, make)
    with pytest.raises(VLLMUnprocessableEntityError):
        tracker.create_parser().parse_image(web.fail("/i", 404))
        resolved(tracker)


def test_pictures_given_as_such_are_left_alone(renderer: BaseRenderer) -> None:
    tracker = chunk_tracker(renderer, MultiModalItemTracker)
    picture = media.picture(8, 8)
    wrapped = MediaWithBytes(picture, b"bytes")
    tracker.add("image", (picture, None))
    tracker.add("image", (wrapped, "id"))
    data, _ = resolved(tracker)
    plain, chunk = data["vision_chunk"]
    assert plain is picture and chunk["image"] is picture


def held_refs(count: int) -> tuple[list[Decoder], list[MediaRef]]:
    decoders = [Decoder(i, held=True) for i in range(count)]
    refs = [d.ref(str(i).encode()) for i, d in enumerate(decoders)]
    return decoders, refs


async def test_vision_chunks_decode_at_once_and_off_the_loop() -> None:
    decoders, refs = held_refs(4)
    order = ["image", "video", "image", "video"]
    waiting = asyncio.ensure_future(
        chat_utils._predecode_vision_chunk_items(refs, order)
    )
    # All have begun, and none has ended.
    for decoder in decoders:
        await wait_for(decoder.began)
    assert not waiting.done()
    for decoder in reversed(decoders):
        decoder.go.set()
    await waiting
    assert [ref.decode() for ref in refs] == [0, 1, 2, 3]
    assert all(decoder.calls == 1 for decoder in decoders)
    idents = {ident for decoder in decoders for ident in decoder.threads}
    assert threading.get_ident() not in idents


async def test_first_broken_vision_chunk_in_request_order() -> None:
    decoders, refs = held_refs(4)
    for i in (1, 3):
        decoders[i].error = ValueError(f"broken {i}")
    waiting = asyncio.ensure_future(
        chat_utils._predecode_vision_chunk_items(
            refs, ["image", "video", "image", "video"]
        )
    )
    decoders[3].go.set()
    await wait_for(decoders[3].ended)
    await turns()
    assert not waiting.done()
    for decoder in decoders:
        decoder.go.set()
    with pytest.raises(
        VLLMUnprocessableEntityError, match="video at index 0: broken 1"
    ) as caught:
        await waiting
    assert caught.value.parameter is None
    assert all(decoder.ended.is_set() for decoder in decoders)


async def test_cancelled_while_vision_chunks_decode() -> None:
    (decoder,), refs = held_refs(1)
    waiting = asyncio.ensure_future(
        chat_utils._predecode_vision_chunk_items(refs, ["image"])
    )
    await wait_for(decoder.began)
    for _ in range(3):
        waiting.cancel()
        await turns()
        assert not waiting.done()
    decoder.go.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert refs[0].is_decoded


async def test_only_undecoded_vision_chunks_are_decoded() -> None:
    decoder = Decoder("media")
    ref = MediaRef(decoder, b"x", DecodeSpec())
    ref.decode()
    items = [None, media.picture(8, 8), ref]
    await chat_utils._predecode_vision_chunk_items(items, ["image", "image", "video"])
    assert decoder.calls == 1


async def test_other_modalities_are_fetched_meanwhile(
    renderer: BaseRenderer, web: MediaServer
) -> None:
    tracker = chunk_tracker(renderer, AsyncMultiModalItemTracker)
    picture = Decoder(media.picture(8, 8), held=True)

    async def chunk() -> tuple[Any, None]:
        return picture.ref(b"x"), None

    fetched = threading.Event()

    async def sound() -> tuple[Any, str]:
        fetched.set()
        return "sound", "id"

    tracker.add("image", chunk)
    tracker.add("audio", sound)
    resolving = asyncio.ensure_future(tracker.resolve_items())
    await wait_for(picture.began)
    await wait_for(fetched)
    assert not resolving.done()
    picture.go.set()
    data, uuids = await asyncio.wait_for(resolving, PATIENCE)
    assert data["audio"] == ["sound"] and uuids["audio"] == ["id"]
    assert data["vision_chunk"][0]["image"] is picture.result
