# SPDX-License-Identifier: Apache-2.0
"""Renders every family's requests and saves what comes out.

    [VLLM_LAZY_MEDIA=0] python -m tests.models.families.sweep DIRECTORY [NAME...]

writes NAME.pt for each family, all without a name, to DIRECTORY: what each request
became and what it decoded, or why the family could not be built.
"""

import asyncio
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.models.families import FAMILIES
from tests.models.families.counting import DecodeCount
from tests.models.families.family import Case, Family, Step
from tests.omni import plain
from tiny.renderer import render_async
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.models.registry import ModelRegistry
from vllm.renderers.base import BaseRenderer
from vllm.renderers.params import ChatParams
from vllm.renderers.registry import renderer_from_config
from vllm.transformers_utils.config import get_config

STOCK = os.environ.get("VLLM_LAZY_MEDIA") == "0"

Record = dict[str, Any]
Render = Callable[..., Any]


def main(directory: str, *names: str) -> None:
    counter = DecodeCount()
    for name in names or FAMILIES:
        print(name, flush=True)
        try:
            found = sweep(FAMILIES[name], Path(directory) / name, counter)
        except Exception:
            found = {"error": traceback.format_exc()}
        torch.save(found, Path(directory) / f"{name}.pt")


def sweep(family: Family, model: Path, counter: DecodeCount) -> Record:
    renderer = make_renderer(family, model)
    try:
        processor = renderer.get_mm_processor()
        return {
            "processor": type(processor).__name__,
            "two_phase": getattr(processor, "supports_two_phase_apply", None),
            "cases": {
                name: run_case(renderer, family, case, counter)
                for name, case in family.cases.items()
            },
        }
    finally:
        renderer.shutdown()


def make_renderer(family: Family, model: Path) -> BaseRenderer:
    if family.prepare is not None:
        family.prepare()
    model.mkdir(parents=True)
    family.write(model)
    settings = {"dtype": "float32", "enforce_eager": True, **family.settings}
    if STOCK and not family.stock_cached:
        settings["mm_processor_cache_gb"] = 0
    config = get_config(model, trust_remote_code=False)
    for architecture in (*config.architectures, *family.architectures):
        know(architecture)
    arguments = EngineArgs(model=str(model), **settings)
    return renderer_from_config(arguments.create_engine_config())


def know(architecture: str) -> None:
    """Import a model here. Otherwise vLLM imports itself anew, in a process of its
    own, for each model that it meets for the first time."""
    registered = ModelRegistry.models.get(architecture)
    if registered is not None:
        ModelRegistry.register_model(architecture, registered.load_model_cls())


def run_case(
    renderer: BaseRenderer, family: Family, case: Case, counter: DecodeCount
) -> Record:
    """By way of rendering, what each step of the case came to."""
    ways: dict[str, Render] = {"async": render_as_server, "sync": render_offline}
    results = {}
    for way, render in ways.items():
        forget(renderer)
        counter.take()
        results[way] = [
            run_step(renderer, family, step, case, render, counter)
            for step in case.steps
        ]
    return results


def forget(renderer: BaseRenderer) -> None:
    renderer.clear_mm_cache()
    if renderer._mm_processor_only_cache is not None:
        renderer._mm_processor_only_cache.clear_cache()


def run_step(
    renderer: BaseRenderer,
    family: Family,
    step: Step,
    case: Case,
    render: Render,
    counter: DecodeCount,
) -> Record:
    try:
        made = render(renderer, family, step, **case.params)
    except Exception:
        return {"error": traceback.format_exc(), "decodes": counter.take()}
    return {"model": seen(made), "hashes": made["mm_hashes"], "decodes": counter.take()}


def render_as_server(
    renderer: BaseRenderer, family: Family, step: Step, **params: Any
) -> Any:
    """With the cache that knows what the engine's holds."""
    return asyncio.run(render_async(renderer, conversation(family, step), **params))


def render_offline(
    renderer: BaseRenderer, family: Family, step: Step, **params: Any
) -> Any:
    """With the cache that keeps what was processed, so that a hit shows in full."""
    _, made = renderer.render_chat(
        [conversation(family, step)],
        ChatParams(**params),
        prompt_extras={n: params[n] for n in params.keys() & {"mm_processor_kwargs"}},
        skip_mm_cache=True,
    )
    return made[0]


def conversation(family: Family, step: Step) -> list[Any]:
    content = list(step.parts)
    if family.question:
        content.append({"type": "text", "text": "what?"})
    return [{"role": "user", "content": content}]


def seen(made: Any) -> Record:
    """All that reaches the model of a rendered request, in plain types."""
    fields = {
        modality: [
            None
            if item is None
            else {key: repr(element.field) for key, element in item.items()}
            for item in items
        ]
        for modality, items in made["mm_kwargs"].items()
    }
    return {
        **plain(made),
        "fields": fields,
        "encoder prompt": made.get("encoder_prompt_token_ids"),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
