# SPDX-License-Identifier: Apache-2.0
"""Runs batch files through one engine, as `vllm run-batch` runs one.

    python -m tests.serving.batch ARGUMENTS -i FOLDER -o FOLDER

Takes the `.jsonl` files of the first folder in the order of their names. For each it
leaves the answers in the second, and beside them the media counters as they are then.
"""

import asyncio
import json
from argparse import Namespace
from pathlib import Path

from prometheus_client import REGISTRY

from vllm.entrypoints.launchers import run_batch
from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client
from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
from vllm.usage.usage_lib import UsageContext

ITEMS = "vllm:mm_media_items_total"


def counters() -> dict[str, float]:
    """Images by outcome so far."""
    return {
        sample.labels["outcome"]: sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name == ITEMS and sample.labels["modality"] == "image"
    }


async def main(args: Namespace) -> None:
    results = Path(args.output_file)
    async with build_async_engine_client(
        args, usage_context=UsageContext.OPENAI_BATCH_RUNNER
    ) as engine:
        for asked in sorted(Path(args.input_file).glob("*.jsonl")):
            answers = results / asked.name
            args.input_file, args.output_file = str(asked), str(answers)
            await run_batch.run_batch(engine, args)
            answers.with_suffix(".json").write_text(json.dumps(counters()))


if __name__ == "__main__":
    cli_env_setup()
    asyncio.run(main(run_batch.parse_args()))
