"""Any picture of a digit arrives framed as MNIST framed its own; MNIST's own arrive untouched."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from PIL import Image, ImageDraw

from zoo.data import open_dataset
from zoo.data.digits import frame_digit
from zoo.data.morphology import stroke_width
from zoo.data.paper import is_ink_on_paper

# --- digits at 28x28 --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mnist(data_dir):
    return np.concatenate([open_dataset("mnist", split, data_dir).images[:, 0].numpy() for split in ("train", "test")])


def test_every_digit_of_mnist_passes_untouched_and_its_negative_gives_it(mnist):
    """Evaluation takes the arrays as they are, prediction goes through here: both see the same pixels."""
    for digit in mnist[::50]:
        assert np.array_equal(frame_digit(Image.fromarray(digit)), digit)
        assert np.array_equal(frame_digit(Image.fromarray(255 - digit)), digit)


def seven(size: int = 28, box: int = 20, stroke: float = 2.5) -> np.ndarray:
    """A drawn 7, light on black, antialiased: (size, size) uint8, `box` pixels high, the stroke in the same unit."""
    fine = 8
    image = Image.new("L", (size * fine, size * fine))
    side, inset = box * fine, stroke * fine / 2
    left, top = (size * fine - side * 0.8) / 2, (size * fine - side) / 2
    right, bottom = left + side * 0.8, top + side
    points = [(left + inset, top + inset), (right - inset, top + inset), (left + side * 0.3, bottom - inset)]
    ImageDraw.Draw(image).line(points, 255, round(stroke * fine), joint="curve")
    return np.asarray(image.resize((size, size), Image.Resampling.BOX))


def ink(values: np.ndarray, dark: float = 20, light: float = 240) -> np.ndarray:
    """Light on black, as ink on paper."""
    return np.rint(light + (dark - light) * (values / 255.0)).astype(np.uint8)


FORMS = {
    "grey as RGB": lambda v: Image.fromarray(v).convert("RGB"),
    "16 bits": lambda v: Image.fromarray(v.astype(np.uint16) * 257),
    "real numbers": lambda v: Image.fromarray(v / np.float32(255)),
    "negative": lambda v: Image.fromarray(255 - v),
    "negative as RGBA": lambda v: Image.fromarray(255 - v).convert("RGBA"),
    "negative as CMYK": lambda v: Image.fromarray(255 - v).convert("RGB").convert("CMYK"),
    "black in alpha": lambda v: Image.merge("LA", (Image.new("L", (28, 28), 0), Image.fromarray(v))),
    "white in alpha": lambda v: Image.merge("LA", (Image.new("L", (28, 28), 255), Image.fromarray(v))),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_28x28_are_exact(form):
    assert np.array_equal(frame_digit(FORMS[form](seven())), seven())


def test_28x28_on_a_grey_ground_loses_the_ground_and_keeps_its_place():
    for values in (ink(seven(), 60, 200), 255 - ink(seven(), 60, 200)):
        framed = frame_digit(Image.fromarray(values))
        assert np.abs(framed.astype(int) - seven()).max() <= 2


# --- digits of any size -----------------------------------------------------------------------------------------------


def likeness(image: Image.Image, stroke: float = 2.5) -> float:
    """Correlation of the framed picture with a 7 that MNIST could hold, at the best of the nearest places."""
    framed, wanted = frame_digit(image).astype(float), seven(stroke=stroke).astype(float)
    assert framed.shape == (28, 28)
    assert framed.max() > 0, "nothing was found"
    moves = itertools.product(range(-4, 5), repeat=2)
    return max(np.corrcoef(np.roll(framed, move, (0, 1)).ravel(), wanted.ravel())[0, 1] for move in moves)


def canvas(values: np.ndarray, height: int, width: int, top: int, left: int) -> np.ndarray:
    out = np.zeros((height, width), np.uint8)
    out[top : top + values.shape[0], left : left + values.shape[1]] = values
    return out


def lit(values: np.ndarray, low: float, noise: float = 0) -> np.ndarray:
    """Paper lit from one corner, with the noise of a sensor."""
    y, x = np.mgrid[0 : 1 : values.shape[0] * 1j, 0 : 1 : values.shape[1] * 1j]
    light = low + (1 - low) * (0.7 * x + 0.3 * y)
    noisy = values * light + np.random.default_rng(0).normal(0, noise, values.shape)
    return np.clip(noisy, 0, 255).astype(np.uint8)


def coloured(values: np.ndarray, on: tuple[int, int, int], paper: tuple[int, int, int]) -> Image.Image:
    share = values[..., None] / 255.0
    return Image.fromarray(np.rint(share * on + (1 - share) * np.array(paper)).astype(np.uint8))


BIG = canvas(seven(200, 150, 18), 300, 400, 60, 150)


def on_a_table() -> Image.Image:
    out = np.full((400, 500), 40, np.uint8)
    out[60:360, 50:450] = ink(BIG)
    return Image.fromarray(out)


def in_a_frame(width: int) -> Image.Image:
    image = Image.fromarray(ink(canvas(seven(200, 150, 18), 240, 240, 20, 20)))
    ImageDraw.Draw(image).rectangle((0 if width > 9 else 8, 0 if width > 9 else 8, 239, 231), outline=0, width=width)
    return image


def specked() -> Image.Image:
    values, draw = ink(BIG).copy(), np.random.default_rng(0).random(BIG.shape)
    values[draw < 0.005], values[draw > 0.995] = 0, 255
    return Image.fromarray(values)


def shaded() -> Image.Image:
    """The shadow of a hand on the left half."""
    light = 0.6 + 0.4 / (1 + np.exp(-(np.arange(400) - 180) / 8))
    return Image.fromarray((ink(BIG) * light).astype(np.uint8))


PICTURES = {
    "drawn black on white": lambda: Image.fromarray(255 - BIG),
    "drawn white on black": lambda: Image.fromarray(BIG),
    "200x200 full": lambda: Image.fromarray(255 - seven(200, 196, 24)),
    "tight": lambda: Image.fromarray(255 - seven(150, 150, 19)[:, 15:135]),
    "small": lambda: Image.fromarray(255 - seven(40, 30, 3.8)),
    "tiny": lambda: Image.fromarray(255 - seven(20, 16, 2)),
    "padded to 32": lambda: Image.fromarray(np.pad(seven(), 2)),
    "large": lambda: Image.fromarray(255 - canvas(seven(700, 600, 72), 1800, 1300, 900, 200)),
    "unevenly lit": lambda: Image.fromarray(lit(ink(BIG), 0.4)),
    "noisy photo": lambda: Image.fromarray(lit(ink(BIG, 70, 220), 0.5, 10)),
    "pencil": lambda: Image.fromarray(lit(ink(BIG, 150, 220), 0.6, 5)),
    "chalk": lambda: Image.fromarray(255 - lit(ink(BIG, 60, 210), 0.7, 8)),
    "shadow": shaded,
    "blue on cream": lambda: coloured(BIG, (30, 40, 140), (250, 242, 220)),
    "yellow on white": lambda: coloured(BIG, (255, 255, 0), (255, 255, 255)),
    "red on green of equal luma": lambda: coloured(BIG, (220, 60, 60), (60, 140, 60)),
    "white on blue": lambda: coloured(BIG, (255, 255, 255), (30, 60, 160)),
    "black in alpha": lambda: Image.merge("LA", (Image.new("L", (400, 300), 0), Image.fromarray(BIG))),
    "white in alpha": lambda: Image.merge("LA", (Image.new("L", (400, 300), 255), Image.fromarray(BIG))),
    "sheet on a table": on_a_table,
    "thin frame": lambda: in_a_frame(3),
    "thick frame at the edge": lambda: in_a_frame(14),
    "margin": lambda: Image.fromarray(np.pad(ink(BIG), ((0, 0), (60, 0)), constant_values=10)),
    "specks": specked,
    "one bit": lambda: Image.fromarray(255 - BIG).convert("1", dither=Image.Dither.NONE),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_seven_in_any_picture_is_framed_as_mnist_would(name):
    assert likeness(PICTURES[name]()) > 0.9


@pytest.mark.parametrize("size", [200, 500, 1500])
def test_strokes_of_one_pixel_do_not_vanish(size):
    image = Image.new("L", (size, size), 255)
    side = size * 0.7
    points = [(size * 0.2, size * 0.15), (size * 0.2 + side * 0.8, size * 0.15), (size * 0.4, size * 0.15 + side)]
    ImageDraw.Draw(image).line(points, 0, 1)
    framed = frame_digit(image)
    assert framed.max() == 255
    assert 0.75 < stroke_width(np.kron(framed > 127, np.ones((4, 4), bool))) / 4 / 2.3 < 1.35
    assert likeness(image) > 0.85


def test_a_marker_is_thinned_towards_mnist():
    framed = frame_digit(Image.fromarray(255 - seven(200, 160, 48)))
    assert stroke_width(np.kron(framed > 127, np.ones((4, 4), bool))) / 4 < 5


@pytest.mark.parametrize("name", ["drawn black on white", "noisy photo", "small", "large"])
def test_the_frame_is_mnists(name):
    framed = frame_digit(PICTURES[name]())
    rows, columns = np.flatnonzero(framed.any(1)), np.flatnonzero(framed.any(0))
    assert max(np.ptp(rows), np.ptp(columns)) + 1 == 20
    grid = np.arange(28)
    for axis in (0, 1):
        assert abs((framed.sum(1 - axis) * grid).sum() / framed.sum() - 14) <= 0.5


def test_a_picture_and_its_negative_give_the_same():
    positive, negative = (frame_digit(Image.fromarray(v)).astype(int) for v in (BIG, 255 - BIG))
    assert np.abs(positive - negative).max() <= 1


def test_polarity_is_decided_by_what_the_edge_shows():
    assert is_ink_on_paper(255.0 - BIG)
    assert not is_ink_on_paper(BIG.astype(float))
    assert is_ink_on_paper(lit(ink(BIG), 0.3).astype(float))
    assert not is_ink_on_paper(255.0 - lit(ink(BIG), 0.3))
    assert is_ink_on_paper(ink(BIG, 20, 60).astype(float)), "dark ink on dark paper is ink on paper"


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1), (3, 2), (28, 28), (27, 28), (200, 200), (2000, 30)])
@pytest.mark.parametrize("level", [0, 128, 255])
def test_a_blank_picture_gives_zeros(size, level):
    assert frame_digit(Image.new("L", size, level)).max() == 0


def test_faint_noise_is_no_digit_and_does_not_crash():
    noise = np.random.default_rng(0).normal(230, 2, (200, 200))
    assert frame_digit(Image.fromarray(noise.clip(0, 255).astype(np.uint8))).shape == (28, 28)


def test_any_small_noise_gives_a_frame():
    generator = np.random.default_rng(0)
    for height, width in itertools.product((1, 2, 5, 28, 40), repeat=2):
        framed = frame_digit(Image.fromarray(generator.integers(0, 256, (height, width, 3), np.uint8)))
        assert framed.shape == (28, 28)
        assert framed.dtype == np.uint8
