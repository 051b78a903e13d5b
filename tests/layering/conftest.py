# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from tests.layering.world import World


@pytest.fixture
def bare(tmp_path: Path) -> World:
    """A world with neither vLLM nor this project in it."""
    return World(tmp_path)


@pytest.fixture
def world(bare: World) -> World:
    """A world in which the checkout is installed, without a vLLM yet."""
    bare.link_checkout()
    return bare
