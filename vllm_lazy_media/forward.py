# SPDX-License-Identifier: Apache-2.0
"""Looks up in the release what an in-tree module does not define."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import SourceFileLoader
from types import FunctionType, ModuleType
from typing import Any

from vllm_lazy_media import upstream


class Forwarder:
    """Completes one in-tree module with the names of the release's.

    To be made before the module runs, so that a ``__getattr__`` or ``__dir__`` of
    the module's own replaces those given to it here. The source is read for the
    first name that is missing, once, and the release's module imported then.
    """

    def __init__(self, module: ModuleType, loader: SourceFileLoader) -> None:
        self._module = module
        self._loader = loader
        self._name = module.__name__
        self._own: frozenset[str] | None = None
        module.__getattr__ = self.get  # type: ignore[method-assign]
        module.__dir__ = self.names  # type: ignore[method-assign]

    def get(self, name: str) -> Any:
        """The release's object of that name; AttributeError if it has none."""
        message = f"module {self._name!r} has no attribute {name!r}"
        if _is_dunder(name) and name != "__all__":
            raise AttributeError(message, name=name, obj=self._module)
        if name in self._own_names():
            # The module is still running, or has deleted the name. To answer with
            # the release's object would split one name into two objects.
            raise AttributeError(
                f"{message} (yet): an in-tree module defines it, which is most "
                "likely part of a circular import",
                name=name,
                obj=self._module,
            )
        try:
            return getattr(import_module(upstream.alias(self._name)), name)
        except AttributeError:
            if name == "__all__":
                # Star imports would take the tree's names only.
                return [name for name in self.names() if not name.startswith("_")]
            raise AttributeError(message, name=name, obj=self._module) from None

    def names(self) -> list[str]:
        """What ``dir()`` shows: the names of both modules."""
        beneath = import_module(upstream.alias(self._name))
        return sorted({*vars(self._module), *dir(beneath)})

    def fill(self) -> None:
        """Put the names that annotations may mean into the module itself.

        The release's classes bear this module's name, and whoever resolves their
        annotations reads this module's ``__dict__``, past ``__getattr__``. Does
        nothing as long as the release's module has not run to its end.
        """
        beneath = sys.modules.get(upstream.alias(self._name))
        if beneath is None or upstream.is_running(beneath):
            return
        own = self._own_names() | upstream.rebound_names(beneath)
        namespace = vars(self._module)
        for name, value in vars(beneath).items():
            # Functions and what functions rebind stay with the release alone: a copy
            # would not follow when they change.
            if not (_is_dunder(name) or name in own or isinstance(value, FunctionType)):
                namespace.setdefault(name, value)

    def _own_names(self) -> frozenset[str]:
        if self._own is None:
            from vllm_lazy_media.names import bound

            source = self._loader.get_source(self._name)
            self._own = bound(source) if source else frozenset()
        return self._own


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
