# SPDX-License-Identifier: Apache-2.0
"""Models of sound alone."""

from pathlib import Path

from transformers import (
    Qwen3Config,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperProcessor,
)

from tests.models.families.family import Family
from tests.models.families.parts import TEXT, ids, save, text_config, tokenizer_for
from vllm.transformers_utils.configs.qwen3_asr import Qwen3ASRConfig
from vllm.transformers_utils.processors.funasr import (
    FunASRFeatureExtractor,
    FunASRProcessor,
)
from vllm.transformers_utils.processors.qwen3_asr import Qwen3ASRProcessor


def write_whisper(directory: Path) -> None:
    tokenizer = tokenizer_for(["<|startoftranscript|>"])
    special = {
        "decoder_start_token_id": "<|startoftranscript|>",
        "bos_token_id": tokenizer.pad_token,
        "eos_token_id": tokenizer.eos_token,
        "pad_token_id": tokenizer.pad_token,
    }
    save(
        directory,
        WhisperConfig(
            vocab_size=len(tokenizer),
            d_model=64,
            encoder_layers=2,
            encoder_attention_heads=2,
            decoder_layers=2,
            decoder_attention_heads=2,
            **ids(tokenizer, **special),
        ),
        tokenizer,
        WhisperProcessor(WhisperFeatureExtractor(), tokenizer),
        "WhisperForConditionalGeneration",
    )


_QWEN3_ASR = {
    "audio_token": "<|audio_pad|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}


def write_qwen3_asr_realtime(directory: Path) -> None:
    tokenizer = tokenizer_for(
        list(_QWEN3_ASR.values()),
        audio="<|audio_start|><|audio_pad|><|audio_end|>",
        named=_QWEN3_ASR,
    )
    save(
        directory,
        Qwen3ASRConfig(
            thinker_config={
                "audio_config": {"d_model": 64, "encoder_layers": 2},
                "text_config": {**text_config(tokenizer), "head_dim": 32},
                **ids(tokenizer, audio_token_id="<|audio_pad|>"),
            }
        ),
        tokenizer,
        Qwen3ASRProcessor(
            feature_extractor=WhisperFeatureExtractor(
                feature_size=128, return_attention_mask=True
            ),
            tokenizer=tokenizer,
        ),
        "Qwen3ASRRealtimeGeneration",
    )


def write_funasr(directory: Path) -> None:
    tokenizer = tokenizer_for(["<|AUDIO|>"], audio="<|AUDIO|>")
    save(
        directory,
        Qwen3Config(**TEXT, head_dim=32, vocab_size=len(tokenizer)),
        tokenizer,
        FunASRProcessor(
            FunASRFeatureExtractor(
                frontend_conf={"cmvn_file": None, "lfr_m": 7, "lfr_n": 6}
            ),
            tokenizer,
        ),
        "FunASRForConditionalGeneration",
    )


FAMILIES = [
    Family(
        "whisper",
        write_whisper,
        ("audio",),
        limits={"audio": 1},
        two_phase=False,
        # vLLM has no processor cache for any model with an encoder and a decoder.
        cached=False,
        identified=False,
    ),
    Family(
        "qwen3_asr_realtime",
        write_qwen3_asr_realtime,
        ("audio",),
        limits={"audio": 1},
        two_phase=False,
        cached=False,
    ),
    Family("funasr", write_funasr, ("audio",), limits={"audio": 1}, two_phase=False),
]
