# SPDX-License-Identifier: Apache-2.0
"""A reference is a legal item wherever decoded media may stand."""

from typing import Any, get_args, get_origin

import pytest

from vllm.multimodal import inputs, parse
from vllm.multimodal.media import MediaRef
from vllm.upstream.multimodal import inputs as upstream


@pytest.mark.parametrize("name", ["ImageItem", "VideoItem", "AudioItem"])
def test_alias_has_the_ref_and_all_that_the_release_has(name: str) -> None:
    members = set(get_args(getattr(inputs, name)))
    (added,) = members - set(get_args(getattr(upstream, name)))
    assert get_origin(added) is MediaRef
    assert members > set(get_args(getattr(upstream, name)))


@pytest.mark.parametrize("name", ["ImageItem", "VideoItem", "AudioItem"])
def test_modules_of_the_release_see_that_alias(name: str) -> None:
    """They take it from where it always was."""
    released: Any = parse.upstream
    assert getattr(released, name) is getattr(inputs, name)
