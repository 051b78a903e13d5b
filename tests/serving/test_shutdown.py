# SPDX-License-Identifier: Apache-2.0
"""The server ends while media decode. Sorted last, because it ends the server."""

import json
import struct
import threading
from http.client import HTTPConnection

from tests.serving.conftest import ask, image_data, image_part, video_part
from tiny import media

PATIENCE = 120


def with_box(video: bytes, content: bytes) -> bytes:
    """The same MP4 with other bytes: a box at its end that says to be skipped."""
    return video + struct.pack(">I4s", 8 + len(content), b"free") + content


def test_it_ends_while_media_decode(server, client, web, unique):
    video = media.video(1280, 720, 4, seed=9)
    paths = [f"/{n}.mp4" for n in range(30)]
    go = threading.Event()
    urls = [web.hold(p, with_box(video, p.encode()), "video/mp4", go) for p in paths]
    waiting = [HTTPConnection("127.0.0.1", server.port) for _ in urls]
    for connection, url in zip(waiting, urls, strict=True):
        message = {"role": "user", "content": [video_part(url)]}
        body = json.dumps({"model": server.model, "messages": [message]})
        header = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", body, header)
    for path in paths:
        web.wait_for_gets(path, 1)
    go.set()
    # By the time that this is answered, the videos have arrived.
    assert ask(client, image_part(image_data(unique)))
    assert server.metrics().total("vllm:mm_media_decodes_running") > 0
    server.terminate()
    # The release never answers what its engine has at that moment, and waits for
    # these clients to hang up.
    for connection in waiting:
        connection.close()
    assert server.wait(PATIENCE) == 0
