# SPDX-License-Identifier: Apache-2.0
"""A child process that is asked for one thing after another, in lines of JSON.

Two of them, one for each mode, stand by at once and are asked in turn: the import,
which takes half a minute, is paid once, and what disturbs the machine for a while
disturbs both.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

Answer = dict[str, Any]

ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}
"""What glibc settles on by itself once a block of 32 MB has been freed. Whether it has
depends on what a process did before, and each cold request then pays for hundreds of
page faults or for none: more than what is to be measured, in either mode."""


class WorkerError(RuntimeError):
    """The worker could not do what it was asked, or is gone.

    `log` is its traceback, or its last words.
    """

    def __init__(self, told: str, log: str = "") -> None:
        super().__init__(told)
        self.log = log


class Worker:
    """Runs `python -m MODULE ...` for as long as a `with` block runs."""

    PATIENCE = 900.0
    """Seconds for one answer; then the worker is ended, and the answer an error."""

    def __init__(
        self, module: str, *arguments: str, env: Mapping[str, str] | None = None
    ) -> None:
        self._command = [sys.executable, "-m", module, *arguments]
        self._env = {
            **os.environ,
            **ALLOCATOR,
            "HF_HUB_OFFLINE": "1",
            **(env or {}),
        }
        self._tail: deque[str] = deque(maxlen=20)

    def __enter__(self) -> "Worker":
        self._process = subprocess.Popen(
            self._command,
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._logger = threading.Thread(target=self._read_log, daemon=True)
        self._logger.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._kill()
        self._process.wait()
        self._logger.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass

    def ask(self, **question: Any) -> Answer:
        """Returns the worker's answer. WorkerError where it has none."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        watchdog = threading.Timer(self.PATIENCE, self._kill)
        watchdog.start()
        try:
            stdin.write(json.dumps(question) + "\n")
            stdin.flush()
            line = stdout.readline()
        except OSError:
            line = ""
        finally:
            watchdog.cancel()
        if not line:
            # Of no use any more; and its last words are all there once it has ended.
            self._kill()
            self._process.wait()
            self._logger.join()
            raise WorkerError("the worker is gone", "\n".join(self._tail))
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"], answer["traceback"])
        return answer

    def _kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as log:
            for line in log:
                self._tail.append(line.rstrip("\n"))


def serve(make: Callable[[], Callable[[Answer], Answer]]) -> None:
    """The worker's side: answers each question with what the made function returns."""
    # What libraries print, as soon as they are imported, must not end up among the
    # answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    handle = make()
    for line in sys.stdin:
        try:
            answer = handle(json.loads(line))
        except Exception as error:
            answer = {"error": repr(error), "traceback": traceback.format_exc(limit=-6)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
