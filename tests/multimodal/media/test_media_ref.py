# SPDX-License-Identifier: Apache-2.0
"""A ref decodes once, only when asked, and lets go of its payload when told."""

import copy
import gc
import hashlib
import logging
import multiprocessing
import pickle
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tiny.media import audio_wav, jpeg, video
from vllm.multimodal.media import (
    AudioMediaIO,
    DecodeSpec,
    ImageMediaIO,
    MediaRef,
    VideoMediaIO,
    base,
    derive_media_key,
)

PATIENCE = 60


class Decoder:
    """Returns its media, and counts how often it was asked."""

    def __init__(self, media: Any = "media") -> None:
        self.media = media
        self.calls = 0

    def __call__(self) -> Any:
        self.calls += 1
        return self.media


class Media:
    """Something that a weak reference can watch."""


@pytest.fixture
def lock_attempts(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released for each attempt to take a decode's lock, before it is taken."""
    attempts = threading.Semaphore(0)

    class Watched:
        def __init__(self) -> None:
            self._lock = threading.Lock()

        def acquire(self, blocking: bool = True) -> bool:
            attempts.release()
            return self._lock.acquire(blocking)

        def release(self) -> None:
            self._lock.release()

        def __enter__(self) -> None:
            self.acquire()

        def __exit__(self, *exc_info: object) -> None:
            self.release()

    watched = SimpleNamespace(**{**vars(threading), "Lock": Watched})
    monkeypatch.setattr(base, "threading", watched)
    return attempts


@pytest.fixture
def digested(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the chunks that sha256 was given."""
    sizes: list[int] = []

    class Counting:
        def __init__(self) -> None:
            self._digest = hashlib.sha256()

        def update(self, chunk: bytes | memoryview) -> None:
            sizes.append(memoryview(chunk).nbytes)
            self._digest.update(chunk)

        def digest(self) -> bytes:
            return self._digest.digest()

    monkeypatch.setattr(base, "hashlib", SimpleNamespace(sha256=Counting))
    return sizes


def double(text: str) -> str:
    return text * 2


def name_of(one: object, *others: object) -> str:
    return type(one).__name__


# One decode


def test_decode_is_remembered() -> None:
    decoder = Decoder(Media())
    ref = MediaRef(decoder, b"payload")
    assert decoder.calls == 0
    assert not ref.is_decoded
    assert ref.decode() is decoder.media
    assert ref.is_decoded
    assert ref.decode() is decoder.media
    assert decoder.calls == 1


@pytest.mark.parametrize("media", [None, 0, ""])
def test_media_that_are_false_are_remembered_too(media: Any) -> None:
    decoder = Decoder(media)
    ref = MediaRef(decoder, b"payload")
    assert ref.decode() is media
    assert ref.decode() is media
    assert decoder.calls == 1


@pytest.mark.parametrize("through", ["ref", "forks", "maps"])
def test_concurrent_callers_share_one_decode(
    through: str, lock_attempts: threading.Semaphore
) -> None:
    callers = 6
    calls: list[int] = []

    def decode() -> str:
        calls.append(threading.get_ident())
        # The others have arrived before this ends, so none finds it done. Those who
        # come through a map take a lock of their own first.
        for _ in range(callers if through != "maps" else 2 * callers):
            assert lock_attempts.acquire(timeout=PATIENCE)
        return "media"

    ref = MediaRef(decode, b"payload")
    refs = {
        "ref": lambda: ref,
        "forks": ref.fork,
        "maps": lambda: ref.map(str),
    }[through]
    with ThreadPoolExecutor(callers) as pool:
        results = list(pool.map(MediaRef.decode, [refs() for _ in range(callers)]))
    assert results == ["media"] * callers
    assert len(calls) == 1


def test_settle_tells_who_ran_the_decoder() -> None:
    ref = MediaRef(Decoder(), b"payload")
    assert ref.settle()
    assert not ref.settle()
    assert not ref.fork().settle()


def test_failure_is_passed_on_as_it_is_and_not_remembered() -> None:
    failures = [KeyError("first"), OSError("second")]
    outcomes: list[Any] = [*failures, "media"]

    def decode() -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    ref = MediaRef(decode, b"payload")
    for failure in failures:
        with pytest.raises(type(failure)) as raised:
            ref.decode()
        assert raised.value is failure
        assert not ref.is_decoded
        assert ref.data == b"payload"
    assert ref.decode() == "media"
    assert outcomes == []


def test_waiting_caller_tries_again_after_a_failure(
    lock_attempts: threading.Semaphore,
) -> None:
    outcomes = iter([OSError("busy"), "media"])
    running = threading.Lock()

    def decode() -> str:
        assert running.acquire(blocking=False), "two decodes at a time"
        try:
            outcome = next(outcomes)
            if isinstance(outcome, Exception):
                assert lock_attempts.acquire(timeout=PATIENCE)
                assert lock_attempts.acquire(timeout=PATIENCE)
                raise outcome
            return outcome
        finally:
            running.release()

    ref = MediaRef(decode, b"payload")
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(ref.decode) for _ in range(2)]
        errors = [future.exception() for future in futures]
    assert sorted(type(error).__name__ for error in errors) == ["NoneType", "OSError"]
    assert ref.decode() == "media"


# Identity


def test_key_is_derived_from_bytes_and_spec() -> None:
    spec = DecodeSpec({"mode": "RGB"})
    ref = MediaRef(Decoder(), b"payload", spec)
    assert ref.key == derive_media_key(b"payload", spec)
    assert ref.spec is spec
    assert MediaRef(Decoder(), b"payload").spec == DecodeSpec()


def test_given_key_is_kept_and_costs_no_digest(digested: list[int]) -> None:
    assert MediaRef(Decoder(), b"payload", key=b"identity").key == b"identity"
    assert digested == []


@pytest.mark.parametrize("name", ["key", "spec", "data", "is_decoded", "anything"])
def test_attributes_are_read_only(name: str) -> None:
    ref = MediaRef(Decoder(), b"payload")
    with pytest.raises(AttributeError):
        setattr(ref, name, b"other")


# map


def test_map_decodes_to_the_transformed_media() -> None:
    decoder = Decoder("ab")
    ref = MediaRef(decoder, b"payload")
    mapped = ref.map(double).map(str.upper, case="upper")
    assert decoder.calls == 0
    assert mapped.decode() == "ABAB"
    assert ref.is_decoded
    assert ref.decode() == "ab"
    assert decoder.calls == 1


def test_map_transforms_once() -> None:
    calls = []
    mapped = MediaRef(Decoder(), b"payload").map(lambda media: calls.append(media))
    mapped.decode()
    mapped.decode()
    assert calls == ["media"]


def test_failing_transform_is_not_remembered_and_spares_the_parent() -> None:
    decoder = Decoder("media")
    outcomes: list[Any] = [ValueError("bad"), "fine"]

    def transform(media: str) -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    mapped = MediaRef(decoder, b"payload").map(transform)
    with pytest.raises(ValueError, match="bad"):
        mapped.decode()
    assert mapped.decode() == "fine"
    assert decoder.calls == 1


def test_map_without_settings_is_the_same_item() -> None:
    ref = MediaRef(Decoder(), b"payload", DecodeSpec({"a": 1}), key=b"identity")
    mapped = ref.map(double)
    assert mapped.key == b"identity"
    assert mapped.spec == ref.spec


def test_map_with_settings_is_another_item() -> None:
    ref = MediaRef(Decoder(), b"payload", DecodeSpec({"a": 1}))
    mapped = ref.map(double, rate=16000)
    assert mapped.spec == DecodeSpec({"a": 1, "rate": 16000})
    keys = {
        ref.key,
        mapped.key,
        ref.map(double, rate=8000).key,
        ref.map(double, speed=16000).key,
        MediaRef(Decoder(), b"other", DecodeSpec({"a": 1})).map(double, rate=16000).key,
    }
    assert len(keys) == 5
    assert ref.map(str, rate=16000).key == mapped.key


def test_map_digests_the_key_and_never_the_payload(digested: list[int]) -> None:
    ref = MediaRef(Decoder(), bytes(1_000_000), DecodeSpec({"a": 1}))
    assert max(digested) == 1_000_000
    digested.clear()
    mapped = ref.map(double, rate=16000)
    assert 32 in digested
    assert sum(digested) < 200
    digested.clear()
    mapped.map(double)
    mapped.fork()
    assert digested == []


def test_map_of_a_given_key_depends_on_that_key() -> None:
    one, other = (
        MediaRef(Decoder(), b"payload", key=key).map(double, rate=1)
        for key in (b"one", b"other")
    )
    assert one.key != other.key


def test_bytes_are_shared_and_not_copied() -> None:
    payload = b"payload" * 1000
    ref = MediaRef(Decoder(), payload)
    assert ref.data is payload
    assert ref.map(double).data is payload
    assert ref.map(double, rate=1).data is payload
    assert ref.fork().data is payload


# release


def test_undecoded_ref_cannot_decode_after_release() -> None:
    decoder = Decoder()
    ref = MediaRef(decoder, b"payload", DecodeSpec({"a": 1}))
    key = ref.key
    ref.release()
    assert ref.data == b""
    assert not ref.is_decoded
    for ask in (ref.decode, ref.settle, lambda: ref.map(double), ref.fork().decode):
        with pytest.raises(RuntimeError, match="released"):
            ask()
    assert decoder.calls == 0
    assert ref.key == key
    assert ref.spec == DecodeSpec({"a": 1})


def test_decoded_media_stay_readable_after_release() -> None:
    decoder = Decoder(Media())
    ref = MediaRef(decoder, b"payload")
    ref.decode()
    ref.release()
    ref.release()
    assert ref.data == b""
    assert ref.is_decoded
    assert ref.decode() is decoder.media
    assert ref.map(lambda media: media).decode() is decoder.media
    assert decoder.calls == 1


def test_release_waits_for_the_decode_in_flight(
    lock_attempts: threading.Semaphore,
) -> None:
    finish = threading.Event()
    seen: list[bytes] = []

    def decode() -> str:
        assert finish.wait(PATIENCE)
        seen.append(ref.data)
        return "media"

    ref = MediaRef(decode, b"payload")
    with ThreadPoolExecutor(2) as pool:
        decoded = pool.submit(ref.decode)
        assert lock_attempts.acquire(timeout=PATIENCE)
        released = pool.submit(ref.release)
        try:
            assert lock_attempts.acquire(timeout=PATIENCE)
            assert not released.done()
            assert ref.data == b"payload"
        finally:
            finish.set()
        released.result(PATIENCE)
        assert decoded.result(PATIENCE) == "media"
    assert seen == [b"payload"]
    assert ref.data == b""
    assert ref.decode() == "media"


def derive_map(ref: MediaRef) -> MediaRef:
    return ref.map(double)


def derive_fork(ref: MediaRef) -> MediaRef:
    return ref.fork()


DERIVATIONS = pytest.mark.parametrize(
    ("derive", "expected"), [(derive_map, "mediamedia"), (derive_fork, "media")]
)


@DERIVATIONS
def test_releasing_the_derived_leaves_the_parent(
    derive: Callable[[MediaRef], MediaRef], expected: str
) -> None:
    ref = MediaRef(Decoder(), b"payload")
    derived = derive(ref)
    derived.release()
    assert derived.data == b""
    assert ref.data == b"payload"
    assert ref.decode() == "media"
    with pytest.raises(RuntimeError, match="released"):
        derived.decode()


@DERIVATIONS
def test_releasing_the_parent_leaves_the_derived(
    derive: Callable[[MediaRef], MediaRef], expected: str
) -> None:
    ref = MediaRef(Decoder(), b"payload")
    derived = derive(ref)
    ref.release()
    assert derived.data == b"payload"
    assert derived.decode() == expected
    with pytest.raises(RuntimeError, match="released"):
        ref.decode()


@pytest.mark.parametrize("first", ["parent", "fork"])
def test_fork_and_parent_share_one_decode(first: str) -> None:
    decoder = Decoder(Media())
    ref = MediaRef(decoder, b"payload", DecodeSpec({"a": 1}), key=b"identity")
    fork = ref.fork()
    assert (fork.key, fork.spec) == (ref.key, ref.spec)
    order = (ref, fork) if first == "parent" else (fork, ref)
    assert [one.decode() for one in order] == [decoder.media] * 2
    assert fork.is_decoded and ref.is_decoded
    assert decoder.calls == 1


@pytest.mark.parametrize("decoded", [False, True])
@pytest.mark.parametrize("derived", ["none", "map", "fork"])
def test_release_drops_the_payload_and_the_decode_closure(
    decoded: bool, derived: str
) -> None:
    payload = bytes(bytearray(b"payload"))
    alone = sys.getrefcount(payload)
    pinned = Media()
    watched = weakref.ref(pinned)
    ref = MediaRef(partial(name_of, pinned, payload), payload)
    refs = [ref]
    if derived != "none":
        refs.append(ref.map(double) if derived == "map" else ref.fork())
    if decoded:
        assert [one.decode()[:5] for one in refs] == ["Media"] * len(refs)
    del pinned
    gc.disable()
    try:
        for one in refs:
            assert sys.getrefcount(payload) > alone
            one.release()
        assert sys.getrefcount(payload) == alone
        assert watched() is None
    finally:
        gc.enable()
    assert all(one.is_decoded == decoded for one in refs)


def test_failed_decode_pins_nothing() -> None:
    payload = bytes(bytearray(b"payload"))
    alone = sys.getrefcount(payload)

    def decode(data: bytes) -> str:
        raise ValueError("broken")

    ref = MediaRef(lambda: decode(payload), payload)
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            ref.decode()
    ref.release()
    assert sys.getrefcount(payload) == alone


# Pickling


def test_pickling_decodes_and_leaves_the_bytes_behind() -> None:
    decoder = Decoder({"pixels": [1, 2]})
    ref = MediaRef(decoder, b"payload" * 1000, DecodeSpec({"a": (1,)}))
    text = pickle.dumps(ref)
    assert decoder.calls == 1
    assert b"payload" not in text
    restored = pickle.loads(text)
    assert restored.is_decoded
    assert restored.decode() == {"pixels": [1, 2]}
    assert restored.data == b""
    assert restored.key == ref.key
    assert restored.spec == ref.spec
    assert restored.map(len, counted=True).decode() == 1
    restored.release()
    assert restored.decode() == {"pixels": [1, 2]}
    assert decoder.calls == 1


def test_pickling_what_was_released_undecoded_fails() -> None:
    ref = MediaRef(Decoder(), b"payload")
    ref.release()
    with pytest.raises(RuntimeError, match="released"):
        pickle.dumps(ref)


def test_crosses_into_a_spawned_process_and_back() -> None:
    pixels = np.arange(6).reshape(2, 3)
    refs = [
        MediaRef(lambda: pixels, b"payload", DecodeSpec({"a": 1})),
        ImageMediaIO().load_bytes_ref(jpeg(16, 16)),
        AudioMediaIO().load_bytes_ref(audio_wav(0.1)).map(tuple, copied=True),
        VideoMediaIO(ImageMediaIO()).load_bytes_ref(video(64, 48, 0.5, fps=8)),
    ]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        # Unpickled there, and pickled again to come back.
        restored = pool.submit(pickle.loads, pickle.dumps(refs)).result()
    for ref, other in zip(refs, restored, strict=True):
        assert isinstance(other, MediaRef)
        assert other.is_decoded
        assert other.data == b""
        assert (other.key, other.spec) == (ref.key, ref.spec)
        media, arrived = ref.decode(), other.decode()
        if isinstance(media, tuple):
            assert arrived[1] == media[1]
            media, arrived = media[0], arrived[0]
        assert np.array_equal(np.asarray(arrived), np.asarray(media))


# No implicit decode


def log(ref: MediaRef) -> None:
    record = logging.LogRecord("x", logging.INFO, "x", 1, "%s %r", (ref, ref), None)
    assert "MediaRef" in record.getMessage()


@pytest.mark.parametrize(
    "use",
    [
        repr,
        str,
        log,
        bool,
        hash,
        lambda ref: ref == ref.fork(),
        lambda ref: ref != "media",
        lambda ref: ref in ["media", ref],
        lambda ref: f"{ref}",
        copy.copy,
        copy.deepcopy,
        lambda ref: copy.deepcopy({"image": [ref]}),
        np.asarray,
        lambda ref: np.array([ref]),
        dir,
        lambda ref: hasattr(ref, "size"),
        lambda ref: (ref.key, ref.spec, ref.data, ref.is_decoded),
        lambda ref: ref.map(double, rate=1),
        MediaRef.fork,
        MediaRef.release,
    ],
)
def test_using_a_ref_does_not_decode_it(use: Callable[[MediaRef], Any]) -> None:
    decoder = Decoder()
    ref = MediaRef(decoder, b"payload")
    use(ref)
    assert decoder.calls == 0
    assert not ref.is_decoded


@pytest.mark.parametrize(
    ("use", "error"),
    [
        (len, TypeError),
        (iter, TypeError),
        (list, TypeError),
        (lambda ref: ref[0], TypeError),
        (lambda ref: "m" in ref, TypeError),
        (lambda ref: ref(), TypeError),
        (memoryview, TypeError),
        (lambda ref: ref.size, AttributeError),
        (lambda ref: ref.media, AttributeError),
        (lambda ref: ref.shape, AttributeError),
        (lambda ref: ref.__array__, AttributeError),
        (lambda ref: ref.__array_interface__, AttributeError),
    ],
)
def test_a_ref_is_not_its_media(
    use: Callable[[MediaRef], Any], error: type[Exception]
) -> None:
    decoder = Decoder("media")
    ref = MediaRef(decoder, b"payload")
    with pytest.raises(error):
        use(ref)
    assert decoder.calls == 0
    ref.decode()
    with pytest.raises(error):
        use(ref)


def test_numpy_takes_a_ref_for_an_object() -> None:
    ref = MediaRef(Decoder(np.zeros((4, 4))), b"payload")
    assert np.asarray(ref).dtype == object
    assert np.asarray(ref).shape == ()


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_is_a_fork(duplicate: Callable[[MediaRef], MediaRef]) -> None:
    decoder = Decoder(Media())
    ref = MediaRef(decoder, b"payload")
    twin = duplicate(ref)
    assert twin is not ref
    assert (twin.key, twin.spec) == (ref.key, ref.spec)
    assert twin.data is ref.data
    ref.release()
    assert twin.decode() is decoder.media


def test_repr_tells_the_state_and_not_the_media() -> None:
    ref = MediaRef(Decoder("secret"), b"payload")
    assert repr(ref) == f"MediaRef({ref.key.hex()[:16]}, 7 bytes, encoded)"
    fork = ref.fork()
    fork.release()
    assert repr(fork).endswith("0 bytes, released)")
    ref.decode()
    assert repr(ref).endswith("7 bytes, decoded)")
    ref.release()
    assert repr(ref).endswith("0 bytes, decoded)")
