# SPDX-License-Identifier: Apache-2.0
"""Where media come from: `data:`, `http(s):` and `file:` URLs, fetched as refs.

Transport only. The caller brings the decoder, which turns the bytes into a ref.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from vllm import envs
from vllm.connections import HTTPConnection, global_http_connection
from vllm.upstream.multimodal.media import connector as upstream

from .base import MediaIO, MediaRef, decode_base64
from .connector_registry import MediaConnectorRegistry

merge_media_io_kwargs = upstream.merge_media_io_kwargs

_T = TypeVar("_T")
_U = TypeVar("_U")

MEDIA_CONNECTOR_REGISTRY = MediaConnectorRegistry()
"""Connectors by name; `VLLM_MEDIA_CONNECTOR` chooses one."""

_found_directories: set[str] = set()
"""Allowed directories that have been there; one, in a server."""


class _RefLoader:
    """Stands where the release's transport expects a decoder, and makes refs."""

    def __init__(self, media_io: MediaIO) -> None:
        self.get_max_bytes = media_io.get_max_bytes
        self.load_bytes = media_io.load_bytes_ref
        self.load_base64 = media_io.load_base64_ref
        self.load_file = media_io.load_file_ref


class _SharedPayloadIO:
    """Several decoders of one payload, which pass for one: it makes a ref for each.

    A decoder to a connector, so that one which overrides `load_from_url` has the
    shared fetch as well.
    """

    def __init__(self, *media_ios: MediaIO) -> None:
        self._media_ios = media_ios

    def get_max_bytes(self) -> int | None:
        return _strictest_max_bytes(self._media_ios)

    def load_bytes_ref(self, data: bytes) -> tuple[MediaRef, ...]:
        return tuple(io.load_bytes_ref(data) for io in self._media_ios)

    def load_base64_ref(self, media_type: str, data: str) -> tuple[MediaRef, ...]:
        if any(io.reads_base64_text(media_type) for io in self._media_ios):
            # Such a decoder may want the text, or may refuse it; each sees to itself.
            return tuple(io.load_base64_ref(media_type, data) for io in self._media_ios)
        return self.load_bytes_ref(decode_base64(data))

    def load_file_ref(self, filepath: Path) -> tuple[MediaRef, ...]:
        return self.load_bytes_ref(filepath.read_bytes())


def _strictest_max_bytes(media_ios: Sequence[MediaIO]) -> int | None:
    """The smallest encoded size that one of the decoders accepts at most, in bytes;
    None where none of them has a limit."""
    limits = [io.get_max_bytes() for io in media_ios]
    return min((limit for limit in limits if limit is not None), default=None)


@MEDIA_CONNECTOR_REGISTRY.register("http")
class MediaConnector(upstream.MediaConnector):
    """Fetches media by URL and returns references to them.

    The `_async` variants are for the event loop: base64, file reads and hashes run
    on the media pool. A cancelled fetch may leave such a step running; its result
    is dropped. The other variants block.

    All of them raise ValueError for a URL that is malformed or not allowed,
    VLLMUnprocessableEntityError (HTTP 422) for one that a server refuses for good,
    and whatever the decoder's `load_*_ref` raises for a payload it won't take. A
    payload that can't be decoded raises nothing yet.

    Args:
        connection: The HTTP client.
        allowed_local_media_path: `file:` URLs must lie below this directory. Empty,
            the default, allows none.
        allowed_media_domains: `http(s):` URLs must have one of these hosts. None,
            the default, allows all.
    """

    def __init__(
        self,
        connection: HTTPConnection = global_http_connection,
        *,
        allowed_local_media_path: str = "",
        allowed_media_domains: list[str] | None = None,
    ) -> None:
        # A request makes its connector on the event loop, where each look at the disk
        # hands the interpreter to other threads for milliseconds. So the release checks
        # a directory the first time only.
        found = allowed_local_media_path in _found_directories
        super().__init__(
            None,
            connection,
            allowed_local_media_path="" if found else allowed_local_media_path,
            allowed_media_domains=allowed_media_domains,
        )
        if allowed_local_media_path:
            _found_directories.add(allowed_local_media_path)
            self.allowed_local_media_path = Path(allowed_local_media_path)

    @property
    def allowed_local_media_path(self) -> Path | None:
        """The directory, without symbolic links as they are now. Looks them up on the
        disk, which the thread does that reads a file."""
        path = self._allowed_local_media_path
        return None if path is None else path.resolve()

    @allowed_local_media_path.setter
    def allowed_local_media_path(self, path: Path | None) -> None:
        self._allowed_local_media_path = path

    def _get_cached_bytes(self, url: str) -> bytes | None:
        data = super()._get_cached_bytes(url)
        if data == b"":
            # The release touches a file before it reads it. Where another process
            # evicts it in between, that makes an empty one, which would then pass for
            # the download for as long as it is kept.
            self._media_cache_path(url).unlink(missing_ok=True)
            return None
        return data

    def _load_refs(self, url: str, media_io: Any, fetch_timeout: int | None) -> Any:
        return super().load_from_url(
            url, _RefLoader(media_io), fetch_timeout=fetch_timeout
        )

    async def _load_refs_async(
        self, url: str, media_io: Any, fetch_timeout: int | None
    ) -> Any:
        # The release calls its decoders on the media pool, and so the `_RefLoader`:
        # that is what keeps reading and hashing off the event loop.
        return await super().load_from_url_async(
            url, _RefLoader(media_io), fetch_timeout=fetch_timeout
        )

    def load_from_url(
        self, url: str, media_io: MediaIO[_T], *, fetch_timeout: int | None = None
    ) -> MediaRef[_T]:
        """A ref to what `url` points at, to be decoded by `media_io`.

        Args:
            url: A `data:`, `http(s):` or `file:` URL.
            media_io: The decoder.
            fetch_timeout: For `http(s):`, in seconds.
        """
        return self._load_refs(url, media_io, fetch_timeout)

    async def load_from_url_async(
        self, url: str, media_io: MediaIO[_T], *, fetch_timeout: int | None = None
    ) -> MediaRef[_T]:
        """`load_from_url` for the event loop."""
        return await self._load_refs_async(url, media_io, fetch_timeout)

    def fetch_image(self, image_url: str, media_io: MediaIO[_T]) -> MediaRef[_T]:
        return self.load_from_url(
            image_url, media_io, fetch_timeout=envs.VLLM_IMAGE_FETCH_TIMEOUT
        )

    async def fetch_image_async(
        self, image_url: str, media_io: MediaIO[_T]
    ) -> MediaRef[_T]:
        return await self.load_from_url_async(
            image_url, media_io, fetch_timeout=envs.VLLM_IMAGE_FETCH_TIMEOUT
        )

    def fetch_audio(self, audio_url: str, media_io: MediaIO[_T]) -> MediaRef[_T]:
        return self.load_from_url(
            audio_url, media_io, fetch_timeout=envs.VLLM_AUDIO_FETCH_TIMEOUT
        )

    async def fetch_audio_async(
        self, audio_url: str, media_io: MediaIO[_T]
    ) -> MediaRef[_T]:
        return await self.load_from_url_async(
            audio_url, media_io, fetch_timeout=envs.VLLM_AUDIO_FETCH_TIMEOUT
        )

    def fetch_video(self, video_url: str, media_io: MediaIO[_T]) -> MediaRef[_T]:
        return self.load_from_url(
            video_url, media_io, fetch_timeout=envs.VLLM_VIDEO_FETCH_TIMEOUT
        )

    async def fetch_video_async(
        self, video_url: str, media_io: MediaIO[_T]
    ) -> MediaRef[_T]:
        return await self.load_from_url_async(
            video_url, media_io, fetch_timeout=envs.VLLM_VIDEO_FETCH_TIMEOUT
        )

    def fetch_video_and_audio(
        self, video_url: str, video_io: MediaIO[_T], audio_io: MediaIO[_U]
    ) -> tuple[MediaRef[_T], MediaRef[_U]]:
        """Refs to a video and to its audio track, from one fetch.

        The smaller of the decoders' size limits holds, and the video's timeout.
        """
        both: Any = _SharedPayloadIO(video_io, audio_io)
        refs: Any = self.load_from_url(
            video_url, both, fetch_timeout=envs.VLLM_VIDEO_FETCH_TIMEOUT
        )
        return refs

    async def fetch_video_and_audio_async(
        self, video_url: str, video_io: MediaIO[_T], audio_io: MediaIO[_U]
    ) -> tuple[MediaRef[_T], MediaRef[_U]]:
        """`fetch_video_and_audio` for the event loop."""
        both: Any = _SharedPayloadIO(video_io, audio_io)
        refs: Any = await self.load_from_url_async(
            video_url, both, fetch_timeout=envs.VLLM_VIDEO_FETCH_TIMEOUT
        )
        return refs
