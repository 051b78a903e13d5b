# SPDX-License-Identifier: Apache-2.0
"""A connector written for decoded media is refused when its plugin is loaded."""

from typing import Any

import pytest

from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY, MediaConnector
from vllm.multimodal.media.connector_registry import MediaConnectorRegistry


@pytest.fixture
def registry() -> MediaConnectorRegistry:
    return MediaConnectorRegistry()


class TakesSettings(MediaConnector):
    def __init__(self, media_io_kwargs: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class OldImage(MediaConnector):
    def fetch_image(self, image_url: str, *, image_mode: str = "RGB"):  # type: ignore[override]
        raise NotImplementedError


class OldImageAsync(MediaConnector):
    async def fetch_image_async(self, image_url: str):  # type: ignore[override]
        raise NotImplementedError


class OldImagePositional(MediaConnector):
    def fetch_image(self, image_url: str, image_mode: str = "RGB"):  # type: ignore[override]
        raise NotImplementedError


class OldAudio(MediaConnector):
    def fetch_audio(self, audio_url: str):  # type: ignore[override]
        raise NotImplementedError


class OldAudioAsync(MediaConnector):
    async def fetch_audio_async(self, audio_url: str):  # type: ignore[override]
        raise NotImplementedError


class OldVideo(MediaConnector):
    def fetch_video(self, video_url: str, *, video_processor: str | None = None):  # type: ignore[override]
        raise NotImplementedError


class OldVideoPositional(MediaConnector):
    def fetch_video(  # type: ignore[override]
        self, video_url: str, video_processor: str | None = None
    ):
        raise NotImplementedError


class OldVideoAndDecoder(MediaConnector):
    async def fetch_video_async(  # type: ignore[override]
        self, video_url: str, media_io: Any, *, video_processor: str | None = None
    ):
        raise NotImplementedError


class OneDecoderForTwo(MediaConnector):
    def fetch_video_and_audio(self, video_url: str, video_io: Any):  # type: ignore[override]
        raise NotImplementedError


class OneDecoderForTwoAsync(MediaConnector):
    async def fetch_video_and_audio_async(self, video_url: str):  # type: ignore[override]
        raise NotImplementedError


class DuckWithoutSharedFetch:
    def fetch_image(self, image_url: str, media_io: Any): ...

    async def fetch_image_async(self, image_url: str, media_io: Any): ...

    def fetch_audio(self, audio_url: str, media_io: Any): ...

    async def fetch_audio_async(self, audio_url: str, media_io: Any): ...

    def fetch_video(self, video_url: str, media_io: Any): ...

    async def fetch_video_async(self, video_url: str, media_io: Any): ...


class Duck(DuckWithoutSharedFetch):
    def fetch_video_and_audio(self, video_url: str, video_io: Any, audio_io: Any): ...

    async def fetch_video_and_audio_async(self, *args: Any, **kwargs: Any): ...


class NewApi(MediaConnector):
    def fetch_image(self, image_url: str, media_io: Any):
        return self.load_from_url(image_url, media_io)

    async def fetch_video_async(self, video_url: str, media_io: Any, extra: int = 0):
        return await self.load_from_url_async(video_url, media_io)


OLD = pytest.mark.parametrize(
    ("plugin", "method", "change"),
    [
        (TakesSettings, "__init__", "Remove the parameter"),
        (OldImage, "fetch_image", "fetch_image(self, url, media_io)"),
        (OldImageAsync, "fetch_image_async", "(self, url, media_io)"),
        (OldImagePositional, "fetch_image", "Take media_io in its place"),
        (OldAudio, "fetch_audio", "fetch_audio(self, url, media_io)"),
        (OldAudioAsync, "fetch_audio_async", "(self, url, media_io)"),
        (OldVideo, "fetch_video", "fetch_video(self, url, media_io)"),
        (OldVideoPositional, "fetch_video", "Take media_io in its place"),
        (OldVideoAndDecoder, "fetch_video_async", "still takes video_processor"),
        (
            OneDecoderForTwo,
            "fetch_video_and_audio",
            "(self, url, video_io, audio_io)",
        ),
        (
            OneDecoderForTwoAsync,
            "fetch_video_and_audio_async",
            "(self, url, video_io, audio_io)",
        ),
        (DuckWithoutSharedFetch, "fetch_video_and_audio", "is missing. Add it"),
    ],
)


@OLD
def test_old_connector_is_refused_with_the_change_to_make(
    registry: MediaConnectorRegistry, plugin: type, method: str, change: str
) -> None:
    with pytest.raises(TypeError) as refusal:
        registry.register("my_plugin")(plugin)
    message = str(refusal.value)
    assert "'my_plugin'" in message
    assert plugin.__qualname__ in message
    assert f": {method}" in message
    assert change in message
    assert "plugin-migration" in message
    assert "my_plugin" not in registry.name2class


@OLD
def test_refused_connector_stays_refused(
    registry: MediaConnectorRegistry, plugin: type, method: str, change: str
) -> None:
    # vLLM logs what a plugin raises and goes on.
    with pytest.raises(TypeError) as first:
        registry.register("my_plugin")(plugin)
    for again in (
        lambda: registry.check("my_plugin"),
        lambda: registry.load("my_plugin"),
        lambda: registry.load("my_plugin", allowed_media_domains=None),
    ):
        with pytest.raises(TypeError) as refusal:
            again()
        assert str(refusal.value) == str(first.value)
    registry.check("another")


@pytest.mark.parametrize("plugin", [NewApi, Duck])
def test_new_connector_registers_and_loads(
    registry: MediaConnectorRegistry, plugin: type
) -> None:
    assert registry.register("my_plugin")(plugin) is plugin
    registry.check("my_plugin")
    assert type(registry.load("my_plugin")) is plugin


def test_mended_connector_is_taken(registry: MediaConnectorRegistry) -> None:
    with pytest.raises(TypeError):
        registry.register("my_plugin")(OldImage)
    registry.register("my_plugin")(NewApi)
    registry.check("my_plugin")
    assert isinstance(registry.load("my_plugin"), NewApi)


def test_arguments_reach_the_connector(registry: MediaConnectorRegistry) -> None:
    registry.register("my_plugin")(NewApi)
    loaded = registry.load("my_plugin", allowed_media_domains=["example.org"])
    assert loaded.allowed_media_domains == ["example.org"]


def test_unknown_connector_is_told_as_in_stock(
    registry: MediaConnectorRegistry,
) -> None:
    with pytest.raises(AssertionError, match="nothing not found"):
        registry.load("nothing")


def test_http_is_registered() -> None:
    assert isinstance(MEDIA_CONNECTOR_REGISTRY, MediaConnectorRegistry)
    assert type(MEDIA_CONNECTOR_REGISTRY.load("http")) is MediaConnector
