# SPDX-License-Identifier: Apache-2.0
"""A web server on the loopback interface that counts what is asked of it."""

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType


@dataclass(frozen=True)
class Reply:
    """What one path answers; with `until`, not before that event is set."""

    body: bytes = b""
    media_type: str = "application/octet-stream"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    until: threading.Event | None = None


class MediaServer:
    """Serves bytes by path, in a thread, for as long as its `with` block runs.

    Paths may be added while it runs. `gets[path]` is the number of GET requests that
    arrived for a path, those answered with an error included. A reply that is held
    back is let go when the block ends, so that leaving it never blocks.
    """

    def __init__(self) -> None:
        self.gets: Counter[str] = Counter()
        self._replies: dict[str, Reply] = {}
        self._changed = threading.Condition()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            # Head and body are two writes, and the second would wait for the client
            # to confirm the first, which it does after some 40 ms.
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                owner._answer(self)

            def log_message(self, format: str, *args: object) -> None:
                """Keeps requests out of the output of whoever uses the server."""

        # Bound here already, so that the address is known before the block starts.
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="tiny-http", daemon=True
        )

    def __enter__(self) -> "MediaServer":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for reply in self._replies.values():
            if reply.until is not None:
                reply.until.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def base_url(self) -> str:
        """`http://127.0.0.1:PORT`, without a slash at the end."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def add(self, path: str, reply: Reply) -> str:
        """Answers `path` (which starts with a slash) from now on; returns its URL."""
        self._replies[path] = reply
        return self.base_url + path

    def serve(self, path: str, body: bytes, media_type: str) -> str:
        """Answers `path` with 200 and `body` from now on; returns its URL."""
        return self.add(path, Reply(body, media_type))

    def fail(self, path: str, status: int) -> str:
        """Answers `path` with `status` and no body from now on; returns its URL."""
        return self.add(path, Reply(status=status))

    def redirect(self, path: str, to: str, status: int = 302) -> str:
        """Sends whoever asks for `path` on to the URL `to`; returns its URL."""
        return self.add(path, Reply(status=status, headers={"Location": to}))

    def hold(
        self, path: str, body: bytes, media_type: str, until: threading.Event
    ) -> str:
        """Answers `path` with `body`, but not before `until` is set; returns its URL.

        The request counts as arrived while it waits; see `wait_for_gets`.
        """
        return self.add(path, Reply(body, media_type, until=until))

    def wait_for_gets(self, path: str, count: int, timeout: float = 60.0) -> None:
        """Returns once `count` requests for `path` arrived; TimeoutError if not."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.gets[path] >= count, timeout):
                raise TimeoutError(f"{self.gets[path]} of {count} requests for {path}")

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        with self._changed:
            self.gets[request.path] += 1
            self._changed.notify_all()
        reply = self._replies.get(request.path, Reply(status=404))
        if reply.until is not None:
            reply.until.wait()
        try:
            request.send_response(reply.status)
            request.send_header("Content-Type", reply.media_type)
            request.send_header("Content-Length", str(len(reply.body)))
            for name, value in reply.headers.items():
                request.send_header(name, value)
            request.end_headers()
            request.wfile.write(reply.body)
        except ConnectionError:
            # The client hung up, as one does whose own request was cancelled.
            request.close_connection = True
