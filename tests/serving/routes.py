# SPDX-License-Identifier: Apache-2.0
"""What must hold for every HTTP route that takes media, and how each is asked."""

from collections.abc import Callable
from typing import Any, NamedTuple

import httpx
import pytest

from tests.serving.conftest import CORRUPT, GOOD, change, image_data
from tiny import media
from tiny.server import ServeProcess

OVERSIZED = media.data_url(media.huge_png(), "image/png")


class Route(NamedTuple):
    """A route, and the body of a request to it with media by their `data:` URLs."""

    path: str
    body: Callable[..., dict[str, Any]]
    modalities: tuple[str, ...] = ("image", "video", "audio")

    def post(self, server: ServeProcess, *urls: str) -> httpx.Response:
        body = {"model": server.model, **self.body(*urls)}
        return httpx.post(server.base_url + self.path, json=body, timeout=300)


def modality_of(url: str) -> str:
    return url.removeprefix("data:").partition("/")[0]


def parts(*urls: str) -> list[dict[str, Any]]:
    kinds = [f"{modality_of(url)}_url" for url in urls]
    made: list[dict[str, Any]] = [
        {"type": kind, kind: {"url": url}}
        for kind, url in zip(kinds, urls, strict=True)
    ]
    return [*made, {"type": "text", "text": "What is this?"}]


def messages(*urls: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": parts(*urls)}]


def as_chat(*urls: str) -> dict[str, Any]:
    return {"messages": messages(*urls)}


def by_path(*routes: Route) -> dict[str, Route]:
    return {route.path: route for route in routes}


def of_each(routes: dict[str, Route]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("route", routes.values(), ids=routes)


def of_each_modality(routes: dict[str, Route]) -> pytest.MarkDecorator:
    cases = {
        f"{path}-{modality}": (route, modality)
        for path, route in routes.items()
        for modality in route.modalities
    }
    return pytest.mark.parametrize("route, modality", cases.values(), ids=cases)


def url_of(part: dict[str, Any]) -> str:
    return part[part["type"]]["url"]


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error in OpenAI's envelope or in Anthropic's, which has less in it."""
    error = response.json()["error"]
    assert error.get("code", response.status_code) == response.status_code
    return error


def check_repeated_item(server: ServeProcess, route: Route, seed: int) -> None:
    """An item is decoded the first time, and not again."""

    def ask() -> None:
        response = route.post(server, image_data(seed))
        assert response.status_code == 200, response.text

    assert change(server, "image", ask) == {"decoded": 1}
    assert change(server, "image", ask) == {"cached": 1}


REASONS = {
    "image": "Failed to load image: image file is truncated (4 bytes not processed)",
    "video": "Could not open video stream",
    "audio": "Invalid or corrupted audio data. Ensure the input is a valid audio or "
    "video file (e.g. a complete WAV, MP3, or MP4).",
}


def check_broken_item(server: ServeProcess, route: Route, modality: str) -> None:
    """A broken item is HTTP 422, in the same words whatever the route."""
    good, broken = url_of(GOOD[modality]), url_of(CORRUPT[modality])

    def ask() -> None:
        response = route.post(server, good, broken, good)
        error = error_of(response)
        assert response.status_code == 422
        assert error["type"] == "UnprocessableEntityError"
        reason = REASONS[modality]
        assert error["message"] == f"Failed to decode {modality} at index 1: {reason}"
        assert error.get("param") is None

    assert change(server, modality, ask)["failed"] == 1
    assert route.post(server, good).status_code == 200


def check_oversized_image(server: ServeProcess, route: Route) -> None:
    """An image that is too large fails by its header, before any decode."""
    good = url_of(GOOD["image"])

    def ask() -> None:
        response = route.post(server, good, OVERSIZED)
        assert response.status_code == 400
        assert "3600000000 pixels" in error_of(response)["message"]

    assert change(server, "image", ask) == {}
    assert route.post(server, good).status_code == 200
