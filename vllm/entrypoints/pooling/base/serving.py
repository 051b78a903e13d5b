# SPDX-License-Identifier: Apache-2.0
"""Pooling requests: what reads their media stays off the event loop.

Every pooling route's serving class derives from the release's `PoolingBaseServing`, so
that is amended in place.
"""

from types import SimpleNamespace
from typing import Any

from vllm.upstream.entrypoints.pooling.base import serving as upstream
from vllm.utils.async_utils import make_async
from vllm_lazy_media.amend import Amends


class _PoolingBaseServing(
    Amends, target=upstream.PoolingBaseServing, replaces=("_preprocessing",)
):
    async def _preprocessing(self, io_processor: Any, ctx: Any) -> None:
        released = _PoolingBaseServing.released._preprocessing
        if not self.model_config.is_multimodal_model:
            return await released(self, io_processor, ctx)
        # Score and rerank fetch their media here already, with the blocking parser. On
        # the renderer's executor, where the requests are rendered afterwards, because
        # its threads are what the tokenizer may be used on.
        factory = make_async(
            io_processor.get_request_factory_online,
            executor=io_processor.renderer._executor,
        )
        requests = await factory(ctx)
        ready = SimpleNamespace(
            get_request_factory_online=lambda _: requests,
            render_async=io_processor.render_async,
        )
        return await released(self, ready, ctx)
