# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_lazy_media status``."""

from __future__ import annotations

import argparse
import json
import sys

from vllm_lazy_media.status import collect, render


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status: 0 if the tree is laid, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m vllm_lazy_media")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("status", help="say what is laid over which vLLM")
    command.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    status = collect()
    print(json.dumps(status.as_dict()) if arguments.json else render(status))
    return 0 if status.laid else 1


if __name__ == "__main__":
    sys.exit(main())
