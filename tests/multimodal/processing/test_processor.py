# SPDX-License-Identifier: Apache-2.0
"""Two-phase processing on the tiny model's real processor."""

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from tests.harness import (
    Decoder,
    decoder_of,
    inputs_for,
    items_counted,
    no_timing,
    payload,
    plain,
    process,
    ref_of,
    result_of,
    same,
)
from vllm.exceptions import VLLMUnprocessableEntityError
from vllm.multimodal.media import MediaRef
from vllm.multimodal.media import flights as flights_module
from vllm.multimodal.media.flights import decode_flights
from vllm.multimodal.processing import processor as processor_module
from vllm.multimodal.processing.apply_state import MultiModalApplyState
from vllm.renderers.base import BaseRenderer

MODALITIES = ["image", "video", "audio"]


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> list[MultiModalApplyState]:
    """Every state that processing makes from now on."""
    made: list[MultiModalApplyState] = []

    class Recorded(MultiModalApplyState):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(processor_module, "MultiModalApplyState", Recorded)
    return made


def assert_ended(state: MultiModalApplyState) -> None:
    """No decode runs any more, and the payloads are let go."""
    assert all(job.future.done() for job in state.jobs)
    for items in state.inputs.mm_data_items.values():
        for i in range(len(items)):
            raw = items.get_raw(i)
            assert not isinstance(raw, MediaRef) or raw.data == b""


def apply(renderer: BaseRenderer, data: Mapping[str, Any], **how: Any) -> Any:
    made = inputs_for(renderer, data, **how)
    return renderer.get_mm_processor().apply(made, no_timing())


def phase1(
    renderer: BaseRenderer, data: Mapping[str, Any], **how: Any
) -> MultiModalApplyState:
    made = inputs_for(renderer, data, **how)
    return renderer.get_mm_processor().apply_phase1(made, no_timing())


def in_phases(renderer: BaseRenderer, data: Mapping[str, Any], **how: Any) -> Any:
    with phase1(renderer, data, **how) as state:
        state.wait_decodes()
        return renderer.get_mm_processor().apply_phase2(state)


def missing_kwargs(made: Any, modality: str) -> list[bool]:
    """Which items are sent to the engine without data, because it has them."""
    return [item is None for item in made["mm_kwargs"][modality]]


def refs(seed: int = 0, count: int = 2) -> dict[str, list[MediaRef]]:
    seeds = range(seed, seed + count)
    return {m: [ref_of(m, s)[0] for s in seeds] for m in MODALITIES}


# --- The two phases ---------------------------------------------------------------


def test_phases_do_what_apply_does(renderer: BaseRenderer) -> None:
    cold = apply(renderer, refs())
    hit = apply(renderer, refs())
    renderer.clear_mm_cache()
    cold_in_phases = in_phases(renderer, refs())
    hit_in_phases = in_phases(renderer, refs())

    assert same(plain(cold), plain(cold_in_phases))
    assert same(plain(hit), plain(hit_in_phases))
    assert dict(cold["mm_hashes"]) == dict(cold_in_phases["mm_hashes"])
    assert dict(hit["mm_hashes"]) == dict(cold["mm_hashes"])
    assert cold["prompt_token_ids"] == hit["prompt_token_ids"]
    for modality in MODALITIES:
        assert missing_kwargs(cold, modality) == [False, False]
        assert missing_kwargs(hit, modality) == [True, True]


def test_refs_are_processed_as_what_they_decode_to(renderer: BaseRenderer) -> None:
    from_refs = in_phases(renderer, refs())
    decoded = {m: [result_of(m, seed) for seed in range(2)] for m in MODALITIES}
    assert same(plain(from_refs), plain(apply(renderer, decoded)))


@pytest.mark.parametrize("modality", MODALITIES)
@pytest.mark.parametrize("run", [apply, in_phases])
def test_a_hit_decodes_nothing(renderer: BaseRenderer, modality: str, run: Any) -> None:
    first, second = decoder_of(modality), decoder_of(modality)
    run(renderer, {modality: [first.ref(payload(modality))]})
    before = items_counted(renderer, modality, "cached")
    made = run(renderer, {modality: [second.ref(payload(modality))]})
    assert (first.calls, second.calls) == (1, 0)
    assert missing_kwargs(made, modality) == [True]
    assert items_counted(renderer, modality, "cached") == before + 1


def test_only_misses_are_decoded(renderer: BaseRenderer) -> None:
    apply(renderer, {"image": [ref_of("image", 1)[0]]})
    made = [ref_of("image", seed) for seed in range(3)]
    result = in_phases(renderer, {"image": [ref for ref, _ in made]})
    assert [decoder.calls for _, decoder in made] == [1, 0, 1]
    assert missing_kwargs(result, "image") == [False, True, False]


def test_phase1_waits_for_nothing(renderer: BaseRenderer) -> None:
    ref, decoder = ref_of("image", held=True)
    with phase1(renderer, {"image": [ref]}) as state:
        (job,) = state.jobs
        assert not job.future.done()
        decoder.go.set()
        state.wait_decodes()
        assert decoder.calls == 1


# --- What happens between them ----------------------------------------------------


def test_a_miss_becomes_a_hit(renderer: BaseRenderer) -> None:
    # One item in the cache, by the client's word, and two payloads: nothing to share.
    uuids = {"image": ["same"]}
    ref, decoder = ref_of("image")
    other = decoder_of("image")
    with phase1(renderer, {"image": [ref]}, uuids=uuids) as state:
        state.wait_decodes()
        filled = apply(renderer, {"image": [other.ref(b"as new")]}, uuids=uuids)
        made = renderer.get_mm_processor().apply_phase2(state)
    assert (decoder.calls, other.calls) == (1, 1)
    assert missing_kwargs(filled, "image") == [False]
    assert missing_kwargs(made, "image") == [True]
    assert made["prompt_token_ids"] == filled["prompt_token_ids"]


def test_a_miss_is_shared_until_its_request_ends(renderer: BaseRenderer) -> None:
    ref, decoder = ref_of("image")
    later, later_decoder = ref_of("image")
    with phase1(renderer, {"image": [ref]}) as state:
        state.wait_decodes()
        # It is decoded, and not yet in the cache.
        apply(renderer, {"image": [later]})
        made = renderer.get_mm_processor().apply_phase2(state)
    assert (decoder.calls, later_decoder.calls) == (1, 0)
    assert missing_kwargs(made, "image") == [True]
    renderer.clear_mm_cache()
    apply(renderer, {"image": [ref_of("image")[0]]})


def test_flights_end_with_their_requests(renderer: BaseRenderer) -> None:
    # Other tests may have left some of theirs open.
    open_before = dict(decode_flights._open)
    held_before = decode_flights._admission.held
    for data in (refs(), refs(), refs(2)):
        in_phases(renderer, data)
    assert decode_flights._open == open_before
    assert decode_flights._admission.held == held_before


def test_an_evicted_hit_is_decoded_late(renderer: BaseRenderer) -> None:
    cold = apply(renderer, {"image": [ref_of("image")[0]]})
    ref, decoder = ref_of("image")
    with phase1(renderer, {"image": [ref]}) as state:
        assert state.jobs == []
        state.wait_decodes()
        renderer.clear_mm_cache()
        made = renderer.get_mm_processor().apply_phase2(state)
        assert len(state.jobs) == 1
    assert decoder.calls == 1
    assert same(plain(made), plain(cold))
    assert_ended(state)


def test_both_changes_in_one_request(renderer: BaseRenderer) -> None:
    seeds = range(3)
    cold = apply(renderer, {"image": [ref_of("image", s)[0] for s in seeds]})
    renderer.clear_mm_cache()
    apply(renderer, {"image": [ref_of("image", 0)[0]]})

    made = [ref_of("image", s) for s in seeds]
    with phase1(renderer, {"image": [ref for ref, _ in made]}) as state:
        assert [job.item.index for job in state.jobs] == [1, 2]
        state.wait_decodes()
        # Item 0 goes, item 1 comes, item 2 stays missing.
        renderer.clear_mm_cache()
        apply(renderer, {"image": [ref_of("image", 1)[0]]})
        result = renderer.get_mm_processor().apply_phase2(state)
    assert [decoder.calls for _, decoder in made] == [1, 1, 1]
    assert missing_kwargs(result, "image") == [False, True, False]
    assert result["prompt_token_ids"] == cold["prompt_token_ids"]
    for i in (0, 2):
        assert same(
            plain(result)["kwargs"]["image"][i], plain(cold)["kwargs"]["image"][i]
        )


def test_a_late_decode_that_fails_names_the_item(renderer: BaseRenderer) -> None:
    apply(renderer, {"image": [ref_of("image", s)[0] for s in range(2)]})
    bad = Decoder(error=ValueError("broken"))
    data = {"image": [ref_of("image", 0)[0], bad.ref(payload("image", 1))]}
    with phase1(renderer, data) as state:
        renderer.clear_mm_cache()
        with pytest.raises(VLLMUnprocessableEntityError, match="image at index 1"):
            renderer.get_mm_processor().apply_phase2(state)
    assert_ended(state)


# --- With other caches, UUIDs and duplicates --------------------------------------


@pytest.mark.parametrize("run", [apply, in_phases])
def test_without_a_cache(uncached_renderer: BaseRenderer, run: Any) -> None:
    assert uncached_renderer.mm_processor_cache is None
    for _ in range(2):
        made = [ref_of(m) for m in MODALITIES]
        data = {m: [ref] for m, (ref, _) in zip(MODALITIES, made, strict=True)}
        result = run(uncached_renderer, data)
        assert [decoder.calls for _, decoder in made] == [1, 1, 1]
        assert not any(missing_kwargs(result, m)[0] for m in MODALITIES)


def test_without_a_cache_as_with_one(
    renderer: BaseRenderer, uncached_renderer: BaseRenderer
) -> None:
    assert same(
        plain(process(renderer, refs())), plain(process(uncached_renderer, refs()))
    )


def test_without_a_cache_empty_items_are_no_decode(
    uncached_renderer: BaseRenderer,
) -> None:
    data = {"image": [ref_of("image")[0]]}
    with phase1(uncached_renderer, data) as state:
        assert len(state.jobs) == 1
        state.wait_decodes()


def test_skipping_the_cache_leaves_it_alone(renderer: BaseRenderer) -> None:
    made = [ref_of("image") for _ in range(3)]
    for ref, _ in made[:2]:
        # This one keeps the data of its hits.
        result = process(renderer, {"image": [ref]}, skip_mm_cache=True)
        assert missing_kwargs(result, "image") == [False]
    assert [decoder.calls for _, decoder in made] == [1, 0, 0]

    result = process(renderer, {"image": [made[2][0]]})
    assert made[2][1].calls == 1 and missing_kwargs(result, "image") == [False]


@pytest.mark.parametrize("run", [apply, in_phases])
@pytest.mark.parametrize("modality", MODALITIES)
def test_a_uuid_without_data(renderer: BaseRenderer, modality: str, run: Any) -> None:
    uuids = {modality: ["known"]}
    cold = run(renderer, {modality: [ref_of(modality)[0]]}, uuids=uuids)
    made = run(renderer, {modality: [None]}, uuids=uuids)
    assert made["prompt_token_ids"] == cold["prompt_token_ids"]
    assert missing_kwargs(made, modality) == [True]


@pytest.mark.parametrize("run", [apply, in_phases])
def test_an_unknown_uuid_without_data(
    renderer: BaseRenderer, run: Any, states: list[MultiModalApplyState]
) -> None:
    ref, _ = ref_of("image")
    uuids = {"image": [None, "unknown"]}
    with pytest.raises(ValueError, match="image at index 1"):
        run(renderer, {"image": [ref, None]}, uuids=uuids)
    (state,) = states
    assert_ended(state)
    assert ref.data == payload("image")


def test_a_uuid_takes_the_place_of_the_payload(renderer: BaseRenderer) -> None:
    uuids = {"image": ["id"]}
    apply(renderer, {"image": [ref_of("image", 0)[0]]}, uuids=uuids)
    other, decoder = ref_of("image", 1)
    made = apply(renderer, {"image": [other]}, uuids=uuids)
    assert decoder.calls == 0 and made["mm_hashes"]["image"] == ["id"]


def test_items_with_and_without_data_and_uuid(renderer: BaseRenderer) -> None:
    apply(renderer, {"image": [ref_of("image", 0)[0]]}, uuids={"image": ["known"]})
    made = [ref_of("image", seed) for seed in (1, 2)]
    data = {"image": [made[0][0], None, made[1][0]]}
    uuids = {"image": [None, "known", "new"]}
    result = in_phases(renderer, data, uuids=uuids)
    assert missing_kwargs(result, "image") == [False, True, False]
    assert [decoder.calls for _, decoder in made] == [1, 1]


@pytest.mark.parametrize("run", [apply, in_phases])
def test_the_same_item_twice(renderer: BaseRenderer, run: Any) -> None:
    ref, decoder = ref_of("image")
    made = run(renderer, {"image": [ref, ref]})
    assert decoder.calls == 1
    assert missing_kwargs(made, "image") == [False, True]
    one, two = made["mm_placeholders"]["image"]
    assert one.length == two.length
    (first, second) = made["mm_hashes"]["image"]
    assert first == second


def test_refs_are_reusable(renderer: BaseRenderer) -> None:
    ref, decoder = ref_of("image")
    first = apply(renderer, {"image": [ref]})
    assert ref.data == payload("image")
    renderer.clear_mm_cache()
    second = apply(renderer, {"image": [ref]})
    assert same(plain(first), plain(second)) and decoder.calls == 1


def test_refs_are_reusable_after_a_hit(renderer: BaseRenderer) -> None:
    apply(renderer, {"image": [ref_of("image")[0]]})
    ref, decoder = ref_of("image")
    apply(renderer, {"image": [ref]})
    renderer.clear_mm_cache()
    apply(renderer, {"image": [ref]})
    assert decoder.calls == 1


# --- How it ends ------------------------------------------------------------------


@pytest.mark.parametrize("run", [apply, in_phases])
def test_after_success(
    renderer: BaseRenderer, states: list[MultiModalApplyState], run: Any
) -> None:
    run(renderer, refs())
    run(renderer, refs())
    assert len(states) == 2
    for state in states:
        assert_ended(state)


def fail(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("on purpose")


@pytest.mark.parametrize("run", [apply, in_phases])
@pytest.mark.parametrize(
    "step", ["_apply_hf_processor_main", "_get_mm_fields_config", "_merge_mm_kwargs"]
)
def test_after_an_error_in_phase2(
    renderer: BaseRenderer,
    states: list[MultiModalApplyState],
    monkeypatch: pytest.MonkeyPatch,
    run: Any,
    step: str,
) -> None:
    data = refs()
    with monkeypatch.context() as patch:
        patch.setattr(renderer.get_mm_processor(), step, fail, raising=True)
        with pytest.raises(RuntimeError, match="on purpose"):
            run(renderer, data)
    assert_ended(states[0])
    # The same refs, in the next request.
    assert missing_kwargs(run(renderer, data), "video") == [False, False]


@pytest.mark.parametrize("run", [apply, in_phases])
def test_after_an_error_in_a_decode(
    renderer: BaseRenderer, states: list[MultiModalApplyState], run: Any
) -> None:
    bad = Decoder(error=ValueError("broken"))
    good, decoder = ref_of("image")
    data = {"image": [good, bad.ref(b"1"), bad.ref(b"2")]}
    before = items_counted(renderer, "image", "failed")
    with pytest.raises(VLLMUnprocessableEntityError, match="image at index 1: broken"):
        run(renderer, data)
    (state,) = states
    assert_ended(state)
    assert items_counted(renderer, "image", "failed") == before + 2

    run(renderer, {"image": [good]})
    assert decoder.calls == 1
    # A failure is not remembered.
    bad.error, bad.result = None, result_of("image", 1)
    run(renderer, data)


@pytest.mark.parametrize("run", [apply, in_phases])
def test_after_an_error_in_phase1(
    renderer: BaseRenderer,
    states: list[MultiModalApplyState],
    monkeypatch: pytest.MonkeyPatch,
    run: Any,
) -> None:
    submit = flights_module.submit_decode
    submissions: list[str] = []

    def submit_one(modality: str, decode: Any) -> Any:
        submissions.append(modality)
        if len(submissions) == 2:
            raise RuntimeError("no thread left")
        return submit(modality, decode)

    ref, decoder = ref_of("image")
    with monkeypatch.context() as patch:
        patch.setattr(flights_module, "submit_decode", submit_one)
        with pytest.raises(RuntimeError, match="no thread left"):
            run(renderer, {"image": [ref, ref_of("image", 1)[0]]})
    (state,) = states
    assert len(state.jobs) == 1
    assert_ended(state)
    run(renderer, {"image": [ref]})
    assert decoder.calls == 1


@pytest.mark.parametrize("run", [apply, in_phases])
def test_after_an_error_in_the_lookup(
    renderer: BaseRenderer,
    states: list[MultiModalApplyState],
    monkeypatch: pytest.MonkeyPatch,
    run: Any,
) -> None:
    ref, decoder = ref_of("image")
    with monkeypatch.context() as patch:
        patch.setattr(renderer.mm_processor_cache, "is_cached", fail)
        with pytest.raises(RuntimeError, match="on purpose"):
            run(renderer, {"image": [ref]})
    assert_ended(states[0])
    assert decoder.calls == 0


# --- Processors that go their own way ---------------------------------------------


def overriding(renderer: BaseRenderer, *names: str) -> Any:
    """A processor like the renderer's that overrides methods to do the same."""
    plain_processor = renderer.get_mm_processor()
    base: Any = type(plain_processor)

    def same_as_base(name: str) -> Any:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return getattr(base, name)(self, *args, **kwargs)

        return method

    body = {name: same_as_base(name) for name in names}
    derived = type("Overriding", (base,), body)
    return derived(plain_processor.info, plain_processor.dummy_inputs)


OVERRIDES = ["apply", "_cached_apply_hf_processor", "_apply_hf_processor"]


def test_the_plain_processor_has_two_phases(renderer: BaseRenderer) -> None:
    assert renderer.get_mm_processor().supports_two_phase_apply
    assert overriding(renderer, "_get_hf_mm_inputs").supports_two_phase_apply


@pytest.mark.parametrize("name", OVERRIDES)
def test_an_overriding_processor_has_not(renderer: BaseRenderer, name: str) -> None:
    made = overriding(renderer, name)
    assert not made.supports_two_phase_apply
    derived = type("Derived", (type(made),), {})
    assert not derived(made.info, made.dummy_inputs).supports_two_phase_apply


def test_overrides_are_logged_once(
    renderer: BaseRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    logger = logging.getLogger(processor_module.__name__)
    monkeypatch.setattr(logger, "debug", lambda text, *args: lines.append(text % args))
    made = overriding(renderer, "apply", "_apply_hf_processor")
    for _ in range(3):
        assert not made.supports_two_phase_apply
    assert len(lines) == 1
    assert "Overriding overrides apply, _apply_hf_processor" in lines[0]

    assert renderer.get_mm_processor().supports_two_phase_apply
    assert len(lines) == 1


@pytest.mark.parametrize("name", OVERRIDES)
def test_an_overriding_processor_decodes_misses_alone(
    renderer: BaseRenderer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    cold = plain(process(renderer, refs(count=1)))
    renderer.clear_mm_cache()
    monkeypatch.setattr(renderer, "mm_processor", overriding(renderer, name))
    first = {m: ref_of(m) for m in MODALITIES}
    made = process(renderer, {m: [ref] for m, (ref, _) in first.items()})
    assert same(plain(made), cold)

    again = {m: ref_of(m) for m in MODALITIES}
    process(renderer, {m: [ref] for m, (ref, _) in again.items()})
    assert [decoder.calls for _, decoder in first.values()] == [1, 1, 1]
    assert [decoder.calls for _, decoder in again.values()] == [0, 0, 0]


def test_a_processor_without_any_of_it(
    renderer: BaseRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that replaces the cached path decodes each item as it takes it."""

    def uncached(self: Any, inputs: Any, timing_ctx: Any) -> Any:
        return self._apply_hf_processor(inputs, timing_ctx)

    plain_processor = renderer.get_mm_processor()
    base: Any = type(plain_processor)
    derived = type("Uncached", (base,), {"_cached_apply_hf_processor": uncached})
    made = derived(plain_processor.info, plain_processor.dummy_inputs)

    cold = plain(process(renderer, refs()))
    monkeypatch.setattr(renderer, "mm_processor", made)
    assert same(plain(process(renderer, refs())), cold)
    bad = Decoder(error=ValueError("broken"))
    with pytest.raises(VLLMUnprocessableEntityError, match="image at index 1: broken"):
        process(renderer, {"image": [ref_of("image")[0], bad.ref(b"x")]})
