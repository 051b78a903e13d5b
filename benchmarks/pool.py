# SPDX-License-Identifier: Apache-2.0
"""The media of the scenarios: made once, kept on disk, the same in every process."""

import hashlib
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import av
from av.video.stream import VideoStream

from tiny import media
from tiny.http import MediaServer

ROOT = Path(__file__).resolve().parents[1]


class Pool:
    """Files by what they are. Several processes may use one folder at once."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or ROOT / ".cache" / "benchmarks" / _stamp()
        self.folder.mkdir(parents=True, exist_ok=True)

    def jpeg(self, seed: int = 0, width: int = 1280, height: int = 720) -> Path:
        """Returns a JPEG; another seed, another picture."""
        return self._file(
            f"{width}x{height}-{seed}.jpg", lambda: media.jpeg(width, height, seed)
        )

    def video(
        self,
        seed: int = 0,
        width: int = 1280,
        height: int = 720,
        seconds: float = 6.0,
        audio: bool = False,
        fps: int = 30,
    ) -> Path:
        """Returns an H.264 MP4."""
        heard = "-sound" if audio else ""
        return self._file(
            f"{width}x{height}-{seconds:g}s-{fps}-{seed}{heard}.mp4",
            lambda: media.video(width, height, seconds, fps, seed, audio),
        )

    def long_video(self, times: int = 10) -> Path:
        """Returns the six seconds of 720p, `times` over, as one file."""
        return self._file(
            f"long-{times}.mp4", lambda: repeated(self.video().read_bytes(), times)
        )

    def wav(self, seconds: float = 30.0) -> Path:
        """Returns a mono WAV file at 16 kHz."""
        return self._file(f"{seconds:g}s.wav", lambda: media.audio_wav(seconds))

    def _file(self, name: str, make: Callable[[], bytes]) -> Path:
        path = self.folder / name
        if not path.exists():
            # Aside and renamed, so that nobody reads half a file.
            aside = path.with_name(f".{name}.{os.getpid()}")
            aside.write_bytes(make())
            aside.replace(path)
        return path


@contextmanager
def media_web(pool: Pool) -> Iterator[str]:
    """Serves what scenarios fetch by `http:`, and gives the address."""
    with MediaServer() as web:
        photo = pool.jpeg()
        web.serve(f"/{photo.name}", photo.read_bytes(), "image/jpeg")
        yield web.base_url


def repeated(video: bytes, times: int) -> bytes:
    """Returns a video `times` as long, made of the same packets.

    Encoding a minute of 720p would take half of one; copying takes none, and what
    decodes it has the same work. Video track only.
    """
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as target:
        track: VideoStream | None = None
        shift = 0
        for _ in range(times):
            end = 0
            with av.open(io.BytesIO(video), "r") as source:
                shown = source.streams.video[0]
                if track is None:
                    track = target.add_stream_from_template(shown)
                for packet in source.demux(shown):
                    if packet.dts is None or packet.pts is None:
                        continue  # the empty packet that flushes a decoder
                    end = max(end, packet.pts + (packet.duration or 1))
                    packet.pts += shift
                    packet.dts += shift
                    packet.stream = track
                    target.mux(packet)
            shift += end
    return out.getvalue()


def _stamp() -> str:
    """Changes with the code that draws and encodes."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for name in ("audio", "images", "videos"):
        digest.update((ROOT / "tiny" / f"{name}.py").read_bytes())
    return digest.hexdigest()[:12]
