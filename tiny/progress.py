# SPDX-License-Identifier: Apache-2.0
"""What to show a person who waits for a server to start."""

import re
import threading
import time


class Progress:
    """Shows every few seconds how far the server is, until its block ends."""

    EVERY = 5.0
    # vLLM's own lines: process, level, time, place of code, and then what it says.
    # Those of the libraries below it are mostly warnings that concern nobody here.
    LINE = re.compile(r"(?:\(.*?\) )?[A-Z]+ [\d-]+ [\d:]+ \[.*?\] (.*\w.*)")

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.last = "starting"
        self._over = threading.Event()
        self._shower = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> "Progress":
        self._shower.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._shower.join()

    def line(self, line: str) -> None:
        """Takes a line of the server's output."""
        if found := self.LINE.match(line):
            self.last = found[1].strip()

    def _show(self) -> None:
        # The wait is only the pace of the display; what ends it is the event.
        while not self._over.wait(self.EVERY):
            self.say(self.last)

    def say(self, words: str) -> None:
        """Prints it, with the time since the start."""
        print(f"  {time.monotonic() - self.start:4.0f} s  {words[:90]}", flush=True)
