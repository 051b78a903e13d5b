# SPDX-License-Identifier: Apache-2.0
"""What a request may bring as an item: a reference wherever decoded media may stand."""

from typing import Any, TypeAlias

import numpy as np

from vllm.upstream.multimodal import inputs as upstream

from .media import MediaRef

ImageItem: TypeAlias = upstream.ImageItem | MediaRef[upstream.HfImageItem]
"""A decoded image, image embeddings, or a reference to an encoded image."""

VideoItem: TypeAlias = (
    upstream.VideoItem | MediaRef[tuple[upstream.HfVideoItem, dict[str, Any]]]
)
"""Decoded frames, with metadata or without, video embeddings, or a reference that
decodes to `(frames, metadata)`."""

AudioItem: TypeAlias = upstream.AudioItem | MediaRef[tuple[np.ndarray, float]]
"""Samples, `(samples, rate in hertz)`, audio embeddings, or a reference that decodes
to `(samples, rate)`."""
