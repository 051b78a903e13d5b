# SPDX-License-Identifier: Apache-2.0
"""Requests of every kind, which stock vLLM and the tree must render alike.

    VLLM_LAZY_MEDIA=0 python -m tests.renderers.cases FILE

renders them with stock vLLM and saves what comes out to FILE.
"""

import base64
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from tests.omni import (
    chat,
    chat_async,
    data_part,
    make_renderer,
    part,
    plain,
    prompt_of,
)
from tiny import media
from vllm.renderers.base import BaseRenderer

Result = dict[str, Any]


def _image(data: bytes, mime: str = "image/png") -> dict[str, Any]:
    return data_part("image", data, mime)


def _video(seed: int = 0, audio: bool = False, seconds: int = 2) -> dict[str, Any]:
    data = media.video(96, 64, seconds=seconds, fps=8, seed=seed, audio=audio)
    return data_part("video", data, "video/mp4")


def _audio(seed: int = 0, rate: int = 44100, channels: int = 2) -> dict[str, Any]:
    data = media.audio_wav(0.5, rate=rate, channels=channels, seed=seed)
    return data_part("audio", data, "audio/wav")


def _input_audio() -> dict[str, Any]:
    data = base64.b64encode(media.audio_flac(0.5, rate=22050, seed=8)).decode()
    return {
        "type": "input_audio",
        "input_audio": {"data": data, "format": "flac"},
    }


def _jpeg_sequence() -> dict[str, Any]:
    frames = (media.jpeg(96, 64, seed=seed) for seed in range(4))
    text = ",".join(base64.b64encode(frame).decode() for frame in frames)
    return part("video", f"data:video/jpeg;base64,{text}")


_OWN_SOUND = {"mm_processor_kwargs": {"use_audio_in_video": True}}

CHATS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "jpeg": ([_image(media.jpeg(160, 120), "image/jpeg")], {}),
    "jpeg grey": ([_image(media.jpeg(160, 120, mode="L"), "image/jpeg")], {}),
    "jpeg cmyk": ([_image(media.jpeg(160, 120, mode="CMYK"), "image/jpeg")], {}),
    "jpeg turned": ([_image(media.jpeg(160, 96, exif_orientation=6))], {}),
    "png rgb": ([_image(media.png(160, 120))], {}),
    "png rgba": ([_image(media.png(160, 120, mode="RGBA"))], {}),
    "png palette": ([_image(media.png(160, 120, mode="P"))], {}),
    "png rgba on blue": (
        [_image(media.png(160, 120, mode="RGBA"))],
        {"media_io_kwargs": {"image": {"rgba_background_color": [0, 0, 255]}}},
    ),
    "webp": ([_image(media.webp(160, 120, mode="RGBA"))], {}),
    "gif": ([_image(media.gif())], {}),
    "bmp": ([_image(media.bmp())], {}),
    "video": ([_video()], {}),
    "video of few frames": (
        [_video()],
        {"media_io_kwargs": {"video": {"num_frames": 4}}},
    ),
    "jpeg sequence": ([_jpeg_sequence()], {}),
    "audio stereo": ([_audio()], {}),
    "audio mono": ([_audio(rate=16000, channels=1)], {}),
    "audio ogg": (
        [data_part("audio", media.audio_ogg(0.5, rate=48000), "audio/ogg")],
        {},
    ),
    "audio mp3": (
        [data_part("audio", media.audio_mp3(0.5, rate=44100), "audio/mpeg")],
        {},
    ),
    "input audio": ([_input_audio()], {}),
    "own sound": ([_video(audio=True)], _OWN_SOUND),
    "own sound of two": (
        [_video(1, audio=True), _video(2, audio=True, seconds=1)],
        _OWN_SOUND,
    ),
    "several": (
        [_image(media.png(64 + 32 * i, 96, seed=i)) for i in range(3)]
        + [_video(i) for i in range(2)]
        + [_audio(i) for i in range(2)],
        {},
    ),
    "mixed": (
        [_audio(3), _image(media.jpeg(200, 90, seed=4)), _video(5), _audio(6)],
        {},
    ),
    "twice": ([_image(media.png(160, 120, seed=9))] * 2, {}),
    "text": ([], {}),
}


def _frames(count: int = 4) -> np.ndarray:
    return np.stack(list(media.frames(96, 64, count)))


def _pictures(*seeds: int) -> list[Any]:
    return [media.picture(96, 64, seed=seed) for seed in seeds]


_METADATA = {
    "fps": 2.0,
    "duration": 2.0,
    "total_num_frames": 4,
    "frames_indices": [0, 1, 2, 3],
    "do_sample_frames": False,
}
_STEREO = np.ascontiguousarray(media.wave(0.5, rate=44100, channels=2).T)
_MONO = np.ascontiguousarray(media.wave(0.5, rate=16000)[:, 0])

OFFLINE: dict[str, dict[str, list[Any]]] = {
    "pictures": {"image": _pictures(1, 2)},
    "picture rgba": {"image": [media.picture(96, 64, mode="RGBA")]},
    "picture grey": {"image": [media.picture(96, 64, mode="L")]},
    "image array": {"image": [_frames(1)[0].transpose(2, 0, 1).copy()]},
    "image tensor": {"image": [torch.from_numpy(_frames(1)[0]).permute(2, 0, 1)]},
    "video array": {"video": [_frames()]},
    "video tensor": {"video": [torch.from_numpy(_frames()).permute(0, 3, 1, 2)]},
    "video pictures": {"video": [_pictures(1, 2, 3, 4)]},
    "video tuple": {"video": [(_frames(), _METADATA)]},
    "audio array": {"audio": [_MONO]},
    "audio tuple": {"audio": [(_MONO, 16000)]},
    "audio resampled": {"audio": [(_STEREO[0].copy(), 44100)]},
    "everything": {
        "image": _pictures(5),
        "video": [_frames(2), (_frames(), _METADATA)],
        "audio": [(_MONO, 16000)],
    },
}


def _taken(made: Mapping[str, Any]) -> Result:
    if "mm_kwargs" in made:
        return plain(made)
    return {"prompt": list(made["prompt_token_ids"])}


def render_chat(renderer: BaseRenderer, name: str) -> Result:
    parts, params = CHATS[name]
    return _taken(chat(renderer, *parts, **params))


async def render_chat_async(renderer: BaseRenderer, name: str) -> Result:
    parts, params = CHATS[name]
    return _taken(await chat_async(renderer, *parts, **params))


def render_offline(renderer: BaseRenderer, name: str) -> Result:
    data = OFFLINE[name]
    prompt = prompt_of(renderer, data)
    return _taken(renderer._process_multimodal(prompt, data, None, None))


def main(path: str) -> None:
    renderer = make_renderer()
    found: dict[str, list[Result]] = {}
    for names, render in ((CHATS, render_chat), (OFFLINE, render_offline)):
        for name in names:
            renderer.clear_mm_cache()
            found[name] = [render(renderer, name) for _ in range(2)]
    renderer.shutdown()
    torch.save(found, path)


if __name__ == "__main__":
    main(sys.argv[1])
