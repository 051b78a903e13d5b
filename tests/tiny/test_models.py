# SPDX-License-Identifier: Apache-2.0
"""The model directories load with transformers, and their processors size things."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import AutoConfig, AutoProcessor

from tiny import media, models


@pytest.fixture(scope="module")
def omni() -> Path:
    return models.build_omni()


@pytest.fixture(scope="module")
def processor(omni: Path) -> Any:
    return AutoProcessor.from_pretrained(omni)


def test_built_once(omni: Path) -> None:
    stamp = (omni / "model.safetensors").stat().st_mtime_ns
    assert models.build_omni() == omni
    assert (omni / "model.safetensors").stat().st_mtime_ns == stamp


def test_building_leaves_nothing_aside_and_is_repeatable(
    tmp_path: Path, omni: Path
) -> None:
    again = models.build_omni(tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [omni.name]
    for file in omni.iterdir():
        assert (again / file.name).read_bytes() == file.read_bytes(), file.name


def test_unknown_model() -> None:
    with pytest.raises(ValueError, match="omni, qwen2_vl"):
        models.build("other")


def test_small(omni: Path) -> None:
    assert sum(file.stat().st_size for file in omni.iterdir()) < 5_000_000
    text = AutoConfig.from_pretrained(omni).thinker_config.text_config
    assert text.hidden_size // text.num_attention_heads == 64


def test_one_token_a_byte(processor: Any) -> None:
    ids = processor.tokenizer("naïve <|IMAGE|>")["input_ids"]
    assert len(ids) == len("naïve ".encode()) + 1
    assert processor.tokenizer.decode(ids) == "naïve <|IMAGE|>"


def test_chat_template_keeps_the_order_of_parts(processor: Any) -> None:
    parts = [
        {"type": "audio"},
        {"type": "text", "text": "one"},
        {"type": "image"},
        {"type": "video"},
        {"type": "text", "text": "two"},
    ]
    prompt = processor.tokenizer.apply_chat_template(
        [{"role": "user", "content": parts}], tokenize=False, add_generation_prompt=True
    )
    assert prompt == (
        "<|im_start|>user\n<|audio_bos|><|AUDIO|><|audio_eos|>one"
        "<|vision_bos|><|IMAGE|><|vision_eos|><|vision_bos|><|VIDEO|><|vision_eos|>two"
        "<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tokens_of_each_medium(processor: Any) -> None:
    image = Image.open(io.BytesIO(media.jpeg()))
    frames = np.stack(list(media.frames(1280, 720, 12)))
    sound = media.wave(2.0)[:, 0]
    inputs = processor(
        text="<|IMAGE|><|VIDEO|><|AUDIO|>",
        images=[image],
        videos=[frames],
        audio=[sound],
    )
    ids = list(inputs["input_ids"][0])
    vocabulary = processor.tokenizer.get_vocab()
    assert ids.count(vocabulary["<|IMAGE|>"]) == 60
    assert ids.count(vocabulary["<|VIDEO|>"]) == 6 * 60
    assert ids.count(vocabulary["<|AUDIO|>"]) == 50


def test_qwen2_vl_loads() -> None:
    directory = models.build_qwen2_vl()
    processor = AutoProcessor.from_pretrained(directory)
    image = Image.open(io.BytesIO(media.jpeg()))
    inputs = processor(text="<|image_pad|>", images=[image])
    assert len(inputs["input_ids"][0]) == 60
    assert AutoConfig.from_pretrained(directory).model_type == "qwen2_vl"
