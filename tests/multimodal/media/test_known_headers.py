# SPDX-License-Identifier: Apache-2.0
"""What is remembered of images, and that it does not grow."""

from vllm.multimodal.media.known_headers import KnownHeaders


def test_the_one_that_came_least_recently_is_forgotten() -> None:
    known = KnownHeaders(2)
    known.add(b"a", 1)
    known.add(b"b", 2)
    assert known.pixels(b"a") == 1
    known.add(b"c", 3)
    assert known.pixels(b"b") is None
    assert (known.pixels(b"a"), known.pixels(b"c")) == (1, 3)


def test_clear_forgets_all() -> None:
    known = KnownHeaders(2)
    known.add(b"a", 1)
    known.clear()
    assert known.pixels(b"a") is None
