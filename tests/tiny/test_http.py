# SPDX-License-Identifier: Apache-2.0
"""The loopback web server answers what it is told to, and counts."""

import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from urllib.error import HTTPError

import pytest

from tiny.http import MediaServer


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read()


def test_serves_and_counts() -> None:
    with MediaServer() as web:
        url = web.serve("/a.png", b"picture", "image/png")
        with urllib.request.urlopen(url, timeout=30) as answer:
            assert answer.headers["Content-Type"] == "image/png"
            assert answer.read() == b"picture"
        assert get(url) == b"picture"
        assert web.gets == {"/a.png": 2}


@pytest.mark.parametrize("status", [403, 404, 500])
def test_fails_as_told(status: int) -> None:
    with MediaServer() as web:
        url = web.fail("/x", status)
        with pytest.raises(HTTPError) as failure:
            get(url)
        assert failure.value.code == status
        assert web.gets["/x"] == 1


def test_unknown_paths_are_not_found() -> None:
    with MediaServer() as web, pytest.raises(HTTPError) as failure:
        get(web.base_url + "/nothing")
    assert failure.value.code == 404


def test_redirects() -> None:
    with MediaServer() as web:
        url = web.redirect("/old", web.serve("/new", b"here", "text/plain"))
        assert get(url) == b"here"
        assert web.gets == {"/old": 1, "/new": 1}


def test_holds_a_reply_until_told() -> None:
    go = threading.Event()
    with MediaServer() as web, ThreadPoolExecutor() as pool:
        url = web.hold("/slow", b"late", "text/plain", go)
        answer = pool.submit(get, url)
        web.wait_for_gets("/slow", 1)
        # Another path is answered meanwhile.
        assert get(web.serve("/fast", b"soon", "text/plain")) == b"soon"
        assert not answer.done()
        go.set()
        assert answer.result(timeout=30) == b"late"


def test_leaving_lets_held_replies_go() -> None:
    with ThreadPoolExecutor() as pool:
        with MediaServer() as web:
            url = web.hold("/slow", b"late", "text/plain", threading.Event())
            answer = pool.submit(get, url)
            web.wait_for_gets("/slow", 1)
        assert answer.result(timeout=30) == b"late"


def test_waiting_gives_up() -> None:
    with MediaServer() as web, pytest.raises(TimeoutError, match="0 of 1"):
        web.wait_for_gets("/never", 1, timeout=0.01)
