# SPDX-License-Identifier: Apache-2.0
"""What a processor is given, and what identifies each item of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from vllm.config.multimodal import MMHasherAlgorithm
from vllm.inputs import MultiModalHashes
from vllm.upstream.multimodal.processing import inputs as upstream

from ..media import MediaRef
from ..parse import MultiModalDataItems


@dataclass
class ProcessorInputs(upstream.ProcessorInputs):
    """The release's inputs, with references among the items."""

    mm_hashes: MultiModalHashes | None = None
    """The hashes, where they have been computed: pixels that offline code supplies
    are not to be hashed again in the second phase."""

    @property
    def can_use_cache(self) -> bool:
        """Whether items can be looked up before they are processed: there is a cache,
        and nothing bypasses the HF processor on its way to the model."""
        return self.cache is not None and not any(
            items.get_passthrough_data() for items in self.mm_data_items.values()
        )

    def get_mm_hashes(
        self, model_id: str, hash_algorithm: MMHasherAlgorithm
    ) -> MultiModalHashes:
        """The identity of each item, by modality. Decodes no reference.

        Linear in media that are not references; for a reference, constant time.
        """
        if self.mm_hashes is not None:
            return self.mm_hashes

        # A ref's key holds its decode settings, so hashing `media_io_kwargs` along
        # would count them twice. A client's UUID takes the place of the key, so then
        # they still have to be hashed.
        keyed = self._find_keyed_items()
        if not keyed or not self.media_io_kwargs:
            return super().get_mm_hashes(model_id, hash_algorithm)

        others = {
            modality: [i for i in range(len(items)) if i not in keyed.get(modality, ())]
            for modality, items in self.mm_data_items.items()
        }
        hashes = {m: [""] * len(items) for m, items in self.mm_data_items.items()}
        for part, indices in (
            (self._select(keyed).replace(media_io_kwargs={}), keyed),
            (self._select(others), others),
        ):
            part_hashes = upstream.ProcessorInputs.get_mm_hashes(
                part, model_id, hash_algorithm
            )
            for modality, modality_hashes in part_hashes.items():
                for i, item_hash in zip(
                    indices[modality], modality_hashes, strict=True
                ):
                    hashes[modality][i] = item_hash
        return hashes

    def _find_keyed_items(self) -> dict[str, list[int]]:
        """The items that are identified by a ref's key, by modality."""
        uuids = self.mm_uuid_items or {}
        keyed = {}
        for modality, items in self.mm_data_items.items():
            item_uuids = uuids.get(modality) or [None] * len(items)
            indices = [
                i
                for i in range(len(items))
                if item_uuids[i] is None and isinstance(items.get_raw(i), MediaRef)
            ]
            if indices:
                keyed[modality] = indices
        return keyed

    def replace(self, **changes: Any) -> "ProcessorInputs":
        """A copy with `changes`."""
        return replace(cast(Any, self), **changes)

    def _select(self, indices: Mapping[str, Sequence[int]]) -> "ProcessorInputs":
        uuids = self.mm_uuid_items or {}
        return self.replace(
            mm_data_items=MultiModalDataItems(
                {m: self.mm_data_items[m].select(idxs) for m, idxs in indices.items()}
            ),
            mm_uuid_items={
                m: [uuids[m][i] for i in idxs]
                for m, idxs in indices.items()
                if m in uuids
            },
        )
