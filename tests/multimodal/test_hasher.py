# SPDX-License-Identifier: Apache-2.0
"""A ref is hashed by its key; everything else as stock vLLM hashes it."""

from typing import Any

import numpy as np
import pytest
import torch

from tiny.media import jpeg, picture
from vllm.multimodal.hasher import MultiModalHasher
from vllm.multimodal.media import DecodeSpec, ImageMediaIO, MediaRef
from vllm.upstream.multimodal import hasher as upstream


def refuse() -> None:
    raise AssertionError("decoded")


def digest(**items: Any) -> str:
    return MultiModalHasher.hash_kwargs("sha256", **items)


@pytest.mark.parametrize("released", [False, True])
def test_hashing_a_ref_neither_decodes_nor_reads_it(released: bool) -> None:
    ref = MediaRef(refuse, bytes(1 << 20))
    before = digest(image=ref)
    if released:
        ref.release()
    chunks = list(MultiModalHasher.serialize_item(ref))
    assert sum(memoryview(chunk).nbytes for chunk in chunks) < 100
    assert ref.key in [bytes(chunk) for chunk in chunks]
    assert digest(image=ref) == before
    assert not ref.is_decoded


def test_hash_of_a_ref_follows_its_key_alone() -> None:
    one = MediaRef(refuse, b"payload", DecodeSpec({"a": 1}), key=b"key")
    same = MediaRef(refuse, b"other", DecodeSpec({"a": 2}), key=b"key")
    other = MediaRef(refuse, b"payload", DecodeSpec({"a": 1}), key=b"yek")
    assert digest(image=one) == digest(image=same)
    assert digest(image=one) != digest(image=other)
    assert digest(image=one) != digest(video=one)


def test_decoding_does_not_change_the_hash() -> None:
    ref = ImageMediaIO().load_bytes_ref(jpeg(32, 32))
    before = digest(image=ref)
    ref.decode()
    assert digest(image=ref) == before
    assert digest(image=ref.fork()) == before


def test_a_ref_is_not_its_key() -> None:
    ref = MediaRef(refuse, b"payload")
    assert digest(image=ref) != digest(image=ref.key)
    assert digest(image=ref) != digest(image=["media_ref", ref.key])


def test_refs_are_found_within_containers() -> None:
    one, other = MediaRef(refuse, b"one"), MediaRef(refuse, b"other")
    assert digest(images=[one, other]) != digest(images=[other, one])
    assert digest(images=[one]) != digest(images=one)
    assert digest(images={"a": one}) != digest(images={"a": other})


@pytest.mark.parametrize(
    "item",
    [
        b"bytes",
        "text",
        1,
        1.5,
        None,
        [1, "a", {"b": (2,)}],
        np.arange(6).reshape(2, 3),
        torch.arange(6.0),
        torch.arange(6.0).to(torch.bfloat16),
        picture(8, 8),
        picture(8, 8, mode="P"),
        {1, 2},
    ],
    ids=lambda item: type(item).__name__,
)
def test_other_items_hash_as_in_stock(item: Any) -> None:
    assert digest(item=item) == upstream.MultiModalHasher.hash_kwargs(
        "sha256", item=item
    )


def test_release_hashers_meet_refs_too() -> None:
    """Code of the release names the class by its module, and so gets this one."""
    from vllm.multimodal import MultiModalHasher as exported

    assert exported is MultiModalHasher
