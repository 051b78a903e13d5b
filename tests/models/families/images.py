# SPDX-License-Identifier: Apache-2.0
"""Models of images and video that cut, tile or frame their pictures."""

from pathlib import Path
from typing import Any

from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    Gemma3Config,
    Gemma3ImageProcessor,
    Gemma3Processor,
    Glm4vConfig,
    Glm4vImageProcessor,
    Glm4vProcessor,
    Glm4vVideoProcessor,
    Idefics3Config,
    Idefics3ImageProcessor,
    Idefics3Processor,
    LlavaConfig,
    LlavaOnevisionConfig,
    LlavaOnevisionImageProcessor,
    LlavaOnevisionProcessor,
    LlavaOnevisionVideoProcessor,
    LlavaProcessor,
    Mistral3Config,
    PixtralImageProcessor,
    PixtralProcessor,
)

from tests.models.families.family import Family
from tests.models.families.parts import (
    MROPE,
    VISION,
    ids,
    save,
    text_config,
    tokenizer_for,
)


def write_llava(directory: Path) -> None:
    tokenizer = tokenizer_for(["<image>"], image="<image>")
    vision = CLIPVisionConfig(**VISION, image_size=56, patch_size=14)
    save(
        directory,
        LlavaConfig(
            text_config={**text_config(tokenizer), "model_type": "llama"},
            vision_config=vision,
            **ids(tokenizer, image_token_index="<image>"),
        ),
        tokenizer,
        LlavaProcessor(
            image_processor=CLIPImageProcessor(
                size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}
            ),
            tokenizer=tokenizer,
            patch_size=14,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        ),
        "LlavaForConditionalGeneration",
    )


def write_llava_onevision(directory: Path) -> None:
    tokenizer = tokenizer_for(["<image>", "<video>"], image="<image>", video="<video>")
    size = {"height": 56, "width": 56}
    pinpoints = [[56, 56], [56, 112], [112, 56], [112, 112]]
    save(
        directory,
        LlavaOnevisionConfig(
            text_config={**text_config(tokenizer), "model_type": "qwen2"},
            vision_config={
                **VISION,
                "model_type": "siglip_vision_model",
                "image_size": 56,
                "patch_size": 14,
                "vision_use_head": False,
            },
            image_grid_pinpoints=pinpoints,
            vision_aspect_ratio="anyres_max_4",
            **ids(tokenizer, image_token_index="<image>", video_token_index="<video>"),
        ),
        tokenizer,
        LlavaOnevisionProcessor(
            image_processor=LlavaOnevisionImageProcessor(
                size=size, image_grid_pinpoints=pinpoints
            ),
            video_processor=LlavaOnevisionVideoProcessor(size=size),
            tokenizer=tokenizer,
            num_image_tokens=16,
            vision_feature_select_strategy="full",
            vision_aspect_ratio="anyres_max_4",
        ),
        "LlavaOnevisionForConditionalGeneration",
    )


_IDEFICS_TOKENS = [
    "<image>",
    "<fake_token_around_image>",
    "<end_of_utterance>",
    "<global-img>",
    *(f"<row_{row}_col_{col}>" for row in range(1, 7) for col in range(1, 7)),
]


def write_idefics3(directory: Path) -> None:
    tokenizer = tokenizer_for(_IDEFICS_TOKENS, image="<image>")
    save(
        directory,
        Idefics3Config(
            text_config={**text_config(tokenizer), "model_type": "llama"},
            vision_config={**VISION, "image_size": 56, "patch_size": 14},
            scale_factor=2,
            pad_token_id=tokenizer.pad_token_id,
            **ids(tokenizer, image_token_id="<image>"),
        ),
        tokenizer,
        Idefics3Processor(
            image_processor=Idefics3ImageProcessor(
                size={"longest_edge": 112}, max_image_size={"longest_edge": 56}
            ),
            tokenizer=tokenizer,
            image_seq_len=4,
        ),
        "Idefics3ForConditionalGeneration",
    )


_PIXTRAL_TOKENS = ["[IMG]", "[IMG_BREAK]", "[IMG_END]"]


def _pixtral_vision() -> dict[str, Any]:
    return {
        **VISION,
        "model_type": "pixtral",
        "image_size": 112,
        "patch_size": 14,
        "head_dim": 32,
    }


def write_pixtral(directory: Path) -> None:
    tokenizer = tokenizer_for(_PIXTRAL_TOKENS, image="[IMG]")
    save(
        directory,
        LlavaConfig(
            text_config={**text_config(tokenizer), "model_type": "mistral"},
            vision_config=_pixtral_vision(),
            vision_feature_select_strategy="full",
            vision_feature_layer=-1,
            **ids(tokenizer, image_token_index="[IMG]"),
        ),
        tokenizer,
        PixtralProcessor(
            image_processor=PixtralImageProcessor(
                size={"longest_edge": 112}, patch_size=14
            ),
            tokenizer=tokenizer,
            patch_size=14,
        ),
        "LlavaForConditionalGeneration",
    )


def write_mistral3(directory: Path) -> None:
    tokenizer = tokenizer_for(_PIXTRAL_TOKENS, image="[IMG]")
    save(
        directory,
        Mistral3Config(
            text_config={**text_config(tokenizer), "model_type": "mistral"},
            vision_config=_pixtral_vision(),
            spatial_merge_size=2,
            vision_feature_layer=-1,
            **ids(tokenizer, image_token_index="[IMG]"),
        ),
        tokenizer,
        PixtralProcessor(
            image_processor=PixtralImageProcessor(
                size={"longest_edge": 112}, patch_size={"height": 28, "width": 28}
            ),
            tokenizer=tokenizer,
            patch_size=14,
            spatial_merge_size=2,
        ),
        "Mistral3ForConditionalGeneration",
    )


_GEMMA = {
    "image_token": "<image_soft_token>",
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
}


def write_gemma3(directory: Path) -> None:
    # vLLM looks for these runs of newlines in the vocabulary.
    newlines = ["\n" * count for count in range(1, 5)]
    tokenizer = tokenizer_for(
        [*_GEMMA.values(), *newlines], image="<start_of_image>", named=_GEMMA
    )
    save(
        directory,
        Gemma3Config(
            text_config={**text_config(tokenizer), "head_dim": 32},
            vision_config={
                **VISION,
                "image_size": 56,
                "patch_size": 14,
            },
            mm_tokens_per_image=4,
            **ids(
                tokenizer,
                image_token_index="<image_soft_token>",
                boi_token_index="<start_of_image>",
                eoi_token_index="<end_of_image>",
            ),
        ),
        tokenizer,
        Gemma3Processor(
            image_processor=Gemma3ImageProcessor(
                size={"height": 56, "width": 56},
                do_pan_and_scan=True,
                pan_and_scan_min_crop_size=16,
                pan_and_scan_max_num_crops=2,
                pan_and_scan_min_ratio_to_activate=1.2,
            ),
            tokenizer=tokenizer,
            image_seq_length=4,
        ),
        "Gemma3ForConditionalGeneration",
    )


_GLM = {
    "image_token_id": "<|image|>",
    "video_token_id": "<|video|>",
    "image_start_token_id": "<|begin_of_image|>",
    "image_end_token_id": "<|end_of_image|>",
    "video_start_token_id": "<|begin_of_video|>",
    "video_end_token_id": "<|end_of_video|>",
}


def write_glm4v(directory: Path) -> None:
    tokenizer = tokenizer_for(
        list(_GLM.values()),
        image="<|begin_of_image|><|image|><|end_of_image|>",
        video="<|begin_of_video|><|video|><|end_of_video|>",
    )
    size = {"shortest_edge": 4 * 28 * 28, "longest_edge": 2 * 16 * 28 * 28}
    save(
        directory,
        Glm4vConfig(
            text_config=text_config(tokenizer, rope_parameters=MROPE),
            vision_config={**VISION, "depth": 2, "out_hidden_size": 64},
            **ids(tokenizer, **_GLM),
        ),
        tokenizer,
        Glm4vProcessor(
            image_processor=Glm4vImageProcessor(size=dict(size)),
            video_processor=Glm4vVideoProcessor(size=dict(size)),
            tokenizer=tokenizer,
        ),
        "Glm4vForConditionalGeneration",
    )


FAMILIES = [
    Family("llava", write_llava, ("image",)),
    Family("llava_onevision", write_llava_onevision, ("image", "video")),
    Family("idefics3", write_idefics3, ("image",)),
    Family("pixtral", write_pixtral, ("image",)),
    Family("mistral3", write_mistral3, ("image",)),
    Family("gemma3", write_gemma3, ("image",)),
    Family("glm4v", write_glm4v, ("image", "video"), limits={"video": 1}),
    Family(
        "transformers_backend",
        write_llava,
        ("image",),
        architectures=("TransformersMultiModalForCausalLM",),
        settings={"model_impl": "transformers"},
    ),
]
