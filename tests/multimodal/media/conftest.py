# SPDX-License-Identifier: Apache-2.0
"""What the tests of fetched media share."""

from typing import Any

import pytest
from PIL import Image, ImageFile


@pytest.fixture
def rasterized(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows whenever Pillow is asked for the pixels of a file."""
    Image.init()
    calls: list[str] = []

    def watch(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            calls.append(f"{getattr(owner, '__name__', owner)}.{name}")
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, watched)

    formats = [ImageFile.ImageFile, *ImageFile.ImageFile.__subclasses__()]
    for cls in formats:
        if "load" in vars(cls):
            watch(cls, "load")
    watch(Image, "_getdecoder")
    return calls
