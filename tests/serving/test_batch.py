# SPDX-License-Identifier: Apache-2.0
"""`vllm run-batch` treats media as the routes of a server do."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.serving.conftest import CORRUPT, GOOD, image_data
from tests.serving.routes import OVERSIZED, REASONS, as_chat, url_of
from tiny import models
from tiny.server import ARGUMENTS, MODEL_NAME

ROOT = Path(__file__).resolve().parents[2]
GOOD_URL, CORRUPT_URL = url_of(GOOD["image"]), url_of(CORRUPT["image"])

# Each batch is run after the one before it, the requests of one all at once.
BATCHES = {
    "1 new": [[image_data(3)]],
    "2 repeated": [[image_data(3)]],
    "3 broken": [[GOOD_URL, CORRUPT_URL, GOOD_URL], [image_data(3)]],
    "4 oversized": [[image_data(3), OVERSIZED]],
    "5 good again": [[GOOD_URL]],
}


def line(*urls: str) -> str:
    body = {"model": MODEL_NAME, **as_chat(*urls), "max_tokens": 1}
    path = "/v1/chat/completions"
    request = {"custom_id": path, "method": "POST", "url": path, "body": body}
    return json.dumps(request)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    asked, answered = (tmp_path_factory.mktemp(name) for name in ("in", "out"))
    for name, requests in BATCHES.items():
        (asked / f"{name}.jsonl").write_text("\n".join(line(*r) for r in requests))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.serving.batch"),
            *("--model", str(models.build_omni()), "--served-model-name", MODEL_NAME),
            *ARGUMENTS,
            *("-i", str(asked), "-o", str(answered)),
        ],
        cwd=ROOT,
        env={**os.environ, "VLLM_NO_USAGE_STATS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return answered


@pytest.fixture
def answers(results: Path) -> Callable[[str], list[dict[str, Any]]]:
    def read(name: str) -> list[dict[str, Any]]:
        text = (results / f"{name}.jsonl").read_text()
        return [json.loads(answer) for answer in text.splitlines()]

    return read


@pytest.fixture
def change(results: Path) -> Callable[[str], dict[str, float]]:
    """What a batch adds to the outcomes of images."""
    names = list(BATCHES)

    def read(name: str) -> dict[str, float]:
        return json.loads((results / f"{name}.json").read_text())

    def changed(name: str) -> dict[str, float]:
        position = names.index(name)
        before = read(names[position - 1]) if position else {}
        after = {k: v - before.get(k, 0) for k, v in read(name).items()}
        return {k: v for k, v in after.items() if v}

    return changed


def status(answer: dict[str, Any]) -> int:
    return answer["response"]["status_code"]


def test_repeated_item_is_not_decoded_again(answers, change):
    assert [status(a) for a in answers("1 new") + answers("2 repeated")] == [200, 200]
    assert change("1 new") == {"decoded": 1}
    assert change("2 repeated") == {"cached": 1}


def test_broken_item_is_422_and_costs_its_own_line_only(answers, change):
    broken, good = answers("3 broken")
    assert (status(broken), status(good)) == (422, 200)
    error = broken["error"]["error"]
    assert error["type"] == "UnprocessableEntityError"
    assert error["code"] == 422 and error["param"] is None
    reason = REASONS["image"]
    assert error["message"] == f"Failed to decode image at index 1: {reason}"
    assert change("3 broken")["failed"] == 1


def test_oversized_image_fails_by_its_header(answers, change):
    (answer,) = answers("4 oversized")
    assert status(answer) == 400
    assert "3600000000 pixels" in answer["error"]["error"]["message"]
    assert change("4 oversized") == {}


def test_next_batch_works(answers):
    assert [status(a) for a in answers("5 good again")] == [200]
