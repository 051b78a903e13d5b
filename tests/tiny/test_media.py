# SPDX-License-Identifier: Apache-2.0
"""The generated media are what their names say, read by the codecs themselves."""

import base64
import io
import subprocess
import sys

import av
import numpy as np
import pytest
import soundfile
from PIL import Image

from tiny import media


def opened(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def test_jpeg_has_the_size_of_a_photo() -> None:
    data = media.jpeg()
    assert 200_000 < len(data) < 300_000
    image = opened(data)
    assert (image.format, image.size, image.mode) == ("JPEG", (1280, 720), "RGB")


def test_jpeg_tags() -> None:
    name = "7a6ad0f0-5a3c-4ef2-9f0e-1f6f2f0c9a11"
    exif = opened(media.jpeg(64, 48, exif_orientation=6, image_id=name)).getexif()
    assert exif[0x0112] == 6
    assert exif[0x800D] == name
    assert not opened(media.jpeg(64, 48)).getexif()


@pytest.mark.parametrize(
    ("data", "kind", "mode"),
    [
        (media.jpeg(64, 48, mode="L"), "JPEG", "L"),
        (media.jpeg(64, 48, mode="CMYK"), "JPEG", "CMYK"),
        (media.png(64, 48), "PNG", "RGB"),
        (media.png(64, 48, mode="RGBA"), "PNG", "RGBA"),
        (media.png(64, 48, mode="P"), "PNG", "P"),
        (media.webp(64, 48), "WEBP", "RGB"),
        (media.webp(64, 48, mode="RGBA"), "WEBP", "RGBA"),
        (media.bmp(64, 48), "BMP", "RGB"),
    ],
)
def test_image_formats_and_modes(data: bytes, kind: str, mode: str) -> None:
    image = opened(data)
    assert (image.format, image.mode, image.size) == (kind, mode, (64, 48))


def test_transparency() -> None:
    assert opened(media.png(64, 48, mode="P")).info["transparency"] == 0
    low, high = opened(media.png(64, 48, mode="RGBA")).getchannel("A").getextrema()
    assert (low, high) == (0, 255)


def test_gif_moves() -> None:
    assert getattr(opened(media.gif(frames=3)), "n_frames", 1) == 3


def test_seeds_give_different_pictures() -> None:
    assert media.jpeg(64, 48) == media.jpeg(64, 48)
    assert media.jpeg(64, 48) != media.jpeg(64, 48, seed=1)


def test_video_moves_and_sounds() -> None:
    data = media.video(320, 240, seconds=1.0, audio=True)
    with av.open(io.BytesIO(data), "r") as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "h264"
        assert float(stream.average_rate or 0) == 30
        frames = [
            frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)
        ]
    assert len(frames) == 30
    assert frames[0].shape == (240, 320, 3)
    assert np.abs(frames[0].astype(int) - frames[-1]).mean() > 10
    with av.open(io.BytesIO(data), "r") as container:
        samples = sum(frame.samples for frame in container.decode(audio=0))
    assert 16000 <= samples <= 16000 + 2 * 1024


def test_video_is_silent_unless_asked() -> None:
    with av.open(io.BytesIO(media.video(320, 240, seconds=0.2))) as container:
        assert not container.streams.audio


def test_video_edges() -> None:
    with av.open(io.BytesIO(media.one_frame_video()), "r") as container:
        assert len(list(container.decode(video=0))) == 1
    with av.open(io.BytesIO(media.video_without_picture()), "r") as container:
        assert not container.streams.video
        assert list(container.decode(audio=0))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (media.audio_wav(0.5, 8000, 2), "WAV"),
        (media.audio_flac(0.5, 8000, 2), "FLAC"),
        (media.audio_ogg(0.5, 8000, 2), "OGG"),
        (media.audio_mp3(0.5, 8000, 2), "MP3"),
    ],
)
def test_audio_formats(data: bytes, kind: str) -> None:
    with soundfile.SoundFile(io.BytesIO(data)) as sound:
        assert (sound.format, sound.samplerate, sound.channels) == (kind, 8000, 2)
        samples = sound.read()
    assert len(samples) == pytest.approx(4000, abs=2304)
    assert 0.1 < np.abs(samples).max() <= 1
    assert not np.allclose(samples[:, 0], samples[:, 1], atol=0.05)


def test_audio_edges() -> None:
    assert len(soundfile.read(io.BytesIO(media.silent_wav()))[0]) == 0
    assert soundfile.read(io.BytesIO(media.eight_channel_wav()))[0].shape == (16000, 8)


def test_truncated_keeps_the_header_only() -> None:
    image = Image.open(io.BytesIO(media.truncated(media.jpeg(320, 240))))
    assert image.size == (320, 240)
    with pytest.raises(OSError, match="truncated"):
        image.load()


def test_huge_png_only_claims_to_be() -> None:
    data = media.huge_png(9000, 9000)
    assert len(data) < 1000
    assert Image.open(io.BytesIO(data)).size == (9000, 9000)
    with pytest.raises(Image.DecompressionBombError):
        Image.open(io.BytesIO(media.huge_png()))


def test_noise_is_no_medium() -> None:
    with pytest.raises(Image.UnidentifiedImageError):
        Image.open(io.BytesIO(media.noise()))
    with pytest.raises(av.error.InvalidDataError):
        av.open(io.BytesIO(media.noise()))


def test_mislabelled() -> None:
    data, media_type = media.mislabelled()
    assert opened(data).format == "JPEG"
    assert media_type == "image/png"


def test_data_url() -> None:
    head, _, body = media.data_url(b"abc", "image/png").partition(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(body) == b"abc"


def test_another_process_draws_the_same_bytes() -> None:
    code = (
        "import sys; from tiny import media; sys.stdout.buffer.write("
        "media.jpeg(64, 48) + media.video(64, 48, 0.2) + media.audio_wav(0.1))"
    )
    theirs = subprocess.run(
        [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE
    ).stdout
    ours = media.jpeg(64, 48) + media.video(64, 48, 0.2) + media.audio_wav(0.1)
    assert theirs == ours
