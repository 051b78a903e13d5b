# SPDX-License-Identifier: Apache-2.0
"""`vllm bench serve` as a worker: the same code, without an import for each sample."""

import asyncio
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import scenarios, worker
from benchmarks.pool import Pool
from benchmarks.scenarios import SCENARIOS
from benchmarks.stats import percentile


def dataset(requests: list[scenarios.Request], path: Path) -> None:
    """Writes requests of one message each as vLLM's `custom_image` dataset."""
    with path.open("w") as file:
        for request in requests:
            (message,) = request.messages
            file.write(json.dumps({"content": message["content"]}) + "\n")


class Bench:
    """Runs the benchmark of the installed vLLM on scenarios."""

    def __init__(self, folder: Path) -> None:
        from vllm.benchmarks import serve
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        self._serve = serve
        self._parser = FlexibleArgumentParser()
        serve.add_cli_args(self._parser)
        self._file = folder / "requests.jsonl"
        self._pool = Pool()

    def handle(self, question: worker.Answer) -> worker.Answer:
        if question.pop("do") == "ready":
            return {}
        return {"values": self.sample(**question)}

    def sample(
        self, scenario: str, web: str, quick: bool, base_url: str, model: str
    ) -> dict[str, float]:
        """Returns the figures of one sample."""
        wanted = SCENARIOS[scenario]
        requests = wanted.build(scenarios.Maker(self._pool, web, quick))
        count = wanted.effort(quick).most
        dataset([requests[n % len(requests)] for n in range(count)], self._file)
        arguments = self._parser.parse_args(
            [
                "--backend=openai-chat",
                "--endpoint=/v1/chat/completions",
                f"--base-url={base_url}",
                f"--model={model}",
                "--skip-tokenizer-init",
                "--dataset-name=custom_image",
                f"--dataset-path={self._file}",
                "--enable-multimodal-chat",
                "--disable-shuffle",
                f"--num-prompts={count}",
                f"--max-concurrency={wanted.concurrency}",
                "--output-len=1",
                "--temperature=0",
                "--save-detailed",
                "--disable-tqdm",
            ]
        )
        return figures(asyncio.run(self._serve.main_async(arguments)), count)


def figures(found: dict[str, Any], count: int) -> dict[str, float]:
    """Our names for what the benchmark found. RuntimeError if a request failed."""
    if found["completed"] != count:
        errors = [error for error in found.get("errors", []) if error]
        raise RuntimeError(f"{found['completed']} of {count} completed: {errors[:1]}")
    ttfts = [seconds * 1000 for seconds in found["ttfts"]]
    # With one token the end and the first token are the same event.
    return {
        "requests": count,
        "wall_ms": found["duration"] * 1000,
        "throughput": found["request_throughput"],
        "latency_ms": statistics.median(ttfts),
        "latency_p99_ms": percentile(ttfts, 99),
        "ttft_ms": statistics.median(ttfts),
        "ttft_p99_ms": percentile(ttfts, 99),
    }


def main() -> int:
    # Neither mode of the server is to have another client.
    os.environ["VLLM_LAZY_MEDIA"] = "0"
    with tempfile.TemporaryDirectory() as folder:
        worker.serve(lambda: Bench(Path(folder)).handle)
    return 0


if __name__ == "__main__":
    sys.exit(main())
