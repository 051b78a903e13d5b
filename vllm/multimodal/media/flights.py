# SPDX-License-Identifier: Apache-2.0
"""Single flight: requests that want the same item decoded share one decode.

A flight stays open from the first request that wants it until the last has ended,
and not only while it decodes: until the mm worker has put the result into its cache,
another request can miss there.
"""

import itertools
import threading
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import cast

from . import metrics
from .admission import (
    Admission,
    DecodeRequest,
    decoded_size,
    limit_from_environment,
)
from .base import MediaRef
from .executor import decode_thread_count, submit_decode


@dataclass(frozen=True)
class MediaItemRef:
    """A ref and what the client can know it by."""

    modality: str
    index: int
    """Position among the request's items of `modality`."""
    ref: MediaRef


class DecodeJob:
    """One request's part in a flight: the decode of one of its items.

    Attributes:
        item: The item.
        future: Done when the decode has ended. It gives None, or what the decoder
            raised.
    """

    __slots__ = ("_flight", "_flights", "future", "item", "request")

    def __init__(
        self, flights: "DecodeFlights", item: MediaItemRef, request: DecodeRequest
    ) -> None:
        self.item = item
        self.request = request
        self.future: Future[None] = Future()
        self._flights = flights
        self._flight: _Flight | None = None

    def cancel(self) -> bool:
        """Give the decode up where it has not begun. False where it has.

        Others that want the same decode still get it.
        """
        if not self.future.cancel():
            return False
        self.leave()
        return True

    def leave(self) -> None:
        """Tell that the request is done with the item. Idempotent; never blocks.

        The decoded media count as held until each job of the flight has left.
        """
        self._flights._leave(self)


class _State(Enum):
    WAITING = auto()
    RUNNING = auto()
    LANDED = auto()


class _Flight:
    __slots__ = ("jobs", "key", "modality", "number", "ref", "state", "timer")

    def __init__(self, key: Hashable, number: int, item: MediaItemRef) -> None:
        self.key = key
        self.number = number
        self.modality = item.modality
        # Of its own, because the request that brought the ref may leave first.
        self.ref = item.ref.fork()
        self.timer = metrics.DecodeTimer(item.modality)
        self.jobs: list[DecodeJob] = []
        self.state = _State.WAITING

    @property
    def requests(self) -> list[DecodeRequest]:
        return [job.request for job in self.jobs]


class DecodeFlights:
    """Decodes that wait, run, or whose result is still held.

    Every method may be called from any thread, the event loop's included, and none
    waits for a decode.

    Args:
        admission: Says which decode begins next.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._lock = threading.Lock()
        self._open: dict[Hashable, _Flight] = {}
        self._numbers = itertools.count()

    def board(
        self, item: MediaItemRef, request: DecodeRequest, *, urgent: bool = False
    ) -> DecodeJob:
        """Have `item` decoded, together with equal ones of the same scope.

        Its ref decodes as the first of them from now on, so it must be a fork that
        belongs to the caller alone.

        Args:
            urgent: Begin whatever is held already. For the mm worker, which is who
                frees memory, so that it must not wait for free memory.

        Raises:
            RuntimeError: The pool takes no work any more.
        """
        job = DecodeJob(self, item, request)
        with self._lock:
            flight = self._flight_of(item, request)
            flight.jobs.append(job)
            job._flight = flight
            state = flight.state
            if state is _State.WAITING:
                request.waiting += 1
            else:
                job.future.set_running_or_notify_cancel()
            begun = []
            if urgent and state is _State.WAITING:
                self._admission.begin(flight)
                begun.append(self._began(flight))
            begun += self._admit()
        if state is _State.LANDED:
            metrics.count_item(item.modality, metrics.SHARED)
            job.future.set_result(None)
        if flight in self._start(begun):
            # Into the caller's hands, who has no job to find it in.
            raise cast(BaseException, job.future.exception())
        return job

    def _flight_of(self, item: MediaItemRef, request: DecodeRequest) -> _Flight:
        key: Hashable = object()
        if request.scope is not None:
            # Transforms without settings keep the key, so that equal keys mean equal
            # results only within one model's pipeline: the scope.
            key = (request.scope, item.modality, item.ref.key)
        flight = self._open.get(key)
        if flight is None:
            flight = _Flight(key, next(self._numbers), item)
            self._open[key] = flight
            self._admission.add(flight)
        else:
            item.ref.share_decode(flight.ref)
        return flight

    def _admit(self) -> list[_Flight]:
        """What may begin now, to be started once the lock is free."""
        begun = []
        while (flight := self._admission.next()) is not None:
            begun.append(self._began(cast(_Flight, flight)))
        return begun

    def _began(self, flight: _Flight) -> _Flight:
        flight.state = _State.RUNNING
        for job in flight.jobs:
            job.request.waiting -= 1
            # False for one that was cancelled a moment ago; it is about to leave.
            job.future.set_running_or_notify_cancel()
        return flight

    def _start(self, begun: Sequence[_Flight]) -> list[_Flight]:
        """Hand them to the pool. Those that it did not take have failed."""
        refused = []
        for flight in begun:
            try:
                submit_decode(flight.modality, partial(self._run, flight))
            except BaseException as e:
                refused.append(flight)
                flight.timer.dropped()
                self._fail(flight, e)
        return refused

    def _run(self, flight: _Flight) -> None:
        """On the media pool."""
        try:
            with flight.timer:
                ran = flight.ref.settle()
            size = decoded_size(flight.ref.decode())
        except BaseException as e:
            self._fail(flight, e, metrics.FAILED)
        else:
            self._land(flight, ran, size)

    def _land(self, flight: _Flight, ran: bool, size: int) -> None:
        # What it decoded to stays with it; the payload has done its part.
        flight.ref.release()
        with self._lock:
            flight.state = _State.LANDED
            self._admission.end(flight, size)
            flight.timer.hold(size)
            jobs = list(flight.jobs)
            if not jobs:
                self._close(flight)
            begun = self._admit()
        outcome = metrics.DECODED if ran else metrics.SHARED
        for job in _not_cancelled(jobs):
            metrics.count_item(flight.modality, outcome)
            job.future.set_result(None)
            outcome = metrics.SHARED
        self._start(begun)

    def _fail(
        self, flight: _Flight, error: BaseException, outcome: str | None = None
    ) -> None:
        with self._lock:
            self._admission.end(flight, 0)
            # Closed at once: whoever comes next tries anew. And emptied, because the
            # error's traceback leads to the flight, and a job's future to the error.
            self._close(flight)
            jobs, flight.jobs = flight.jobs, []
            for job in jobs:
                job._flight = None
            begun = self._admit()
        # Not before it is closed, because whoever comes aboard decodes by it.
        flight.ref.release()
        for job in _not_cancelled(jobs):
            if outcome is not None:
                metrics.count_item(flight.modality, outcome)
            job.future.set_exception(error)
        self._start(begun)

    def _leave(self, job: DecodeJob) -> None:
        with self._lock:
            flight, job._flight = job._flight, None
            if flight is None:
                return
            flight.jobs.remove(job)
            if flight.state is _State.WAITING:
                job.request.waiting -= 1
            # One that runs closes itself; until then others can still come aboard.
            if not flight.jobs and flight.state is not _State.RUNNING:
                self._close(flight)
            begun = self._admit()
        self._start(begun)

    def _close(self, flight: _Flight) -> None:
        if flight.state is _State.WAITING:
            flight.timer.dropped()
        del self._open[flight.key]
        flight.timer.hold(-self._admission.forget(flight))


def _not_cancelled(jobs: Sequence[DecodeJob]) -> list[DecodeJob]:
    return [job for job in jobs if not job.future.cancelled()]


decode_flights = DecodeFlights(
    Admission(limit_from_environment(), decode_thread_count())
)
"""Those of this process: what they bound is its memory."""
