# SPDX-License-Identifier: Apache-2.0
"""Which decoder a model wants for a modality.

Decided here because here is the model's config: its HF video processor can ask for
a video backend of its own.
"""

from collections.abc import Mapping
from typing import Any

from vllm.transformers_utils.processor import get_video_processor_cls_name
from vllm.upstream.multimodal.processing import context as upstream
from vllm_lazy_media.amend import Amends

from ..media import AudioMediaIO, ImageMediaIO, MediaIO, VideoMediaIO
from ..video import get_video_loader_backend_for_processor


class _BaseProcessingInfo(Amends, target=upstream.BaseProcessingInfo):
    def get_media_io(
        self,
        modality: str,
        media_io_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> MediaIO:
        """The decoder of `modality` for this model. A model that wants something
        else than decoded media overrides this.

        Cheap enough for the event loop.

        Args:
            modality: "image", "video" or "audio".
            media_io_kwargs: Settings by modality: those of `--media-io-kwargs` with
                the request's merged in.

        Raises:
            ValueError: A setting is not valid, or there is no such modality.
        """
        settings = media_io_kwargs or {}
        if modality == "image":
            return ImageMediaIO(**settings.get("image", {}))
        if modality == "audio":
            return AudioMediaIO(**settings.get("audio", {}))
        if modality == "video":
            return self._get_video_io(settings)
        raise ValueError(f"no decoder for modality {modality!r}")

    def _get_video_io(self, settings: Mapping[str, Mapping[str, Any]]) -> VideoMediaIO:
        video_settings = dict(settings.get("video", {}))
        if "video_backend" not in video_settings:
            backend = get_video_loader_backend_for_processor(
                get_video_processor_cls_name(self.ctx.model_config)
            )
            if backend:
                video_settings["video_backend"] = backend
        return VideoMediaIO(ImageMediaIO(**settings.get("image", {})), **video_settings)
