# SPDX-License-Identifier: Apache-2.0
"""Medians, percentiles and ratios."""

import pytest

from benchmarks.stats import Spread, percentile, ratio, spread


def test_spread_is_median_and_range() -> None:
    assert spread([5.0, 1.0, 9.0]) == Spread(5.0, 1.0, 9.0, 3)
    assert spread([1.0, 2.0]).median == 1.5


@pytest.mark.parametrize(
    ("percent", "expected"), [(50, 50.0), (99, 99.0), (99.5, 100.0), (100, 100.0)]
)
def test_percentile_of_a_hundred(percent: float, expected: float) -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert percentile(values, percent) == expected


@pytest.mark.parametrize("percent", [1, 50, 99, 100])
def test_percentile_of_one(percent: float) -> None:
    assert percentile([3.0], percent) == 3.0


def test_percentile_99_of_few_is_the_largest() -> None:
    assert percentile([1.0, 2.0, 7.0], 99) == 7.0


def test_ratio_is_of_medians_and_ranges_over_pairs() -> None:
    # Pairs: 2, 5 and 1; medians: 20 and 4.
    assert ratio([20.0, 20.0, 4.0], [10.0, 4.0, 4.0]) == Spread(5.0, 1.0, 5.0, 3)


def test_ratio_of_unequal_numbers_uses_all_for_the_median() -> None:
    assert ratio([2.0, 4.0, 90.0], [2.0]) == Spread(2.0, 1.0, 1.0, 1)


def test_ratio_to_nothing_is_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        ratio([1.0], [0.0])
