# SPDX-License-Identifier: Apache-2.0
"""A small vLLM and a small tree in an environment of their own.

Each world is a real virtual environment, so that the `.pth` file, the metadata and
child processes work as they do for a user. What stands for vLLM is a handful of
files, which makes a run in it take milliseconds.
"""

import json
import os
import shutil
import subprocess
import sys
import textwrap
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGED = ("pyproject.toml", "hatch_build.py", "LICENSE", "vllm_lazy_media.pth")


class World:
    """An environment below ``root`` that has nothing installed yet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.checkout = root / "checkout"
        self.cwd = root / "cwd"
        venv.create(root / "env", with_pip=False, symlinks=True)
        self.python = root / "env" / "bin" / "python"
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        self.site = root / "env" / "lib" / version / "site-packages"
        self.cwd.mkdir()
        self.checkout.mkdir()
        shutil.copytree(
            REPOSITORY / "vllm_lazy_media",
            self.checkout / "vllm_lazy_media",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        (self.checkout / "vllm").mkdir()
        for name in PACKAGED:
            shutil.copy(REPOSITORY / name, self.checkout)
        if (REPOSITORY / "README.md").exists():
            shutil.copy(REPOSITORY / "README.md", self.checkout)

    def release(
        self,
        files: Mapping[str, str] = {},
        *,
        version: str = "0.31.0",
        distribution: str | None = "vllm",
    ) -> None:
        """Install a vLLM of these files; packages get an empty ``__init__``."""
        _write(self.site / "vllm", files, packages=True)
        if distribution is not None:
            self.distribution(distribution, version)

    def distribution(self, name: str, version: str, entry_points: str = "") -> None:
        """Install the metadata of a distribution, and nothing else of it."""
        folder = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(parents=True)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (folder / "METADATA").write_text(f"{metadata}\nVersion: of the description\n")
        (folder / "entry_points.txt").write_text(entry_points)

    def tree(self, files: Mapping[str, str]) -> None:
        """Write in-tree modules into the checkout."""
        _write(self.checkout / "vllm", files, packages=False)

    def link_checkout(self) -> None:
        """What an editable installation amounts to."""
        (self.site / "_checkout.pth").write_text(str(self.checkout))
        shutil.copy(self.checkout / "vllm_lazy_media.pth", self.site)

    def build(self, kind: str) -> Path:
        """Build the checkout's wheel, ``standard`` or ``editable``; its path."""
        subprocess.run(
            [sys.executable, "-c", _BUILD, kind, str(self.root)],
            cwd=self.checkout,
            check=True,
            capture_output=True,
        )
        (wheel,) = self.root.glob("*.whl")
        return wheel

    def install(self, wheel: Path) -> list[str]:
        """Unpack a wheel into the environment; the names that it put there."""
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.site)
            return archive.namelist()

    def process(
        self,
        *arguments: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        """Run the environment's Python to its end."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "VLLM_", "COV_"))
        }
        return subprocess.run(
            [str(self.python), *arguments],
            cwd=cwd or self.cwd,
            env={**inherited, **(env or {})},
            capture_output=True,
            text=True,
        )

    def run(self, code: str, **how: Any) -> Any:
        """Run ``code``, which leaves its answer in ``result``, and return that.

        A ``__package__`` at odds with the spec is an ImportWarning, here an error.
        """
        done = self.process("-W", "error::ImportWarning", "-c", _script(code), **how)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def fails(self, code: str, **how: Any) -> str:
        """Run ``code``, which has to raise; returns what it wrote to stderr."""
        done = self.process("-c", _script(code), **how)
        assert done.returncode != 0, done.stdout
        return done.stderr


_BUILD = """
import sys
from hatchling import build

kind, folder = sys.argv[1:]
{"standard": build.build_wheel, "editable": build.build_editable}[kind](folder)
"""


def _script(code: str) -> str:
    lines = ("result = None", textwrap.dedent(code), "import json")
    return "\n".join((*lines, "print(json.dumps(result))"))


def _write(root: Path, files: Mapping[str, str], *, packages: bool) -> None:
    root.mkdir(parents=True, exist_ok=True)
    if packages:
        (root / "__init__.py").touch()
    for name, source in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
        if packages:
            for folder in path.relative_to(root).parents:
                (root / folder / "__init__.py").touch()
