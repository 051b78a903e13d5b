# SPDX-License-Identifier: Apache-2.0
"""`vllm.upstream.X`, the release's own modules."""

import pytest

from tests.layering.world import World

RELEASE = {
    "p/__init__.py": "from .a import Item\nVALUE = 'p'\nprint('p runs')",
    "p/a.py": "from .b import WHO\nclass Item: pass\nprint('a runs')",
    "p/b.py": "WHO = 'release'",
}


@pytest.mark.parametrize(
    "statement",
    [
        "from vllm.upstream.p import a as upstream",
        "import vllm.upstream.p.a as upstream",
        "import vllm.upstream.p.a; upstream = vllm.upstream.p.a",
        "import importlib; upstream = importlib.import_module('vllm.upstream.p.a')",
        "from vllm.upstream import p; upstream = p.a",
        "import vllm.p.a; from vllm.upstream.p import a as upstream",
    ],
)
@pytest.mark.parametrize("owns_init", [True, False])
def test_gives_the_releases_file(world: World, statement: str, owns_init: bool) -> None:
    world.release(RELEASE)
    tree = {"p/a.py": "class Item: pass"}
    world.tree(tree | ({"p/__init__.py": ""} if owns_init else {}))
    code = f"""
        import sys
        {statement}
        import vllm.p.a as effective
        result = [upstream.__file__, effective.__file__,
                  sys.modules["vllm.upstream.p.a"] is upstream]
        """
    assert world.run(code) == [
        str(world.site / "vllm/p/a.py"),
        str(world.checkout / "vllm/p/a.py"),
        True,
    ]


def test_tree_module_extends_its_counterpart(world: World) -> None:
    world.release(RELEASE)
    world.tree(
        {
            "p/a.py": """
            from vllm.upstream.p import a as upstream
            class Item(upstream.Item):
                extended = True
            """
        }
    )
    code = "import vllm.p; result = [vllm.p.Item.extended, vllm.p.VALUE]"
    assert world.run(code) == [True, "p"]


def test_relative_imports_find_effective_modules(world: World) -> None:
    world.release(RELEASE)
    world.tree({"p/a.py": "", "p/b.py": "WHO = 'tree'"})
    code = "import vllm.upstream.p.a as a; result = a.WHO"
    assert world.run(code) == "tree"


def test_names_and_specs_are_the_real_ones(world: World) -> None:
    world.release(RELEASE)
    world.tree({"p/a.py": ""})
    code = """
        import vllm.upstream.p.a as a
        result = [a.__name__, a.__package__, a.__spec__.name, a.__spec__.parent]
        """
    assert world.run(code) == ["vllm.p.a", "vllm.p", "vllm.p.a", "vllm.p"]


def test_classes_pickle_under_their_real_name(world: World) -> None:
    world.release(RELEASE)
    world.tree({"p/a.py": ""})
    code = """
        import pickle
        from vllm.upstream.p.a import Item
        data = pickle.dumps(Item())
        result = [type(pickle.loads(data)) is Item, b"upstream" in data]
        """
    assert world.run(code) == [True, False]


def test_importers_wait_for_a_module_that_is_running(world: World) -> None:
    world.release(
        {
            "a.py": """
            import __main__
            __main__.running.set()
            __main__.proceed.wait()
            X = 1
            """
        }
    )
    world.tree({"a.py": ""})
    code = """
        import sys, threading
        import vllm
        running, proceed = threading.Event(), threading.Event()
        first = threading.Thread(target=__import__, args=("vllm.upstream.a",))
        first.start()
        running.wait()
        found = []
        def look():
            from vllm.upstream.a import X
            found.append(X)
        second = threading.Thread(target=look)
        second.start()
        # Either it waits for the import's lock, or it has ended in an ImportError.
        def waits():
            frame = sys._current_frames().get(second.ident)
            return frame is not None and frame.f_code.co_name == "acquire"
        while second.is_alive() and not waits():
            pass
        waited = second.is_alive()
        proceed.set()
        first.join()
        second.join()
        result = [waited, found]
        """
    assert world.run(code) == [True, [1]]


def test_module_without_tree_file_is_the_effective_one(world: World) -> None:
    world.release({"a.py": "", "b.py": "print('b runs')", "q/c.py": "print('c runs')"})
    world.tree({"a.py": ""})
    code = """
        import vllm.upstream.b, vllm.b, vllm.upstream.q.c as c, vllm.q.c
        from vllm.upstream.q import c as again
        result = [vllm.upstream.b is vllm.b, c is vllm.q.c, again is c,
                  vllm.b.__spec__.name, vllm.b.__name__]
        """
    assert world.run(code) == [True, True, True, "vllm.b", "vllm.b"]
    done = world.process("-c", "import vllm.b, vllm.upstream.b")
    assert done.stdout == "b runs\n"


def test_step_runs_no_init_again(world: World) -> None:
    world.release(RELEASE)
    world.tree({"p/a.py": "from vllm.upstream.p.a import *"})
    done = world.process("-c", "import vllm.upstream.p.a, vllm.p.a")
    assert sorted(done.stdout.splitlines()) == ["a runs", "p runs"]


def test_step_runs_the_effective_init_first(world: World) -> None:
    look = "import sys; first = 'vllm.p' in sys.modules"
    world.release({"p/__init__.py": "", "p/a.py": look})
    world.tree({"p/a.py": ""})
    assert world.run("from vllm.upstream.p.a import first; result = first") is True


def test_step_has_the_packages_other_names(world: World) -> None:
    world.release(RELEASE | {"__init__.py": "LLM = 1"})
    world.tree({"p/a.py": "Item = 2"})
    code = """
        from vllm.upstream import LLM
        from vllm.upstream.p import VALUE
        import vllm.upstream.p
        result = [LLM, VALUE, hasattr(vllm.upstream.p, "nothing")]
        """
    assert world.run(code) == [1, "p", False]


def test_owned_init_leaves_the_releases_to_upstream(world: World) -> None:
    world.release(RELEASE)
    world.tree({"p/__init__.py": "VALUE = 'tree'", "p/a.py": "class Item: pass"})
    code = """
        import vllm.upstream.p as upstream, vllm.p, vllm.p.a
        result = [upstream.VALUE, vllm.p.VALUE, upstream.__name__,
                  upstream.__path__ == [vllm.p.__path__[1]],
                  upstream.Item is vllm.p.a.Item, vllm.p.Item is upstream.Item,
                  hasattr(upstream, "nothing")]
        """
    assert world.run(code) == ["p", "tree", "vllm.p", True, True, True, False]


def test_owned_init_that_is_still_running_leads_to_released_modules(
    world: World,
) -> None:
    world.release({"p/__init__.py": "from .a import FILE", "p/a.py": ""})
    extends = "from vllm.upstream.p import a as upstream\nFILE = upstream.__file__"
    world.tree({"p/__init__.py": "import vllm.upstream.p", "p/a.py": extends})
    code = "import vllm.p.a; result = vllm.p.a.FILE"
    assert world.run(code) == str(world.site / "vllm/p/a.py")


@pytest.mark.parametrize("name", ["p", "p.a"])
def test_spec_says_what_is_a_package(world: World, name: str) -> None:
    world.release(RELEASE)
    world.tree({"p/__init__.py": "", "p/a.py": ""})
    code = f"""
        from importlib.util import find_spec
        result = find_spec("vllm.upstream.{name}").submodule_search_locations
        """
    assert (world.run(code) is None) == (name == "p.a")


@pytest.mark.parametrize("name", ["x", "a"])
def test_released_package_keeps_its_own_getattr(world: World, name: str) -> None:
    lazy = "def __getattr__(name):\n    return 'lazy ' + name"
    world.release({"p/__init__.py": lazy, "p/a.py": ""})
    world.tree({"p/__init__.py": "", "p/a.py": ""})
    code = f"""
        from vllm.upstream.p import {name} as value
        result = value if isinstance(value, str) else value.__file__
        """
    expected = {"x": "lazy x", "a": str(world.site / "vllm/p/a.py")}
    assert world.run(code) == expected[name]


@pytest.mark.parametrize("name", ["new", "nowhere", "p.new", "p.nowhere", "q.x"])
def test_no_counterpart_no_module(world: World, name: str) -> None:
    world.release(RELEASE)
    world.tree({"new.py": "", "p/new.py": "", "p/__init__.py": "", "q/x.py": ""})
    stderr = world.fails(f"import vllm.upstream.{name}")
    assert "ModuleNotFoundError" in stderr


def test_error_in_a_released_module_is_its_own(world: World) -> None:
    world.release({"a.py": "raise RuntimeError('boom')"})
    world.tree({"a.py": ""})
    code = """
        import sys
        try:
            import vllm.upstream.a
        except RuntimeError:
            result = "vllm.upstream.a" in sys.modules
        """
    assert world.run(code) is False
