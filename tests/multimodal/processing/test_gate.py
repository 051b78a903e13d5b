# SPDX-License-Identifier: Apache-2.0
"""Which processors go in two phases, and what becomes of those that can't."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vllm
from tests.harness import (
    Decoder,
    decoder_of,
    payload,
    plain,
    process,
    process_async,
    ref_of,
    same,
)
from vllm.exceptions import VLLMUnprocessableEntityError
from vllm.multimodal.processing import (
    BaseMultiModalProcessor,
    EncDecMultiModalProcessor,
)
from vllm.renderers.base import BaseRenderer

PACKAGE = Path(inspect.getfile(vllm)).parent
NAMES = ("apply", "_cached_apply_hf_processor", "_apply_hf_processor")


def overriding_classes() -> Iterator[tuple[str, str, set[str]]]:
    """Module, name and overridden methods of the processors in model code, by their
    source."""
    for folder in ("model_executor/models", "models"):
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            source = path.read_text()
            if not any(f"def {name}(" in source for name in NAMES):
                continue
            module = path.relative_to(PACKAGE.parent).with_suffix("")
            for node in ast.parse(source).body:
                if isinstance(node, ast.ClassDef) and "Processor" in node.name:
                    methods = {getattr(member, "name", "") for member in node.body}
                    if overridden := methods & set(NAMES):
                        yield ".".join(module.parts), node.name, overridden


OVERRIDING = list(overriding_classes())


@pytest.mark.parametrize(
    ("module", "name", "methods"), [pytest.param(*o, id=o[1]) for o in OVERRIDING]
)
def test_each_overriding_processor_of_the_release_is_found(
    module: str, name: str, methods: set[str]
) -> None:
    try:
        cls: Any = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as e:
        pytest.skip(f"{module} needs {e.name}")
    if not issubclass(cls, BaseMultiModalProcessor):
        pytest.skip("a mixin: the processor that has it is looked at by itself")
    made = cls.__new__(cls)
    assert not made.supports_two_phase_apply


def test_there_are_some() -> None:
    assert {name for _, _, methods in OVERRIDING for name in methods} >= {
        "apply",
        "_cached_apply_hf_processor",
    }


# --- Encoder-decoder models -------------------------------------------------------


@pytest.fixture
def enc_dec(
    renderer: BaseRenderer, monkeypatch: pytest.MonkeyPatch
) -> EncDecMultiModalProcessor:
    """The renderer's processor as that of an encoder-decoder model, which overrides
    `apply`."""
    released = renderer.get_mm_processor()

    def create_encoder_prompt(self: Any, prompt: list[int], mm_items: Any) -> list[int]:
        return list(prompt)

    def create_decoder_prompt(self: Any, prompt: list[int], mm_items: Any) -> list[int]:
        return [7, *(1 for items in mm_items.values() for _ in range(len(items)))]

    body = {
        "create_encoder_prompt": create_encoder_prompt,
        "create_decoder_prompt": create_decoder_prompt,
    }
    bases: Any = (EncDecMultiModalProcessor, type(released))
    made = type("EncDec", bases, body)(released.info, released.dummy_inputs)
    monkeypatch.setattr(renderer, "mm_processor", made)
    return made


async def run_async(renderer: BaseRenderer, data: Any) -> Any:
    return await process_async(renderer, data)


async def run_sync(renderer: BaseRenderer, data: Any) -> Any:
    return process(renderer, data)


@pytest.mark.parametrize("run", [run_sync, run_async])
async def test_encoder_decoder_models_decode_misses_alone(
    renderer: BaseRenderer, enc_dec: EncDecMultiModalProcessor, run: Any
) -> None:
    assert not enc_dec.supports_two_phase_apply
    first, second = decoder_of("audio"), decoder_of("audio")
    cold = await run(renderer, {"audio": [first.ref(payload("audio"))]})
    hit = await run(renderer, {"audio": [second.ref(payload("audio"))]})
    assert (first.calls, second.calls) == (1, 0)
    assert cold["prompt_token_ids"] == hit["prompt_token_ids"] == [7, 1]
    assert cold["encoder_prompt_token_ids"] == hit["encoder_prompt_token_ids"]
    assert cold["mm_kwargs"]["audio"][0] is not None
    assert hit["mm_kwargs"]["audio"] == [None]
    assert cold["mm_hashes"] == hit["mm_hashes"]


async def test_the_encoder_gets_what_other_models_get(
    renderer: BaseRenderer, enc_dec: EncDecMultiModalProcessor
) -> None:
    made = await run_async(renderer, {"audio": [ref_of("audio")[0]]})
    made["prompt_token_ids"] = made["encoder_prompt_token_ids"]
    renderer.clear_mm_cache()
    released: Any = type(enc_dec).__mro__[2]
    renderer.mm_processor = released(enc_dec.info, enc_dec.dummy_inputs)
    expected = await run_async(renderer, {"audio": [ref_of("audio")[0]]})
    assert same(plain(made), plain(expected))


@pytest.mark.parametrize("run", [run_sync, run_async])
async def test_a_broken_item_of_an_encoder_decoder_model(
    renderer: BaseRenderer, enc_dec: EncDecMultiModalProcessor, run: Any
) -> None:
    good, decoder = ref_of("audio")
    bad = Decoder(error=ValueError("broken"))
    with pytest.raises(VLLMUnprocessableEntityError, match="audio at index 1: broken"):
        await run(renderer, {"audio": [good, bad.ref(b"x")]})
    made = await run(renderer, {"audio": [good]})
    assert decoder.calls == 1
    assert made["mm_kwargs"]["audio"][0] is not None
