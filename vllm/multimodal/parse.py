# SPDX-License-Identifier: Apache-2.0
"""Two views of a request's items: as HF wants them, and as they came.

`get(index)` is the decoded item, which HF helpers can ask `isinstance` of.
`get_raw(index)` is the item as it is stored, a `MediaRef` where it was fetched;
hashing, cache lookup and cleanup go through it, so none of them decodes.

Model code derives from these classes, so they are amended in place.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from vllm.upstream.multimodal import parse as upstream
from vllm.upstream.multimodal.audio import AudioSpec, normalize_audio
from vllm_lazy_media.amend import Amends

from .media import MediaRef
from .media.decode import MediaItemRef, decode_item, media_decode_error

MultiModalDataItems = upstream.MultiModalDataItems
parse_mm_uuids = upstream.parse_mm_uuids


class _ModalityDataItems(Amends, target=upstream.ModalityDataItems):
    def get_raw(self, index: int) -> Any:
        """The item as it is stored. Decodes nothing; constant time."""
        return self.get(index)

    def get_original_index(self, index: int) -> int:
        """Where item `index` stood in the request, however often it was selected."""
        origins = getattr(self, "_original_indices", None)
        return index if origins is None else origins[index]

    def select(self, indices: Sequence[int]) -> Any:
        """The items at `indices`, in that order, as a new object of the same class.

        They are not parsed or validated again, and refs stay the refs they are.
        """
        selected = copy.copy(self)
        selected._original_indices = [self.get_original_index(i) for i in indices]
        selected._select_from(self, indices)
        return selected

    def fork_refs(self) -> Any:
        """The same items with a fork of each ref; itself where there is none."""
        return self

    def _select_from(self, source: Any, indices: Sequence[int]) -> None:
        """Take over the data of `source` at `indices`, for a class whose `data` has
        one entry for each item."""
        if isinstance(source.data, (np.ndarray, torch.Tensor)):
            self.data = source.data[list(indices)]
        else:
            self.data = [source.data[i] for i in indices]


class _ProcessorBatchItems(
    Amends, target=upstream.ProcessorBatchItems, replaces=("get",)
):
    def get_raw(self, index: int) -> Any:
        return self.data[index]

    def fork_refs(self) -> Any:
        if not any(isinstance(item, MediaRef) for item in self.data):
            return self
        forked = copy.copy(self)
        forked.data = [
            item.fork() if isinstance(item, MediaRef) else item for item in self.data
        ]
        return forked

    def get(self, index: int) -> Any:
        """The decoded item. A read once the batch is decoded; until then it decodes
        here, which is for a thread that may wait.

        Raises:
            VLLMUnprocessableEntityError: The item could not be decoded. It names the
                modality and the item's position in the request.
        """
        item = self.data[index]
        if isinstance(item, MediaRef):
            return self._decoded(index, item)
        return _ProcessorBatchItems.released.get(self, index)

    def _decoded(self, index: int, ref: MediaRef) -> Any:
        if not ref.is_decoded:
            # Counted and reported as in a batch decode: a processor that goes its
            # own way to its items comes straight here.
            item = MediaItemRef(self.modality, self.get_original_index(index), ref)
            try:
                decode_item(item)
            except Exception as e:
                raise media_decode_error(item, e)  # noqa: B904 (it sets the cause)
        return ref.decode()


class _DictEmbeddingItems(Amends, target=upstream.DictEmbeddingItems):
    def _select_from(self, source: Any, indices: Sequence[int]) -> None:
        fields = [source._kwargs[self.modality][i] for i in indices]
        self._kwargs = upstream.MultiModalKwargsItems({self.modality: fields})
        self.data = self._kwargs.get_data()


class _VideoProcessorItems(
    Amends,
    target=upstream.VideoProcessorItems,
    replaces=("get_item_for_hash", "get_num_frames", "get_frame_size"),
):
    @property
    def metadata(self) -> Any:
        """The metadata of every video, as given or as decoded. Decodes all of them."""
        if not any(isinstance(item, MediaRef) for item in self.data):
            return self._given_metadata
        return [self.get_metadata(i) for i in range(self.get_count())]

    @metadata.setter
    def metadata(self, value: Any) -> None:
        self._given_metadata = value

    def get_metadata(self, index: int) -> dict[str, Any] | None:
        """The metadata of one video. Decodes that one, not its siblings."""
        given = self._given_metadata
        if isinstance(given, list) and given[index] is not None:
            return given[index]
        item = self.data[index]
        if isinstance(item, MediaRef):
            return _split_video(self._decoded(index, item))[1]
        return given if isinstance(given, dict) else _split_video(item)[1]

    def get(self, index: int) -> Any:
        """Frames, or `(frames, metadata)` where the model's HF processor wants both."""
        video = upstream.ProcessorBatchItems.get(self, index)
        if isinstance(video, VideoWithMetadata):
            return tuple(video)
        if isinstance(self.data[index], MediaRef):
            return _split_video(video)[0]
        return video

    def get_frames(self, index: int) -> Any:
        """The frames of one video, whatever `get` gives beside them."""
        return _split_video(upstream.ProcessorBatchItems.get(self, index))[0]

    def get_item_for_hash(self, index: int) -> Any:
        # The release reads `metadata`, which would decode the refs among the videos.
        as_given = SimpleNamespace(data=self.data, metadata=self._given_metadata)
        return _VideoProcessorItems.released.get_item_for_hash(as_given, index)

    def get_num_frames(self, item_idx: int) -> int:
        view = self._frames_view()
        return _VideoProcessorItems.released.get_num_frames(view, item_idx)

    def get_frame_size(self, item_idx: int) -> upstream.ImageSize:
        view = self._frames_view()
        return _VideoProcessorItems.released.get_frame_size(view, item_idx)

    def _frames_view(self) -> SimpleNamespace:
        """All that the release's size helpers ask of the items, as frames alone."""
        return SimpleNamespace(get=self.get_frames)

    def _select_from(self, source: Any, indices: Sequence[int]) -> None:
        upstream.ModalityDataItems._select_from(self, source, indices)
        if isinstance(source._given_metadata, list):
            self._given_metadata = [source._given_metadata[i] for i in indices]


class VideoWithMetadata(NamedTuple):
    """What the ref of a video decodes to for a model that needs the metadata too.

    The ref tells by itself which view is wanted, as given tuples do, so that items
    that model code builds anew from `data` give the same view.
    """

    frames: Any
    metadata: dict[str, Any]


def _split_video(video: Any) -> tuple[Any, dict[str, Any] | None]:
    if isinstance(video, tuple):
        frames, metadata = video
        return frames, metadata
    return video, None


class _MultiModalDataParser(
    Amends,
    target=upstream.MultiModalDataParser,
    replaces=(
        "_get_video_with_metadata",
        "_parse_audio_data",
        "_parse_image_data",
        "_parse_video_data",
    ),
):
    def _parse_image_data(self, data: Any) -> Any:
        parse = partial(_MultiModalDataParser.released._parse_image_data, self)
        # An image's own decode converts its mode, so there is nothing to prepare.
        return _parse_around_refs(parse, data, lambda ref: ref)

    def _parse_audio_data(self, data: Any) -> Any:
        parse = partial(_MultiModalDataParser.released._parse_audio_data, self)
        return _parse_around_refs(parse, data, self._with_model_audio)

    def _with_model_audio(self, ref: MediaRef) -> MediaRef:
        """`ref` in the model's sample rate and channels, made so as it decodes.

        Both are part of the identity: a file at another rate is another item.
        """
        return ref.map(
            self._normalize_audio,
            audio_resampler=self.audio_resampler.method,
            target_sr=self.audio_resampler.target_sr,
            target_channels=self.target_channels,
        )

    def _normalize_audio(self, audio: Any) -> np.ndarray:
        samples, rate = self._get_audio_with_sr(audio)
        if rate is not None:
            samples = self.audio_resampler.resample(samples, orig_sr=rate)
        if self.target_channels is not None:
            spec = AudioSpec(target_channels=self.target_channels)
            samples = normalize_audio(samples, spec)
        return samples

    def _parse_video_data(self, data: Any) -> Any:
        parse = partial(_MultiModalDataParser.released._parse_video_data, self)
        return _parse_around_refs(
            parse, data, lambda ref: self._get_video_with_metadata(ref)[0]
        )

    def _get_video_with_metadata(self, video: Any) -> tuple[Any, dict | None]:
        """`(video, metadata)`; for a ref, the ref, which keeps both, and None."""
        if not isinstance(video, MediaRef):
            released = _MultiModalDataParser.released._get_video_with_metadata
            return released(self, video)
        if self.video_needs_metadata:
            # It changes no result, so it is no part of the identity.
            video = video.map(_require_metadata)
        return video, None


def _parse_around_refs(
    parse: Callable[[Any], Any], data: Any, prepare: Callable[[MediaRef], MediaRef]
) -> Any:
    """Parse `data` with the release's `parse`, which knows no refs.

    It is shown None in the place of each, which it takes for an item whose data are
    not given and passes through; then the prepared refs go into their places.
    """
    if isinstance(data, MediaRef):
        data = [data]
    if not isinstance(data, (list, tuple)):
        return parse(data)
    refs = {i: item for i, item in enumerate(data) if isinstance(item, MediaRef)}
    if not refs:
        return parse(data)
    items = parse([None if i in refs else item for i, item in enumerate(data)])
    for i, ref in refs.items():
        items.data[i] = prepare(ref)
    return items


def _require_metadata(video: Any) -> VideoWithMetadata:
    frames, metadata = _split_video(video)
    if metadata is None:
        raise ValueError(
            "this model needs the video's metadata, and its decoder gives none"
        )
    return VideoWithMetadata(frames, metadata)
