# SPDX-License-Identifier: Apache-2.0
"""Fetching hands out refs, from every kind of URL, and decodes nothing."""

import ast
import asyncio
import base64
import gzip
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
import requests

from tiny.http import MediaServer, Reply
from tiny.media import audio_wav, data_url, huge_png, jpeg, noise, png, video
from vllm.connections import HTTPConnection
from vllm.exceptions import VLLMUnprocessableEntityError, VLLMValidationError
from vllm.multimodal.media import (
    AudioMediaIO,
    ImageMediaIO,
    MediaConnector,
    MediaIO,
    MediaRef,
    VideoMediaIO,
    base,
    connector,
    derive_media_key,
)

MIB = 1 << 20


class Decoder(MediaIO[bytes]):
    """Decodes to the bytes, and notes what is asked of it, and in which thread."""

    def __init__(self, name: str = "a", max_bytes: int | None = None) -> None:
        self.name = name
        self.max_bytes = max_bytes
        self.decodes = 0
        self.reads = 0
        self.threads: set[int] = set()

    def get_decode_spec(self) -> base.DecodeSpec:
        self.threads.add(threading.get_ident())
        return base.DecodeSpec({"decoder": self.name})

    def get_max_bytes(self) -> int | None:
        return self.max_bytes

    def load_bytes(self, data: bytes) -> bytes:
        self.decodes += 1
        return data

    def load_base64(self, media_type: str, data: str) -> bytes:
        return self.load_bytes(base64.b64decode(data))

    def load_file(self, filepath: Path) -> bytes:
        return self.load_bytes(filepath.read_bytes())

    def load_base64_ref(self, media_type: str, data: str) -> MediaRef[bytes]:
        self.threads.add(threading.get_ident())
        return self.load_bytes_ref(base.decode_base64(data))

    def load_file_ref(self, filepath: Path) -> MediaRef[bytes]:
        self.threads.add(threading.get_ident())
        self.reads += 1
        return super().load_file_ref(filepath)


class Connection(HTTPConnection):
    """Notes the timeouts and size caps that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[float | None, int | None]] = []

    def get_bytes(self, url: str, **kwargs: Any) -> bytes:
        self.asked.append((kwargs["timeout"], kwargs["max_bytes"]))
        return super().get_bytes(url, **kwargs)

    async def async_get_bytes(self, url: str, **kwargs: Any) -> bytes:
        self.asked.append((kwargs["timeout"], kwargs["max_bytes"]))
        return await super().async_get_bytes(url, **kwargs)


@pytest.fixture
async def connection() -> AsyncIterator[Connection]:
    made = Connection()
    yield made
    if made._async_client is not None:
        await made._async_client.close()
    if made._sync_client is not None:
        made._sync_client.close()


Fetch = Callable[..., Awaitable[Any]]


@pytest.fixture(params=["sync", "async"])
def fetch(request: pytest.FixtureRequest) -> Fetch:
    """Calls a fetch method of a connector by name, in both of its variants."""

    async def run(made: MediaConnector, method: str, *args: Any, **kwargs: Any) -> Any:
        if request.param == "async":
            return await getattr(made, f"{method}_async")(*args, **kwargs)
        return await asyncio.to_thread(getattr(made, method), *args, **kwargs)

    return run


async def fetch_bytes(fetch: Fetch, made: MediaConnector, url: str) -> bytes:
    return (await fetch(made, "load_from_url", url, Decoder())).data


SINGLE = ["load_from_url", "fetch_image", "fetch_audio", "fetch_video"]


# What comes back


@pytest.mark.parametrize("method", SINGLE)
@pytest.mark.parametrize("scheme", ["data", "http", "file"])
async def test_each_fetch_gives_an_undecoded_ref(
    fetch: Fetch,
    method: str,
    scheme: str,
    connection: Connection,
    web: MediaServer,
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_bytes(b"payload")
    url = {
        "data": data_url(b"payload", "image/png"),
        "http": web.serve("/file", b"payload", "image/png"),
        "file": (tmp_path / "file").as_uri(),
    }[scheme]
    made = MediaConnector(connection, allowed_local_media_path=str(tmp_path))
    decoder = Decoder()
    ref = await fetch(made, method, url, decoder)
    assert isinstance(ref, MediaRef)
    assert ref.data == b"payload"
    assert ref.spec == decoder.get_decode_spec()
    assert ref.key == derive_media_key(b"payload", ref.spec)
    assert not ref.is_decoded
    assert decoder.decodes == 0
    assert ref.decode() == b"payload"
    assert decoder.decodes == 1


@pytest.mark.parametrize(
    ("method", "decoder", "data"),
    [
        ("fetch_image", ImageMediaIO(), jpeg(32, 32)),
        ("fetch_audio", AudioMediaIO(), audio_wav(0.1)),
        ("fetch_video", VideoMediaIO(ImageMediaIO()), video(64, 64, 0.2)),
        ("fetch_image", ImageMediaIO(), noise()),
        ("fetch_audio", AudioMediaIO(), noise()),
        ("fetch_video", VideoMediaIO(ImageMediaIO()), noise()),
        ("fetch_image", ImageMediaIO(), b""),
        ("fetch_audio", AudioMediaIO(), b""),
        ("fetch_video", VideoMediaIO(ImageMediaIO()), b""),
    ],
)
async def test_broken_media_are_fetched_like_good_ones(
    fetch: Fetch, method: str, decoder: MediaIO, data: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    made = MediaConnector(allowed_local_media_path=str(tmp_path))
    refs = [
        await fetch(made, method, url, decoder)
        for url in (data_url(data, "image/png"), path.as_uri())
    ]
    assert [ref.data for ref in refs] == [data, data]
    assert len({ref.key for ref in refs}) == 1
    assert not any(ref.is_decoded for ref in refs)


async def test_too_large_image_fails_the_fetch(fetch: Fetch) -> None:
    url = data_url(huge_png(), "image/png")
    with pytest.raises(ValueError, match="too large"):
        await fetch(MediaConnector(), "fetch_image", url, ImageMediaIO())


# Off the event loop


@pytest.mark.parametrize("scheme", ["data", "http", "file"])
async def test_async_fetch_does_its_work_off_the_event_loop(
    scheme: str,
    connection: Connection,
    web: MediaServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").write_bytes(b"payload")
    url = {
        "data": data_url(b"payload", "image/png"),
        "http": web.serve("/file", b"payload", "image/png"),
        "file": (tmp_path / "file").as_uri(),
    }[scheme]
    hashed: set[int] = set()

    def digest(chunks: Any) -> bytes:
        hashed.add(threading.get_ident())
        return b"digest"

    monkeypatch.setattr(base, "digest_chunks", digest)
    made = MediaConnector(connection, allowed_local_media_path=str(tmp_path))
    one, other = Decoder("a"), Decoder("b")
    await made.load_from_url_async(url, one)
    await made.fetch_video_and_audio_async(url, one, other)
    seen = hashed | one.threads | other.threads
    assert hashed and other.threads
    assert threading.get_ident() not in seen


# Schemes


@pytest.mark.parametrize("prefix", ["data:", "DATA:", "Data:"])
@pytest.mark.parametrize(
    "media_type", ["image/png", "", "image/png;charset=utf-8;name=x"]
)
async def test_data_urls(fetch: Fetch, prefix: str, media_type: str) -> None:
    url = f"{prefix}{media_type};base64,cGF5bG9hZA=="
    assert await fetch_bytes(fetch, MediaConnector(), url) == b"payload"


async def test_base64_is_decoded_once_for_two_decoders(
    fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []
    released = base.decode_base64

    def decode(text: str) -> bytes:
        texts.append(text)
        return released(text)

    for module in (base, connector):
        monkeypatch.setattr(module, "decode_base64", decode)
    data = video(64, 48, seconds=1, fps=8, audio=True)
    decoders = (VideoMediaIO(ImageMediaIO()), AudioMediaIO())
    url = data_url(data, "video/mp4")
    refs = await fetch(MediaConnector(), "fetch_video_and_audio", url, *decoders)
    assert len(texts) == 1
    # One object, not only equal ones.
    assert refs[0].data is refs[1].data
    apart = [io.load_bytes_ref(data).key for io in decoders]
    assert [ref.key for ref in refs] == apart


async def test_text_that_a_decoder_reads_reaches_each_as_it_is(fetch: Fetch) -> None:
    frames = ",".join(base64.b64encode(jpeg(16, 16, n)).decode() for n in range(2))
    url = f"data:video/jpeg;base64,{frames}"
    decoders = [VideoMediaIO(ImageMediaIO()) for _ in range(2)]
    refs = await fetch(MediaConnector(), "fetch_video_and_audio", url, *decoders)
    assert [len(ref.decode()[0]) for ref in refs] == [2, 2]


async def test_media_type_of_a_data_url_reaches_the_decoder(fetch: Fetch) -> None:
    frames = ",".join(base64.b64encode(jpeg(16, 16, n)).decode() for n in range(2))
    url = f"data:video/JPEG;x=y;base64,{frames}"
    decoder = VideoMediaIO(ImageMediaIO())
    ref = await fetch(MediaConnector(), "fetch_video", url, decoder)
    assert ref.decode()[0].shape == (2, 16, 16, 3)


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("data:image/png;base64", ValueError, "missing ','"),
        ("data:image/png,abc", NotImplementedError, "base64"),
        ("data:image/png;BASE16,abc", NotImplementedError, "base64"),
        ("data:image/png;base64,!!!!", ValueError, None),
        ("data:image/png;base64,QUF", ValueError, None),
        ("ftp://127.0.0.1/a", ValueError, "HTTP, data or file"),
        ("a.png", ValueError, "HTTP, data or file"),
        ("", ValueError, "HTTP, data or file"),
        ("/etc/passwd", ValueError, "HTTP, data or file"),
    ],
)
async def test_malformed_urls_fail(
    fetch: Fetch, url: str, error: type[Exception], message: str | None
) -> None:
    with pytest.raises(error, match=message):
        await fetch_bytes(fetch, MediaConnector(), url)


async def test_long_url_is_not_quoted_whole(fetch: Fetch) -> None:
    with pytest.raises(ValueError) as failure:
        await fetch_bytes(fetch, MediaConnector(), "data:" + "A" * 10_000)
    assert len(str(failure.value)) < 200


async def test_http_scheme_in_upper_case(
    fetch: Fetch, connection: Connection, web: MediaServer
) -> None:
    url = web.serve("/Case", b"payload", "image/png").replace("http", "HTTP")
    made = MediaConnector(connection)
    assert await fetch_bytes(fetch, made, url) == b"payload"


@pytest.mark.parametrize("scheme", ["file", "FILE", "File"])
@pytest.mark.parametrize("name", ["plain.png", "a b%20c#d?.png", "ünï.png"])
async def test_file_urls(fetch: Fetch, scheme: str, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"payload")
    made = MediaConnector(allowed_local_media_path=str(tmp_path))
    url = f"{scheme}://{quote(str(tmp_path / name))}"
    assert await fetch_bytes(fetch, made, url) == b"payload"


@pytest.mark.parametrize("way", ["absolute", "dots", "encoded-dots", "link", "folder"])
async def test_files_elsewhere_are_out_of_reach(
    fetch: Fetch, way: str, tmp_path: Path
) -> None:
    allowed, secret = tmp_path / "allowed", tmp_path / "secret"
    allowed.mkdir()
    secret.write_bytes(b"secret")
    (allowed / "link").symlink_to(secret)
    url = {
        "absolute": f"file://{secret}",
        "dots": f"file://{allowed}/../secret",
        "encoded-dots": f"file://{allowed}/%2e%2e/secret",
        "link": f"file://{allowed}/link",
        "folder": f"file://{allowed}",
    }[way]
    made = MediaConnector(allowed_local_media_path=str(allowed))
    decoder = Decoder()
    with pytest.raises(ValueError, match="must be a subpath"):
        await fetch(made, "load_from_url", url, decoder)
    with pytest.raises(ValueError, match="must be a subpath"):
        await fetch(made, "fetch_video_and_audio", url, decoder, Decoder())
    assert decoder.reads == 0


async def test_link_that_stays_inside_is_followed(fetch: Fetch, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"payload")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    made = MediaConnector(allowed_local_media_path=str(tmp_path))
    url = (tmp_path / "link").as_uri()
    assert await fetch_bytes(fetch, made, url) == b"payload"


async def test_no_file_is_allowed_by_default(fetch: Fetch, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"payload")
    with pytest.raises(RuntimeError, match="allowed-local-media-path"):
        await fetch_bytes(fetch, MediaConnector(), (tmp_path / "file").as_uri())


async def test_missing_file_fails(fetch: Fetch, tmp_path: Path) -> None:
    made = MediaConnector(allowed_local_media_path=str(tmp_path))
    with pytest.raises(FileNotFoundError):
        await fetch_bytes(fetch, made, (tmp_path / "missing").as_uri())


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_allowed_path_must_be_a_directory(kind: str, tmp_path: Path) -> None:
    path = tmp_path / kind
    if kind == "file":
        path.write_bytes(b"")
    with pytest.raises(ValueError, match="allowed-local-media-path"):
        MediaConnector(allowed_local_media_path=str(path))


def test_a_directory_is_looked_up_for_the_first_connector_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    resolve = Path.resolve
    monkeypatch.setattr(Path, "resolve", lambda p: looks.append(p) or resolve(p))
    for _ in range(3):
        MediaConnector(allowed_local_media_path=str(tmp_path))
    assert looks == [tmp_path]


async def test_a_directory_is_where_its_link_leads_now(
    fetch: Fetch, tmp_path: Path
) -> None:
    link = tmp_path / "media"
    urls = []
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(name.encode())
        urls.append((tmp_path / name / "file").as_uri())
    link.symlink_to("old")
    made = MediaConnector(allowed_local_media_path=str(link))
    assert await fetch_bytes(fetch, made, urls[0]) == b"old"
    link.unlink()
    link.symlink_to("new")
    for either in (made, MediaConnector(allowed_local_media_path=str(link))):
        assert await fetch_bytes(fetch, either, urls[1]) == b"new"
        with pytest.raises(ValueError, match="must be a subpath"):
            await fetch_bytes(fetch, either, urls[0])


def test_a_connector_takes_no_decode_settings() -> None:
    with pytest.raises(TypeError, match="media_io_kwargs"):
        MediaConnector(media_io_kwargs={})  # type: ignore[call-arg]


# HTTP


async def test_only_allowed_domains_are_asked(
    fetch: Fetch, connection: Connection, web: MediaServer
) -> None:
    url = web.serve("/a", b"payload", "image/png")
    refused = MediaConnector(connection, allowed_media_domains=["example.org"])
    with pytest.raises(ValueError, match="allowed domains"):
        await fetch_bytes(fetch, refused, url)
    with pytest.raises(ValueError, match="allowed domains"):
        await fetch(refused, "fetch_video_and_audio", url, Decoder(), Decoder())
    assert web.gets["/a"] == 0
    allowed = MediaConnector(connection, allowed_media_domains=["127.0.0.1"])
    assert await fetch_bytes(fetch, allowed, url) == b"payload"


@pytest.mark.parametrize("allowed", ["0", "1"])
async def test_redirects_are_followed_where_allowed(
    fetch: Fetch,
    allowed: str,
    connection: Connection,
    web: MediaServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_MEDIA_URL_ALLOW_REDIRECTS", allowed)
    url = web.redirect("/old", web.serve("/new", b"payload", "image/png"))
    data = await fetch_bytes(fetch, MediaConnector(connection), url)
    assert data == (b"payload" if allowed == "1" else b"")
    assert web.gets["/new"] == int(allowed)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
async def test_refused_for_good_is_unprocessable(
    fetch: Fetch, status: int, connection: Connection, web: MediaServer
) -> None:
    url = web.fail("/a", status)
    made = MediaConnector(connection)
    for method, decoders in (
        ("fetch_image", (Decoder(),)),
        ("fetch_video_and_audio", (Decoder(), Decoder())),
    ):
        with pytest.raises(VLLMUnprocessableEntityError, match=f"HTTP {status}"):
            await fetch(made, method, url, *decoders)


@pytest.mark.parametrize("status", [408, 429, 500, 503])
async def test_refused_for_now_stays_an_http_error(
    fetch: Fetch, status: int, connection: Connection, web: MediaServer
) -> None:
    url = web.fail("/a", status)
    with pytest.raises((requests.HTTPError, aiohttp.ClientResponseError)) as failure:
        await fetch_bytes(fetch, MediaConnector(connection), url)
    assert str(status) in str(failure.value)
    assert web.gets["/a"] == 1


@pytest.mark.parametrize("zipped", [False, True], ids=["announced", "streamed"])
@pytest.mark.parametrize("limit", [0, 1], ids=["decoder", "server"])
async def test_downloads_are_capped(
    fetch: Fetch,
    zipped: bool,
    limit: int,
    connection: Connection,
    web: MediaServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB", str(limit))
    body = bytes(MIB + 1)
    # Zipped, only the stream shows how large it is.
    reply = Reply(gzip.compress(body), headers={"Content-Encoding": "gzip"})
    url = web.add("/a", reply if zipped else Reply(body))
    decoder = Decoder(max_bytes=None if limit else MIB)
    made = MediaConnector(connection)
    error = VLLMUnprocessableEntityError if limit else VLLMValidationError
    with pytest.raises(error, match="exceed"):
        await fetch(made, "fetch_audio", url, decoder)
    fits = web.serve("/b", bytes(MIB), "audio/wav")
    assert len((await fetch(made, "fetch_audio", fits, decoder)).data) == MIB


async def test_oversized_audio_fails_the_fetch_by_every_way(
    fetch: Fetch,
    connection: Connection,
    web: MediaServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_MAX_AUDIO_CLIP_FILESIZE_MB", "1")
    body = bytes(MIB + 1)
    (tmp_path / "file").write_bytes(body)
    made = MediaConnector(connection, allowed_local_media_path=str(tmp_path))
    video_io = VideoMediaIO(ImageMediaIO())
    for url in (
        data_url(body, "audio/wav"),
        web.serve("/a", body, "audio/wav"),
        (tmp_path / "file").as_uri(),
    ):
        with pytest.raises(VLLMValidationError, match="size exceeded"):
            await fetch(made, "fetch_audio", url, AudioMediaIO())
        with pytest.raises(VLLMValidationError, match="size exceeded"):
            await fetch(made, "fetch_video_and_audio", url, video_io, AudioMediaIO())


@pytest.mark.parametrize(
    ("method", "decoders", "variable"),
    [
        ("fetch_image", 1, "VLLM_IMAGE_FETCH_TIMEOUT"),
        ("fetch_audio", 1, "VLLM_AUDIO_FETCH_TIMEOUT"),
        ("fetch_video", 1, "VLLM_VIDEO_FETCH_TIMEOUT"),
        ("fetch_video_and_audio", 2, "VLLM_VIDEO_FETCH_TIMEOUT"),
    ],
)
async def test_each_fetch_has_the_timeout_of_its_modality(
    fetch: Fetch,
    method: str,
    decoders: int,
    variable: str,
    connection: Connection,
    web: MediaServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(variable, "77")
    url = web.serve("/a", b"payload", "video/mp4")
    await fetch(
        MediaConnector(connection), method, url, *(Decoder() for _ in range(decoders))
    )
    assert connection.asked == [(77, None)]


# One fetch, two decoders


@pytest.mark.parametrize("scheme", ["data", "http", "file"])
async def test_video_and_audio_come_from_one_read(
    fetch: Fetch,
    scheme: str,
    connection: Connection,
    web: MediaServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[str] = []
    original = Path.read_bytes

    def read_bytes(self: Path) -> bytes:
        reads.append(self.name)
        return original(self)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    (tmp_path / "file").write_bytes(b"payload")
    url = {
        "data": data_url(b"payload", "video/mp4"),
        "http": web.serve("/file", b"payload", "video/mp4"),
        "file": (tmp_path / "file").as_uri(),
    }[scheme]
    made = MediaConnector(connection, allowed_local_media_path=str(tmp_path))
    video_io, audio_io = Decoder("video"), Decoder("audio")
    refs = await fetch(made, "fetch_video_and_audio", url, video_io, audio_io)
    assert [ref.data for ref in refs] == [b"payload"] * 2
    assert [ref.spec for ref in refs] == [
        video_io.get_decode_spec(),
        audio_io.get_decode_spec(),
    ]
    assert refs[0].key != refs[1].key
    assert not any(ref.is_decoded for ref in refs)
    assert video_io.decodes == audio_io.decodes == 0
    assert web.gets["/file"] == (scheme == "http")
    assert reads == (["file"] if scheme == "file" else [])
    if scheme != "data":
        assert refs[0].data is refs[1].data


async def test_video_and_its_sound_decode(fetch: Fetch) -> None:
    url = data_url(video(64, 64, 0.5, audio=True), "video/mp4")
    picture, sound = await fetch(
        MediaConnector(),
        "fetch_video_and_audio",
        url,
        VideoMediaIO(ImageMediaIO(), num_frames=2),
        AudioMediaIO(),
    )
    assert picture.decode()[0].shape == (2, 64, 64, 3)
    assert sound.decode()[1] == 16000


@pytest.mark.parametrize(
    ("limits", "strictest"),
    [
        ((None, None), None),
        ((None, 10), 10),
        ((10, None), 10),
        ((10, 20), 10),
        ((20, 10), 10),
        ((0, None), 0),
    ],
)
async def test_the_strictest_size_limit_holds(
    fetch: Fetch,
    limits: tuple[int | None, int | None],
    strictest: int | None,
    connection: Connection,
    web: MediaServer,
) -> None:
    url = web.serve("/a", b"", "video/mp4")
    decoders = [Decoder(max_bytes=limit) for limit in limits]
    await fetch(MediaConnector(connection), "fetch_video_and_audio", url, *decoders)
    assert [limit for _, limit in connection.asked] == [strictest]


# Plugins


class Signing(MediaConnector):
    """A plugin with a scheme of its own, in the one place where URLs are loaded."""

    def load_from_url(self, url: str, media_io: MediaIO, **kwargs: Any) -> Any:
        return super().load_from_url(self.signed(url), media_io, **kwargs)

    async def load_from_url_async(
        self, url: str, media_io: MediaIO, **kwargs: Any
    ) -> Any:
        return await super().load_from_url_async(self.signed(url), media_io, **kwargs)

    def signed(self, url: str) -> str:
        return url.replace("store:", "data:image/png;base64,")


@pytest.mark.parametrize("method", SINGLE)
async def test_a_plugin_may_change_how_urls_are_loaded(
    fetch: Fetch, method: str
) -> None:
    ref = await fetch(Signing(), method, "store:cGF5bG9hZA==", Decoder())
    assert ref.data == b"payload"


async def test_the_shared_fetch_goes_through_the_plugin_too(fetch: Fetch) -> None:
    url, decoders = "store:cGF5bG9hZA==", (Decoder("a"), Decoder("b"))
    refs = await fetch(Signing(), "fetch_video_and_audio", url, *decoders)
    assert [ref.data for ref in refs] == [b"payload"] * 2
    assert [ref.decode() for ref in refs] == [b"payload"] * 2


# Disk cache


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("VLLM_MEDIA_CACHE", str(folder))
    monkeypatch.setenv("VLLM_MEDIA_CACHE_TTL_HOURS", "1")
    monkeypatch.setenv("VLLM_MEDIA_CACHE_MAX_SIZE_MB", "1")
    return folder


def make_older(folder: Path, hours: float) -> None:
    for path in folder.iterdir():
        then = path.stat().st_mtime - hours * 3600
        os.utime(path, (then, then))


async def test_cached_download_is_not_asked_for_again(
    fetch: Fetch, disk: Path, connection: Connection, web: MediaServer
) -> None:
    url = web.serve("/a.png", b"payload", "image/png")
    made = MediaConnector(connection)
    assert await fetch_bytes(fetch, made, url) == b"payload"
    assert await fetch_bytes(fetch, made, url) == b"payload"
    # Another connector, and other decoders, read the same file.
    refs = await fetch(
        MediaConnector(connection), "fetch_video_and_audio", url, Decoder(), Decoder()
    )
    assert [ref.data for ref in refs] == [b"payload"] * 2
    assert web.gets["/a.png"] == 1


async def test_expired_download_is_asked_for_again(
    fetch: Fetch, disk: Path, connection: Connection, web: MediaServer
) -> None:
    url = web.serve("/a.png", b"before", "image/png")
    made = MediaConnector(connection)
    await fetch_bytes(fetch, made, url)
    make_older(disk, hours=2)
    web.serve("/a.png", b"after", "image/png")
    assert await fetch_bytes(fetch, made, url) == b"after"
    assert web.gets["/a.png"] == 2


async def test_least_recently_used_download_makes_room(
    fetch: Fetch, disk: Path, connection: Connection, web: MediaServer
) -> None:
    body = bytes(400 << 10)
    urls = [web.serve(f"/{name}", body, "image/png") for name in "abc"]
    made = MediaConnector(connection)
    for url in (*urls[:2], urls[0]):
        make_older(disk, hours=0.1)
        await fetch_bytes(fetch, made, url)
    make_older(disk, hours=0.1)
    # The third does not fit beside the others, and the second was used least.
    await fetch_bytes(fetch, made, urls[2])
    await fetch_bytes(fetch, made, urls[0])
    assert web.gets == {"/a": 1, "/b": 1, "/c": 1}
    await fetch_bytes(fetch, made, urls[1])
    assert web.gets["/b"] == 2


async def test_data_and_file_urls_leave_the_disk_cache_alone(
    fetch: Fetch, disk: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"payload")
    made = MediaConnector(allowed_local_media_path=str(tmp_path))
    for url in (data_url(b"payload", "x/y"), (tmp_path / "file").as_uri()):
        await fetch_bytes(fetch, made, url)
    assert list(disk.iterdir()) == []


# Layering


def test_connector_knows_nothing_of_decoding() -> None:
    assert connector.__file__ is not None
    tree = ast.parse(Path(connector.__file__).read_text())
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            names |= {f"{module}.{alias.name}" for alias in node.names} | {module}
    parts = {part for name in names for part in name.split(".")}
    decoding = {"image", "audio", "video", "PIL", "av", "numpy", "cv2", "soundfile"}
    assert not parts & decoding


@pytest.mark.parametrize("data", [png(16, 16)])
async def test_embeddings_are_still_fetched_decoded(fetch: Fetch, data: bytes) -> None:
    import torch

    from vllm.utils.serial_utils import tensor2base64

    embedding = torch.arange(6.0).reshape(2, 3)
    made = MediaConnector()
    for method in ("fetch_image_embedding", "fetch_audio_embedding"):
        got = await fetch(made, method, tensor2base64(embedding))
        assert torch.equal(got, embedding)
