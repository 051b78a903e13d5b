# SPDX-License-Identifier: Apache-2.0
"""After a request that fails, the cache says what the engine has, and no more."""

from collections.abc import Mapping
from typing import Any

import pytest
from PIL import Image

from tests.harness import (
    Decoder,
    decoder_of,
    inputs_for,
    no_timing,
    payload,
    ref_of,
)
from vllm.multimodal.cache import LruKeyReplicatedReceiverCache
from vllm.multimodal.media import MediaRef
from vllm.multimodal.processing.apply_state import MultiModalApplyState
from vllm.renderers.base import BaseRenderer


class Engine:
    """The engine's half of the cache, fed with the requests that reach it."""

    def __init__(self, renderer: BaseRenderer) -> None:
        self.cache = LruKeyReplicatedReceiverCache(renderer.model_config)

    def take(self, made: Mapping[str, Any]) -> list[bool]:
        """Which items came with their data. It raises where one that it lacks did
        not."""
        came = []
        for modality, hashes in made["mm_hashes"].items():
            for item, mm_hash in zip(made["mm_kwargs"][modality], hashes, strict=True):
                came.append(item is not None)
                assert self.cache.get_and_update_item(item, mm_hash) is not None
        return came


@pytest.fixture
def engine(renderer: BaseRenderer) -> Engine:
    return Engine(renderer)


def apply(renderer: BaseRenderer, inputs: Any) -> Any:
    return renderer.get_mm_processor().apply(inputs, no_timing())


def in_phases(renderer: BaseRenderer, inputs: Any) -> Any:
    processor = renderer.get_mm_processor()
    with processor.apply_phase1(inputs, no_timing()) as state:
        state.wait_decodes()
        return processor.apply_phase2(state)


BOTH_WAYS = pytest.mark.parametrize("run", [apply, in_phases])


def images(*seeds: int) -> dict[str, list[MediaRef]]:
    return {"image": [ref_of("image", seed)[0] for seed in seeds]}


@BOTH_WAYS
@pytest.mark.parametrize("merged", [0, 1, 2])
def test_an_error_within_the_merge(
    renderer: BaseRenderer,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    run: Any,
    merged: int,
) -> None:
    update = renderer.mm_processor_cache.get_and_update_item
    calls: list[str] = []

    def failing(item: Any, mm_hash: str) -> Any:
        if len(calls) == merged:
            raise RuntimeError("on purpose")
        calls.append(mm_hash)
        return update(item, mm_hash)

    with monkeypatch.context() as patch:
        patch.setattr(renderer.mm_processor_cache, "get_and_update_item", failing)
        with pytest.raises(RuntimeError, match="on purpose"):
            run(renderer, inputs_for(renderer, images(0, 1, 2)))
    made = run(renderer, inputs_for(renderer, images(0, 1, 2)))
    assert engine.take(made) == [True, True, True]


@BOTH_WAYS
def test_an_error_after_the_merge(
    renderer: BaseRenderer, engine: Engine, run: Any
) -> None:
    engine.take(run(renderer, inputs_for(renderer, images(0))))
    inputs = inputs_for(renderer, images(0, 1))
    # The items have no place in this prompt, which shows when they are merged.
    inputs.prompt = [1, 2, 3]
    with pytest.raises((RuntimeError, AssertionError)):
        run(renderer, inputs)
    made = run(renderer, inputs_for(renderer, images(0, 1)))
    # What the engine had it still has, and only the other is sent.
    assert engine.take(made) == [False, True]


@BOTH_WAYS
def test_an_error_of_the_hf_processor_itself(
    renderer: BaseRenderer, engine: Engine, run: Any
) -> None:
    # Longer than 200 times its width, which this model's image processor refuses.
    decoder = Decoder(Image.new("RGB", (2, 1000)))
    ref = decoder.ref(b"a line")
    for _ in range(2):
        data = {"image": [*images(0)["image"], ref]}
        with pytest.raises(ValueError, match="Failed to apply"):
            run(renderer, inputs_for(renderer, data))
    assert ref.data == b"a line" and decoder.calls == 1
    assert engine.take(run(renderer, inputs_for(renderer, images(0)))) == [True]
    assert engine.take(run(renderer, inputs_for(renderer, images(0)))) == [False]


def test_items_that_need_no_engine_are_kept(renderer: BaseRenderer) -> None:
    """The cache that keeps the data itself has nothing to forget."""
    cache = renderer._mm_processor_only_cache
    inputs = inputs_for(renderer, images(0), cache=cache)
    inputs.prompt = [1, 2, 3]
    with pytest.raises((RuntimeError, AssertionError)):
        apply(renderer, inputs)
    decoder = decoder_of("image")
    data = {"image": [decoder.ref(payload("image"))]}
    made = apply(renderer, inputs_for(renderer, data, cache=cache))
    assert decoder.calls == 0 and made["mm_kwargs"]["image"][0] is not None


def test_late_decodes_are_waited_for_alone(renderer: BaseRenderer) -> None:
    processor = renderer.get_mm_processor()
    apply(renderer, inputs_for(renderer, images(0)))
    hit, late = ref_of("image", 0)
    slow, held = ref_of("video", held=True)
    inputs = inputs_for(renderer, {"image": [hit], "video": [slow]})
    with processor.apply_phase1(inputs, no_timing()) as state:
        assert isinstance(state, MultiModalApplyState)
        (first,) = state.jobs
        processor._decode_ref_items(state.inputs.mm_data_items, state)
        # The video is still at it; the state keeps both to clean up after.
        assert late.calls == 1 and not first.future.done()
        assert [job.item.modality for job in state.jobs] == ["video", "image"]
        held.go.set()
    assert all(job.future.done() for job in state.jobs)


@pytest.mark.parametrize("cached", [False, True])
def test_passthrough_data_go_round_the_cache(
    renderer: BaseRenderer, monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    processor = renderer.get_mm_processor()
    if cached:
        apply(renderer, inputs_for(renderer, {"audio": [ref_of("audio")[0]]}))
    ref, decoder = ref_of("audio")
    inputs = inputs_for(renderer, {"audio": [ref]})
    items: Any = inputs.mm_data_items["audio"]
    # The tiny model has no embeddings that go together with decoded media.
    monkeypatch.setattr(
        type(items), "get_passthrough_data", lambda self: {"unused": [0]}
    )
    steps: list[str] = []
    note(monkeypatch, steps, processor, "_apply_hf_processor_main")
    note(monkeypatch, steps, type(inputs), "get_mm_hashes")

    assert not inputs.can_use_cache
    with processor.apply_phase1(inputs, no_timing()) as state:
        # Although the cache may hold it.
        (job,) = state.jobs
        assert job.item.modality == "audio" and steps == []
        state.wait_decodes()
        made = processor.apply_phase2(state)
    assert decoder.calls == 1
    assert steps == ["_apply_hf_processor_main", "get_mm_hashes"]
    assert made["mm_kwargs"]["audio"][0] is not None


def note(
    monkeypatch: pytest.MonkeyPatch, steps: list[str], owner: Any, name: str
) -> None:
    """Adds `name` to `steps` whenever that method of `owner` runs."""
    method = getattr(owner, name)

    def noted(*args: Any, **kwargs: Any) -> Any:
        steps.append(name)
        return method(*args, **kwargs)

    monkeypatch.setattr(owner, name, noted)
