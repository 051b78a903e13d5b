# SPDX-License-Identifier: Apache-2.0
"""What every process of the environment pays, and that every one is covered."""

import shutil

import pytest

from tests.layering.world import World


def imported(world: World) -> set[str]:
    done = world.process("-X", "importtime", "-c", "import json, importlib.metadata")
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()[1:]}


def at_start(world: World) -> set[str]:
    done = world.process("-c", "import sys; print(*sys.modules)")
    return set(done.stdout.split())


@pytest.mark.parametrize("look", [at_start, imported])
def test_process_without_vllm_imports_two_small_modules(world: World, look) -> None:
    world.release()
    with_hook = look(world)
    (world.site / "vllm_lazy_media.pth").unlink()
    assert with_hook - look(world) == {"vllm_lazy_media", "vllm_lazy_media._boot"}


def test_questions_about_other_distributions_import_nothing(world: World) -> None:
    world.distribution("other", "1.0")
    code = """
        import importlib.metadata, sys
        importlib.metadata.version("other")
        list(importlib.metadata.distributions())
        result = sorted(name for name in sys.modules if "lazy_media" in name)
        """
    assert world.run(code) == ["vllm_lazy_media", "vllm_lazy_media._boot"]


CHILD = """
    import multiprocessing
    def look(answers):
        import vllm.a
        answers.put([vllm.a.WHO, multiprocessing.get_start_method()])
    if __name__ == "__main__":
        context = multiprocessing.get_context({method!r})
        answers = context.Queue()
        {before}
        child = context.Process(target=look, args=(answers,))
        child.start()
        print(answers.get()[0])
        child.join()
    """


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
@pytest.mark.parametrize("before", ["pass", "import vllm.b"])
def test_child_processes_have_the_tree(world: World, method: str, before: str) -> None:
    import textwrap

    world.release({"a.py": "WHO = 'release'", "b.py": ""})
    world.tree({"a.py": "WHO = 'tree'"})
    script = world.cwd / "main.py"
    script.write_text(textwrap.dedent(CHILD.format(method=method, before=before)))
    done = world.process(str(script))
    assert done.stdout == "tree\n", done.stderr


def test_isolated_interpreter_has_the_tree(world: World) -> None:
    world.release({"a.py": "WHO = 'release'"})
    world.tree({"a.py": "WHO = 'tree'"})
    done = world.process("-I", "-c", "import vllm.a; print(vllm.a.WHO)")
    assert done.stdout == "tree\n"


def test_site_processed_again_changes_nothing(world: World) -> None:
    code = f"""
        import site, sys
        before = list(sys.meta_path)
        site.addsitedir({str(world.site)!r})
        result = sys.meta_path == before
        """
    assert world.run(code) is True


def test_package_alone_does_not_lay_the_tree(world: World) -> None:
    world.release({"a.py": "WHO = 'release'"})
    world.tree({"a.py": "WHO = 'tree'"})
    shutil.move(world.site / "vllm_lazy_media.pth", world.root)
    code = """
        from vllm_lazy_media.layering import layer
        import vllm.a
        result = [vllm.a.WHO, layer().reason]
        """
    who, reason = world.run(code)
    assert who == "release" and "hook is not installed" in reason


def test_module_runs_as_a_program(world: World) -> None:
    world.release({"a.py": "print('release')"})
    world.tree({"a.py": "print('tree', __name__)"})
    assert world.process("-m", "vllm.a").stdout == "tree __main__\n"
