# SPDX-License-Identifier: Apache-2.0
"""What lazy decode saves: a real server, a tiny model, each request several times.

    python examples/demo.py

starts `vllm serve`, sends text, images, a video and sound through the OpenAI client,
and prints one table. Exits with 1 if a repeated request decoded anything, if a broken
item did more than fail its own request, or if a request got another status than it
should. With VLLM_LAZY_MEDIA=0 it measures vLLM as released, which counts no decodes.
"""

import os
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# Run as a file, so that Python puts this folder on the path and not the repository.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from openai import APIStatusError, OpenAI

from tiny import media, models
from tiny.chat import Part, part, text
from tiny.http import MediaServer
from tiny.progress import Progress
from tiny.server import Metrics, ServeProcess

REPEATS = 9
ITEMS = "vllm:mm_media_items_total"
LAZY = os.environ.get("VLLM_LAZY_MEDIA") != "0"


@dataclass(frozen=True)
class Request:
    """A chat message, and what the server should make of it."""

    name: str
    parts: list[Part]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """One exchange: HTTP status, milliseconds, and the error object if it failed."""

    status: int
    milliseconds: float
    error: dict[str, Any] = field(default_factory=dict)


@dataclass
class Row:
    """One line of the table. `counts` are items decoded and items not decoded."""

    name: str
    status: int
    first: float
    repeated: float | None = None
    counts: tuple[int, int] | None = None


def file_url(path: Path, data: bytes) -> str:
    """Writes `data` to `path` and returns the URL by which the server reads it."""
    path.write_bytes(data)
    return path.as_uri()


def requests(web: MediaServer, folder: Path) -> list[Request]:
    """The requests of the table that are to succeed."""
    photo = media.jpeg()
    clip = file_url(folder / "clip.mp4", media.video())
    spoken = file_url(folder / "spoken.mp4", media.video(seed=1, audio=True))
    sound = media.data_url(media.audio_wav(5.0), "audio/wav")
    web_photo = web.serve("/photo.jpg", photo, "image/jpeg")
    ask = text("What is it?")
    # As long as the request with the JPEG is in tokens, so that what is compared is
    # the media and not the length of the prompt.
    words = "How are you? Tell me in a few words, then say what you can do."
    return [
        Request("text only", [text(words)]),
        Request(
            "720p JPEG, data:",
            [part("image", media.data_url(photo, "image/jpeg")), ask],
        ),
        Request("the same JPEG, http:", [part("image", web_photo), ask]),
        Request("720p H.264, 6 s, file:", [part("video", clip), ask]),
        Request("WAV, 5 s, data:", [part("audio", sound), ask]),
        Request(
            "720p H.264 with its sound, file:",
            [part("video", spoken), ask],
            {"mm_processor_kwargs": {"use_audio_in_video": True}},
        ),
    ]


def warm_up(web: MediaServer) -> list[Request]:
    """Other words and other media, for what only the very first request pays."""
    image = media.data_url(media.jpeg(seed=8), "image/jpeg")
    clip = media.data_url(media.video(640, 360, 2.0, seed=8, audio=True), "video/mp4")
    sound = media.data_url(media.audio_wav(5.0, seed=8), "audio/wav")
    web_image = web.serve("/warm.jpg", media.jpeg(seed=9), "image/jpeg")
    ask = text("And this?")
    return [
        Request("text", [text("Hello.")]),
        Request("image", [part("image", image), ask]),
        Request("image, http:", [part("image", web_image), ask]),
        Request("video", [part("video", clip), ask]),
        Request("audio", [part("audio", sound), ask]),
        Request(
            "video with its sound",
            [part("video", clip), ask],
            {"mm_processor_kwargs": {"use_audio_in_video": True}},
        ),
    ]


def corrupt() -> Request:
    """An image and a sound that are good, and between them half a JPEG."""
    good = media.data_url(media.jpeg(seed=2), "image/jpeg")
    half = media.data_url(media.truncated(media.jpeg(seed=3)), "image/jpeg")
    sound = media.data_url(media.audio_wav(2.0, seed=2), "audio/wav")
    return Request(
        "half a JPEG among good items",
        [
            part("image", good),
            part("image", half),
            part("audio", sound),
            text("What is it?"),
        ],
    )


def send(client: OpenAI, model: str, request: Request) -> Answer:
    """Sends it and waits for the one token of the answer."""
    start = time.perf_counter()
    messages: Any = [{"role": "user", "content": request.parts}]
    try:
        client.chat.completions.create(
            model=model,
            messages=messages,
            max_tokens=1,
            temperature=0,
            extra_body=request.options,
        )
    except APIStatusError as failure:
        taken = (time.perf_counter() - start) * 1000
        body = failure.body if isinstance(failure.body, dict) else {}
        return Answer(failure.status_code, taken, body)
    return Answer(200, (time.perf_counter() - start) * 1000)


def counts(metrics: Metrics) -> tuple[int, int]:
    """Items decoded so far, and items served without a decode of their own."""
    without = metrics.total(ITEMS, outcome="cached")
    without += metrics.total(ITEMS, outcome="shared")
    return int(metrics.total(ITEMS, outcome="decoded")), int(without)


class Demo:
    """The exchanges with one server, the rows they gave, and what went wrong."""

    def __init__(self, server: ServeProcess) -> None:
        self.server = server
        self.client = server.openai()
        self.rows: list[Row] = []
        self.faults: list[str] = []

    def counts(self) -> tuple[int, int] | None:
        """The two counters now; None for vLLM as released, which has none."""
        return counts(self.server.metrics()) if LAZY else None

    def warm_up(self, web: MediaServer) -> None:
        """Sends the warm-up requests, and looks whether decodes are counted at all."""
        for request in warm_up(web):
            self._expect(request.name, self._send(request), 200)
        if LAZY and not self.server.metrics().has(ITEMS):
            self.faults.append(f"the server has no {ITEMS}: lazy decode is not on")

    def measure(self, request: Request) -> None:
        """Sends the request once and then REPEATS times more."""
        before = self.counts()
        first = self._send(request)
        self._expect(request.name, first, 200)
        between = self.counts()
        again = [self._send(request) for _ in range(REPEATS)]
        for answer in again:
            self._expect(f"{request.name}, repeated", answer, 200)
        after = self.counts()
        if between and after and after[0] != between[0]:
            extra = after[0] - between[0]
            self.faults.append(f"{request.name}: repeats decoded {extra} items")
        self.rows.append(
            Row(
                request.name,
                first.status,
                first.milliseconds,
                statistics.median(answer.milliseconds for answer in again),
                _difference(before, after),
            )
        )

    def break_one(self) -> None:
        """Sends a broken item among good ones."""
        request = corrupt()
        before = self.counts()
        answer = self._send(request)
        after = self.counts()
        if LAZY:
            self._expect(request.name, answer, 422)
            message = str(answer.error.get("message", ""))
            if "image" not in message.lower() or "1" not in message:
                self.faults.append(f"{request.name}: not named in {message!r}")
        elif answer.status < 400:
            self.faults.append(f"{request.name}: status {answer.status}")
        self._row(request, answer, before, after)

    def survive(self, request: Request) -> None:
        """Sends a good request after the broken one."""
        before = self.counts()
        answer = self._send(request)
        self._expect(f"{request.name}, afterwards", answer, 200)
        after = self.counts()
        self._row(Request("good again: " + request.name, []), answer, before, after)

    def _send(self, request: Request) -> Answer:
        return send(self.client, self.server.model, request)

    def _expect(self, name: str, answer: Answer, status: int) -> None:
        if answer.status != status:
            told = answer.error.get("message", "")
            self.faults.append(f"{name}: {answer.status}, not {status}. {told}")

    def _row(
        self,
        request: Request,
        answer: Answer,
        before: tuple[int, int] | None,
        after: tuple[int, int] | None,
    ) -> None:
        row = Row(request.name, answer.status, answer.milliseconds)
        row.counts = _difference(before, after)
        self.rows.append(row)


def _difference(
    before: tuple[int, int] | None, after: tuple[int, int] | None
) -> tuple[int, int] | None:
    if before is None or after is None:
        return None
    return after[0] - before[0], after[1] - before[1]


def table(rows: list[Row]) -> str:
    """The rows, aligned, with each repeat as a multiple of the text-only one."""
    head = ["request", "status", "first ms", "repeated ms", "x text"]
    if LAZY:
        head += ["decoded", "not decoded"]
    unit = rows[0].repeated or 1.0
    lines = [head]
    for row in rows:
        line = [row.name, str(row.status), f"{row.first:.0f}"]
        if row.repeated is None:
            line += ["", ""]
        else:
            line += [f"{row.repeated:.0f}", f"{row.repeated / unit:.1f}"]
        if row.counts is not None:
            line += [str(count) for count in row.counts]
        lines.append(line)
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def main() -> int:
    print("Building the model and the media ...", flush=True)
    model = models.build_omni()
    with MediaServer() as web, TemporaryDirectory() as folder:
        wanted = requests(web, Path(folder))
        which = "with lazy decode" if LAZY else "as released"
        print(f"Starting vLLM {which} (a minute or two) ...", flush=True)
        with ExitStack() as running:
            with Progress() as progress:
                server = running.enter_context(
                    ServeProcess(model, progress=progress.line, media_dir=Path(folder))
                )
            progress.say("ready; sending requests ...\n")
            demo = Demo(server)
            try:
                demo.warm_up(web)
                for request in wanted:
                    demo.measure(request)
                demo.break_one()
                demo.survive(wanted[1])
            except OSError as error:
                demo.faults.append(f"the server is gone: {error}\n{server.tail()}")
    if demo.rows:
        print(table(demo.rows))
        print(
            f"\nrepeated: the median of {REPEATS}. "
            "x text: that, in text-only requests."
            + (f"\nItems are those of all {REPEATS + 1} requests." if LAZY else "")
        )
    for fault in dict.fromkeys(demo.faults):
        print(f"FAILED  {fault}", file=sys.stderr)
    return 1 if demo.faults else 0


if __name__ == "__main__":
    sys.exit(main())
