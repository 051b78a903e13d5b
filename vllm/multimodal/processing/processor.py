# SPDX-License-Identifier: Apache-2.0
"""Processing in two phases, with the decodes of cache misses between them.

Phase 1 looks the items up and submits decodes for those that the cache lacks; phase
2 looks again, because other requests ran meanwhile, and runs the HF processor on
what is missing. `apply` is both in one, for a thread that may wait in between.

Models derive from the release's processor, so it is amended in place.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from vllm.logger import init_logger
from vllm.upstream.multimodal.processing import processor as upstream
from vllm_lazy_media.amend import Amends

from ..media.decode import collect_media_decodes
from ..parse import MultiModalDataItems
from .apply_state import MultiModalApplyState
from .inputs import ProcessorInputs

__all__ = ["MultiModalApplyState"]

logger = init_logger(__name__)


class _BaseMultiModalProcessor(
    Amends,
    target=upstream.BaseMultiModalProcessor,
    replaces=("apply", "_cached_apply_hf_processor", "_get_cache_missing_items"),
):
    @property
    def supports_two_phase_apply(self) -> bool:
        """Whether `apply_phase1` and `apply_phase2` do what `apply` does: not where
        the model overrides a method that they would pass by."""
        processor_cls: Any = type(self)
        return not _overridden_apply_methods(processor_cls)

    def apply(
        self, inputs: ProcessorInputs, timing_ctx: upstream.TimingContext
    ) -> upstream.MultiModalInput:
        """Decode what the cache lacks, run the HF processor on it, and place the
        result in the prompt.

        Blocks for the decodes. The refs in `inputs` stay usable.

        Raises:
            VLLMUnprocessableEntityError: An item could not be decoded.
        """
        mm_res = self._cached_apply_hf_processor(inputs, timing_ctx)
        return self._build_mm_input(inputs, mm_res, timing_ctx)

    def apply_phase1(
        self, inputs: ProcessorInputs, timing_ctx: upstream.TimingContext
    ) -> MultiModalApplyState:
        """Look the items up and submit the decodes of those that are missing.

        On the mm worker; waits for nothing. The caller closes what is returned.
        """
        return self._begin_apply(inputs, timing_ctx, urgent=False)

    def _begin_apply(
        self,
        inputs: ProcessorInputs,
        timing_ctx: upstream.TimingContext,
        *,
        urgent: bool,
    ) -> MultiModalApplyState:
        state = MultiModalApplyState(inputs, timing_ctx, scope=self)
        try:
            inputs = state.inputs
            wanted = inputs.mm_data_items
            if inputs.can_use_cache:
                with timing_ctx.record("get_mm_hashes"):
                    inputs.mm_hashes = inputs.get_mm_hashes(
                        self.info.model_id,
                        self.info.ctx.get_mm_config().mm_hasher_algorithm,
                    )
                wanted = _select_uncached(wanted, _look_up(inputs))
            self._submit_ref_decodes(wanted, state, urgent=urgent)
        except BaseException:
            state.close()
            raise
        return state

    def apply_phase2(self, state: MultiModalApplyState) -> upstream.MultiModalInput:
        """Process the request whose decodes have ended.

        On the mm worker. It waits for a decode only where an item that phase 1 found
        in the cache has been evicted since.
        """
        mm_res = self._apply_decoded(state)
        return self._build_mm_input(state.inputs, mm_res, state.timing_ctx)

    def _cached_apply_hf_processor(
        self, inputs: ProcessorInputs, timing_ctx: upstream.TimingContext
    ) -> upstream.MultiModalProcessingResult:
        # Urgent, because it may be the mm worker that waits here.
        with self._begin_apply(inputs, timing_ctx, urgent=True) as state:
            state.wait_decodes()
            return self._apply_decoded(state)

    def _apply_decoded(
        self, state: MultiModalApplyState
    ) -> upstream.MultiModalProcessingResult:
        inputs = state.inputs
        missing: list[str] = []
        if inputs.can_use_cache:
            is_cached = _look_up(inputs)
            missing = _uncached_hashes(inputs, is_cached)
            uncached = _select_uncached(inputs.mm_data_items, is_cached)
            self._decode_ref_items(uncached, state)
        released = _BaseMultiModalProcessor.released
        with _forgotten_on_failure(inputs.cache, missing):
            mm_res = released._cached_apply_hf_processor(self, inputs, state.timing_ctx)
        state.count_cached()
        return mm_res

    def _submit_ref_decodes(
        self,
        mm_items: MultiModalDataItems,
        state: MultiModalApplyState,
        *,
        urgent: bool = False,
    ) -> Sequence[Any]:
        return state.submit_decodes(mm_items, urgent=urgent)

    def _decode_ref_items(
        self, mm_items: MultiModalDataItems, state: MultiModalApplyState
    ) -> None:
        """Decode what is not yet, in parallel, and wait for that alone. The jobs stay
        with the state, which drains all of them when it closes."""
        # Urgent, because this is the mm worker, which has to go on for memory to be
        # freed.
        collect_media_decodes(self._submit_ref_decodes(mm_items, state, urgent=True))

    def _get_cache_missing_items(
        self,
        cache: upstream.BaseMultiModalProcessorCache,
        mm_data_items: MultiModalDataItems,
        mm_hashes: Mapping[str, list[str]],
    ) -> tuple[dict[str, list[bool]], MultiModalDataItems]:
        """Which items `cache` holds, and the parsed items that it does not.

        Raises:
            ValueError: A missing item came without data, by its UUID alone.
        """
        is_cached = {m: cache.is_cached(hashes) for m, hashes in mm_hashes.items()}
        missing = _select_uncached(mm_data_items, is_cached)
        for modality, items in missing.items():
            for i in range(len(items)):
                if items.get_raw(i) is None:
                    raise ValueError(
                        f"{modality} at index {items.get_original_index(i)} is not "
                        "in the cache any more, and its data was not sent along."
                    )
        return is_cached, missing

    def _build_mm_input(
        self,
        inputs: ProcessorInputs,
        mm_res: upstream.MultiModalProcessingResult,
        timing_ctx: upstream.TimingContext,
    ) -> upstream.MultiModalInput:
        # All that the release's `apply` still has to do, once its first step is done.
        rest = SimpleNamespace(
            _cached_apply_hf_processor=lambda *_: mm_res,
            _maybe_apply_prompt_updates=self._maybe_apply_prompt_updates,
        )
        sent = find_sent_hashes(mm_res.kwargs, mm_res.hashes)
        with _forgotten_on_failure(inputs.cache, sent):
            return _BaseMultiModalProcessor.released.apply(rest, inputs, timing_ctx)


def find_sent_hashes(
    mm_kwargs: Mapping[str, Sequence[Any]], mm_hashes: Mapping[str, Sequence[str]]
) -> list[str]:
    """The items that go to the engine with their data, because it lacks them."""
    return [
        mm_hash
        for modality, items in mm_kwargs.items()
        for item, mm_hash in zip(items, mm_hashes[modality], strict=True)
        if item is not None
    ]


@contextmanager
def _forgotten_on_failure(
    cache: upstream.BaseMultiModalProcessorCache | None, mm_hashes: Sequence[str]
) -> Iterator[None]:
    """Take new items out of the cache again where the request fails in this block.

    The engine never gets to see them, and this cache would go on saying that it has
    them: whoever sends one of them next would fail in its stead.
    """
    try:
        yield
    except BaseException:
        if cache is not None:
            for mm_hash in mm_hashes:
                cache.invalidate(mm_hash)
        raise


def _look_up(inputs: ProcessorInputs) -> dict[str, list[bool]]:
    """Which items the cache holds now."""
    assert inputs.cache is not None
    assert inputs.mm_hashes is not None
    return {m: inputs.cache.is_cached(h) for m, h in inputs.mm_hashes.items()}


def _uncached_hashes(
    inputs: ProcessorInputs, is_cached: Mapping[str, Sequence[bool]]
) -> list[str]:
    assert inputs.mm_hashes is not None
    return [
        mm_hash
        for modality, flags in is_cached.items()
        for mm_hash, cached in zip(inputs.mm_hashes[modality], flags, strict=True)
        if not cached
    ]


def _select_uncached(
    mm_items: MultiModalDataItems, is_cached: Mapping[str, Sequence[bool]]
) -> MultiModalDataItems:
    """The items that are not cached; no entry for a modality that has none."""
    missing = {}
    for modality, flags in is_cached.items():
        indices = [i for i, cached in enumerate(flags) if not cached]
        if indices:
            missing[modality] = mm_items[modality].select(indices)
    return MultiModalDataItems(missing)


@lru_cache
def _overridden_apply_methods(processor_cls: type) -> tuple[str, ...]:
    """The methods that rule out two phases, logged the first time a class is seen."""
    base = upstream.BaseMultiModalProcessor
    overridden = tuple(
        name
        for name in ("apply", "_cached_apply_hf_processor", "_apply_hf_processor")
        if getattr(processor_cls, name) is not getattr(base, name)
    )
    if overridden:
        logger.debug(
            "%s overrides %s: its media are decoded lazily, in one blocking step.",
            processor_cls.__name__,
            ", ".join(overridden),
        )
    return overridden
