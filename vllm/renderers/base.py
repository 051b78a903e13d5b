# SPDX-License-Identifier: Apache-2.0
"""The renderer: processing that leaves the mm worker while media decode.

Every renderer of the release derives from its `BaseRenderer`, so that is amended in
place.
"""

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from vllm import envs
from vllm.logger import init_logger
from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY, metrics
from vllm.multimodal.media.decode import drain_futures_async
from vllm.multimodal.parse import parse_mm_uuids
from vllm.multimodal.processing import BaseMultiModalProcessor, ProcessorInputs
from vllm.multimodal.processing.processor import (
    MultiModalApplyState,
    find_sent_hashes,
)
from vllm.upstream.renderers import base as upstream
from vllm.utils.torch_utils import set_default_torch_num_threads
from vllm_lazy_media.amend import Amends
from vllm_lazy_media.status import describe

logger = init_logger(__name__)

_T = TypeVar("_T")


class PreparedMultimodal(NamedTuple):
    """A request that is ready for its processor."""

    processor: BaseMultiModalProcessor
    inputs: ProcessorInputs
    timing_ctx: Any


class _BaseRenderer(
    Amends,
    target=upstream.BaseRenderer,
    replaces=("__init__", "_process_multimodal", "_validate_mm_uuids"),
):
    def __init__(self, config: Any, tokenizer: Any) -> None:
        _BaseRenderer.released.__init__(self, config, tokenizer)
        # The release keeps its async variant, which blocks the mm worker from end to
        # end, on the instance. Under a name of its own it is the fallback; the
        # method below shows in its place.
        self._process_multimodal_blocking_async = vars(self).pop(
            "_process_multimodal_async"
        )
        if self.model_config.supports_multimodal_inputs:
            metrics.set_model_name(str(self.model_config.served_model_name))
            # A connector that can't work should stop the server from starting.
            MEDIA_CONNECTOR_REGISTRY.check(envs.VLLM_MEDIA_CONNECTOR)
            logger.info_once("%s", describe())

    def _validate_mm_uuids(
        self, mm_data: Any, mm_data_items: Any, mm_uuid_items: Any
    ) -> None:
        # The release iterates over the items, which would decode them.
        raw = {
            modality: [items.get_raw(i) for i in range(len(items))]
            for modality, items in mm_data_items.items()
        }
        _BaseRenderer.released._validate_mm_uuids(self, mm_data, raw, mm_uuid_items)

    def _prepare_multimodal_inputs(
        self,
        prompt: list[int],
        mm_data: Mapping[str, Any],
        mm_uuids: Mapping[str, Any] | None,
        mm_processor_kwargs: Mapping[str, object] | None,
        media_io_kwargs: Mapping[str, Mapping[str, object]] | None = None,
        *,
        skip_mm_cache: bool = False,
    ) -> PreparedMultimodal:
        """What both ways of processing begin with. Decodes nothing."""
        processor = self.get_mm_processor()
        request_id = f"renderer{self.api_process_rank}-mm-{self._mm_req_counter.inc(1)}"
        items = processor.info.parse_mm_data(mm_data)
        inputs = ProcessorInputs(
            prompt,
            items,
            self._process_mm_uuids(
                mm_data, items, parse_mm_uuids(mm_uuids), request_id
            ),
            hf_processor_mm_kwargs=mm_processor_kwargs or {},
            media_io_kwargs=media_io_kwargs or {},
            cache=(
                self._mm_processor_only_cache
                if skip_mm_cache
                else self._mm_processor_cache
            ),
        )
        timing_ctx = self._mm_timing_registry.get(request_id)
        return PreparedMultimodal(processor, inputs, timing_ctx)

    def _process_multimodal(
        self, *args: Any, **kwargs: Any
    ) -> upstream.MultiModalInput:
        """Process a request's media in one go, waiting for its decodes here.

        Takes what `_prepare_multimodal_inputs` does.
        """
        processor, inputs, timing_ctx = self._prepare_multimodal_inputs(*args, **kwargs)
        with set_default_torch_num_threads():
            mm_inputs = processor.apply(inputs, timing_ctx)
        self.update_mm_cache_stats()
        return mm_inputs

    async def _process_multimodal_async(
        self, *args: Any, **kwargs: Any
    ) -> upstream.MultiModalInput:
        """Process a request's media in two steps on the mm worker, which is free for
        other requests while the media pool decodes.

        Takes what `_prepare_multimodal_inputs` does. Cancelled, it lets the step or
        the decodes that are running come to their end, lets go of the media, and
        raises CancelledError.
        """
        if not self.get_mm_processor().supports_two_phase_apply:
            return await self._process_multimodal_blocking_async(*args, **kwargs)
        state, made = await self._begin_multimodal(args, kwargs)
        async with state:
            if made is not None:
                return made
            await state.wait_decodes_async()
            # From here on, requests must leave in the order in which the worker ran
            # them: the engine's cache sees them in the order in which they leave.
            return await self._finish_multimodal(state)

    async def _begin_multimodal(
        self, args: tuple, kwargs: dict[str, Any]
    ) -> tuple[MultiModalApplyState, upstream.MultiModalInput | None]:
        """The first step, and the decodes that it submits, to their end."""
        begun = self._mm_executor.submit(self._apply_until_decode, args, kwargs)
        try:
            await drain_futures_async(
                [_ended_with_decodes(begun)], partial(_give_up, begun)
            )
            return begun.result()
        except asyncio.CancelledError:
            # Nobody else knows of the state that it may have made.
            if _succeeded(begun):
                state, made = begun.result()
                if made is not None:
                    self._forget_unsent(state, made)
                await state.aclose()
            raise
        finally:
            # A future refers to its error, and that to this frame: a cycle, which
            # would keep the payloads until the garbage collector runs.
            del begun

    async def _finish_multimodal(
        self, state: MultiModalApplyState
    ) -> upstream.MultiModalInput:
        phase2 = self._mm_executor.submit(self._apply_phase2, state)
        try:
            return await _run_to_end(phase2)
        except asyncio.CancelledError:
            if _succeeded(phase2):
                self._forget_unsent(state, phase2.result())
            raise
        finally:
            # As in `_begin_multimodal`.
            del phase2

    def _forget_unsent(
        self, state: MultiModalApplyState, made: upstream.MultiModalInput
    ) -> None:
        """The cache has what is new in `made`, and the engine won't get it."""
        # On the worker, which alone touches the cache. It may have been shut down.
        with suppress(RuntimeError):
            self._mm_executor.submit(_forget, state.inputs.cache, made)

    def _apply_until_decode(
        self, args: tuple, kwargs: dict[str, Any]
    ) -> tuple[MultiModalApplyState, upstream.MultiModalInput | None]:
        """Phase 1, and phase 2 with it where no decode is to be waited for: another
        turn of the worker would only cost a hit time."""
        state = self._apply_phase1(args, kwargs)
        if state.jobs:
            return state, None
        try:
            return state, self._apply_phase2(state)
        except BaseException:
            state.close()
            raise

    def _apply_phase1(
        self, args: tuple, kwargs: dict[str, Any]
    ) -> MultiModalApplyState:
        processor, inputs, timing_ctx = self._prepare_multimodal_inputs(*args, **kwargs)
        with set_default_torch_num_threads():
            return processor.apply_phase1(inputs, timing_ctx)

    def _apply_phase2(self, state: MultiModalApplyState) -> upstream.MultiModalInput:
        with set_default_torch_num_threads():
            mm_inputs = self.get_mm_processor().apply_phase2(state)
        self.update_mm_cache_stats()
        return mm_inputs


def _ended_with_decodes(begun: "Future[tuple[MultiModalApplyState, Any]]") -> Future:
    """Done when `begun` has ended, and so have the decodes that it submitted.

    The event loop is told of both at once: telling it of the first alone would take
    the interpreter from the mm worker, which is the one that has work to do.
    """
    ended: Future[None] = Future()
    tell = partial(ended.set_result, None)

    def wait_for_decodes(begun: "Future[tuple[MultiModalApplyState, Any]]") -> None:
        # On the mm worker.
        if _succeeded(begun):
            begun.result()[0].tell_when_decoded(tell)
        else:
            tell()

    begun.add_done_callback(wait_for_decodes)
    return ended


def _give_up(begun: "Future[tuple[MultiModalApplyState, Any]]") -> None:
    """Drop the first step, or else its decodes, where they have not begun."""

    def drop_decodes(begun: "Future[tuple[MultiModalApplyState, Any]]") -> None:
        if _succeeded(begun):
            begun.result()[0].drop_unstarted()

    begun.cancel()
    # Here and now, or at the end of the step, since only then they are known.
    begun.add_done_callback(drop_decodes)


def _succeeded(ended: Future) -> bool:
    return not ended.cancelled() and ended.exception() is None


def _forget(cache: Any, made: upstream.MultiModalInput) -> None:
    """Take what only `made` would have brought to the engine out of `cache`."""
    if cache is not None:
        for mm_hash in find_sent_hashes(made["mm_kwargs"], made["mm_hashes"]):
            cache.invalidate(mm_hash)


async def _run_to_end(future: "Future[_T]") -> _T:
    """The result of work on an executor, which is not left alone while it runs.

    Cancelled, it drops work that has not begun and waits for work that has, then
    raises CancelledError.
    """
    try:
        await drain_futures_async([future], future.cancel)
        return future.result()
    finally:
        # As in `_begin_multimodal`.
        del future
