"""Frame any picture of one digit as MNIST framed its own: light strokes on black, 28x28, 20 pixels tall, centred by mass.

    frame_digit(Image.open("scan.png"))  ->  (28, 28) uint8

How it tells ink on paper from light on dark (`is_ink_on_paper`): the background is what the picture's edge shows;
the picture is ink on paper, and is inverted, when its strokes are darker than that background.

MNIST: LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document recognition", 1998, section III.A:
the digits were scaled to fit a 20x20 box with their aspect ratio kept, which made them grey through anti-aliasing,
and placed in 28x28 so that their centre of mass is its centre.
"""

from __future__ import annotations

import math

import numpy as np
from PIL import Image

from zoo.data.images import to_mode
from zoo.data.morphology import Component, components, dilate, remove_small_dark, stroke_width

SIDE, BOX = 28, 20

# In MNIST's 28x28 a stroke is 2.3 pixels wide in the median digit and 1.6 in the fifth percentile, by `stroke_width`
# on eightfold enlargements. Thinner ones, as of a fine pen in a large scan, are brought to the median.
STROKE_MEDIAN, STROKE_LEAST, STROKE_MOST = 2.3, 1.6, 3.6

# A picture is worked on with its long side in this range: less wastes no time, more shows no more of a digit.
WORK_LEAST, WORK_MOST = 128, 512
COARSE = 64  # long side of the copy on which the background is judged

# Grey levels (of 255) and fractions of full contrast that count as nothing.
BLANK = 0.04
BLACK_ENOUGH, WHITE_ENOUGH = 16, 128


def frame_digit(image: Image.Image) -> np.ndarray:
    """The digit in `image` as MNIST would hold it: (28, 28) uint8, strokes light, ground black.

    * 28x28 and light on dark: it is taken to be framed already and comes back byte for byte.
    * 28x28 and ink on paper: inverted, nothing else, so that it gives what its negative gives.
    * 28x28 whose ground is far from black (or white), or whose strokes are faint: as above, and the level of the
      ground is taken away and the contrast stretched, each pixel in its place.
    * Any other size: the sheet is found if its surroundings are in the picture, uneven light is evened out, frames,
      margins and specks are dropped, strokes too fine for 28x28 are thickened; what is left is cut out, scaled with
      antialiasing so that its long side is 20 pixels, and pasted with its centre of mass at the centre.

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
    deviation = colours - np.median(colours[_ring(luma.shape)], axis=0)
    moments = np.einsum("hwi,hwj->ij", deviation, deviation) / luma.size
    weights = np.array([0.299, 0.587, 0.114], np.float32)
    axis = np.linalg.eigh(moments)[1][:, -1].astype(np.float32)
    if weights @ moments @ weights >= 0.25 * (axis @ moments @ axis):
        return luma
    axis *= np.sign(axis @ weights) or 1.0
    return np.clip(127.5 + (deviation @ axis) / np.abs(axis).sum(), 0, 255)


def is_ink_on_paper(grey: np.ndarray) -> bool:
    """Whether the strokes are darker than the background that the picture's edge shows.

    The background is a plane fitted to the pixels along the edge, in the sense of least absolute
    deviations, so that neither uneven light nor a stroke that touches the edge misleads it: on an even background it
    is their median. The strokes are what lies further from it than the noise; the darker side wins if the sum of its
    squared distances is the greater.

    Parameters
    ----------
    grey
        (H, W), 0 to 255.
    """
    grey = _coarse(grey)
    plane = background_plane(grey)
    distance = grey - plane
    noise = 3 * 1.4826 * np.median(np.abs(distance[_ring(grey.shape)]))
    darker = np.clip(-distance - noise, 0, None)
    lighter = np.clip(distance - noise, 0, None)
    return bool((darker**4).sum() > (lighter**4).sum())


def background_plane(grey: np.ndarray) -> np.ndarray:
    """(H, W) plane through the edge of (H, W) `grey`, by iteratively reweighted least squares (L1).

    A plane and no higher: four strokes that touch the four sides make a saddle, and would be taken for ground.
    """
    height, width = grey.shape
    y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    terms = np.stack([np.ones_like(x), x, y], -1)
    ring = _ring(grey.shape)
    basis, values = terms[ring], grey[ring].astype(np.float64)
    fitted = np.full_like(values, np.median(values))
    coefficients = np.zeros(3)
    for _ in range(8):
        weights = 1 / np.maximum(np.abs(values - fitted), 1.0)
        # The ridge keeps the plane level where the edge says nothing (a picture one or two pixels wide).
        normal = (basis.T * weights) @ basis + 1e-6 * np.eye(3) * weights.sum()
        coefficients = np.linalg.solve(normal, (basis.T * weights) @ values)
        fitted = basis @ coefficients
    level = np.median(values)
    if np.abs(values - fitted).sum() > 0.2 * np.abs(values - level).sum():
        return np.full(grey.shape, level)
    return terms @ coefficients


def crop_to_sheet(grey: np.ndarray, depth: int = 2) -> np.ndarray:
    """The part of (H, W) `grey` that is the sheet, if its edge shows what the sheet lies on; else `grey`.

    A sheet is a rectangle that differs from the surroundings, covers a quarter of the picture at least, is whole but
    for some strokes, and has something on it: a bar, which may be a digit 1, has not.
    """
    small = _coarse(grey)
    distance = np.abs(small - background_plane(small))
    peak = np.percentile(distance, 99)
    if peak < 40:
        return grey
    mask = distance > peak / 2
    top, left, bottom, right = 0, 0, *mask.shape
    while bottom - top > 2 and right - left > 2:
        part = mask[top:bottom, left:right]
        cover = [part[0].mean(), part[-1].mean(), part[:, 0].mean(), part[:, -1].mean()]
        side = int(np.argmin(cover))
        if cover[side] >= 0.9:
            break
        top, bottom, left, right = top + (side == 0), bottom - (side == 1), left + (side == 2), right - (side == 3)
    part = mask[top:bottom, left:right]
    if part.size < mask.size / 4 or part.mean() < 0.7 or part.size > 0.95 * mask.size:
        return grey
    scale_y, scale_x = grey.shape[0] / mask.shape[0], grey.shape[1] / mask.shape[1]
    inset = 2  # coarse pixels: the sheet's own edge, and a slight turn of it, stay outside
    rows = slice(math.ceil((top + inset) * scale_y), int((bottom - inset) * scale_y))
    columns = slice(math.ceil((left + inset) * scale_x), int((right - inset) * scale_x))
    sheet = grey[rows, columns]
    if min(sheet.shape) < 8:
        return grey
    inner = _coarse(sheet)
    if np.percentile(np.abs(inner - background_plane(inner)), 99) < 25:
        return grey
    return crop_to_sheet(sheet, depth - 1) if depth > 1 else sheet


def ink_on(grey: np.ndarray) -> np.ndarray:
    """How much ink lies on each pixel: (H, W) float32, about 0 on the ground, at most 1, of a light-on-dark picture.

    Light falls on ground and ink alike, so ink is the share of light that the negative loses, 1 - negative / ground.
    The ground is the plane through the edge, times what remains of the negative over that plane when every dark
    structure narrower than 0.4 of the long side is taken out. If no stroke touches the edge, what the edge shows
    goes on beyond it, so that the shadow at one side stays ground however narrow it is.
    """
    negative = 255 - grey
    coarse = _coarse(negative)
    plane = np.maximum(background_plane(coarse), 0.1 * coarse.max() + 1)
    even = coarse / plane
    edge = even[_ring(even.shape)]
    free = np.percentile(edge, 2) > (np.median(edge) + np.percentile(even, 1)) / 2
    ground = plane * remove_small_dark(even, round(0.4 * max(even.shape)) | 1, extend=bool(free))
    ground = np.maximum(_resize(ground, grey.shape, Image.Resampling.BILINEAR), 1.0)
    ink = _level(1 - negative / ground)
    noise = _noise(ink)
    if noise > 0.05:
        ink = _level(_blur(ink, 1.0 if noise < 0.1 else 2.0))
    return ink


def _level(ink: np.ndarray) -> np.ndarray:
    """`ink` with the median of the ground, which noise moves, at zero."""
    return ink - np.median(ink[ink <= np.percentile(ink, 99) / 2])


def _noise(ink: np.ndarray) -> float:
    """Standard deviation of the ground, from the half of it that no ink can reach."""
    below = ink[ink <= 0]
    return float(1.4826 * np.median(-below)) if below.size else 0.0


def _digit_only(ink: np.ndarray) -> np.ndarray:
    """(H, W) ink, 0 to 1, of the strokes alone, stretched to full contrast; all zero if there are none."""
    floor = max(BLANK, 4 * _noise(ink))
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
    """`ink` with strokes that would be thinner than MNIST's thickened to the width that they have there."""
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
    digit = _resize(ink[top:bottom, left:right], (height, width), Image.Resampling.BOX)
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


def _ring(shape: tuple[int, int]) -> np.ndarray:
    """(H, W) bool: the pixels along the edge, a twenty-fifth of the short side deep."""
    depth = max(1, round(0.04 * min(shape)))
    ring = np.ones(shape, bool)
    ring[depth:-depth, depth:-depth] = False
    return ring


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


def _coarse(values: np.ndarray) -> np.ndarray:
    """(H, W) values with their long side reduced to COARSE, if it is longer."""
    long = max(values.shape)
    if long <= COARSE:
        return values
    shape = tuple(max(1, round(n * COARSE / long)) for n in values.shape)
    return _resize(values, shape, Image.Resampling.BOX)


def _resize(values: np.ndarray, shape: tuple[int, ...], kernel: Image.Resampling) -> np.ndarray:
    picture = Image.fromarray(np.ascontiguousarray(values, np.float32))
    return np.asarray(picture.resize((shape[1], shape[0]), kernel))


def _blur(values: np.ndarray, sigma: float) -> np.ndarray:
    """(H, W) values under a Gaussian of `sigma` pixels, separably, edges repeated."""
    reach = math.ceil(3 * sigma)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    kernel /= kernel.sum()
    for axis in (0, 1):
        padded = np.pad(values, [(reach, reach) if a == axis else (0, 0) for a in (0, 1)], mode="edge")
        windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1, axis)
        values = windows @ kernel.astype(np.float32)
    return values
