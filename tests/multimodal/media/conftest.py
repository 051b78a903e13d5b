# SPDX-License-Identifier: Apache-2.0
"""What the tests of fetched media share."""

from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image, ImageFile

from tiny.http import MediaServer


@pytest.fixture(scope="session")
def running_web() -> Iterator[MediaServer]:
    # One for all, because stopping it takes half a second.
    with MediaServer() as server:
        yield server


@pytest.fixture
def web(running_web: MediaServer, monkeypatch: pytest.MonkeyPatch) -> MediaServer:
    """A web server on loopback, reached directly and asked once per fetch."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    monkeypatch.setenv("VLLM_MEDIA_FETCH_MAX_RETRIES", "1")
    running_web.gets.clear()
    return running_web


@pytest.fixture
def rasterized(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows whenever Pillow is asked for the pixels of a file."""
    Image.init()
    calls: list[str] = []

    def watch(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            calls.append(f"{getattr(owner, '__name__', owner)}.{name}")
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, watched)

    formats = [ImageFile.ImageFile, *ImageFile.ImageFile.__subclasses__()]
    for cls in formats:
        if "load" in vars(cls):
            watch(cls, "load")
    watch(Image, "_getdecoder")
    return calls
