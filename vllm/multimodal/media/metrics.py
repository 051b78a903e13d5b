# SPDX-License-Identifier: Apache-2.0
"""What lazy decode reports on vLLM's `/metrics`.

The values belong to the front end, which decodes, not to an engine, so they carry
`model_name` and no `engine`. With several API server processes Prometheus sums
them over the processes.
"""

import os
import queue
import threading
from typing import Final

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.registry import Collector

_DECODE_BUCKETS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)

CACHED: Final = "cached"
"""The processor cache held the item, so it was not decoded."""
DECODED: Final = "decoded"
"""This request decoded the item."""
SHARED: Final = "shared"
"""The item was decoded already, or is the same as another that was."""
FAILED: Final = "failed"
"""The decoder could not read the item."""

# `registry=None`: the stat logger unregisters every `vllm:` collector that it finds
# in the default registry when it starts, which can be after these are made.
_items = Counter(
    "vllm:mm_media_items",
    "Media references processed, by what became of their decode.",
    ["model_name", "modality", "outcome"],
    registry=None,
)
_decode_seconds = Histogram(
    "vllm:mm_media_decode_seconds",
    "Time to decode one media item, with its deferred transforms, in seconds.",
    ["model_name", "modality"],
    buckets=_DECODE_BUCKETS,
    registry=None,
)
_encoded_bytes = Gauge(
    "vllm:mm_media_encoded_bytes",
    "Encoded media payloads held in memory now, in bytes.",
    ["model_name"],
    multiprocess_mode="livesum",
    registry=None,
)
_decoded_bytes = Gauge(
    "vllm:mm_media_decoded_bytes",
    "Decoded media that requests hold now, in bytes.",
    ["model_name"],
    multiprocess_mode="livesum",
    registry=None,
)
_decodes_running = Gauge(
    "vllm:mm_media_decodes_running",
    "Media decodes running now.",
    ["model_name"],
    multiprocess_mode="livesum",
    registry=None,
)
_decodes_waiting = Gauge(
    "vllm:mm_media_decodes_waiting",
    "Media decodes submitted and not yet begun.",
    ["model_name"],
    multiprocess_mode="livesum",
    registry=None,
)

_METRICS: Final = (
    _items,
    _decode_seconds,
    _encoded_bytes,
    _decoded_bytes,
    _decodes_running,
    _decodes_waiting,
)


class _MediaCollector(Collector):
    """Keeps the metrics above in a registry under no name of their own."""

    def collect(self):
        for metric in _METRICS:
            yield from metric.collect()

    def describe(self):
        for metric in _METRICS:
            yield from metric.describe()


REGISTRY.register(_MediaCollector())

_model_name = ""


def set_model_name(name: str) -> None:
    """Label what is recorded from now on. The renderer says it when it is made."""
    global _model_name
    _model_name = name


def count_item(modality: str, outcome: str) -> None:
    """Count one item of `modality`. Any thread; constant time."""
    _items.labels(_model_name, modality, outcome).inc()


class DecodeTimer:
    """Follows one decode from submission to its end. Each method is called once,
    `dropped` in place of the other two where the decode never begins; `hold` is for
    a decode whose result counts, and may be called again with the negative size."""

    __slots__ = ("_modality", "_model", "_timer")

    def __init__(self, modality: str) -> None:
        self._modality = modality
        self._model = _model_name
        _decodes_waiting.labels(self._model).inc()

    def dropped(self) -> None:
        _decodes_waiting.labels(self._model).dec()

    def hold(self, size: int) -> None:
        _decoded_bytes.labels(self._model).inc(size)

    def __enter__(self) -> None:
        _decodes_waiting.labels(self._model).dec()
        _decodes_running.labels(self._model).inc()
        self._timer = _decode_seconds.labels(self._model, self._modality).time()
        self._timer.__enter__()

    def __exit__(self, *exc_info) -> None:
        self._timer.__exit__(*exc_info)
        _decodes_running.labels(self._model).dec()


class EncodedBytes:
    """Counts `size` bytes as held for as long as this object lives."""

    __slots__ = ("_model", "_size")

    # Gauges take locks that a destructor must not wait for: the collector may run
    # it inside one of them. `SimpleQueue.put` is safe there, so a thread of its own
    # takes the bytes off again.
    _changes: "queue.SimpleQueue[tuple[str, int] | threading.Event]" = (
        queue.SimpleQueue()
    )
    _applier: threading.Thread | None = None
    _start = threading.Lock()

    def __init__(self, size: int) -> None:
        self._size = size
        self._model = _model_name
        if EncodedBytes._applier is None:
            self._start_applier()
        _encoded_bytes.labels(self._model).inc(size)

    def __del__(self) -> None:
        self._changes.put((self._model, -self._size))

    @classmethod
    def settle(cls) -> None:
        """Wait until everything let go of so far is off the gauge."""
        if cls._applier is not None:
            applied = threading.Event()
            cls._changes.put(applied)
            applied.wait()

    @classmethod
    def _start_applier(cls) -> None:
        with cls._start:
            if cls._applier is None:
                cls._applier = threading.Thread(
                    target=cls._apply, name="vllm-media-bytes", daemon=True
                )
                cls._applier.start()

    @classmethod
    def _forget_applier(cls) -> None:
        # A forked process has the parent's queue and lock, and not its thread.
        cls._changes = queue.SimpleQueue()
        cls._applier = None
        cls._start = threading.Lock()

    @classmethod
    def _apply(cls) -> None:
        while True:
            change = cls._changes.get()
            if isinstance(change, threading.Event):
                change.set()
            else:
                model, size = change
                _encoded_bytes.labels(model).inc(size)


os.register_at_fork(after_in_child=EncodedBytes._forget_applier)
