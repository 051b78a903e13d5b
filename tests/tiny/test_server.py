# SPDX-License-Identifier: Apache-2.0
"""The moment from which `ServeProcess` lets requests through."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import urllib3

from tiny import server


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()


@pytest.fixture
def bound():
    """A server with its port bound that does not listen, as vLLM's at its last line."""
    with HTTPServer(("127.0.0.1", 0), Healthy, bind_and_activate=False) as http:
        http.server_bind()
        yield http


def test_waits_until_the_server_listens(bound, monkeypatch):
    pauses = []

    def listen_at_the_second_pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 2:
            bound.server_activate()
            threading.Thread(target=bound.handle_request).start()

    monkeypatch.setattr("time.sleep", listen_at_the_second_pause)
    server._wait_until_it_listens(bound.server_port)
    assert len(pauses) == 2


def test_patience_ends(bound, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(urllib3.exceptions.MaxRetryError):
        server._wait_until_it_listens(bound.server_port)
