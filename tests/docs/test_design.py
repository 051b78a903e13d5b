# SPDX-License-Identifier: Apache-2.0
"""What docs/design.md points at is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(set(re.findall(r"`([^`\n]+)`", (ROOT / "docs/design.md").read_text())))
FILES = [name for name in NAMES if re.fullmatch(r"[\w/]+\.py|[\w/]+/", name)]
TESTS = [name for name in NAMES if re.fullmatch(r"test_\w+(\.\.\.)?", name)]


@pytest.mark.parametrize("name", FILES)
def test_file_is_there(name: str) -> None:
    folders = ("", "vllm/multimodal", "tests/multimodal")
    # Beside another that was named whole, the name alone is enough.
    beside = ("vllm/multimodal/media", "tests/multimodal/media")
    assert any((ROOT / folder / name).exists() for folder in (*folders, *beside))


@pytest.mark.parametrize("name", TESTS)
def test_test_is_there(name: str) -> None:
    start = re.escape(name.removesuffix("..."))
    end = "" if name.endswith("...") else r"\("
    sources = (path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert any(re.search(rf"def {start}{end}", source) for source in sources)


def test_something_is_pointed_at() -> None:
    assert len(FILES) > 40 and len(TESTS) > 10
