# SPDX-License-Identifier: Apache-2.0
"""Every route of a generating server that takes media treats them alike."""

from collections.abc import Callable
from functools import cache
from typing import Any

from tokenizers import Tokenizer

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
)
from tiny import models


def as_completion(*urls: str) -> dict[str, Any]:
    return {**as_chat(*urls), "max_tokens": 1}


def as_batch(*urls: str) -> dict[str, Any]:
    return {"messages": [messages(), messages(*urls)], "max_tokens": 1}


def as_responses(*urls: str) -> dict[str, Any]:
    content = [
        {"type": "input_image", "detail": "auto", "image_url": url} for url in urls
    ]
    return {
        "input": [{"role": "user", "content": content}],
        "max_output_tokens": 1,
        "store": False,
    }


def as_anthropic(*urls: str) -> dict[str, Any]:
    content = []
    for url in urls:
        mime, _, data = url.removeprefix("data:").partition(";base64,")
        source = {"type": "base64", "media_type": mime, "data": data}
        content.append({"type": "image", "source": source})
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 1}


def streamed(body: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    return lambda *urls: {**body(*urls), "stream": True}


@cache
def image_ids() -> list[int]:
    """What stands for an image in a prompt for the tiny model."""
    tokenizer = Tokenizer.from_file(str(models.build_omni() / "tokenizer.json"))
    return tokenizer.encode("<|vision_bos|><|IMAGE|><|vision_eos|>").ids


def as_tokens(*urls: str) -> dict[str, Any]:
    return {
        "token_ids": image_ids() * len(urls),
        "content_parts": [{"type": "image_url", "url": url} for url in urls],
        "sampling_params": {"max_tokens": 1},
    }


ROUTES = by_path(
    Route("/v1/chat/completions", as_completion),
    Route("/v1/chat/completions/batch", as_batch),
    Route("/v1/chat/completions/render", as_completion),
    Route("/v1/responses", as_responses, ("image",)),
    Route("/v1/responses/render", as_responses, ("image",)),
    Route("/v1/messages", as_anthropic, ("image",)),
    Route("/v1/messages/count_tokens", as_anthropic, ("image",)),
    Route("/v1/messages/render", as_anthropic, ("image",)),
    Route("/tokenize", as_chat),
    Route("/inference/v1/generate", as_tokens, ("image",)),
    Route("/invocations", as_completion),
) | {
    f"{path} streamed": Route(path, streamed(body), modalities)
    for path, body, modalities in (
        Route("/v1/chat/completions", as_completion),
        Route("/v1/responses", as_responses, ("image",)),
        Route("/v1/messages", as_anthropic, ("image",)),
    )
}


@of_each(ROUTES)
def test_repeated_item_is_not_decoded_again(server, route, unique):
    check_repeated_item(server, route, unique)


@of_each_modality(ROUTES)
def test_broken_item_is_422_with_its_index(server, route, modality):
    check_broken_item(server, route, modality)


@of_each(ROUTES)
def test_oversized_image_fails_by_its_header(server, route):
    check_oversized_image(server, route)
