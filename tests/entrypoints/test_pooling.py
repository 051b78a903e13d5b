# SPDX-License-Identifier: Apache-2.0
"""Pooling requests read their media off the event loop."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from vllm.entrypoints.pooling.base.serving import PoolingBaseServing


class IOProcessor:
    """Makes requests and renders them, and notes on which threads."""

    def __init__(self, executor: ThreadPoolExecutor, requests: list[str]) -> None:
        self.renderer = SimpleNamespace(_executor=executor)
        self.requests = requests
        self.made_on: list[str] = []

    def get_request_factory_online(self, ctx: Any) -> list[str]:
        self.made_on.append(threading.current_thread().name)
        if self.requests == ["broken"]:
            raise ValueError("no image")
        return self.requests

    async def render_async(self, request: str) -> str:
        return f"rendered {request}"


class Serving(PoolingBaseServing):
    """No more than what a route has to bring."""

    def get_io_processor(self, *args: Any) -> Any:
        raise NotImplementedError

    def _build_response(self, *args: Any) -> Any:
        raise NotImplementedError


async def preprocess(multimodal: bool, *requests: str) -> tuple[IOProcessor, Any]:
    serving: Any = object.__new__(Serving)
    serving.model_config = SimpleNamespace(is_multimodal_model=multimodal)
    ctx = SimpleNamespace()
    with ThreadPoolExecutor(1, thread_name_prefix="renderer") as executor:
        processor = IOProcessor(executor, list(requests))
        await serving._preprocessing(processor, ctx)
    return processor, ctx


@pytest.mark.parametrize("multimodal", [True, False])
async def test_requests_are_made_off_the_event_loop(multimodal: bool) -> None:
    processor, ctx = await preprocess(multimodal, "one", "two")
    assert ctx.engine_inputs == ["rendered one", "rendered two"]
    (thread,) = processor.made_on
    # Text alone is not worth another thread.
    assert thread.startswith("renderer") == multimodal


async def test_errors_are_raised() -> None:
    with pytest.raises(ValueError, match="no image"):
        await preprocess(True, "broken")
    with pytest.raises(ValueError, match="at least one prompt"):
        await preprocess(True)
