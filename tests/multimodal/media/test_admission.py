# SPDX-License-Identifier: Apache-2.0
"""Which decode may begin: a bound on memory, in the order of arrival."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vllm.multimodal.media.admission import (
    DEFAULT_LIMIT,
    Admission,
    DecodeRequest,
    decoded_size,
    limit_from_environment,
)


class Decode:
    """A decode as the queue knows it."""

    made = 0

    def __init__(self, *requests: DecodeRequest, modality: str = "video") -> None:
        Decode.made += 1
        self.number = Decode.made
        self.modality = modality
        self.requests = list(requests)


def wait(admission: Admission, *decodes: Decode) -> None:
    for decode in decodes:
        for request in decode.requests:
            request.waiting += 1
        admission.add(decode)


def begun(admission: Admission) -> list[Decode]:
    """Everything that may begin now, and has by then."""
    decodes: list[Any] = []
    while (decode := admission.next()) is not None:
        for request in decode.requests:
            request.waiting -= 1
        decodes.append(decode)
    return decodes


def one_each(count: int, **how: Any) -> list[Decode]:
    return [Decode(DecodeRequest(), **how) for _ in range(count)]


# The order of arrival


def test_as_many_run_as_there_are_threads() -> None:
    admission = Admission(limit=0, threads=2)
    decodes = one_each(4)
    wait(admission, *decodes)
    assert begun(admission) == decodes[:2]
    admission.end(decodes[1], 10)
    assert begun(admission) == decodes[2:3]


def test_each_modality_has_its_threads() -> None:
    admission = Admission(limit=0, threads=1)
    videos, images = one_each(2), one_each(2, modality="image")
    wait(admission, *videos, *images)
    assert begun(admission) == [videos[0], images[0]]


def test_one_that_is_given_up_holds_up_nothing() -> None:
    admission = Admission(limit=0, threads=1)
    decodes = one_each(3)
    wait(admission, *decodes)
    assert begun(admission) == decodes[:1]
    admission.forget(decodes[1])
    admission.end(decodes[0], 10)
    assert begun(admission) == decodes[2:]


# The bound


def test_nothing_begins_while_the_limit_is_reached() -> None:
    admission = Admission(limit=100, threads=1)
    decodes = one_each(4)
    wait(admission, *decodes)
    for done in range(2):
        assert begun(admission) == [decodes[done]]
        admission.end(decodes[done], 60)
    assert admission.held == 120
    assert begun(admission) == []
    admission.forget(decodes[0])
    assert admission.held == 60
    assert begun(admission) == [decodes[2]]


def test_the_oldest_of_all_modalities_comes_first_when_memory_is_free_again() -> None:
    admission = Admission(limit=100, threads=1)
    first, video, image = (
        *one_each(1, modality="audio"),
        *one_each(1),
        *one_each(1, modality="image"),
    )
    wait(admission, first)
    begun(admission)
    admission.end(first, 100)
    wait(admission, video, image)
    assert begun(admission) == []
    admission.forget(first)
    assert begun(admission) == [video, image]


def test_one_larger_than_the_limit_proceeds() -> None:
    admission = Admission(limit=100, threads=2)
    request = DecodeRequest()
    decodes = [Decode(request) for _ in range(3)]
    (later,) = one_each(1)
    wait(admission, *decodes, later)
    assert begun(admission) == decodes[:2]
    admission.end(decodes[0], 1000)
    # Nobody else holds anything, so nothing would ever be freed by waiting.
    assert begun(admission) == decodes[2:]
    admission.end(decodes[1], 1000)
    admission.end(decodes[2], 1000)
    assert begun(admission) == []
    for decode in decodes:
        admission.forget(decode)
    assert begun(admission) == [later]


def test_requests_that_hold_a_part_each_do_not_wait_for_one_another() -> None:
    admission = Admission(limit=100, threads=4)
    old, young = DecodeRequest(), DecodeRequest()
    parts = [Decode(old), Decode(young)]
    rest = [Decode(old), Decode(young)]
    wait(admission, *parts)
    assert begun(admission) == parts
    for part in parts:
        admission.end(part, 60)
    wait(admission, *rest)
    assert begun(admission) == rest[:1]


def test_media_that_only_waiting_requests_share_do_not_block() -> None:
    admission = Admission(limit=100, threads=1)
    done, waiting = DecodeRequest(), DecodeRequest()
    shared = Decode(done, waiting)
    wait(admission, shared)
    begun(admission)
    admission.end(shared, 100)
    (oldest,) = one_each(1)
    wait(admission, oldest, Decode(waiting))
    assert begun(admission) == []
    shared.requests.remove(done)
    assert begun(admission) == [oldest]


def test_no_limit() -> None:
    admission = Admission(limit=0, threads=1)
    decodes = one_each(5)
    wait(admission, *decodes)
    for decode in decodes:
        assert begun(admission) == [decode]
        admission.end(decode, 1 << 40)


def test_what_must_begin_does() -> None:
    admission = Admission(limit=100, threads=1)
    decodes = one_each(3)
    wait(admission, *decodes)
    begun(admission)
    admission.end(decodes[0], 100)
    admission.begin(decodes[2])
    assert begun(admission) == []
    admission.end(decodes[2], 5)
    assert admission.held == 105


@given(
    limit=st.integers(1, 200),
    threads=st.integers(1, 3),
    requests=st.lists(
        st.lists(
            st.tuples(st.sampled_from(["image", "video"]), st.integers(0, 300)),
            min_size=1,
            max_size=4,
        ),
        max_size=8,
    ),
    data=st.data(),
)
def test_every_request_ends_and_all_is_given_back(
    limit: int, threads: int, requests: list[list[tuple[str, int]]], data: Any
) -> None:
    """Whatever the sizes and whatever ends first, nothing is stuck."""
    admission = Admission(limit, threads)
    owners = [DecodeRequest() for _ in requests]
    sizes: dict[Decode, int] = {}
    for owner, items in zip(owners, requests, strict=True):
        for modality, size in items:
            decode = Decode(owner, modality=modality)
            sizes[decode] = size
            wait(admission, decode)
    largest = max(sizes.values(), default=0)
    alone = max((sum(s for _, s in items) for items in requests), default=0)

    running: list[Decode] = []
    landed: list[Decode] = []
    order: dict[str, list[int]] = {"image": [], "video": []}
    while owners:
        for decode in begun(admission):
            order[decode.modality].append(decode.number)
            running.append(decode)
        ended = [
            o
            for o in owners
            if o.waiting == 0 and not any(o in d.requests for d in running)
        ]
        assert running or ended, "nothing goes on"
        event = data.draw(st.sampled_from([*running, *ended]))
        if isinstance(event, Decode):
            running.remove(event)
            landed.append(event)
            admission.end(event, sizes[event])
            assert admission.held <= limit + alone + 2 * threads * largest
        else:
            owners.remove(event)
            for decode in [d for d in landed if event in d.requests]:
                landed.remove(decode)
                admission.forget(decode)
    assert admission.held == 0
    assert all(numbers == sorted(numbers) for numbers in order.values())


# Sizes


@pytest.mark.parametrize(
    ("media", "size"),
    [
        (np.zeros((4, 3, 2, 3), np.uint8), 72),
        (np.zeros(10, np.float32), 40),
        (torch.zeros(5, 3, dtype=torch.float16), 30),
        ((np.zeros(10, np.float32), 16000.0), 40),
        (
            (np.zeros(8, np.uint8), {"fps": 25.0, "original_video_bytes": b"12345"}),
            13,
        ),
        ([np.zeros(4, np.uint8), np.zeros(2, np.uint8)], 6),
        (Image.new("RGB", (7, 5)), 105),
        (Image.new("RGBA", (7, 5)), 140),
        (Image.new("L", (7, 5)), 35),
        (Image.new("I", (7, 5)), 140),
        (b"12345", 5),
        (None, 0),
    ],
    ids=str,
)
def test_decoded_size(media: Any, size: int) -> None:
    assert decoded_size(media) == size


# The setting


def test_limit_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_MEDIA_DECODE_BYTES_LIMIT", raising=False)
    assert limit_from_environment() == DEFAULT_LIMIT


@pytest.mark.parametrize(("text", "limit"), [("0", 0), ("123", 123)])
def test_limit_as_set(monkeypatch: pytest.MonkeyPatch, text: str, limit: int) -> None:
    monkeypatch.setenv("VLLM_MEDIA_DECODE_BYTES_LIMIT", text)
    assert limit_from_environment() == limit


@pytest.mark.parametrize("text", ["4GiB", "-1", "", "1.5"])
def test_limit_that_is_no_number(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("VLLM_MEDIA_DECODE_BYTES_LIMIT", text)
    with pytest.raises(ValueError, match="VLLM_MEDIA_DECODE_BYTES_LIMIT"):
        limit_from_environment()
