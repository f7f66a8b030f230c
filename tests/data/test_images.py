"""Every kind of picture file arrives upright, whole, 8-bit and opaque, or is refused in one line."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from zoo.data.images import backdrop, composite, eight_bits, open_image, to_mode
from zoo.errors import DamagedError, UsageError

DIGITS = Path(__file__).resolve().parents[1] / "assets" / "digits"

# A small picture without any symmetry, dark on light: any wrong turn, mirror or clipped value shows.
PICTURE = np.full((6, 9), 240, np.uint8)
PICTURE[1, 1:7] = 10
PICTURE[2:5, 2] = 90
SHAPE = np.zeros((6, 9), np.uint8)  # how much ink lies there: an alpha channel
SHAPE[1, 1:7] = 255
SHAPE[2:5, 2] = 128

ALL_MODES = ["1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"]
ALL_MODES += ["I", "F", "I;16", "I;16L", "I;16B", "I;16N"]


def grey(image: Image.Image) -> np.ndarray:
    return np.asarray(to_mode(image, "L"))


def stored(image: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def one_line(error: pytest.ExceptionInfo, *parts: str) -> None:
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 400
    for part in parts:
        assert part in message


def in_mode(mode: str) -> Image.Image:
    """PICTURE in that mode, opaque."""
    picture = Image.fromarray(PICTURE)
    if mode in ("1", "L", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LA"):
        return picture.convert(mode, dither=Image.Dither.NONE)
    if mode == "P":
        return picture.convert("RGB").quantize(8)
    if mode == "PA":
        return picture.convert("P").convert("PA")
    if mode in ("HSV", "LAB"):
        return picture.convert("RGB").convert(mode)
    if mode in ("La", "RGBa"):
        return picture.convert(mode[:-1] + "A").convert(mode)
    if mode == "I":
        return Image.fromarray(PICTURE.astype(np.int32))
    if mode == "F":
        return Image.fromarray(PICTURE.astype(np.float32))
    wide = PICTURE.astype(np.uint16) * 257
    order = {"I;16B": ">u2", "I;16N": "=u2"}.get(mode, "<u2")
    return Image.frombytes(mode, (9, 6), wide.astype(order).tobytes())


@pytest.mark.parametrize("target", ["L", "RGB"])
@pytest.mark.parametrize("mode", ALL_MODES)
def test_every_mode_shows_the_same_picture(mode, target):
    image = to_mode(open_image(in_mode(mode)), target)
    assert image.mode == target
    assert image.size == (9, 6)
    seen = np.asarray(image.convert("L"), int)
    if mode == "1":
        assert (seen == np.where(PICTURE > 127, 255, 0)).all()
    else:
        assert np.abs(seen - PICTURE).max() <= (3 if mode == "LAB" else 1)


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_what_is_right_already_is_not_touched(mode):
    image = in_mode(mode)
    assert to_mode(image, mode) is image


def test_only_grey_and_rgb_are_asked_for():
    with pytest.raises(UsageError):
        to_mode(in_mode("L"), "CMYK")


# --- transparency -----------------------------------------------------------------------------------------------------


def drawn_in_alpha(form: str, level: int) -> Image.Image:
    image = Image.new("L", (9, 6), level).convert(form[:-1])
    image.putalpha(Image.fromarray(SHAPE))
    return image


@pytest.mark.parametrize("form", ["LA", "RGBA"])
@pytest.mark.parametrize(("level", "expected"), [(0, 255 - SHAPE), (255, SHAPE)], ids=["black", "white"])
def test_a_drawing_in_the_alpha_channel_alone_is_seen(form, level, expected):
    image = open_image(stored(drawn_in_alpha(form, level), "PNG"))
    assert (grey(image) == expected).all()
    assert (np.asarray(to_mode(image, "RGB")) == expected[..., None]).all()


def test_transparency_lies_on_white():
    image = Image.new("RGBA", (4, 4), (200, 0, 0, 255))
    image.putpixel((1, 1), (0, 0, 0, 0))
    image.putpixel((2, 2), (0, 0, 255, 128))
    seen = to_mode(image, "RGB")
    assert seen.getpixel((1, 1)) == (255, 255, 255)
    assert seen.getpixel((2, 2)) == (127, 127, 255)
    assert seen.getpixel((0, 0)) == (200, 0, 0)
    assert composite(image, background=0).getpixel((1, 1)) == (0, 0, 0)


def test_black_is_the_ground_only_where_white_swallows_the_picture():
    alpha = Image.fromarray(SHAPE)
    grounds = {level: backdrop(Image.new("L", (9, 6), level), alpha) for level in (0, 100, 200, 230, 255)}
    assert grounds == {0: 255, 100: 255, 200: 255, 230: 0, 255: 0}


def test_an_alpha_channel_that_is_zero_throughout_is_unused():
    image = in_mode("RGB")
    image.putalpha(0)
    assert (grey(image) == PICTURE).all()


@pytest.mark.parametrize("kind", ["GIF", "PNG"])
def test_a_transparent_palette_entry_lies_on_white(kind):
    image = Image.new("P", (9, 6), 0)
    image.putpalette([10, 20, 30, 200, 0, 0])
    image.putpixel((3, 2), 1)
    seen = to_mode(open_image(stored(image, kind, transparency=0)), "RGB")
    assert seen.getpixel((0, 0)) == (255, 255, 255)
    assert seen.getpixel((3, 2)) == (200, 0, 0)


def test_a_palette_with_grades_of_transparency():
    image = Image.new("P", (3, 1))
    image.putpalette([0, 0, 0] * 3)
    image.putdata([0, 1, 2])
    seen = open_image(stored(image, "PNG", transparency=bytes([0, 128, 255])))
    assert grey(seen).tolist() == [[255, 127, 0]]


@pytest.mark.parametrize(("mode", "colour"), [("L", 7), ("RGB", (7, 7, 7)), ("I;16", 7 * 257)])
def test_one_transparent_colour(mode, colour):
    image = in_mode(mode)
    image.putpixel((0, 0), colour)
    assert grey(open_image(stored(image, "PNG", transparency=colour)))[0, 0] == 255
    assert grey(open_image(stored(image, "PNG")))[0, 0] == 7


# --- depth ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("widen", [lambda v: v * 257, lambda v: v << 8, lambda v: v], ids=["x257", "<<8", "as is"])
def test_16_bits_are_scaled_whichever_way_they_were_filled(widen):
    every = np.arange(256, dtype=np.uint16).reshape(16, 16)
    image = open_image(stored(Image.fromarray(widen(every)), "PNG"))
    assert (grey(image) == every).all()


def test_16_bits_are_never_clipped():
    ramp = np.linspace(0, 65535, 600).astype(np.uint16).reshape(20, 30)
    seen = grey(open_image(stored(Image.fromarray(ramp), "TIFF")))
    assert np.abs(seen.astype(float) - ramp / 257).max() <= 1
    assert len(np.unique(seen)) == 256


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_wide_values_are_stretched(dtype):
    seen = grey(Image.fromarray(np.array([[-1000, 0, 1000, 100_000]], dtype)))
    assert seen[0, 0] == 0
    assert seen[0, -1] == 255
    assert (np.diff(seen[0].astype(int)) > 0).all()


def test_real_numbers_from_0_to_1_and_from_0_to_255():
    assert (grey(Image.fromarray(PICTURE / np.float32(255))) == PICTURE).all()
    assert (grey(Image.fromarray(PICTURE.astype(np.float32))) == PICTURE).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(DamagedError) as error:
        eight_bits(Image.fromarray(np.array([[0, value]], np.float32)))
    one_line(error, "NaN")


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP", "GIF", "PPM", "TGA", "ICO"])
def test_lossless_formats(kind):
    picture = Image.fromarray(np.kron(PICTURE, np.ones((4, 4), np.uint8)))  # an icon has at least 16x16
    options = {"sizes": [picture.size]} if kind == "ICO" else {}
    assert (grey(open_image(stored(picture, kind, **options))) == np.asarray(picture)).all()


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "AVIF", "JPEG2000"])
def test_lossy_formats(kind):
    picture = Image.fromarray(np.kron(PICTURE, np.ones((8, 8), np.uint8)))
    seen = grey(open_image(stored(picture.convert("RGB"), kind)))
    assert np.abs(seen.astype(int) - np.asarray(picture)).mean() < 8


def test_a_cmyk_jpeg_is_not_seen_as_its_negative():
    """Adobe's programs store the inks of a JPEG inverted, and say so in a marker."""
    large = Image.fromarray(np.kron(PICTURE, np.ones((8, 8), np.uint8)))
    data = stored(large.convert("RGB").convert("CMYK"), "JPEG", quality=95)
    assert b"Adobe" in data
    seen = grey(open_image(data))
    assert np.abs(seen.astype(int) - np.asarray(large)).mean() < 5


def test_a_cmyk_tiff_with_real_black():
    inks = np.zeros((2, 2, 4), np.uint8)
    inks[0, 0] = 0, 0, 0, 255
    inks[1, 1] = 255, 255, 255, 0
    image = open_image(stored(Image.frombytes("CMYK", (2, 2), inks.tobytes()), "TIFF"))
    assert image.mode == "CMYK"
    assert grey(image).tolist() == [[0, 255], [255, 0]]


def test_lab_goes_through_its_own_colours():
    profile = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    red = ImageCms.profileToProfile(Image.new("RGB", (2, 2), (200, 30, 30)), *profile, outputMode="LAB")
    assert np.abs(np.subtract(to_mode(red, "RGB").getpixel((0, 0)), (200, 30, 30))).max() <= 3


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "WEBP", "PNG"])
def test_the_first_of_many_frames(kind):
    frames = [Image.fromarray(np.full((6, 9), level, np.uint8)) for level in (0, 120, 250)]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = stored(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    image = open_image(data)
    assert (grey(image) == 0).all()
    assert image.size == (9, 6)


TURNS = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("mode", ["L", "RGB", "I;16"])
def test_exif_orientation(kind, orientation, mode):
    mode = "L" if kind == "WEBP" else mode  # which has 8 bits
    turn = TURNS[orientation]
    image = in_mode(mode) if turn is None else in_mode(mode).transpose(turn)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {}
    seen = open_image(stored(image, kind, exif=exif, **options))
    assert (grey(seen) == PICTURE).all()
    assert (grey(open_image(seen)) == PICTURE).all(), "turned twice"


def test_exif_data_that_cannot_be_read_turn_nothing():
    assert (grey(open_image(stored(in_mode("L"), "PNG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff"))) == PICTURE).all()
