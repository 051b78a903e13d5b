# SPDX-License-Identifier: Apache-2.0
"""The project's own client, for what `vllm bench serve` has no dataset for."""

import json
import time

import aiohttp

from benchmarks.pace import Exchange, Pacer
from benchmarks.scenarios import Effort, Request

PATIENCE = aiohttp.ClientTimeout(total=600)


class RequestFailed(RuntimeError):
    """The server answered with an error, or without a token."""


class Client:
    """Sends chat requests of one token, streamed, to a server."""

    def __init__(self, base_url: str, model: str) -> None:
        self._base_url = base_url
        self._model = model

    async def sample(
        self, requests: list[Request], effort: Effort, concurrency: int
    ) -> dict[str, float]:
        """Returns the figures of one sample; RequestFailed if a request failed."""
        # Before the clock runs, and each request once: what is measured is the
        # server, and base64 in JSON takes the client milliseconds.
        bodies = {id(request): self._body(request) for request in requests}
        pacer = Pacer(requests, effort, concurrency)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            connector=connector, timeout=PATIENCE
        ) as session:

            async def send(request: Request) -> Exchange:
                return await self._send(session, bodies[id(request)])

            await pacer.run(send)
        return pacer.values()

    async def warm(self, requests: list[Request]) -> None:
        """Sends each request once, one after another."""
        if requests:
            await self.sample(requests, Effort(len(requests), len(requests)), 1)

    async def empty_caches(self) -> None:
        """Has the server forget all media and prompts, in every cache."""
        async with aiohttp.ClientSession(timeout=PATIENCE) as session:
            for cache in ("mm", "encoder", "prefix"):
                url = f"{self._base_url}/reset_{cache}_cache"
                async with session.post(url) as answer:
                    answer.raise_for_status()

    def _body(self, request: Request) -> bytes:
        fields = {
            "model": self._model,
            "messages": request.messages,
            "max_completion_tokens": 1,
            "temperature": 0,
            "stream": True,
            **request.options,
        }
        return json.dumps(fields).encode()

    async def _send(self, session: aiohttp.ClientSession, body: bytes) -> Exchange:
        start = time.perf_counter()
        first: float | None = None
        async with session.post(
            f"{self._base_url}/v1/chat/completions",
            data=body,
            headers={"Content-Type": "application/json"},
        ) as answer:
            if answer.status != 200:
                raise RequestFailed(f"{answer.status}: {await answer.text()}")
            async for line in answer.content:
                if first is None and line.startswith(b"data: {"):
                    event = json.loads(line.removeprefix(b"data: "))
                    if not event.get("choices"):
                        raise RequestFailed(line.decode())
                    if event["choices"][0].get("finish_reason"):
                        first = time.perf_counter() - start
        if first is None:
            raise RequestFailed("the answer has no token")
        return Exchange(time.perf_counter() - start, first)
