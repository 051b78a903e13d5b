# SPDX-License-Identifier: Apache-2.0
"""What needs vLLM itself; imported only by processes that have chosen their mode."""

import hashlib
import os
import time
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY

from benchmarks.scenarios import Request
from benchmarks.watch import MEGABYTE
from tiny import renderer as tiny_renderer
from vllm.utils.gc_utils import freeze_gc_heap

ITEMS = "vllm:mm_media_items_total"


def make_renderer(cache: bool, media_folder: Path) -> Any:
    """Returns a renderer that may read `media_folder`."""
    renderer = tiny_renderer.make_renderer(
        allowed_local_media_path=str(media_folder),
        mm_processor_cache_gb=4 if cache else 0,
    )
    # As the server does when it has started: the garbage collector would otherwise
    # look through all of vLLM now and then, in either mode.
    freeze_gc_heap()
    return renderer


async def render(renderer: Any, request: Request) -> Any:
    """Does all that the front end does to a request before the engine has it."""
    return await tiny_renderer.render_async(
        renderer, request.messages, **request.options
    )


def is_lazy() -> bool:
    """Whether lazy decode is laid over the vLLM of this process."""
    return any(metric.name == "vllm:mm_media_items" for metric in REGISTRY.collect())


def items_decoded() -> float:
    """Items decoded so far; 0 under stock vLLM, which does not count them."""
    return sum(
        sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.name == ITEMS and sample.labels["outcome"] == "decoded"
    )


def encoded_bytes() -> float:
    """Encoded payloads in memory now."""
    from vllm.multimodal.media.metrics import EncodedBytes

    EncodedBytes.settle()
    return sum(
        sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.name == "vllm:mm_media_encoded_bytes"
    )


def ref_against_sha256(megabytes: int, repeats: int) -> list[dict[str, float]]:
    """Times the building of a ref, and sha256 of the same bytes, in turn.

    Processor time of this thread, which both have to themselves.
    """
    from vllm.multimodal.media import ImageMediaIO, VideoMediaIO

    io = VideoMediaIO(ImageMediaIO())
    data = os.urandom(megabytes * MEGABYTE)
    found = []
    for _ in range(repeats):
        start = time.thread_time()
        hashlib.sha256(data).digest()
        between = time.thread_time()
        io.load_bytes_ref(data)
        end = time.thread_time()
        bare, ref = between - start, end - between
        found.append({"sha256_ms": bare * 1000, "ref_ms": ref * 1000})
    return found
