"""Frame any picture of one digit as MNIST framed its own: light on black, 28x28, 20 pixels long, centred by mass.

    frame_digit(Image.open("scan.png"))  ->  (28, 28) uint8

How it tells ink on paper from light on dark: the background is what the picture's edge shows; the picture is ink on
paper, and is inverted, when its strokes are darker than that background (`zoo.data.paper.is_ink_on_paper`).

MNIST: LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document recognition", 1998, section III.A:
the digits were scaled to fit a 20x20 box with their aspect ratio kept, which made them grey through anti-aliasing,
and placed in 28x28 so that their centre of mass is its centre.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from zoo.data.images import to_mode
from zoo.data.morphology import Component, components, dilate, stroke_width
from zoo.data.paper import (
    background_plane,
    crop_to_sheet,
    edge_ring,
    ink_on,
    is_ink_on_paper,
    noise_of,
    resize,
)

SIDE, BOX = 28, 20

# In MNIST's 28x28 a stroke is 2.3 pixels wide in the median digit and 1.6 in the fifth percentile, by `stroke_width`
# on eightfold enlargements; one digit in twenty has wider ones than 3.6. Thinner ones than the least, as of a fine
# pen in a large scan, are brought to the median, wider ones than the most, as of a marker, to the most.
STROKE_MEDIAN, STROKE_LEAST, STROKE_MOST = 2.3, 1.6, 3.6

# A picture is worked on with its long side in this range: less wastes no time, more shows no more of a digit.
WORK_LEAST, WORK_MOST = 128, 512

# Grey levels (of 255) and fractions of full contrast that count as nothing.
BLANK = 0.04
BLACK_ENOUGH, WHITE_ENOUGH = 4, 128


def frame_digit(image: Image.Image) -> np.ndarray:
    """The digit in `image` as MNIST would hold it: (28, 28) uint8, strokes light, ground black.

    * 28x28 and light on dark: it is taken to be framed already and comes back byte for byte.
    * 28x28 and ink on paper: inverted, nothing else, so that it gives what its negative gives.
    * 28x28 whose ground is far from black (or white), or whose strokes are faint: as above, and the level of the
      ground is taken away and the contrast stretched, each pixel in its place.
    * Any other size: the sheet is found if its surroundings are in the picture, uneven light is evened out, frames,
      margins and specks are dropped, strokes far thinner or wider than MNIST's are brought near; what is left is
      cut out, scaled with antialiasing until its long side is 20 pixels, and pasted by its centre of mass.

    A picture that shows nothing gives zeros.

    Parameters
    ----------
    image
        A PIL image of any mode and size.
    """
    if image.size == (SIDE, SIDE):
        return _relevel(grey_values(image))
    grey = crop_to_sheet(grey_values(_work_size(image)))
    if is_ink_on_paper(grey):
        grey = 255 - grey
    ink = _digit_only(ink_on(grey))
    return _place(_restore_strokes(ink))


def grey_values(image: Image.Image) -> np.ndarray:
    """The picture as (H, W) float32, 0 to 255: its luma, or the colour axis that shows the digit where luma does not.

    Red ink on green paper, or yellow ink on white, may differ little in luma. Where the variation of the luma about
    the background is less than a quarter of that along the principal axis of the colours, the latter is taken.
    """
    luma = np.asarray(to_mode(image, "L"), np.float32)
    colours = np.asarray(to_mode(image, "RGB"), np.float32)
    if (colours == colours[..., :1]).all():
        return luma
    deviation = colours - np.median(colours[edge_ring(luma.shape)], axis=0)
    moments = np.einsum("hwi,hwj->ij", deviation, deviation) / luma.size
    weights = np.array([0.299, 0.587, 0.114], np.float32)
    axis = np.linalg.eigh(moments)[1][:, -1].astype(np.float32)
    if weights @ moments @ weights >= 0.25 * (axis @ moments @ axis):
        return luma
    axis *= np.sign(axis @ weights) or 1.0
    return np.clip(127.5 + (deviation @ axis) / np.abs(axis).sum(), 0, 255)


def _digit_only(ink: np.ndarray) -> np.ndarray:
    """(H, W) ink, 0 to 1, of the strokes alone, stretched to full contrast; all zero if there are none."""
    floor = max(BLANK, 4 * noise_of(ink))
    label, parts = components(ink > floor)
    parts = _strokes(parts, ink.shape, label)
    if not parts:
        return np.zeros_like(ink)
    mine = np.isin(label, [part.index for part in parts])
    peak = float(np.percentile(ink[mine], 80))
    label, parts = components(mine & (ink > 0.4 * peak))
    parts = _strokes(parts, ink.shape, label)
    core = np.isin(label, [part.index for part in parts])
    soft = dilate(core.astype(np.float32), 2) > 0  # the grey rim of the strokes belongs to them
    return np.where(soft & mine, np.clip(ink / peak, 0, 1), 0).astype(np.float32)


def _strokes(parts: list[Component], shape: tuple[int, int], label: np.ndarray) -> list[Component]:
    """Those components that are strokes of the digit: no frame around it, no margin beside it, no speck."""
    parts = _without_specks(parts, 0.02)
    framed = [p for p in parts if _is_frame(p, label) and any(_inside(q, p) for q in parts if q is not p)]
    parts = [p for p in parts if p not in framed]
    free = [p for p in parts if not p.edges(shape)]
    if any(p.length >= 0.2 * max(shape) for p in free):
        parts = [p for p in parts if p.edges(shape) < 2 and p.span(shape) < 0.6]
    return _without_specks(parts, 0.03)


def _without_specks(parts: list[Component], share: float) -> list[Component]:
    least = max(2, share * max((p.area for p in parts), default=0))
    return [p for p in parts if p.area >= least]


def _is_frame(part: Component, label: np.ndarray) -> bool:
    """Whether all four sides of its bounding box are drawn along most of their length."""
    own = label[part.top : part.bottom, part.left : part.right] == part.index
    band_y, band_x = max(1, round(0.06 * own.shape[0])), max(1, round(0.06 * own.shape[1]))
    sides = own[:band_y].any(0), own[-band_y:].any(0), own[:, :band_x].any(1), own[:, -band_x:].any(1)
    return min(side.mean() for side in sides) > 0.7


def _inside(inner: Component, outer: Component) -> bool:
    within = outer.top < inner.top and outer.left < inner.left
    within = within and inner.bottom < outer.bottom and inner.right < outer.right
    return within and inner.length >= 0.2 * outer.length


def _restore_strokes(ink: np.ndarray) -> np.ndarray:
    """`ink` with strokes that would be far thinner or wider than MNIST's brought near to its widths."""
    strokes = ink > 0.5
    box = _bounds(strokes)
    if box is None:
        return ink
    long = max(box[2] - box[0], box[3] - box[1])
    width = stroke_width(strokes)
    if STROKE_LEAST <= width * BOX / long <= STROKE_MOST:
        return ink
    # Radius r such that (width + 2 r) / (long + 2 r) = share.
    share = (STROKE_MEDIAN if width * BOX / long < STROKE_LEAST else STROKE_MOST) / BOX
    radius = round((share * long - width) / (2 * (1 - share)))
    if radius < 0:
        return -dilate(-ink, -radius)
    return dilate(np.pad(ink, radius), radius)


def _place(ink: np.ndarray) -> np.ndarray:
    """(28, 28) uint8: the bounding box of (H, W) `ink` scaled to 20 pixels and centred by its mass."""
    canvas = np.zeros((SIDE, SIDE), np.uint8)
    box = _bounds(ink > 0.5)
    if box is None:
        return canvas
    top, left, bottom, right = box
    scale = BOX / max(bottom - top, right - left)
    height, width = max(1, round((bottom - top) * scale)), max(1, round((right - left) * scale))
    digit = resize(ink[top:bottom, left:right], (height, width), Image.Resampling.BOX)
    digit = np.rint(255 * np.clip(digit / max(digit.max(), 1e-6), 0, 1))
    mass = digit.sum()
    y = round(SIDE / 2 - float((digit.sum(1) * np.arange(height)).sum() / mass))
    x = round(SIDE / 2 - float((digit.sum(0) * np.arange(width)).sum() / mass))
    y, x = min(max(y, 0), SIDE - height), min(max(x, 0), SIDE - width)
    canvas[y : y + height, x : x + width] = digit
    return canvas


def _relevel(grey: np.ndarray) -> np.ndarray:
    """A 28x28 picture as light on black, each pixel in its place."""
    if is_ink_on_paper(grey):
        grey = 255 - grey
    plane = background_plane(grey)
    if np.abs(plane).max() <= BLACK_ENOUGH and grey.max() >= WHITE_ENOUGH:
        return np.rint(grey).astype(np.uint8)
    ink = np.clip(grey - plane, 0, None)
    if ink.max() < 255 * BLANK:
        return np.zeros((SIDE, SIDE), np.uint8)
    return np.rint(ink * (255 / ink.max())).astype(np.uint8)


def _bounds(mask: np.ndarray) -> tuple[int, int, int, int] | None:
    """(top, left, bottom, right) of the true pixels of (H, W) `mask`, ends excluded; None if there are none."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not rows.size:
        return None
    return int(rows[0]), int(columns[0]), int(rows[-1]) + 1, int(columns[-1]) + 1


def _work_size(image: Image.Image) -> Image.Image:
    """`image` with its long side in the range that is worked on, 8 bits, opaque."""
    image = to_mode(image, "RGB")
    long = max(image.size)
    goal = min(max(long, WORK_LEAST), WORK_MOST)
    if goal == long:
        return image
    size = (max(1, round(image.width * goal / long)), max(1, round(image.height * goal / long)))
    return image.resize(size, Image.Resampling.BOX if goal < long else Image.Resampling.BICUBIC)
