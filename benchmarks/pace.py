# SPDX-License-Identifier: Apache-2.0
"""Sending the requests of one sample, a number of them at once."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from benchmarks.scenarios import Effort, Request
from benchmarks.stats import percentile


class Exchange(NamedTuple):
    """What one request took, in seconds: to its end, and to its first token."""

    latency: float
    ttft: float | None = None


class Pacer:
    """Takes the requests in turn, and from the start again, until the effort is
    spent; the next one as soon as one of those under way has ended."""

    def __init__(
        self, requests: Sequence[Request], effort: Effort, concurrency: int
    ) -> None:
        self._requests = requests
        self._effort = effort
        self._lanes = concurrency
        self._sent = 0
        self._done: list[Exchange] = []
        self._baseline: list[Exchange] = []
        self._wall = 0.0

    async def run(self, send: Callable[[Request], Awaitable[Exchange]]) -> None:
        """Sends them. The first failure ends the sample and is raised."""
        self._start = time.perf_counter()
        lanes = [asyncio.create_task(self._lane(send)) for _ in range(self._lanes)]
        try:
            await asyncio.gather(*lanes)
        finally:
            for lane in lanes:
                lane.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)
        self._wall = time.perf_counter() - self._start

    def values(self) -> dict[str, float]:
        """The figures of the sample, once it has run.

        Latencies are those of the requests that are no baseline; `above_ms` is how
        much the median of these is above that of the others.
        """
        latencies = [exchange.latency * 1000 for exchange in self._done]
        number = len(self._done) + len(self._baseline)
        values = {
            "requests": number,
            "wall_ms": self._wall * 1000,
            "throughput": number / self._wall,
            "latency_ms": statistics.median(latencies),
            "latency_p99_ms": percentile(latencies, 99),
        }
        if self._baseline:
            baseline = statistics.median(e.latency * 1000 for e in self._baseline)
            values["above_ms"] = values["latency_ms"] - baseline
        ttfts = [e.ttft * 1000 for e in self._done if e.ttft is not None]
        if ttfts:
            values["ttft_ms"] = statistics.median(ttfts)
            values["ttft_p99_ms"] = percentile(ttfts, 99)
        return values

    async def _lane(self, send: Callable[[Request], Awaitable[Exchange]]) -> None:
        while self._goes_on():
            request = self._requests[self._sent % len(self._requests)]
            self._sent += 1
            exchange = await send(request)
            (self._baseline if request.baseline else self._done).append(exchange)

    def _goes_on(self) -> bool:
        if self._sent < self._effort.least:
            return True
        if self._sent >= self._effort.most:
            return False
        return time.perf_counter() - self._start < self._effort.seconds
