# SPDX-License-Identifier: Apache-2.0
"""The memory bound: which of the waiting decodes may begin.

A burst of new media decodes faster than the one mm worker can process what comes of
it. So a decode begins only while the decoded media held are below a limit, which
they can pass by no more than the decodes that run at that moment.
"""

import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image

DEFAULT_LIMIT = 4 << 30
"""Bytes; as much as vLLM gives to its processor cache by default."""


class DecodeRequest:
    """One request, as far as its decodes go.

    Args:
        scope: Requests with the same scope share the decodes of equal keys. With
            None, the default, each item of the request decodes on its own.
    """

    __slots__ = ("scope", "waiting")

    def __init__(self, scope: object = None) -> None:
        self.scope = scope
        self.waiting = 0
        """Decodes that it waits for and that have not begun."""


class Admitted(Protocol):
    """A decode, as the bound sees it."""

    modality: str
    number: int
    """Its place in the order of arrival."""

    @property
    def requests(self) -> Iterable[DecodeRequest]:
        """Those that want it now."""


class _Lane:
    def __init__(self) -> None:
        # An ordered dict, because one that is given up leaves from the middle.
        self.waiting: OrderedDict[Admitted, None] = OrderedDict()
        self.running = 0


class Admission:
    """The queue of decodes: first come, first served, within two limits.

    It locks nothing; whoever owns it does.

    Args:
        limit: Bytes of decoded media above which no decode begins; 0 for no limit.
        threads: How many decodes of one modality run at a time.
    """

    def __init__(self, limit: int, threads: int) -> None:
        self.limit = limit
        self.threads = threads
        self.held = 0
        """Bytes of decoded media that requests hold now."""
        self._lanes: dict[str, _Lane] = {}
        # What runs (size 0) or has run and is held.
        self._sizes: dict[Admitted, int] = {}

    def add(self, decode: Admitted) -> None:
        self._lane(decode).waiting[decode] = None

    def next(self) -> Admitted | None:
        """The decode to begin now, taken from the queue; None while none may."""
        queued = [lane for lane in self._lanes.values() if lane.waiting]
        heads = [next(iter(lane.waiting)) for lane in queued]
        if heads and 0 < self.limit <= self.held:
            if self._memory_will_be_freed():
                return None
            # All that is held belongs to requests that wait for more. The oldest has
            # to get it, however much that is, or none of them would ever end.
            heads = [min(heads, key=lambda decode: decode.number)]
        free = [d for d in heads if self._lane(d).running < self.threads]
        if not free:
            return None
        oldest = min(free, key=lambda decode: decode.number)
        self.begin(oldest)
        return oldest

    def _memory_will_be_freed(self) -> bool:
        """Whether there is a request that holds media and waits for no decode to
        begin: it ends by itself, since the mm worker waits for no admission."""
        return any(
            request.waiting == 0
            for decode in self._sizes
            for request in decode.requests
        )

    def begin(self, decode: Admitted) -> None:
        """Let `decode` begin whatever the limits say."""
        lane = self._lane(decode)
        del lane.waiting[decode]
        lane.running += 1
        self._sizes[decode] = 0

    def end(self, decode: Admitted, size: int) -> None:
        """`decode` has run, and `size` bytes are held until `forget`."""
        self._lane(decode).running -= 1
        self._sizes[decode] = size
        self.held += size

    def forget(self, decode: Admitted) -> int:
        """Nobody wants `decode` any more, which waits, or has run. The bytes that it
        held."""
        self._lane(decode).waiting.pop(decode, None)
        size = self._sizes.pop(decode, 0)
        self.held -= size
        return size

    def _lane(self, decode: Admitted) -> _Lane:
        return self._lanes.setdefault(decode.modality, _Lane())


def limit_from_environment() -> int:
    """`VLLM_MEDIA_DECODE_BYTES_LIMIT`, in bytes; 0 is no limit.

    Raises:
        ValueError: It is no whole number, or negative.
    """
    name = "VLLM_MEDIA_DECODE_BYTES_LIMIT"
    text = os.environ.get(name, str(DEFAULT_LIMIT))
    if not text.isdecimal():
        raise ValueError(f"{name} has to be a number of bytes, and is {text!r}")
    return int(text)


def decoded_size(media: Any) -> int:
    """The bytes that decoded media take, metadata and containers left out.

    Constant time but for the number of parts.
    """
    if isinstance(media, (np.ndarray, torch.Tensor)):
        return media.nbytes
    if isinstance(media, Image.Image):
        bytes_per_sample = 4 if media.mode in ("I", "F") else 1
        return media.width * media.height * len(media.getbands()) * bytes_per_sample
    if isinstance(media, (bytes, bytearray, memoryview)):
        return memoryview(media).nbytes
    if isinstance(media, Mapping):
        return sum(decoded_size(part) for part in media.values())
    if isinstance(media, (list, tuple)):
        return sum(decoded_size(part) for part in media)
    return 0
