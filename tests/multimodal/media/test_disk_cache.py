# SPDX-License-Identifier: Apache-2.0
"""Two processes that share one folder of downloads."""

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiny.http import MediaServer
from vllm.multimodal.media import ImageMediaIO, MediaConnector

ROOT = Path(__file__).resolve().parents[3]
# For each URL on its input, the digest of what it got, or of the error.
PEER = """
import hashlib, sys
from vllm.multimodal.media import ImageMediaIO, MediaConnector
connector = MediaConnector()
print("ready", file=sys.stderr, flush=True)
for url in sys.stdin:
    data = connector.fetch_image(url.strip(), ImageMediaIO()).data
    print(hashlib.sha256(data).hexdigest(), file=sys.stderr, flush=True)
"""


class Peer:
    """Another process with the same settings, which fetches what it is told to."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PEER],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            # Logs go to the standard output, so the answers do not.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._answer("ready")

    def _answer(self, *expected: str) -> str:
        assert self.process.stderr is not None
        said = []
        for line in self.process.stderr:
            said.append(line.rstrip("\n"))
            if said[-1] in expected or (not expected and len(said[-1]) == 64):
                return said[-1]
        raise AssertionError("the other process ended:\n" + "\n".join(said))

    def ask(self, url: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(url + "\n")
        self.process.stdin.flush()

    def fetch(self, url: str) -> str:
        self.ask(url)
        return self._answer()

    def answer(self) -> str:
        return self._answer()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module")
def peer(folder: Path) -> Iterator[Peer]:
    with pytest.MonkeyPatch.context() as patch:
        settle(patch, folder)
        for name in ("NO_PROXY", "no_proxy"):
            patch.setenv(name, "127.0.0.1")
        made = Peer()
    yield made
    made.process.communicate()
    assert made.process.returncode == 0


def settle(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setenv("VLLM_MEDIA_CACHE", str(folder))
    patch.setenv("VLLM_MEDIA_CACHE_TTL_HOURS", "1")
    patch.setenv("VLLM_MEDIA_CACHE_MAX_SIZE_MB", "1")


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> MediaConnector:
    """This process' connector; the folder is empty."""
    settle(monkeypatch, folder)
    for path in folder.iterdir():
        path.unlink()
    return MediaConnector()


def fetch(connector: MediaConnector, url: str) -> str:
    return digest(connector.fetch_image(url, ImageMediaIO()).data)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_older(folder: Path, hours: float) -> None:
    for path in folder.iterdir():
        then = path.stat().st_mtime - hours * 3600
        os.utime(path, (then, then))


def test_what_one_has_downloaded_the_other_reads(
    here: MediaConnector, peer: Peer, web: MediaServer
) -> None:
    for path, fetches in (
        ("/mine", (lambda url: fetch(here, url), peer.fetch)),
        ("/theirs", (peer.fetch, lambda url: fetch(here, url))),
    ):
        url = web.serve(path, path.encode(), "image/png")
        assert [get(url) for get in fetches] == [digest(path.encode())] * 2
        assert web.gets[path] == 1


def test_what_has_expired_is_downloaded_by_one_of_them(
    here: MediaConnector, peer: Peer, web: MediaServer, folder: Path
) -> None:
    url = web.serve("/a", b"before", "image/png")
    assert fetch(here, url) == digest(b"before")
    make_older(folder, hours=2)
    web.serve("/a", b"after", "image/png")
    assert peer.fetch(url) == digest(b"after")
    assert fetch(here, url) == digest(b"after")
    assert web.gets["/a"] == 2


def test_one_makes_room_by_what_both_used_least(
    here: MediaConnector, peer: Peer, web: MediaServer, folder: Path
) -> None:
    bodies = {name: name.encode() * (400 << 10) for name in "abc"}
    urls = {name: web.serve(f"/{name}", bodies[name], "image/png") for name in bodies}
    fetch(here, urls["a"])
    make_older(folder, hours=0.1)
    fetch(here, urls["b"])
    make_older(folder, hours=0.1)
    # The other one's use counts, so what goes is the second.
    assert peer.fetch(urls["a"]) == digest(bodies["a"])
    make_older(folder, hours=0.1)
    assert peer.fetch(urls["c"]) == digest(bodies["c"])
    assert web.gets == {"/a": 1, "/b": 1, "/c": 1}
    assert fetch(here, urls["a"]) == digest(bodies["a"])
    assert fetch(here, urls["b"]) == digest(bodies["b"])
    assert web.gets == {"/a": 1, "/b": 2, "/c": 1}


def test_both_download_at_once(
    here: MediaConnector, peer: Peer, web: MediaServer, folder: Path
) -> None:
    body = b"payload" * 1000
    go = threading.Event()
    url = web.hold("/a", body, "image/png", go)
    peer.ask(url)
    mine: list[str] = []
    thread = threading.Thread(target=lambda: mine.append(fetch(here, url)))
    thread.start()
    web.wait_for_gets("/a", 2)
    go.set()
    thread.join()
    assert [*mine, peer.answer()] == [digest(body)] * 2
    (kept,) = folder.iterdir()
    assert kept.read_bytes() == body


def test_both_while_there_is_never_room(
    here: MediaConnector, peer: Peer, web: MediaServer
) -> None:
    """Each evicts what the other reads, and still gets every payload whole."""
    bodies = {f"/{n}": bytes([n]) * (300 << 10) for n in range(5)}
    urls = {path: web.serve(path, body, "image/png") for path, body in bodies.items()}
    for turn in range(20):
        mine, theirs = (f"/{(turn * step) % 5}" for step in (2, 3))
        peer.ask(urls[theirs])
        assert fetch(here, urls[mine]) == digest(bodies[mine])
        assert peer.answer() == digest(bodies[theirs])


def test_evicted_at_the_moment_of_its_use(
    here: MediaConnector, web: MediaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = web.serve("/a", b"payload", "image/png")
    fetch(here, url)
    touch = Path.touch

    def evicted_first(path: Path, *args: object) -> None:
        path.unlink()
        touch(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "touch", evicted_first)
        assert fetch(here, url) == digest(b"payload")
    assert web.gets["/a"] == 2
    # Nothing empty is left behind to be taken for it.
    assert fetch(here, url) == digest(b"payload")
    assert web.gets["/a"] == 2
