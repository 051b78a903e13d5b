# SPDX-License-Identifier: Apache-2.0
"""A Qwen2.5-Omni thinker of a few megabytes: text, image, video and audio in one."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import (
    GenerationConfig,
    Qwen2_5OmniConfig,
    Qwen2_5OmniProcessor,
    Qwen2_5OmniThinkerConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
    WhisperFeatureExtractor,
)

from tiny.tokenizer import byte_tokenizer, chat_template

NAMED = {
    "image_token": "<|IMAGE|>",
    "audio_token": "<|AUDIO|>",
    "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}

# Pixels of one image or one frame after resizing: 16 to 64 patches of 28 x 28.
# 720p becomes 280 x 168, 60 tokens; six seconds of video at 2 frames a second, 360.
SIZE = {"shortest_edge": 16 * 28 * 28, "longest_edge": 64 * 28 * 28}

HIDDEN = 128


def write(directory: Path) -> None:
    """Writes configuration, tokenizer, processor and weights (3 MB) to `directory`."""
    tokenizer = _tokenizer()
    _processor(tokenizer).save_pretrained(directory)
    tokenizer.save_pretrained(directory)

    config = _config(tokenizer)
    config.save_pretrained(directory)
    GenerationConfig(
        do_sample=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    ).save_pretrained(directory)
    _write_weights(config.thinker_config, directory / "model.safetensors")


def _tokenizer() -> Qwen2Tokenizer:
    template = chat_template(
        image="<|vision_bos|><|IMAGE|><|vision_eos|>",
        video="<|vision_bos|><|VIDEO|><|vision_eos|>",
        audio="<|audio_bos|><|AUDIO|><|audio_eos|>",
    )
    # The Omni processor has a frame size of its own, 128 to 768 patches, which beats
    # the one saved with the video processor. A tokenizer setting of the same name
    # beats that in turn, and is the only place for it inside a model directory.
    return byte_tokenizer(list(NAMED.values()), template, named=NAMED, size=SIZE)


def _processor(tokenizer: Qwen2Tokenizer) -> Qwen2_5OmniProcessor:
    return Qwen2_5OmniProcessor(
        image_processor=Qwen2VLImageProcessor(size=dict(SIZE)),
        video_processor=Qwen2VLVideoProcessor(size=dict(SIZE)),
        feature_extractor=WhisperFeatureExtractor(
            feature_size=128, return_attention_mask=True
        ),
        tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
    )


def _config(tokenizer: Qwen2Tokenizer) -> Qwen2_5OmniConfig:
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in NAMED.values()}
    thinker = Qwen2_5OmniThinkerConfig(
        audio_config={
            "encoder_layers": 2,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 256,
            "d_model": HIDDEN,
            "output_dim": HIDDEN,
        },
        vision_config={
            "depth": 2,
            "hidden_size": HIDDEN,
            "intermediate_size": 256,
            "num_heads": 2,
            "out_hidden_size": HIDDEN,
            "fullatt_block_indexes": [1],
        },
        text_config={
            "vocab_size": len(tokenizer),
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            "hidden_size": HIDDEN,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            # 64 a head: vLLM's CPU attention has no kernel for smaller ones.
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1_000_000.0,
                "mrope_section": [8, 12, 12],
            },
        },
        audio_token_index=ids["<|AUDIO|>"],
        image_token_index=ids["<|IMAGE|>"],
        video_token_index=ids["<|VIDEO|>"],
        audio_start_token_id=ids["<|audio_bos|>"],
        audio_end_token_id=ids["<|audio_eos|>"],
        vision_start_token_id=ids["<|vision_bos|>"],
        vision_end_token_id=ids["<|vision_eos|>"],
    )
    return Qwen2_5OmniConfig(
        thinker_config=thinker.to_dict(),
        enable_audio_output=False,
        architectures=["Qwen2_5OmniForConditionalGeneration"],
        dtype="bfloat16",
    )


def _write_weights(config: Qwen2_5OmniThinkerConfig, path: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen2_5OmniThinkerForConditionalGeneration(config)
    # A full checkpoint also holds a talker; its thinker is told apart by this prefix.
    weights = {
        f"thinker.{name}": tensor.to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
    }
    save_file(weights, path, metadata={"format": "pt"})
