# SPDX-License-Identifier: Apache-2.0
"""The repository's own tree over the vLLM that is really installed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# Both look at the same modules of the release, so that what differs is the tree's.
COMMON = """
import importlib, json, sys, typing
from importlib.metadata import entry_points, version
from vllm_lazy_media import amend, layering, tree

def look(names, prefix):
    kinds = {}
    unresolved = set()
    for name in names:
        try:
            module = importlib.import_module(prefix + name.removeprefix("vllm"))
        except ImportError:
            continue
        for key, value in vars(module).items():
            if isinstance(value, type) and value.__module__ == name:
                kinds[f"{name}.{key}"] = value
                try:
                    typing.get_type_hints(value)
                except Exception:
                    unresolved.add(f"{name}.{key}")
    return kinds, sorted(unresolved)

import vllm
names = sorted(tree.scan(tree.locate()).modules)
result = {
    "version": version("vllm"),
    "plugins": sorted(e.name for e in entry_points(group="vllm.general_plugins")),
}
"""

LAID = """
import pickle
from vllm_lazy_media.status import collect

status = collect()
kinds, result["unresolved"] = look(names, "vllm.upstream")
result |= {
    "reason": status.reason,
    "modules": len(status.owned + status.extended + status.amended),
    "unavailable": sorted(status.unavailable),
    "tree": names,
    "amendments": len(status.amendments),
    "missing": [],
    "pickled": [],
}
for name in names:
    upstream = sys.modules.get("vllm.upstream" + name.removeprefix("vllm"))
    effective = sys.modules.get(name)
    assert effective is None or upstream is not effective, name
    for key in vars(upstream) if upstream and effective else ():
        if not key.startswith("__") and not hasattr(effective, key):
            result["missing"].append(f"{name}.{key}")
for path, kind in kinds.items():
    # A class of the same name in the tree takes the place of the release's.
    effective = getattr(sys.modules[kind.__module__], kind.__qualname__, None)
    if effective is kind and pickle.loads(pickle.dumps(kind)) is kind:
        result["pickled"].append(path)
"""

STOCK = """
import vllm.multimodal.media as media, vllm.multimodal.parse as parse
kinds, result["unresolved"] = look(names, "vllm")
result |= {
    "files": [parse.__file__, media.__file__],
    "classes": sorted(kinds),
    "amendments": len(amend.records),
}
"""


def run(folder: Path, code: str, **env: str) -> dict[str, Any]:
    answer = folder / "answer.json"
    script = f"{COMMON}{code}\njson.dump(result, open({str(answer)!r}, 'w'))"
    done = subprocess.run(
        [sys.executable, "-W", "error::ImportWarning", "-c", script],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(answer.read_text())


@pytest.fixture(scope="module")
def laid(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(tmp_path_factory.mktemp("laid"), LAID)


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(tmp_path_factory.mktemp("stock"), STOCK, VLLM_LAZY_MEDIA="0")


def test_whole_tree_is_laid(laid: dict[str, Any]) -> None:
    assert laid["reason"] is None
    # What is in a model's package is there where that package's kernels are.
    assert all(name.startswith("vllm.models.") for name in laid["unavailable"])
    assert laid["modules"] + len(laid["unavailable"]) == len(laid["tree"])
    assert laid["modules"] > 10 and laid["amendments"] > 10


def test_every_released_name_stays_importable(laid: dict[str, Any]) -> None:
    assert laid["missing"] == []


def test_released_classes_pickle(laid: dict[str, Any]) -> None:
    assert len(laid["pickled"]) > 50
    assert "vllm.multimodal.inputs.PlaceholderRange" in laid["pickled"]


def test_type_hints_resolve_as_in_stock_vllm(
    laid: dict[str, Any], stock: dict[str, Any]
) -> None:
    assert set(laid["unresolved"]) <= set(stock["unresolved"])


def test_stock_vllm_when_switched_off(stock: dict[str, Any]) -> None:
    assert [path.rpartition("/vllm/")[2] for path in stock["files"]] == [
        "multimodal/parse.py",
        "multimodal/media/__init__.py",
    ]
    assert all("site-packages" in path for path in stock["files"])
    assert stock["amendments"] == 0


@pytest.mark.parametrize("which", ["laid", "stock"])
def test_version_and_plugins(which: str, request: pytest.FixtureRequest) -> None:
    found = request.getfixturevalue(which)
    assert found["version"].partition("+")[0] == "0.31.0"
    assert len(set(found["plugins"])) == len(found["plugins"]) > 0
