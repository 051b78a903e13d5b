# SPDX-License-Identifier: Apache-2.0
"""Sounds that decode at once are resampled one after the other."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from tiny.media import wave
from vllm.multimodal import audio
from vllm.multimodal.audio import AudioResampler
from vllm.upstream.multimodal import audio as upstream

PATIENCE = 60
OVERLAP = 0.5
"""Seconds that one waits for another which should not come."""


def sound(seed: int) -> np.ndarray:
    return np.ascontiguousarray(wave(0.2, rate=44100, seed=seed)[:, 0])


@pytest.fixture
def resampler() -> AudioResampler:
    return AudioResampler(target_sr=16000)


def test_it_is_the_default_that_is_kept_apart(resampler: AudioResampler) -> None:
    assert resampler.method == "torchaudio"


def test_one_sound_at_a_time(
    resampler: AudioResampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)
    met: list[bool] = []
    make = upstream._get_torchaudio_resampler

    def resample(samples: torch.Tensor) -> torch.Tensor:
        assert not torch._C._get_mkldnn_enabled()
        try:
            both.wait(OVERLAP)
            met.append(True)
        except threading.BrokenBarrierError:
            met.append(False)
        return make(44100, 16000)(samples)

    monkeypatch.setattr(upstream, "_get_torchaudio_resampler", lambda *_: resample)
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda s: resampled(resampler, s), map(sound, range(2))))
    assert met == [False, False]
    assert torch._C._get_mkldnn_enabled()
    monkeypatch.undo()
    for seed, samples in enumerate(made):
        assert np.array_equal(samples, resampled(resampler, sound(seed)))


def resampled(resampler: AudioResampler, samples: np.ndarray) -> Any:
    return resampler.resample(samples, orig_sr=44100)


def test_a_failure_lets_the_next_one_in(resampler: AudioResampler) -> None:
    with pytest.raises(TypeError):
        resampler.resample(object(), orig_sr=44100)  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(resampled, resampler, sound(0)).result(PATIENCE)
    assert made.shape == (3200,)


def test_a_forked_process_waits_for_no_thread_of_its_parent() -> None:
    with audio._resampling:
        child = os.fork()
        if child == 0:
            os._exit(0 if audio._resampling.acquire(blocking=False) else 1)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
