# SPDX-License-Identifier: Apache-2.0
"""What the tests of request processing share: decodes under control, real renderers.

Importing it imports vLLM, so conftest does that inside of fixtures.
"""

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY

from tests.omni import (
    chat,
    chat_async,
    data_part,
    make_renderer,
    part,
    plain,
    prompt_of,
    same,
)
from tiny import media
from vllm.multimodal.media import DecodeSpec, ImageMediaIO, MediaRef, VideoMediaIO
from vllm.multimodal.media.executor import global_thread_pool
from vllm.multimodal.media.metrics import EncodedBytes
from vllm.multimodal.processing import ProcessorInputs
from vllm.multimodal.processing.context import TimingContext
from vllm.renderers.base import BaseRenderer

__all__ = [
    "chat",
    "chat_async",
    "data_part",
    "make_renderer",
    "part",
    "plain",
    "prompt_of",
    "same",
]

PATIENCE = 60
"""Seconds after which a wait for something that must happen gives up."""


class Decoder:
    """A decode that counts its calls, and that can be held back or made to fail."""

    def __init__(
        self, result: Any = None, *, error: Exception | None = None, held: bool = False
    ) -> None:
        self.result = result
        self.error = error
        self.threads: list[int] = []
        self.began = threading.Event()
        self.ended = threading.Event()
        self.go = threading.Event()
        if not held:
            self.go.set()

    @property
    def calls(self) -> int:
        return len(self.threads)

    def __call__(self) -> Any:
        self.threads.append(threading.get_ident())
        self.began.set()
        try:
            assert self.go.wait(PATIENCE), "a held decode was never let go"
            if self.error is not None:
                raise self.error
            return self.result
        finally:
            self.ended.set()

    def ref(self, data: bytes, **settings: object) -> MediaRef:
        return MediaRef(self, data, DecodeSpec(settings))


class Gate:
    """Holds whoever comes through it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go = threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self.go.wait(PATIENCE), "nobody opened the gate"


def gated(target: Any, name: str, patch: pytest.MonkeyPatch) -> Gate:
    """A gate before the method `name` of the object `target`."""
    gate = Gate()
    method = getattr(target, name)

    def through(*args: Any, **kwargs: Any) -> Any:
        gate.wait()
        return method(*args, **kwargs)

    patch.setattr(target, name, through)
    return gate


@cache
def image_bytes(seed: int = 0) -> bytes:
    return media.jpeg(96, 64, seed=seed)


@cache
def video_bytes(seed: int = 0, audio: bool = False) -> bytes:
    return media.video(64, 48, seconds=1, fps=8, seed=seed, audio=audio)


@cache
def decoded_video(seed: int = 0) -> tuple[np.ndarray, dict[str, Any]]:
    return VideoMediaIO(ImageMediaIO()).load_bytes(video_bytes(seed))


def result_of(modality: str, seed: int = 0) -> Any:
    """What decoding an item of `modality` gives."""
    if modality == "image":
        return media.picture(96, 64, seed=seed)
    if modality == "video":
        return decoded_video(seed)
    return media.wave(0.5, rate=16000, seed=seed)[:, 0], 16000.0


def decoder_of(modality: str, seed: int = 0, *, held: bool = False) -> Decoder:
    return Decoder(result_of(modality, seed), held=held)


def payload(modality: str, seed: int = 0) -> bytes:
    """Bytes that stand for an encoded item, different for every modality and seed."""
    return f"encoded {modality} {seed}".encode()


def ref_of(
    modality: str, seed: int = 0, *, held: bool = False
) -> tuple[MediaRef, Decoder]:
    decoder = decoder_of(modality, seed, held=held)
    return decoder.ref(payload(modality, seed)), decoder


def process(
    renderer: BaseRenderer,
    data: Mapping[str, Sequence[Any]],
    uuids: Mapping[str, Sequence[str | None]] | None = None,
    kwargs: Mapping[str, object] | None = None,
    **how: Any,
) -> Any:
    """Process in this thread."""
    prompt = prompt_of(renderer, data)
    return renderer._process_multimodal(prompt, data, uuids, kwargs, **how)


def process_async(
    renderer: BaseRenderer,
    data: Mapping[str, Sequence[Any]],
    uuids: Mapping[str, Sequence[str | None]] | None = None,
    kwargs: Mapping[str, object] | None = None,
    **how: Any,
) -> Coroutine[Any, Any, Any]:
    prompt = prompt_of(renderer, data)
    return renderer._process_multimodal_async(prompt, data, uuids, kwargs, **how)


_FROM_RENDERER: Any = object()


def inputs_for(
    renderer: BaseRenderer,
    data: Mapping[str, Sequence[Any]],
    uuids: Mapping[str, Sequence[str | None]] | None = None,
    *,
    cache: Any = _FROM_RENDERER,
) -> ProcessorInputs:
    """What the renderer would hand to its processor."""
    info = renderer.get_mm_processor().info
    if cache is _FROM_RENDERER:
        cache = renderer.mm_processor_cache
    return ProcessorInputs(
        prompt_of(renderer, data),
        info.parse_mm_data(dict(data)),
        dict(uuids or {}),
        cache=cache,
    )


def no_timing() -> TimingContext:
    return TimingContext(enabled=False)


def bytes_held(renderer: BaseRenderer) -> float:
    """Encoded bytes that this process holds now, as `/metrics` would say."""
    # A thread holds what it fetched until it looks for more work, which on a busy
    # machine can be after the request has ended.
    occupy(global_thread_pool)
    EncodedBytes.settle()
    return sample(renderer, "vllm:mm_media_encoded_bytes")


def sample(renderer: BaseRenderer, name: str, **labels: str) -> float:
    labels["model_name"] = str(renderer.model_config.served_model_name)
    return REGISTRY.get_sample_value(name, labels) or 0.0


def items_counted(renderer: BaseRenderer, modality: str, outcome: str) -> float:
    name = "vllm:mm_media_items_total"
    return sample(renderer, name, modality=modality, outcome=outcome)


def occupy(executor: ThreadPoolExecutor) -> None:
    """Give every thread that an executor may have something new to do, once."""
    threads = executor._max_workers
    barrier = threading.Barrier(threads)
    for work in [executor.submit(barrier.wait, PATIENCE) for _ in range(threads)]:
        work.result(PATIENCE)


async def wait_for(event: threading.Event) -> None:
    """Wait for an event that another thread sets, without blocking the loop."""
    assert await asyncio.to_thread(event.wait, PATIENCE), "it never happened"


async def turns(count: int = 20) -> None:
    """Let whatever is ready on the event loop run."""
    for _ in range(count):
        await asyncio.sleep(0)
