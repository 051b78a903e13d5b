# SPDX-License-Identifier: Apache-2.0
"""Video: frames and their metadata, sampled and decoded when they are wanted."""

from typing import Any

from vllm import envs
from vllm.multimodal.video import DecodedFrames
from vllm.upstream.multimodal.media import video as upstream

from .base import DecodeSpec, MediaRef, decode_base64
from .image import ImageMediaIO

VIDEO_LOADER_REGISTRY = upstream.VIDEO_LOADER_REGISTRY
VideoEmbeddingMediaIO = upstream.VideoEmbeddingMediaIO

_Video = tuple[DecodedFrames, dict[str, Any]]

# How fast a loader works, not what it returns.
_NO_EFFECT_ON_FRAMES = frozenset(
    {"num_ffmpeg_threads", "hw_decoders", "pool_size", "timeout_sec"}
)


class VideoMediaIO(upstream.VideoMediaIO):
    """Decodes a video to `(frames, metadata)`.

    `frames` has shape (number of frames, height, width, 3) and dtype uint8: a numpy
    array, or a tensor on the GPU where the backend decodes there. `metadata` has the
    frame indices, the file's frame rate in hertz and its duration in seconds.

    Args:
        image_io: Decodes the frames of a `video/jpeg` sequence.
        num_frames: At most this many, evenly spread; -1 for all.
        video_backend: The registered loader; `VLLM_VIDEO_LOADER_BACKEND` by default.
        kwargs: Passed on to the loader.
    """

    def __init__(
        self, image_io: ImageMediaIO, num_frames: int = 32, **kwargs: Any
    ) -> None:
        self.video_backend: str = (
            kwargs.get("video_backend") or envs.VLLM_VIDEO_LOADER_BACKEND
        )
        super().__init__(image_io, num_frames=num_frames, **kwargs)

    def get_decode_spec(self) -> DecodeSpec:
        return self._video_spec(video_decode="frames")

    def _video_spec(self, **settings: object) -> DecodeSpec:
        loader_options = {
            name: value
            for name, value in self.kwargs.items()
            if name not in _NO_EFFECT_ON_FRAMES
        }
        return self._decode_spec(
            VideoMediaIO,
            loader_options,
            num_frames=self.num_frames,
            video_backend=self.video_backend,
            **settings,
        )

    def load_bytes(self, data: bytes) -> _Video:
        return super().load_bytes(data).media

    def load_base64(self, media_type: str, data: str) -> _Video:
        if _is_jpeg_sequence(media_type):
            return super().load_base64(media_type, data).media
        return self.load_bytes(decode_base64(data))

    def reads_base64_text(self, media_type: str) -> bool:
        return _is_jpeg_sequence(media_type) or self._overrides(
            VideoMediaIO, "load_base64"
        )

    def load_base64_ref(self, media_type: str, data: str) -> MediaRef[_Video]:
        """A ref to base64 text: of a video file, or of JPEG frames with commas
        between them where `media_type` is `video/jpeg`."""
        if not _is_jpeg_sequence(media_type):
            return super().load_base64_ref(media_type, data)
        image_settings = self.image_io.get_decode_spec().settings
        spec = self._video_spec(video_decode="jpeg_sequence", image=image_settings)
        return MediaRef(lambda: self.load_base64(media_type, data), data.encode(), spec)


def _is_jpeg_sequence(media_type: str) -> bool:
    return media_type.lower() == "video/jpeg"
