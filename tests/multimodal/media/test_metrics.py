# SPDX-License-Identifier: Apache-2.0
"""What lazy decode reports on `/metrics`."""

import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from vllm.multimodal.media import DecodeSpec, MediaRef, metrics
from vllm.multimodal.media import flights as flights_module
from vllm.multimodal.media.decode import (
    DecodeJob,
    MediaItemRef,
    decode_item,
    drain_media_decodes,
    submit_media_decodes,
)
from vllm.multimodal.media.executor import decode_thread_count
from vllm.v1.metrics.prometheus import unregister_vllm_metrics

PATIENCE = 60


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A model name that nothing else is counted under."""
    monkeypatch.setattr(metrics, "_model_name", metrics._model_name)
    name = f"test-{uuid.uuid4().hex}"
    metrics.set_model_name(name)
    yield name


def value(model: str, name: str, **labels: str) -> float:
    found = REGISTRY.get_sample_value(
        f"vllm:mm_media_{name}", {"model_name": model, **labels}
    )
    return found or 0.0


def items(model: str, modality: str = "image") -> dict[str, float]:
    outcomes = (metrics.CACHED, metrics.DECODED, metrics.SHARED, metrics.FAILED)
    counts = {
        outcome: value(model, "items_total", modality=modality, outcome=outcome)
        for outcome in outcomes
    }
    return {outcome: count for outcome, count in counts.items() if count}


def held(model: str) -> float:
    metrics.EncodedBytes.settle()
    return value(model, "encoded_bytes")


def fail() -> None:
    raise ValueError("broken")


def item(ref: MediaRef, modality: str = "image") -> MediaItemRef:
    return MediaItemRef(modality, 0, ref)


# Items and their decodes


def test_each_outcome_is_counted(model: str) -> None:
    ref = MediaRef(lambda: "media", b"payload")
    decode_item(item(ref))
    decode_item(item(ref))
    decode_item(item(ref.fork()))
    with pytest.raises(ValueError):
        decode_item(item(MediaRef(fail, b"payload")))
    metrics.count_item("image", metrics.CACHED)
    assert items(model) == {"decoded": 1, "shared": 2, "failed": 1, "cached": 1}
    assert items(model, "video") == {}


def test_a_map_that_had_to_transform_counts_as_decoded(model: str) -> None:
    ref = MediaRef(lambda: "media", b"payload")
    decode_item(item(ref.map(str.upper)))
    decode_item(item(ref))
    assert items(model) == {"decoded": 1, "shared": 1}


def test_each_decode_is_timed_once(model: str) -> None:
    jobs: list[DecodeJob] = []
    refs = [MediaRef(lambda: "media", b"x"), MediaRef(fail, b"y")]
    submit_media_decodes([item(ref, "audio") for ref in refs], jobs)
    drain_media_decodes(jobs)
    assert value(model, "decode_seconds_count", modality="audio") == 2
    assert value(model, "decode_seconds_bucket", modality="audio", le="+Inf") == 2
    assert value(model, "decode_seconds_sum", modality="audio") > 0
    assert items(model, "audio") == {"decoded": 1, "failed": 1}


def test_cached_items_are_not_timed(model: str) -> None:
    metrics.count_item("image", metrics.CACHED)
    assert value(model, "decode_seconds_count", modality="image") == 0


def test_running_and_waiting_decodes_are_told_apart(model: str) -> None:
    threads = decode_thread_count()
    began = threading.Semaphore(0)
    go = threading.Event()

    def decode() -> str:
        began.release()
        assert go.wait(PATIENCE)
        return "media"

    jobs: list[DecodeJob] = []
    try:
        submit_media_decodes(
            (item(MediaRef(decode, b"x"), "video") for _ in range(threads + 3)), jobs
        )
        for _ in range(threads):
            assert began.acquire(timeout=PATIENCE)
        assert value(model, "decodes_running") == threads
        assert value(model, "decodes_waiting") == 3
        # Given up before it began.
        assert jobs[-1].cancel()
        assert value(model, "decodes_waiting") == 2
    finally:
        go.set()
        drain_media_decodes(jobs)
    assert value(model, "decodes_running") == 0
    assert value(model, "decodes_waiting") == 0
    assert items(model, "video") == {"decoded": threads + 2}


def test_failed_decodes_and_submissions_leave_the_gauges_level(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError):
        decode_item(item(MediaRef(fail, b"x")))

    def refuse(*args: object) -> Future:
        raise RuntimeError("shut down")

    monkeypatch.setattr(flights_module, "submit_decode", refuse)
    with pytest.raises(RuntimeError):
        submit_media_decodes([item(MediaRef(fail, b"x"))], [])
    assert value(model, "decodes_running") == 0
    assert value(model, "decodes_waiting") == 0


# Bytes held


def test_bytes_are_held_from_making_to_release(model: str) -> None:
    ref = MediaRef(lambda: "media", bytes(1000))
    assert held(model) == 1000
    ref.decode()
    assert held(model) == 1000
    ref.release()
    assert held(model) == 0
    ref.release()
    assert held(model) == 0


def test_bytes_that_are_shared_count_once(model: str) -> None:
    ref = MediaRef(lambda: "media", bytes(1000))
    refs = [ref, ref.fork(), ref.map(str.upper), ref.map(str.upper, case="upper")]
    assert held(model) == 1000
    for one in refs[:-1]:
        one.release()
    assert held(model) == 1000
    refs[-1].release()
    assert held(model) == 0


def test_forgotten_refs_hold_nothing(model: str) -> None:
    refs = [MediaRef(lambda: "media", bytes(100), DecodeSpec()) for _ in range(10)]
    refs[0].decode()
    assert held(model) == 1000
    del refs
    assert held(model) == 0


def test_bytes_stay_with_the_model_they_were_counted_for(model: str) -> None:
    ref = MediaRef(lambda: "media", bytes(1000))
    metrics.set_model_name(f"{model}-next")
    ref.release()
    assert held(model) == 0
    assert held(f"{model}-next") == 0


def test_many_threads_add_up_to_nothing(model: str) -> None:
    def work() -> None:
        for _ in range(200):
            MediaRef(lambda: "media", b"payload", key=b"key").release()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert held(model) == 0


# Registry


def test_metrics_outlast_the_reset_of_vllm(model: str) -> None:
    metrics.count_item("image", metrics.DECODED)
    unregister_vllm_metrics()
    metrics.count_item("image", metrics.DECODED)
    assert items(model) == {"decoded": 2}
    text = generate_latest(REGISTRY).decode()
    labels = f'modality="image",model_name="{model}",outcome="decoded"'
    assert f"vllm:mm_media_items_total{{{labels}}} 2.0" in text


def test_help_and_type_are_told() -> None:
    text = generate_latest(REGISTRY).decode()
    for name, kind in {
        "items_total": "counter",
        "decode_seconds": "histogram",
        "encoded_bytes": "gauge",
        "decoded_bytes": "gauge",
        "decodes_running": "gauge",
        "decodes_waiting": "gauge",
    }.items():
        assert f"# TYPE vllm:mm_media_{name} {kind}" in text
        assert f"# HELP vllm:mm_media_{name} " in text


# Stands in for an API server process: the module alone, since vLLM takes long to load.
_WORKER = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("metrics", sys.argv[1])
metrics = importlib.util.module_from_spec(spec)
spec.loader.exec_module(metrics)
metrics.set_model_name("m")
for _ in range(int(sys.argv[2])):
    metrics.count_item("image", metrics.DECODED)
with metrics.DecodeTimer("image"):
    pass
waiting = metrics.DecodeTimer("image")
held = metrics.EncodedBytes(1000)
metrics.EncodedBytes.settle()
print("ready", flush=True)
sys.stdin.read()
"""


def test_processes_are_summed(tmp_path: Path) -> None:
    assert metrics.__file__ is not None
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, metrics.__file__, str(count)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for count in (2, 3)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"ready\n"
        registry = CollectorRegistry()
        # Reads the files as they are; the class of values in this process is no matter.
        MultiProcessCollector(registry, str(tmp_path))
        text = generate_latest(registry).decode()
    finally:
        for worker in workers:
            worker.communicate()
    assert [worker.returncode for worker in workers] == [0, 0]
    samples = dict(
        line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")
    )
    labels = 'modality="image",model_name="m"'
    expected = {
        f'vllm:mm_media_items_total{{{labels},outcome="decoded"}}': 5,
        f"vllm:mm_media_decode_seconds_count{{{labels}}}": 2,
        'vllm:mm_media_encoded_bytes{model_name="m"}': 2000,
        'vllm:mm_media_decodes_waiting{model_name="m"}': 2,
        'vllm:mm_media_decodes_running{model_name="m"}': 0,
    }
    got = {name: float(samples.get(name, "nan")) for name in expected}
    assert got == expected, json.dumps(samples, indent=1)


def test_forked_process_counts_on() -> None:
    held = metrics.EncodedBytes(1)  # so that this process has its thread
    metrics.EncodedBytes.settle()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends a child that would wait for the parent's thread
        before = metrics._encoded_bytes.labels(metrics._model_name)._value.get()
        more = metrics.EncodedBytes(1000)
        metrics.EncodedBytes.settle()
        after = metrics._encoded_bytes.labels(metrics._model_name)._value.get()
        os._exit(0 if more and after - before == 1000 else 1)
    assert os.waitpid(child, 0)[1] == 0
    del held
