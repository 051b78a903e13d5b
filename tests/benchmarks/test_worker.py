# SPDX-License-Identifier: Apache-2.0
"""The child process that is asked for one thing after another."""

import sys

import pytest

from benchmarks import worker
from benchmarks.worker import Worker, WorkerError

NAME = "tests.benchmarks.test_worker"


def handle(question: worker.Answer) -> worker.Answer:
    if question["do"] == "print":
        print("noise on the standard output")
    if question["do"] == "fail":
        raise ValueError("a fault")
    if question["do"] == "die":
        print("last words", file=sys.stderr, flush=True)
        sys.exit(3)
    if question["do"] == "hang":
        while True:
            pass
    return {"did": question["do"]}


def test_answers_one_after_another() -> None:
    with Worker(NAME) as child:
        assert child.ask(do="this") == {"did": "this"}
        assert child.ask(do="print") == {"did": "print"}


def test_a_failure_is_told_and_the_worker_goes_on() -> None:
    with Worker(NAME) as child:
        with pytest.raises(WorkerError, match=r"^ValueError\('a fault'\)$") as failure:
            child.ask(do="fail")
        assert "in handle" in failure.value.log
        assert child.ask(do="that") == {"did": "that"}


def test_a_dead_worker_is_told_with_its_last_words() -> None:
    with Worker(NAME) as child:
        with pytest.raises(WorkerError, match="gone"):
            child.ask(do="die")
        with pytest.raises(WorkerError, match="gone") as failure:
            child.ask(do="this")
        assert "last words" in failure.value.log


def test_a_worker_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "PATIENCE", 2.0)
    with Worker(NAME) as child, pytest.raises(WorkerError, match="gone"):
        child.ask(do="hang")


def test_leaving_the_block_ends_it() -> None:
    with Worker(NAME) as child:
        child.ask(do="this")
        process = child._process
    assert process.returncode is not None


if __name__ == "__main__":

    def make():
        print("noise of an import")
        return handle

    worker.serve(make)
