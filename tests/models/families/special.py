# SPDX-License-Identifier: Apache-2.0
"""Models whose processors go ways of their own."""

import json
from pathlib import Path
from typing import Any

from PIL import Image
from transformers import (
    CLIPConfig,
    CLIPImageProcessor,
    CLIPProcessor,
    LlavaConfig,
    MiniCPMV4_6Config,
    MiniCPMV4_6ImageProcessor,
    MiniCPMV4_6Processor,
    MiniCPMV4_6VideoProcessor,
    PaliGemmaConfig,
    PaliGemmaProcessor,
    SiglipConfig,
    SiglipImageProcessor,
    SiglipProcessor,
)

from tests.models.families.family import Case, Family, again, item
from tests.models.families.images import write_llava
from tests.models.families.parts import (
    TEXT,
    VISION,
    ids,
    save,
    text_config,
    tokenizer_for,
)
from tiny.tokenizer import TURN_END, TURN_START
from vllm.model_executor.models.registry import ModelRegistry
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.transformers_utils.configs.kimi_k25 import KimiK25Config
from vllm.transformers_utils.processors.deepseek_vl2 import DeepseekVLV2Processor

_TILE = {"height": 56, "width": 56}


def write_paligemma(directory: Path) -> None:
    # vLLM puts a newline behind the prompt, and looks for it in the vocabulary.
    tokenizer = tokenizer_for(["<image>", "\n"], bos_token=TURN_START)
    image_processor = SiglipImageProcessor(size=_TILE)
    image_processor.image_seq_length = 16
    save(
        directory,
        PaliGemmaConfig(
            text_config={
                **text_config(tokenizer),
                "model_type": "gemma",
                "head_dim": 32,
            },
            vision_config={
                **VISION,
                "model_type": "siglip_vision_model",
                "image_size": 56,
                "patch_size": 14,
            },
            **ids(tokenizer, image_token_index="<image>"),
        ),
        tokenizer,
        PaliGemmaProcessor(image_processor=image_processor, tokenizer=tokenizer),
        "PaliGemmaForConditionalGeneration",
    )


# These take an image or a text: beside an image no token may stand that means one.
_BARE = "{{ '" + TURN_END + "' }}"


def write_clip(directory: Path) -> None:
    tokenizer = tokenizer_for([])
    tokenizer.chat_template = _BARE
    save(
        directory,
        CLIPConfig(
            text_config={**text_config(tokenizer), "max_position_embeddings": 77},
            vision_config={**VISION, "image_size": 56, "patch_size": 14},
        ),
        tokenizer,
        CLIPProcessor(
            image_processor=CLIPImageProcessor(
                size={"shortest_edge": 56}, crop_size=_TILE
            ),
            tokenizer=tokenizer,
        ),
        "CLIPModel",
    )


def write_siglip(directory: Path) -> None:
    tokenizer = tokenizer_for([])
    tokenizer.chat_template = _BARE
    save(
        directory,
        SiglipConfig(
            text_config={**text_config(tokenizer), "max_position_embeddings": 64},
            vision_config={**VISION, "image_size": 56, "patch_size": 14},
        ),
        tokenizer,
        SiglipProcessor(
            image_processor=SiglipImageProcessor(size=_TILE), tokenizer=tokenizer
        ),
        "SiglipModel",
    )


_MINICPM = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "image_start_token": "<image>",
    "image_end_token": "</image>",
    "slice_start_token": "<slice>",
    "slice_end_token": "</slice>",
    "image_id_start_token": "<image_id>",
    "image_id_end_token": "</image_id>",
}


def write_minicpmv(directory: Path) -> None:
    tokenizer = tokenizer_for(
        list(_MINICPM.values()),
        image="<|image_pad|>",
        video="<|video_pad|>",
        named=_MINICPM,
    )
    save(
        directory,
        MiniCPMV4_6Config(
            text_config={**text_config(tokenizer), "model_type": "qwen3_5_text"},
            vision_config={**VISION, "patch_size": 14, "image_size": 112},
            image_size=112,
            insert_layer_id=0,
            **ids(
                tokenizer,
                image_token_id="<|image_pad|>",
                video_token_id="<|video_pad|>",
            ),
        ),
        tokenizer,
        MiniCPMV4_6Processor(
            image_processor=MiniCPMV4_6ImageProcessor(
                scale_resolution=64, max_slice_nums=4
            ),
            video_processor=MiniCPMV4_6VideoProcessor(
                scale_resolution=64, max_slice_nums=1
            ),
            tokenizer=tokenizer,
        ),
        "MiniCPMV4_6ForConditionalGeneration",
    )


_DEEPSEEK_TEXT = {
    **TEXT,
    "num_key_value_heads": 2,
    "kv_lora_rank": 16,
    "q_lora_rank": None,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "first_k_dense_replace": 2,
}


_KIMI_CHUNK = "<|media_begin|>{}<|media_content|><|media_pad|><|media_end|>"


def know_kimi_k25() -> None:
    """Give the processor what is code in the model's own repository."""
    from vllm.model_executor.models.kimi_k25 import KimiK25MultiModalProcessor

    def split_video_chunks(self: Any, video: Any) -> list[dict[str, Any]]:
        # Stock vLLM hands over its wrapper of frames and metadata, the tree frames.
        frames = video.media[0] if hasattr(video, "media") else video
        pictures = [Image.fromarray(frame) for frame in frames]
        return [
            {
                "video_chunk": pictures[start : start + 4],
                "prompt": _KIMI_CHUNK.format("video"),
            }
            for start in range(0, len(pictures), 4)
        ]

    KimiK25MultiModalProcessor.split_video_chunks = split_video_chunks


def write_kimi_k25(directory: Path) -> None:
    special = ["<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>"]
    tokenizer = tokenizer_for(
        special,
        image=_KIMI_CHUNK.format("image"),
        video="<|kimi_k25_video_placeholder|>",
    )
    save(
        directory,
        KimiK25Config(
            text_config={
                **_DEEPSEEK_TEXT,
                "vocab_size": len(tokenizer),
            },
            vision_config={**VISION, "mm_hidden_size": 64},
            use_unified_vision_chunk=True,
            **ids(tokenizer, media_placeholder_token_id="<|media_pad|>"),
        ),
        tokenizer,
        architecture="KimiK25ForConditionalGeneration",
    )
    # The processor takes no other settings than these.
    settings = {
        "image_processor_type": "KimiK25VisionProcessor",
        "media_proc_cfg": {
            "in_patch_limit": 256,
            "patch_size": 14,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "merge_kernel_size": 2,
            "fixed_output_tokens": None,
            "patch_limit_on_one_side": 512,
            "in_patch_limit_each_frame": 64,
            "in_patch_limit_video": 256,
            "sample_fps": 2,
            "temporal_merge_kernel_size": 4,
        },
    }
    (directory / "preprocessor_config.json").write_text(json.dumps(settings))


def write_deepseek_vl2(directory: Path) -> None:
    tokenizer = tokenizer_for(["<image>"], image="<image>", bos_token=TURN_START)
    resolutions = [[64, 64], [64, 128], [128, 64]]
    processor = DeepseekVLV2Processor(
        tokenizer=tokenizer,
        candidate_resolutions=resolutions,
        patch_size=16,
        downsample_ratio=2,
    )
    # Written out, because the configuration class does not save what it can load.
    config = {
        "model_type": "deepseek_vl_v2",
        "architectures": ["DeepseekVLV2ForCausalLM"],
        "language_config": {**_DEEPSEEK_TEXT, "vocab_size": len(tokenizer)},
        "vision_config": {"image_size": 64, "patch_size": 16, "width": 64},
        "projector_config": {"input_dim": 64, "n_embed": 64},
        "candidate_resolutions": resolutions,
    }
    (directory / "config.json").write_text(json.dumps(config))
    processor.chat_template = tokenizer.chat_template
    processor.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


_LEGACY = "LegacyBackendForConditionalGeneration"


def know_legacy_backend() -> None:
    """The processor that the Transformers backend has for older transformers."""
    from vllm.model_executor.models import transformers as backend
    from vllm.model_executor.models.transformers import multimodal

    class LegacyBackend(backend.TransformersMultiModalForCausalLM):
        pass

    register = MULTIMODAL_REGISTRY.register_processor(
        multimodal.LegacyMultiModalProcessor,
        info=multimodal.MultiModalProcessingInfo,
        dummy_inputs=multimodal.MultiModalDummyInputsBuilder,
    )
    ModelRegistry.register_model(_LEGACY, register(LegacyBackend))


def write_legacy_backend(directory: Path) -> None:
    write_llava(directory)
    config = LlavaConfig.from_pretrained(directory)
    config.architectures = [_LEGACY]
    config.save_pretrained(directory)


def _as_text(*parts: dict[str, Any]) -> Case:
    """Videos become chunks in the text of the prompt, before it becomes tokens."""
    return again(*parts, chat_template_kwargs={"tokenize": False})


FAMILIES = [
    Family(
        "paligemma", write_paligemma, ("image",), limits={"image": 1}, two_phase=False
    ),
    Family(
        "clip",
        write_clip,
        ("image",),
        limits={"image": 1},
        two_phase=False,
        question=False,
    ),
    Family(
        "siglip",
        write_siglip,
        ("image",),
        limits={"image": 1},
        two_phase=False,
        question=False,
    ),
    Family("minicpmv", write_minicpmv, ("image", "video")),
    Family(
        "kimi_k25",
        write_kimi_k25,
        ("image",),
        # Split into chunks, and so decoded, before anything is looked up.
        cached=False,
        # Without a UUID each video gets one that is drawn anew.
        more={
            "video by uuid": _as_text(item("video", 0, "kimi-video")),
            "mixed by uuid": _as_text(
                item("image", 1, "kimi-image"),
                item("video", 1, "kimi-short"),
                item("image", 2, "kimi-other"),
                item("video", 2, "kimi-long"),
            ),
        },
        prepare=know_kimi_k25,
    ),
    Family(
        "deepseek_vl2",
        write_deepseek_vl2,
        ("image",),
        two_phase=False,
        # From three images on it cuts them in another way, and caches nothing.
        more={
            "image thrice": Case(
                again(*(item("image", n) for n in range(3))).steps, cached=False
            )
        },
    ),
    Family(
        "transformers_backend_legacy",
        write_legacy_backend,
        ("image",),
        two_phase=False,
        cached=False,
        prepare=know_legacy_backend,
    ),
]
