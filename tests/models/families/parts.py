# SPDX-License-Identifier: Apache-2.0
"""Pieces that several families are built from."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig, ProcessorMixin, Qwen2Tokenizer

from tiny.tokenizer import byte_tokenizer, chat_template

# Of a text model that is never run.
TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32768,
}
MROPE = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "mrope_section": [4, 6, 6],
}
VISION: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
VISION: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def text_config(tokenizer: Qwen2Tokenizer, **more: Any) -> dict[str, Any]:
    return {
        **TEXT,
        "vocab_size": len(tokenizer),
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        **more,
    }


def tokenizer_for(
    special: Sequence[str],
    image: str = "",
    video: str = "",
    audio: str = "",
    named: Mapping[str, str] | None = None,
    **settings: Any,
) -> Qwen2Tokenizer:
    """A byte tokenizer with `special` tokens, whose template writes `image`, `video`
    and `audio` where a message has one."""
    template = chat_template(image, video, audio)
    return byte_tokenizer(special, template, dict(named or {}), **settings)


def ids(tokenizer: Qwen2Tokenizer, **tokens: str) -> dict[str, int]:
    return {
        name: tokenizer.convert_tokens_to_ids(token) for name, token in tokens.items()
    }


def save(
    directory: Path,
    config: PreTrainedConfig,
    tokenizer: Qwen2Tokenizer,
    processor: ProcessorMixin | None = None,
    architecture: str | None = None,
) -> None:
    """Write all that the front end reads of a model."""
    if architecture is not None:
        config.architectures = [architecture]
    config.save_pretrained(directory)
    if processor is not None:
        processor.chat_template = tokenizer.chat_template
        processor.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
