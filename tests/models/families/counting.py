# SPDX-License-Identifier: Apache-2.0
"""Counts what a process decodes, under stock vLLM and under the tree alike."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from PIL import Image

from tests.models.families.family import OWN
from vllm.multimodal.media import AudioMediaIO
from vllm.multimodal.processing import InputProcessingContext
from vllm.multimodal.video import VIDEO_LOADER_REGISTRY


class DecodeCount:
    """Counts decodes in this process from now on, by modality.

    At Pillow's decoder, at the video loaders and at the audio loader: all that stock
    vLLM and the tree have in common.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        pillow: Any = Image
        self._get_decoder = pillow._getdecoder
        decode = self._watched("image", self._get_decoder)

        def getdecoder(mode: str, name: str, *args: Any) -> Any:
            # "raw" copies pixels that are decoded already, of an array for one.
            return (self._get_decoder if name == "raw" else decode)(mode, name, *args)

        pillow._getdecoder = getdecoder
        # The function's own module, which the tree extends.
        release = AudioMediaIO.load_bytes.__globals__
        release["load_audio"] = self._watched("audio", release["load_audio"])
        self._load_loader = VIDEO_LOADER_REGISTRY.load
        VIDEO_LOADER_REGISTRY.load = self._watched_loader
        self._inside = threading.local()
        self._call_hf_processor = InputProcessingContext.call_hf_processor
        InputProcessingContext.call_hf_processor = self._marked()

    def take(self) -> dict[str, int]:
        """The decodes since the last call."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return dict(counts)

    def _watched(self, modality: str, decode: Callable[..., Any]) -> Any:
        def watched(*args: Any, **kwargs: Any) -> Any:
            own = OWN if getattr(self._inside, "hf_processor", False) else ""
            with self._lock:
                self._counts[own + modality] += 1
            return decode(*args, **kwargs)

        return watched

    def _marked(self) -> Any:
        def call_hf_processor(*args: Any, **kwargs: Any) -> Any:
            self._inside.hf_processor = True
            try:
                return self._call_hf_processor(*args, **kwargs)
            finally:
                self._inside.hf_processor = False

        return call_hf_processor

    def _watched_loader(self, *args: Any, **kwargs: Any) -> Any:
        loader = self._load_loader(*args, **kwargs)
        loader.load_bytes = self._watched("video", loader.load_bytes)
        return loader
