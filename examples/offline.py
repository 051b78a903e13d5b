# SPDX-License-Identifier: Apache-2.0
"""Offline use: two questions about one picture, which is decoded once.

    python examples/offline.py IMAGE --model MODEL [any argument of vLLM's engine]

IMAGE is a file, MODEL a vision model whose chat template takes images.
"""

from pathlib import Path

from prometheus_client import REGISTRY

from vllm import LLM, EngineArgs, SamplingParams
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main() -> None:
    parser = FlexibleArgumentParser()
    parser.add_argument("image", type=Path)
    EngineArgs.add_cli_args(parser)
    args = vars(parser.parse_args())
    image: Path = args.pop("image").resolve()
    args["allowed_local_media_path"] = str(image.parent)

    llm = LLM(**args)
    for question in ("What is in this picture?", "What is not?"):
        content = [
            {"type": "image_url", "image_url": {"url": image.as_uri()}},
            {"type": "text", "text": question},
        ]
        messages = [{"role": "user", "content": content}]
        (output,) = llm.chat(messages, SamplingParams(max_tokens=32))
        print(question, output.outputs[0].text)
    for metric in REGISTRY.collect():
        if metric.name == "vllm:mm_media_items":
            for sample in metric.samples:
                if sample.name.endswith("_total"):
                    print(sample.labels["outcome"], int(sample.value))


if __name__ == "__main__":
    main()
