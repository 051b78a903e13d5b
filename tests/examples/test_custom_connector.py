# SPDX-License-Identifier: Apache-2.0
"""The connector of `examples/` does what its docstring says."""

import zipfile

import pytest

from examples.custom_connector import ArchiveConnector
from tiny import media
from vllm.multimodal.media import (
    MEDIA_CONNECTOR_REGISTRY,
    AudioMediaIO,
    ImageMediaIO,
    VideoMediaIO,
)

IMAGE = media.jpeg(32, 32)
VIDEO = media.video(64, 64, 1, 5, audio=True)


@pytest.fixture
def connector(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "media.zip", "w") as archive:
        archive.writestr("cat.jpg", IMAGE)
        archive.writestr("cat.mp4", VIDEO)
    monkeypatch.setenv("MEDIA_ARCHIVE", str(tmp_path / "media.zip"))
    return MEDIA_CONNECTOR_REGISTRY.load("archive")


def test_is_the_registered_connector(connector):
    assert type(connector) is ArchiveConnector


async def test_own_scheme_gives_the_item_that_other_schemes_give(connector):
    image_io = ImageMediaIO()
    fetched = connector.fetch_image("archive:cat.jpg", image_io)
    assert not fetched.is_decoded
    for url in ("archive:cat.jpg", media.data_url(IMAGE, "image/jpeg")):
        again = await connector.fetch_image_async(url, image_io)
        assert again.key == fetched.key
    assert fetched.decode().size == (32, 32)


async def test_shared_fetch_works_without_being_overridden(connector):
    ios = VideoMediaIO(ImageMediaIO()), AudioMediaIO()
    video, audio = await connector.fetch_video_and_audio_async("archive:cat.mp4", *ios)
    assert video.data is audio.data
    frames, _ = video.decode()
    assert frames.shape[1:] == (64, 64, 3)
    assert len(audio.decode()[0]) > 0


def test_unknown_name_is_the_clients_mistake(connector):
    with pytest.raises(ValueError, match=r"no 'dog\.jpg' in the media archive"):
        connector.fetch_image("archive:dog.jpg", ImageMediaIO())
