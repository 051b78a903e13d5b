# SPDX-License-Identifier: Apache-2.0
"""`import vllm.X` with and without a tree file for X."""

import pytest

from tests.layering.world import World


def test_tree_file_is_the_module(world: World) -> None:
    world.release({"a.py": "WHO = 'release'", "b.py": "WHO = 'release'"})
    world.tree({"a.py": "WHO = 'tree'"})
    code = "import vllm.a, vllm.b; result = [vllm.a.WHO, vllm.b.WHO, vllm.a.__name__]"
    assert world.run(code) == ["tree", "release", "vllm.a"]


def test_module_without_tree_file_is_left_to_others(world: World) -> None:
    world.release({"b.py": ""})
    world.tree({"a.py": ""})
    code = "import vllm.b; result = [vllm.b.__file__, hasattr(vllm.b, '__getattr__')]"
    assert world.run(code) == [str(world.site / "vllm/b.py"), False]


def test_tree_only_module(world: World) -> None:
    world.release({"p/a.py": ""})
    world.tree({"p/new.py": "X = 1"})
    code = """
        import vllm.p.new
        result = [vllm.p.new.X, hasattr(vllm.p.new, "Y")]
        """
    assert world.run(code) == [1, False]


def test_tree_only_packages(world: World) -> None:
    world.release()
    world.tree({"new/deep/a.py": "from . import b", "new/deep/b.py": "X = 2"})
    code = "import vllm.new.deep.a as a; result = a.b.X"
    assert world.run(code) == 2


@pytest.mark.parametrize("init", [True, False])
def test_package_has_both_folders_the_trees_first(world: World, init: bool) -> None:
    world.release({"p/__init__.py": "", "p/a.py": ""})
    world.tree({"p/new.py": ""} | ({"p/__init__.py": ""} if init else {}))
    code = "import vllm.p; result = list(vllm.p.__path__)"
    assert world.run(code) == [
        str(world.checkout / "vllm/p"),
        str(world.site / "vllm/p"),
    ]


def test_package_keeps_the_releases_init_where_the_tree_has_none(world: World) -> None:
    world.release({"p/__init__.py": "WHO = 'release'", "p/a.py": ""})
    world.tree({"p/a.py": ""})
    code = "import vllm.p; result = [vllm.p.WHO, vllm.p.__file__]"
    assert world.run(code) == ["release", str(world.site / "vllm/p/__init__.py")]


def test_tree_package_finds_the_releases_modules(world: World) -> None:
    world.release({"p/a.py": "X = 'release'"})
    world.tree({"p/__init__.py": "from .a import X"})
    assert world.run("import vllm.p; result = vllm.p.X") == "release"


def test_missing_name_is_looked_up_in_the_release(world: World) -> None:
    world.release({"a.py": "def f(): return 'release'\n_private = 1"})
    world.tree({"a.py": "X = 1"})
    code = """
        from vllm.a import X, _private, f
        import vllm.a
        result = [X, _private, f(), hasattr(vllm.a, "nothing")]
        """
    assert world.run(code) == [1, 1, "release", False]


def test_forwarded_name_is_read_anew(world: World) -> None:
    world.release({"a.py": "N = 0\ndef more():\n    global N\n    N += 1"})
    world.tree({"a.py": "import vllm.upstream.a"})
    code = "import vllm.a; vllm.a.N; vllm.a.more(); result = vllm.a.N"
    assert world.run(code) == 1


HINTS = """
import decimal
from fractions import Fraction
class Item:
    one: "decimal.Decimal"
    two: "Fraction"
"""


@pytest.mark.parametrize(
    ("tree", "trigger"),
    [
        ("from vllm.upstream import a as upstream", "import vllm.a"),
        ("", "import vllm.a; vllm.a.Item"),
        ("", "import vllm.upstream.a, vllm.a"),
    ],
)
def test_released_classes_keep_their_type_hints(
    world: World, tree: str, trigger: str
) -> None:
    # Serializers resolve them in the module that the class names, not by attribute.
    world.release({"a.py": HINTS})
    world.tree({"a.py": tree})
    code = f"""
        {trigger}
        import typing
        result = [hint.__name__ for hint in typing.get_type_hints(vllm.a.Item).values()]
        """
    assert world.run(code) == ["Decimal", "Fraction"]


def test_deleted_name_is_not_the_releases(world: World) -> None:
    world.release({"a.py": "Item = 'release'"})
    world.tree({"a.py": "import vllm.upstream.a\nItem = 1\ndel Item"})
    assert world.run("import vllm.a; result = hasattr(vllm.a, 'Item')") is False


def test_unfinished_release_is_not_taken_for_the_last_word(world: World) -> None:
    world.release({"a.py": "VALUE = None\nimport vllm.a\nVALUE = 1"})
    world.tree({"a.py": ""})
    code = "import vllm.upstream.a, vllm.a; result = vllm.a.VALUE"
    assert world.run(code) == 1


def test_name_from_a_star_import_of_the_trees_is_the_trees(world: World) -> None:
    world.release({"a.py": "Item = 'release'", "b.py": "Item = 'b'"})
    world.tree({"a.py": "from vllm.b import *\nimport vllm.upstream.a"})
    assert world.run("import vllm.a; result = vllm.a.Item") == "b"


def test_tree_module_has_to_import_what_it_uses(world: World) -> None:
    world.release({"a.py": "Item = 'release'"})
    world.tree({"a.py": "import vllm.upstream.a\nItem"})
    assert "NameError: name 'Item'" in world.fails("import vllm.a")


def test_released_function_is_read_anew(world: World) -> None:
    world.release({"a.py": "def f(): return 'release'"})
    world.tree({"a.py": "import vllm.upstream.a"})
    code = """
        import vllm.a
        vllm.upstream.a.f = lambda: "changed"
        result = vllm.a.f()
        """
    assert world.run(code) == "changed"


@pytest.mark.parametrize("tree", ["", "import vllm.upstream.a"])
def test_dunder_names_are_not_forwarded(world: World, tree: str) -> None:
    world.release({"a.py": "__version__ = '1'\n__doc__ = 'release'"})
    world.tree({"a.py": tree})
    code = "import vllm.a as a; result = [hasattr(a, '__version__'), a.__doc__]"
    assert world.run(code) == [False, None]


@pytest.mark.parametrize("declared", ["__all__ = ['x', '_y']", ""])
def test_star_import_takes_the_releases_names(world: World, declared: str) -> None:
    world.release({"a.py": f"def x(): ...\n_y = 2\n{declared}"})
    world.tree({"a.py": "z = 3"})
    code = """
        from vllm.a import *
        result = [name for name in ("x", "_y", "z") if name in globals()]
        """
    assert world.run(code) == (["x", "_y"] if declared else ["x", "z"])


def test_dir_merges(world: World) -> None:
    world.release({"a.py": "def x(): ..."})
    world.tree({"a.py": "z = 3"})
    code = "import vllm.a; result = [n for n in dir(vllm.a) if n[0] != '_']"
    assert world.run(code) == ["x", "z"]


def test_own_getattr_stays(world: World) -> None:
    world.release({"a.py": "x = 1"})
    world.tree({"a.py": "def __getattr__(name):\n    return name.upper()"})
    assert world.run("import vllm.a; result = vllm.a.x") == "X"


@pytest.mark.parametrize(
    "binding",
    [
        "class Item: pass",
        "from json import loads as Item",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING: ...\nelse: Item = 1",
    ],
)
def test_own_name_is_not_the_releases_in_a_circular_import(
    world: World, binding: str
) -> None:
    world.release({"a.py": "Item = 'release'", "b.py": "from vllm.a import Item"})
    world.tree({"a.py": f"import vllm.b\n{binding}"})
    assert "cannot import name 'Item'" in world.fails("import vllm.a")


def test_circular_import_gets_released_names_all_the_same(world: World) -> None:
    world.release({"a.py": "other = 1", "b.py": "from vllm.a import other"})
    world.tree({"a.py": "import vllm.b\nItem = 1"})
    assert world.run("import vllm.a; result = vllm.b.other") == 1


def test_release_that_cannot_be_imported_is_not_a_missing_name(world: World) -> None:
    world.release({"a.py": "raise RuntimeError('of the release')"})
    world.tree({"a.py": ""})
    assert "of the release" in world.fails("import vllm.a; hasattr(vllm.a, 'x')")
