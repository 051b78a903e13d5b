# SPDX-License-Identifier: Apache-2.0
"""Lays the in-tree modules over the installed vLLM.

``import vllm.X`` gives the tree's module where the tree has one and the release's
otherwise. ``import vllm.upstream.X`` gives the release's own module beneath.

One decision holds for the whole process. It is made when the first ``vllm.`` module
is imported, because only then is it known which vLLM this process runs.
"""

from __future__ import annotations

import os
import sys
from _thread import RLock
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec

from vllm_lazy_media import SUPPORTED_VLLM, _boot, tree, upstream
from vllm_lazy_media.loader import TreeImportError, TreeLoader
from vllm_lazy_media.release import Release, read

#: Set to 0 (or false, no, off) to run vLLM as released.
SWITCH = "VLLM_LAZY_MEDIA"


@dataclass
class Layer:
    """What was decided for this process.

    ``reason`` says why the tree is not laid and is None where it is. ``failure`` is
    the in-tree module that could not be imported, if that has happened.
    """

    reason: str | None
    release: Release | None = None
    tree: tree.Tree | None = None
    failure: str | None = None

    @property
    def laid(self) -> bool:
        return self.reason is None


class Handle:
    """Undoes :func:`install`."""

    def uninstall(self) -> None:
        """Find no further in-tree modules; what is imported already stays."""
        uninstall()


_decided: Layer | None = None
_lock = RLock()


def install() -> Handle:
    """Lay the tree for this process, as the distribution's ``.pth`` file does.

    Takes effect for modules that are imported afterwards. Calling it again changes
    nothing.
    """
    _boot.install()
    return Handle()


def uninstall() -> None:
    """Undo :func:`install` and forget what was decided.

    In-tree modules and amendments that are in effect already stay so.
    """
    global _decided
    _boot.uninstall()
    with _lock:
        _decided = None


def layer(package_path: Iterable[str] | None = None) -> Layer:
    """What holds for this process; decides it on the first call.

    ``package_path`` is the ``__path__`` of vLLM, by default that of the vLLM which
    ``import vllm`` finds. The first call reads the installed version and the tree's
    folder; it logs one warning if the release is not supported.
    """
    global _decided
    if _boot.hook not in sys.meta_path:
        return Layer("the import hook is not installed in this environment")
    with _lock:
        if _decided is None:
            _decided = _decide(package_path)
        return _decided


def find_spec(fullname: str) -> ModuleSpec | None:
    """The spec for a ``vllm.`` module that is the tree's concern, or None.

    Raises TreeImportError once an in-tree module has failed: a process runs on the
    whole tree or not at all.
    """
    vllm = sys.modules.get("vllm")
    if vllm is None:
        return None
    current = layer(vllm.__path__)
    if current.tree is None or current.release is None:
        return None
    if fullname == upstream.ROOT or fullname.startswith(upstream.ROOT + "."):
        return upstream.find_spec(fullname, current.tree, current.release)
    if fullname not in current.tree.modules and fullname not in current.tree.packages:
        return None
    if current.failure is not None:
        raise TreeImportError(
            f"{fullname}: the in-tree module {current.failure} failed to import "
            "earlier in this process",
            name=fullname,
        )
    return _tree_spec(fullname, current)


def _tree_spec(fullname: str, current: Layer) -> ModuleSpec | None:
    assert current.tree is not None and current.release is not None
    beneath = current.release.find_spec(fullname)
    folder = current.tree.packages.get(fullname)
    search = None
    if folder is not None:
        below = beneath.submodule_search_locations if beneath else None
        search = [folder, *(below or ())]
    file = current.tree.modules.get(fullname)
    if file is None:
        # A package of the release that has in-tree modules in it: its `__init__`
        # remains the release's. Without a counterpart it is a namespace.
        spec = beneath or ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = search
        return spec
    spec = ModuleSpec(fullname, None, origin=file, is_package=search is not None)
    spec.loader = TreeLoader(fullname, file, current, forward=beneath is not None)
    spec.has_location = True
    if search is not None:
        spec.submodule_search_locations = search
    return spec


def _decide(package_path: Iterable[str] | None) -> Layer:
    if package_path is None:
        package_path = _package_path()
    root = tree.locate()
    # A checkout as the working directory makes its `vllm/` folder a namespace
    # package, which must not pass for an installed vLLM.
    paths = [path for path in package_path if path != root and _is_package(path)]
    if not paths:
        return Layer("vLLM is not installed")
    release = read(paths)
    if os.environ.get(SWITCH, "1").strip().lower() in ("0", "false", "no", "off"):
        return Layer(f"switched off by {SWITCH}={os.environ[SWITCH]}", release)
    supported = ", ".join(SUPPORTED_VLLM)
    if not release.supported:
        reason = (
            f"vLLM {release.version or 'of an unknown version'} is not supported "
            f"(supported: {supported})"
        )
        _warn(reason)
        return Layer(reason, release)
    if root is None:
        reason = "the in-tree modules are missing from this installation"
        _warn(reason)
        return Layer(reason, release)
    return Layer(None, release, tree.scan(root))


def _package_path() -> Iterable[str]:
    from importlib.util import find_spec

    spec = find_spec("vllm")
    return (spec and spec.submodule_search_locations) or ()


def _is_package(path: str) -> bool:
    return any(
        os.path.exists(os.path.join(path, f"__init__.{kind}")) for kind in ("py", "pyc")
    )


def _warn(reason: str) -> None:
    import logging

    logging.getLogger("vllm_lazy_media").warning(
        "%s: vLLM runs as released, without lazy media decode", reason
    )
