# SPDX-License-Identifier: Apache-2.0
"""What the tree does to the vLLM of this environment, for people and for scripts."""

from __future__ import annotations

import ast
import sys
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any

from vllm_lazy_media import SUPPORTED_VLLM, __version__, layering, upstream


@dataclass
class Status:
    """The outcome of :func:`collect`. ``reason`` is None where the tree is laid.

    ``unavailable`` says why a module cannot be imported on this platform, by name:
    the release's package around it needs what is not here.
    """

    version: str = __version__
    supported: tuple[str, ...] = SUPPORTED_VLLM
    vllm_version: str | None = None
    vllm_distribution: str | None = None
    vllm_paths: tuple[str, ...] = ()
    tree: str | None = None
    reason: str | None = None
    owned: list[str] = field(default_factory=list)
    extended: list[str] = field(default_factory=list)
    amended: list[str] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)
    amendments: list[dict[str, Any]] = field(default_factory=list)

    @property
    def laid(self) -> bool:
        return self.reason is None

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return {"laid": self.laid, **asdict(self)}


def describe() -> str:
    """One line on what holds for this process, for the log at engine start.

    Imports no vLLM and none of the tree's modules.
    """
    current = layering.layer()
    if current.reason is not None:
        return f"vllm-lazy-media {__version__}: lazy media decode is off: " + (
            current.reason
        )
    assert current.release is not None and current.tree is not None
    return (
        f"vllm-lazy-media {__version__} over vLLM {current.release.version}: "
        f"lazy media decode is on ({len(current.tree.modules)} modules)"
    )


def collect() -> Status:
    """Import vLLM and every in-tree module, and say what they do.

    Takes as long as importing vLLM does. What the imports print goes to stderr. A
    module that fails to import is the ``reason``; nothing is raised for it.
    """
    current = layering.layer()
    status = Status(reason=current.reason)
    if current.release is not None:
        status.vllm_version = current.release.version
        status.vllm_distribution = current.release.distribution
        status.vllm_paths = current.release.paths
    if current.tree is None:
        return status
    status.tree = current.tree.root
    with redirect_stdout(sys.stderr):
        try:
            import_module("vllm")
            for name in sorted(current.tree.modules):
                _import(name, status)
        except Exception as error:
            # An in-tree module's name is in the message.
            status.reason = f"{type(error).__name__}: {error}"
            return status
    _group(status, current.tree.modules)
    return status


def _import(name: str, status: Status) -> None:
    try:
        import_module(name)
    except Exception as error:
        if layering.layer().failure is not None:
            raise
        # It went wrong on the way to the in-tree module, in the release. What nobody
        # can import is not missing from the tree.
        status.unavailable[name] = f"{type(error).__name__}: {error}"


def _group(status: Status, modules: dict[str, str]) -> None:
    # Importing it has run every decorator, so that amendments are complete here.
    from vllm_lazy_media.amend import records

    amenders = {record.by for record in records}
    for name, path in sorted(modules.items()):
        if name in status.unavailable:
            continue
        if name in amenders:
            status.amended.append(name)
        elif _imports(path, upstream.alias(name)):
            status.extended.append(name)
        else:
            status.owned.append(name)
    status.amendments = [asdict(record) for record in records]


def _imports(path: str, name: str) -> bool:
    """Whether the source at ``path`` imports module ``name``.

    ``sys.modules`` would not do: a name that an owned module lacks also loads the
    release's module.
    """
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    package, _, stem = name.rpartition(".")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            if any(alias.name == name for alias in node.names):
                return True
        elif isinstance(node, ast.ImportFrom):
            if node.module == name:
                return True
            if node.module == package and any(a.name == stem for a in node.names):
                return True
    return False


def render(status: Status) -> str:
    """The status as text, a few lines and then one per module and amendment."""
    vllm = "not installed"
    if status.vllm_paths:
        name = status.vllm_distribution or "no distribution"
        vllm = f"{status.vllm_version or 'version unknown'} ({name})"
    lines = [
        f"vllm-lazy-media  {status.version}",
        f"vLLM             {vllm}",
        f"supported        {', '.join(status.supported)}",
        f"tree             {'laid' if status.laid else 'not laid: '}"
        f"{status.reason or ''}",
    ]
    if not status.laid:
        return "\n".join(lines)
    for title, names in (
        ("owned", status.owned),
        ("extended", status.extended),
        ("amended", status.amended),
    ):
        lines += ["", f"{title} ({len(names)})", *(f"  {name}" for name in names)]
    if status.unavailable:
        lines += ["", f"not importable on this platform ({len(status.unavailable)})"]
        lines += [f"  {name}: {why}" for name, why in status.unavailable.items()]
    lines += ["", f"amendments ({len(status.amendments)})"]
    for entry in status.amendments:
        parts = (entry["module"], entry["target"], entry["name"])
        lines.append(f"  {'.'.join(part for part in parts if part)}  {entry['action']}")
    return "\n".join(lines)
