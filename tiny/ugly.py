# SPDX-License-Identifier: Apache-2.0
"""Media that are broken, lie about themselves, or sit at an edge."""

import struct
import zlib

from tiny.audio import audio_wav
from tiny.images import jpeg, png
from tiny.videos import video

EMPTY = b""


def truncated(data: bytes, keep: float = 0.5) -> bytes:
    """Returns the first part of a file, `keep` of it: header whole, content not."""
    return data[: int(len(data) * keep)]


def noise(size: int = 4096) -> bytes:
    """Returns bytes that are no medium of any kind."""
    return bytes(17 + number * number % 151 for number in range(size))


def huge_png(width: int = 60000, height: int = 60000) -> bytes:
    """Returns a PNG of a few hundred bytes whose header claims `width` x `height`.

    The checksums are right, so only the claim itself can give it away before someone
    allocates the pixels.
    """
    small = png(8, 8)
    # 8 bytes of signature, then length, type, 13 bytes of IHDR and its checksum.
    header = b"IHDR" + struct.pack(">II", width, height) + small[24:29]
    checksum = struct.pack(">I", zlib.crc32(header))
    return small[:12] + header + checksum + small[33:]


def mislabelled() -> tuple[bytes, str]:
    """Returns a good JPEG and the media type of a PNG."""
    return jpeg(320, 240), "image/png"


def silent_wav() -> bytes:
    """Returns a well-formed WAV file with no samples in it."""
    return audio_wav(0.0)


def eight_channel_wav(seconds: float = 1.0) -> bytes:
    """Returns a WAV file with eight different channels."""
    return audio_wav(seconds, channels=8)


def one_frame_video(width: int = 320, height: int = 240) -> bytes:
    """Returns an MP4 file with a single frame."""
    return video(width, height, seconds=1 / 30)


def video_without_picture(seconds: float = 2.0) -> bytes:
    """Returns an MP4 file that has an audio track and no video track."""
    return video(seconds=seconds, audio=True, picture=False)
