# SPDX-License-Identifier: Apache-2.0
"""The tiny Omni model's renderer and requests to it, under stock vLLM as well."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tiny.chat import data_part, message, part
from tiny.renderer import chat, chat_async, make_renderer
from vllm.renderers.base import BaseRenderer

__all__ = [
    "chat",
    "chat_async",
    "data_part",
    "make_renderer",
    "message",
    "part",
    "plain",
    "prompt_for",
    "prompt_of",
    "same",
]

PLACEHOLDERS = {
    "image": "<|vision_bos|><|IMAGE|><|vision_eos|>",
    "video": "<|vision_bos|><|VIDEO|><|vision_eos|>",
    "audio": "<|audio_bos|><|AUDIO|><|audio_eos|>",
}


def prompt_for(renderer: BaseRenderer, *modalities: str) -> list[int]:
    """Token ids of a prompt with these items in it, in this order."""
    text = "".join(PLACEHOLDERS[m] for m in modalities) + "what?"
    return renderer.get_tokenizer().encode(text, add_special_tokens=False)


def prompt_of(renderer: BaseRenderer, data: Mapping[str, Sequence[Any]]) -> list[int]:
    return prompt_for(renderer, *(m for m, items in data.items() for _ in items))


def plain(made: Mapping[str, Any]) -> dict[str, Any]:
    """What a model sees of a processed request, in types of Python and torch."""
    return {
        "prompt": list(made["prompt_token_ids"]),
        "placeholders": {
            modality: [
                (r.offset, r.length, None if r.is_embed is None else r.is_embed)
                for r in ranges
            ]
            for modality, ranges in made["mm_placeholders"].items()
        },
        "kwargs": {
            modality: [None if item is None else item.get_data() for item in items]
            for modality, items in made["mm_kwargs"].items()
        },
    }


def same(one: Any, other: Any) -> bool:
    """Whether two results of `plain`, or parts of them, are equal to the bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            same(v, other[k]) for k, v in one.items()
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other
