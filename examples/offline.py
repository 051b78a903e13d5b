# SPDX-License-Identifier: Apache-2.0
"""Offline use: one reference, asked about twice, decoded once.

    python examples/offline.py MODEL IMAGE

MODEL is a vision model whose chat template takes images, IMAGE a file.
"""

import argparse
from pathlib import Path

from vllm import LLM, SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("image", type=Path)
    args = parser.parse_args()

    llm = LLM(args.model, allowed_local_media_path=str(args.image.resolve().parent))
    params = SamplingParams(max_tokens=32)
    for question in ("What is in this picture?", "What is not?"):
        content = [
            {
                "type": "image_url",
                "image_url": {"url": args.image.resolve().as_uri()},
            },
            {"type": "text", "text": question},
        ]
        (output,) = llm.chat([{"role": "user", "content": content}], params)
        print(question, output.outputs[0].text)


if __name__ == "__main__":
    main()
