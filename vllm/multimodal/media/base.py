# SPDX-License-Identifier: Apache-2.0
"""The media reference: encoded bytes, an identity, and a decode that waits.

`MediaRef` is what a fetch hands to the processor, `DecodeSpec` the settings that
its decoder works with, `derive_media_key` the identity made of both, and
`MediaIO` the decoder that builds references.
"""

import hashlib
import json
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import pybase64

from vllm.upstream.multimodal.media import base as upstream

from .metrics import EncodedBytes

_T = TypeVar("_T")
_U = TypeVar("_U")

# Still accepted as an input from offline code; nothing here produces one.
MediaWithBytes = upstream.MediaWithBytes


def _frozen_setting(name: str, value: object) -> object:
    """`value` in the JSON types, or TypeError / ValueError naming `name`."""
    # Exact types only: a subclass (an IntEnum, a str subclass) is written as its
    # base by JSON, so two different settings would become one.
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        if not math.isfinite(value):
            raise ValueError(f"decode setting {name!r} is not finite: {value!r}")
        return value
    if isinstance(value, (list, tuple)):
        return [_frozen_setting(f"{name}[{i}]", v) for i, v in enumerate(value)]
    if isinstance(value, Mapping):
        frozen = {}
        for key, item in value.items():
            # JSON has only text keys: it would write 1 and "1" alike.
            if type(key) is not str:
                raise TypeError(f"decode setting {name!r} has the non-text key {key!r}")
            frozen[key] = _frozen_setting(f"{name}.{key}", item)
        return frozen
    raise TypeError(
        f"decode setting {name!r} has type {type(value).__name__}, "
        "which JSON cannot hold exactly"
    )


class DecodeSpec:
    """An immutable snapshot of every setting that shapes a decoded result.

    Equal specs mean equal decodes: two specs with the same settings compare and
    hash alike whatever the order they were given in, and a tuple counts as a list.

    Args:
        settings: Names to values, each of a type that JSON holds exactly. It is
            copied; a later change to it changes nothing here.

    Raises:
        TypeError: A value, or a key of a nested mapping, has no exact JSON form.
        ValueError: A number is NaN or infinite.
        Both name the setting.
    """

    __slots__ = ("_canonical",)

    def __init__(self, settings: Mapping[str, object] | None = None) -> None:
        frozen = {}
        for name, value in (settings or {}).items():
            if type(name) is not str:
                raise TypeError(f"decode setting {name!r} does not have a text name")
            frozen[name] = _frozen_setting(name, value)
        text = json.dumps(frozen, sort_keys=True, separators=(",", ":"))
        self._canonical = text.encode("ascii")

    def canonical_bytes(self) -> bytes:
        """The settings as JSON: keys sorted, no white space, ASCII."""
        return self._canonical

    @property
    def settings(self) -> dict[str, Any]:
        """The settings as a fresh dict, tuples as lists. Parses JSON each time."""
        return json.loads(self._canonical)

    def extend(self, settings: Mapping[str, object]) -> "DecodeSpec":
        """A spec with `settings` added; a name that is in both takes the new value."""
        return DecodeSpec({**self.settings, **settings})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DecodeSpec):
            return NotImplemented
        return self._canonical == other._canonical

    def __hash__(self) -> int:
        return hash(self._canonical)

    def __repr__(self) -> str:
        return f"DecodeSpec({self._canonical.decode('ascii')})"

    def __reduce__(self):
        return DecodeSpec, (self.settings,)


def digest_chunks(chunks: Iterable[bytes | memoryview]) -> bytes:
    """The sha256 (32 bytes) over `chunks`, each preceded by its length.

    Always sha256: an identity that varied with the hash packages at hand would
    differ between two processes that must agree on it. Costs one pass over the
    chunks; large ones are hashed without the GIL.
    """
    digest = hashlib.sha256()
    for chunk in chunks:
        # memoryview, so that a view counts bytes and not its own items.
        view = memoryview(chunk).cast("B")
        digest.update(view.nbytes.to_bytes(8, "little"))
        digest.update(view)
    return digest.digest()


def derive_media_key(data: bytes | memoryview, spec: DecodeSpec) -> bytes:
    """The identity (32 bytes) of `data` decoded under `spec`.

    Linear in `data`: not for the event loop.
    """
    return digest_chunks((data, spec.canonical_bytes()))


class _Payload:
    """Encoded bytes that a ref, its maps and its forks hold in common."""

    __slots__ = ("_held", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._held = EncodedBytes(len(data))


class _Decode(Generic[_T]):
    """One decode, shared by every wrapper that can ask for it."""

    __slots__ = ("_result", "_run", "done", "lock")

    def __init__(self, run: Callable[[], _T]) -> None:
        # Re-entrant would be wrong: a decoder that asks for its own result
        # should hang in a test rather than decode twice.
        self.lock = threading.Lock()
        self._run: Callable[[], _T] | None = run
        self._result: _T | None = None
        self.done = False

    @classmethod
    def finished(cls, result: _T) -> "_Decode[_T]":
        decode = cls(lambda: result)
        decode.get()
        return decode

    def settle(self) -> bool:
        """Decode unless that is done. True where it was this call that did it."""
        if self.done:
            return False
        with self.lock:
            if self.done:
                return False
            assert self._run is not None
            # A failure is not kept: its traceback would pin the payload, and the
            # next caller may be luckier (memory, a busy device).
            self._result = self._run()
            self.done = True
            # The closure can hold the bytes and an opened image.
            self._run = None
            return True

    def get(self) -> _T:
        self.settle()
        return self._result  # type: ignore[return-value]


class MediaRef(Generic[_T]):
    """Encoded media, its identity, and its decode, which runs when asked for.

    Nothing but `decode()` and pickling decodes: a ref forwards no attribute,
    index, iteration or array protocol to its media.

    Args:
        decode: Returns the media. Runs at most once at a time, and never again
            after it has succeeded.
        data: The encoded bytes.
        spec: The settings that `decode` works with; none by default.
        key: The identity. By default it is derived from `data` and `spec`, which
            costs one sha256 of `data`.
    """

    __slots__ = ("__weakref__", "_decode", "_key", "_payload", "_spec")

    _decode: _Decode[_T] | None
    _payload: _Payload | None

    def __init__(
        self,
        decode: Callable[[], _T],
        data: bytes,
        spec: DecodeSpec | None = None,
        *,
        key: bytes | None = None,
    ) -> None:
        self._spec = DecodeSpec() if spec is None else spec
        self._key = derive_media_key(data, self._spec) if key is None else key
        self._payload = _Payload(data)
        self._decode = _Decode(decode)

    @classmethod
    def _wrap(
        cls,
        decode: _Decode[_U] | None,
        payload: _Payload | None,
        spec: DecodeSpec,
        key: bytes,
    ) -> "MediaRef[_U]":
        ref: MediaRef[_U] = MediaRef.__new__(MediaRef)
        ref._decode = decode
        ref._payload = payload
        ref._spec = spec
        ref._key = key
        return ref

    @property
    def key(self) -> bytes:
        """The cache identity."""
        return self._key

    @property
    def spec(self) -> DecodeSpec:
        """The decode settings, which `key` already covers."""
        return self._spec

    @property
    def data(self) -> bytes:
        """The encoded bytes, or `b""` once released."""
        payload = self._payload
        return b"" if payload is None else payload.data

    @property
    def is_decoded(self) -> bool:
        """Whether `decode()` would return at once. Takes no lock."""
        decode = self._decode
        return decode is not None and decode.done

    def decode(self) -> _T:
        """The media, decoded now if it has not been.

        Any thread but the event loop's; concurrent callers wait for one decode.

        Raises:
            RuntimeError: The ref was released before it was decoded.
            Exception: Whatever the decoder raises, unchanged. It is not
                remembered: the next call decodes anew.
        """
        return self._live_decode().get()

    def settle(self) -> bool:
        """`decode()` without the media. True where this call ran the decoder, False
        where it had run or another thread ran it meanwhile."""
        return self._live_decode().settle()

    def _live_decode(self) -> _Decode[_T]:
        decode = self._decode
        if decode is None:
            raise RuntimeError(f"{self!r} was released before it was decoded")
        return decode

    def map(self, transform: Callable[[_T], _U], **settings: object) -> "MediaRef[_U]":
        """A ref to `transform(media)` that shares these bytes.

        Cheap on any thread: the transform runs with the new ref's decode, and the
        new key is derived from this key, not from the bytes. Either ref may be
        released without the other.

        Args:
            transform: Media in, media out. It should leave its input as it is.
            settings: What identifies the transform and every parameter that its
                output depends on. With none the identity stays the same, which is
                right only for a transform that is always applied with this model.
        """
        decode = self._live_decode()
        spec, key = self._spec, self._key
        if settings:
            spec = spec.extend(settings)
            key = digest_chunks((key, spec.canonical_bytes()))
        mapped = _Decode(lambda: transform(decode.get()))
        return self._wrap(mapped, self._payload, spec, key)

    def fork(self) -> "MediaRef[_T]":
        """A second wrapper of the same decode, released on its own.

        Whichever of the two decodes first, the decoder runs once for both.
        """
        return self._wrap(self._decode, self._payload, self._spec, self._key)

    def share_decode(self, other: "MediaRef[_T]") -> None:
        """Decode as `other` does, whose key is the same, and keep one's own bytes.

        Forks of this ref are left as they are. The caller has to be the only one who
        uses this ref; cheap on any thread.
        """
        self._decode = other._live_decode()

    def release(self) -> None:
        """Let go of the bytes and of the decode closure. Idempotent.

        Waits for a decode in flight, so not for the event loop unless nothing
        decodes. What is decoded stays readable; what is not, no longer can be.
        """
        self._release(blocking=True)

    def _release(self, *, blocking: bool) -> bool:
        """`release()`, or False at once where `blocking` is off and it would wait."""
        decode = self._decode
        if decode is None:
            return True
        if not decode.lock.acquire(blocking=blocking):
            return False
        try:
            self._payload = None
            if not decode.done:
                self._decode = None
        finally:
            decode.lock.release()
        return True

    def __repr__(self) -> str:
        if self.is_decoded:
            state = "decoded"
        else:
            state = "released" if self._decode is None else "encoded"
        return f"MediaRef({self._key.hex()[:16]}, {len(self.data)} bytes, {state})"

    def __reduce__(self):
        # Neither the closure nor the lock can leave the process, so the media
        # goes in their stead.
        return _media_ref_from_pickle, (self.decode(), self._key, self._spec)

    # `copy` would go through `__reduce__` and decode. The media is shared as it is
    # between forks, so a deep copy is no different.
    def __copy__(self) -> "MediaRef[_T]":
        return self.fork()

    def __deepcopy__(self, memo: dict[int, Any]) -> "MediaRef[_T]":
        return self.fork()


def _media_ref_from_pickle(media: _T, key: bytes, spec: DecodeSpec) -> MediaRef[_T]:
    return MediaRef._wrap(_Decode.finished(media), None, spec, key)


class MediaIO(upstream.MediaIO[_T]):
    """A decoder of one modality under one configuration.

    A subclass gives `load_bytes`, `load_base64` and `load_file`, which decode at
    once. The `load_*_ref` methods read the payload and put the decode off; they
    run on the media pool, because reading, base64 and hashing grow with it.
    """

    def get_decode_spec(self) -> DecodeSpec:
        """Everything that the decoded result depends on but the bytes.

        This default names the class and its instance attributes, so that neither
        another class nor another configuration shares a key with it.

        Raises:
            TypeError, ValueError: An attribute has no exact JSON form. The class
                should then override this method.
        """
        settings = {"media_io": _qualified_name(type(self)), "options": vars(self)}
        try:
            return DecodeSpec(settings)
        except (TypeError, ValueError) as e:
            raise type(e)(
                f"{type(self).__name__} should override get_decode_spec(): {e}"
            ) from e

    def _decode_spec(
        self, owner: type, options: Mapping[str, object], **settings: object
    ) -> DecodeSpec:
        """A spec of `settings`, plus this class's name where it is not `owner`: a
        subclass that inherits `get_decode_spec()` may decode otherwise.

        `options` are named by the client, so they get a room of their own, where they
        can't pass for any of the rest.
        """
        if type(self) is not owner:
            settings["media_io"] = _qualified_name(type(self))
        if options:
            settings["options"] = options
        return DecodeSpec(settings)

    def _overrides(self, owner: type, method: str) -> bool:
        """Whether a subclass of `owner` brings a `method` of its own, which no
        shortcut may pass by."""
        return getattr(type(self), method) is not getattr(owner, method)

    def load_bytes_ref(self, data: bytes) -> MediaRef[_T]:
        """A ref to `data`. Costs one sha256 of it; decodes nothing."""
        return MediaRef(partial(self.load_bytes, data), data, self.get_decode_spec())

    def reads_base64_text(self, media_type: str) -> bool:
        """Whether `load_base64` makes more of the text than the bytes that it stands
        for, given `media_type`.

        Where it does not, the text is decoded once for all decoders that share it, and
        the key is the same whatever way the bytes came. True by default, which is
        right for any subclass.
        """
        return True

    def load_base64_ref(self, media_type: str, data: str) -> MediaRef[_T]:
        """A ref to base64 text. Where that is read as text, `media_type` is part of
        the identity."""
        if not self.reads_base64_text(media_type):
            return self.load_bytes_ref(decode_base64(data))
        return MediaRef(
            partial(self.load_base64, media_type, data),
            data.encode(),
            self.get_decode_spec().extend({"media_type": media_type.lower()}),
        )

    def load_file_ref(self, filepath: Path) -> MediaRef[_T]:
        """A ref to a file's bytes, read now so that a later change can't show."""
        return self.load_bytes_ref(filepath.read_bytes())


def _qualified_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def decode_base64(data: str) -> bytes:
    """The bytes of base64 text. ValueError on any character that is not base64."""
    return pybase64.b64decode(data, validate=True)
