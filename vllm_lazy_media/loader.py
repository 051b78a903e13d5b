# SPDX-License-Identifier: Apache-2.0
"""Loads an in-tree module and completes it with the release's names."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import TYPE_CHECKING

from vllm_lazy_media.forward import Forwarder

if TYPE_CHECKING:
    from vllm_lazy_media.layering import Layer


class TreeImportError(ImportError):
    """An in-tree module could not be imported. ``name`` is that module's."""


class TreeLoader(SourceFileLoader):
    """Runs a tree file as ``vllm.X``."""

    def __init__(self, fullname: str, path: str, layer: Layer, forward: bool) -> None:
        super().__init__(fullname, path)
        self._layer = layer
        self._forward = forward
        self._forwarder: Forwarder | None = None
        self._finished = False

    def exec_module(self, module: ModuleType) -> None:
        """Run the file.

        Raises TreeImportError, caused by what went wrong. A failure is final for
        this process: a second run would meet the amendments of the first.
        """
        name = module.__name__
        if self._forward:
            self._forwarder = Forwarder(module, self)
        try:
            super().exec_module(module)
        except TreeImportError:
            # The module that failed is named already; its importers only follow.
            raise
        except Exception as error:
            self._layer.failure = self._layer.failure or name
            raise TreeImportError(
                f"in-tree module {name} failed to import: "
                f"{type(error).__name__}: {error}",
                name=name,
                path=self.path,
            ) from error
        self._finished = True
        self.complete()

    def complete(self) -> None:
        """Complete the module, once both it and the release's have run.

        The one that ends last calls this. Before, a name given here could be taken
        for the module's own.
        """
        if self._finished and self._forwarder is not None:
            self._forwarder.fill()
