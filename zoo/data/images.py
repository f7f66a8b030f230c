"""The one gateway to picture files: open a picture of any kind, and bring any mode to grey or RGB.

    image = open_image("digit.png")      # decoded whole, turned as its EXIF says
    grey = to_mode(image, "L")           # no palette, no transparency, 8 bits: what a model can take

What comes in and how it is read:

* more than one frame (animated GIF, APNG, WebP; TIFF of several pages): the first one;
* transparency, in whatever form the file keeps it: the picture is laid on white. Black takes the place of white
  where white would swallow the picture, as it would a white digit drawn on nothing (`backdrop` says when);
* 16 bits: the upper eight are kept, so nothing is clipped; a 16-bit file that holds no value above 255 was filled
  with 8-bit values and is taken as such;
* real numbers: 0 to 1, or 0 to 255 where a value exceeds 1; anything else is stretched from its least to its greatest.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import struct
import warnings
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL import __version__ as _PILLOW

from zoo.errors import DamagedError, NotFoundError, UsageError, one_line

Source = str | os.PathLike[str] | bytes | BinaryIO | Image.Image

WHITE, BLACK = 255, 0

_DEEP = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")
_GREY = ("1", "L", "LA", "La")
_ALPHA = ("LA", "La", "PA", "RGBA", "RGBa")

# What Pillow raises on EXIF data that make no sense.
_BAD_METADATA = (OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError, OverflowError, struct.error)

# Formats that Pillow registers as readable and that are no pictures here: containers of numbers that it only
# recognises, films of which it reads a header, and page descriptions that need a program of their own.
_NOT_PICTURES = frozenset({"BUFR", "GRIB", "HDF5", "MPEG", "EPS", "WMF"})


def open_image(source: Source) -> Image.Image:
    """The picture in `source`, decoded to its last pixel, its first frame, turned upright as its EXIF data say.

    Parameters
    ----------
    source
        A path; the bytes of a picture file, or a file object that yields them; or a PIL image, which is only
        decoded and turned. A file object is left open.

    Returns
    -------
    A PIL image of the file's own mode that no longer depends on the file. `to_mode` brings it to grey or RGB.

    Raises
    ------
    NotFoundError
        There is no such file.
    DamagedError
        It is there and is no picture that can be read whole: another kind of file, cut short, empty, a folder,
        not readable for this user, or one that would unpack to more pixels than Pillow allows.
    UsageError
        `source` is none of the kinds above.
    """
    if isinstance(source, Image.Image):
        return _decode(source, "the picture")
    if isinstance(source, bytes | bytearray | memoryview):
        return _read(io.BytesIO(source), "the picture in memory", empty=len(source) == 0)
    if isinstance(source, str | os.PathLike):
        return _open_path(Path(os.fsdecode(source)))
    if hasattr(source, "read"):
        name = getattr(source, "name", None)
        if hasattr(source, "seekable") and source.seekable():
            source.seek(0)  # as Pillow does: a buffer just written to is read from its start
        data = source.read()
        if not isinstance(data, bytes):
            raise UsageError("the file object yields text: open the picture with mode 'rb'")
        return _read(io.BytesIO(data), name if isinstance(name, str) else "the picture", empty=not data)
    raise UsageError(
        f"a picture is a path, bytes, a binary file object or a PIL image, not {type(source).__name__}; "
        "an array becomes one by PIL.Image.fromarray"
    )


def to_mode(image: Image.Image, mode: str) -> Image.Image:
    """`image`, of any mode, as `mode`: "L" (grey) or "RGB", 8 bits a channel, without transparency.

    An image that is of that mode already, and opaque, comes back as it is, byte for byte. Colours become grey by
    the ITU-R 601 luma, Pillow's own.
    """
    if mode not in ("L", "RGB"):
        raise UsageError(f"the mode of a model's picture is 'L' or 'RGB', not {mode!r}")
    if image.mode in _DEEP:
        image = eight_bits(image)
    image = composite(image)
    if image.mode == mode:
        return image
    if image.mode not in _GREY:  # LAB, HSV and their like reach grey by way of RGB only
        image = _convert(image, "RGB")
    return _convert(image, mode)


def eight_bits(image: Image.Image) -> Image.Image:
    """A picture of mode I, F or I;16 (either byte order) as grey of 8 bits; "LA" if one grey value is transparent."""
    values = np.asarray(image)
    if image.mode == "F":
        grey = _from_reals(values)
    else:
        grey = _from_integers(values)
    out = Image.fromarray(grey)
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        out.putalpha(Image.fromarray(np.where(values == clear, 0, 255).astype(np.uint8)))
    return out


def _from_integers(values: np.ndarray) -> np.ndarray:
    """(H, W) integers of 8, 16 or more bits as uint8: the upper byte, never a clipped value."""
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65535:
        return _stretch(values)
    # The shift undoes both ways of widening 8 bits, v * 257 and v << 8, exactly.
    return (values if high <= 255 else values >> 8).astype(np.uint8)


def _from_reals(values: np.ndarray) -> np.ndarray:
    """(H, W) real numbers as uint8: 0..1, 0..255, or whatever range they have."""
    if not np.isfinite(values).all():
        raise DamagedError("the picture holds values that are no numbers (NaN or infinity)")
    low, high = values.min(), values.max()
    if low < 0 or high > 255:
        return _stretch(values)
    return np.rint(values * 255 if high <= 1 else values).astype(np.uint8)


def _stretch(values: np.ndarray) -> np.ndarray:
    values = values.astype(np.float64)
    low, high = values.min(), values.max()
    return np.rint((values - low) * (255 / max(high - low, 1e-12))).astype(np.uint8)


def composite(image: Image.Image, background: int | None = None) -> Image.Image:
    """`image` without transparency: laid on a uniform grey, by default the one that `backdrop` chooses.

    A picture whose every pixel is transparent shows nothing on any background; its alpha channel is taken for
    unused (some programs leave it at zero), and its colours are kept.

    Parameters
    ----------
    image
        Any 8-bit mode. One without transparency comes back as it is.
    background
        0 (black) to 255 (white).
    """
    if not has_transparency(image):
        return image
    if image.mode == "La":
        image = image.convert("LA")
    form = "LA" if image.mode in _GREY else "RGBA"
    image = _convert(image, form)
    alpha = image.getchannel("A")
    colours = image.convert("L" if form == "LA" else "RGB")
    colours.info.pop("transparency", None)
    low, high = alpha.getextrema()
    if low == 255 or high == 0:
        return colours
    if background is None:
        background = backdrop(colours, alpha)
    ground = Image.new(colours.mode, colours.size, background if form == "LA" else (background,) * 3)
    ground.paste(colours, mask=alpha)
    return ground


def has_transparency(image: Image.Image) -> bool:
    """Whether some pixel may be transparent: an alpha channel, a transparent palette entry or colour."""
    if image.mode in _ALPHA:
        return True
    key = image.info.get("transparency")
    kinds: dict[str, type | tuple[type, ...]] = {"P": (int, bytes), "1": int, "L": int, "RGB": tuple}
    return image.mode in kinds and isinstance(key, kinds[image.mode])


def backdrop(colours: Image.Image, alpha: Image.Image) -> int:
    """White, or black if the picture would all but vanish on white.

    It vanishes when its contrast (the standard deviation of its grey values) on white is below a fifth of that on
    black: a light drawing of one colour whose shape is in the alpha channel alone.
    """
    grey = np.asarray(colours.convert("L"), np.float32)
    cover = np.asarray(alpha, np.float32) / 255
    on_black = grey * cover
    on_white = on_black + 255 * (1 - cover)
    return BLACK if on_white.std() < on_black.std() / 5 else WHITE


def picture_suffixes() -> frozenset[str]:
    """The endings, in small letters and with their dot, of the files that count as pictures in a folder."""
    endings = Image.registered_extensions()  # loads Pillow's plugins, and those that a user registered
    return frozenset(e for e, kind in endings.items() if kind in Image.OPEN and kind not in _NOT_PICTURES)


def _open_path(path: Path) -> Image.Image:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) or error.errno == errno.ENAMETOOLONG:
            raise NotFoundError(f"{str(path)[:80]!r}: no file can have this name") from None
        raise DamagedError(f"{path}: cannot be read ({_reason(error)})") from None
    if stat.S_ISDIR(status.st_mode):
        raise DamagedError(f"{path}: is a folder, not a picture")
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode) or stat.S_ISSOCK(status.st_mode):
        raise DamagedError(f"{path}: is a device, not a picture")
    try:
        with open(path, "rb") as file:
            if stat.S_ISFIFO(status.st_mode):  # a pipe cannot be rewound, which decoders need
                data = file.read()
                return _read(io.BytesIO(data), str(path), empty=not data)
            return _read(file, str(path), empty=status.st_size == 0)
    except OSError as error:
        raise DamagedError(f"{path}: cannot be read ({_reason(error)})") from None


def _read(file: BinaryIO, name: str, *, empty: bool) -> Image.Image:
    if empty:
        raise DamagedError(f"{name}: is empty (0 bytes)")
    try:
        with warnings.catch_warnings():
            # Between one and two times Pillow's limit it only warns; a large scan is no fault of the user's.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(file)
    except UnidentifiedImageError:
        raise DamagedError(f"{name}: is no picture of a kind that Pillow {_PILLOW} reads") from None
    except Exception as error:  # decoders answer a broken file with any exception there is
        raise DamagedError(f"{name}: cannot be read as a picture ({_reason(error)})") from None
    with image:
        return _decode(image, name)


def _decode(image: Image.Image, name: str) -> Image.Image:
    try:
        image.load()
        if 0 in image.size:
            raise DamagedError(f"{name}: has no pixels ({image.width}x{image.height})")
    except DamagedError:
        raise
    except Exception as error:  # as above: SyntaxError, struct.error, IndexError, ... all mean the same here
        raise DamagedError(f"{name}: is damaged or cut short ({_reason(error)})") from None
    try:
        return ImageOps.exif_transpose(image)
    except _BAD_METADATA:  # the pixels are whole, and turn nowhere
        return image.copy()


def _convert(image: Image.Image, mode: str) -> Image.Image:
    try:
        return image if image.mode == mode else image.convert(mode)
    except (ValueError, OSError, KeyError) as error:
        raise DamagedError(f"the picture's mode {image.mode} cannot become {mode} ({_reason(error)})") from None


def _reason(error: BaseException) -> str:
    """The error in a few words on one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return one_line(error)[:200] or type(error).__name__
