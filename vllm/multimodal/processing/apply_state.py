# SPDX-License-Identifier: Apache-2.0
"""What is carried from the first phase of processing to the second."""

from collections.abc import Callable, Iterator

from vllm.upstream.multimodal.processing.context import TimingContext

from ..media import metrics
from ..media.base import MediaRef
from ..media.decode import (
    DecodeJob,
    DecodeRequest,
    MediaItemRef,
    call_when_ended,
    collect_media_decodes,
    collect_media_decodes_async,
    drain_media_decodes,
    drain_media_decodes_async,
    leave_media_decodes,
    submit_media_decodes,
)
from ..media.executor import global_thread_pool
from ..parse import MultiModalDataItems
from .inputs import ProcessorInputs


class MultiModalApplyState:
    """One request between its phases: its inputs, and the decodes it waits for.

    It owns forks of the caller's refs, and lets go of them on `close()`, which comes
    at the end of a `with` or `async with` block. What the caller passed in stays
    usable.

    The mm worker makes one and works on it; waiting for it is done elsewhere. Only
    one of the two touches it at a time.

    Args:
        inputs: The request's.
        timing_ctx: Where the wait for decodes is recorded.
        scope: States of one scope share the decodes of equal keys; the processor,
            because it is what makes equal keys mean equal results. None: share none.
    """

    def __init__(
        self,
        inputs: ProcessorInputs,
        timing_ctx: TimingContext,
        scope: object = None,
    ) -> None:
        forks = {m: items.fork_refs() for m, items in inputs.mm_data_items.items()}
        self.inputs = inputs.replace(mm_data_items=MultiModalDataItems(forks))
        self.timing_ctx = timing_ctx
        self.jobs: list[DecodeJob] = []
        self._request = DecodeRequest(scope)
        self._counted: set[tuple[str, int]] = set()

    def submit_decodes(
        self, items: MultiModalDataItems, *, urgent: bool = False
    ) -> list[DecodeJob]:
        """Submit a decode for every ref among `items`, a selection from this state's
        inputs, that is not decoded; the new jobs. Never blocks.

        `urgent` ones do not wait for memory that the mm worker is to free: what the
        mm worker itself will wait for has to be.
        """
        submitted_before = len(self.jobs)
        todo = []
        for item in _iter_refs(items):
            if (item.modality, item.index) in self._counted:
                continue
            self._counted.add((item.modality, item.index))
            if item.ref.is_decoded:
                metrics.count_item(item.modality, metrics.SHARED)
            else:
                todo.append(item)
        submit_media_decodes(todo, self.jobs, self._request, urgent=urgent)
        return self.jobs[submitted_before:]

    def tell_when_decoded(self, tell: Callable[[], object]) -> None:
        """Call `tell` once every decode has ended: on the thread that ends the last,
        or here and now where there is none. Never blocks."""
        recording = self.timing_ctx.record("decode_media")
        recording.__enter__()

        def ended() -> None:
            recording.__exit__(None, None, None)
            tell()

        call_when_ended([job.future for job in self.jobs], ended)

    def wait_decodes(self) -> None:
        """Wait for every decode. Blocks: for a thread that may wait.

        Raises:
            VLLMUnprocessableEntityError: For the first item, in request order, that
                could not be decoded; the others have ended by then.
        """
        with self.timing_ctx.record("decode_media"):
            collect_media_decodes(self.jobs)

    async def wait_decodes_async(self) -> None:
        """`wait_decodes` for the event loop.

        Cancelled, it drops the decodes that have not begun, waits for those that
        have, however often it is cancelled, because they read the payloads, and
        raises CancelledError at the end.
        """
        with self.timing_ctx.record("decode_media"):
            await collect_media_decodes_async(self.jobs)

    def count_cached(self) -> None:
        """Count the refs that processing did without decoding, once it has ended."""
        for item in _iter_refs(self.inputs.mm_data_items):
            if (item.modality, item.index) not in self._counted:
                metrics.count_item(item.modality, metrics.CACHED)

    def close(self) -> None:
        """Wait for what still decodes and let go of the refs. Idempotent.

        A decode that has not begun is dropped. Blocks: for a thread that may wait.
        """
        self.drop_unstarted()
        drain_media_decodes(self.jobs)
        self._let_go()

    async def aclose(self) -> None:
        """`close` for the event loop. Cancelled, it closes all the same and raises
        CancelledError at the end."""
        self.drop_unstarted()
        try:
            await drain_media_decodes_async(self.jobs)
        finally:
            self._let_go(blocking=False)

    def drop_unstarted(self) -> None:
        """Give the decodes up that have not begun. Any thread; never blocks."""
        for job in self.jobs:
            job.cancel()

    def _let_go(self, *, blocking: bool = True) -> None:
        self._release_refs(blocking=blocking)
        leave_media_decodes(self.jobs)

    def _release_refs(self, *, blocking: bool = True) -> None:
        for item in _iter_refs(self.inputs.mm_data_items):
            # Without blocking, a ref is busy only where the caller gave the same ref
            # to another request, which decodes it now; the pool may wait for that.
            if not item.ref._release(blocking=blocking):
                global_thread_pool.submit(item.ref.release)

    def __enter__(self) -> "MultiModalApplyState":
        return self

    def __exit__(self, *exc_info) -> None:
        self.close()

    async def __aenter__(self) -> "MultiModalApplyState":
        return self

    async def __aexit__(self, *exc_info) -> None:
        await self.aclose()


def _iter_refs(mm_items: MultiModalDataItems) -> Iterator[MediaItemRef]:
    for modality, items in mm_items.items():
        for i in range(len(items)):
            raw = items.get_raw(i)
            if isinstance(raw, MediaRef):
                yield MediaItemRef(modality, items.get_original_index(i), raw)
