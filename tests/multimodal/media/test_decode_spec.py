# SPDX-License-Identifier: Apache-2.0
"""A spec is a canonical, immutable snapshot, and takes only what JSON holds exactly."""

import json
import pickle
from enum import IntEnum
from typing import Any

import numpy as np
import pytest

from vllm.multimodal.media import DecodeSpec


class Level(IntEnum):
    LOW = 1


class Name(str):
    pass


class Count(int):
    pass


class Ratio(float):
    pass


def test_canonical_form_is_sorted_json_without_spaces() -> None:
    spec = DecodeSpec({"b": [1, {"z": None, "a": "é"}], "a": 1.5, "c": True})
    assert spec.canonical_bytes() == (
        b'{"a":1.5,"b":[1,{"a":"\\u00e9","z":null}],"c":true}'
    )


def test_no_settings_is_the_empty_object() -> None:
    assert DecodeSpec().canonical_bytes() == b"{}"
    assert DecodeSpec() == DecodeSpec({})


def test_order_of_settings_does_not_matter() -> None:
    one = DecodeSpec({"a": 1, "b": {"c": 2, "d": 3}})
    other = DecodeSpec({"b": {"d": 3, "c": 2}, "a": 1})
    assert one == other
    assert hash(one) == hash(other)


def test_tuple_and_list_are_one_setting() -> None:
    assert DecodeSpec({"a": (1, (2, 3))}) == DecodeSpec({"a": [1, [2, 3]]})


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 2), (1, True), (0, False), (1, 1.0), (1, "1"), (None, "null"), ([], {})],
)
def test_different_values_are_different_specs(one: Any, other: Any) -> None:
    assert DecodeSpec({"a": one}) != DecodeSpec({"a": other})


def test_is_no_equal_of_its_settings() -> None:
    assert DecodeSpec({"a": 1}) != {"a": 1}


@pytest.mark.parametrize(
    "value",
    [
        b"bytes",
        bytearray(b"bytes"),
        np.int64(1),
        np.float64(1.0),
        np.bool_(True),
        np.zeros(2),
        {1, 2},
        object(),
        1j,
        int,
        Level.LOW,
        Name("text"),
        Count(1),
        Ratio(1.5),
        float("nan"),
        float("inf"),
        float("-inf"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize(
    ("nest", "named"),
    [
        (lambda value: value, "'setting'"),
        (lambda value: [0, (value,)], "'setting[1][0]'"),
        (lambda value: {"inner": {"deep": value}}, "'setting.inner.deep'"),
    ],
    ids=["plain", "in-list", "in-mapping"],
)
def test_refuses_what_json_does_not_hold_and_names_it(
    value: Any, nest: Any, named: str
) -> None:
    error = ValueError if type(value) is float else TypeError
    with pytest.raises(error) as refusal:
        DecodeSpec({"fine": 1, "setting": nest(value)})
    assert named in str(refusal.value)


@pytest.mark.parametrize("key", [1, None, True, b"text", Name("text"), ("a",)])
def test_refuses_keys_that_are_not_text(key: Any) -> None:
    with pytest.raises(TypeError, match=r"setting\.inner"):
        DecodeSpec({"setting": {"inner": {key: 1}}})
    with pytest.raises(TypeError):
        DecodeSpec({key: 1})


def test_later_changes_of_the_source_do_not_show() -> None:
    source: dict[str, Any] = {"a": [1, 2], "b": {"c": 3}}
    spec = DecodeSpec(source)
    before = spec.canonical_bytes()
    source["a"].append(3)
    source["b"]["c"] = 4
    source["d"] = 5
    assert spec.canonical_bytes() == before
    assert spec.settings == {"a": [1, 2], "b": {"c": 3}}


def test_settings_are_a_fresh_copy_each_time() -> None:
    spec = DecodeSpec({"a": [1], "b": {"c": (2,)}})
    first = spec.settings
    first["a"].append(9)
    first["b"]["c"].append(9)
    first["x"] = 9
    assert spec.settings == {"a": [1], "b": {"c": [2]}}
    assert json.loads(spec.canonical_bytes()) == spec.settings


def test_extend_adds_and_replaces_in_a_new_spec() -> None:
    spec = DecodeSpec({"a": 1, "b": 2})
    extended = spec.extend({"b": 3, "c": (4,)})
    assert extended == DecodeSpec({"a": 1, "b": 3, "c": [4]})
    assert spec == DecodeSpec({"a": 1, "b": 2})


def test_extend_refuses_as_the_constructor_does() -> None:
    with pytest.raises(ValueError, match="'rate'"):
        DecodeSpec().extend({"rate": float("nan")})


def test_survives_pickling() -> None:
    spec = DecodeSpec({"a": [1, {"b": 0.1}], "c": None})
    copy = pickle.loads(pickle.dumps(spec))
    assert copy == spec
    assert copy.canonical_bytes() == spec.canonical_bytes()


def test_cannot_be_changed() -> None:
    spec = DecodeSpec({"a": 1})
    with pytest.raises(AttributeError):
        spec.settings = {}  # type: ignore[misc]
    with pytest.raises(AttributeError):
        spec.other = 1  # type: ignore[attr-defined]
