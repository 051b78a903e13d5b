# SPDX-License-Identifier: Apache-2.0
"""What `ServeProcess` tells of a server, without starting vLLM."""

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

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


WORKER = """
import time
while time.process_time() < 0.3:
    pass
print(flush=True)
input()
"""
LEADER = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def test_processor_time_is_that_of_the_workers_too():
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", LEADER, WORKER]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as leader:
        serve = server.ServeProcess(Path())
        serve._process = leader
        leader.stdout.readline()
        assert serve.cpu_seconds() >= 0.3
        serve.log.unlink()
        leader.stdin.write("\n")
