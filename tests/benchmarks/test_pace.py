# SPDX-License-Identifier: Apache-2.0
"""How the requests of a sample are sent."""

import asyncio
from collections import Counter

import pytest

from benchmarks.pace import Exchange, Pacer
from benchmarks.scenarios import Effort, Request, fixed

REQUESTS = [Request([n]) for n in range(3)]


class Server:
    """Answers at once, and sees how many requests there are at a time."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.now = 0
        self.most = 0

    async def __call__(self, request: Request) -> Exchange:
        self.seen.append(request.messages[0])
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        return Exchange(0.001 * len(self.seen), 0.0005)


async def test_sends_a_fixed_number_in_turn() -> None:
    server, pacer = Server(), Pacer(REQUESTS, fixed(7), 1)
    await pacer.run(server)
    assert server.seen == [0, 1, 2, 0, 1, 2, 0]
    assert server.most == 1
    values = pacer.values()
    assert values["requests"] == 7
    assert values["latency_ms"] == pytest.approx(4.0)
    assert values["latency_p99_ms"] == pytest.approx(7.0)
    assert values["ttft_ms"] == pytest.approx(0.5)
    assert values["throughput"] == pytest.approx(7000 / values["wall_ms"])


async def test_a_baseline_is_told_apart() -> None:
    async def send(request: Request) -> Exchange:
        return Exchange(0.001 if request.baseline else 0.004)

    pacer = Pacer([Request([0], baseline=True), Request([1])], fixed(5), 1)
    await pacer.run(send)
    values = pacer.values()
    assert values["requests"] == 5
    assert values["latency_ms"] == pytest.approx(4.0)
    assert values["above_ms"] == pytest.approx(3.0)


async def test_as_many_at_once_as_told() -> None:
    server, pacer = Server(), Pacer(REQUESTS, fixed(9), 4)
    await pacer.run(server)
    assert server.most == 4
    assert Counter(server.seen) == {0: 3, 1: 3, 2: 3}


async def test_no_more_at_once_than_there_are() -> None:
    server, pacer = Server(), Pacer(REQUESTS, fixed(2), 100)
    await pacer.run(server)
    assert server.seen == [0, 1]


async def test_the_least_is_sent_however_long_it_takes() -> None:
    server, pacer = Server(), Pacer(REQUESTS, Effort(5, 50, seconds=0.0), 1)
    await pacer.run(server)
    assert len(server.seen) == 5


async def test_the_most_is_not_exceeded_in_the_time() -> None:
    server, pacer = Server(), Pacer(REQUESTS, Effort(1, 6, seconds=1e9), 2)
    await pacer.run(server)
    assert len(server.seen) == 6


async def test_a_failure_ends_the_sample_and_stops_the_rest() -> None:
    blocked = asyncio.Event()
    ended = []

    async def send(request: Request) -> Exchange:
        if request.messages[0] == 1:
            raise RuntimeError("no")
        try:
            await blocked.wait()
        except asyncio.CancelledError:
            ended.append(request.messages[0])
            raise
        raise AssertionError

    with pytest.raises(RuntimeError, match="no"):
        await Pacer(REQUESTS, fixed(3), 3).run(send)
    assert sorted(ended) == [0, 2]
