# SPDX-License-Identifier: Apache-2.0
"""Builds the tiny models, each once, and says where they are.

    python -m tiny.models [NAME]

builds NAME (default `omni`) where needed and prints its path as the last line.
"""

import hashlib
import importlib
import importlib.metadata
import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("omni", "qwen2_vl")


def build_omni(cache: Path | None = None) -> Path:
    """Returns the directory of the tiny Qwen2.5-Omni thinker, built where missing.

    It takes text, images, video, audio, and a video's own audio track. `cache` holds
    the model directories; `TINY_CACHE`, else `.cache/tiny` in the repository, where
    None. Building costs an import of transformers and about a second; a later call
    costs reading two small source files.
    """
    return build("omni", cache)


def build_qwen2_vl(cache: Path | None = None) -> Path:
    """Returns the directory of the tiny Qwen2-VL (text, images, video), as above."""
    return build("qwen2_vl", cache)


def build(name: str, cache: Path | None = None) -> Path:
    """Returns the directory of the model `name`; ValueError where there is no such.

    Whoever sees the directory sees a whole model: it is written aside and renamed.
    Two processes that build at once end with the same directory.
    """
    if name not in NAMES:
        raise ValueError(f"no tiny model {name!r}; there are {', '.join(NAMES)}")
    parent = cache or Path(os.environ.get("TINY_CACHE") or ROOT / ".cache" / "tiny")
    target = parent / f"{name}-{_stamp(name)}"
    if target.is_dir():
        return target

    parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=parent))
    try:
        _write(name, aside)
        # mkdtemp and safetensors keep others out; a cache may be shared.
        aside.chmod(0o755)
        for file in aside.iterdir():
            file.chmod(0o644)
        try:
            aside.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def _write(name: str, directory: Path) -> None:
    # Here, so that a model that is already built costs no import of transformers.
    from transformers.utils import logging

    # It warns of token ids in its own default configuration, which is not ours.
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        importlib.import_module(f"tiny.{name}").write(directory)
    finally:
        logging.set_verbosity(before)


def _stamp(name: str) -> str:
    """Changes with whatever decides what is written: the builder and transformers."""
    digest = hashlib.sha256(importlib.metadata.version("transformers").encode())
    for module in (name, "tokenizer"):
        digest.update(Path(__file__).with_name(f"{module}.py").read_bytes())
    return digest.hexdigest()[:12]


def main(arguments: list[str]) -> int:
    if len(arguments) > 1 or arguments[:1] == ["--help"]:
        print(__doc__)
        return 2
    print(build(arguments[0] if arguments else "omni"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
