# SPDX-License-Identifier: Apache-2.0
"""Broken, lying and odd media in whole requests: each costs its own request at most."""

import asyncio
import gc
from typing import Any, NamedTuple

import pytest

from tests.harness import bytes_held, chat, chat_async, data_part, part, turns
from tiny import media
from vllm.exceptions import VLLMUnprocessableEntityError
from vllm.renderers.base import BaseRenderer


class Ugly(NamedTuple):
    modality: str
    data: bytes
    mime: str

    @property
    def part(self) -> dict[str, Any]:
        return data_part(self.modality, self.data, self.mime)


JPEG, PNG, WAV, MP4 = "image/jpeg", "image/png", "audio/wav", "video/mp4"
CLIP = media.video(96, 64, seconds=1, fps=8)

BROKEN = {
    "truncated jpeg": Ugly("image", media.truncated(media.jpeg(160, 120)), JPEG),
    "truncated png": Ugly("image", media.truncated(media.png(160, 120)), PNG),
    "empty image": Ugly("image", media.EMPTY, PNG),
    "noise for an image": Ugly("image", media.noise(), PNG),
    "sound for an image": Ugly("image", media.audio_wav(0.1), PNG),
    "truncated video": Ugly("video", media.truncated(CLIP), MP4),
    "empty video": Ugly("video", media.EMPTY, MP4),
    "noise for a video": Ugly("video", media.noise(), MP4),
    "video without a picture": Ugly("video", media.video_without_picture(0.2), MP4),
    # This model's sampler takes frames in pairs, and so none of one.
    "one frame": Ugly("video", media.one_frame_video(96, 64), MP4),
    "truncated sound": Ugly("audio", media.truncated(media.audio_flac(0.2), 0.1), WAV),
    "empty sound": Ugly("audio", media.EMPTY, WAV),
    "noise for sound": Ugly("audio", media.noise(), WAV),
    "silent video for sound": Ugly("audio", CLIP, MP4),
}

ODD = {
    "mislabelled": Ugly("image", *media.mislabelled()),
    "animated": Ugly("image", media.gif(160, 120), "image/gif"),
    "cmyk": Ugly("image", media.jpeg(160, 120, mode="CMYK"), JPEG),
    "palette with transparency": Ugly("image", media.png(160, 120, mode="P"), PNG),
    "rotated": Ugly("image", media.jpeg(160, 96, exif_orientation=6), JPEG),
    "eight channels": Ugly("audio", media.eight_channel_wav(0.3), WAV),
}


def cases(table: dict[str, Ugly]) -> Any:
    return pytest.mark.parametrize(
        "ugly", [pytest.param(ugly, id=name) for name, ugly in table.items()]
    )


def good(modality: str) -> dict[str, Any]:
    """An item that is in order, of this modality."""
    return {
        "image": data_part("image", media.jpeg(96, 64, seed=77), JPEG),
        "video": data_part("video", media.video(64, 48, 1, fps=8, seed=77), MP4),
        "audio": data_part("audio", media.audio_wav(0.3, seed=77), WAV),
    }[modality]


@cases(BROKEN)
async def test_a_broken_item_is_named(renderer: BaseRenderer, ugly: Ugly) -> None:
    gc.collect()
    before = bytes_held(renderer)
    fine, *failed = await asyncio.gather(
        chat_async(renderer, good(ugly.modality)),
        chat_async(renderer, good(ugly.modality), ugly.part),
        asyncio.to_thread(chat, renderer, good(ugly.modality), ugly.part, ugly.part),
        return_exceptions=True,
    )
    assert len(fine["mm_placeholders"][ugly.modality]) == 1
    for error in failed:
        assert isinstance(error, VLLMUnprocessableEntityError)
        assert f"Failed to decode {ugly.modality} at index 1" in str(error)
        assert error.parameter is None
    # The next request is as if nothing had been.
    again = await chat_async(renderer, good(ugly.modality))
    assert again["prompt_token_ids"] == fine["prompt_token_ids"]
    # What failed holds its item through the tracebacks, and asyncio holds what failed
    # in a cycle, where it came from a thread.
    failed.clear()
    del error
    await turns()
    gc.collect()
    assert bytes_held(renderer) == before


@cases(ODD)
async def test_an_odd_item_is_taken(renderer: BaseRenderer, ugly: Ugly) -> None:
    # Twice: the second is the same item, and nothing of it is sent.
    made = await chat_async(renderer, ugly.part, good(ugly.modality), ugly.part)
    items = made["mm_kwargs"][ugly.modality]
    assert [item is not None for item in items] == [True, True, False]
    hit = chat(renderer, ugly.part)
    assert hit["mm_kwargs"][ugly.modality] == [None]
    assert hit["mm_hashes"][ugly.modality][0] == made["mm_hashes"][ugly.modality][0]


async def test_a_huge_header_is_refused_before_anything_decodes(
    renderer: BaseRenderer,
) -> None:
    part_of_it = data_part("image", media.huge_png(), PNG)
    with pytest.raises(ValueError, match=r"too large|exceed"):
        await chat_async(renderer, good("image"), part_of_it)
    assert (await chat_async(renderer, good("image")))["mm_placeholders"]["image"]


async def test_sound_without_samples_is_the_processor_s_to_judge(
    renderer: BaseRenderer,
) -> None:
    """It decodes, to nothing."""
    silent = data_part("audio", media.silent_wav(), WAV)
    results = await asyncio.gather(
        chat_async(renderer, silent),
        chat_async(renderer, good("audio")),
        return_exceptions=True,
    )
    assert not isinstance(results[0], VLLMUnprocessableEntityError)
    assert not isinstance(results[1], BaseException)


async def test_an_item_by_uuid_alone_among_others(renderer: BaseRenderer) -> None:
    named = {**good("image"), "uuid": "it"}
    await chat_async(renderer, named)
    made = await chat_async(renderer, part("image", None, "it"), ODD["cmyk"].part)
    assert [item is None for item in made["mm_kwargs"]["image"]] == [True, False]
    with pytest.raises(ValueError, match="image at index 1"):
        await chat_async(renderer, ODD["cmyk"].part, part("image", None, "unknown"))
