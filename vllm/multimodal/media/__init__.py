# SPDX-License-Identifier: Apache-2.0
"""Fetched media as references: what to fetch, how to decode it, and when."""

from vllm.upstream.multimodal.media.video import VIDEO_LOADER_REGISTRY

from .audio import AudioEmbeddingMediaIO, AudioMediaIO
from .base import DecodeSpec, MediaIO, MediaRef, MediaWithBytes, derive_media_key
from .connector import MEDIA_CONNECTOR_REGISTRY, MediaConnector
from .image import ImageEmbeddingMediaIO, ImageMediaIO
from .video import VideoMediaIO

__all__ = [
    "MEDIA_CONNECTOR_REGISTRY",
    "VIDEO_LOADER_REGISTRY",
    "AudioEmbeddingMediaIO",
    "AudioMediaIO",
    "DecodeSpec",
    "ImageEmbeddingMediaIO",
    "ImageMediaIO",
    "MediaConnector",
    "MediaIO",
    "MediaRef",
    "MediaWithBytes",
    "VideoMediaIO",
    "derive_media_key",
]
