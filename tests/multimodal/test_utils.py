# SPDX-License-Identifier: Apache-2.0
"""The offline helpers return decoded media and no refs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tiny.http import MediaServer
from tiny.media import audio_wav, data_url, jpeg, noise, png, video, wave
from vllm.multimodal.media import MediaRef
from vllm.multimodal.utils import fetch_audio, fetch_image, fetch_video
from vllm.upstream.multimodal.media import video as upstream_video
from vllm.upstream.multimodal.media.image import ImageMediaIO


@pytest.fixture(params=["data", "http", "file"])
def url(
    request: pytest.FixtureRequest,
    web: MediaServer,
    tmp_path: Path,
) -> Callable[[bytes, str], str]:
    """Makes a URL of each kind for some bytes."""

    def make(data: bytes, mime: str) -> str:
        if request.param == "data":
            return data_url(data, mime)
        if request.param == "http":
            return web.serve("/file", data, mime)
        (tmp_path / "file").write_bytes(data)
        return (tmp_path / "file").as_uri()

    return make


@pytest.mark.parametrize(
    ("settings", "mode"),
    [(None, "RGB"), ({}, "RGB"), ({"image_mode": None}, "RGBA")],
)
def test_fetch_image(
    url: Callable[[bytes, str], str], settings: dict[str, Any] | None, mode: str
) -> None:
    data = png(48, 32, mode="RGBA")
    image = fetch_image(url(data, "image/png"), settings)
    assert type(image).__module__.startswith("PIL.")
    assert isinstance(image, Image.Image)
    assert image.mode == mode
    expected = ImageMediaIO(**(settings or {})).load_bytes(data).media
    assert image.tobytes() == expected.tobytes()


def test_fetch_audio(url: Callable[[bytes, str], str]) -> None:
    data = audio_wav(0.1, rate=8000, subtype="FLOAT")
    media = fetch_audio(url(data, "audio/wav"), {"audio_backend": "soundfile"})
    assert type(media) is tuple
    samples, rate = media
    assert rate == 8000
    assert np.array_equal(samples, wave(0.1, rate=8000)[:, 0])


def test_fetch_video(url: Callable[[bytes, str], str]) -> None:
    data = video(64, 64, 1.0, fps=10)
    media = fetch_video(url(data, "video/mp4"), {"num_frames": 3})
    assert type(media) is tuple
    frames, metadata = media
    expected = upstream_video.VideoMediaIO(ImageMediaIO(), num_frames=3)
    expected_frames, expected_metadata = expected.load_bytes(data).media
    assert np.array_equal(frames, expected_frames)
    assert metadata == expected_metadata
    assert not isinstance(frames, MediaRef)


@pytest.mark.parametrize("fetch", [fetch_image, fetch_audio, fetch_video])
def test_broken_media_fail_with_value_error(
    fetch: Callable[[str], Any], url: Callable[[bytes, str], str]
) -> None:
    with pytest.raises(ValueError):
        fetch(url(noise(), "image/png"))


def test_settings_are_those_of_the_decoder() -> None:
    with pytest.raises(ValueError, match="rgba_background_color"):
        fetch_image(
            data_url(jpeg(8, 8), "image/jpeg"), {"rgba_background_color": "red"}
        )
