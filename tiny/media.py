# SPDX-License-Identifier: Apache-2.0
"""Every kind of medium that the demo, the tests and the benchmarks send.

All functions return the bytes of a file, the same bytes for the same arguments.
"""

import base64

from tiny.audio import audio_flac, audio_mp3, audio_ogg, audio_wav, wave
from tiny.images import bmp, gif, jpeg, picture, png, scene, webp
from tiny.ugly import (
    EMPTY,
    eight_channel_wav,
    huge_png,
    mislabelled,
    noise,
    one_frame_video,
    silent_wav,
    truncated,
    video_without_picture,
)
from tiny.videos import frames, video

__all__ = [
    "EMPTY",
    "audio_flac",
    "audio_mp3",
    "audio_ogg",
    "audio_wav",
    "bmp",
    "data_url",
    "eight_channel_wav",
    "frames",
    "gif",
    "huge_png",
    "jpeg",
    "mislabelled",
    "noise",
    "one_frame_video",
    "picture",
    "png",
    "scene",
    "silent_wav",
    "truncated",
    "video",
    "video_without_picture",
    "wave",
    "webp",
]


def data_url(data: bytes, mime: str) -> str:
    """Returns `data` as a base64 `data:` URL of media type `mime`."""
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"
