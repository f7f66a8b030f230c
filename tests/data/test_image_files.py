"""Where a picture may come from, and how what is none is refused: in one line, by its own kind of error."""

from __future__ import annotations

import contextlib
import io
import os
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from zoo.data.images import open_image, picture_suffixes, to_mode
from zoo.errors import DamagedError, NotFoundError, UsageError

DIGITS = Path(__file__).resolve().parents[1] / "assets" / "digits"

# A small picture without any symmetry, dark on light: any wrong turn, mirror or clipped value shows.
PICTURE = np.full((6, 9), 240, np.uint8)
PICTURE[1, 1:7] = 10
PICTURE[2:5, 2] = 90


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


def test_every_source_gives_the_same(tmp_path):
    path = tmp_path / "größe 1 [x].png"
    Image.fromarray(PICTURE).save(path)
    data = path.read_bytes()
    written = io.BytesIO()
    written.write(data)  # left at its end, as saving into a buffer leaves it
    with open(path, "rb") as file:
        for source in (
            str(path),
            path,
            data,
            bytearray(data),
            io.BytesIO(data),
            written,
            file,
            Image.fromarray(PICTURE),
        ):
            assert (grey(open_image(source)) == PICTURE).all()
        assert not file.closed


def test_the_file_can_go_once_it_is_open(tmp_path):
    path = tmp_path / "a.gif"
    Image.fromarray(PICTURE).convert("P").save(path)
    image = open_image(path)
    path.unlink()
    assert np.abs(grey(image).astype(int) - PICTURE).max() <= 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(stored(Image.fromarray(PICTURE), "PNG"),))
    writer.start()
    image = open_image(pipe)
    writer.join()
    assert (grey(image) == PICTURE).all()


@pytest.mark.parametrize("source", [3, None, np.zeros((2, 2))])
def test_other_sources_are_refused(source):
    with pytest.raises(UsageError) as error:
        open_image(source)
    one_line(error, "fromarray")


def test_a_text_file_object_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    with open(tmp_path / "a.txt", encoding="utf-8") as file, pytest.raises(UsageError) as error:
        open_image(file)
    one_line(error, "'rb'")


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nowhere.png", "nofolder/a.png", "a" * 5000, "nul\0.png"])
def test_a_file_that_is_not_there(tmp_path, name):
    with pytest.raises(NotFoundError) as error:
        open_image(f"{tmp_path}/{name}")
    one_line(error)


def test_what_lies_behind_a_file(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(NotFoundError):
        open_image(tmp_path / "file" / "a.png")


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "empty"), (b"no picture at all", "no picture"), (b"<svg></svg>", "no picture"), (b"\x89PNG\r\n", "")],
)
def test_what_is_no_picture(tmp_path, content, says):
    path = tmp_path / "some.png"
    path.write_bytes(content)
    with pytest.raises(DamagedError) as error:
        open_image(path)
    one_line(error, "some.png", says)


def test_a_folder_is_no_picture(tmp_path):
    with pytest.raises(DamagedError) as error:
        open_image(tmp_path)
    one_line(error, "folder")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no devices here")
def test_a_device_is_no_picture():
    with pytest.raises(DamagedError) as error:
        open_image("/dev/zero")
    one_line(error, "device")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path):
    path = tmp_path / "secret.png"
    Image.fromarray(PICTURE).save(path)
    path.chmod(0)
    with pytest.raises(DamagedError) as error:
        open_image(path)
    one_line(error, "secret.png", "permission")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "TGA", "AVIF"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_picture_cut_short(tmp_path, kind, share):
    noise = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
    data = stored(Image.fromarray(noise), kind)
    path = tmp_path / "cut"
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(DamagedError) as error:
        open_image(path)
    one_line(error, "cut")


def test_a_flipped_byte_in_a_png():
    data = bytearray(stored(Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 80), np.uint8)), "PNG"))
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(DamagedError):
        open_image(bytes(data))


def test_broken_bytes_never_raise_anything_else():
    generator = np.random.default_rng(1)
    for kind in ("PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP", "ICO", "PPM"):
        original = stored(Image.fromarray(np.kron(PICTURE, np.ones((4, 4), np.uint8))), kind)
        for _ in range(40):
            data = bytearray(original)
            for position in generator.integers(0, len(data), 4):
                data[position] = generator.integers(256)
            with contextlib.suppress(DamagedError):
                to_mode(open_image(bytes(data)), "RGB")


def test_a_decompression_bomb_is_refused(monkeypatch):
    data = stored(Image.new("L", (200, 200)), "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(DamagedError) as error:
        open_image(data)
    one_line(error, "pixels")


def test_a_large_scan_is_read_without_a_warning(monkeypatch):
    data = stored(Image.new("L", (40, 40)), "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_image(data).size == (40, 40)


def test_suffixes():
    endings = picture_suffixes()
    assert {".png", ".jpg", ".jpeg", ".gif", ".tif", ".tiff", ".bmp", ".webp", ".avif"} <= endings
    assert not {".md", ".txt", ".pdf", ".h5", ".mpg", ".svg", ""} & endings


def test_the_digits_are_small_and_of_ten_forms():
    files = [path for path in DIGITS.iterdir() if path.suffix in picture_suffixes()]
    assert sorted(path.stem for path in files) == [str(digit) for digit in range(10)]
    assert sum(path.stat().st_size for path in files) < 60_000
    modes = {open_image(path).mode for path in files}
    assert modes == {"1", "L", "P", "RGB", "RGBA", "CMYK", "I;16"}
