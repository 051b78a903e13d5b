# SPDX-License-Identifier: Apache-2.0
"""The item classes and data parsers that the release's models bring of their own."""

import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import vllm
from tests.harness import Decoder, decoded_video, video_bytes
from tiny import media
from vllm.multimodal.media import ImageMediaIO, MediaRef, VideoMediaIO
from vllm.multimodal.parse import MultiModalDataParser

PACKAGE = Path(inspect.getfile(vllm)).parent


class Found(NamedTuple):
    name: str
    module: str
    bases: str

    def load(self) -> Any:
        try:
            return getattr(importlib.import_module(self.module), self.name)
        except ModuleNotFoundError as e:
            assert e.name is not None and not e.name.startswith("vllm")
            pytest.skip(f"{self.module} needs {e.name}")


@cache
def classes_deriving_from(ending: str) -> list[Found]:
    """The classes of model code with a base whose name ends so. They are looked for
    in the source, so that a module that can't be imported here shows too."""
    found = []
    statement = re.compile(r"^class (\w+)\(([^)]*)\)", re.MULTILINE)
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
        if name == "multimodal.parse":
            continue
        for match in statement.finditer(path.read_text()):
            if re.search(rf"{ending}\b", match[2]):
                found.append(Found(match[1], f"vllm.{name}", match[2]))
    return found


def each(found: list[Found]) -> Any:
    return pytest.mark.parametrize("found", [pytest.param(f, id=f.name) for f in found])


# --- Parsers ----------------------------------------------------------------------

PARSERS = classes_deriving_from("DataParser")
SAMPLES = np.ascontiguousarray(media.wave(0.2, rate=32000)[:, 0])


def parser_of(found: Found) -> MultiModalDataParser:
    settings: dict[str, Any] = {"target_sr": 16000, "video_needs_metadata": True}
    cls = found.load()
    if "spatial_merge_size" in inspect.signature(cls).parameters:
        settings["spatial_merge_size"] = 2
    return cls(**settings)


def decoded_items() -> dict[str, Any]:
    return {
        "image": media.picture(48, 32),
        "audio": (SAMPLES, 32000.0),
        "video": decoded_video(),
    }


def test_parsers_are_found() -> None:
    assert len(PARSERS) >= 20


@pytest.mark.parametrize("modality", ["image", "audio", "video"])
@each(PARSERS)
def test_a_model_s_parser_takes_refs(found: Found, modality: str) -> None:
    parser, media_item = parser_of(found), decoded_items()[modality]
    decoder = Decoder(media_item)
    data = [decoder.ref(b"1"), media_item, decoder.ref(b"2")]
    items = parser.parse_mm_data({modality: data})[modality]

    assert [isinstance(items.get_raw(i), MediaRef) for i in range(3)] == [1, 0, 1]
    chosen = items.select([2, 0]).select([1, 0])
    assert type(chosen) is type(items)
    assert [chosen.get_raw(i) for i in range(2)] == [items.get_raw(i) for i in (0, 2)]
    assert [chosen.get_original_index(i) for i in range(2)] == [0, 2]
    assert decoder.calls == 0

    # What the parser makes of a ref is what it makes of decoded media.
    for item in (items.get(0), chosen.get(1)):
        assert type(item) is type(items.get(1))
        for got, expected in zip(parts(item), parts(items.get(1)), strict=True):
            assert np.array_equal(np.asarray(got), np.asarray(expected))


def parts(item: Any) -> tuple[Any, ...]:
    return item if isinstance(item, tuple) else (item,)


def test_a_model_takes_the_sound_from_the_metadata_of_refs() -> None:
    """Nemotron Nano reads each video's metadata, and builds new items from `data`."""
    from vllm.model_executor.models import nano_nemotron_vl as nemotron

    decoder = VideoMediaIO(ImageMediaIO(), video_backend="nemotron_vl", num_frames=2)
    clips = [video_bytes(seed, audio=True) for seed in range(2)]
    parser = MultiModalDataParser(target_sr=16000, video_needs_metadata=True)
    items = parser.parse_mm_data(
        {"video": [decoder.load_bytes_ref(clip) for clip in clips]}
    )
    cls: Any = nemotron.NanoNemotronVLMultiModalProcessor
    owner = SimpleNamespace(data_parser=parser)
    made, sounds, has_sound = cls._extract_audio_from_videos(owner, items)
    decoded = parser.parse_mm_data({"video": list(map(decoder.load_bytes, clips))})
    expected, *_ = cls._extract_audio_from_videos(owner, decoded)

    assert has_sound == [True, True] and len(sounds) == 2
    for i, clip in enumerate(clips):
        assert np.array_equal(made["audio"].get(i), expected["audio"].get(i))
        assert items["video"].get_metadata(i)["original_video_bytes"] == clip
        assert "original_video_bytes" not in made["video"].get_metadata(i)
        assert made["video"].get_raw(i) is items["video"].get_raw(i)
        assert len(made["video"].get_frames(i)) == 2


# --- Dictionaries of embeddings ---------------------------------------------------

QWEN_GRID = torch.tensor([[1, 4, 4], [1, 2, 4], [1, 6, 2]])
# With 2 x 2 merged: 4, 2 and 3 rows.
QWEN_EMBEDS = torch.arange(9 * 2.0).reshape(9, 2)
QWEN_ROWS = [slice(0, 4), slice(4, 6), slice(6, 9)]
BATCH = torch.arange(3 * 2 * 4.0).reshape(3, 2, 4)
SIZES = torch.tensor([[10, 20], [30, 40], [50, 60]])

EMBEDDINGS: dict[str, dict[str, dict[str, Any]]] = {
    "Qwen2VLMultiModalDataParser": {
        "image": {"image_embeds": QWEN_EMBEDS, "image_grid_thw": QWEN_GRID},
        "video": {"video_embeds": QWEN_EMBEDS, "video_grid_thw": QWEN_GRID},
    },
    "Qwen2_5OmniThinkerMultiModalDataParser": {
        "audio": {
            "input_audio_features": torch.arange(2 * 9.0).reshape(2, 9),
            "audio_feature_lengths": torch.tensor([4, 2, 3]),
        }
    },
    "KeyeMultiModalDataParser": {
        "image": {
            "image_embeds": torch.arange(36 * 2.0).reshape(36, 2),
            "image_grid_thw": QWEN_GRID,
        }
    },
    "MiniCPMVMultiModalDataParser": {
        "image": {"image_embeds": BATCH, "image_sizes": SIZES},
        "video": {
            "video_embeds": BATCH,
            "video_image_sizes": SIZES[:, None].repeat(1, 3, 1),
        },
    },
    "Qwen2AudioMultiModalDataParser": {
        "audio": {"audio_embeds": BATCH, "audio_num_tokens": torch.tensor([2, 2, 2])}
    },
}


def embedding_cases() -> Iterator[Any]:
    for name, by_modality in EMBEDDINGS.items():
        (found,) = [f for f in PARSERS if f.name == name]
        for modality, data in by_modality.items():
            yield pytest.param(found, modality, data, id=f"{name}-{modality}")


@pytest.mark.parametrize(("found", "modality", "data"), list(embedding_cases()))
def test_embeddings_of_a_model_are_selected_with_all_their_fields(
    found: Found, modality: str, data: dict[str, Any]
) -> None:
    items = parser_of(found).parse_mm_data({modality: data})[modality]
    assert len(items) == 3
    chosen = items.select([2, 1]).select([0])
    assert type(chosen) is type(items) and len(chosen) == 1
    assert chosen.get_original_index(0) == 2
    for view in (chosen.get(0), chosen.get_raw(0)):
        assert view.keys() == data.keys()
        for name, value in view.items():
            assert torch.equal(value, items.get(2)[name])
    passed = chosen.get_passthrough_data()
    assert passed.keys() == data.keys()


def test_rows_of_unequal_items_stay_with_their_item() -> None:
    (found,) = [f for f in PARSERS if f.name == "Qwen2VLMultiModalDataParser"]
    data = EMBEDDINGS[found.name]["image"]
    items = parser_of(found).parse_mm_data({"image": data})["image"]
    passed = items.select([2, 0]).get_passthrough_data()
    rows = torch.cat([QWEN_EMBEDS[QWEN_ROWS[2]], QWEN_EMBEDS[QWEN_ROWS[0]]])
    assert torch.equal(passed["image_embeds"], rows)
    assert torch.equal(passed["image_grid_thw"], QWEN_GRID[[2, 0]])


# --- Item classes -----------------------------------------------------------------

ITEMS = classes_deriving_from("Items")


def test_no_item_class_of_the_release_is_left_out() -> None:
    """The two of MiniCPM-V are made by its parser, above, and used below."""
    assert {found.name for found in ITEMS} == {
        "MiniCPMVImageEmbeddingItems",
        "MiniCPMVVideoEmbeddingItems",
        "MiniCPMOAudioEmbeddingItems",
    }


def minicpm(name: str, **data: Any) -> Any:
    (found,) = [f for f in PARSERS if f.name == name]
    return parser_of(found).parse_mm_data(data)


def test_a_selection_keeps_what_its_class_can_do() -> None:
    both = minicpm(
        "MiniCPMVMultiModalDataParser", **EMBEDDINGS["MiniCPMVMultiModalDataParser"]
    )
    images, videos = (both[m].select([2, 1]) for m in ("image", "video"))
    assert type(images).__name__ == "MiniCPMVImageEmbeddingItems"
    assert images.get_image_size(0) == (50, 60)
    assert images.get_image_size(1) == (30, 40)
    assert type(videos).__name__ == "MiniCPMVVideoEmbeddingItems"
    assert videos.get_num_frames(0) == 3


def test_one_class_does_not_work_in_the_release_either() -> None:
    """It says that its audio is an image, and then finds none."""
    items = minicpm("MiniCPMOMultiModalDataParser", audio={"audio_embeds": BATCH})
    with pytest.raises(KeyError, match="image"):
        len(items["audio"])
