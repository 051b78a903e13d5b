# SPDX-License-Identifier: Apache-2.0
"""Which decoder a model gets."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness import video_bytes
from vllm.multimodal.media import AudioMediaIO, ImageMediaIO, VideoMediaIO
from vllm.multimodal.processing import context
from vllm.multimodal.processing.context import BaseProcessingInfo


class Info(BaseProcessingInfo):
    def get_supported_mm_limits(self) -> dict[str, int | None]:
        return {}


@pytest.fixture
def info() -> Info:
    ctx: Any = SimpleNamespace(model_config=object())
    return Info(ctx)


@pytest.fixture
def models_backend(monkeypatch: pytest.MonkeyPatch) -> str:
    """The model's HF video processor is one that vLLM has a video backend for."""
    monkeypatch.setattr(
        context, "get_video_processor_cls_name", lambda config: "Qwen3VLVideoProcessor"
    )
    found = context.get_video_loader_backend_for_processor("Qwen3VLVideoProcessor")
    assert found is not None
    return found


@pytest.fixture
def no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "get_video_processor_cls_name", lambda config: None)


def test_models_backend(info: Info, models_backend: str) -> None:
    for settings in (None, {}, {"video": {"num_frames": 3}}, {"image": {}}):
        decoder = info.get_media_io("video", settings)
        assert isinstance(decoder, VideoMediaIO)
        assert decoder.video_backend == models_backend
        assert decoder.get_decode_spec().settings["video_backend"] == models_backend


def test_explicit_backend_wins(info: Info, models_backend: str) -> None:
    settings = {"video": {"video_backend": "opencv"}}
    assert models_backend != "opencv"
    assert info.get_media_io("video", settings).video_backend == "opencv"
    # The caller's settings are not written to.
    assert settings == {"video": {"video_backend": "opencv"}}


@pytest.mark.usefixtures("no_backend")
def test_default_backend(info: Info, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_VIDEO_LOADER_BACKEND", "qwen2_vl")
    assert info.get_media_io("video").video_backend == "qwen2_vl"


def test_backend_is_part_of_the_identity(info: Info, models_backend: str) -> None:
    def key(settings: Any) -> bytes:
        return info.get_media_io("video", settings).load_bytes_ref(b"x").key

    assert key({"video": {"video_backend": models_backend}}) == key(None)
    assert key({"video": {"video_backend": "opencv"}}) != key(None)


@pytest.mark.usefixtures("no_backend")
def test_video_settings_reach_the_decoder(info: Info) -> None:
    settings = {
        "video": {"num_frames": 3, "video_backend": "opencv"},
        "image": {"image_mode": "L"},
    }
    decoder = info.get_media_io("video", settings)
    frames, _ = decoder.load_bytes_ref(video_bytes()).decode()
    assert len(frames) == 3
    assert decoder.image_io.image_mode == "L"


@pytest.mark.parametrize(
    "modality, kind, settings",
    [
        ("image", ImageMediaIO, {"image_mode": "L"}),
        ("audio", AudioMediaIO, {"audio_backend": "pyav"}),
    ],
)
def test_settings_reach_the_decoder(
    info: Info, modality: str, kind: type, settings: dict[str, Any]
) -> None:
    plain = info.get_media_io(modality)
    decoder = info.get_media_io(modality, {modality: settings, "video": {"x": 1}})
    assert type(plain) is type(decoder) is kind
    for name, value in settings.items():
        assert getattr(decoder, name) == value
    assert decoder.get_decode_spec() != plain.get_decode_spec()


def test_unknown_modality(info: Info) -> None:
    with pytest.raises(ValueError, match="smell"):
        info.get_media_io("smell")


@pytest.mark.parametrize(
    "modality, settings",
    [
        ("image", {"rgba_background_color": "red"}),
        ("audio", {"audio_backend": "gramophone"}),
    ],
)
def test_invalid_settings(info: Info, modality: str, settings: Any) -> None:
    with pytest.raises(ValueError):
        info.get_media_io(modality, {modality: settings})
