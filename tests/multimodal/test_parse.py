# SPDX-License-Identifier: Apache-2.0
"""The two views of parsed items, and parsing that decodes nothing."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.harness import Decoder
from tiny import media
from vllm.exceptions import VLLMUnprocessableEntityError
from vllm.multimodal.inputs import MultiModalFieldConfig
from vllm.multimodal.media import MediaRef, MediaWithBytes
from vllm.multimodal.parse import (
    AudioProcessorItems,
    DictEmbeddingItems,
    EmbeddingItems,
    ImageEmbeddingItems,
    ImageProcessorItems,
    MultiModalDataParser,
    ProcessorBatchItems,
    VideoProcessorItems,
    VisionChunkProcessorItems,
)

FRAMES = np.arange(3 * 8 * 6 * 3, dtype=np.uint8).reshape(3, 8, 6, 3)
METADATA = {"fps": 8.0, "frames_indices": [0, 1, 2]}


def picture(seed: int = 0) -> Image.Image:
    return media.picture(12, 8, seed=seed)


def items_of(modality: str, *data: Any, **settings: Any) -> Any:
    parser = MultiModalDataParser(**settings)
    return parser.parse_mm_data({modality: list(data)})[modality]


def embedding_dict_items(count: int) -> DictEmbeddingItems:
    def fields(_: Any) -> dict[str, MultiModalFieldConfig]:
        return {
            "image_embeds": MultiModalFieldConfig.batched("image"),
            "size": MultiModalFieldConfig.batched("image"),
        }

    data = {
        "image_embeds": torch.arange(count * 4.0).reshape(count, 2, 2),
        "size": torch.arange(count),
    }
    return DictEmbeddingItems(data, "image", {"image_embeds", "size"}, fields)


# --- get and get_raw --------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        ImageProcessorItems,
        AudioProcessorItems,
        VideoProcessorItems,
        VisionChunkProcessorItems,
    ],
)
def test_both_views_of_a_batch(make: type[ProcessorBatchItems]) -> None:
    plain, result = np.zeros(3), np.ones(3)
    decoder = Decoder(result)
    ref = decoder.ref(b"x")
    items = make([plain, ref, None])

    assert items.get_raw(0) is plain and items.get_raw(1) is ref
    assert items.get_raw(2) is None and items.get(2) is None
    assert decoder.calls == 0

    assert items.get(0) is plain and items.get(1) is result
    assert items[1] is result and items.get_all()[1] is result
    assert items.get_raw(1) is ref and decoder.calls == 1


@pytest.mark.parametrize("batched", [True, False])
def test_both_views_of_embeddings(batched: bool) -> None:
    tensor = torch.arange(12.0).reshape(3, 2, 2)
    items = EmbeddingItems(tensor if batched else list(tensor), "image")
    assert torch.equal(items.get(1), tensor[1])
    assert torch.equal(items.get_raw(1), tensor[1])


def test_both_views_of_embedding_fields() -> None:
    items = embedding_dict_items(3)
    assert items.get(2).keys() == items.get_raw(2).keys() == {"image_embeds", "size"}
    assert torch.equal(items.get_raw(2)["size"], items.get(2)["size"])


def test_items_for_hashing_are_raw() -> None:
    decoder = Decoder(picture())
    ref = decoder.ref(b"x")
    assert ImageProcessorItems([ref]).get_all_items_for_hash() == [ref]
    assert decoder.calls == 0


def test_hashing_a_wrapped_video_decodes_no_ref_beside_it() -> None:
    decoder = Decoder((FRAMES, METADATA))
    wrapped = MediaWithBytes((FRAMES, METADATA), b"bytes")
    ref = decoder.ref(b"x")
    items = items_of("video", wrapped, ref)
    (first, metadata), second = items.get_all_items_for_hash()
    assert isinstance(first, MediaWithBytes) and metadata is METADATA
    assert second is ref
    assert decoder.calls == 0


def test_wrapped_media_is_unwrapped_in_get_alone() -> None:
    wrapped = MediaWithBytes(picture(), b"bytes")
    items = items_of("image", wrapped)
    assert items.get(0) is wrapped.media
    assert items.get_raw(0) is wrapped


# --- Parsing ----------------------------------------------------------------------

PLAIN = {
    "image": [picture(), np.zeros((3, 8, 8), np.uint8), None],
    "audio": [np.zeros(40, np.float32), (np.zeros(80, np.float32), 32000), [0.5], None],
    "video": [FRAMES, [picture(), picture()], (FRAMES, METADATA), None],
}
RESULTS = {
    "image": picture(1),
    "audio": (np.zeros(80, np.float32), 32000),
    "video": (FRAMES, METADATA),
}


@pytest.mark.parametrize("modality", ["image", "audio", "video"])
@pytest.mark.parametrize("single", [True, False])
def test_parsing_refs_decodes_nothing(modality: str, single: bool) -> None:
    decoder = Decoder(RESULTS[modality])
    ref = decoder.ref(b"x")
    parser = MultiModalDataParser(target_sr=16000)
    data = ref if single else [ref, ref]
    items = parser.parse_mm_data({modality: data})[modality]

    assert len(items) == (1 if single else 2)
    assert all(isinstance(items.get_raw(i), MediaRef) for i in range(len(items)))
    assert decoder.calls == 0 and "MediaRef" not in repr(items)


@pytest.mark.parametrize("modality", ["image", "audio", "video"])
def test_refs_among_other_inputs_keep_their_places(modality: str) -> None:
    plain = PLAIN[modality]
    decoders = [Decoder(RESULTS[modality]) for _ in plain]
    mixed = []
    for decoder, item in zip(decoders, plain, strict=True):
        mixed += [decoder.ref(b"x"), item]
    items = items_of(modality, *mixed, target_sr=16000)
    alone = items_of(modality, *plain, target_sr=16000)

    assert type(items) is type(alone)
    assert [isinstance(items.get_raw(i), MediaRef) for i in range(len(items))] == [
        True,
        False,
    ] * len(plain)
    for i in range(len(plain)):
        raw, expected = items.get_raw(2 * i + 1), alone.get_raw(i)
        assert type(raw) is type(expected)
        assert np.array_equal(raw, expected)
    assert not any(decoder.calls for decoder in decoders)


def test_image_ref_is_left_alone() -> None:
    ref = Decoder(picture()).ref(b"x")
    assert items_of("image", ref).get_raw(0) is ref


def test_audio_ref_is_mapped_to_the_models_audio() -> None:
    stereo = np.ascontiguousarray(media.wave(0.25, rate=44100, channels=2).T)
    ref = Decoder((stereo, 44100)).ref(b"x", audio_backend="auto")
    wanted = {"target_sr": 16000, "target_channels": 1}
    items = items_of("audio", ref, **wanted)
    raw = items.get_raw(0)

    assert raw.key != ref.key
    expected = {**ref.spec.settings, **wanted, "audio_resampler": "torchaudio"}
    assert raw.spec.settings == expected
    # To the bit what the release makes of decoded audio.
    (released,) = items_of("audio", (stereo, 44100), **wanted).get_all()
    assert np.array_equal(items.get(0), released)
    assert items.get(0).ndim == 1 and items.get_audio_length(0) == 4000


@pytest.mark.parametrize(
    "other",
    [
        {"target_sr": 8000},
        {"target_sr": 16000, "target_channels": 1},
        {"target_sr": 16000, "audio_resample_method": "scipy"},
    ],
)
def test_audio_identity_has_every_parameter(other: dict[str, Any]) -> None:
    def key(**settings: Any) -> bytes:
        ref = Decoder(RESULTS["audio"]).ref(b"x")
        return items_of("audio", ref, **settings).get_raw(0).key

    assert key(target_sr=16000) == key(target_sr=16000) != key(**other)


def test_audio_ref_of_samples_alone_is_not_resampled() -> None:
    samples = np.arange(40, dtype=np.float32)
    (audio,) = items_of("audio", Decoder(samples).ref(b"x"), target_sr=16000).get_all()
    assert np.array_equal(audio, samples)


# --- Videos -----------------------------------------------------------------------


@pytest.mark.parametrize("needed", [True, False])
def test_video_views(needed: bool) -> None:
    ref = Decoder((FRAMES, METADATA)).ref(b"x")
    items = items_of("video", ref, video_needs_metadata=needed)

    assert items.get_raw(0).key == ref.key
    assert items.get_raw(0).decode() == (FRAMES, METADATA)
    got = items.get(0)
    assert got == (FRAMES, METADATA) if needed else got is FRAMES
    assert items.get_frames(0) is FRAMES
    assert items.get_num_frames(0) == 3
    assert items.get_frame_size(0) == (6, 8)
    assert items.get_metadata(0) is METADATA


@pytest.mark.parametrize("needed", [True, False])
def test_video_views_of_decoded_input(needed: bool) -> None:
    items = items_of("video", (FRAMES, METADATA), video_needs_metadata=needed)
    got = items.get(0)
    assert got == (FRAMES, METADATA) if needed else got is FRAMES
    assert items.get_frames(0) is FRAMES
    assert items.get_num_frames(0) == 3 and items.get_frame_size(0) == (6, 8)
    assert items.get_metadata(0) is METADATA and items.metadata == [METADATA]


def test_metadata_of_one_video_leaves_its_siblings_alone() -> None:
    first, second = Decoder((FRAMES, {"fps": 1.0})), Decoder((FRAMES, METADATA))
    items = items_of("video", first.ref(b"1"), second.ref(b"2"), (FRAMES, None))
    assert items.get_metadata(1) is METADATA
    assert items.get_metadata(2) is None
    assert (first.calls, second.calls) == (0, 1)

    assert items.metadata == [{"fps": 1.0}, METADATA, None]
    assert (first.calls, second.calls) == (1, 1)


def test_metadata_is_demanded_when_the_video_decodes() -> None:
    decoder = Decoder(FRAMES)
    items = items_of("video", decoder.ref(b"x"), video_needs_metadata=True)
    assert decoder.calls == 0
    with pytest.raises(
        VLLMUnprocessableEntityError, match="video at index 0: this model"
    ):
        items.get(0)


def test_metadata_of_decoded_input_is_demanded_at_once() -> None:
    with pytest.raises(ValueError, match="metadata is required"):
        items_of("video", FRAMES, video_needs_metadata=True)


@pytest.mark.parametrize("ask", ["get_num_frames", "get_frame_size"])
def test_no_size_without_data(ask: str) -> None:
    with pytest.raises(ValueError, match="cached video at 1"):
        getattr(items_of("video", FRAMES, None), ask)(1)


# --- Selecting --------------------------------------------------------------------


def test_selection_of_a_selection() -> None:
    refs = [Decoder(picture()).ref(bytes([i])) for i in range(5)]
    items = ImageProcessorItems(refs)
    selected = items.select([4, 1, 3]).select([2, 0])

    assert type(selected) is ImageProcessorItems and len(selected) == 2
    assert selected.get_raw(0) is refs[3] and selected.get_raw(1) is refs[4]
    assert [selected.get_original_index(i) for i in range(2)] == [3, 4]
    # The source is as it was.
    assert len(items) == 5 and items.get_original_index(2) == 2


def test_selecting_does_not_prepare_again() -> None:
    ref = Decoder(RESULTS["audio"]).ref(b"x")
    items = items_of("audio", None, ref, target_sr=16000)
    raw = items.get_raw(1)
    assert items.select([1]).get_raw(0) is raw


def test_selected_videos_keep_metadata_and_view() -> None:
    videos = [(FRAMES + i, {"fps": float(i)}) for i in range(4)]
    for needed in (True, False):
        items = items_of("video", *videos, video_needs_metadata=needed)
        selected = items.select([3, 1]).select([1])
        assert selected.get_metadata(0) is videos[1][1]
        assert selected.metadata == [videos[1][1]]
        assert selected.get_frames(0) is videos[1][0]
        assert isinstance(selected.get(0), tuple) is needed


def test_selected_video_refs_keep_their_view() -> None:
    refs = [Decoder((FRAMES, {"fps": float(i)})).ref(bytes([i])) for i in range(3)]
    selected = items_of("video", *refs, video_needs_metadata=True).select([2])
    assert selected.get(0) == (FRAMES, {"fps": 2.0})


@pytest.mark.parametrize("batched", [True, False])
def test_selected_embeddings(batched: bool) -> None:
    tensor = torch.arange(16.0).reshape(4, 2, 2)
    items = ImageEmbeddingItems(tensor if batched else list(tensor))
    selected = items.select([3, 0]).select([1, 0])

    assert type(selected) is ImageEmbeddingItems
    assert torch.equal(selected.get(0), tensor[0])
    assert torch.equal(selected.get(1), tensor[3])
    passed = selected.get_passthrough_data()["image_embeds"]
    assert type(passed) is type(items.data) and len(passed) == 2
    assert [selected.get_original_index(i) for i in range(2)] == [0, 3]


def test_selected_embedding_fields_go_together() -> None:
    items = embedding_dict_items(4)
    selected = items.select([3, 1])

    assert type(selected) is DictEmbeddingItems and len(selected) == 2
    assert selected.get(0)["size"] == 3
    assert torch.equal(selected.get(0)["image_embeds"], items.get(3)["image_embeds"])
    passed = selected.get_passthrough_data()
    assert passed["size"].tolist() == [3, 1]
    assert torch.equal(passed["image_embeds"][1], items.get(1)["image_embeds"])
    assert selected.get_original_index(1) == 1
    assert len(items) == 4 and items.get_passthrough_data()["size"].tolist()[3] == 3


# --- Errors and forks -------------------------------------------------------------


@pytest.mark.parametrize("modality", ["image", "audio", "video"])
def test_broken_item_is_named_by_its_place_in_the_request(modality: str) -> None:
    cause = ValueError("no such codec")
    good, bad = Decoder(RESULTS[modality]), Decoder(error=cause)
    items = items_of(modality, good.ref(b"1"), good.ref(b"2"), bad.ref(b"3"))
    with pytest.raises(VLLMUnprocessableEntityError) as caught:
        items.select([0, 2]).get(1)

    assert f"{modality} at index 2" in str(caught.value)
    assert "no such codec" in str(caught.value)
    assert caught.value.__cause__ is cause
    assert caught.value.parameter is None


def test_forks_share_a_decode_and_not_a_release() -> None:
    decoder = Decoder(picture())
    plain = picture(1)
    items = items_of("image", decoder.ref(b"x"), plain)
    forked = items.fork_refs()

    assert type(forked) is type(items) and forked.get_raw(0) is not items.get_raw(0)
    assert forked.get_raw(0).key == items.get_raw(0).key
    forked.get_raw(0).release()
    assert items.get_raw(0).data == b"x" and items.get(0) is decoder.result
    assert forked.get_raw(1) is items.get_raw(1)


def test_nothing_to_fork() -> None:
    items = items_of("image", picture(), None)
    assert items.fork_refs() is items
    embeddings = embedding_dict_items(2)
    assert embeddings.fork_refs() is embeddings
