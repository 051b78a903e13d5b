# SPDX-License-Identifier: Apache-2.0
"""Which vLLM release is installed, and where its own modules lie."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder

from vllm_lazy_media import SUPPORTED_VLLM
from vllm_lazy_media.cpu_build import CPU_DISTRIBUTION


@dataclass(frozen=True)
class Release:
    """The installed vLLM. ``paths`` are the folders of the package itself."""

    paths: tuple[str, ...]
    version: str | None
    distribution: str | None
    supported: bool

    def find_spec(self, name: str) -> ModuleSpec | None:
        """The spec of the release's own module ``name`` (``vllm.X``), or None.

        Reads directories only; no module is imported and no tree file is found.
        """
        parents = name.split(".")[1:-1]
        return PathFinder.find_spec(
            name, [os.path.join(path, *parents) for path in self.paths]
        )


def read(package_path: Iterable[str]) -> Release:
    """Describe the release whose package lies at ``package_path``."""
    paths = tuple(package_path)
    distribution, installed = _distribution()
    built = _built_version(paths)
    # The two differ where another vLLM on the path hides the installed one. Then it
    # is not known which release the modules belong to, so both have to be supported.
    known = [version for version in (built, installed) if version is not None]
    supported = bool(known) and all(
        version.partition("+")[0] in SUPPORTED_VLLM for version in known
    )
    unsupported = [v for v in known if v.partition("+")[0] not in SUPPORTED_VLLM]
    version = unsupported[0] if unsupported else (installed or built)
    return Release(paths, version, distribution, supported)


def _distribution() -> tuple[str | None, str | None]:
    for name in ("vllm", CPU_DISTRIBUTION):
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        # The alias of the CPU build answers to `vllm`; show what is installed.
        return getattr(found, "installed_name", name), found.version
    return None, None


def _built_version(paths: tuple[str, ...]) -> str | None:
    """The version that the build wrote into the package, without importing it.

    An import would have to wait for vLLM's own import, inside of which this runs.
    """
    name = "vllm._version"
    spec = PathFinder.find_spec(name, list(paths))
    get_code = getattr(spec and spec.loader, "get_code", None)
    if get_code is None:
        return None
    namespace: dict[str, object] = {"__name__": name}
    try:
        exec(get_code(name), namespace)
    except Exception:
        # Whatever is wrong with that file, the release reports it when it reads it.
        return None
    version = namespace.get("__version__")
    return version if isinstance(version, str) else None
