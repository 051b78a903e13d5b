# SPDX-License-Identifier: Apache-2.0
"""Images: the header is read when the ref is made, the pixels when it decodes."""

import base64
import io
import struct
import sys
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps, features

from tiny.images import IMAGE_ID, ORIENTATION
from tiny.media import (
    EMPTY,
    audio_wav,
    bmp,
    gif,
    huge_png,
    jpeg,
    mislabelled,
    noise,
    picture,
    png,
    truncated,
    video,
    webp,
)
from vllm.multimodal.media import DecodeSpec, ImageMediaIO, derive_media_key
from vllm.multimodal.media.image import known_headers
from vllm.upstream.multimodal.media import image as upstream

ID = "12345678-1234-5678-1234-567812345678"


def saved(format: str, mode: str = "RGB", **options: Any) -> bytes:
    out = io.BytesIO()
    picture(48, 32).convert(mode).save(out, format, **options)
    return out.getvalue()


def exif(**tags: Any) -> Image.Exif:
    made = Image.Exif()
    numbers = {"image_id": IMAGE_ID, "orientation": ORIENTATION}
    for name, value in tags.items():
        made[numbers[name]] = value
    return made


def chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return (
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
    )


def png_with_exif(before: bytes, image_id: str = ID) -> bytes:
    """A PNG whose eXIf chunk stands before the first chunk named `before`."""
    plain = png(48, 32)
    place = plain.index(before) - 4
    # A PNG has the TIFF structure without the prefix of a JPEG segment.
    content = exif(image_id=image_id).tobytes().removeprefix(b"Exif\0\0")
    return plain[:place] + chunk(b"eXIf", content) + plain[place:]


def interlaced_png(width: int = 16, height: int = 16) -> bytes:
    pixels = np.asarray(picture(width, height))
    passes = [
        (0, 0, 8, 8),
        (0, 4, 8, 8),
        (4, 0, 8, 4),
        (0, 2, 4, 4),
        (2, 0, 4, 2),
        (0, 1, 2, 2),
        (1, 0, 2, 1),
    ]
    rows = b"".join(
        b"\0" + row.tobytes()
        for top, left, down, right in passes
        for row in pixels[top::down, left::right]
    )
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 1)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def tagged(format: str, image_id: str = ID) -> bytes:
    """An image in `format` that claims `image_id`."""
    if format == "PNG":
        return png_with_exif(b"IDAT", image_id)
    return saved(format, exif=exif(image_id=image_id).tobytes())


AVIF = pytest.mark.skipif(not features.check("avif"), reason="Pillow without AVIF")

KINDS = {
    "jpeg": lambda: jpeg(48, 32),
    "jpeg-progressive": lambda: jpeg(48, 32, progressive=True),
    "jpeg-grey": lambda: jpeg(48, 32, mode="L"),
    "jpeg-cmyk": lambda: jpeg(48, 32, mode="CMYK"),
    "jpeg-rotated": lambda: jpeg(48, 32, exif_orientation=6),
    "png": lambda: png(48, 32),
    "png-rgba": lambda: png(48, 32, mode="RGBA"),
    "png-palette": lambda: png(48, 32, mode="P"),
    "png-grey": lambda: png(48, 32, mode="L"),
    "png-grey-alpha": lambda: saved("PNG", "LA"),
    "png-one-bit": lambda: saved("PNG", "1"),
    "png-interlaced": interlaced_png,
    "png-exif": lambda: png_with_exif(b"IDAT"),
    "png-late-exif": lambda: png_with_exif(b"IEND"),
    "webp": lambda: webp(48, 32),
    "webp-rgba": lambda: webp(48, 32, mode="RGBA", lossless=True),
    "gif-animated": lambda: gif(48, 32),
    "gif-still": lambda: gif(48, 32, frames=1),
    "tiff": lambda: saved("TIFF"),
    "tiff-rotated": lambda: saved("TIFF", exif=exif(orientation=3)),
    "tiff-deflate": lambda: saved("TIFF", compression="tiff_deflate"),
    "bmp": lambda: bmp(48, 32),
    "ico": lambda: saved("ICO", sizes=[(32, 32)]),
    "ppm": lambda: saved("PPM"),
    "mpo": lambda: saved("MPO"),
    "jpeg2000": lambda: saved("JPEG2000"),
    "avif": lambda: saved("AVIF"),
}
EACH_KIND = pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name, marks=[AVIF] if name == "avif" else [])
        for name, make in KINDS.items()
    ],
)


@pytest.fixture(autouse=True)
def no_known_header() -> None:
    known_headers.clear()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[io.BytesIO]:
    """The files whose header Pillow reads, in order."""
    files: list[io.BytesIO] = []
    original = Image.open
    monkeypatch.setattr(
        Image, "open", lambda file: files.append(file) or original(file)
    )
    return files


# Never rasterized early


@EACH_KIND
def test_making_a_ref_decodes_no_pixel(
    make: Callable[[], bytes], rasterized: list[str]
) -> None:
    data = make()
    rasterized.clear()
    ref = ImageMediaIO().load_bytes_ref(data)
    repr(ref)
    assert rasterized == []
    ref.decode()
    # Shows that the watch sees this kind.
    assert rasterized != []


def test_the_watch_sees_the_trap_of_png(rasterized: list[str]) -> None:
    image = Image.open(io.BytesIO(png(48, 32)))
    rasterized.clear()
    image.getexif()
    assert rasterized != []


def test_header_is_read_once(opened: list[io.BytesIO]) -> None:
    ref = ImageMediaIO().load_bytes_ref(jpeg(48, 32))
    assert len(opened) == 1
    ref.decode()
    assert len(opened) == 1


# Those with an ImageID are known by it.
@pytest.mark.parametrize(
    "kind", sorted(KINDS.keys() - {"avif", "png-exif", "png-late-exif"})
)
def test_known_header_is_left_to_the_decode(
    kind: str, opened: list[io.BytesIO]
) -> None:
    data = KINDS[kind]()
    first = ImageMediaIO().load_bytes_ref(data)
    opened.clear()
    again = ImageMediaIO().load_bytes_ref(bytes(bytearray(data)))
    assert opened == []
    assert again.key == first.key
    assert again.decode().tobytes() == first.decode().tobytes()


def test_other_settings_read_the_header_anew(opened: list[io.BytesIO]) -> None:
    data = jpeg(48, 32)
    ImageMediaIO().load_bytes_ref(data)
    ImageMediaIO("L").load_bytes_ref(data)
    assert len(opened) == 2


def test_known_header_of_broken_pixels_fails_each_decode() -> None:
    data = truncated(jpeg(256, 256))
    for _ in range(2):
        ref = ImageMediaIO().load_bytes_ref(data)
        with pytest.raises(ValueError, match="Failed to load image"):
            ref.decode()


def test_known_header_is_held_to_the_limit_of_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = jpeg(48, 32)
    ImageMediaIO().load_bytes_ref(data)
    monkeypatch.setenv("VLLM_MAX_IMAGE_PIXELS", "1535")
    with pytest.raises(ValueError, match="Image dimensions 48x32"):
        ImageMediaIO().load_bytes_ref(data)
    monkeypatch.setenv("VLLM_MAX_IMAGE_PIXELS", "1536")
    ImageMediaIO().load_bytes_ref(data)


# As stock


def assert_as_stock(data: bytes, **settings: Any) -> None:
    decoded = ImageMediaIO(**settings).load_bytes_ref(data).decode()
    expected = upstream.ImageMediaIO(**settings).load_bytes(data).media
    assert isinstance(decoded, Image.Image)
    assert decoded.mode == expected.mode
    assert decoded.size == expected.size
    assert decoded.tobytes() == expected.tobytes()
    assert decoded.getpalette() == expected.getpalette()


@EACH_KIND
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"image_mode": None},
        {"image_mode": "L"},
        {"image_mode": "RGBA"},
        {"rgba_background_color": (10, 200, 30)},
    ],
    ids=["default", "as-is", "grey", "alpha", "background"],
)
def test_decodes_as_stock(make: Callable[[], bytes], settings: dict[str, Any]) -> None:
    assert_as_stock(make(), **settings)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied_as_stock(orientation: int) -> None:
    data = jpeg(48, 32, exif_orientation=orientation)
    assert_as_stock(data)
    decoded = ImageMediaIO().load_bytes_ref(data).decode()
    assert decoded.size == ((48, 32) if orientation < 5 else (32, 48))


def test_transparent_parts_take_the_background() -> None:
    ref = ImageMediaIO(rgba_background_color=[0, 255, 0]).load_bytes_ref(
        png(48, 32, mode="RGBA")
    )
    assert ref.decode().getpixel((0, 0)) == (0, 255, 0)


def test_animation_gives_its_first_frame() -> None:
    first = ImageMediaIO().load_bytes_ref(gif(48, 32, frames=1)).decode()
    decoded = ImageMediaIO().load_bytes_ref(gif(48, 32, frames=3)).decode()
    assert decoded.tobytes() == first.tobytes()


def test_every_way_in_decodes_alike(tmp_path: Path) -> None:
    data = png(48, 32, mode="RGBA")
    path = tmp_path / "image"
    path.write_bytes(data)
    text = base64.b64encode(data).decode()
    decoder = ImageMediaIO()
    expected = upstream.ImageMediaIO().load_bytes(data).media.tobytes()
    for decoded in (
        decoder.load_bytes(data),
        decoder.load_base64("image/jpeg", text),
        decoder.load_file(path),
        decoder.load_bytes_ref(data).decode(),
        decoder.load_base64_ref("image/jpeg", text).decode(),
        decoder.load_file_ref(path).decode(),
    ):
        assert type(decoded) is Image.Image
        assert decoded.tobytes() == expected


def broken() -> Iterator[tuple[str, bytes]]:
    yield "empty", EMPTY
    yield "noise", noise()
    yield "wav", audio_wav(0.1)
    yield "mp4", video(64, 64, 0.2)
    yield "mislabelled", mislabelled()[0]
    yield "svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>"
    for name, make in KINDS.items():
        if name == "avif" and not features.check("avif"):
            continue
        whole = make()
        yield f"{name}-half", truncated(whole)
        yield f"{name}-header", whole[:16]
        yield f"{name}-late", truncated(whole, 0.98)
        yield f"{name}-garbled", whole[: len(whole) // 2] + noise(len(whole) // 2)
    yield "png-checksum", png(48, 32).replace(b"IDAT", b"IDAX")
    yield "broken-exif", jpeg_with_broken_exif()


def jpeg_with_broken_exif() -> bytes:
    data = jpeg(48, 32, image_id=ID)
    place = data.index(b"Exif\0\0") + 6
    return data[:place] + b"\xff" * 12 + data[place + 12 :]


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize(
    "data", [pytest.param(data, id=name) for name, data in broken()]
)
def test_ugly_input_is_told_by_the_decode_and_as_stock(data: bytes) -> None:
    ref = ImageMediaIO().load_bytes_ref(data)
    try:
        expected = upstream.ImageMediaIO().load_bytes(data).media
    except Exception as e:
        with pytest.raises((type(e), ValueError)):
            ref.decode()
    else:
        assert ref.decode().tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    "data", [EMPTY, noise(), png(48, 32)[:16], audio_wav(0.1)], ids=len
)
def test_unreadable_header_fails_the_decode_with_value_error(data: bytes) -> None:
    ref = ImageMediaIO().load_bytes_ref(data)
    assert ref.key == derive_media_key(data, ref.spec)
    for _ in range(2):
        with pytest.raises(ValueError, match="Failed to load image"):
            ref.decode()


@pytest.mark.parametrize("make", [lambda: jpeg(256, 256), lambda: png(256, 256)])
def test_broken_pixels_fail_every_decode(make: Callable[[], bytes]) -> None:
    ref = ImageMediaIO().load_bytes_ref(truncated(make()))
    messages = []
    for _ in range(3):
        with pytest.raises(ValueError, match="Failed to load image") as failure:
            ref.decode()
        messages.append(str(failure.value))
    assert not ref.is_decoded


def test_a_failed_decode_starts_over_from_the_bytes(
    monkeypatch: pytest.MonkeyPatch, opened: list[io.BytesIO]
) -> None:
    data = jpeg(48, 32)
    expected = ImageMediaIO().load_bytes(data).tobytes()
    opened.clear()
    failures = [MemoryError("busy")]
    convert = ImageMediaIO._convert_image_mode

    def failing_convert(self: ImageMediaIO, image: Image.Image) -> Image.Image:
        if failures:
            raise failures.pop()
        return convert(self, image)

    monkeypatch.setattr(ImageMediaIO, "_convert_image_mode", failing_convert)
    ref = ImageMediaIO().load_bytes_ref(data)
    with pytest.raises(MemoryError, match="busy"):
        ref.decode()
    assert len(opened) == 1
    assert ref.decode().tobytes() == expected
    # An image that failed halfway is not used again.
    assert len(opened) == 2


class Negative(ImageMediaIO):
    """Overrides what a decoder has to, and no more."""

    def load_bytes(self, data: bytes) -> Image.Image:
        return ImageOps.invert(super().load_bytes(data))


@EACH_KIND
def test_deferred_decode_is_the_subclass_s_own(make: Callable[[], bytes]) -> None:
    data = make()
    expected = Negative().load_bytes(data)
    text = base64.b64encode(data).decode()
    for ref in (
        Negative().load_bytes_ref(data),
        Negative().load_base64_ref("image/x", text),
    ):
        assert ref.decode().tobytes() == expected.tobytes()
    assert expected.tobytes() != ImageMediaIO().load_bytes(data).tobytes()


def test_a_subclass_with_the_same_decode_reads_the_header_once(
    opened: list[io.BytesIO],
) -> None:
    class Renamed(ImageMediaIO):
        pass

    Renamed().load_bytes_ref(jpeg(48, 32)).decode()
    assert len(opened) == 1


# Size


@pytest.mark.parametrize("make", [jpeg, png, webp, bmp, gif])
def test_too_many_pixels_fail_when_the_ref_is_made(
    make: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch, rasterized: list[str]
) -> None:
    data = make(48, 32)
    rasterized.clear()
    monkeypatch.setenv("VLLM_MAX_IMAGE_PIXELS", str(48 * 32 - 1))
    with pytest.raises(ValueError, match="48x32"):
        ImageMediaIO().load_bytes_ref(data)
    with pytest.raises(ValueError, match="48x32"):
        ImageMediaIO().load_base64_ref("image/x", base64.b64encode(data).decode())
    assert rasterized == []
    for limit in (48 * 32, 0, -1):
        monkeypatch.setenv("VLLM_MAX_IMAGE_PIXELS", str(limit))
        ImageMediaIO().load_bytes_ref(data).decode()


@pytest.mark.parametrize("limit", ["178956970", "0"], ids=["vllm", "pillow"])
def test_huge_header_fails_when_the_ref_is_made(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_MAX_IMAGE_PIXELS", limit)
    with pytest.raises(ValueError):
        ImageMediaIO().load_bytes_ref(huge_png())


def test_header_that_lies_within_the_limit_fails_the_decode() -> None:
    ref = ImageMediaIO().load_bytes_ref(huge_png(500, 500))
    with pytest.raises(ValueError, match="Failed to load image"):
        ref.decode()


def test_the_limit_holds_for_the_decode_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_MAX_IMAGE_PIXELS", "100")
    with pytest.raises(ValueError, match="48x32"):
        ImageMediaIO().load_bytes(jpeg(48, 32))


# EXIF ImageID


FORMATS = ["JPEG", "PNG", "WEBP", "TIFF", pytest.param("AVIF", marks=AVIF)]


@pytest.mark.parametrize("format", FORMATS)
def test_image_id_stands_for_the_bytes(format: str, rasterized: list[str]) -> None:
    data = tagged(format)
    rasterized.clear()
    ref = ImageMediaIO().load_bytes_ref(data)
    assert rasterized == []
    assert ref.key != derive_media_key(data, ref.spec)
    # The same picture in another encoding, and with another spelling of the ID.
    twin = jpeg(48, 32, quality=40, image_id=ID.upper())
    assert ImageMediaIO().load_bytes_ref(twin).key == ref.key
    other = tagged(format, str(uuid.UUID(int=1)))
    assert ImageMediaIO().load_bytes_ref(other).key != ref.key


def test_image_id_is_folded_with_the_spec() -> None:
    class Subclass(ImageMediaIO):
        pass

    data = jpeg(48, 32, image_id=ID)
    decoders = [
        ImageMediaIO(),
        ImageMediaIO(image_mode="L"),
        ImageMediaIO(image_mode=None),
        ImageMediaIO(rgba_background_color=(0, 0, 0)),
        Subclass(),
    ]
    assert len({decoder.load_bytes_ref(data).key for decoder in decoders}) == 5


def test_image_id_is_apart_from_a_payload_of_its_bytes() -> None:
    ref = ImageMediaIO().load_bytes_ref(jpeg(48, 32, image_id=ID))
    payload = uuid.UUID(ID).bytes
    assert ref.key != ImageMediaIO().load_bytes_ref(payload).key


def with_late_image_id() -> bytes:
    """A JPEG whose EXIF comes after more than one looks for it."""
    data = jpeg(48, 32, image_id=ID)
    comment = b"\xff\xfe" + struct.pack(">H", 5002) + bytes(5000)
    return data[:2] + comment + data[2:]


@pytest.mark.parametrize(
    "make", [lambda: jpeg(48, 32, image_id=ID), with_late_image_id]
)
def test_image_id_can_be_distrusted(
    make: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make()
    for trusted in ("1", "0", "0", "1", "1"):
        monkeypatch.setenv("VLLM_TRUST_EXIF_IMAGE_ID", trusted)
        ref = ImageMediaIO().load_bytes_ref(data)
        by_bytes = ref.key == derive_media_key(data, ref.spec)
        assert by_bytes == (trusted == "0")


@pytest.mark.parametrize("format", FORMATS)
def test_an_image_id_spares_hashing_the_bytes(
    format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    digested = []

    def no_bytes(data: bytes, spec: DecodeSpec) -> bytes:
        digested.append(data)
        return b""

    monkeypatch.setattr("vllm.multimodal.media.image.derive_media_key", no_bytes)
    ImageMediaIO().load_bytes_ref(tagged(format))
    assert digested == []


@pytest.mark.parametrize(
    "data",
    [
        jpeg(48, 32, image_id="picture-17"),
        jpeg(48, 32, image_id="1234"),
        jpeg(48, 32, image_id=""),
        jpeg(48, 32, exif_orientation=6),
        jpeg(48, 32),
        saved("JPEG", exif=exif(image_id=17).tobytes()),
        jpeg_with_broken_exif(),
        saved("JPEG", exif=b"Exif\0\0nothing of the kind"),
        png(48, 32),
        png_with_exif(b"IEND"),
        png_with_exif(b"IDAT", "picture-17"),
        webp(48, 32),
        gif(48, 32),
    ],
    ids=[
        "name",
        "number-text",
        "empty",
        "orientation-only",
        "none",
        "number",
        "broken",
        "nonsense",
        "png-none",
        "png-late",
        "png-name",
        "webp-none",
        "gif",
    ],
)
def test_without_a_readable_uuid_the_bytes_are_the_identity(data: bytes) -> None:
    ref = ImageMediaIO().load_bytes_ref(data)
    assert ref.key == derive_media_key(data, ref.spec)
    assert ref.decode().size in ((48, 32), (32, 48))


# What a ref holds


@EACH_KIND
@pytest.mark.parametrize("decoded", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_nothing_holds_the_bytes_after_release(
    make: Callable[[], bytes], decoded: bool, known: bool
) -> None:
    if known:
        ImageMediaIO().load_bytes_ref(make())
    data = bytes(bytearray(make()))
    alone = sys.getrefcount(data)
    ref = ImageMediaIO().load_bytes_ref(data)
    media = ref.decode() if decoded else None
    assert sys.getrefcount(data) > alone
    ref.release()
    assert sys.getrefcount(data) == alone
    assert ref.is_decoded == (media is not None)


@pytest.mark.parametrize("decoded", [False, True])
def test_opened_file_goes_with_the_release(
    decoded: bool, opened: list[io.BytesIO]
) -> None:
    ref = ImageMediaIO().load_bytes_ref(jpeg(48, 32))
    (file,) = opened
    opened.clear()
    if decoded:
        ref.decode()
    ref.release()
    # This name and the argument.
    assert sys.getrefcount(file) == 2
    assert ref.is_decoded == decoded


def test_failed_decode_holds_no_bytes_after_release() -> None:
    data = bytes(bytearray(truncated(jpeg(256, 256))))
    alone = sys.getrefcount(data)
    ref = ImageMediaIO().load_bytes_ref(data)
    with pytest.raises(ValueError):
        ref.decode()
    ref.release()
    assert sys.getrefcount(data) == alone


def test_base64_text_is_not_held() -> None:
    text = base64.b64encode(jpeg(48, 32)).decode()
    alone = sys.getrefcount(text)
    ref = ImageMediaIO().load_base64_ref("image/jpeg", text)
    assert sys.getrefcount(text) == alone
    assert ref.data == jpeg(48, 32)
