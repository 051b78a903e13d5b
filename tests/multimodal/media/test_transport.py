# SPDX-License-Identifier: Apache-2.0
"""How bytes come over HTTP: how much of them, from whom, how long, and how often."""

import asyncio
import http.server
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import requests

from tiny.http import MediaServer, Reply
from tiny.media import audio_wav, jpeg, video
from vllm import connections
from vllm.connections import HTTPConnection
from vllm.exceptions import VLLMUnprocessableEntityError, VLLMValidationError
from vllm.multimodal.media import (
    AudioMediaIO,
    ImageMediaIO,
    MediaConnector,
    VideoMediaIO,
)
from vllm.upstream.multimodal.media import connector as upstream
from vllm.upstream.multimodal.media.image import ImageMediaIO as StockImageMediaIO

PATIENCE = 60
MIB = 1 << 20

Fetch = Callable[..., Awaitable[Any]]


@pytest.fixture
async def connection() -> AsyncIterator[HTTPConnection]:
    made = HTTPConnection()
    yield made
    if made._async_client is not None:
        await made._async_client.close()
    if made._sync_client is not None:
        made._sync_client.close()


@pytest.fixture(params=["sync", "async"])
def fetch(request: pytest.FixtureRequest) -> Fetch:
    """Calls a fetch method of a connector by name, in both of its variants."""

    async def run(made: MediaConnector, method: str, *args: Any) -> Any:
        if request.param == "async":
            return await getattr(made, f"{method}_async")(*args)
        return await asyncio.to_thread(getattr(made, method), *args)

    return run


# How much


class Pouring:
    """A server that announces no size and pours out one MiB after the other."""

    def __init__(self, total: int) -> None:
        self.sent = 0
        self.ended = threading.Event()
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                try:
                    while owner.sent < total:
                        self.wfile.write(bytes(MIB))
                        owner.sent += MIB
                except ConnectionError:
                    self.close_connection = True
                finally:
                    owner.ended.set()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/endless"


@pytest.fixture
def pouring(web: MediaServer) -> Iterator[Pouring]:
    # Far more than the buffers on the way hold.
    made = Pouring(total=512 * MIB)
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.mark.parametrize("limit", ["server", "decoder"])
async def test_a_download_ends_at_the_cap(
    fetch: Fetch,
    limit: str,
    pouring: Pouring,
    connection: HTTPConnection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(
        "VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB", "2" if limit == "server" else "0"
    )
    monkeypatch.setenv("VLLM_MAX_AUDIO_CLIP_FILESIZE_MB", "2")
    made = MediaConnector(connection)
    with pytest.raises((VLLMUnprocessableEntityError, VLLMValidationError)):
        await fetch(made, "fetch_audio", pouring.url, AudioMediaIO())
    assert await asyncio.to_thread(pouring.ended.wait, PATIENCE)
    assert pouring.sent < 512 * MIB


async def test_a_shared_download_ends_at_the_strictest_cap(
    fetch: Fetch,
    pouring: Pouring,
    connection: HTTPConnection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB", "0")
    monkeypatch.setenv("VLLM_MAX_AUDIO_CLIP_FILESIZE_MB", "2")
    decoders = VideoMediaIO(ImageMediaIO()), AudioMediaIO()
    assert decoders[0].get_max_bytes() is None
    made = MediaConnector(connection)
    with pytest.raises(VLLMValidationError):
        await fetch(made, "fetch_video_and_audio", pouring.url, *decoders)
    assert await asyncio.to_thread(pouring.ended.wait, PATIENCE)
    assert pouring.sent < 512 * MIB


# From whom


async def test_shared_fetch_is_one_get(
    fetch: Fetch, web: MediaServer, connection: HTTPConnection
) -> None:
    clip = video(64, 48, 0.5, audio=True)
    url = web.serve("/clip", clip, "video/mp4")
    refs = await fetch(
        MediaConnector(connection),
        "fetch_video_and_audio",
        url,
        VideoMediaIO(ImageMediaIO()),
        AudioMediaIO(),
    )
    assert web.gets["/clip"] == 1
    assert refs[0].data is refs[1].data


@pytest.mark.parametrize(
    "path", ["/a%20b", "/a%2Fb", "/%C3%BC.png", "/a+b", "/a?q=%26x&y=1%202", "/a%25b"]
)
async def test_percent_encoding_reaches_the_server_as_it_was_sent(
    fetch: Fetch, path: str, web: MediaServer, connection: HTTPConnection
) -> None:
    url = web.serve(path, jpeg(16, 16), "image/jpeg")
    ref = await fetch(MediaConnector(connection), "fetch_image", url, ImageMediaIO())
    assert ref.data == jpeg(16, 16)
    assert web.gets[path] == 1


@pytest.mark.parametrize(
    "url",
    [
        "http://allowed.example@127.0.0.1/a",
        "http://allowed.example:x@127.0.0.1/a",
        "http://127.0.0.1\\@allowed.example/a",
        "http://127.0.0.1#@allowed.example/a",
        "http://allowed.example.127.0.0.1.nip.example/a",
        "http://sub.allowed.example/a",
        "HTTP://127.0.0.1/a",
    ],
)
async def test_no_spelling_gets_round_the_allowed_domains(
    fetch: Fetch, url: str
) -> None:
    class NoConnection(HTTPConnection):
        def get_response(self, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("a forbidden server was asked")

        get_async_response = get_response

    made = MediaConnector(NoConnection(), allowed_media_domains=["allowed.example"])
    with pytest.raises(ValueError, match="allowed domains"):
        await fetch(made, "fetch_image", url, ImageMediaIO())


async def test_an_allowed_domain_may_be_written_in_upper_case(
    fetch: Fetch, web: MediaServer, connection: HTTPConnection
) -> None:
    url = web.serve("/a", jpeg(16, 16), "image/jpeg").replace("127.0.0.1", "LOCALHOST")
    made = MediaConnector(connection, allowed_media_domains=["localhost"])
    ref = await fetch(made, "fetch_image", url, ImageMediaIO())
    assert ref.data == jpeg(16, 16)


@pytest.mark.parametrize("follow", ["0", "1"])
async def test_an_allowed_server_can_send_elsewhere_unless_redirects_are_off(
    fetch: Fetch,
    follow: str,
    web: MediaServer,
    connection: HTTPConnection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in stock vLLM: the domain is that of the URL in the request."""
    monkeypatch.setenv("VLLM_MEDIA_URL_ALLOW_REDIRECTS", follow)
    elsewhere = web.serve("/elsewhere", jpeg(16, 16), "image/jpeg")
    url = web.redirect("/moved", elsewhere).replace("127.0.0.1", "localhost")
    domains = ["localhost"]
    stock = upstream.MediaConnector(
        connection=connection, allowed_media_domains=domains
    )
    with pytest.raises(ValueError, match="allowed domains"):
        stock.load_from_url(elsewhere, StockImageMediaIO())

    made = MediaConnector(connection, allowed_media_domains=domains)
    ref = await fetch(made, "fetch_image", url, ImageMediaIO())
    assert ref.data == (jpeg(16, 16) if follow == "1" else b"")
    assert web.gets["/elsewhere"] == int(follow)
    if follow == "1":
        loaded = await asyncio.to_thread(stock.load_from_url, url, StockImageMediaIO())
        assert loaded.original_bytes == ref.data


# How long, and how often


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, which are not waited for."""
    made: list[float] = []

    async def pause(seconds: float) -> None:
        made.append(seconds)

    def replaced(module: Any, sleep: Any) -> Any:
        return SimpleNamespace(**{**vars(module), "sleep": sleep})

    monkeypatch.setattr(connections, "time", replaced(connections.time, made.append))
    monkeypatch.setattr(connections, "asyncio", replaced(asyncio, pause))
    return made


@pytest.mark.parametrize("status", [500, 503])
async def test_a_server_s_failure_is_tried_again(
    fetch: Fetch,
    status: int,
    web: MediaServer,
    connection: HTTPConnection,
    pauses: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_MEDIA_FETCH_MAX_RETRIES", "3")
    url = web.fail("/down", status)
    with pytest.raises((requests.HTTPError, aiohttp.ClientResponseError)):
        await fetch(MediaConnector(connection), "fetch_image", url, ImageMediaIO())
    assert web.gets["/down"] == 3 and len(pauses) == 2


@pytest.mark.parametrize("status", [400, 404, 408, 429])
async def test_a_client_s_mistake_is_not_tried_again(
    fetch: Fetch,
    status: int,
    web: MediaServer,
    connection: HTTPConnection,
    pauses: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_MEDIA_FETCH_MAX_RETRIES", "3")
    url = web.fail("/wrong", status)
    with pytest.raises(Exception, match=str(status)):
        await fetch(MediaConnector(connection), "fetch_image", url, ImageMediaIO())
    assert web.gets["/wrong"] == 1 and pauses == []


async def test_a_fetch_recovers(
    fetch: Fetch,
    web: MediaServer,
    connection: HTTPConnection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_MEDIA_FETCH_MAX_RETRIES", "3")
    url = web.fail("/shaky", 503)

    def mend(*_: Any) -> None:
        web.add("/shaky", Reply(audio_wav(0.1), "audio/wav"))

    async def mend_async(*_: Any) -> None:
        mend()

    for name, sleep in (("time", mend), ("asyncio", mend_async)):
        module = getattr(connections, name)
        replaced = SimpleNamespace(**{**vars(module), "sleep": sleep})
        monkeypatch.setattr(connections, name, replaced)
    made = MediaConnector(connection)
    ref = await fetch(made, "fetch_audio", url, AudioMediaIO())
    assert ref.data == audio_wav(0.1)
    assert web.gets["/shaky"] == 2


@pytest.mark.parametrize("retries", [1, 2])
async def test_a_silent_server_is_given_up(
    fetch: Fetch,
    retries: int,
    web: MediaServer,
    connection: HTTPConnection,
    pauses: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_MEDIA_FETCH_MAX_RETRIES", str(retries))
    monkeypatch.setenv("VLLM_IMAGE_FETCH_TIMEOUT", "1")
    monkeypatch.setattr(connections, "_RETRY_BACKOFF_FACTOR", 1)
    answer = threading.Event()
    url = web.hold("/silent", jpeg(16, 16), "image/jpeg", until=answer)
    try:
        with pytest.raises((TimeoutError, requests.Timeout)):
            await fetch(MediaConnector(connection), "fetch_image", url, ImageMediaIO())
    finally:
        answer.set()
    assert web.gets["/silent"] == retries and len(pauses) == retries - 1
