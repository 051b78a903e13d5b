# SPDX-License-Identifier: Apache-2.0
"""What reaches the model is what stock vLLM sends it, to the bit."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.omni import same
from tests.renderers import cases
from vllm.renderers.base import BaseRenderer

ROOT = Path(__file__).resolve().parents[2]


def results_of(folder: Path, lazy: str) -> dict[str, Any]:
    """By case, what becomes of it without and with a cached result.

    In a process of its own for either mode: the sound features of one case came out
    otherwise in the last bit where a thousand tests had run before in the process.
    """
    saved = folder / f"{lazy}.pt"
    done = subprocess.run(
        [sys.executable, "-m", "tests.renderers.cases", str(saved)],
        cwd=ROOT,
        env={**os.environ, "VLLM_LAZY_MEDIA": lazy},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return torch.load(saved, weights_only=False)


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return results_of(tmp_path_factory.mktemp("stock"), "0")


@pytest.fixture(scope="module")
def lazy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return results_of(tmp_path_factory.mktemp("lazy"), "1")


def assert_same(found: Any, expected: Any, where: str = "") -> None:
    """Equal to the bit, or an error that says what is not."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for name in expected:
            assert_same(found[name], expected[name], f"{where}.{name}")
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), where
        for i, pair in enumerate(zip(found, expected, strict=True)):
            assert_same(*pair, f"{where}[{i}]")
    else:
        assert same(found, expected), f"{where}: {found} instead of {expected}"


@pytest.mark.parametrize("name", cases.CHATS)
def test_chat(lazy: dict[str, Any], stock: dict[str, Any], name: str) -> None:
    assert_same(lazy[name], stock[name])


@pytest.mark.parametrize("name", cases.CHATS)
async def test_chat_async(
    renderer: BaseRenderer, stock: dict[str, Any], name: str
) -> None:
    for expected in stock[name]:
        assert_same(await cases.render_chat_async(renderer, name), expected)


@pytest.mark.parametrize("name", cases.OFFLINE)
def test_offline(lazy: dict[str, Any], stock: dict[str, Any], name: str) -> None:
    assert_same(lazy[name], stock[name])


async def test_concurrent_chats(renderer: BaseRenderer, stock: dict[str, Any]) -> None:
    # No two of them share an item, so each is as on its own.
    names = ["jpeg", "video", "audio stereo", "own sound of two", "mixed", "text"]
    found = await asyncio.gather(
        *(cases.render_chat_async(renderer, name) for name in names)
    )
    for name, made in zip(names, found, strict=True):
        assert_same(made, stock[name][0])


def test_the_comparison_can_fail(stock: dict[str, Any]) -> None:
    assert not same(stock["jpeg"][0], stock["jpeg grey"][0])
    assert not same(stock["jpeg"][0], stock["jpeg"][1])
    assert not same({"a": torch.zeros(2)}, {"a": torch.zeros(2, dtype=torch.int)})
