# SPDX-License-Identifier: Apache-2.0
"""What is measured on one CPU has one CPU, and only that."""

import os
import subprocess
import sys

import pytest

from benchmarks.threads import only

PROCESSORS = "import os; print(len(os.sched_getaffinity(0)))"


def test_children_inherit_the_cpus_and_get_no_more() -> None:
    before = os.sched_getaffinity(0)
    with only(1):
        child = subprocess.run(
            [sys.executable, "-c", PROCESSORS], capture_output=True, text=True
        )
    assert child.stdout.strip() == "1"
    assert os.sched_getaffinity(0) == before


def test_the_cpus_are_given_back_after_an_error() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(ZeroDivisionError), only(1):
        _ = 1 / 0
    assert os.sched_getaffinity(0) == before
