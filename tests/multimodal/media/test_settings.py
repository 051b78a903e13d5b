# SPDX-License-Identifier: Apache-2.0
"""Every setting of every decoder, varied: the key tells apart what decodes apart."""

import ast
import base64
import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from tiny.media import audio_wav, jpeg, png, video
from vllm.multimodal import video as loaders
from vllm.multimodal import video_decoders
from vllm.multimodal.media import (
    AudioMediaIO,
    ImageMediaIO,
    MediaRef,
    VideoMediaIO,
)
from vllm.multimodal.media import audio as audio_module
from vllm.multimodal.media import image as image_module
from vllm.multimodal.media import video as video_module

CLIP = video(64, 48, seconds=4, fps=12)
ROW = ",".join(base64.b64encode(jpeg(16, 16, seed)).decode() for seed in range(4))
CLEAR = png(16, 16, mode="RGBA")


class Case(NamedTuple):
    """Two values of a setting, beside settings that both decodes have."""

    setting: str
    one: Any
    other: Any
    beside: dict[str, Any] = {}
    # What is decoded: "image", "audio", "video", or "row" for a row of pictures.
    kind: str = "video"

    @property
    def id(self) -> str:
        return f"{self.kind}-{self.beside.get('video_backend', '')}-{self.setting}"

    def ref(self, value: Any) -> MediaRef:
        settings = {**self.beside, self.setting: value}
        if self.kind == "image":
            return ImageMediaIO(**settings).load_bytes_ref(CLEAR)
        if self.kind == "audio":
            return AudioMediaIO(**settings).load_bytes_ref(audio_wav(0.1))
        image = {
            name: settings.pop(name) for name in list(settings) if name in IMAGE_NAMES
        }
        io = VideoMediaIO(ImageMediaIO(**image), **settings)
        if self.kind == "row":
            return io.load_base64_ref("video/jpeg", ROW)
        return io.load_bytes_ref(CLIP)


IMAGE_NAMES = {"image_mode", "rgba_background_color"}


def on(backend: str, **beside: Any) -> dict[str, Any]:
    return {"video_backend": backend, **beside}


SHAPING = [
    Case("image_mode", "RGB", "L", kind="image"),
    Case("image_mode", "RGB", None, kind="image"),
    Case("rgba_background_color", [255, 255, 255], [0, 0, 255], kind="image"),
    Case("num_frames", 4, 8),
    Case("num_frames", 4, -1),
    Case("video_backend", "opencv", "glm46v"),
    Case("video_backend", "opencv", "opencv_dynamic"),
    # It keeps the encoded bytes in its metadata.
    Case("video_backend", "opencv", "nemotron_vl"),
    Case("fps", 1, 2, {"num_frames": -1}),
    Case("fps", 1, 2, on("qwen3_vl", min_frames=1)),
    Case("fps", 1, 2, on("qwen2_vl", min_frames=1)),
    Case("max_duration", 1, 3, on("opencv_dynamic", fps=2)),
    Case("min_frames", 2, 6, on("qwen3_vl", fps=1)),
    Case("max_frames", 4, 6, on("qwen3_vl")),
    Case("min_frames", 2, 6, on("qwen2_vl", fps=1)),
    Case("max_frames", 4, 6, on("qwen2_vl")),
    Case("max_frames", 4, 6, on("glm5next")),
    Case("temporal_patch_size", 2, 4, on("qwen2_vl", fps=3, max_frames=10)),
    Case("frame_sample_mode", None, "uniform_last_frame", on("molmo2", num_frames=6)),
    Case("max_fps", 1, 2, on("molmo2", frame_sample_mode="uniform_last_frame")),
    Case("sampling_fps", 1, 3, on("molmo2", frame_sample_mode="fps", num_frames=20)),
    Case("num_frames", 2, 3, kind="row"),
    Case("image_mode", "RGB", "L", kind="row"),
    Case("fps", 1, 2, kind="row"),
    Case("frames_indices", [0, 1, 2, 3], [0, 2, 4, 6], kind="row"),
    Case("total_num_frames", 4, 8, kind="row"),
    Case("duration", 4, 8, kind="row"),
    Case("do_sample_frames", False, True, kind="row"),
]

# What is not seen in these media, or without a GPU; the key has it.
SHAPING_ELSEWHERE = [
    # It needs FFmpeg's libraries, which not every machine has.
    Case("backend", "opencv", "torchcodec"),
    # Only frames that can't be read are recovered.
    Case("frame_recovery", False, True),
    # Only in files with wrong metadata does it find other frames.
    Case("seek_mode", "exact", "approximate", {"backend": "torchcodec"}),
    Case("device", "cpu", "cuda", {"backend": "torchcodec"}),
    # All three read WAV alike; other formats, each in its own way.
    Case("audio_backend", "soundfile", "pyav", kind="audio"),
]

WITHOUT_EFFECT = [
    # They name no other decoder than the default does.
    Case("audio_backend", None, "auto", kind="audio"),
    Case("video_backend", None, "opencv"),
    Case("rgba_background_color", [1, 2, 3], (1, 2, 3), kind="image"),
    # A file's frames are not pictures of their own.
    Case("image_mode", "RGB", "L"),
]

WITHOUT_EFFECT_ELSEWHERE = [
    Case("num_ffmpeg_threads", 1, 2, {"backend": "torchcodec"}),
    Case("hw_decoders", 1, 2),
    Case("pool_size", 1, 2),
    Case("timeout_sec", 1, 2),
]

ALL = SHAPING + SHAPING_ELSEWHERE + WITHOUT_EFFECT + WITHOUT_EFFECT_ELSEWHERE


def cases(chosen: list[Case]) -> Any:
    return pytest.mark.parametrize(
        "case", [pytest.param(case, id=case.id) for case in chosen]
    )


def flat(media: Any) -> tuple[Any, Any]:
    """Decoded media as an array and what comes beside it."""
    if isinstance(media, tuple):
        return np.asarray(media[0]), media[1]
    return np.asarray(media), media.mode


def decodes_alike(one: MediaRef, other: MediaRef) -> bool:
    (pixels, beside), (other_pixels, other_beside) = (
        flat(one.decode()),
        flat(other.decode()),
    )
    return np.array_equal(pixels, other_pixels) and beside == other_beside


@cases(SHAPING)
def test_another_result_has_another_key(case: Case) -> None:
    one, other = case.ref(case.one), case.ref(case.other)
    assert not decodes_alike(one, other)
    assert one.key != other.key
    assert case.ref(case.one).key == one.key


@cases(SHAPING_ELSEWHERE)
def test_what_may_give_another_result_has_another_key(case: Case) -> None:
    assert case.ref(case.one).key != case.ref(case.other).key


@cases(WITHOUT_EFFECT)
def test_the_same_result_has_the_same_key(case: Case) -> None:
    one, other = case.ref(case.one), case.ref(case.other)
    assert decodes_alike(one, other)
    assert one.key == other.key


@cases(WITHOUT_EFFECT_ELSEWHERE)
def test_what_changes_no_result_changes_no_key(case: Case) -> None:
    assert case.ref(case.one).key == case.ref(case.other).key


def names_asked_for(source: str) -> Iterator[str]:
    """Constants that are looked up in something called `kwargs`."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("get", "pop")
            and ast.unparse(node.func.value).endswith("kwargs")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield node.args[0].value


def known_settings() -> set[str]:
    """The name of every setting that the release's decoders look at."""
    names: set[str] = set()
    for module in (loaders, *UPSTREAM):
        names |= set(names_asked_for(inspect.getsource(module)))
    registry = loaders.VIDEO_LOADER_REGISTRY
    functions = [loader.load_bytes for loader in registry.name2class.values()]
    functions += [ImageMediaIO.__init__, AudioMediaIO.__init__, VideoMediaIO.__init__]
    for function in functions:
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is not parameter.VAR_KEYWORD:
                names.add(parameter.name)
    for options in video_decoders._BACKEND_OPTION_DEFAULTS.values():
        names |= options.keys()
    return names - {"self", "data", "image_io"}


UPSTREAM = [module.upstream for module in (image_module, audio_module, video_module)]


def test_no_setting_is_left_out() -> None:
    assert known_settings() == {case.setting for case in ALL}


@pytest.mark.parametrize(
    "decoder", [ImageMediaIO(), AudioMediaIO(), VideoMediaIO(ImageMediaIO())]
)
def test_a_setting_that_nobody_knows_yet_is_in_the_key(decoder: Any) -> None:
    """A loader that a plugin registers may read it."""
    arguments = (ImageMediaIO(),) if isinstance(decoder, VideoMediaIO) else ()
    with_it = type(decoder)(*arguments, of_tomorrow=1)
    assert with_it.get_decode_spec() != decoder.get_decode_spec()


def test_the_bytes_that_a_decoder_keeps_are_still_there_after_release() -> None:
    """Metadata may hold the payload, whose life is then that of the result."""
    ref = VideoMediaIO(ImageMediaIO(), video_backend="nemotron_vl").load_bytes_ref(CLIP)
    metadata = ref.decode()[1]
    ref.release()
    assert ref.data == b""
    assert metadata["original_video_bytes"] == CLIP
