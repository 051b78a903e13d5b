# SPDX-License-Identifier: Apache-2.0
"""The media pool: the threads that read, hash and decode media.

Reads and hashes run on the release's own pool, decodes on a lane for each modality.
They are apart so that a hash, which takes milliseconds and is all that a repeated
item needs, does not queue behind videos that take seconds; likewise an image behind
videos. A lane has `decode_thread_count()` threads, which start when they are first
needed.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from vllm import envs
from vllm.upstream.multimodal.media.connector import global_thread_pool

__all__ = ["decode_thread_count", "global_thread_pool", "submit_decode"]

_T = TypeVar("_T")

_lanes: dict[str, ThreadPoolExecutor] = {}
_lanes_lock = threading.Lock()


def decode_thread_count() -> int:
    """How many decodes of one modality run at a time.

    `VLLM_MEDIA_LOADING_THREAD_COUNT` where that is set. Its default is meant for
    downloads, which wait; a decode computes, so by default there are no more of them
    than this process has CPUs. More gain nothing, and hold more memory.
    """
    count = envs.VLLM_MEDIA_LOADING_THREAD_COUNT
    if envs.is_set("VLLM_MEDIA_LOADING_THREAD_COUNT"):
        return count
    return min(count, len(os.sched_getaffinity(0)))


def submit_decode(modality: str, decode: Callable[[], _T]) -> "Future[_T]":
    """Run `decode` on the lane of `modality`. Any thread; never blocks.

    First come, first served within a lane.
    """
    return _lane(modality).submit(decode)


def _lane(modality: str) -> ThreadPoolExecutor:
    lane = _lanes.get(modality)
    if lane is None:
        with _lanes_lock:
            lane = _lanes.get(modality)
            if lane is None:
                lane = _lanes[modality] = ThreadPoolExecutor(
                    max_workers=decode_thread_count(),
                    thread_name_prefix=f"vllm-media-{modality}",
                )
    return lane
