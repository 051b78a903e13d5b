# SPDX-License-Identifier: Apache-2.0
"""Model families: the model sees what stock vLLM sends it, for fewer decodes."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.models.families import FAMILIES
from tests.models.families.family import OWN, Case
from tests.omni import same

# Two processes import vLLM and some thirty models.
pytestmark = [pytest.mark.sweep, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
WAYS = ("async", "sync")
CASES = [(name, case) for name, family in FAMILIES.items() for case in family.cases]

each_case = pytest.mark.parametrize(
    "name, case", CASES, ids=[f"{name}-{case}" for name, case in CASES]
)
each_family = pytest.mark.parametrize("name", FAMILIES)


class Sweep(NamedTuple):
    """What each family's requests came to, under stock vLLM and under the tree."""

    stock: Callable[[str], dict[str, Any]]
    lazy: Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    folders = {mode: tmp_path_factory.mktemp(mode) for mode in ("0", "1")}
    with ExitStack() as running:
        # Side by side, because each keeps but one core busy for most of the time.
        children = [_start(running, mode, path) for mode, path in folders.items()]
        for child in children:
            child.wait()
    return Sweep(_results_in(folders["0"]), _results_in(folders["1"]))


def _start(running: ExitStack, mode: str, folder: Path) -> "subprocess.Popen[bytes]":
    log = running.enter_context((folder / "log").open("wb"))
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.models.families.sweep", str(folder)],
        cwd=ROOT,
        env={**os.environ, "VLLM_LAZY_MEDIA": mode},
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    running.enter_context(child)
    # Where it has ended this does nothing.
    running.callback(child.kill)
    return child


def _results_in(folder: Path) -> Callable[[str], dict[str, Any]]:
    @cache
    def results(name: str) -> dict[str, Any]:
        file = folder / f"{name}.pt"
        if not file.exists():
            pytest.fail((folder / "log").read_text()[-5000:])
        found = torch.load(file, weights_only=False)
        if "error" in found:
            pytest.fail(found["error"])
        return found

    return results


def steps_of(found: dict[str, Any], case: str, way: str) -> list[dict[str, Any]]:
    steps = found["cases"][case][way]
    for number, step in enumerate(steps):
        if "error" in step:
            pytest.fail(f"{way}, step {number}: {step['error']}")
    return steps


@each_case
@pytest.mark.parametrize("way", WAYS)
def test_same_as_stock(sweep: Sweep, name: str, case: str, way: str) -> None:
    expected = steps_of(sweep.stock(name), case, way)
    found = steps_of(sweep.lazy(name), case, way)
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        seen = one["model"]
        if not FAMILIES[name].stock_cached:
            seen = with_cached(seen, found[0]["model"])
        # By part, so that a failure says which.
        for part in other["model"]:
            assert same(seen[part], other["model"][part]), (number, part)


def with_cached(seen: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
    """`seen` with what it leaves out, because the engine has it since `first`."""

    def filled(part: str) -> dict[str, Any]:
        return {
            modality: [
                known if item is None else item
                for item, known in zip(items, first[part][modality], strict=True)
            ]
            for modality, items in seen[part].items()
        }

    return {**seen, "kwargs": filled("kwargs"), "fields": filled("fields")}


@each_case
@pytest.mark.parametrize("way", WAYS)
def test_decodes_what_is_not_cached(
    sweep: Sweep, name: str, case: str, way: str
) -> None:
    family = FAMILIES[name]
    declared: Case = family.cases[case]
    stock = steps_of(sweep.stock(name), case, way)
    lazy = steps_of(sweep.lazy(name), case, way)
    for step, before, now in zip(declared.steps, stock, lazy, strict=True):
        # Stock vLLM decodes all that is sent, so the count counts.
        assert without_own(before["decodes"]) == declared.decodes(step.sent)
        missing = step.new if declared.cached else step.sent
        expected = declared.decodes(missing)
        for modality in family.encoded:
            expected.pop(modality, None)
        assert without_own(now["decodes"]) == expected
        if not missing:
            assert not now["decodes"]


def without_own(decodes: dict[str, int]) -> dict[str, int]:
    return {
        modality: count
        for modality, count in decodes.items()
        if not modality.startswith(OWN)
    }


@each_case
@pytest.mark.parametrize("way", WAYS)
def test_hashes(sweep: Sweep, name: str, case: str, way: str) -> None:
    declared: Case = FAMILIES[name].cases[case]
    first, second = steps_of(sweep.lazy(name), case, way)
    parts = [len(step.parts) for step in declared.steps]
    numbered = not FAMILIES[name].identified and "uuid" not in case
    for modality, hashes in second["hashes"].items():
        known = first["hashes"][modality]
        if numbered:
            assert not set(hashes) & set(known)
        elif parts[0] == parts[1]:
            assert hashes == known
        else:
            # A new one, then the one that was known.
            assert len(set(hashes)) == 2
            assert known[0] in hashes


@each_family
def test_gate(sweep: Sweep, name: str) -> None:
    assert sweep.stock(name)["two_phase"] is None
    assert sweep.lazy(name)["two_phase"] is FAMILIES[name].two_phase


def test_the_comparison_can_fail(sweep: Sweep) -> None:
    cases = sweep.stock("qwen2_vl")["cases"]
    cold, hit = (step["model"] for step in cases["image"]["sync"])
    other = cases["image by uuid"]["sync"][0]["model"]
    assert same(cold, hit) and cold["kwargs"]["image"][0] is not None
    assert not same(cold["kwargs"], other["kwargs"])
    assert not same(cold["prompt"], other["prompt"])
