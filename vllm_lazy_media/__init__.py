# SPDX-License-Identifier: Apache-2.0
"""Lazy media decode for a released vLLM.

The in-tree modules lie in a ``vllm/`` folder at vLLM's own paths;
:mod:`vllm_lazy_media.layering` lays them over the installed release. Every process
of the environment imports this package when the interpreter starts, so it holds
constants and nothing that has to be imported.
"""

__version__ = "0.1.0"

#: The vLLM releases that the in-tree modules are written for. A local suffix of the
#: installed version (``0.31.0+cpu``) does not matter.
SUPPORTED_VLLM = ("0.31.0",)
