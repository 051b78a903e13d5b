# SPDX-License-Identifier: Apache-2.0
"""The tiny Omni model's renderer and requests to it, under stock vLLM as well."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tiny import media, models
from vllm.engine.arg_utils import EngineArgs
from vllm.renderers.base import BaseRenderer
from vllm.renderers.params import ChatParams
from vllm.renderers.registry import renderer_from_config

PLACEHOLDERS = {
    "image": "<|vision_bos|><|IMAGE|><|vision_eos|>",
    "video": "<|vision_bos|><|VIDEO|><|vision_eos|>",
    "audio": "<|audio_bos|><|AUDIO|><|audio_eos|>",
}


def make_renderer(**settings: Any) -> BaseRenderer:
    """The renderer of the tiny Omni model, without an engine."""
    arguments: dict[str, Any] = {
        "model": str(models.build_omni()),
        "dtype": "bfloat16",
        "enforce_eager": True,
        "max_model_len": 8192,
        "limit_mm_per_prompt": {"image": 8, "video": 8, "audio": 8},
        **settings,
    }
    return renderer_from_config(EngineArgs(**arguments).create_engine_config())


def prompt_for(renderer: BaseRenderer, *modalities: str) -> list[int]:
    """Token ids of a prompt with these items in it, in this order."""
    text = "".join(PLACEHOLDERS[m] for m in modalities) + "what?"
    return renderer.get_tokenizer().encode(text, add_special_tokens=False)


def prompt_of(renderer: BaseRenderer, data: Mapping[str, Sequence[Any]]) -> list[int]:
    return prompt_for(renderer, *(m for m, items in data.items() for _ in items))


def chat(renderer: BaseRenderer, *parts: Mapping[str, Any], **params: Any) -> Any:
    """Render one message in this thread, as the server would."""
    messages = [[message(*parts)]]
    chat_params, extras = ChatParams(**params), _extras(params)
    return renderer.render_chat(messages, chat_params, prompt_extras=extras)[1][0]


async def chat_async(
    renderer: BaseRenderer, *parts: Mapping[str, Any], **params: Any
) -> Any:
    messages = [[message(*parts)]]
    chat_params, extras = ChatParams(**params), _extras(params)
    _, made = await renderer.render_chat_async(
        messages, chat_params, prompt_extras=extras
    )
    return made[0]


def _extras(params: Mapping[str, Any]) -> dict[str, Any]:
    # The parser needs these settings, and so does the processor.
    names = params.keys() & {"mm_processor_kwargs"}
    return {name: params[name] for name in names}


def message(*parts: Mapping[str, Any]) -> Any:
    return {"role": "user", "content": [*parts, {"type": "text", "text": "what?"}]}


def part(modality: str, url: str | None, uuid: str | None = None) -> dict[str, Any]:
    """A content part for a URL."""
    kind = f"{modality}_url"
    made: dict[str, Any] = {"type": kind, kind: None if url is None else {"url": url}}
    if uuid is not None:
        made["uuid"] = uuid
    return made


def data_part(modality: str, data: bytes, mime: str) -> dict[str, Any]:
    """A content part that carries its payload."""
    return part(modality, media.data_url(data, mime))


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
