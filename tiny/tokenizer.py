# SPDX-License-Identifier: Apache-2.0
"""A byte-level tokenizer with no merges, so that it needs no vocabulary file."""

from collections.abc import Sequence

from tokenizers.pre_tokenizers import ByteLevel
from transformers import Qwen2Tokenizer

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"


def byte_tokenizer(
    special: Sequence[str],
    chat_template: str,
    named: dict[str, str] | None = None,
    **settings: object,
) -> Qwen2Tokenizer:
    """Returns a Qwen tokenizer that spends one id on each UTF-8 byte.

    Ids 0 to 255 are the bytes; the end of text, the two turn markers and `special`
    follow. `named` maps attribute names (`image_token`) to those of the special tokens
    that a processor looks up by attribute. `settings` end up in the tokenizer's own
    configuration file.
    """
    alphabet = sorted(ByteLevel.alphabet())
    tokenizer = Qwen2Tokenizer(
        vocab={symbol: number for number, symbol in enumerate(alphabet)},
        merges=[],
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        unk_token=END_OF_TEXT,
        extra_special_tokens=named or {},
        **settings,
    )
    markers = [END_OF_TEXT, TURN_START, TURN_END, *special]
    tokenizer.add_tokens(markers, special_tokens=True)
    tokenizer.chat_template = chat_template
    return tokenizer


def chat_template(image: str, video: str, audio: str | None = None) -> str:
    """Returns a Jinja chat template that writes the given text for each media part.

    The loop over a message's content is what makes vLLM hand the parts over as a list
    and keep text and media in the order in which the client sent them.
    """
    markers = [("image", image), ("video", video)]
    if audio is not None:
        markers.append(("audio", audio))
    branches = "".join(
        "{%- elif '" + kind + "' in part['type'] %}{{ '" + text + "' }}"
        for kind, text in markers
    )
    return (
        "{%- for message in messages %}"
        "{{ '" + TURN_START + "' + message['role'] + '\\n' }}"
        "{%- if message['content'] is string %}{{ message['content'] }}"
        "{%- else %}"
        "{%- for part in message['content'] %}"
        "{%- if part['type'] == 'text' %}{{ part['text'] }}"
        + branches
        + "{%- endif %}{%- endfor %}{%- endif %}"
        "{{ '" + TURN_END + "\\n' }}"
        "{%- endfor %}"
        "{%- if add_generation_prompt %}"
        "{{ '" + TURN_START + "assistant\\n' }}"
        "{%- endif %}"
    )
