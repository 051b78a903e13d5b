# SPDX-License-Identifier: Apache-2.0
"""`LLM.generate` and `LLM.chat` with every form in which media may be given."""

import io

import numpy as np
import pytest
from PIL import Image

from tiny import media, models

pytestmark = pytest.mark.engine

IMAGE = media.jpeg(320, 240, seed=11)
VIDEO = media.video(320, 240, 1, 15, seed=11)
AUDIO = media.audio_wav(1, 44100, 2, seed=11)

PROMPTS = {
    "image": "<|vision_bos|><|IMAGE|><|vision_eos|>What?",
    "video": "<|vision_bos|><|VIDEO|><|vision_eos|>What?",
    "audio": "<|audio_bos|><|AUDIO|><|audio_eos|>What?",
}


@pytest.fixture(scope="module")
def llm():
    from vllm import LLM

    llm = LLM(
        str(models.build_omni()),
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=4096,
        kv_cache_memory_bytes=268435456,
        max_num_seqs=4,
        limit_mm_per_prompt={"image": 4, "video": 4, "audio": 4},
    )
    yield llm
    del llm


@pytest.fixture
def params():
    from vllm import SamplingParams

    return SamplingParams(max_tokens=1, temperature=0)


@pytest.fixture
def generate(llm, params):
    def run(modality, item):
        prompt = {"prompt": PROMPTS[modality], "multi_modal_data": {modality: item}}
        (output,) = llm.generate(prompt, params, use_tqdm=False)
        return len(output.prompt_token_ids), output.outputs[0].text

    return run


def refs():
    """A ref of each modality, as the serving path would make it."""
    from vllm.multimodal.media import AudioMediaIO, ImageMediaIO, VideoMediaIO

    return {
        "image": ImageMediaIO().load_bytes_ref(IMAGE),
        "video": VideoMediaIO(ImageMediaIO()).load_bytes_ref(VIDEO),
        "audio": AudioMediaIO().load_bytes_ref(AUDIO),
    }


def test_image_in_every_form(generate):
    picture = Image.open(io.BytesIO(IMAGE)).convert("RGB")
    answers = {
        generate("image", picture),
        generate("image", np.asarray(picture)),
        generate("image", refs()["image"]),
    }
    assert len(answers) == 1


def test_video_in_every_form(generate):
    frames, metadata = refs()["video"].decode()
    answers = {
        generate("video", frames),
        generate("video", (frames, metadata)),
        generate("video", refs()["video"]),
    }
    assert len(answers) == 1


def test_audio_in_every_form(generate):
    samples, rate = refs()["audio"].decode()
    assert generate("audio", (samples, rate)) == generate("audio", refs()["audio"])


@pytest.mark.parametrize("modality", PROMPTS)
def test_same_ref_in_two_calls(modality, llm, generate):
    ref = refs()[modality]
    first = generate(modality, ref)
    assert generate(modality, ref) == first
    # The second time it can't come from the cache.
    llm.reset_mm_cache()
    assert generate(modality, ref) == first
    assert ref.data


def test_fetched_offline(generate):
    from vllm.multimodal.utils import fetch_audio, fetch_image, fetch_video

    image = fetch_image(media.data_url(IMAGE, "image/jpeg"))
    video = fetch_video(media.data_url(VIDEO, "video/mp4"))
    audio = fetch_audio(media.data_url(AUDIO, "audio/wav"))
    for modality, item in (("image", image), ("video", video), ("audio", audio)):
        assert generate(modality, item) == generate(modality, refs()[modality])


@pytest.mark.parametrize("modality", PROMPTS)
def test_chat_with_a_url(modality, llm, params):
    data = {"image": IMAGE, "video": VIDEO, "audio": AUDIO}[modality]
    mime = {"image": "image/jpeg", "video": "video/mp4", "audio": "audio/wav"}[modality]
    part = {
        "type": f"{modality}_url",
        f"{modality}_url": {"url": media.data_url(data, mime)},
    }
    messages = [
        {"role": "user", "content": [part, {"type": "text", "text": "What is this?"}]}
    ]
    answers = set()
    for _ in range(2):
        (output,) = llm.chat(messages, params, use_tqdm=False)
        answers.add((len(output.prompt_token_ids), output.outputs[0].text))
    assert len(answers) == 1


def test_chat_with_a_pil_image(llm, params):
    picture = Image.open(io.BytesIO(IMAGE)).convert("RGB")
    content = [
        {"type": "image_pil", "image_pil": picture},
        {"type": "text", "text": "What is this?"},
    ]
    (output,) = llm.chat([{"role": "user", "content": content}], params, use_tqdm=False)
    assert output.outputs[0].token_ids


def test_broken_media_names_the_item_and_the_next_call_works(llm, generate):
    from vllm.exceptions import VLLMUnprocessableEntityError
    from vllm.multimodal.media import ImageMediaIO

    broken = ImageMediaIO().load_bytes_ref(media.truncated(IMAGE))
    with pytest.raises(VLLMUnprocessableEntityError, match="image at index 0"):
        generate("image", broken)
    assert generate("image", refs()["image"])
