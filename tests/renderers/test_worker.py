# SPDX-License-Identifier: Apache-2.0
"""One mm worker, and one way to prepare a request for it."""

import threading
from contextlib import contextmanager
from typing import Any

import pytest

from tests.harness import PATIENCE, process, process_async, prompt_of, ref_of
from vllm.renderers import base as renderer_module
from vllm.renderers.base import BaseRenderer


class Steps:
    """Which thread took which step, and what it was told."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, int]] = []

    def watch(
        self, patch: pytest.MonkeyPatch, owner: Any, name: str, gather: Any = None
    ) -> None:
        method = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            self.taken.append((name, threading.get_ident()))
            if gather is not None:
                gather.append((args, kwargs))
            return method(*args, **kwargs)

        patch.setattr(owner, name, watched)

    def names(self) -> list[str]:
        return [name for name, _ in self.taken]


@pytest.fixture
def steps(renderer: BaseRenderer, monkeypatch: pytest.MonkeyPatch) -> Steps:
    made = Steps()
    processor = renderer.get_mm_processor()
    made.watch(monkeypatch, renderer, "_prepare_multimodal_inputs")
    for name in ("apply", "apply_phase1", "apply_phase2"):
        made.watch(monkeypatch, processor, name)

    released = renderer_module.set_default_torch_num_threads

    @contextmanager
    def threads(*args: Any) -> Any:
        made.taken.append(("threads(", threading.get_ident()))
        with released(*args):
            yield
        made.taken.append((")", threading.get_ident()))

    monkeypatch.setattr(renderer_module, "set_default_torch_num_threads", threads)
    return made


def worker_of(renderer: BaseRenderer) -> int:
    return renderer._mm_executor.submit(threading.get_ident).result(PATIENCE)


async def test_both_phases_run_on_the_worker(
    renderer: BaseRenderer, steps: Steps
) -> None:
    await process_async(renderer, {"image": [ref_of("image")[0]]})
    assert steps.names() == [
        "_prepare_multimodal_inputs",
        "threads(",
        "apply_phase1",
        ")",
        "threads(",
        "apply_phase2",
        ")",
    ]
    assert {ident for _, ident in steps.taken} == {worker_of(renderer)}


async def test_the_blocking_way_prepares_alike(
    renderer: BaseRenderer, steps: Steps
) -> None:
    data = {"image": [ref_of("image")[0]]}
    process(renderer, data)
    in_one = ["_prepare_multimodal_inputs", "threads(", "apply", ")"]
    assert steps.names() == in_one
    steps.taken.clear()
    await renderer._process_multimodal_blocking_async(
        prompt_of(renderer, data), data, None, None
    )
    assert steps.names() == in_one
    assert {ident for _, ident in steps.taken} == {worker_of(renderer)}


@pytest.mark.parametrize("skip", [False, True])
async def test_what_is_prepared(
    renderer: BaseRenderer, monkeypatch: pytest.MonkeyPatch, skip: bool
) -> None:
    """The same inputs by both ways: a fresh name for the request, the cache that was
    asked for, UUIDs and settings as they came."""
    made: list[Any] = []
    prepare = renderer._prepare_multimodal_inputs

    def keep(*args: Any, **kwargs: Any) -> Any:
        made.append(prepare(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(renderer, "_prepare_multimodal_inputs", keep)
    names: list[str] = []
    timing_of = renderer._mm_timing_registry.get
    monkeypatch.setattr(
        renderer._mm_timing_registry,
        "get",
        lambda name: names.append(name) or timing_of(name),
    )
    how: dict[str, Any] = {
        "media_io_kwargs": {"image": {"image_mode": "RGB"}},
        "skip_mm_cache": skip,
    }
    for _ in range(2):
        data = {"image": [ref_of("image")[0]]}
        process(renderer, data, {"image": ["mine"]}, {"truncation": False}, **how)
        await process_async(
            renderer, data, {"image": ["mine"]}, {"truncation": False}, **how
        )
    assert len(made) == 4
    assert len(set(names)) == 4 and all("-mm-" in name for name in names)
    wanted = renderer._mm_processor_only_cache if skip else renderer.mm_processor_cache
    for processor, inputs, _ in made:
        assert processor is renderer.get_mm_processor()
        assert inputs.cache is wanted is not None
        assert inputs.mm_uuid_items == {"image": ["mine"]}
        assert inputs.hf_processor_mm_kwargs == {"truncation": False}
        assert inputs.media_io_kwargs == how["media_io_kwargs"]


def test_there_is_one_worker_and_warmup_runs_on_it(
    renderer: BaseRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads in one model's preprocessing would end the process."""
    assert renderer._mm_executor._max_workers == 1
    idents: list[int] = []
    monkeypatch.setattr(
        renderer, "warmup_mm", lambda: idents.append(threading.get_ident())
    )
    monkeypatch.setattr(renderer, "_mm_warmup_future", None)
    renderer.start_mm_warmup_in_background()
    assert renderer._mm_warmup_future is not None
    renderer._mm_warmup_future.result(PATIENCE)
    assert idents == [worker_of(renderer)]
