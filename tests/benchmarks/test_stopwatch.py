# SPDX-License-Identifier: Apache-2.0
"""Time is counted once, under the innermost name."""

import threading
import time
from typing import Any

import pytest

from benchmarks.stopwatch import Stopwatch


class Clock:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "perf_counter", made)
    return made


class Work:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def outer(self) -> str:
        self.clock.now += 2
        self.inner()
        self.inner()
        self.clock.now += 3
        return "done"

    def inner(self) -> None:
        self.clock.now += 10

    @classmethod
    def make(cls, clock: Clock) -> Any:
        clock.now += 1
        return cls(clock)


@pytest.fixture
def watched() -> tuple[type, Stopwatch]:
    work = type("Watched", (Work,), dict(vars(Work)))
    watch = Stopwatch()
    for name in ("outer", "inner", "make"):
        watch.wrap(work, name, name)
    return work, watch


def test_nested_time_is_the_inner_ones(watched, clock: Clock) -> None:
    work, watch = watched
    assert work(clock).outer() == "done"
    assert watch.seconds == {"outer": 5, "inner": 20}


def test_a_class_method_stays_one(watched, clock: Clock) -> None:
    work, watch = watched
    assert type(work.make(clock)) is work
    assert watch.seconds == {"make": 1}


def test_an_inherited_function_is_timed_for_this_class_alone(clock: Clock) -> None:
    heir = type("Heir", (Work,), {})
    watch = Stopwatch()
    watch.wrap(heir, "inner", "inner")
    heir(clock).inner()
    Work(clock).inner()
    assert watch.seconds == {"inner": 10}


def test_threads_do_not_nest_in_one_another(watched, clock: Clock) -> None:
    work, watch = watched
    done = work(clock)

    def in_a_thread() -> None:
        thread = threading.Thread(target=done.inner)
        thread.start()
        thread.join()

    watch.around(in_a_thread, "waiting")()
    assert watch.seconds == {"inner": 10, "waiting": 10}


def test_time_up_to_an_error_counts(clock: Clock) -> None:
    watch = Stopwatch()

    def fail() -> None:
        clock.now += 4
        raise ValueError

    with pytest.raises(ValueError):
        watch.around(fail, "fail")()
    assert watch.seconds == {"fail": 4}
