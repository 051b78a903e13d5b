# SPDX-License-Identifier: Apache-2.0
"""Sound decodes as stock vLLM decodes it; its encoded size is checked at once."""

import base64
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny.media import (
    EMPTY,
    audio_flac,
    audio_mp3,
    audio_ogg,
    audio_wav,
    eight_channel_wav,
    jpeg,
    noise,
    silent_wav,
    truncated,
    video,
    video_without_picture,
)
from vllm.exceptions import VLLMValidationError
from vllm.multimodal.media import AudioMediaIO
from vllm.upstream.multimodal.media import audio as upstream

MIB = 1 << 20


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> int:
    """The largest size that a clip may have, in bytes."""
    monkeypatch.setenv("VLLM_MAX_AUDIO_CLIP_FILESIZE_MB", "1")
    return MIB


def assert_as_stock(data: bytes, **settings: Any) -> None:
    """Equal samples and rate, or a failure of the same type in both."""
    ref = AudioMediaIO(**settings).load_bytes_ref(data)
    try:
        expected = upstream.AudioMediaIO(**settings).load_bytes(data)
    except Exception as e:
        with pytest.raises(type(e)):
            ref.decode()
        return
    samples, rate = ref.decode()
    assert rate == expected[1]
    assert samples.dtype == expected[0].dtype
    assert np.array_equal(samples, expected[0])


@pytest.mark.parametrize(
    "data",
    [
        audio_wav(0.2),
        audio_wav(0.2, rate=44100, channels=2),
        audio_wav(0.2, subtype="FLOAT"),
        audio_wav(0.2, subtype="PCM_24"),
        audio_flac(0.2, channels=2),
        audio_ogg(0.2),
        audio_mp3(0.2, rate=22050),
        video(64, 64, 0.5, audio=True),
        video_without_picture(0.5),
    ],
    ids=["wav", "stereo", "float", "24bit", "flac", "ogg", "mp3", "mp4", "m4a"],
)
def test_decodes_as_stock(data: bytes) -> None:
    assert_as_stock(data)
    samples, rate = AudioMediaIO().load_bytes_ref(data).decode()
    assert samples.ndim == 1
    assert samples.size > 0
    assert rate > 0


@pytest.mark.parametrize("backend", ["auto", "soundfile", "pyav"])
def test_decodes_as_stock_with_each_backend(backend: str) -> None:
    assert_as_stock(audio_wav(0.2, channels=2), audio_backend=backend)


@pytest.mark.parametrize(
    "data",
    [
        EMPTY,
        noise(),
        jpeg(32, 32),
        truncated(audio_wav(0.2)),
        truncated(audio_flac(0.2)),
        truncated(audio_mp3(0.2)),
        truncated(video(64, 64, 0.5, audio=True)),
        video(64, 64, 0.5),
        silent_wav(),
        eight_channel_wav(0.2),
        audio_wav(0.2)[:44],
        audio_wav(0.2)[:20],
    ],
    ids=[
        "empty",
        "noise",
        "picture",
        "cut-wav",
        "cut-flac",
        "cut-mp3",
        "cut-mp4",
        "no-sound",
        "no-samples",
        "eight-channels",
        "header-only",
        "half-header",
    ],
)
def test_ugly_input_is_told_by_the_decode_and_as_stock(data: bytes) -> None:
    assert_as_stock(data)


def test_what_is_longer_than_allowed_fails_the_decode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_MAX_AUDIO_DECODE_DURATION_S", "1")
    ref = AudioMediaIO().load_bytes_ref(audio_wav(1.5))
    with pytest.raises(ValueError, match="maximum allowed duration"):
        ref.decode()


def test_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        AudioMediaIO(audio_backend="nonsense")


def test_bytes_over_the_size_limit_are_refused_at_once(limited: int) -> None:
    io = AudioMediaIO()
    assert io.get_max_bytes() == limited
    io.load_bytes_ref(bytes(limited))
    with pytest.raises(VLLMValidationError, match="size exceeded"):
        io.load_bytes_ref(bytes(limited + 1))


@pytest.mark.parametrize("over", [1, 2, 3, 4, 1000])
def test_base64_over_the_size_limit_is_refused_at_once(limited: int, over: int) -> None:
    io = AudioMediaIO()
    fits = base64.b64encode(bytes(limited)).decode()
    assert len(io.load_base64_ref("audio/wav", fits).data) == limited
    too_large = base64.b64encode(bytes(limited + over)).decode()
    with pytest.raises(VLLMValidationError, match="size exceeded"):
        io.load_base64_ref("audio/wav", too_large)


def test_base64_that_is_clearly_too_large_is_not_decoded(limited: int) -> None:
    # Not even base64, which would be a ValueError of another kind.
    with pytest.raises(VLLMValidationError, match="size exceeded"):
        AudioMediaIO().load_base64_ref("audio/wav", "!" * (limited * 2))


def test_file_over_the_size_limit_is_not_read(
    limited: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits, too_large = tmp_path / "fits", tmp_path / "too-large"
    fits.write_bytes(bytes(limited))
    too_large.write_bytes(bytes(limited + 1))
    read: list[str] = []
    original = Path.open

    def watched(self: Path, *args: Any, **kwargs: Any) -> Any:
        read.append(self.name)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", watched)
    assert len(AudioMediaIO().load_file_ref(fits).data) == limited
    assert read == ["fits"]
    with pytest.raises(VLLMValidationError, match="size exceeded"):
        AudioMediaIO().load_file_ref(too_large)
    assert read == ["fits"]


@pytest.mark.parametrize("decoded", [False, True])
def test_nothing_holds_the_bytes_after_release(decoded: bool) -> None:
    data = bytes(bytearray(audio_wav(0.1)))
    alone = sys.getrefcount(data)
    ref = AudioMediaIO().load_bytes_ref(data)
    media = ref.decode() if decoded else None
    assert sys.getrefcount(data) > alone
    ref.release()
    assert sys.getrefcount(data) == alone
    assert ref.is_decoded == (media is not None)


def test_base64_text_is_not_held(tmp_path: Path) -> None:
    text = base64.b64encode(audio_wav(0.1)).decode()
    alone = sys.getrefcount(text)
    ref = AudioMediaIO().load_base64_ref("audio/wav", text)
    assert sys.getrefcount(text) == alone
    assert ref.data == audio_wav(0.1)
