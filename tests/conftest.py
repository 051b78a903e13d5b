# SPDX-License-Identifier: Apache-2.0
"""Fast tests first, so that a mistake shows before a model is loaded."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tiny.http import MediaServer

if TYPE_CHECKING:
    from vllm.renderers.base import BaseRenderer

# Everything that the tests need is made here.
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def _cost(item: pytest.Item) -> int:
    if item.get_closest_marker("serving") or "serving" in item.path.parts:
        return 2
    slow = ("engine", "sweep")
    return int(any(item.get_closest_marker(name) for name in slow))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_cost)


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


@pytest.fixture(scope="session")
def omni_renderer() -> "Iterator[BaseRenderer]":
    """The tiny Omni model's renderer; most tests want `renderer`."""
    yield from _made()


@pytest.fixture(scope="session")
def uncached_omni_renderer() -> "Iterator[BaseRenderer]":
    yield from _made(mm_processor_cache_gb=0)


@pytest.fixture
def renderer(omni_renderer: "BaseRenderer") -> "BaseRenderer":
    """A renderer whose caches are empty."""
    return _emptied(omni_renderer)


@pytest.fixture
def uncached_renderer(uncached_omni_renderer: "BaseRenderer") -> "BaseRenderer":
    """A renderer that has no processor cache."""
    return _emptied(uncached_omni_renderer)


def _made(**settings: Any) -> "Iterator[BaseRenderer]":
    from tests import harness

    made = harness.make_renderer(**settings)
    yield made
    made.shutdown()


def _emptied(renderer: "BaseRenderer") -> "BaseRenderer":
    renderer.clear_mm_cache()
    if renderer._mm_processor_only_cache is not None:
        renderer._mm_processor_only_cache.clear_cache()
    return renderer
