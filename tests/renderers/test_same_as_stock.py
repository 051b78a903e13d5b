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


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By case, what stock vLLM makes of it without and with a cached result."""
    saved = tmp_path_factory.mktemp("stock") / "results.pt"
    done = subprocess.run(
        [sys.executable, "-m", "tests.renderers.cases", str(saved)],
        cwd=ROOT,
        env={**os.environ, "VLLM_LAZY_MEDIA": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return torch.load(saved, weights_only=False)


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
def test_chat(renderer: BaseRenderer, stock: dict[str, Any], name: str) -> None:
    for expected in stock[name]:
        assert_same(cases.render_chat(renderer, name), expected)


@pytest.mark.parametrize("name", cases.CHATS)
async def test_chat_async(
    renderer: BaseRenderer, stock: dict[str, Any], name: str
) -> None:
    for expected in stock[name]:
        assert_same(await cases.render_chat_async(renderer, name), expected)


@pytest.mark.parametrize("name", cases.OFFLINE)
def test_offline(renderer: BaseRenderer, stock: dict[str, Any], name: str) -> None:
    for expected in stock[name]:
        assert_same(cases.render_offline(renderer, name), expected)


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
