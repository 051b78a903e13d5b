# SPDX-License-Identifier: Apache-2.0
"""What a Python process pays that never imports vLLM.

    python -m benchmarks.micro [--quick]

Two environments without anything in them, one with this package's `.pth` file and
one without, start an interpreter in turn. Isolated, or it might find the package in
the current folder instead.
"""

import argparse
import compileall
import json
import resource
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.pool import ROOT
from benchmarks.results import MICRO, Results
from benchmarks.say import say

PYTHON_START = "python_start"
WITHOUT = "without"
WITH = "with"

# What the line in the file costs by itself, in the process that it runs in.
TIMED_LINE = """
import sys, time
line = open(sys.argv[1]).read()
start = time.process_time()
exec(line)
print((time.process_time() - start) * 1000)
"""


def run(results: Results, quick: bool) -> None:
    """Measures it, and adds to `results`."""
    say("a Python process that never imports vLLM")
    try:
        measure(results, 100 if quick else 400)
    except (OSError, subprocess.SubprocessError) as error:
        results.fail(MICRO, PYTHON_START, WITH, error)


def measure(results: Results, repeats: int) -> None:
    with TemporaryDirectory() as folder:
        pythons = {
            mode: _environment(Path(folder) / mode, mode == WITH)
            for mode in (WITHOUT, WITH)
        }
        for python in pythons.values():
            _start(python)  # brings the files into memory
        for _ in range(repeats):
            for mode, python in pythons.items():
                values = _start(python)
                if mode == WITH:
                    values["line_ms"] = _line(python)
                results.add(MICRO, PYTHON_START, mode, values)


def _environment(folder: Path, with_package: bool) -> Path:
    """Makes an environment, and returns its interpreter."""
    venv.create(folder, with_pip=False, symlinks=True)
    if with_package:
        packages = next(folder.glob("lib/python*/site-packages"))
        shutil.copytree(ROOT / "vllm_lazy_media", packages / "vllm_lazy_media")
        shutil.copy(ROOT / "vllm_lazy_media.pth", packages)
        # As an installation does, whatever the environment says of bytecode.
        compileall.compile_dir(packages / "vllm_lazy_media", quiet=1)
    return folder / "bin" / "python"


def _start(python: Path) -> dict[str, float]:
    """Milliseconds from starting an interpreter to its end, and those it computed."""
    before, start = _children(), time.perf_counter()
    subprocess.run([python, "-I", "-c", "pass"], check=True)
    wall, computed = time.perf_counter() - start, _children() - before
    return {"wall_ms": wall * 1000, "cpu_ms": computed * 1000}


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _line(python: Path) -> float:
    """Milliseconds that the line of the `.pth` file computes, in a new process."""
    packages = next(python.parents[1].glob("lib/python*/site-packages"))
    path = packages / "vllm_lazy_media.pth"
    # Without `site`, which would have run the line already.
    code = f"import sys; sys.path.append({str(packages)!r})\n{TIMED_LINE}"
    done = subprocess.run(
        [python, "-I", "-S", "-c", code, path],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    results = Results()
    run(results, parser.parse_args().quick)
    for mode in (WITHOUT, WITH):
        for name in ("wall_ms", "cpu_ms", "line_ms"):
            found = results.spread(MICRO, PYTHON_START, mode, name)
            if found is not None:
                print(mode, name, json.dumps(found))
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main())
