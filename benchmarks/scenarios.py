# SPDX-License-Identifier: Apache-2.0
"""Every scenario: what is sent, how often, how many at once, at which level."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.pool import Pool
from tiny import media
from tiny.chat import Part, message, part

FRONTEND = "frontend"
SERVING = "serving"
STOCK = "stock"
LAZY = "lazy"
UNBOUNDED = "unbounded"
MODES = (STOCK, LAZY)

# About as many tokens as a question about a 720p JPEG, so that what differs between
# the two is the medium and not the length of the prompt.
WORDS = "How are you? Tell me in a few words, then say what you can do."
ASK = "What is it?"


@dataclass(frozen=True)
class Request:
    """One chat request: its messages, and the fields that go beside them."""

    messages: list[Any]
    options: dict[str, Any] = field(default_factory=dict)
    baseline: bool = False
    """Whether the sample's other requests are held against this one."""


@dataclass(frozen=True)
class Effort:
    """How long one sample runs: until `seconds` have passed, and then not before
    `least` requests nor after `most`."""

    least: int
    most: int
    seconds: float = 0.0


def fixed(count: int) -> Effort:
    """Always that many requests."""
    return Effort(count, count)


@dataclass(frozen=True)
class Scenario:
    """What is measured under one name.

    `build` gives the requests of a sample, which are sent in turn and from the start
    again. `cold` empties every cache before a sample and then sends the first `warm`
    requests untimed; otherwise all of them have been sent before.
    """

    name: str
    title: str
    build: Callable[["Maker"], list[Request]]
    quick: Effort
    full: Effort
    concurrency: int = 1
    cold: bool = False
    warm: int = 0
    cache: bool = True
    # In each mode, each time that the processes are started. Where a difference of a
    # few percent matters it takes more of them to see.
    samples: int = 2
    levels: tuple[str, ...] = (FRONTEND, SERVING)
    client: Literal["vllm", "own"] = "own"
    # In QUICK, where stock needs minutes for what no target asks.
    quick_modes: tuple[str, ...] = MODES
    quick_levels: tuple[str, ...] = (FRONTEND, SERVING)

    def effort(self, quick: bool, level: str = SERVING) -> Effort:
        """How long a sample runs at `level`."""
        effort = self.quick if quick else self.full
        if level == FRONTEND and not self.cold and not effort.seconds:
            # Without a server a request takes a millisecond, and their number alone
            # would make too short a sample.
            return Effort(effort.least, 50 * effort.most, 0.5 if quick else 2.0)
        return effort

    def repeats(self, quick: bool) -> int:
        """Samples in each mode for each start of the processes."""
        return min(self.samples, 3) if quick else self.samples

    def modes(self, quick: bool) -> tuple[str, ...]:
        return self.quick_modes if quick else MODES

    def runs(self, level: str, quick: bool) -> bool:
        """Whether it is measured at `level`."""
        if level not in self.levels:
            return False
        return not quick or level in self.quick_levels


class Maker:
    """Makes the requests of scenarios from the media of a pool."""

    def __init__(self, pool: Pool, web: str, quick: bool) -> None:
        self.pool = pool
        self.web = web
        self.quick = quick

    def ask(self, *parts: Part, ask: str = ASK, **options: Any) -> Request:
        return Request([message(*parts, ask=ask)], options)

    def text(self, baseline: bool = False) -> Request:
        return Request([message(ask=WORDS)], baseline=baseline)

    def data(self, modality: str, path: Path) -> Part:
        """The file in the request itself."""
        return part(modality, media.data_url(path.read_bytes(), _MIMES[path.suffix]))

    def file(self, modality: str, path: Path) -> Part:
        """The file where the server can read it."""
        return part(modality, path.as_uri())

    def http(self, modality: str, path: Path) -> Part:
        """The file from the web server of the benchmark."""
        return part(modality, f"{self.web}/{path.name}")

    def count(self, scenario: str) -> int:
        """The requests of one sample."""
        return SCENARIOS[scenario].effort(self.quick).most


_MIMES = {".jpg": "image/jpeg", ".mp4": "video/mp4", ".wav": "audio/wav"}


def _text(make: Maker) -> list[Request]:
    return [make.text()]


def _jpeg_and_text(make: Maker) -> list[Request]:
    return [make.text(baseline=True), *_jpeg_data(make)]


def _jpeg_data(make: Maker) -> list[Request]:
    return [make.ask(make.data("image", make.pool.jpeg()))]


def _jpeg_http(make: Maker) -> list[Request]:
    return [make.ask(make.http("image", make.pool.jpeg()))]


def _jpeg_pool(make: Maker) -> list[Request]:
    # Seven questions over eight pictures: every pair comes, none twice in a row.
    parts = [make.data("image", make.pool.jpeg(seed)) for seed in range(8)]
    asks = [f"{'Please, ' * n}what is it?" for n in range(7)]
    return [make.ask(parts[n % 8], ask=asks[n % 7]) for n in range(56)]


def _jpeg_12mp(make: Maker) -> list[Request]:
    return [make.ask(make.data("image", make.pool.jpeg(0, 4000, 3000)))]


def _video_360p(make: Maker) -> list[Request]:
    return [make.ask(make.file("video", make.pool.video(0, 640, 360)))]


def _video_720p(make: Maker) -> list[Request]:
    return [make.ask(make.file("video", make.pool.video()))]


def _video_60s(make: Maker) -> list[Request]:
    return [make.ask(make.file("video", make.pool.long_video()))]


def _audio_30s(make: Maker) -> list[Request]:
    return [make.ask(make.data("audio", make.pool.wav()))]


def _own_sound(make: Maker) -> list[Request]:
    clip = make.file("video", make.pool.video(audio=True))
    return [make.ask(clip, mm_processor_kwargs={"use_audio_in_video": True})]


def _history(make: Maker) -> list[Request]:
    messages: list[Any] = []
    for seed in range(5):
        messages.append(message(make.data("image", make.pool.jpeg(seed)), ask=ASK))
        messages.append({"role": "assistant", "content": "It is a picture."})
    return [Request([*messages, message(ask="Which one was the best?")])]


def _cold_images(make: Maker) -> list[Request]:
    return [
        make.ask(make.data("image", make.pool.jpeg(100 + n)))
        for n in range(make.count("cold_images"))
    ]


def _cold_videos(make: Maker) -> list[Request]:
    return [
        make.ask(make.file("video", make.pool.video(100 + n, 640, 360)))
        for n in range(make.count("cold_videos"))
    ]


def _mixed_videos(make: Maker) -> list[Request]:
    # The first is the repeated one, sent untimed. New ones come first in each ten, so
    # that the last of them is not what everything ends with.
    known = make.ask(make.file("video", make.pool.video()))
    requests = [known]
    for n in range(make.count("mixed_videos")):
        clip = make.file("video", make.pool.video(200 + n // 10))
        requests.append(make.ask(clip) if n % 10 == 0 else known)
    return requests


def _burst(make: Maker) -> list[Request]:
    # Few frames a second, each of which is wanted: they decode faster than the one mm
    # worker can take them, so decoded ones pile up where nothing bounds them.
    return [
        make.ask(make.file("video", make.pool.video(300 + n, 640, 360, 8.0, fps=2)))
        for n in range(make.count("burst"))
    ]


_ALL = [
    Scenario(
        "text", "text only", _text, fixed(80), fixed(200), client="vllm", samples=5
    ),
    Scenario(
        "text_c8",
        "text only, 8 at once",
        _text,
        fixed(160),
        fixed(400),
        concurrency=8,
        client="vllm",
        quick_levels=(FRONTEND,),
    ),
    # Enough at once for the engine always to have a full batch before it. With fewer
    # the batches settle in one of several patterns, and which one decides.
    Scenario(
        "text_c48",
        "text only, 48 at once",
        _text,
        fixed(200),
        fixed(400),
        concurrency=48,
        client="vllm",
        samples=15,
        levels=(SERVING,),
    ),
    Scenario(
        "jpeg_and_text",
        "text only and a repeated 720p JPEG, in turn",
        _jpeg_and_text,
        fixed(80),
        fixed(200),
        samples=5,
    ),
    Scenario(
        "jpeg_data",
        "720p JPEG repeated, `data:`",
        _jpeg_data,
        fixed(60),
        fixed(150),
        client="vllm",
        samples=5,
    ),
    Scenario(
        "jpeg_http",
        "720p JPEG repeated, `http:`",
        _jpeg_http,
        fixed(60),
        fixed(150),
        client="vllm",
        quick_levels=(FRONTEND,),
    ),
    Scenario(
        "jpeg_pool",
        "eight 720p JPEGs, varied prompts, 8 at once",
        _jpeg_pool,
        fixed(56),
        fixed(168),
        concurrency=8,
        client="vllm",
        quick_levels=(FRONTEND,),
    ),
    Scenario(
        "jpeg_12mp",
        "12-megapixel JPEG repeated",
        _jpeg_12mp,
        Effort(4, 10, 1.0),
        Effort(10, 40, 3.0),
        quick_levels=(FRONTEND,),
    ),
    Scenario(
        "video_360p",
        "360p H.264, 6 s, repeated",
        _video_360p,
        Effort(3, 60, 1.0),
        Effort(5, 100, 3.0),
        quick_levels=(FRONTEND,),
    ),
    Scenario(
        "video_720p",
        "720p H.264, 6 s, repeated",
        _video_720p,
        Effort(3, 60, 1.0),
        Effort(5, 100, 4.0),
    ),
    Scenario(
        "video_720p_c8",
        "720p H.264, 6 s, repeated, 8 at once",
        _video_720p,
        Effort(12, 200, 2.0),
        Effort(24, 400, 4.0),
        concurrency=8,
    ),
    Scenario(
        "video_60s",
        "720p H.264, 60 s, repeated",
        _video_60s,
        Effort(1, 20, 1.0),
        Effort(2, 50, 3.0),
        quick_levels=(),
    ),
    Scenario(
        "audio_30s",
        "audio, 30 s, repeated",
        _audio_30s,
        Effort(5, 40, 1.0),
        Effort(10, 100, 3.0),
        quick_levels=(FRONTEND,),
    ),
    Scenario(
        "own_sound",
        "720p video with its own sound, repeated",
        _own_sound,
        Effort(2, 40, 1.0),
        Effort(4, 100, 3.0),
        quick_levels=(FRONTEND,),
    ),
    Scenario(
        "history",
        "chat with five images in its history",
        _history,
        Effort(5, 40, 1.0),
        Effort(10, 100, 3.0),
        quick_levels=(FRONTEND,),
    ),
    Scenario(
        "mixed_videos",
        "720p video, 90 % repeated, 8 at once",
        _mixed_videos,
        fixed(20),
        fixed(30),
        concurrency=8,
        cold=True,
        warm=1,
    ),
    Scenario(
        "cold_images",
        "all different 720p JPEGs, 8 at once",
        _cold_images,
        fixed(64),
        fixed(128),
        concurrency=8,
        cold=True,
        client="vllm",
        samples=5,
    ),
    Scenario(
        "cold_videos",
        "all different 360p videos, 4 at once",
        _cold_videos,
        fixed(12),
        fixed(24),
        concurrency=4,
        cold=True,
        samples=5,
    ),
    Scenario(
        "cold_one",
        "one new 720p video",
        _video_720p,
        fixed(1),
        fixed(1),
        cold=True,
        quick_modes=(LAZY,),
        quick_levels=(FRONTEND,),
    ),
    Scenario(
        "identical",
        "sixteen identical new 720p videos at once",
        _video_720p,
        fixed(16),
        fixed(16),
        concurrency=16,
        cold=True,
        quick_modes=(LAZY,),
        quick_levels=(FRONTEND,),
    ),
    Scenario(
        "jpeg_no_cache",
        "720p JPEG repeated, cache off",
        _jpeg_data,
        Effort(10, 40, 1.0),
        Effort(20, 100, 3.0),
        cache=False,
        quick_levels=(FRONTEND,),
    ),
    Scenario(
        "video_no_cache",
        "720p video repeated, cache off",
        _video_720p,
        Effort(2, 4, 1.0),
        Effort(4, 10, 3.0),
        cache=False,
        quick_levels=(FRONTEND,),
    ),
    Scenario(
        "burst",
        "different short videos, all at once, bound of 128 MiB",
        _burst,
        fixed(48),
        fixed(200),
        concurrency=200,
        cold=True,
        samples=5,
        levels=(FRONTEND,),
    ),
]

SCENARIOS = {scenario.name: scenario for scenario in _ALL}
