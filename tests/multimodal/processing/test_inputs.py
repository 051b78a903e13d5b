# SPDX-License-Identifier: Apache-2.0
"""The identity of items, with refs among them."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.harness import Decoder, payload, ref_of, result_of
from vllm.multimodal.media import MediaWithBytes
from vllm.multimodal.parse import MultiModalDataItems, MultiModalDataParser
from vllm.multimodal.processing import ProcessorInputs
from vllm.upstream.multimodal.processing import inputs as upstream

MODALITIES = ["image", "audio", "video"]
MEDIA_IO: dict[str, dict[str, object]] = {
    "image": {"rgba_background_color": [1, 2, 3]},
    "audio": {"audio_backend": "pyav"},
    "video": {"num_frames": 4},
}


def parse(data: dict[str, Any]) -> MultiModalDataItems:
    return MultiModalDataParser(target_sr=16000).parse_mm_data(data)


def inputs(data: dict[str, Any], **settings: Any) -> ProcessorInputs:
    return ProcessorInputs([1], parse(data), **settings)


def hashes(data: dict[str, Any], **settings: Any) -> dict[str, list[str]]:
    return dict(inputs(data, **settings).get_mm_hashes("model", "blake3"))


def released_hashes(data: dict[str, Any], **settings: Any) -> dict[str, list[str]]:
    released = upstream.ProcessorInputs([1], parse(data), **settings)
    return dict(released.get_mm_hashes("model", "blake3"))


@pytest.mark.parametrize("media_io_kwargs", [{}, MEDIA_IO])
def test_hashing_decodes_no_ref(media_io_kwargs: Any) -> None:
    made = {m: [ref_of(m, seed) for seed in range(2)] for m in MODALITIES}
    data = {m: [ref for ref, _ in pairs] for m, pairs in made.items()}
    found = hashes(
        data, media_io_kwargs=media_io_kwargs, mm_uuid_items={"image": ["id", None]}
    )
    assert {m: len(set(h)) for m, h in found.items()} == dict.fromkeys(MODALITIES, 2)
    assert not any(d.calls for pairs in made.values() for _, d in pairs)


@pytest.mark.parametrize("modality", MODALITIES)
def test_media_settings_count_once_for_a_ref(modality: str) -> None:
    data = {modality: [ref_of(modality)[0]]}
    assert hashes(data, media_io_kwargs=MEDIA_IO) == hashes(data)


@pytest.mark.parametrize("modality", MODALITIES)
def test_refs_differ_by_decode_settings(modality: str) -> None:
    decoder = Decoder(result_of(modality))
    one, other = decoder.ref(b"x", setting=1), decoder.ref(b"x", setting=2)
    first, second = hashes({modality: [one, other]})[modality]
    assert first != second


@pytest.mark.parametrize("modality", MODALITIES)
def test_media_settings_count_beside_a_uuid(modality: str) -> None:
    data = {modality: [ref_of(modality)[0]]}
    uuids = {modality: ["id"]}
    plain = hashes(data, mm_uuid_items=uuids)
    assert plain == {modality: ["id"]}
    under = hashes(data, mm_uuid_items=uuids, media_io_kwargs=MEDIA_IO)
    assert under != plain
    # The same as an item with no data, which the UUID alone identifies.
    empty = {modality: [None]}
    assert hashes(empty, mm_uuid_items=uuids, media_io_kwargs=MEDIA_IO) == under


@pytest.mark.parametrize("modality", MODALITIES)
def test_media_settings_count_for_decoded_media(modality: str) -> None:
    data = {modality: [result_of(modality)]}
    assert hashes(data, media_io_kwargs=MEDIA_IO) != hashes(data)


def test_mixed_items_keep_their_places() -> None:
    ref, plain = ref_of("image")[0], result_of("image", 1)
    data = {"image": [plain, ref, ref, None], "audio": [result_of("audio")]}
    uuids = {"image": [None, "one", None, "two"]}
    settings = {"media_io_kwargs": MEDIA_IO, "hf_processor_mm_kwargs": {"k": 1}}
    found = hashes(data, mm_uuid_items=uuids, **settings)

    def alone(modality: str, item: Any, uuid: str | None) -> str:
        one = {modality: [item]}
        made = hashes(one, mm_uuid_items={modality: [uuid]}, **settings)
        return made[modality][0]

    assert list(found) == ["image", "audio"]
    assert found["image"] == [
        alone("image", item, uuid)
        for item, uuid in zip(data["image"], uuids["image"], strict=True)
    ]
    assert found["audio"] == [alone("audio", data["audio"][0], None)]
    assert len(set(found["image"])) == 4


def test_processor_settings_count_for_a_ref() -> None:
    data = {"image": [ref_of("image")[0]]}
    assert hashes(data, hf_processor_mm_kwargs={"k": 1}) != hashes(data)


def test_a_ref_is_not_the_bytes_of_its_key() -> None:
    ref = ref_of("image")[0]
    (found,) = hashes({"image": [ref]})["image"]
    (other,) = hashes({"vision_chunk": [ref.key]})["vision_chunk"]
    assert found != other


def test_modality_is_part_of_the_identity() -> None:
    decoder = Decoder()
    image = hashes({"image": [decoder.ref(b"x")]})["image"]
    video = hashes({"video": [decoder.ref(b"x")]})["video"]
    assert image != video


NO_REFS: list[dict[str, Any]] = [
    {m: [result_of(m), result_of(m, 1)] for m in MODALITIES},
    {"image": [MediaWithBytes(result_of("image"), payload("image"))]},
    {"image": torch.zeros(2, 3, 4), "audio": [np.zeros(8, np.float32)]},
    {"vision_chunk": [{"type": "image", "image": result_of("image"), "uuid": None}]},
    {},
]


@pytest.mark.parametrize("data", NO_REFS, ids=lambda data: "+".join(data) or "none")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"media_io_kwargs": MEDIA_IO},
        {
            "media_io_kwargs": MEDIA_IO,
            "hf_processor_mm_kwargs": {"k": 1, "images_kwargs": {"size": 2}},
        },
    ],
    ids=["plain", "media", "all"],
)
def test_without_refs_as_released(data: Any, settings: Any) -> None:
    assert hashes(data, **settings) == released_hashes(data, **settings)


def test_without_refs_and_with_uuids_as_released() -> None:
    data = {"image": [result_of("image"), None], "audio": [result_of("audio")]}
    uuids = {"image": [None, "id"], "audio": ["sound"]}
    for settings in ({}, {"media_io_kwargs": MEDIA_IO}):
        found = hashes(data, mm_uuid_items=uuids, **settings)
        assert found == released_hashes(data, mm_uuid_items=uuids, **settings)


def test_hashes_once_computed_are_kept() -> None:
    made = inputs({"image": [result_of("image")]})
    made.mm_hashes = {"image": ["known"]}
    assert made.get_mm_hashes("model", "blake3") == {"image": ["known"]}


def test_cache_is_usable_only_where_there_is_one() -> None:
    ref, decoder = ref_of("image")
    cache: Any = object()
    assert inputs({"image": [ref]}, cache=cache).can_use_cache
    assert not inputs({"image": [ref]}).can_use_cache
    assert decoder.calls == 0


def test_cache_is_not_usable_with_embeddings() -> None:
    cache: Any = object()
    data = {"image": torch.zeros(1, 2, 4), "audio": [ref_of("audio")[0]]}
    assert not inputs(data, cache=cache).can_use_cache
