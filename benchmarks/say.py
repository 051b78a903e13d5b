# SPDX-License-Identifier: Apache-2.0
"""Progress of a run, for whoever waits for it."""

import time

_START = time.monotonic()


def say(words: str) -> None:
    """Prints it with the time since the start."""
    print(f"{time.monotonic() - _START:5.0f} s  {words}", flush=True)
