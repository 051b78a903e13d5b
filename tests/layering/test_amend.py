# SPDX-License-Identifier: Apache-2.0
"""Changing a class or module of the release in place."""

import abc
import types
from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Any

import pytest

from vllm_lazy_media.amend import Amends, amend, records

WHERE = f"{__name__}.Items"


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    # Other tests of this process may have imported the tree, which has its records.
    before = list(records)
    records.clear()
    yield
    records[:] = before


@pytest.fixture
def items() -> type[Any]:
    class Base:
        def inherited(self) -> str:
            return "base"

    class Items(Base):
        def get(self, index: int) -> str:
            return f"released {index}"

        @property
        def size(self) -> int:
            return 1

        @classmethod
        def make(cls) -> str:
            return cls.__name__

        @staticmethod
        def tell() -> str:
            return "released"

    Items.__qualname__ = "Items"
    return Items


def test_add_reaches_derived_classes(items: type[Any]) -> None:
    class Derived(items):
        pass

    @amend(items).add
    def get_raw(self: Any, index: int) -> str:
        return f"raw {index}"

    assert Derived().get_raw(1) == "raw 1"
    assert get_raw(None, 2) == "raw 2"
    assert (get_raw.__qualname__, get_raw.__module__) == ("Items.get_raw", __name__)


def test_replace_keeps_the_original(items: type[Any]) -> None:
    amendment = amend(items)

    @amendment.replace
    def get(self: Any, index: int) -> str:
        return "new, was " + amendment.released["get"](self, index)

    assert items().get(3) == "new, was released 3"
    assert amendment.released.get(None, 4) == "released 4"
    assert "get" in amendment.released and list(amendment.released) == ["get"]
    assert len(amendment.released) == 1


def test_released_lacks_what_was_not_replaced(items: type[Any]) -> None:
    released = amend(items).released
    with pytest.raises(AttributeError, match="size"):
        _ = released.size
    with pytest.raises(KeyError, match="size"):
        released["size"]
    assert "size" not in released


def test_add_refuses_what_the_class_has(items: type[Any]) -> None:
    with pytest.raises(TypeError, match=r"Items\.get exists"):
        amend(items).add(lambda self: None, name="get")
    assert items().get(0) == "released 0"
    assert not records


def test_add_may_override_what_is_inherited(items: type[Any]) -> None:
    amend(items).add(lambda self: "added", name="inherited")
    assert items().inherited() == "added"


@pytest.mark.parametrize("name", ["nothing", "inherited"])
def test_replace_refuses_what_the_class_lacks(items: type[Any], name: str) -> None:
    with pytest.raises(TypeError, match=rf"Items\.{name} does not exist"):
        amend(items).replace(lambda self: None, name=name)
    assert not records


@pytest.mark.parametrize("first", ["add", "replace"])
@pytest.mark.parametrize("second", ["add", "replace"])
def test_no_name_is_amended_twice(items: type[Any], first: str, second: str) -> None:
    name = "new" if first == "add" else "get"
    getattr(amend(items), first)(lambda self: 1, name=name)
    with pytest.raises(TypeError, match=rf"Items\.{name} was (added|replaced) by"):
        getattr(amend(items), second)(lambda self: 2, name=name)
    assert getattr(items(), name)() == 1


def test_property(items: type[Any]) -> None:
    amendment = amend(items)

    @amendment.replace
    @property
    def size(self: Any) -> int:
        return 10 + amendment.released["size"].fget(self)

    assert items().size == 11


def test_cached_property(items: type[Any]) -> None:
    @amend(items).add
    @cached_property
    def once(self: Any) -> object:
        return object()

    one = items()
    assert one.once is one.once


def test_cached_property_under_another_name(items: type[Any]) -> None:
    # Without the class body's __set_name__ it would not know where to keep the value.
    amend(items).add(cached_property(lambda self: object()), name="other")
    one = items()
    assert one.other is one.other and "other" in vars(one)


def test_classmethod_and_staticmethod(items: type[Any]) -> None:
    amendment = amend(items)

    @amendment.replace
    @classmethod
    def make(cls: type) -> str:
        return "new " + amendment.released["make"].__func__(cls)

    @amendment.replace
    @staticmethod
    def tell() -> str:
        return "new " + amendment.released["tell"]()

    assert (items.make(), items.tell()) == ("new Items", "new released")


def test_explicit_name_as_decorator(items: type[Any]) -> None:
    @amend(items).add(name="other")
    def function(self: Any) -> int:
        return 1

    assert items().other() == 1
    assert function.__qualname__ == "Items.other"


def test_values_without_a_name(items: type[Any]) -> None:
    amend(items).add(None, name="limit")
    amend(items).add(lru_cache(int), name="number")
    assert items.limit is None
    with pytest.raises(TypeError, match="name="):
        amend(items).add(5)


def test_abstract_method_becomes_concrete_in_derived_classes() -> None:
    class Base(abc.ABC):
        @abc.abstractmethod
        def run(self) -> int: ...

    class Derived(Base):
        pass

    amend(Base).replace(lambda self: 1, name="run")
    assert Derived().run() == 1  # type: ignore[abstract]


def test_module() -> None:
    module = types.ModuleType("some.module")
    exec("def inner(): return 'old'\ndef outer(): return inner()", vars(module))
    amendment = amend(module)

    @amendment.replace
    def inner() -> str:
        return "new, was " + amendment.released["inner"]()

    with pytest.raises(TypeError, match=r"some\.module\.outer exists"):
        amendment.add(lambda: None, name="outer")
    assert module.outer() == "new, was old"
    assert inner.__qualname__ == "inner"
    assert records[-1].path == "some.module.inner"


def test_records(items: type[Any]) -> None:
    amendment = amend(items)
    amendment.add(lambda self: None, name="new")
    amendment.replace(lambda self: None, name="get")
    assert [(r.path, r.action, r.by) for r in records] == [
        (f"{WHERE}.new", "added", __name__),
        (f"{WHERE}.get", "replaced", __name__),
    ]


def test_class_body(items: type[Any]) -> None:
    class _Items(Amends, target=items, replaces=("get", "size")):
        """Says what it is about, which is not the target's docstring."""

        limit = None
        number: int

        def get(self, index: int) -> str:
            return "new, was " + _Items.released["get"](self, index)

        @property
        def size(self) -> int:
            return 2

        @cached_property
        def once(self) -> object:
            return object()

    one = items()
    assert (one.get(1), one.size, one.limit) == ("new, was released 1", 2, None)
    assert one.once is one.once
    assert items.__doc__ is None
    assert {(r.name, r.action) for r in records} == {
        ("get", "replaced"),
        ("size", "replaced"),
        ("limit", "added"),
        ("once", "added"),
    }
    assert {r.by for r in records} == {__name__}


def test_class_body_refuses(items: type[Any]) -> None:
    with pytest.raises(TypeError, match=r"Items\.get exists"):

        class _Unsaid(Amends, target=items):
            def get(self) -> None: ...

    with pytest.raises(TypeError, match=r"Items\.new does not exist"):

        class _Unknown(Amends, target=items, replaces=("new",)):
            def new(self) -> None: ...

    with pytest.raises(TypeError, match="replaces 'get' by nothing"):

        class _Missing(Amends, target=items, replaces=("get",)):
            pass


def test_class_body_can_replace_init(items: type[Any]) -> None:
    class Released:
        def __init__(self, size: int) -> None:
            self.size = size

    class _Released(Amends, target=Released, replaces=("__init__",)):
        def __init__(self, size: int) -> None:
            _Released.released["__init__"](self, size + 1)

    assert Released(1).size == 2
