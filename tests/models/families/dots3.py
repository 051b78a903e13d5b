# SPDX-License-Identifier: Apache-2.0
"""dots3_note, whose model needs a CUDA build, and whose processor does not."""

import io
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import av
from torch import nn

from tests.models.families.family import Family
from tests.models.families.parts import TEXT, VISION, tokenizer_for
from vllm.model_executor.models.interfaces import SupportsMultiModal
from vllm.model_executor.models.registry import ModelRegistry
from vllm.multimodal import MULTIMODAL_REGISTRY

PACKAGE = "vllm.models.dots3_note"

_IMAGE = "<|img|><|imgpad|><|endofimg|>"
_AUDIO = "<|audio_comp_start|><|audio_comp_pad|><|audio_comp_end|>"
_VIDEO = "<|video_pad|>"


def bare_package() -> ModuleType:
    """The package without its `__init__`, which imports the model."""
    spec = find_spec("vllm.models")
    assert spec is not None and spec.submodule_search_locations is not None
    package = ModuleType(PACKAGE)
    package.__path__ = [
        str(Path(folder) / "dots3_note") for folder in spec.submodule_search_locations
    ]
    return package


class Container:
    """Opens a video for the HF processor, whose own way of doing that, torchcodec,
    needs FFmpeg libraries that PyAV has and keeps to itself."""

    def __init__(self, data: bytes) -> None:
        with av.open(io.BytesIO(data)) as container:
            track = container.streams.video[0]
            self._frames = [
                frame.to_ndarray(format="rgb24") for frame in container.decode(track)
            ]
            rate = float(track.average_rate or 1)
        self.metadata = SimpleNamespace(
            height=self._frames[0].shape[0],
            width=self._frames[0].shape[1],
            num_frames=len(self._frames),
            average_fps=rate,
            duration_seconds=len(self._frames) / rate,
        )

    def get_frames_at(self, indices: list[int]) -> Any:
        return SimpleNamespace(data=[self._frames[index] for index in indices])


def know_dots3_note() -> None:
    sys.modules.setdefault(PACKAGE, bare_package())
    from vllm.models.dots3_note.common import processor, video

    video._open_video = Container

    class Dots3Note(nn.Module, SupportsMultiModal):
        """What the front end asks of the model."""

        @classmethod
        def get_placeholder_str(cls, modality: str, i: int) -> str | None:
            return {"image": _IMAGE, "audio": _AUDIO, "video": _VIDEO}[modality]

        def __init__(self, vllm_config: Any, prefix: str = "") -> None:
            raise NotImplementedError

        def embed_input_ids(self, input_ids: Any) -> Any:
            raise NotImplementedError

        def forward(self, input_ids: Any, positions: Any) -> Any:
            raise NotImplementedError

        def compute_logits(self, hidden_states: Any) -> Any:
            raise NotImplementedError

    register = MULTIMODAL_REGISTRY.register_processor(
        processor.Dots3NoteMultiModalProcessor,
        info=processor.Dots3NoteProcessingInfo,
        dummy_inputs=processor.Dots3NoteDummyInputsBuilder,
    )
    ModelRegistry.register_model("Dots3NoteForCausalLM", register(Dots3Note))


def write(directory: Path) -> None:
    tokens = [_VIDEO, *(f"{name}>" for name in (_IMAGE + _AUDIO).split(">")[:-1])]
    tokenizer = tokenizer_for(tokens, image=_IMAGE, video=_VIDEO, audio=_AUDIO)
    tokenizer.save_pretrained(directory)
    config = {
        "model_type": "dots3_note",
        "architectures": ["Dots3NoteForCausalLM"],
        **TEXT,
        "vocab_size": len(tokenizer),
        "num_key_value_heads": 2,
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "vision_config": VISION,
        "audio_config": {"sampling_rate": 16000},
    }
    (directory / "config.json").write_text(json.dumps(config))
    vision = {
        "min_pixels": 4 * 28 * 28,
        "max_pixels": 16 * 28 * 28,
        "patch_size": 14,
        "temporal_patch_size": 1,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    settings = {"vision_config": vision}
    (directory / "preprocessor_config.json").write_text(json.dumps(settings))


FAMILIES = [
    Family("dots3_note", write, ("image", "audio"), prepare=know_dots3_note),
    Family(
        # A video comes alone.
        "dots3_note_video",
        write,
        ("video",),
        limits={"video": 1},
        # The HF processor opens the container itself. With a cache, stock vLLM has
        # lost the container by then, and hands it frames.
        encoded=("video",),
        stock_cached=False,
        prepare=know_dots3_note,
    ),
]
