# SPDX-License-Identifier: Apache-2.0
"""dots3_note: a model whose HF processor opens the video container itself."""

from collections.abc import Mapping
from typing import Any

from vllm.multimodal.media import DecodeSpec, MediaIO, VideoMediaIO
from vllm.upstream.models.dots3_note.common import processor as upstream
from vllm_lazy_media.amend import Amends


class Dots3NoteVideoMediaIO(VideoMediaIO):
    """Decodes a video to its encoded bytes, as they are."""

    def get_decode_spec(self) -> DecodeSpec:
        # No frame is sampled, so no other setting counts.
        return DecodeSpec({"video_decode": "raw_bytes"})

    def load_bytes(self, data: bytes) -> Any:
        return data


class _Dots3NoteProcessingInfo(Amends, target=upstream.Dots3NoteProcessingInfo):
    def get_media_io(
        self,
        modality: str,
        media_io_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> MediaIO:
        released = upstream.BaseProcessingInfo.get_media_io
        media_io = released(self, modality, media_io_kwargs)
        if modality != "video":
            return media_io
        return Dots3NoteVideoMediaIO(media_io.image_io)
