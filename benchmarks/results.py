# SPDX-License-Identifier: Apache-2.0
"""What was measured: samples, and what failed. Kept as one JSON file."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.say import say
from benchmarks.stats import Spread, ratio, spread

MICRO = "micro"

# Values of which more is better; of all others, less.
RATES = frozenset({"throughput"})


@dataclass(frozen=True)
class Sample:
    """The figures of one scenario, measured once in one mode.

    `values` has, where they apply: `latency_ms` and `ttft_ms` (medians of its
    requests), `latency_p99_ms`, `ttft_p99_ms`, `throughput` (requests a second),
    `cpu_ms` (processor time for each request), `requests`, `wall_ms` (of all of
    them), `peak_mb` and `held_mb` (memory above idle: at its highest, and at the
    end), `encoded_mb`, `decoded` (items), `loop_block_ms`, `loop_cpu_ms`,
    `loop_late_ms`. Those of the level `micro` say what they are.
    """

    level: str
    scenario: str
    mode: str
    values: dict[str, float]


@dataclass(frozen=True)
class Failure:
    """A scenario that could not be measured in a mode, and why."""

    level: str
    scenario: str
    mode: str
    error: str


@dataclass
class Results:
    """All samples of a run, in the order in which they were taken."""

    about: dict[str, Any] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)

    def add(
        self, level: str, scenario: str, mode: str, values: dict[str, float]
    ) -> None:
        self.samples.append(Sample(level, scenario, mode, values))

    def fail(
        self, level: str, scenario: str, mode: str, error: object, log: str = ""
    ) -> None:
        """Notes `error`, and prints it with `log`, which names files of this machine
        and is nothing to keep beside the figures."""
        say(f"{level}, {scenario}, {mode}: {error}\n{log}".rstrip())
        self.failures.append(Failure(level, scenario, mode, str(error)))

    def values(self, level: str, scenario: str, mode: str, name: str) -> list[float]:
        """Each sample's value called `name`; empty where none has it."""
        return [
            sample.values[name]
            for sample in self.samples
            if (sample.level, sample.scenario, sample.mode) == (level, scenario, mode)
            and name in sample.values
        ]

    def spread(self, level: str, scenario: str, mode: str, name: str) -> Spread | None:
        """The median of a value over the samples; None where it wasn't measured."""
        values = self.values(level, scenario, mode, name)
        return spread(values) if values else None

    def gain(
        self,
        level: str,
        scenario: str,
        name: str,
        modes: Sequence[str] = ("stock", "lazy"),
    ) -> Spread | None:
        """How many times better the second mode is than the first, by one value."""
        first, second = (self.values(level, scenario, mode, name) for mode in modes)
        if name in RATES:
            first, second = second, first
        if not first or not second or not any(second):
            return None
        return ratio(first, second)

    def scenarios(self, level: str) -> list[str]:
        """The names measured at a level, in the order of the run."""
        return list(dict.fromkeys(s.scenario for s in self.samples if s.level == level))

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = asdict(self)
        # A line for each sample, so that the file stays short and can be compared.
        samples = whole.pop("samples")
        for sample in samples:
            sample["values"] = {
                k: float(f"{v:.6g}") for k, v in sample["values"].items()
            }
        lines = ",\n  ".join(map(json.dumps, samples))
        head = json.dumps(whole, indent=1).removesuffix("\n}")
        path.write_text(f'{head},\n "samples": [\n  {lines}\n ]\n}}\n')

    @classmethod
    def load(cls, path: Path) -> "Results":
        raw = json.loads(path.read_text())
        return cls(
            raw["about"],
            [Sample(**sample) for sample in raw["samples"]],
            [Failure(**failure) for failure in raw["failures"]],
            raw["notes"],
        )
