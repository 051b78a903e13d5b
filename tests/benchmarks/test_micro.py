# SPDX-License-Identifier: Apache-2.0
"""What is compared are interpreters with the package and without it."""

import subprocess
from pathlib import Path

import pytest

from benchmarks import micro
from benchmarks.results import MICRO, Results


@pytest.mark.parametrize("with_package", [True, False])
def test_an_environment_has_the_hook_or_not(with_package: bool, tmp_path: Path) -> None:
    python = micro._environment(tmp_path / "env", with_package)
    code = "import sys; print('vllm_lazy_media._boot' in sys.modules)"
    done = subprocess.run(
        [python, "-I", "-c", code], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == str(with_package)


def test_what_is_timed_is_compiled_and_installed(tmp_path: Path) -> None:
    python = micro._environment(tmp_path / "env", True)
    done = subprocess.run(
        [python, "-I", "-v", "-c", "pass"], check=True, capture_output=True, text=True
    )
    loaded = [line for line in done.stderr.splitlines() if "_boot" in line]
    assert any("code object from" in line and ".pyc" in line for line in loaded)
    assert not any(str(micro.ROOT) in line for line in loaded)


def test_both_are_measured_alike() -> None:
    results = Results()
    micro.measure(results, 2)
    for mode in (micro.WITH, micro.WITHOUT):
        for name in ("wall_ms", "cpu_ms"):
            values = results.values(MICRO, micro.PYTHON_START, mode, name)
            assert len(values) == 2 and min(values) > 0
    assert min(results.values(MICRO, micro.PYTHON_START, micro.WITH, "line_ms")) > 0


def test_what_starts_is_an_interpreter_that_reads_pth_files(tmp_path: Path) -> None:
    python = micro._environment(tmp_path / "env", False)
    packages = next(python.parents[1].glob("lib/python*/site-packages"))
    mark = tmp_path / "mark"
    line = f"import pathlib; pathlib.Path({str(mark)!r}).touch()\n"
    (packages / "mark.pth").write_text(line)
    micro._start(python)
    assert mark.exists()
