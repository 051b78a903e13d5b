# SPDX-License-Identifier: Apache-2.0
"""Which images have nothing more to tell by their header."""

import threading

from cachetools import LRUCache


class KnownHeaders:
    """The pixels of images whose header names no identity, by their key.

    Pillow reads a header in Python, and so with the interpreter to itself: for a
    photograph of 720p as long as hashing it takes, and while it does neither another
    pool thread nor the event loop goes on.

    Every method may be called from any thread, and takes a microsecond or two.

    Args:
        most: How many images are remembered, at about 250 bytes each. The one that
            came least recently is forgotten first.
    """

    def __init__(self, most: int) -> None:
        self._lock = threading.Lock()
        self._pixels: LRUCache[bytes, int] = LRUCache(most)

    def add(self, key: bytes, pixels: int) -> None:
        """Remember an image that has been opened."""
        with self._lock:
            self._pixels[key] = pixels

    def pixels(self, key: bytes) -> int | None:
        """Width times height, or None where the image is not known."""
        with self._lock:
            return self._pixels.get(key)

    def clear(self) -> None:
        with self._lock:
            self._pixels.clear()
