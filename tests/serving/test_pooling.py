# SPDX-License-Identifier: Apache-2.0
"""The routes of a pooling server, whose processor cache holds a few images only."""

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.serving.conftest import change, image_data
from tests.serving.routes import (
    Route,
    as_chat,
    by_path,
    check_broken_item,
    check_oversized_image,
    check_repeated_item,
    messages,
    of_each,
    of_each_modality,
    parts,
)
from tiny import models
from tiny.server import ServeProcess


@pytest.fixture(scope="module")
def server(media_dir):
    # About ten of the images.
    arguments = ["--runner=pooling", "--mm-processor-cache-gb=0.01"]
    with ServeProcess(models.build_omni(), arguments, media_dir=media_dir) as process:
        yield process


def as_conversations(*urls: str) -> dict[str, Any]:
    return {"messages": [messages(), messages(*urls)]}


def as_score(*urls: str) -> dict[str, Any]:
    return {"queries": "a cat", "documents": {"content": parts(*urls)}}


def as_rerank(*urls: str) -> dict[str, Any]:
    return {"query": "a cat", "documents": [{"content": parts(*urls)}]}


def as_cohere(*urls: str) -> dict[str, Any]:
    return {"inputs": [{"content": parts(*urls)}]}


ROUTES = by_path(
    Route("/v1/embeddings", as_chat),
    Route("/v2/embed", as_cohere, ("image",)),
    Route("/pooling", as_chat),
    Route("/score", as_score, ("image", "video")),
    Route("/v1/score", as_score, ("image", "video")),
    Route("/rerank", as_rerank, ("image", "video")),
    Route("/v1/rerank", as_rerank, ("image", "video")),
    Route("/v2/rerank", as_rerank, ("image", "video")),
    Route("/tokenize", as_chat),
    Route("/invocations", as_chat),
) | {"/v1/embeddings of many": Route("/v1/embeddings", as_conversations)}


@of_each(ROUTES)
def test_repeated_item_is_not_decoded_again(server, route, unique):
    check_repeated_item(server, route, unique)


@of_each_modality(ROUTES)
def test_broken_item_is_422_with_its_index(server, route, modality):
    check_broken_item(server, route, modality)


@of_each(ROUTES)
def test_oversized_image_fails_by_its_header(server, route):
    check_oversized_image(server, route)


def test_the_engine_has_what_the_front_end_takes_for_cached(server, unique):
    route = ROUTES["/v1/embeddings"]
    # Each comes again when some have been evicted and others have not.
    seeds = random.Random(0).choices(range(20), k=150)

    def ask(seed: int) -> int:
        return route.post(server, image_data(unique + seed)).status_code

    def all_of_them() -> None:
        with ThreadPoolExecutor(16) as clients:
            assert set(clients.map(ask, seeds)) == {200}

    outcomes = change(server, "image", all_of_them)
    assert outcomes["cached"] > 20 and outcomes["decoded"] > 40, outcomes
    assert "cache miss" not in server.log.read_text()
