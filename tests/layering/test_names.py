# SPDX-License-Identifier: Apache-2.0
"""Which names a source binds at its top level."""

import pytest

from vllm_lazy_media.names import bound


@pytest.mark.parametrize(
    "source",
    [
        "class Item: pass",
        "def Item(): pass",
        "async def Item(): pass",
        "Item = 1",
        "Item: int = 1",
        "Item += 1",
        "_, [Item, *_] = 1, [2]",
        "import Item.below",
        "import json as Item",
        "from json import loads as Item",
        "from json import Item",
        "for Item in (): pass",
        "for _ in ():\n    Item = 1",
        "with open('f') as Item: pass",
        "if x:\n    Item = 1",
        "if x: pass\nelif y: pass\nelse: Item = 1",
        "if TYPE_CHECKING: pass\nelse: Item = 1",
        "try:\n    Item = 1\nexcept E as e: pass",
        "try: pass\nexcept E as e:\n    Item = 1",
        "(Item := 1)",
        "match x:\n    case Item: pass",
        "match x:\n    case [*Item]: pass",
        "match x:\n    case {**Item}: pass",
        "match x:\n    case C(Item): pass",
    ],
)
def test_bound(source: str) -> None:
    assert "Item" in bound(source)


@pytest.mark.parametrize(
    "source",
    [
        "if typing.TYPE_CHECKING:\n    from json import Item",
        "if TYPE_CHECKING:\n    Item = int",
        "def f(Item):\n    Item = 1",
        "class C:\n    Item = 1",
        "[Item for Item in ()]",
        "{Item: 1 for Item in ()}",
        "lambda Item: Item",
        "Item: int",
        "x.Item = Item['Item'] = 1",
        "from Item import *",
        "try: pass\nexcept E as Item: pass",
        "import json.Item",
    ],
)
def test_not_bound(source: str) -> None:
    assert "Item" not in bound(source)
