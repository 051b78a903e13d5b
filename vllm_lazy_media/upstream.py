# SPDX-License-Identifier: Apache-2.0
"""``vllm.upstream.X``: the release's own modules beneath the in-tree ones.

Four cases, by what the tree has for ``vllm.X``:

* a file of its own: the release's file runs a second identity, as itself. It bears
  the real name inside, so that its relative imports find the effective modules and
  its classes pickle as what users know;
* a package of the release with in-tree modules in it: a step, which leads to those;
* nothing: the effective module itself, so that nothing runs twice;
* a file without a counterpart in the release: no such module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm_lazy_media.release import Release
    from vllm_lazy_media.tree import Tree

ROOT = "vllm.upstream"


def alias(real: str) -> str:
    """``vllm.X`` → ``vllm.upstream.X``."""
    return ROOT + real.removeprefix("vllm")


def find_spec(fullname: str, tree: Tree, release: Release) -> ModuleSpec | None:
    """The spec of ``vllm.upstream`` or of a module below it, or None."""
    real = "vllm" + fullname.removeprefix(ROOT)
    beneath = None if real == "vllm" else release.find_spec(real)
    if real != "vllm" and beneath is None:
        return None
    loader: Loader
    if real in tree.modules:
        assert beneath is not None
        loader = ReleaseLoader(fullname, beneath)
        return ModuleSpec(
            fullname,
            loader,
            origin=beneath.origin,
            is_package=beneath.submodule_search_locations is not None,
        )
    if real in tree.packages:

        def exists(name: str) -> bool:
            return release.find_spec(f"{real}.{name}") is not None

        return ModuleSpec(fullname, StepLoader(real, exists), is_package=True)
    return ModuleSpec(fullname, EffectiveLoader(real))


class ReleaseLoader(Loader):
    """Runs the release's file for a module that the tree has as well."""

    def __init__(self, fullname: str, real: ModuleSpec) -> None:
        self._alias = fullname
        self._real = real

    def exec_module(self, module: ModuleType) -> None:
        real = self._real
        assert real.loader is not None
        module.__name__ = real.name
        module.__package__ = real.parent
        module.__loader__ = real.loader
        module.__spec__ = real
        if real.origin is not None:
            module.__file__ = real.origin
        if real.cached is not None:
            vars(module)["__cached__"] = real.cached
        if real.submodule_search_locations is not None:
            module.__path__ = real.submodule_search_locations
            _lead_to_submodules(module, self._alias)
        # The import system looks here to make other threads wait for the module. It
        # has marked the spec of the alias, which is no longer the module's.
        real._initializing = True  # type: ignore[attr-defined]
        try:
            real.loader.exec_module(module)
        finally:
            real._initializing = False  # type: ignore[attr-defined]
        if real.submodule_search_locations is not None:
            _lead_to_submodules(module, self._alias)
        effective = getattr(sys.modules.get(real.name), "__loader__", None)
        complete = getattr(effective, "complete", None)
        if complete is not None:
            complete()


class StepLoader(Loader):
    """Makes a package that leads to the release's modules below it."""

    def __init__(self, real: str, exists: Callable[[str], bool]) -> None:
        self._real = real
        self._exists = exists

    def exec_module(self, module: ModuleType) -> None:
        # As for any package, its `__init__` runs before its modules do.
        import_module(self._real)
        real, name_exists, prefix = self._real, self._exists, module.__name__

        def __getattr__(name: str) -> Any:
            if not (name.startswith("__") and name.endswith("__")):
                # The effective package has its submodules as attributes, too, but
                # those are the tree's.
                if name_exists(name):
                    return import_module(f"{prefix}.{name}")
                return getattr(import_module(real), name)
            raise AttributeError(f"module {prefix!r} has no attribute {name!r}")

        module.__getattr__ = __getattr__  # type: ignore[method-assign]


class EffectiveLoader(Loader):
    """Hands out ``vllm.X`` under its second name."""

    def __init__(self, real: str) -> None:
        self._real = real

    def exec_module(self, module: ModuleType) -> None:
        # The import system returns what it finds here afterwards.
        sys.modules[module.__name__] = import_module(self._real)


def is_running(module: ModuleType) -> bool:
    """Whether a module of the release has not yet run to its end."""
    return getattr(module.__spec__, "_initializing", False)


def rebound_names(module: ModuleType) -> frozenset[str]:
    """The global names that the functions of a released module assign to."""
    get_source = getattr(module.__loader__, "get_source", None)
    source = get_source(module.__name__) if get_source else None
    if source is None or "global" not in source:
        return frozenset()
    import ast

    nodes = ast.walk(ast.parse(source))
    return frozenset(
        name for node in nodes if isinstance(node, ast.Global) for name in node.names
    )


def _lead_to_submodules(module: ModuleType, fullname: str) -> None:
    """Make ``from vllm.upstream.<package> import <module>`` find the release's.

    Python forms the submodule's name from the package's ``__name__``, which here is
    the real one, and would end at the tree's module.
    """
    released = vars(module).get("__getattr__")
    if getattr(released, "leads_to_submodules", False):
        return

    def __getattr__(name: str) -> Any:
        if not (name.startswith("__") and name.endswith("__")):
            try:
                return import_module(f"{fullname}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{fullname}.{name}":
                    raise
        if released is not None:
            return released(name)
        raise AttributeError(f"module {fullname!r} has no attribute {name!r}")

    __getattr__.leads_to_submodules = True  # type: ignore[attr-defined]
    module.__getattr__ = __getattr__  # type: ignore[method-assign]
