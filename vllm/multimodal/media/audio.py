# SPDX-License-Identifier: Apache-2.0
"""Audio: the encoded size is checked at once, the samples decoded when wanted."""

from pathlib import Path

import numpy.typing as npt

from vllm.upstream.multimodal.media import audio as upstream

from .base import DecodeSpec, MediaRef

AudioEmbeddingMediaIO = upstream.AudioEmbeddingMediaIO

_Audio = tuple[npt.NDArray, float]


class AudioMediaIO(upstream.AudioMediaIO):
    """Decodes audio to `(samples, rate)`: float32 mono, the file's rate in hertz.

    Args:
        audio_backend: "auto" (the default), "soundfile", "torchcodec" or "pyav".
    """

    def get_decode_spec(self) -> DecodeSpec:
        backend = self.audio_backend or "auto"
        return self._decode_spec(AudioMediaIO, self.kwargs, audio_backend=backend)

    def load_bytes_ref(self, data: bytes) -> MediaRef[_Audio]:
        """A ref to `data`. Costs one sha256 of it; decodes nothing.

        Raises:
            VLLMValidationError: It is larger than `get_max_bytes()`, whatever way
                it came. The decoded length is checked by the decode.
        """
        self._validate_encoded_size(len(data))
        return super().load_bytes_ref(data)

    def reads_base64_text(self, media_type: str) -> bool:
        return self._overrides(AudioMediaIO, "load_base64")

    def load_base64_ref(self, media_type: str, data: str) -> MediaRef[_Audio]:
        # The text tells the size, to within the two bytes that padding can hide, so
        # what is too large need not be decoded to say so.
        self._validate_encoded_size(len(data) // 4 * 3 - 2)
        return super().load_base64_ref(media_type, data)

    def load_file_ref(self, filepath: Path) -> MediaRef[_Audio]:
        # Asked first, so that what is too large is not read either.
        self._validate_encoded_size(filepath.stat().st_size)
        return super().load_file_ref(filepath)
