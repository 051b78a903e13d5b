# SPDX-License-Identifier: Apache-2.0
"""Content parts and messages of chat requests."""

from collections.abc import Mapping
from typing import Any

from tiny import media

Part = dict[str, Any]


def text(words: str) -> Part:
    """Returns a text part."""
    return {"type": "text", "text": words}


def part(modality: str, url: str | None, uuid: str | None = None) -> Part:
    """Returns a media part for a URL, with the client's UUID where there is one."""
    kind = f"{modality}_url"
    made: Part = {"type": kind, kind: None if url is None else {"url": url}}
    if uuid is not None:
        made["uuid"] = uuid
    return made


def data_part(modality: str, data: bytes, mime: str) -> Part:
    """Returns a media part that carries its payload."""
    return part(modality, media.data_url(data, mime))


def message(*parts: Mapping[str, Any], ask: str = "what?") -> Any:
    """Returns a user's message of `parts` with a question behind them."""
    return {"role": "user", "content": [*parts, text(ask)]}
