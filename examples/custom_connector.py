# SPDX-License-Identifier: Apache-2.0
"""A media connector with a scheme of its own: `archive:NAME` for a file in a ZIP.

Have a vLLM plugin import this file (an entry point in the group
`vllm.general_plugins`). Then

    MEDIA_ARCHIVE=media.zip VLLM_MEDIA_CONNECTOR=archive vllm serve MODEL

takes `{"type": "image_url", "image_url": {"url": "archive:cat.jpg"}}`, and all the
ordinary URLs as before.
"""

import asyncio
import os
import zipfile
from typing import TypeVar

from vllm.multimodal.media import (
    MEDIA_CONNECTOR_REGISTRY,
    MediaConnector,
    MediaIO,
    MediaRef,
)
from vllm.multimodal.media.executor import global_thread_pool

_T = TypeVar("_T")


@MEDIA_CONNECTOR_REGISTRY.register("archive")
class ArchiveConnector(MediaConnector):
    """Overrides the two methods that all fetches go through, video with its own
    audio included. The decoder is passed on, never made here."""

    def load_from_url(
        self, url: str, media_io: MediaIO[_T], *, fetch_timeout: int | None = None
    ) -> MediaRef[_T]:
        if url.startswith("archive:"):
            return media_io.load_bytes_ref(_read(url))
        return super().load_from_url(url, media_io, fetch_timeout=fetch_timeout)

    async def load_from_url_async(
        self, url: str, media_io: MediaIO[_T], *, fetch_timeout: int | None = None
    ) -> MediaRef[_T]:
        if url.startswith("archive:"):
            # Unpacking and hashing grow with the payload: not for the event loop.
            return await asyncio.get_running_loop().run_in_executor(
                global_thread_pool, self.load_from_url, url, media_io
            )
        return await super().load_from_url_async(
            url, media_io, fetch_timeout=fetch_timeout
        )


def _read(url: str) -> bytes:
    name = url.removeprefix("archive:")
    with zipfile.ZipFile(os.environ["MEDIA_ARCHIVE"]) as archive:
        try:
            return archive.read(name)
        except KeyError:
            # A ValueError tells the server that it is the client's mistake.
            raise ValueError(f"no {name!r} in the media archive") from None
