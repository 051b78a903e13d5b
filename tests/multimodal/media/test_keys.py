# SPDX-License-Identifier: Apache-2.0
"""Items share a key where they decode alike, and nowhere else."""

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny.media import audio_wav, jpeg, video
from vllm.multimodal.media import (
    AudioMediaIO,
    DecodeSpec,
    ImageMediaIO,
    MediaIO,
    VideoMediaIO,
    base,
    derive_media_key,
)


def image_io(**settings: Any) -> ImageMediaIO:
    return ImageMediaIO(**settings)


def audio_io(**settings: Any) -> AudioMediaIO:
    return AudioMediaIO(**settings)


def video_io(image: dict[str, Any] | None = None, **settings: Any) -> VideoMediaIO:
    return VideoMediaIO(ImageMediaIO(**(image or {})), **settings)


class TextIO(MediaIO[str]):
    """A decoder as a plugin may have it: without a spec of its own."""

    def __init__(self, **settings: Any) -> None:
        vars(self).update(settings)

    def load_bytes(self, data: bytes) -> str:
        return data.decode()

    def load_base64(self, media_type: str, data: str) -> str:
        return f"{media_type}:{base64.b64decode(data).decode()}"

    def load_file(self, filepath: Path) -> str:
        return filepath.read_text()


class OtherTextIO(TextIO):
    pass


def key(io: MediaIO, data: bytes = b"payload") -> bytes:
    return io.load_bytes_ref(data).key


# Derivation


def test_key_is_a_sha256_over_length_prefixed_chunks() -> None:
    spec = DecodeSpec({"a": 1})
    chunks = (b"payload", b'{"a":1}')
    framed = b"".join(len(chunk).to_bytes(8, "little") + chunk for chunk in chunks)
    assert derive_media_key(b"payload", spec) == hashlib.sha256(framed).digest()


def test_chunk_boundaries_count() -> None:
    keys = {
        base.digest_chunks(chunks)
        for chunks in ([b"ab", b"c"], [b"a", b"bc"], [b"abc"], [b"abc", b""])
    }
    assert len(keys) == 4


def test_payload_that_ends_like_a_spec_is_another_item() -> None:
    text = DecodeSpec({"a": 1}).canonical_bytes()
    assert derive_media_key(b"x" + text, DecodeSpec()) != derive_media_key(
        b"x", DecodeSpec({"a": 1})
    )


def test_a_view_is_digested_as_its_bytes() -> None:
    array = np.arange(4, dtype=np.int32)
    spec = DecodeSpec()
    assert derive_media_key(memoryview(array), spec) == derive_media_key(
        array.tobytes(), spec
    )


def test_key_does_not_vary_with_the_configured_hash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = key(image_io())
    monkeypatch.setenv("VLLM_MM_HASHER_ALGORITHM", "sha512")
    assert key(image_io()) == before


@pytest.mark.parametrize(
    ("io", "data"),
    [
        (image_io, jpeg(32, 32)),
        (audio_io, audio_wav(0.1)),
        (video_io, video(64, 64, 0.2)),
        (TextIO, b"text"),
    ],
    ids=["image", "audio", "video", "custom"],
)
def test_equal_decoders_give_equal_keys_and_other_bytes_other_ones(
    io: Callable[[], MediaIO], data: bytes
) -> None:
    assert key(io(), data) == key(io(), bytes(bytearray(data)))
    assert key(io(), data) != key(io(), data + b"\0")
    assert key(io(), data) == derive_media_key(data, io().get_decode_spec())
    assert io().load_bytes_ref(data).spec == io().get_decode_spec()


# Settings


@pytest.mark.parametrize(
    ("io", "one", "other"),
    [
        (image_io, {}, {"image_mode": "L"}),
        (image_io, {}, {"image_mode": None}),
        (image_io, {"image_mode": "RGBA"}, {"image_mode": None}),
        (image_io, {}, {"rgba_background_color": (0, 0, 0)}),
        (image_io, {}, {"of_a_plugin": 1}),
        (audio_io, {}, {"audio_backend": "pyav"}),
        (audio_io, {"audio_backend": "soundfile"}, {"audio_backend": "pyav"}),
        (audio_io, {}, {"of_a_plugin": 1}),
        (video_io, {}, {"num_frames": 8}),
        (video_io, {"num_frames": -1}, {"num_frames": 8}),
        (video_io, {}, {"fps": 2}),
        (video_io, {"fps": 1}, {"fps": 2}),
        (video_io, {}, {"max_duration": 10}),
        (video_io, {}, {"frame_recovery": True}),
        (video_io, {}, {"backend": "torchcodec"}),
        (video_io, {}, {"seek_mode": "approximate"}),
        (video_io, {}, {"device": "cuda"}),
        (video_io, {}, {"min_frames": 8}),
        (video_io, {}, {"max_frames": 8}),
        (video_io, {}, {"frames_indices": [0, 1]}),
        (video_io, {}, {"do_sample_frames": True}),
        (video_io, {}, {"video_backend": "opencv_dynamic"}),
        (video_io, {}, {"of_a_plugin": 1}),
        (TextIO, {"a": 1}, {"a": 2}),
        (TextIO, {}, {"a": None}),
    ],
)
def test_settings_that_shape_the_result_are_in_the_key(
    io: Callable[..., MediaIO], one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert key(io(**one)) != key(io(**other))


@pytest.mark.parametrize(
    ("io", "one", "other"),
    [
        (image_io, {}, {"image_mode": "RGB"}),
        (image_io, {}, {"rgba_background_color": [255, 255, 255]}),
        (audio_io, {}, {"audio_backend": "auto"}),
        (audio_io, {}, {"audio_backend": None}),
        (video_io, {}, {"num_frames": 32}),
        (video_io, {}, {"video_backend": "opencv"}),
        (video_io, {}, {"video_backend": None}),
        (video_io, {}, {"num_ffmpeg_threads": 4}),
        (video_io, {}, {"hw_decoders": 4}),
        (video_io, {}, {"pool_size": 4}),
        (video_io, {}, {"timeout_sec": 4}),
        (video_io, {"image": {"image_mode": "L"}}, {}),
    ],
)
def test_settings_that_change_nothing_are_not_in_the_key(
    io: Callable[..., MediaIO], one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert key(io(**one)) == key(io(**other))


def test_video_key_follows_the_backend_that_the_server_chose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = key(video_io())
    monkeypatch.setenv("VLLM_VIDEO_LOADER_BACKEND", "opencv_dynamic")
    assert key(video_io()) != before
    assert key(video_io()) == key(video_io(video_backend="opencv_dynamic"))
    assert key(video_io(video_backend="opencv")) == before


@pytest.mark.parametrize("name", ["owner", "settings", "video_decode", "image"])
@pytest.mark.parametrize("io", [image_io, audio_io, video_io])
def test_a_request_may_use_any_name_for_a_setting(
    io: Callable[..., MediaIO], name: str
) -> None:
    if io is video_io and name == "image":
        decoder: MediaIO = VideoMediaIO(ImageMediaIO(), **{name: "x"})
    else:
        decoder = io(**{name: "x"})
    assert decoder.get_decode_spec() != io().get_decode_spec() or (
        io is video_io and name == "video_decode"
    )
    decoder.load_base64_ref("video/jpeg", "QUFBQQ==")


def test_a_video_setting_cannot_pose_as_the_kind_of_decode() -> None:
    forged = video_io(video_decode="jpeg_sequence", image={})
    assert forged.get_decode_spec().settings["video_decode"] == "frames"


# Custom decoders


def test_default_spec_names_class_and_settings() -> None:
    settings = TextIO(mode="x", sizes=(1, 2)).get_decode_spec().settings
    assert settings.pop("media_io").endswith("test_keys.TextIO")
    assert settings == {"options": {"mode": "x", "sizes": [1, 2]}}


@pytest.mark.parametrize("value", [object(), b"x", {1, 2}, float("nan"), np.int64(1)])
def test_default_spec_refuses_what_it_cannot_tell_and_names_the_class(
    value: Any,
) -> None:
    io = TextIO(strange=value)
    with pytest.raises(
        (TypeError, ValueError), match=r"TextIO.*get_decode_spec.*stran"
    ):
        io.load_bytes_ref(b"text")


@pytest.mark.parametrize(
    "make",
    [
        lambda cls: cls(),
        lambda cls: cls(a=1),
    ],
    ids=["bare", "configured"],
)
def test_custom_decoders_of_two_classes_share_no_key(
    make: Callable[[type[TextIO]], TextIO],
) -> None:
    assert key(make(TextIO)) != key(make(OtherTextIO))


@pytest.mark.parametrize(
    ("owner", "arguments"),
    [
        (ImageMediaIO, ()),
        (AudioMediaIO, ()),
        (VideoMediaIO, (ImageMediaIO(),)),
    ],
)
def test_a_subclass_shares_no_key_with_its_base(
    owner: type[MediaIO], arguments: tuple
) -> None:
    one = type("One", (owner,), {})
    other = type("Other", (owner,), {})
    decoders = [cls(*arguments) for cls in (owner, one, other)]
    assert len({key(decoder) for decoder in decoders}) == 3
    encoded = base64.b64encode(b"payload").decode()
    for media_type in ("image/png", "video/jpeg"):
        refs = [io.load_base64_ref(media_type, encoded) for io in decoders]
        assert len({ref.key for ref in refs}) == 3


# Ways in


@pytest.mark.parametrize("io", [image_io(), audio_io(), video_io()])
def test_the_same_bytes_are_the_same_item_whatever_way_they_came(
    io: MediaIO, tmp_path: Path
) -> None:
    data = b"payload"
    path = tmp_path / "file"
    path.write_bytes(data)
    encoded = base64.b64encode(data).decode()
    refs = [
        io.load_bytes_ref(data),
        io.load_file_ref(path),
        io.load_base64_ref("", encoded),
        io.load_base64_ref("image/png", encoded),
        io.load_base64_ref("IMAGE/JPEG", encoded),
    ]
    assert {ref.key for ref in refs} == {key(io)}
    assert {ref.data for ref in refs} == {data}


def test_video_media_type_tells_frames_from_a_file() -> None:
    encoded = base64.b64encode(b"payload").decode()
    refs = {
        name: video_io().load_base64_ref(name, encoded)
        for name in ("video/mp4", "video/webm", "video/jpeg", "VIDEO/JPEG")
    }
    assert refs["video/mp4"].key == refs["video/webm"].key
    assert refs["video/jpeg"].key == refs["VIDEO/JPEG"].key
    assert refs["video/jpeg"].key != refs["video/mp4"].key
    # A file that holds the very text is not the sequence either.
    assert key(video_io(), encoded.encode()) != refs["video/jpeg"].key


@pytest.mark.parametrize(
    "image", [{"image_mode": "L"}, {"rgba_background_color": (0, 0, 0)}]
)
def test_image_settings_are_in_the_key_of_a_frame_sequence(
    image: dict[str, Any],
) -> None:
    one, other = (
        video_io(image=settings).load_base64_ref("video/jpeg", "QUFB")
        for settings in ({}, image)
    )
    assert one.key != other.key


def test_custom_decoder_may_read_the_media_type() -> None:
    encoded = base64.b64encode(b"text").decode()
    refs = {
        name: TextIO().load_base64_ref(name, encoded)
        for name in ("text/a", "TEXT/A", "text/b")
    }
    assert refs["text/a"].key == refs["TEXT/A"].key
    assert refs["text/a"].key != refs["text/b"].key
    assert refs["text/b"].decode() == "text/b:text"


@pytest.mark.parametrize(
    ("owner", "arguments"),
    [(ImageMediaIO, ()), (AudioMediaIO, ()), (VideoMediaIO, (ImageMediaIO(),))],
)
def test_a_subclass_may_read_base64_its_own_way(
    owner: type[MediaIO], arguments: tuple
) -> None:
    def load_base64(self: Any, media_type: str, data: str) -> str:
        return f"{media_type}:{data}"

    decoder = type("Own", (owner,), {"load_base64": load_base64})(*arguments)
    refs = [decoder.load_base64_ref(f"x/{name}", "QUFB") for name in "ab"]
    assert [ref.decode() for ref in refs] == ["x/a:QUFB", "x/b:QUFB"]
    assert refs[0].key != refs[1].key


@pytest.mark.parametrize("io", [image_io(), audio_io(), video_io()])
@pytest.mark.parametrize("text", ["!!!!", "QUFB QUFB", "QUFB=", "QUF"])
def test_bad_base64_fails_when_the_ref_is_made(io: MediaIO, text: str) -> None:
    with pytest.raises(ValueError):
        io.load_base64_ref("image/png", text)


def test_a_file_is_read_when_the_ref_is_made(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    ref = TextIO().load_file_ref(path)
    path.write_text("after")
    assert ref.decode() == "before"


@pytest.mark.parametrize("io", [image_io(), audio_io(), video_io()])
def test_a_missing_file_fails_when_the_ref_is_made(io: MediaIO, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        io.load_file_ref(tmp_path / "missing")


class SubImageIO(ImageMediaIO):
    """Inherits its spec."""


def test_client_option_cannot_pass_for_another_class() -> None:
    own = SubImageIO().get_decode_spec()
    name = own.settings["media_io"]
    assert ImageMediaIO(media_io=name).get_decode_spec() != own
