# SPDX-License-Identifier: Apache-2.0
"""The front end's cache and the engine's evict alike, whatever comes in between.

The engine's is fed as the engine's core feeds it: with requests that went through the
release's input processor and its encoding, in the order in which they leave the
renderer.
"""

import asyncio
import multiprocessing
import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.harness import (
    PATIENCE,
    Decoder,
    decoder_of,
    gated,
    image_bytes,
    make_renderer,
    payload,
    process_async,
    ref_of,
    same,
    wait_for,
)
from vllm import SamplingParams
from vllm.exceptions import VLLMUnprocessableEntityError
from vllm.multimodal.cache import (
    engine_receiver_cache_from_config,
    worker_receiver_cache_from_config,
)
from vllm.multimodal.media import ImageMediaIO, MediaRef
from vllm.renderers.base import BaseRenderer
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

AT_ONCE = 24
IMAGES = 40
# Room for about a third of the items.
CACHE_GB = 0.0025


KINDS: dict[str, dict[str, Any]] = {
    "lru": {},
    "shm": {"mm_processor_cache_type": "shm", "mm_shm_cache_max_object_size_mb": 1},
}


@pytest.fixture(scope="module", params=KINDS)
def small_renderer(request: pytest.FixtureRequest) -> Iterator[BaseRenderer]:
    made = make_renderer(mm_processor_cache_gb=CACHE_GB, **KINDS[request.param])
    yield made
    made.shutdown()


class Engine:
    """What the engine does with a request before it runs it."""

    def __init__(self, renderer: BaseRenderer) -> None:
        renderer.clear_mm_cache()
        self._process = partial(
            InputProcessor(renderer.config, renderer).process_inputs,
            params=SamplingParams(max_tokens=1),
            supported_tasks=("generate",),
        )
        self._encoder = MsgpackEncoder()
        self._decoder = MsgpackDecoder(EngineCoreRequest)
        cache: Any = engine_receiver_cache_from_config(renderer.config)
        self.in_shared_memory = cache is None
        if self.in_shared_memory:
            lock = multiprocessing.Lock()
            cache = worker_receiver_cache_from_config(renderer.config, lock)
        self.cache = cache
        self._received = 0
        self._items: dict[str, Any] = {}
        self._places: set[int] = set()

    def add(self, made: Any) -> list[bool]:
        """Take a rendered request; for each item, whether its data were new.

        Raises:
            MultiModalCacheMissError: The front end took an item for cached that the
                engine does not have.
        """
        request: Any = self._process(str(self._received), made)
        self._received += 1
        # As bytes, which is how they arrive: tensors would be shared otherwise.
        frames = [bytearray(frame) for frame in self._encoder.encode(request)]
        features: Any = self._decoder.decode(frames).mm_features
        new = [self._is_new(feature.data) for feature in features]
        self.cache.get_and_update_features(features)
        for feature, is_new in zip(features, new, strict=True):
            data = feature.data.get_data()
            if is_new:
                self._items[feature.mm_hash] = data
            assert same(data, self._items[feature.mm_hash])
        return new

    def _is_new(self, data: Any) -> bool:
        if data is None or "address" not in data:
            return data is not None
        place = data["monotonic_id"].data
        is_new = place not in self._places
        self._places.add(place)
        return is_new


def order(cache: Any) -> list[str]:
    return list(cache._cache.order)


class Traffic:
    """Requests of all kinds, a seed's worth."""

    def __init__(self, renderer: BaseRenderer, seed: int) -> None:
        self.renderer = renderer
        self.engine = Engine(renderer)
        self.random = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self._fresh = 1000

    def image(self) -> MediaRef:
        # Some far more often than others, so that there are hits and evictions.
        seed = min(int(self.random.expovariate(0.08)), IMAGES - 1)
        return ImageMediaIO().load_bytes_ref(image_bytes(seed))

    def data(self) -> dict[str, list[Any]]:
        images = [self.image() for _ in range(self.random.randint(1, 3))]
        if self.random.random() < 0.1:
            images.append(images[0].fork())
        data: dict[str, list[Any]] = {"image": images}
        for modality in ("video", "audio"):
            if self.random.random() < 0.05:
                data[modality] = [ref_of(modality, self.random.randint(0, 3))[0]]
        return data

    async def one(self) -> None:
        kind = self.random.choices(
            ("plain", "uuid", "uuid alone", "skip", "failing", "cancelled", "dropped"),
            (60, 12, 4, 6, 6, 6, 6),
        )[0]
        self.seen[kind] += 1
        if kind in ("failing", "cancelled", "dropped"):
            await getattr(self, kind)()
            return
        data, uuids = self.data(), None
        if kind.startswith("uuid"):
            name = self.random.randint(0, 9)
            data = {"image": [None if kind == "uuid alone" else self.image()]}
            uuids = {"image": [f"client's {name}"]}
        try:
            made = await process_async(
                self.renderer, data, uuids, skip_mm_cache=kind == "skip"
            )
        except ValueError as e:
            assert kind == "uuid alone" and "not in the cache" in str(e)
            self.seen["gone"] += 1
            return
        if kind != "skip":
            # Nothing is awaited in between, nor is it on the way to the engine.
            for is_new in self.engine.add(made):
                self.seen["new" if is_new else "known"] += 1

    def fresh(self, **how: Any) -> tuple[MediaRef, Decoder]:
        """An item that nobody has seen."""
        self._fresh += 1
        decoder = Decoder(**how)
        return decoder.ref(payload("image", self._fresh)), decoder

    async def failing(self) -> None:
        bad = self.fresh(error=ValueError("broken"))[0]
        with pytest.raises(VLLMUnprocessableEntityError):
            await process_async(self.renderer, {"image": [self.image(), bad]})

    async def cancelled(self) -> None:
        """Cancelled while it decodes."""
        ref, decoder = self.fresh(held=True)
        data = {"image": [self.image(), ref]}
        task = asyncio.ensure_future(process_async(self.renderer, data))
        await wait_for(decoder.began)
        task.cancel()
        decoder.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def dropped(self) -> None:
        """Cancelled before anything is done for it, or in phase 1."""
        ref = self.fresh(held=False)[0]
        task = asyncio.ensure_future(process_async(self.renderer, {"image": [ref]}))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def run(self, requests: int) -> None:
        todo = iter(range(requests))

        async def client() -> None:
            for _ in todo:
                await self.one()

        await asyncio.gather(*(client() for _ in range(AT_ONCE)))


async def test_caches_evict_alike_under_mixed_traffic(
    small_renderer: BaseRenderer,
) -> None:
    traffic = Traffic(small_renderer, seed=0)
    # There is no order to compare in shared memory, which is the same for both.
    requests = 1000 if traffic.engine.in_shared_memory else 3000
    sender: Any = small_renderer.mm_processor_cache
    await traffic.run(requests)
    if not traffic.engine.in_shared_memory:
        assert order(sender) == order(traffic.engine.cache)
        assert sender._cache.currsize == traffic.engine.cache._cache.currsize
    # Or it would say nothing.
    seen = traffic.seen
    rare = ("uuid alone", "skip", "failing", "cancelled", "dropped", "gone")
    assert min(seen[kind] for kind in rare) > requests // 100, seen
    assert min(seen["known"], seen["new"]) > requests // 4, seen


async def test_requests_leave_in_the_order_of_their_second_phase(
    small_renderer: BaseRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a second phase ends before the event loop looks for its end, the request
    must not overtake one whose end is on its way to the event loop."""
    renderer = small_renderer
    engine = Engine(renderer)
    # The same item: the first brings it decoded, the second decodes it meanwhile.
    first, second = ref_of("image")[0], decoder_of("image", held=True)
    first.decode()
    left: list[str] = []

    async def request(name: str, ref: MediaRef) -> None:
        engine.add(await process_async(renderer, {"image": [ref]}))
        left.append(name)

    gate = gated(renderer.get_mm_processor(), "_apply_hf_processor_main", monkeypatch)
    tasks = [asyncio.ensure_future(request("second", second.ref(payload("image"))))]
    await wait_for(second.began)
    tasks.append(asyncio.ensure_future(request("first", first)))
    await wait_for(gate.reached)
    submit = renderer._mm_executor.submit

    def submit_and_run(*work: Any) -> Any:
        future = submit(*work)
        # As when the worker gets the interpreter at this very point: both requests
        # are through before the event loop hears of either.
        gate.go.set()
        future.result(PATIENCE)
        return future

    monkeypatch.setattr(renderer._mm_executor, "submit", submit_and_run)
    second.go.set()
    await asyncio.gather(*tasks)
    assert left == ["first", "second"]
