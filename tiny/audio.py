# SPDX-License-Identifier: Apache-2.0
"""Sound, computed from a seed and encoded in memory."""

import io
from functools import lru_cache

import numpy as np
import soundfile


def wave(
    seconds: float, rate: int = 16000, channels: int = 1, seed: int = 0
) -> np.ndarray:
    """Returns samples, float32 of shape (samples, channels), within -1 to 1.

    Gliding tones with overtones and a little noise, different in each channel, so
    that features are not constant and a mix-down can be told from a channel.
    """
    random = np.random.default_rng(seed)
    time = np.arange(round(seconds * rate), dtype=np.float64) / rate
    samples = np.empty((len(time), channels), np.float32)
    for channel in range(channels):
        low, depth, speed = random.uniform([120, 5, 0.5], [400, 40, 3])
        phase = 2 * np.pi * low * time - depth / speed * np.cos(
            2 * np.pi * speed * time
        )
        tone = sum(np.sin(phase * overtone) / overtone for overtone in (1, 2, 3))
        noise = random.normal(0, 0.02, len(time))
        samples[:, channel] = 0.4 * tone + noise
    return np.clip(samples, -1, 1)


def _encoded(samples: np.ndarray, rate: int, container: str, subtype: str) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format=container, subtype=subtype)
    return out.getvalue()


def audio_wav(
    seconds: float = 2.0,
    rate: int = 16000,
    channels: int = 1,
    seed: int = 0,
    subtype: str = "PCM_16",
) -> bytes:
    """Returns a WAV file; `subtype` is libsndfile's name of the sample format."""
    return _encoded(wave(seconds, rate, channels, seed), rate, "WAV", subtype)


def audio_flac(
    seconds: float = 2.0, rate: int = 16000, channels: int = 1, seed: int = 0
) -> bytes:
    """Returns a FLAC file: the samples of `audio_wav`, losslessly."""
    return _encoded(wave(seconds, rate, channels, seed), rate, "FLAC", "PCM_16")


@lru_cache(maxsize=8)
def audio_ogg(
    seconds: float = 2.0, rate: int = 16000, channels: int = 1, seed: int = 0
) -> bytes:
    """Returns an Ogg Vorbis file.

    The only one whose bytes differ from process to process: libsndfile draws the
    stream's serial number. The cache makes them the same within one.
    """
    return _encoded(wave(seconds, rate, channels, seed), rate, "OGG", "VORBIS")


def audio_mp3(
    seconds: float = 2.0, rate: int = 16000, channels: int = 1, seed: int = 0
) -> bytes:
    """Returns an MP3 file; at most two channels."""
    samples = wave(seconds, rate, channels, seed)
    return _encoded(samples, rate, "MP3", "MPEG_LAYER_III")
