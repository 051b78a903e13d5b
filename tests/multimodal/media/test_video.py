# SPDX-License-Identifier: Apache-2.0
"""Video decodes as stock vLLM decodes it, from a file and from a row of pictures."""

import base64
import sys
from typing import Any

import numpy as np
import pytest

from tiny.media import (
    EMPTY,
    audio_wav,
    huge_png,
    jpeg,
    noise,
    one_frame_video,
    png,
    truncated,
    video,
    video_without_picture,
)
from vllm.multimodal.media import ImageMediaIO, MediaRef, VideoMediaIO
from vllm.upstream.multimodal.media import image as upstream_image
from vllm.upstream.multimodal.media import video as upstream

CLIP = {"width": 96, "height": 64, "seconds": 1.0, "fps": 10}


def text(*pictures: bytes) -> str:
    return ",".join(base64.b64encode(picture).decode() for picture in pictures)


def lazy(image: dict[str, Any] | None = None, **settings: Any) -> VideoMediaIO:
    return VideoMediaIO(ImageMediaIO(**(image or {})), **settings)


def stock(image: dict[str, Any] | None = None, **settings: Any) -> Any:
    return upstream.VideoMediaIO(
        upstream_image.ImageMediaIO(**(image or {})), **settings
    )


def assert_equal(ref: MediaRef, expected: Any) -> None:
    frames, metadata = ref.decode()
    assert frames.dtype == expected[0].dtype == np.uint8
    assert np.array_equal(frames, expected[0])
    assert metadata == expected[1]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_frames": 4},
        {"num_frames": -1},
        {"num_frames": -1, "fps": 2},
        {"num_frames": 3, "frame_recovery": True},
        {"video_backend": "opencv_dynamic", "fps": 2},
    ],
    ids=str,
)
def test_decodes_as_stock(settings: dict[str, Any]) -> None:
    data = video(**CLIP)
    ref = lazy(**settings).load_bytes_ref(data)
    assert_equal(ref, stock(**settings).load_bytes(data).media)
    assert len(ref.decode()[0]) > 1


def test_every_way_in_decodes_alike(tmp_path) -> None:
    data = video(**CLIP)
    path = tmp_path / "clip.mp4"
    path.write_bytes(data)
    expected = stock(num_frames=3).load_bytes(data).media
    io = lazy(num_frames=3)
    for ref in (
        io.load_bytes_ref(data),
        io.load_file_ref(path),
        io.load_base64_ref("video/mp4", text(data)),
    ):
        assert_equal(ref, expected)
    for media in (io.load_bytes(data), io.load_base64("video/mp4", text(data))):
        assert isinstance(media, tuple)
        assert np.array_equal(media[0], expected[0])


FRAMES = [jpeg(48, 32, seed) for seed in range(4)]


@pytest.mark.parametrize(
    ("media_type", "settings"),
    [
        ("video/jpeg", {}),
        ("VIDEO/JPEG", {}),
        ("video/jpeg", {"num_frames": 2}),
        ("video/jpeg", {"num_frames": -1}),
        ("video/jpeg", {"image": {"image_mode": "L"}}),
        (
            "video/jpeg",
            {
                "fps": 2,
                "frames_indices": [0, 5, 10, 15],
                "total_num_frames": 20,
                "duration": 10.0,
                "do_sample_frames": True,
            },
        ),
    ],
)
def test_row_of_pictures_decodes_as_stock(
    media_type: str, settings: dict[str, Any]
) -> None:
    ref = lazy(**settings).load_base64_ref(media_type, text(*FRAMES))
    assert ref.data == text(*FRAMES).encode()
    assert not ref.is_decoded
    expected = stock(**settings).load_base64(media_type, text(*FRAMES)).media
    assert_equal(ref, expected)


@pytest.mark.parametrize(
    ("settings", "encoded"),
    [
        ({"num_frames": 0}, text(*FRAMES)),
        ({"frames_indices": [0]}, text(*FRAMES)),
        ({"frames_indices": "all"}, text(*FRAMES)),
        ({"total_num_frames": 1}, text(*FRAMES)),
        ({"duration": -1}, text(*FRAMES)),
        ({}, ""),
        ({}, "not base64"),
        ({}, text(*FRAMES) + ","),
        ({}, text(FRAMES[0], noise())),
        ({}, text(FRAMES[0], truncated(FRAMES[1]))),
        ({}, text(FRAMES[0], jpeg(32, 32))),
        ({}, text(huge_png())),
    ],
)
def test_bad_row_of_pictures_fails_the_decode_as_stock(
    settings: dict[str, Any], encoded: str
) -> None:
    ref = lazy(**settings).load_base64_ref("video/jpeg", encoded)
    with pytest.raises(Exception) as expected:
        stock(**settings).load_base64("video/jpeg", encoded)
    # Where Pillow has an error of its own for too large an image, stock lets it by.
    with pytest.raises((expected.type, ValueError)):
        ref.decode()


@pytest.mark.parametrize(
    "data",
    [
        EMPTY,
        noise(),
        jpeg(32, 32),
        png(32, 32),
        audio_wav(0.1),
        truncated(video(**CLIP)),
        truncated(video(**CLIP), 0.95),
        video_without_picture(0.2),
        one_frame_video(64, 64),
        video(64, 64, 0.2, codec="mpeg4"),
    ],
    ids=[
        "empty",
        "noise",
        "jpeg",
        "png",
        "wav",
        "cut",
        "cut-late",
        "no-picture",
        "one-frame",
        "mpeg4",
    ],
)
def test_ugly_input_is_told_by_the_decode_and_as_stock(data: bytes) -> None:
    ref = lazy(num_frames=4).load_bytes_ref(data)
    try:
        expected = stock(num_frames=4).load_bytes(data).media
    except Exception as e:
        with pytest.raises(type(e)):
            ref.decode()
    else:
        assert_equal(ref, expected)


def test_loader_runs_when_the_media_are_asked_for_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []
    io = lazy()

    class Loader:
        @staticmethod
        def load_bytes(data: bytes, **kwargs: Any) -> Any:
            calls.append(len(data))
            return np.zeros((1, 2, 2, 3), np.uint8), kwargs

    io.video_loader = Loader
    ref = io.load_bytes_ref(b"payload")
    assert calls == []
    assert ref.decode()[1] == {"num_frames": 32}
    assert calls == [7]


@pytest.mark.parametrize("decoded", [False, True])
def test_nothing_holds_the_bytes_after_release(decoded: bool) -> None:
    data = bytes(bytearray(video(**CLIP)))
    alone = sys.getrefcount(data)
    ref = lazy(num_frames=2).load_bytes_ref(data)
    media = ref.decode() if decoded else None
    assert sys.getrefcount(data) > alone
    ref.release()
    assert sys.getrefcount(data) == alone
    assert ref.is_decoded == (media is not None)


@pytest.mark.parametrize("decoded", [False, True])
def test_nothing_holds_a_row_of_pictures_after_release(decoded: bool) -> None:
    encoded = text(*FRAMES)
    alone = sys.getrefcount(encoded)
    ref = lazy().load_base64_ref("video/jpeg", encoded)
    data = ref.data
    if decoded:
        ref.decode()
    ref.release()
    assert sys.getrefcount(encoded) == alone
    # This name and the argument.
    assert sys.getrefcount(data) == 2


def test_unknown_backend_is_refused() -> None:
    with pytest.raises(AssertionError, match="nonsense"):
        lazy(video_backend="nonsense")
