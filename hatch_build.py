# SPDX-License-Identifier: Apache-2.0
"""Decides which files beside the package go into a wheel."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PTH = "vllm_lazy_media.pth"


class TreeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        # The tree goes under the package and never to `vllm/`: nothing that belongs
        # to the installed vLLM is touched. An editable installation reads the
        # checkout's own folder, so that a copy would only grow stale.
        build_data["force_include"] |= {PTH: PTH, "vllm": "vllm_lazy_media/_tree/vllm"}
        build_data["force_include_editable"] = {PTH: PTH}
