# SPDX-License-Identifier: Apache-2.0
"""The tiny Omni model's renderer without an engine, under stock vLLM as well."""

from collections.abc import Mapping, Sequence
from typing import Any

from tiny import models
from tiny.chat import message
from vllm.engine.arg_utils import EngineArgs
from vllm.renderers.params import ChatParams
from vllm.renderers.registry import renderer_from_config

# `vllm.renderers.base.BaseRenderer`, whose type is not known where the tree amends it.
Renderer = Any


def make_renderer(**settings: Any) -> Renderer:
    """Returns a renderer; `settings` are the engine's arguments."""
    arguments: dict[str, Any] = {
        "model": str(models.build_omni()),
        "dtype": "bfloat16",
        "enforce_eager": True,
        "max_model_len": 8192,
        "limit_mm_per_prompt": {"image": 8, "video": 8, "audio": 8},
        **settings,
    }
    return renderer_from_config(EngineArgs(**arguments).create_engine_config())


def chat(renderer: Renderer, *parts: Mapping[str, Any], **params: Any) -> Any:
    """Renders one message in this thread, as `LLM.chat` would."""
    chat_params, extras = ChatParams(**params), _extras(params)
    messages = [[message(*parts)]]
    return renderer.render_chat(messages, chat_params, prompt_extras=extras)[1][0]


async def chat_async(
    renderer: Renderer, *parts: Mapping[str, Any], **params: Any
) -> Any:
    """Renders one message on the event loop, as the server would."""
    return await render_async(renderer, [message(*parts)], **params)


async def render_async(
    renderer: Renderer, messages: Sequence[Any], **params: Any
) -> Any:
    """Renders a conversation on the event loop, as the server would."""
    _, made = await renderer.render_chat_async(
        [list(messages)], ChatParams(**params), prompt_extras=_extras(params)
    )
    return made[0]


def _extras(params: Mapping[str, Any]) -> dict[str, Any]:
    # The parser needs these settings, and so does the processor.
    names = params.keys() & {"mm_processor_kwargs"}
    return {name: params[name] for name in names}
