# SPDX-License-Identifier: Apache-2.0
"""What the sweep knows of a model family, and the requests that it makes of it."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from tiny import media
from tiny.chat import data_part, part

Part = dict[str, Any]

OWN = "own "
"""Before a modality: decodes by the HF processor itself, which it may need for what it
makes of an item."""


@dataclass(frozen=True)
class Step:
    """One request of a case."""

    parts: Sequence[Part]
    new: Sequence[Part]
    """Those of its items that no request before it in the case had."""

    @property
    def sent(self) -> Sequence[Part]:
        """Those of its items that come with their data."""
        return [part for part in self.parts if part[part["type"]] is not None]


@dataclass(frozen=True)
class Case:
    """Requests that follow each other on a processor whose caches were empty."""

    steps: Sequence[Step]
    params: Mapping[str, Any] = field(default_factory=dict)
    """Of `ChatParams`."""
    tracks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What is decoded of an item of a modality, where that is not the item alone."""
    cached: bool = True
    """Whether the processor looks these items up."""

    def decodes(self, parts: Sequence[Part]) -> dict[str, int]:
        """By modality, the decodes that `parts` cost where none is cached."""
        modalities = [part["type"].removesuffix("_url") for part in parts]
        return dict(
            Counter(track for m in modalities for track in self.tracks.get(m, (m,)))
        )


@dataclass(frozen=True)
class Family:
    """A model whose front end can be built from files that `write` makes."""

    name: str
    write: Callable[[Path], None]
    """Write the model's configuration, tokenizer and processor into a directory."""
    modalities: Sequence[str]
    limits: Mapping[str, int] = field(default_factory=dict)
    """How many items of a modality one request may have; two and more without it."""
    encoded: Sequence[str] = ()
    """Modalities that the tree hands to the HF processor as they are encoded."""
    two_phase: bool = True
    """Whether the processor leaves alone what the two phases would pass by."""
    cached: bool = True
    """Whether the processor uses the cache at all."""
    identified: bool = True
    """Whether items are hashed; without a cache vLLM numbers them."""
    question: bool = True
    """Whether the message has text beside the media."""
    architectures: Sequence[str] = ()
    """Those that vLLM looks up beside the configuration's own."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Engine arguments."""
    stock_cached: bool = True
    """Whether stock vLLM does the same with its cache as without it. Where it does not,
    the tree with a cache is compared with stock vLLM without one."""
    more: Mapping[str, Case] = field(default_factory=dict)
    """Cases of its own; one of the same name as a common case replaces it."""
    prepare: Callable[[], None] | None = None
    """What this process needs before the model can be used."""

    @property
    def cases(self) -> dict[str, Case]:
        cases = {**self._common_cases(), **self.more}
        if self.cached:
            return cases
        return {name: replace(case, cached=False) for name, case in cases.items()}

    def _common_cases(self) -> dict[str, Case]:
        cases = {}
        for modality in self.modalities:
            cases[modality] = again(item(modality))
            cases[f"{modality} by uuid"] = by_uuid(
                modality, alone=self.cached and self.stock_cached
            )
            if self.limits.get(modality, 2) > 1:
                cases[f"{modality} twice"] = again(item(modality), item(modality, 1))
                cases[f"{modality} partly known"] = partly_known(modality)
        if len(self.modalities) > 1:
            cases["mixed"] = again(*(item(m, 2) for m in self.modalities))
        return cases


@cache
def _payload(modality: str, seed: int) -> tuple[bytes, str]:
    # Sizes and kinds differ, so that items that change places show.
    if modality == "image" and seed % 2:
        return media.png(72 + 8 * seed, 64, seed=seed, mode="RGBA"), "image/png"
    if modality == "image":
        return media.jpeg(120, 80 + 8 * seed, seed=seed), "image/jpeg"
    if modality == "video":
        # Not less than a second: some HF processors want several frames at 2 a second.
        data = media.video(96, 64, seconds=2 + seed / 2, fps=8, seed=seed, audio=True)
        return data, "video/mp4"
    if seed % 2:
        return media.audio_flac(0.4, rate=16000, seed=seed), "audio/flac"
    return media.audio_wav(0.5, rate=44100, channels=2, seed=seed), "audio/wav"


def item(modality: str, seed: int = 0, uuid: str | None = None) -> Part:
    made = data_part(modality, *_payload(modality, seed))
    return made if uuid is None else {**made, "uuid": uuid}


def again(*parts: Part, **params: Any) -> Case:
    """The same request twice: without and with a cached result."""
    return Case([Step(parts, parts), Step(parts, [])], params)


def by_uuid(modality: str, *, alone: bool = True) -> Case:
    """An item with a UUID, then the UUID again; `alone` is without the item."""
    one = item(modality, 3, uuid := f"{modality}-of-the-client")
    other = part(modality, None, uuid) if alone else one
    return Case([Step([one], [one]), Step([other], [])])


def partly_known(modality: str) -> Case:
    """An item, then that item after one that is new."""
    one, other = item(modality, 4), item(modality, 5)
    return Case([Step([one], [one]), Step([other, one], [other])])


def own_sound(*seeds: int) -> Case:
    """Videos whose sound is an item as well, twice."""
    case = again(
        *(item("video", seed) for seed in seeds),
        mm_processor_kwargs={"use_audio_in_video": True},
    )
    return replace(case, tracks={"video": ("video", "audio")})
