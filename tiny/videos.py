# SPDX-License-Identifier: Apache-2.0
"""Moving pictures, with or without sound, encoded in memory."""

import io
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

import av
import numpy as np
from av.container import OutputContainer
from av.video.stream import VideoStream

from tiny.audio import wave
from tiny.images import scene

# Enough for 1.9 MB in six seconds of 720p, in proportion for other sizes.
BITS_PER_PIXEL = 0.11


@lru_cache(maxsize=32)
def video(
    width: int = 1280,
    height: int = 720,
    seconds: float = 6.0,
    fps: int = 30,
    seed: int = 0,
    audio: bool = False,
    codec: str = "libx264",
    picture: bool = True,
) -> bytes:
    """Returns an MP4 file whose view pans over a scene while a square crosses it.

    With `audio` a mono AAC track of the same length at 16 kHz; without `picture` there
    is that track only. Six seconds of 720p take about 3 s and give 2 MB; a second
    call with the same arguments costs nothing.
    """
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        shown = (
            _picture_track(container, codec, fps, width, height) if picture else None
        )
        heard = container.add_stream("aac", 16000, layout="mono") if audio else None
        if shown is not None:
            for image in frames(width, height, round(seconds * fps), seed):
                frame = av.VideoFrame.from_ndarray(image, format="rgb24")
                container.mux(shown.encode(frame))
            container.mux(shown.encode())
        if heard is not None:
            for block in _sound(seconds, seed):
                container.mux(heard.encode(block))
            container.mux(heard.encode())
    return out.getvalue()


def frames(width: int, height: int, count: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Yields `count` frames, uint8 of shape (height, width, 3)."""
    # The scene at twice its size, so that the view has room to pan. Enlarging costs
    # less than drawing more of it.
    large = np.kron(scene(width, height, seed), np.ones((2, 2, 1), np.uint8))
    side = max(2, height // 6)
    for number in range(count):
        along = number / max(1, count - 1)
        top, left = round(along * height * 0.5), round(along * width * 0.5)
        frame = large[top : top + height, left : left + width].copy()
        x = round((width - side) * (1 - along))
        y = round((height - side) * (0.5 + 0.5 * np.sin(6 * along)))
        frame[y : y + side, x : x + side] = (255, 255 - round(255 * along), 0)
        yield frame


def _picture_track(
    container: OutputContainer, codec: str, fps: int, width: int, height: int
) -> VideoStream:
    options = {"preset": "superfast"} if codec == "libx264" else {}
    track = container.add_stream(codec, fps, options=options)
    assert isinstance(track, VideoStream), codec
    track.width, track.height, track.pix_fmt = width, height, "yuv420p"
    track.bit_rate = round(width * height * fps * BITS_PER_PIXEL)
    # A fixed number: x264 writes other bytes for another number of threads.
    track.codec_context.thread_count = 2
    return track


def _sound(seconds: float, seed: int) -> Iterator[av.AudioFrame]:
    samples = wave(seconds, 16000, 1, seed).T
    for start in range(0, samples.shape[1], 1024):
        block = np.ascontiguousarray(samples[:, start : start + 1024])
        frame = av.AudioFrame.from_ndarray(block, format="fltp", layout="mono")
        frame.sample_rate, frame.pts = 16000, start
        frame.time_base = Fraction(1, 16000)
        yield frame
