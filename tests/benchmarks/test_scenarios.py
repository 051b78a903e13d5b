# SPDX-License-Identifier: Apache-2.0
"""The definitions hold together, and give the requests that they promise."""

import io
import json
from pathlib import Path
from typing import Any

import av
import pytest

from benchmarks.pool import Pool, repeated
from benchmarks.scenarios import FRONTEND, MODES, SCENARIOS, SERVING, Maker
from benchmarks.vllm_client import dataset, figures
from tiny import media


class Named(Pool):
    """A pool whose files hold their own names: nothing is drawn or encoded."""

    def _file(self, name: str, make: Any) -> Path:
        path = self.folder / name
        path.write_text(name)
        return path


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    return Named(tmp_path)


def media_of(request: Any) -> list[str]:
    """The URLs of a request's media, in order."""
    return [
        part[part["type"]]["url"]
        for message in request.messages
        if isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] != "text"
    ]


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", SCENARIOS)
def test_requests_are_built_and_are_json(name: str, quick: bool, pool: Pool) -> None:
    requests = SCENARIOS[name].build(Maker(pool, "http://web", quick))
    assert requests
    for request in requests:
        json.dumps([request.messages, request.options])


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", ["cold_images", "cold_videos", "burst"])
def test_what_is_cold_is_all_different(name: str, quick: bool, pool: Pool) -> None:
    scenario = SCENARIOS[name]
    requests = scenario.build(Maker(pool, "", quick))
    urls = [url for request in requests for url in media_of(request)]
    assert scenario.cold and not scenario.warm
    assert len(set(urls)) == len(urls) == scenario.effort(quick).most


@pytest.mark.parametrize("quick", [True, False])
def test_one_in_ten_is_new(quick: bool, pool: Pool) -> None:
    scenario = SCENARIOS["mixed_videos"]
    known, *rest = SCENARIOS["mixed_videos"].build(Maker(pool, "", quick))
    assert scenario.warm == 1
    urls = [media_of(request)[0] for request in rest]
    new = [url for url in urls if url != media_of(known)[0]]
    assert len(set(new)) == len(new)
    assert len(urls) == 10 * len(new) == scenario.effort(quick).most


def test_pictures_and_questions_are_cycled(pool: Pool) -> None:
    requests = SCENARIOS["jpeg_pool"].build(Maker(pool, "", True))
    pairs = {(media_of(r)[0], r.messages[0]["content"][-1]["text"]) for r in requests}
    assert len(pairs) == len(requests) == 56
    assert len({url for url, _ in pairs}) == 8


def test_a_history_has_five_images_and_a_new_question(pool: Pool) -> None:
    (request,) = SCENARIOS["history"].build(Maker(pool, "", True))
    assert len(set(media_of(request))) == 5
    assert [m["role"] for m in request.messages] == ["user", "assistant"] * 5 + ["user"]


def test_what_vllm_sends_is_what_its_dataset_can_carry(
    pool: Pool, tmp_path: Path
) -> None:
    for scenario in SCENARIOS.values():
        if scenario.client == "vllm":
            for quick in (True, False):
                effort = scenario.effort(quick)
                assert effort.least == effort.most
            requests = scenario.build(Maker(pool, "http://web", True))
            assert not any(request.options for request in requests)
            dataset(requests, tmp_path / "requests.jsonl")
            lines = (tmp_path / "requests.jsonl").read_text().splitlines()
            kinds = {p["type"] for line in lines for p in json.loads(line)["content"]}
            assert kinds <= {"text", "image_url"}


def test_a_request_that_failed_fails_the_sample() -> None:
    found = {
        "completed": 2,
        "duration": 2.0,
        "request_throughput": 1.0,
        "ttfts": [0.5, 1.5],
        "errors": ["", "no"],
    }
    assert figures(found, 2)["ttft_ms"] == 1000
    with pytest.raises(RuntimeError, match="no"):
        figures(found, 3)


@pytest.mark.parametrize("name", SCENARIOS)
def test_quick_covers_what_a_target_asks_for(name: str) -> None:
    scenario = SCENARIOS[name]
    assert set(scenario.quick_modes) <= set(MODES)
    for level in (FRONTEND, SERVING):
        assert scenario.runs(level, quick=False) or not scenario.runs(level, True)


def test_a_repeated_video_is_that_much_longer() -> None:
    short = media.video(64, 48, seconds=1, fps=8)
    with av.open(io.BytesIO(repeated(short, 3))) as container:
        frames = [frame.pts for frame in container.decode(video=0)]
    assert len(frames) == 24
    assert frames == sorted(set(frames))


def test_media_are_made_once(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    made = []
    for _ in range(2):
        path = pool._file("a.bin", lambda: made.append(1) or b"data")
        assert path.read_bytes() == b"data"
    assert len(made) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]
