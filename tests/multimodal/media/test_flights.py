# SPDX-License-Identifier: Apache-2.0
"""Decodes that are shared by the requests that want them."""

import gc
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import wait
from typing import Any

import pytest

from tests.harness import PATIENCE, Decoder
from vllm.multimodal.media import MediaRef, metrics
from vllm.multimodal.media.admission import Admission, DecodeRequest
from vllm.multimodal.media.flights import DecodeFlights, DecodeJob, MediaItemRef

SIZE = 1000


@pytest.fixture
def admission() -> Admission:
    return Admission(limit=0, threads=1)


@pytest.fixture
def flights(admission: Admission) -> Iterator[DecodeFlights]:
    made = DecodeFlights(admission)
    yield made
    assert made._open == {}, "a flight was left open"
    assert admission.held == 0


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> str:
    """A model name that nothing else is counted under."""
    name = f"test-{uuid.uuid4().hex}"
    monkeypatch.setattr(metrics, "_model_name", name)
    return name


def outcomes(model: str) -> dict[str, float]:
    return {
        sample.labels["outcome"]: sample.value
        for metric in metrics._items.collect()
        for sample in metric.samples
        if sample.name.endswith("_total") and sample.labels["model_name"] == model
    }


def decoder(**how: Any) -> Decoder:
    return Decoder(bytes(SIZE), **how)


def item(decode: Decoder, data: bytes = b"same", modality: str = "video") -> Any:
    return MediaItemRef(modality, 0, decode.ref(data))


def leave(*jobs: DecodeJob) -> None:
    for job in jobs:
        job.leave()


def ended(*jobs: DecodeJob) -> None:
    done = wait([job.future for job in jobs], PATIENCE)
    assert not done.not_done


def test_equal_items_of_one_scope_are_decoded_once(
    flights: DecodeFlights, model: str
) -> None:
    first, second = decoder(held=True), decoder()
    items = [item(first), item(second)]
    jobs = [flights.board(one, DecodeRequest("model")) for one in items]
    first.go.set()
    ended(*jobs)
    assert (first.calls, second.calls) == (1, 0)
    assert [one.ref.decode() is first.result for one in items] == [True, True]
    assert outcomes(model) == {"decoded": 1, "shared": 1}
    leave(*jobs)


def test_each_keeps_its_own_ref(flights: DecodeFlights) -> None:
    items = [item(decoder()), item(decoder())]
    jobs = [flights.board(one, DecodeRequest("model")) for one in items]
    ended(*jobs)
    items[0].ref.release()
    assert items[0].ref.data == b"" and items[1].ref.data == b"same"
    leave(*jobs)


def test_a_callers_ref_is_left_as_it_was(flights: DecodeFlights) -> None:
    first, own = decoder(), decoder()
    parent = own.ref(b"same")
    jobs = [
        flights.board(one, DecodeRequest("model"))
        for one in (item(first), MediaItemRef("video", 0, parent.fork()))
    ]
    ended(*jobs)
    assert not parent.is_decoded
    assert parent.decode() is own.result
    leave(*jobs)


@pytest.mark.parametrize("other", ["scope", "no scope", "modality", "key"])
def test_other_items_are_not_shared(flights: DecodeFlights, other: str) -> None:
    first, second = decoder(), decoder()
    one, two = item(first), item(second)
    scopes: list[Any] = ["model", "model"]
    if other == "scope":
        scopes[1] = "another"
    elif other == "no scope":
        scopes = [None, None]
    elif other == "modality":
        two = item(second, modality="image")
    else:
        two = item(second, b"another")
    jobs = [
        flights.board(x, DecodeRequest(s))
        for x, s in zip([one, two], scopes, strict=True)
    ]
    ended(*jobs)
    assert (first.calls, second.calls) == (1, 1)
    leave(*jobs)


def test_duplicates_within_a_request_are_shared(flights: DecodeFlights) -> None:
    request = DecodeRequest("model")
    decoders = [decoder(), decoder()]
    jobs = [flights.board(item(d), request) for d in decoders]
    ended(*jobs)
    assert [d.calls for d in decoders] == [1, 0]
    assert request.waiting == 0
    leave(*jobs)


def test_shared_until_the_last_has_left(flights: DecodeFlights) -> None:
    decoders = [decoder() for _ in range(4)]
    first = flights.board(item(decoders[0]), DecodeRequest("model"))
    ended(first)
    second = flights.board(item(decoders[1]), DecodeRequest("model"))
    assert second.future.done()
    first.leave()
    first.leave()
    third = flights.board(item(decoders[2]), DecodeRequest("model"))
    assert third.future.done()
    leave(second, third)
    last = flights.board(item(decoders[3]), DecodeRequest("model"))
    ended(last)
    last.leave()
    assert [d.calls for d in decoders] == [1, 0, 0, 1]


def test_each_gets_the_error_and_the_next_tries_anew(
    flights: DecodeFlights, model: str
) -> None:
    error = ValueError("broken")
    bad = decoder(error=error, held=True)
    jobs = [flights.board(item(bad), DecodeRequest("model")) for _ in range(2)]
    bad.go.set()
    assert [job.future.exception(PATIENCE) for job in jobs] == [error, error]
    assert outcomes(model) == {"failed": 2}
    again = decoder()
    job = flights.board(item(again), DecodeRequest("model"))
    ended(job)
    assert again.calls == 1
    leave(*jobs, job)


def test_whoever_comes_as_it_fails_tries_anew(
    flights: DecodeFlights, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, again = decoder(error=ValueError("broken")), decoder()
    late: list[DecodeJob] = []
    release = MediaRef.release

    def board_and_release(ref: MediaRef) -> None:
        monkeypatch.undo()
        late.append(flights.board(item(again), DecodeRequest("model")))
        release(ref)

    monkeypatch.setattr(MediaRef, "release", board_and_release)
    job = flights.board(item(bad), DecodeRequest("model"))
    ended(job)
    ended(*late)
    assert (bad.calls, again.calls) == (1, 1)
    leave(*late)


@pytest.mark.parametrize("which", [0, 1])
def test_one_that_gives_up_leaves_the_decode_to_the_others(
    flights: DecodeFlights, which: int, model: str
) -> None:
    blocker = decoder(held=True)
    busy = flights.board(item(blocker, b"other"), DecodeRequest("model"))
    wanted = [decoder(), decoder()]
    jobs = [flights.board(item(d), DecodeRequest("model")) for d in wanted]
    assert jobs[which].cancel() and jobs[which].future.cancelled()
    blocker.go.set()
    other = jobs[1 - which]
    ended(other)
    assert other.item.ref.decode() is wanted[0].result
    assert [d.calls for d in wanted] == [1, 0]
    assert outcomes(model) == {"decoded": 2}
    leave(busy, *jobs)


def test_given_up_by_all_it_never_begins(flights: DecodeFlights, model: str) -> None:
    blocker, unwanted, last = decoder(held=True), decoder(), decoder()
    busy = flights.board(item(blocker, b"other"), DecodeRequest("model"))
    assert blocker.began.wait(PATIENCE)
    jobs = [flights.board(item(unwanted), DecodeRequest("model")) for _ in range(2)]
    assert waiting(model) == 1
    assert all(job.cancel() for job in jobs)
    assert waiting(model) == 0
    after = flights.board(item(last, b"last"), DecodeRequest("model"))
    blocker.go.set()
    ended(busy, after)
    assert unwanted.calls == 0
    leave(busy, after)


def waiting(model: str) -> float:
    return metrics._decodes_waiting.labels(model)._value.get()


def test_one_that_has_begun_cannot_be_given_up(flights: DecodeFlights) -> None:
    held = decoder(held=True)
    job = flights.board(item(held), DecodeRequest("model"))
    late = flights.board(item(decoder()), DecodeRequest("model"))
    assert held.began.wait(PATIENCE)
    assert not job.cancel() and not late.cancel()
    held.go.set()
    ended(job, late)
    leave(job, late)


def test_left_while_it_runs_it_ends_by_itself(
    flights: DecodeFlights, admission: Admission
) -> None:
    held, after = decoder(held=True), decoder()
    job = flights.board(item(held), DecodeRequest("model"))
    assert held.began.wait(PATIENCE)
    job.leave()
    held.go.set()
    last = flights.board(item(after, b"after"), DecodeRequest("model"))
    ended(last)
    assert admission.held == SIZE
    last.leave()


def test_many_threads_decode_each_item_once() -> None:
    admission = Admission(limit=3 * SIZE, threads=2)
    flights = DecodeFlights(admission)
    decoders = [decoder() for _ in range(50)]
    start = threading.Barrier(8)

    def request() -> None:
        start.wait(PATIENCE)
        mine = DecodeRequest("model")
        for number, decode in enumerate(decoders):
            job = flights.board(item(decode, b"%d" % number), mine)
            ended(job)
            jobs.append(job)
            if number % 3 == 0:
                job.leave()

    # Kept, so that every flight stays open until all have been aboard.
    keep = DecodeRequest("model")
    jobs: list[DecodeJob] = []
    jobs += [
        flights.board(item(d, b"%d" % n), keep, urgent=True)
        for n, d in enumerate(decoders)
    ]
    threads = [threading.Thread(target=request) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [d.calls for d in decoders] == [1] * 50
    leave(*jobs)
    assert flights._open == {} and admission.held == 0


# What is held


def test_decoded_bytes_are_held_once_until_all_have_left(
    flights: DecodeFlights, admission: Admission, model: str
) -> None:
    jobs = [flights.board(item(decoder()), DecodeRequest("model")) for _ in range(3)]
    ended(*jobs)
    assert admission.held == SIZE
    assert metrics._decoded_bytes.labels(model)._value.get() == SIZE
    leave(*jobs[:2])
    assert admission.held == SIZE
    leave(*jobs)
    assert admission.held == 0
    assert metrics._decoded_bytes.labels(model)._value.get() == 0


def test_a_failed_decode_holds_nothing(
    flights: DecodeFlights, admission: Admission
) -> None:
    job = flights.board(item(decoder(error=ValueError())), DecodeRequest())
    ended(job)
    assert admission.held == 0


def test_a_decode_waits_until_memory_is_free(
    flights: DecodeFlights, admission: Admission
) -> None:
    admission.limit = SIZE
    first, second = decoder(), decoder()
    holder = flights.board(item(first, b"1"), DecodeRequest())
    ended(holder)
    job = flights.board(item(second, b"2"), DecodeRequest())
    assert not second.began.is_set() and not job.future.running()
    holder.leave()
    ended(job)
    assert second.calls == 1
    job.leave()


@pytest.mark.parametrize("how", ["new", "waiting already"])
def test_an_urgent_decode_does_not_wait(
    flights: DecodeFlights, admission: Admission, how: str
) -> None:
    admission.limit = SIZE
    holder = flights.board(item(decoder(), b"1"), DecodeRequest())
    ended(holder)
    jobs = [holder]
    if how != "new":
        jobs.append(flights.board(item(decoder()), DecodeRequest("model")))
    jobs.append(flights.board(item(decoder()), DecodeRequest("model"), urgent=True))
    ended(*jobs)
    leave(*jobs)


def test_nothing_keeps_a_payload_after_the_decode(
    flights: DecodeFlights, model: str
) -> None:
    ref = decoder().ref(b"payload")
    job = flights.board(MediaItemRef("image", 0, ref), DecodeRequest("model"))
    ended(job)
    gc.disable()
    try:
        ref.release()
        metrics.EncodedBytes.settle()
        assert metrics._encoded_bytes.labels(model)._value.get() == 0
    finally:
        gc.enable()
    job.leave()
