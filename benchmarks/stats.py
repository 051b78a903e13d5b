# SPDX-License-Identifier: Apache-2.0
"""Medians, spreads, percentiles and ratios."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Spread(NamedTuple):
    """A median with the smallest and the largest of `number` values."""

    median: float
    low: float
    high: float
    number: int


def spread(values: Sequence[float]) -> Spread:
    """Of at least one value."""
    return Spread(statistics.median(values), min(values), max(values), len(values))


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of `values` that at least `percent` % of them do not exceed."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def ratio(above: Sequence[float], below: Sequence[float]) -> Spread:
    """The ratio of the medians; its spread is that of the pairs measured in turn.

    Neighbours in time had the same machine, so their ratios differ less than the
    values do. ZeroDivisionError where the median of `below` is 0.
    """
    pairs = [a / b for a, b in zip(above, below, strict=False) if b]
    middle = statistics.median(above) / statistics.median(below)
    return Spread(
        middle, min(pairs, default=middle), max(pairs, default=middle), len(pairs)
    )
