# SPDX-License-Identifier: Apache-2.0
"""Which in-tree modules there are, and where their files lie."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Tree:
    """The in-tree modules, read from disk once.

    ``modules`` has the file of each module by its dotted name, ``packages`` the
    folder of each package, with or without an ``__init__`` of the tree's own.
    """

    root: str
    modules: dict[str, str]
    packages: dict[str, str]

    def owns_package(self, name: str) -> bool:
        """Whether the tree has the ``__init__`` of this package."""
        return name in self.packages and name in self.modules


def locate() -> str | None:
    """The folder that stands for ``vllm``: a wheel's own copy or the checkout's.

    None if there is neither.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    for folder in (
        os.path.join(here, "_tree", "vllm"),
        os.path.join(os.path.dirname(here), "vllm"),
    ):
        # An `__init__` marks a vLLM that happens to lie beside this package. The
        # tree has none at its top, since the release provides it.
        if os.path.isdir(folder) and not os.path.exists(
            os.path.join(folder, "__init__.py")
        ):
            return folder
    return None


def scan(root: str) -> Tree:
    """Read the tree at ``root``. Costs one directory walk over a few dozen files."""
    modules: dict[str, str] = {}
    packages = {"vllm": root}
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name.isidentifier()]
        steps = folder.removeprefix(root).split(os.sep)
        package = ".".join(["vllm", *filter(None, steps)])
        sources = [name for name in files if name.endswith(".py")]
        if sources:
            # A folder that only leads to others counts as well: its name is a step
            # on the way to theirs.
            parent = package
            while parent not in packages:
                packages[parent] = os.path.join(root, *parent.split(".")[1:])
                parent = parent.rpartition(".")[0]
        for name in sources:
            stem = name.removesuffix(".py")
            module = package if stem == "__init__" else f"{package}.{stem}"
            modules[module] = os.path.join(folder, name)
    return Tree(root, modules, packages)
