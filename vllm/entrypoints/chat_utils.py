# SPDX-License-Identifier: Apache-2.0
"""Chat requests: from content parts to references.

The parsers and trackers are amended in place, because the release's own functions
make them.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import cached_property, partial
from typing import Any

from vllm import envs
from vllm.multimodal.media import (
    MEDIA_CONNECTOR_REGISTRY,
    MediaConnector,
    MediaIO,
    MediaRef,
    MediaWithBytes,
)
from vllm.multimodal.media.decode import (
    DecodeJob,
    DecodeRequest,
    MediaItemRef,
    collect_media_decodes,
    collect_media_decodes_async,
    leave_media_decodes,
    submit_media_decodes,
)
from vllm.upstream.entrypoints import chat_utils as upstream
from vllm_lazy_media.amend import Amends, amend

_Item = tuple[Any, str | None]
"""An item and its UUID."""


class _BaseMultiModalItemTracker(Amends, target=upstream.BaseMultiModalItemTracker):
    def get_media_io(self, modality: str) -> MediaIO:
        """The decoder for `modality`, as the model and the request want it."""
        return self.mm_processor.info.get_media_io(modality, self.media_io_kwargs)

    @cached_property
    def media_connector(self) -> MediaConnector:
        """What fetches the request's media. One for all its messages, because making
        it can touch the disk, here on the event loop."""
        return MEDIA_CONNECTOR_REGISTRY.load(
            envs.VLLM_MEDIA_CONNECTOR,
            allowed_local_media_path=self.allowed_local_media_path,
            allowed_media_domains=self.allowed_media_domains,
        )


def _wants_audio(parser: Any) -> bool:
    """Whether a video's own audio track is to be an item too."""
    kwargs = parser._mm_processor_kwargs or {}
    return bool(kwargs.get("use_audio_in_video", False))


class _MultiModalContentParser(
    Amends,
    target=upstream.MultiModalContentParser,
    replaces=("_connector", "parse_image", "parse_audio", "parse_video"),
):
    @property
    def _connector(self) -> MediaConnector:
        return self._tracker.media_connector

    def _add_item(self, modality: str, item: Any, uuid: str | None) -> None:
        placeholder = self._tracker.add(modality, (item, uuid))
        self._add_placeholder(modality, placeholder)

    def parse_image(self, image_url: str | None, uuid: str | None = None) -> None:
        image = None
        if image_url:
            image_io = self._tracker.get_media_io("image")
            image = self._connector.fetch_image(image_url, image_io)
        self._add_item("image", image, uuid)

    def parse_audio(self, audio_url: str | None, uuid: str | None = None) -> None:
        audio = None
        if audio_url:
            audio_io = self._tracker.get_media_io("audio")
            audio = self._connector.fetch_audio(audio_url, audio_io)
        self._add_item("audio", audio, uuid)

    def parse_video(self, video_url: str | None, uuid: str | None = None) -> None:
        if not video_url:
            return self._add_item("video", None, uuid)
        video_io = self._tracker.get_media_io("video")
        if not _wants_audio(self):
            video = self._connector.fetch_video(video_url, video_io)
            return self._add_item("video", video, uuid)
        audio_io = self._tracker.get_media_io("audio")
        video, audio = self._connector.fetch_video_and_audio(
            video_url, video_io, audio_io
        )
        self._add_item("video", video, uuid)
        self._add_item("audio", audio, uuid)


class _AsyncMultiModalContentParser(
    Amends,
    target=upstream.AsyncMultiModalContentParser,
    replaces=(
        "_connector",
        "_image_with_uuid_async",
        "_audio_with_uuid_async",
        "_video_with_uuid_async",
        "parse_video",
    ),
):
    @property
    def _connector(self) -> MediaConnector:
        return self._tracker.media_connector

    async def _image_with_uuid_async(self, url: str | None, uuid: str | None) -> _Item:
        if not url:
            return None, uuid
        image_io = self._tracker.get_media_io("image")
        return await self._connector.fetch_image_async(url, image_io), uuid

    async def _audio_with_uuid_async(self, url: str | None, uuid: str | None) -> _Item:
        if not url:
            return None, uuid
        audio_io = self._tracker.get_media_io("audio")
        return await self._connector.fetch_audio_async(url, audio_io), uuid

    async def _video_with_uuid_async(self, url: str | None, uuid: str | None) -> _Item:
        if not url:
            return None, uuid
        video_io = self._tracker.get_media_io("video")
        return await self._connector.fetch_video_async(url, video_io), uuid

    def parse_video(self, video_url: str | None, uuid: str | None = None) -> None:
        if not video_url or not _wants_audio(self):
            released = _AsyncMultiModalContentParser.released.parse_video
            return released(self, video_url, uuid)
        fetch = _SharedFetch(partial(self._fetch_video_and_audio, video_url))
        for position, modality in enumerate(("video", "audio")):
            item = partial(_nth_with_uuid, fetch, position, uuid)
            placeholder = self._tracker.add(modality, item)
            self._add_placeholder(modality, placeholder)

    async def _fetch_video_and_audio(self, url: str) -> tuple[MediaRef, MediaRef]:
        return await self._connector.fetch_video_and_audio_async(
            url,
            self._tracker.get_media_io("video"),
            self._tracker.get_media_io("audio"),
        )


class _SharedFetch:
    """One fetch for several items of a request. On the event loop.

    Cancelling one of its waiters cancels the fetch, and so the others: they belong
    to one request.
    """

    def __init__(self, fetch: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._fetch: Callable[[], Coroutine[Any, Any, Any]] | None = fetch
        self._task: asyncio.Task | None = None

    async def __call__(self) -> Any:
        if self._task is None:
            assert self._fetch is not None
            self._task = asyncio.ensure_future(self._fetch())
            # It leads back to the tracker that holds this object, and the cycle
            # would keep the fetched payloads until the garbage collector runs.
            self._fetch = None
        return await self._task


async def _nth_with_uuid(fetch: _SharedFetch, position: int, uuid: str | None) -> _Item:
    return (await fetch())[position], uuid


# --- Vision chunks: images and video chunks as one modality -----------------------
#
# They are split and wrapped here, before the renderer, so they are decoded here.


def _submit_vision_chunk_decodes(
    items: Sequence[Any],
    modality_order: Sequence[str],
    jobs: list[DecodeJob],
    scope: object,
) -> None:
    counts: dict[str, int] = {}
    refs = []
    for modality, item in zip(modality_order, items, strict=True):
        index = counts.get(modality, 0)
        counts[modality] = index + 1
        if isinstance(item, MediaRef) and not item.is_decoded:
            refs.append(MediaItemRef(modality, index, item))
    submit_media_decodes(refs, jobs, DecodeRequest(scope))


async def _predecode_vision_chunk_items(
    items: Sequence[Any], modality_order: Sequence[str], scope: object = None
) -> None:
    """Decode the refs among `items` on the media pool, all at once.

    On the event loop. Cancelled, it waits for the decodes that run all the same.
    Requests of one `scope` share the decodes of equal items.

    Raises:
        VLLMUnprocessableEntityError: For the first item that could not be decoded.
            Left to the chunk splitter, it would end as a warning in the log.
    """
    jobs: list[DecodeJob] = []
    try:
        _submit_vision_chunk_decodes(items, modality_order, jobs, scope)
    finally:
        try:
            await collect_media_decodes_async(jobs)
        finally:
            # The memory bound does not see what the request goes on to hold: nothing
            # tells when it has done with its chunks.
            leave_media_decodes(jobs)


class _AsyncMultiModalItemTracker(
    Amends, target=upstream.AsyncMultiModalItemTracker, replaces=("resolve_items",)
):
    async def resolve_items(self) -> tuple[Any, Any]:
        chunks = self._items_by_modality.get("vision_chunk")
        if chunks:
            # Decoded within the release's gathering of the items, so that other
            # modalities are fetched meanwhile.
            resolve = _SharedFetch(partial(self._resolve_vision_chunks, list(chunks)))
            self._items_by_modality["vision_chunk"] = [
                partial(_nth, resolve, i) for i in range(len(chunks))
            ]
        return await _AsyncMultiModalItemTracker.released.resolve_items(self)

    async def _resolve_vision_chunks(self, fetches: Sequence[Any]) -> list[_Item]:
        results = await asyncio.gather(
            *(fetch() for fetch in fetches), return_exceptions=True
        )
        resolved: list[_Item] = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            resolved.append(result)
        await _predecode_vision_chunk_items(
            [item for item, _uuid in resolved],
            self._modality_order["vision_chunk"],
            self.mm_processor,
        )
        return resolved


async def _nth(resolve: _SharedFetch, position: int) -> _Item:
    return (await resolve())[position]


_module = amend(upstream)


@_module.replace
def _resolve_vision_chunk_items(
    vision_chunk_items: Sequence[_Item],
    mm_processor: Any,
    vision_chunks_modality_order: Sequence[str],
) -> Any:
    # The async path has decoded them by now; here that is for the sync path, whose
    # thread may wait.
    jobs: list[DecodeJob] = []
    items = [item for item, _uuid in vision_chunk_items]
    try:
        _submit_vision_chunk_decodes(
            items, vision_chunks_modality_order, jobs, mm_processor
        )
    finally:
        try:
            collect_media_decodes(jobs)
        finally:
            leave_media_decodes(jobs)
    decoded = [
        (_decoded_chunk_item(item, modality), uuid)
        for (item, uuid), modality in zip(
            vision_chunk_items, vision_chunks_modality_order, strict=True
        )
    ]
    return _module.released._resolve_vision_chunk_items(
        decoded, mm_processor, vision_chunks_modality_order
    )


def _decoded_chunk_item(item: Any, modality: str) -> Any:
    if not isinstance(item, MediaRef):
        return item
    media = item.decode()
    # The release tells a fetched image from other items by its wrapper.
    return MediaWithBytes(media, b"") if modality == "image" else media
