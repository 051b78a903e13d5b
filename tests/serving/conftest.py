# SPDX-License-Identifier: Apache-2.0
"""One real server for all serving tests: starting it costs more than the tests do."""

import zlib

import pytest

from tiny import media, models
from tiny.server import ServeProcess


def is_here(item):
    return "serving" in item.path.parts


def pytest_collection_modifyitems(items):
    for item in items:
        if is_here(item):
            item.add_marker(pytest.mark.serving)
    # It ends the server that the others use.
    items.sort(key=lambda item: item.path.name == "test_shutdown.py" and is_here(item))


@pytest.fixture(scope="session")
def media_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("media")


@pytest.fixture(scope="session")
def server(media_dir):
    with ServeProcess(
        models.build_omni(), ["--enable-scale-out"], media_dir=media_dir
    ) as process:
        yield process


@pytest.fixture(scope="session")
def web(running_web):
    return running_web


@pytest.fixture(scope="session")
def client(server):
    return server.openai()


@pytest.fixture
def unique(request):
    """A number that no other test has, so that nothing is in the cache by chance."""
    return zlib.crc32(request.node.nodeid.encode()) % 1_000_000


def image_part(url):
    return {"type": "image_url", "image_url": {"url": url}}


def video_part(url):
    return {"type": "video_url", "video_url": {"url": url}}


def audio_part(url):
    return {"type": "audio_url", "audio_url": {"url": url}}


def image_data(seed, width=320, height=240):
    return media.data_url(media.jpeg(width, height, seed=seed), "image/jpeg")


def video_data(seed, audio=False):
    video = media.video(320, 240, 1, 15, seed=seed, audio=audio)
    return media.data_url(video, "video/mp4")


def audio_data(seed):
    return media.data_url(media.audio_wav(1, 16000, 1, seed=seed), "audio/wav")


def ask(client, *parts, **kwargs):
    """The answer to one chat request of one token with `parts` before a question."""
    content = [*parts, {"type": "text", "text": "What is this?"}]
    return client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": content}],
        max_tokens=1,
        temperature=0,
        **kwargs,
    )


ITEMS = "vllm:mm_media_items_total"


def outcomes(server, modality):
    """Items by outcome so far."""
    metrics = server.metrics()
    return {
        outcome: metrics.total(ITEMS, modality=modality, outcome=outcome)
        for outcome in ("decoded", "cached", "shared", "failed")
    }


def change(server, modality, request):
    """What `request` adds to the outcomes, without those that it leaves alone."""
    before = outcomes(server, modality)
    request()
    after = outcomes(server, modality)
    return {k: after[k] - before[k] for k in after if after[k] != before[k]}


CORRUPT = {
    "image": image_part(
        media.data_url(media.truncated(media.jpeg(320, 240, seed=1)), "image/jpeg")
    ),
    "video": video_part(
        media.data_url(
            media.truncated(media.video(320, 240, 1, 15, seed=1)), "video/mp4"
        )
    ),
    "audio": audio_part(media.data_url(b"RIFF nothing of the kind", "audio/wav")),
}
GOOD = {
    "image": image_part(image_data(2)),
    "video": video_part(video_data(2)),
    "audio": audio_part(audio_data(2)),
}
