# SPDX-License-Identifier: Apache-2.0
"""dots3_note takes its videos as they are encoded."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness import image_bytes, video_bytes
from tests.models.families import dots3 as dots3_note
from tiny import media
from vllm.multimodal.media import (
    AudioMediaIO,
    DecodeSpec,
    ImageMediaIO,
    MediaRef,
    VideoMediaIO,
)
from vllm.multimodal.processing import BaseDummyInputsBuilder
from vllm.renderers.base import BaseRenderer


@pytest.fixture(scope="module")
def dots3() -> Iterator[Any]:
    """The tree's module, without its package's `__init__`, which needs a GPU build."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, dots3_note.PACKAGE, dots3_note.bare_package())
        from vllm.models.dots3_note.common import processor

        yield processor


@pytest.fixture
def info(dots3: Any, renderer: BaseRenderer) -> Any:
    return dots3.Dots3NoteProcessingInfo(renderer.get_mm_processor().info.ctx)


def test_videos_are_left_encoded(dots3: Any, info: Any) -> None:
    decoder = info.get_media_io("video", {"video": {"num_frames": 4}})
    assert type(decoder) is dots3.Dots3NoteVideoMediaIO
    assert decoder.get_decode_spec() == DecodeSpec({"video_decode": "raw_bytes"})
    data = video_bytes()
    assert decoder.load_bytes(data) is data


def test_the_identity_is_its_own(info: Any) -> None:
    data = video_bytes()
    raw = info.get_media_io("video").load_bytes_ref(data)
    assert raw.decode() == data and raw.data == data
    # Settings that do not change the bytes do not change the key.
    other = info.get_media_io("video", {"video": {"num_frames": 4}})
    assert other.load_bytes_ref(data).key == raw.key
    frames = VideoMediaIO(ImageMediaIO()).load_bytes_ref(data)
    assert frames.key != raw.key


@pytest.mark.parametrize(
    "modality, kind", [("image", ImageMediaIO), ("audio", AudioMediaIO)]
)
def test_other_media_are_decoded(info: Any, modality: str, kind: type) -> None:
    assert type(info.get_media_io(modality)) is kind


def test_image_settings_reach_the_decoder(info: Any) -> None:
    assert info.get_media_io("image", {"image": {"image_mode": "L"}}).image_mode == "L"


@pytest.fixture
def processor(dots3: Any, info: Any) -> Any:
    dummy_inputs: BaseDummyInputsBuilder = dots3.Dots3NoteDummyInputsBuilder(info)
    return dots3.Dots3NoteMultiModalProcessor(info, dummy_inputs)


def parse(processor: Any, **data: Any) -> Any:
    return processor.data_parser.parse_mm_data(data)


def test_raw_bytes_reach_the_hf_processor(processor: Any) -> None:
    info, data = processor.info, video_bytes()
    ref = info.get_media_io("video").load_bytes_ref(data)
    picture = info.get_media_io("image").load_bytes_ref(image_bytes())
    items = parse(processor, video=[None, ref], image=[picture])
    assert isinstance(items["video"].get_raw(1), MediaRef)
    assert not items["video"].get_raw(1).is_decoded

    # As on a miss: a selection of the parsed items.
    missing = items["video"].select([1])
    assert missing.get(0) == data and missing.get_frames(0) == data
    items["video"] = missing
    hf_data = processor._get_hf_mm_inputs(items, {}).hf_data
    assert hf_data["videos"] == [data]
    assert [image.size for image in hf_data["images"]] == [(96, 64)]


def test_audio_is_resampled(processor: Any) -> None:
    sound = media.audio_wav(0.5, rate=44100, channels=2)
    ref = processor.info.get_media_io("audio").load_bytes_ref(sound)
    items = parse(processor, audio=[ref])
    (samples,) = processor._get_hf_mm_inputs(items, {}).hf_data["audios"]
    assert samples.shape == (8000,)


def test_two_phases(processor: Any) -> None:
    assert processor.supports_two_phase_apply
