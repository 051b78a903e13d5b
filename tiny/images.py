# SPDX-License-Identifier: Apache-2.0
"""Still images, drawn from a seed and encoded in memory."""

import io
from functools import lru_cache
from typing import Literal

import numpy as np
from PIL import Image

Mode = Literal["RGB", "RGBA", "P", "L", "CMYK"]

# EXIF tag numbers.
ORIENTATION = 0x0112
IMAGE_ID = 0x800D


@lru_cache(maxsize=16)
def scene(width: int, height: int, seed: int = 0) -> np.ndarray:
    """Returns pixels, uint8 of shape (height, width, 3), that compress like a photo.

    Noise of several sizes, the coarse ones strong and the fine ones weak, as in
    pictures of real things; so sizes and decode times are about those of real files.
    720p costs about 0.1 s once. Read-only, because callers share it.
    """
    random = np.random.default_rng(seed)
    total = np.zeros((height, width, 3), np.float32)
    cell, strength = max(width, height) // 2, 60.0
    while cell >= 2:
        coarse = random.uniform(
            -1, 1, (height // cell + 2, width // cell + 2, 3)
        ).astype(np.float32)
        for channel in range(3):
            layer = Image.fromarray(coarse[..., channel])
            grown = layer.resize((width, height), Image.Resampling.BICUBIC)
            total[..., channel] += strength * np.asarray(grown)
        cell, strength = cell // 2, strength * 0.8
    total += random.normal(0, 5, (height, width, 1)).astype(np.float32)
    pixels = np.clip(total + 128, 0, 255).astype(np.uint8)
    pixels.setflags(write=False)
    return pixels


def picture(width: int, height: int, seed: int = 0, mode: Mode = "RGB") -> Image.Image:
    """Returns the scene as a PIL image; with RGBA and P, part of it is transparent."""
    image = Image.fromarray(scene(width, height, seed))
    if mode == "RGBA":
        fade = np.linspace(0, 255, width, dtype=np.uint8)
        image.putalpha(Image.fromarray(np.tile(fade, (height, 1))))
        return image
    if mode == "P":
        return image.quantize(64)
    return image if mode == "RGB" else image.convert(mode)


def jpeg(
    width: int = 1280,
    height: int = 720,
    seed: int = 0,
    quality: int = 85,
    exif_orientation: int | None = None,
    image_id: str | None = None,
    mode: Literal["RGB", "L", "CMYK"] = "RGB",
    progressive: bool = False,
) -> bytes:
    """Returns a JPEG file; 720p at the default quality is about 230 KB.

    `exif_orientation` (1 to 8) and `image_id` (EXIF ImageID) are written as
    tags only: the stored pixels do not turn.
    """
    image = picture(width, height, seed, mode)
    exif = Image.Exif()
    if exif_orientation is not None:
        exif[ORIENTATION] = exif_orientation
    if image_id is not None:
        exif[IMAGE_ID] = image_id
    out = io.BytesIO()
    image.save(
        out,
        "JPEG",
        quality=quality,
        progressive=progressive,
        exif=exif.tobytes() if len(exif) else b"",
    )
    return out.getvalue()


def png(
    width: int = 320, height: int = 240, seed: int = 0, mode: Mode = "RGB"
) -> bytes:
    """Returns a PNG file; P comes with a transparent palette entry (tRNS)."""
    out = io.BytesIO()
    image = picture(width, height, seed, mode)
    if mode == "P":
        image.save(out, "PNG", transparency=0)
    else:
        image.save(out, "PNG")
    return out.getvalue()


def webp(
    width: int = 320,
    height: int = 240,
    seed: int = 0,
    mode: Literal["RGB", "RGBA"] = "RGB",
    lossless: bool = False,
) -> bytes:
    """Returns a still WebP file."""
    out = io.BytesIO()
    picture(width, height, seed, mode).save(out, "WEBP", lossless=lossless)
    return out.getvalue()


def gif(width: int = 160, height: int = 120, seed: int = 0, frames: int = 3) -> bytes:
    """Returns an animated GIF file; with `frames` 1, a still one."""
    first, *rest = (picture(width, height, seed + n, "P") for n in range(frames))
    out = io.BytesIO()
    first.save(
        out, "GIF", save_all=True, append_images=rest, duration=100, optimize=False
    )
    return out.getvalue()


def bmp(width: int = 160, height: int = 120, seed: int = 0) -> bytes:
    """Returns an uncompressed BMP file."""
    out = io.BytesIO()
    picture(width, height, seed).save(out, "BMP")
    return out.getvalue()
