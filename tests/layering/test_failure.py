# SPDX-License-Identifier: Apache-2.0
"""A tree module that cannot be imported."""

import pytest

from tests.layering.world import World

RELEASE = {"a.py": "", "b.py": "", "c.py": ""}


@pytest.fixture
def broken(world: World) -> World:
    world.release(RELEASE)
    world.tree({"a.py": "import vllm.b", "b.py": "1 / 0", "c.py": ""})
    return world


def test_error_names_the_module_and_has_the_cause(broken: World) -> None:
    code = """
        try:
            import vllm.b
        except ImportError as error:
            result = [str(error), error.name, error.path, repr(error.__cause__)]
        """
    message, name, path, cause = broken.run(code)
    assert "vllm.b" in message and "division by zero" in message
    assert (name, path) == ("vllm.b", str(broken.checkout / "vllm/b.py"))
    assert cause == "ZeroDivisionError('division by zero')"


def test_error_is_no_missing_module(world: World) -> None:
    # `except ModuleNotFoundError` stands for "not there", which is not the case.
    world.release(RELEASE)
    world.tree({"a.py": "import not_to_be_found"})
    code = """
        try:
            import vllm.a
        except ModuleNotFoundError:
            result = "missing"
        except ImportError as error:
            result = error.name
        """
    assert world.run(code) == "vllm.a"


def test_error_is_about_the_module_that_failed_not_its_importer(broken: World) -> None:
    code = """
        try:
            import vllm.a
        except ImportError as error:
            result = error.name
        """
    assert broken.run(code) == "vllm.b"


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_nothing_of_the_tree_is_imported_after_a_failure(
    broken: World, name: str
) -> None:
    code = f"""
        import sys
        try:
            import vllm.b
        except ImportError:
            pass
        try:
            import vllm.{name}
        except ImportError as error:
            result = ["vllm.b" in str(error), "vllm.{name}" in sys.modules]
        """
    assert broken.run(code) == [True, False]


def test_release_is_no_fallback(world: World) -> None:
    world.release({"a.py": "WHO = 'release'"})
    world.tree({"a.py": "raise ImportError('no')"})
    code = """
        import importlib
        result = []
        for _ in range(2):
            try:
                result.append(importlib.import_module("vllm.a").WHO)
            except ImportError:
                result.append("failed")
        """
    assert world.run(code) == ["failed", "failed"]


def test_syntax_error(world: World) -> None:
    world.release(RELEASE)
    world.tree({"a.py": "def"})
    stderr = world.fails("import vllm.a")
    assert "in-tree module vllm.a failed to import: SyntaxError" in stderr


def test_interrupt_is_not_wrapped(world: World) -> None:
    world.release(RELEASE)
    world.tree({"a.py": "raise KeyboardInterrupt"})
    code = """
        try:
            import vllm.a
        except KeyboardInterrupt:
            result = "interrupted"
        """
    assert world.run(code) == "interrupted"
