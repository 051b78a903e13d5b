# SPDX-License-Identifier: Apache-2.0
"""Model families of vLLM, as much of each as its front end needs.

A family is a directory with a configuration, a byte tokenizer and the files of the
processor; there are no weights, because no engine runs. `sweep` renders requests with
each, once with stock vLLM and once with the tree, and `tests/models/test_families.py`
compares what comes out.

What is not here, and why it can't be built without a download or without a package
that vLLM does not bring:

* SmolVLM: its HF processor needs `num2words`. Idefics3, of which it is made, is here.
* MiniCPM-V before 4.6 and MiniCPM-O: their image processor is code in the model's own
  repository. MiniCPM-V 4.6, which transformers has, is here.
* Voxtral, and Pixtral and Mistral 3 in Mistral's own format: they need a Tekken
  vocabulary. The latter two in HF's format are here.
* Kimi K2.5's `split_video_chunks`, which is code in the model's repository: a splitter
  of ours stands in.
* dots3_note's model, which needs a CUDA build: a class with its name and processor
  stands in, and PyAV opens the videos in place of torchcodec.
"""

from tests.models.families import dots3, images, qwen, sound, special
from tests.models.families.family import Family

FAMILIES: dict[str, Family] = {
    family.name: family
    for module in (qwen, images, sound, special, dots3)
    for family in module.FAMILIES
}
