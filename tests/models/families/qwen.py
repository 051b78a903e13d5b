# SPDX-License-Identifier: Apache-2.0
"""Qwen models of vision and sound."""

from pathlib import Path
from typing import Any

from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLProcessor,
    Qwen2AudioConfig,
    Qwen2AudioProcessor,
    Qwen2Tokenizer,
    Qwen2VLConfig,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
    Qwen3VLConfig,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
    WhisperFeatureExtractor,
)

from tests.models.families.family import Family, own_sound
from tests.models.families.parts import (
    MROPE,
    ids,
    save,
    text_config,
    tokenizer_for,
)
from tiny import omni

_PATCH = 28 * 28
_SIZE = {"shortest_edge": 4 * _PATCH, "longest_edge": 16 * _PATCH}
_TOKENS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}


def _vl_tokenizer() -> Qwen2Tokenizer:
    return tokenizer_for(
        list(_TOKENS.values()),
        image="<|vision_start|><|image_pad|><|vision_end|>",
        video="<|vision_start|><|video_pad|><|vision_end|>",
    )


def _write_vl(
    directory: Path,
    config: type,
    processor: type,
    video_processor: type = Qwen2VLVideoProcessor,
    **vision: Any,
) -> None:
    tokenizer = _vl_tokenizer()
    save(
        directory,
        config(
            text_config=text_config(tokenizer, rope_parameters=MROPE),
            vision_config={"depth": 2, "num_heads": 2, **vision},
            **ids(tokenizer, **_TOKENS),
        ),
        tokenizer,
        processor(
            image_processor=Qwen2VLImageProcessor(
                size=dict(_SIZE), patch_size=vision.get("patch_size", 14)
            ),
            video_processor=video_processor(size=dict(_SIZE)),
            tokenizer=tokenizer,
        ),
        f"{config.__name__.removesuffix('Config')}ForConditionalGeneration",
    )


def write_qwen2_vl(directory: Path) -> None:
    _write_vl(directory, Qwen2VLConfig, Qwen2VLProcessor, embed_dim=64, hidden_size=64)


def write_jina_vl(directory: Path) -> None:
    write_qwen2_vl(directory)
    config = Qwen2VLConfig.from_pretrained(directory)
    config.architectures = ["JinaVLForRanking"]
    config.save_pretrained(directory)


def write_qwen2_5_vl(directory: Path) -> None:
    _write_vl(
        directory,
        Qwen2_5_VLConfig,
        Qwen2_5_VLProcessor,
        hidden_size=64,
        out_hidden_size=64,
        tokens_per_second=2,
    )


def write_qwen3_vl(directory: Path) -> None:
    _write_vl(
        directory,
        Qwen3VLConfig,
        Qwen3VLProcessor,
        Qwen3VLVideoProcessor,
        hidden_size=64,
        out_hidden_size=64,
        patch_size=16,
        deepstack_visual_indexes=[0],
    )


def write_qwen2_audio(directory: Path) -> None:
    tokens = ["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"]
    tokenizer = tokenizer_for(tokens, audio="<|audio_bos|><|AUDIO|><|audio_eos|>")
    save(
        directory,
        Qwen2AudioConfig(
            audio_config={"d_model": 64, "encoder_layers": 2},
            text_config={**text_config(tokenizer), "model_type": "qwen2"},
            **ids(tokenizer, audio_token_index="<|AUDIO|>"),
        ),
        tokenizer,
        Qwen2AudioProcessor(
            feature_extractor=WhisperFeatureExtractor(feature_size=128),
            tokenizer=tokenizer,
        ),
        "Qwen2AudioForConditionalGeneration",
    )


FAMILIES = [
    Family("qwen2_vl", write_qwen2_vl, ("image", "video")),
    Family("qwen2_5_vl", write_qwen2_5_vl, ("image", "video")),
    Family("qwen3_vl", write_qwen3_vl, ("image", "video")),
    Family(
        "qwen2_5_omni",
        omni.write,
        ("image", "video", "audio"),
        more={
            "own sound": own_sound(0),
            "own sound of two": own_sound(0, 1),
        },
    ),
    Family("qwen2_audio", write_qwen2_audio, ("audio",)),
    Family(
        "jina_vl",
        write_jina_vl,
        ("image",),
        two_phase=False,
    ),
]
