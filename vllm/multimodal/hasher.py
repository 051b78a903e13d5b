# SPDX-License-Identifier: Apache-2.0
"""Hashing media for the processor cache, a reference by its key."""

from collections.abc import Iterable

from vllm.upstream.multimodal import hasher as upstream

from .media import MediaRef


class MultiModalHasher(upstream.MultiModalHasher):
    """The release's hasher, to which a `MediaRef` is its key."""

    @classmethod
    def serialize_item(cls, obj: object) -> Iterable[bytes | memoryview]:
        """What is digested for one item. Decodes nothing; for a ref, 32 bytes."""
        if isinstance(obj, MediaRef):
            # Named, so that an item that is itself 32 such bytes is another item.
            return cls.iter_item_to_bytes("media_ref", obj.key)
        return super().serialize_item(obj)
