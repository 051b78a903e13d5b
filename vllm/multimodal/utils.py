# SPDX-License-Identifier: Apache-2.0
"""Fetching media offline: what comes back is decoded.

For user code, which may read any local file through these. A server must not call
them.
"""

from typing import Any

import numpy as np
from PIL import Image

from .media import (
    AudioMediaIO,
    ImageMediaIO,
    MediaConnector,
    MediaIO,
    VideoMediaIO,
)
from .video import DecodedFrames


def _connector() -> MediaConnector:
    return MediaConnector(allowed_local_media_path="/")


def fetch_audio(
    audio_url: str, audio_io_kwargs: dict[str, Any] | None = None
) -> tuple[np.ndarray, int | float]:
    """`(samples, rate)`: float32 mono samples and the file's rate in hertz.

    Args:
        audio_url: A `data:`, `http(s):` or `file:` URL.
        audio_io_kwargs: Settings of `AudioMediaIO`.
    """
    audio_io: MediaIO = AudioMediaIO(**(audio_io_kwargs or {}))
    return _connector().fetch_audio(audio_url, audio_io).decode()


def fetch_image(
    image_url: str, image_io_kwargs: dict[str, Any] | None = None
) -> Image.Image:
    """The image, upright, in RGB unless the settings say otherwise.

    Args:
        image_url: A `data:`, `http(s):` or `file:` URL.
        image_io_kwargs: Settings of `ImageMediaIO`.
    """
    image_io: MediaIO = ImageMediaIO(**(image_io_kwargs or {}))
    return _connector().fetch_image(image_url, image_io).decode()


def fetch_video(
    video_url: str, video_io_kwargs: dict[str, Any] | None = None
) -> tuple[DecodedFrames, dict[str, Any]]:
    """`(frames, metadata)`: frames of shape (n, height, width, 3), dtype uint8.

    Args:
        video_url: A `data:`, `http(s):` or `file:` URL.
        video_io_kwargs: Settings of `VideoMediaIO`.
    """
    video_io: MediaIO = VideoMediaIO(ImageMediaIO(), **(video_io_kwargs or {}))
    return _connector().fetch_video(video_url, video_io).decode()
