# SPDX-License-Identifier: Apache-2.0
"""A real `vllm serve` as a child process, for as long as a `with` block runs."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

import psutil
import urllib3
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

# The last that the server says of its start. It listens only after that.
READY = "Application startup complete"
# Connects for about ten seconds, on a machine too busy to let the server listen.
PATIENCE = urllib3.Retry(connect=10, backoff_factor=0.01)
MODEL_NAME = "tiny"

ARGUMENTS = (
    # The same model in bfloat16 takes twice as long where the CPU has to emulate it.
    "--dtype=float32",
    "--enforce-eager",
    "--max-model-len=8192",
    "--kv-cache-memory-bytes=268435456",
    "--max-num-seqs=16",
    '--limit-mm-per-prompt={"image": 16, "video": 16, "audio": 16}',
    # A request may then ask for a video's own sound; it is refused by default.
    "--trust-request-mm-kwargs",
)

# What one sample of /metrics is known by: its name, then its labels in order.
Sample = tuple[str, frozenset[tuple[str, str]]]


class Metrics(dict[Sample, float]):
    """The samples of one reading of /metrics."""

    def total(self, name: str, **labels: str) -> float:
        """Returns the sum of the samples `name` that have at least these labels.

        0.0 where there are none, as for a counter that nothing has touched yet.
        """
        wanted = labels.items()
        return sum(
            value
            for (found, having), value in self.items()
            if found == name and wanted <= having
        )

    def has(self, name: str) -> bool:
        """Tells whether there is any sample called `name`."""
        return any(found == name for found, _ in self)


class ServeProcess:
    """Starts `vllm serve` on a free loopback port, and waits until it answers.

    `extra_args` are added to the command line, `env` to the environment. Each line
    that the server writes goes to `log` (a temporary file where None) and to
    `progress`, which is called from another thread. Entering the block takes one to
    two minutes on two cores, most of it imports; RuntimeError with the end of the log
    if the server dies before it is ready, and then the log stays where it says;
    urllib3.exceptions.MaxRetryError if it then does not listen. Leaving it ends the
    server's whole process group.
    """

    def __init__(
        self,
        model_dir: Path,
        extra_args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        *,
        progress: Callable[[str], None] | None = None,
        log: Path | None = None,
        media_dir: Path | None = None,
    ) -> None:
        self.port = _free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        self.model = MODEL_NAME
        allowed = [f"--allowed-local-media-path={media_dir}"] if media_dir else []
        self._command = [
            # The script beside this interpreter: the command that a user types.
            str(Path(sys.executable).with_name("vllm")),
            "serve",
            str(model_dir),
            f"--served-model-name={MODEL_NAME}",
            "--host=127.0.0.1",
            f"--port={self.port}",
            *ARGUMENTS,
            *allowed,
            *extra_args,
        ]
        self._env = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "PYTHONUNBUFFERED": "1",
            **(env or {}),
        }
        self._progress = progress
        self._own_log = log is None
        self.log = log or Path(tempfile.mkstemp(prefix="vllm-", suffix=".log")[1])
        self._tail: deque[str] = deque(maxlen=40)
        self._ready = False
        self._settled = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def __enter__(self) -> "ServeProcess":
        self._process = subprocess.Popen(
            self._command,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # A group of its own, so that its workers can be ended with it.
            start_new_session=True,
        )
        self._reader = threading.Thread(
            target=self._read, args=(self._process.stdout,), name="tiny-serve"
        )
        self._reader.start()
        try:
            self._settled.wait()
            if not self._ready:
                # Workers die first, so the cause is often above the last lines.
                self._own_log = False
                raise RuntimeError(
                    f"vllm serve ended before it was ready:\n{self.tail()}\n"
                    f"All that it wrote is in {self.log}"
                )
            _wait_until_it_listens(self.port)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def metrics(self) -> Metrics:
        """Reads /metrics. OSError where the server is gone."""
        with urllib.request.urlopen(f"{self.base_url}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        return Metrics(
            ((sample.name, frozenset(sample.labels.items())), sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        )

    def cpu_seconds(self) -> float:
        """Returns the processor time of the server and of its workers so far.

        psutil.NoSuchProcess where the server is gone.
        """
        assert self._process is not None
        server = psutil.Process(self._process.pid)
        times = [p.cpu_times() for p in (server, *server.children(recursive=True))]
        return sum(time.user + time.system for time in times)

    def openai(self) -> OpenAI:
        """Returns a client of this server that does not repeat failed requests.

        A repeat would hide a failure, and count as one more request.
        """
        return OpenAI(
            base_url=f"{self.base_url}/v1", api_key="none", max_retries=0, timeout=300
        )

    def terminate(self) -> None:
        """Asks the server to end, as an operator does; see `wait`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def wait(self, patience: float = 30.0) -> int:
        """Returns the exit status of the server once it has ended by itself.

        subprocess.TimeoutExpired where it has not after `patience` seconds.
        """
        assert self._process is not None
        return self._process.wait(patience)

    def tail(self) -> str:
        """Returns the last lines that the server wrote."""
        return "\n".join(self._tail)

    def _read(self, output: IO[str]) -> None:
        # Goes on after the server is ready: a full pipe would stop it.
        with self.log.open("w") as log, output:
            for line in output:
                log.write(line)
                log.flush()
                self._tail.append(line.rstrip("\n"))
                if self._progress is not None:
                    self._progress(line.rstrip("\n"))
                if READY in line:
                    self._ready = True
                    self._settled.set()
        self._settled.set()

    def _stop(self) -> None:
        process, reader = self._process, self._reader
        if process is None or reader is None:
            return
        # Politely first: the server ends its own workers and frees shared memory.
        self.terminate()
        try:
            self.wait()
        except subprocess.TimeoutExpired:
            pass
        # The group outlives its leader if a worker hangs. It is gone otherwise.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        reader.join()
        if self._own_log:
            self.log.unlink(missing_ok=True)


def _wait_until_it_listens(port: int) -> None:
    """Returns once the server at `port` has answered.

    It binds the port long before it listens, and nothing tells of the moment, so this
    has to try. urllib3.exceptions.MaxRetryError where `PATIENCE` ends first.
    """
    with urllib3.PoolManager(retries=PATIENCE) as client:
        client.request("GET", f"http://127.0.0.1:{port}/health", timeout=30)


def _free_port() -> int:
    """Returns a port that was free a moment ago; nothing keeps it so."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
