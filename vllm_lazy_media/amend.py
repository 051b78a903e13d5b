# SPDX-License-Identifier: Apache-2.0
"""Changes a class or a module of the release in place.

For what already derived classes must inherit, or what the release's own code must
see. Everything that the tree changes in this way goes through this module, so that
one search finds it and ``python -m vllm_lazy_media status`` can list it.

:func:`amend` takes one name after the other, :class:`Amends` a class body at once.
"""

from __future__ import annotations

import abc
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, overload

T = TypeVar("T")

#: Stands for no value, since None is one.
_MISSING: Any = object()


@dataclass(frozen=True)
class Record:
    """One amendment. ``target`` is empty where a module was amended."""

    module: str
    target: str
    name: str
    action: Literal["added", "replaced"]
    by: str

    @property
    def path(self) -> str:
        """The amended name in full, ``vllm.X.Class.name``."""
        return ".".join(part for part in (self.module, self.target, self.name) if part)


#: Every amendment of this process, in the order in which they were made.
records: list[Record] = []


class Released:
    """What an :class:`Amendment` replaced: ``released["get"]`` or ``released.get``.

    The values are those of the target's ``__dict__``: functions as they are, but
    properties and class methods as descriptors.
    """

    # Without public methods, so that every name remains free for what was replaced.

    def __init__(self) -> None:
        self.__dict__: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name!r} has not been replaced")

    def __contains__(self, name: object) -> bool:
        return name in self.__dict__

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def __len__(self) -> int:
        return len(self.__dict__)


class Amendment:
    """Adds names to one class or module of the release, and replaces some.

    ``released`` has the originals of what was replaced so far. An added or replaced
    function is an ordinary one: the ``super()`` without arguments does not work in
    it, since Python binds that to the class body around a function.
    """

    def __init__(self, target: type | ModuleType, by: str) -> None:
        self.released = Released()
        self._target = target
        self._by = by

    @overload
    def add(self, value: T, *, name: str | None = None) -> T: ...
    @overload
    def add(self, *, name: str) -> Callable[[T], T]: ...
    def add(self, value: Any = _MISSING, *, name: str | None = None) -> Any:
        """Give the target a name that it does not have itself; returns ``value``.

        An inherited name may be added. Raises TypeError if the target has the name,
        if it was amended before, and if ``value`` has no name while none is given.
        """
        if value is _MISSING:
            return lambda value: self.add(value, name=name)
        name = name or _name_of(value)
        self._refuse_twice(name)
        if name in vars(self._target):
            raise TypeError(f"{self._describe(name)} exists in the release: not added")
        self._set(name, value, "added")
        return value

    @overload
    def replace(self, value: T, *, name: str | None = None) -> T: ...
    @overload
    def replace(self, *, name: str) -> Callable[[T], T]: ...
    def replace(self, value: Any = _MISSING, *, name: str | None = None) -> Any:
        """Put ``value`` in the place of what the target has; returns ``value``.

        Raises TypeError if the target does not have the name itself, if the name was
        amended before, and if ``value`` has no name while none is given.
        """
        if value is _MISSING:
            return lambda value: self.replace(value, name=name)
        name = name or _name_of(value)
        self._refuse_twice(name)
        if name not in vars(self._target):
            raise TypeError(
                f"{self._describe(name)} does not exist in the release: not replaced"
            )
        original = vars(self._target)[name]
        self._set(name, value, "replaced")
        vars(self.released)[name] = original
        return value

    def _refuse_twice(self, name: str) -> None:
        # Of two amendments the one imported last would win, by accident.
        for record in records:
            if (record.module, record.target, record.name) == (*self._where(), name):
                raise TypeError(
                    f"{self._describe(name)} was {record.action} by {record.by} before"
                )

    def _set(self, name: str, value: Any, action: Literal["added", "replaced"]) -> None:
        target = self._target
        if isinstance(value, FunctionType):
            prefix = "" if isinstance(target, ModuleType) else f"{target.__qualname__}."
            value.__qualname__ = prefix + name
        if isinstance(target, type) and hasattr(type(value), "__set_name__"):
            # Python does this for what stands in a class body.
            type(value).__set_name__(value, target, name)
        setattr(target, name, value)
        if isinstance(target, type):
            _update_abstract(target)
        records.append(Record(*self._where(), name, action, self._by))

    def _where(self) -> tuple[str, str]:
        if isinstance(self._target, ModuleType):
            return self._target.__name__, ""
        return self._target.__module__, self._target.__qualname__

    def _describe(self, name: str) -> str:
        return ".".join(part for part in (*self._where(), name) if part)


def amend(target: type | ModuleType) -> Amendment:
    """Start amending a class, or a module's functions.

    The amendments are recorded as made by the module that calls this. They hold for
    the whole process from then on, in every class derived from ``target`` that does
    not override them, and are not undone.
    """
    return Amendment(target, by=sys._getframe(1).f_globals["__name__"])


class Amends:
    """Base of a class body whose names go into a class of the release::

        class _Items(Amends, target=upstream.Items, replaces=("get",)):
            def get(self, index): return _Items.released["get"](self, index)
            def get_raw(self, index): ...

    ``replaces`` names what the release has; everything else is added. Raises TypeError
    as :class:`Amendment` does, and for a name in ``replaces`` that the body lacks. The
    class itself is of no further use than its ``released``, and has no instances.
    """

    released: ClassVar[Any]

    if TYPE_CHECKING:
        # ``self`` is an instance of the target, which no type checker can know here.
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init_subclass__(cls, *, target: type, replaces: tuple[str, ...] = ()) -> None:
        amendment = Amendment(target, by=cls.__module__)
        body = {n: v for n, v in vars(cls).items() if n not in _CLASS_STATEMENT}
        for name in replaces:
            if name not in body:
                raise TypeError(f"{cls.__qualname__} replaces {name!r} by nothing")
        for name, value in body.items():
            (amendment.replace if name in replaces else amendment.add)(value, name=name)
        cls.released = amendment.released


class _Empty:
    __annotations__: dict[str, Any] = {}


#: What a class statement puts into its namespace on its own.
_CLASS_STATEMENT = frozenset(vars(_Empty)) | {"__orig_bases__", "__annotate__"}


def _name_of(value: Any) -> str:
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, cached_property):
        value = value.func
    name = getattr(value, "__name__", None)
    if not isinstance(name, str):
        raise TypeError(f"{value!r} has no name: give one with name=")
    return name


def _update_abstract(target: type) -> None:
    """Recompute what is left abstract, in derived classes as well."""
    abc.update_abstractmethods(target)
    derived: type
    for derived in type.__subclasses__(target):
        _update_abstract(derived)
