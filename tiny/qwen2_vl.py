# SPDX-License-Identifier: Apache-2.0
"""A Qwen2-VL of a few megabytes: text, image and video, and a simpler processor."""

from pathlib import Path

import torch
from transformers import (
    GenerationConfig,
    Qwen2Tokenizer,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
)

from tiny.tokenizer import byte_tokenizer, chat_template

NAMED = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
SPECIAL = ["<|vision_start|>", "<|vision_end|>", *NAMED.values()]

# As in tiny.omni: at most 64 tokens an image or a pair of frames.
SIZE = {"shortest_edge": 16 * 28 * 28, "longest_edge": 64 * 28 * 28}

HIDDEN = 128


def write(directory: Path) -> None:
    """Writes configuration, tokenizer, processor and weights (2 MB) to `directory`."""
    template = chat_template(
        image="<|vision_start|><|image_pad|><|vision_end|>",
        video="<|vision_start|><|video_pad|><|vision_end|>",
    )
    tokenizer = byte_tokenizer(SPECIAL, template, named=NAMED)
    Qwen2VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=dict(SIZE)),
        video_processor=Qwen2VLVideoProcessor(size=dict(SIZE)),
        tokenizer=tokenizer,
        chat_template=template,
    ).save_pretrained(directory)
    tokenizer.save_pretrained(directory)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen2VLForConditionalGeneration(_config(tokenizer))
    model.generation_config = GenerationConfig(
        do_sample=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.to(torch.bfloat16).save_pretrained(directory)


def _config(tokenizer: Qwen2Tokenizer) -> Qwen2VLConfig:
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL}
    return Qwen2VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            "hidden_size": HIDDEN,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            # 64 a head: vLLM's CPU attention has no kernel for smaller ones.
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 32768,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1_000_000.0,
                "mrope_section": [8, 12, 12],
            },
        },
        vision_config={
            "depth": 2,
            "embed_dim": HIDDEN,
            "hidden_size": HIDDEN,
            "num_heads": 2,
            "mlp_ratio": 2,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
    )
