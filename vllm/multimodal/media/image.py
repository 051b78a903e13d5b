# SPDX-License-Identifier: Apache-2.0
"""Images: the header is read at once, the pixels when they are wanted."""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BytesIO

from PIL import Image, UnidentifiedImageError

import vllm.envs as envs
from vllm.multimodal.image import normalize_image
from vllm.upstream.multimodal.media import image as upstream

from .base import DecodeSpec, MediaRef, derive_media_key, digest_chunks
from .known_headers import KnownHeaders

ImageEmbeddingMediaIO = upstream.ImageEmbeddingMediaIO

_ICO = b"\0\0\1\0"

# How an EXIF entry begins that holds an ImageID as text, in either byte order, and
# where it is as a rule. An image that has it elsewhere costs one sha256 more, which
# it would have been spared otherwise.
_IMAGE_ID_ENTRIES = (b"\x80\x0d\x00\x02", b"\x0d\x80\x02\x00")
_BEFORE_PIXELS = 4096

# Of images without an ImageID.
known_headers = KnownHeaders(16384)


class ImageMediaIO(upstream.ImageMediaIO):
    """Decodes an image to `PIL.Image.Image`, upright and in `image_mode`.

    Args:
        image_mode: The Pillow mode of the result; None keeps the file's own.
        rgba_background_color: What shows through where a transparent image is
            decoded to RGB; three integers in [0, 255], white by default.
    """

    def get_decode_spec(self) -> DecodeSpec:
        return self._decode_spec(
            ImageMediaIO,
            {k: v for k, v in self.kwargs.items() if k != "rgba_background_color"},
            image_mode=self.image_mode,
            rgba_background_color=self.rgba_background_color,
        )

    def load_bytes(self, data: bytes) -> Image.Image:
        """The image, fully decoded.

        Raises:
            ValueError: It is no image, is broken, or has more pixels than
                `VLLM_MAX_IMAGE_PIXELS`.
        """
        with _failing_as_value_error():
            return self._decode(_open(data))

    def _decode(self, image: Image.Image) -> Image.Image:
        image = normalize_image(image)
        image.load()
        return self._convert_image_mode(image)

    def load_bytes_ref(self, data: bytes) -> MediaRef[Image.Image]:
        """A ref to the image in `data`, its header read and no pixel decoded.

        Costs one sha256 of `data` unless an EXIF ImageID stands for it, and the
        header unless it has been read before.

        Raises:
            ValueError: The header tells of more pixels than
                `VLLM_MAX_IMAGE_PIXELS`. A header that can't be read raises
                nothing here but fails `decode()`.
        """
        spec = self.get_decode_spec()
        decode: Callable[[], Image.Image] = partial(self.load_bytes, data)
        if data.startswith(_ICO):
            # Pillow decodes an icon to open it, so even its size has to wait.
            return MediaRef(decode, data, spec)
        trusted = _trusts_image_id()
        key = None
        if not (trusted and _seems_to_have_image_id(data)):
            key = derive_media_key(data, spec)
            if _is_known(key):
                return MediaRef(decode, data, spec, key=key)
        try:
            image = _open(data)
        except _TooLarge:
            raise
        except Exception:
            # Whatever is wrong with it is told where other broken images are:
            # by the decode, which fails in the same way.
            return MediaRef(decode, data, spec, key=key)
        if not self._overrides(ImageMediaIO, "load_bytes"):
            decode = _HeldImageDecode(self, data, image)
        image_id = _image_id(image)
        if trusted and image_id is not None:
            key = _image_id_key(image_id, spec)
        ref = MediaRef(decode, data, spec, key=key)
        if image_id is None:
            known_headers.add(ref.key, image.width * image.height)
        return ref

    def reads_base64_text(self, media_type: str) -> bool:
        # Pillow goes by the content, so `media_type` identifies nothing.
        return self._overrides(ImageMediaIO, "load_base64")


class _TooLarge(ValueError):
    """More pixels than this server decodes."""


class _HeldImageDecode:
    """Decodes the image whose header has been read already.

    An image object that failed halfway may not start over cleanly, so each attempt
    after the first opens the bytes anew.
    """

    def __init__(self, io: ImageMediaIO, data: bytes, image: Image.Image) -> None:
        self._io = io
        self._data = data
        self._image: Image.Image | None = image

    def __call__(self) -> Image.Image:
        image, self._image = self._image, None
        if image is None:
            return self._io.load_bytes(self._data)
        with _failing_as_value_error():
            return self._io._decode(image)


@contextmanager
def _failing_as_value_error() -> Iterator[None]:
    """What Pillow raises for a broken image, as the ValueError that vLLM knows."""
    try:
        yield
    except (OSError, UnidentifiedImageError, SyntaxError) as e:
        raise ValueError(f"Failed to load image: {e}") from e


def _open(data: bytes) -> Image.Image:
    """The image with its header read. `_TooLarge` where it tells of too many pixels."""
    try:
        image = Image.open(BytesIO(data))
    except Image.DecompressionBombError as e:
        # Pillow has a limit of its own, above which it reads no header.
        raise _TooLarge(f"Image is too large: {e}") from e
    width, height = image.size
    if not _is_within_limit(width * height):
        raise _TooLarge(
            f"Image dimensions {width}x{height} ({width * height} pixels) exceed "
            f"the maximum of {envs.VLLM_MAX_IMAGE_PIXELS} pixels. Set "
            "VLLM_MAX_IMAGE_PIXELS to increase this limit."
        )
    return image


def _is_within_limit(pixels: int) -> bool:
    limit = envs.VLLM_MAX_IMAGE_PIXELS
    return limit <= 0 or pixels <= limit


def _is_known(key: bytes) -> bool:
    """Whether the image has been opened before, and opening it again would neither
    raise nor give another key."""
    pixels = known_headers.pixels(key)
    return pixels is not None and _is_within_limit(pixels)


def _seems_to_have_image_id(data: bytes) -> bool:
    return any(data.find(entry, 0, _BEFORE_PIXELS) >= 0 for entry in _IMAGE_ID_ENTRIES)


def _trusts_image_id() -> bool:
    return os.environ.get("VLLM_TRUST_EXIF_IMAGE_ID", "1") != "0"


def _image_id(image: Image.Image) -> uuid.UUID | None:
    """The ImageID in the file's EXIF, if it is a UUID.

    Never rasterizes, and never raises.
    """
    # Pillow looks for a PNG's EXIF behind the pixels, and decodes them to get there.
    if image.format == "PNG" and "exif" not in image.info:
        return None
    try:
        return _as_uuid(image.getexif().get(Image.ExifTags.Base.ImageID))
    except Exception:
        # Broken EXIF says nothing of the picture, which may still be fine.
        return None


def _image_id_key(image_id: uuid.UUID, spec: DecodeSpec) -> bytes:
    # The first chunk keeps an ID apart from a payload of the same 16 bytes.
    return digest_chunks((b"exif-image-id", image_id.bytes, spec.canonical_bytes()))


def _as_uuid(value: object) -> uuid.UUID | None:
    """A UUID from what EXIF can hold: text, in a file; the object, in memory."""
    if isinstance(value, uuid.UUID):
        return value
    if isinstance(value, bytes):
        value = value.rstrip(b"\0").decode("ascii")
    if isinstance(value, str):
        try:
            return uuid.UUID(value.strip())
        except ValueError:
            return None
    return None
