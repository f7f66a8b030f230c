"""The paper that a digit stands on: what is ground and what is ink, which is darker, and where the sheet ends.

Grounds are judged on a copy whose long side is `COARSE` pixels. Arrays are (H, W), from 0 to 255 unless said otherwise.
"""

from __future__ import annotations

import math

import numpy as np
from PIL import Image

from zoo.data.morphology import remove_small_dark

COARSE = 64


def is_ink_on_paper(grey: np.ndarray) -> bool:
    """Whether the strokes are darker than the background that the picture's edge shows.

    Each pixel is compared with the four ends of its row and its column. It is darker than the background by as much
    as it is darker than three of the four at least, and lighter likewise; so neither a slope of the light, nor the
    border of a shadow, nor a stroke that touches the edge counts. The side whose squares have the greater sum wins.

    Parameters
    ----------
    grey
        (H, W), 0 to 255.
    """
    grey = _coarse(grey)
    depth = _depth(grey.shape)
    ends = [
        np.broadcast_to(end, grey.shape)
        for end in (
            np.median(grey[:depth], 0, keepdims=True),
            np.median(grey[-depth:], 0, keepdims=True),
            np.median(grey[:, :depth], 1, keepdims=True),
            np.median(grey[:, -depth:], 1, keepdims=True),
        )
    ]
    _, second, third, _ = np.sort(np.stack(ends), 0)
    darker = np.clip(second - grey, 0, None)
    lighter = np.clip(grey - third, 0, None)
    return bool((darker**2).sum() > (lighter**2).sum())


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
    top, left = 0, 0
    bottom, right = mask.shape
    while bottom - top > 2 and right - left > 2:
        part = mask[top:bottom, left:right]
        cover = [part[0].mean(), part[-1].mean(), part[:, 0].mean(), part[:, -1].mean()]
        side = int(np.argmin(cover))
        if cover[side] >= 0.9:
            break
        top, bottom = top + (side == 0), bottom - (side == 1)
        left, right = left + (side == 2), right - (side == 3)
    part = mask[top:bottom, left:right]
    free = (top > 0) + (left > 0) + (bottom < mask.shape[0]) + (right < mask.shape[1])
    if free < 2:  # the lit part of a picture with a shadow across it is no sheet
        return grey
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
    negative = 256 - grey  # above zero, so that a blank white picture has a ground too
    coarse = _coarse(negative)
    plane = np.maximum(background_plane(coarse), 0.1 * coarse.max() + 1)
    even = coarse / plane
    edge = even[edge_ring(even.shape)]
    free = np.percentile(edge, 2) > (np.median(edge) + np.percentile(even, 1)) / 2
    ground = plane * remove_small_dark(even, round(0.4 * max(even.shape)) | 1, extend=bool(free))
    ground = np.maximum(resize(ground, grey.shape, Image.Resampling.BILINEAR), 1.0)
    ink = _level(1 - negative / ground)
    noise = noise_of(ink)
    if noise > 0.05:
        ink = _level(_blur(ink, 1.0 if noise < 0.1 else 2.0))
    return ink


def noise_of(ink: np.ndarray) -> float:
    """Standard deviation of the ground, from the half of it that no ink can reach."""
    below = ink[ink <= 0]
    return float(1.4826 * np.median(-below)) if below.size else 0.0


def background_plane(grey: np.ndarray) -> np.ndarray:
    """(H, W) plane through the edge of (H, W) `grey`, by iteratively reweighted least squares (L1).

    A plane and no higher: four strokes that touch the four sides make a saddle, and would be taken for ground.
    """
    height, width = grey.shape
    y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    terms = np.stack([np.ones_like(x), x, y], -1)
    ring = edge_ring(grey.shape)
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


def _level(ink: np.ndarray) -> np.ndarray:
    """`ink` with the median of the ground, which noise moves, at zero."""
    return ink - np.median(ink[ink <= np.percentile(ink, 99) / 2])


def _depth(shape: tuple[int, ...]) -> int:
    """How many pixels deep the edge of a picture is: a twenty-fifth of its short side."""
    return max(1, round(0.04 * min(shape)))


def edge_ring(shape: tuple[int, ...]) -> np.ndarray:
    """(H, W) bool: the pixels of the edge."""
    depth = _depth(shape)
    ring = np.ones(shape, bool)
    ring[depth:-depth, depth:-depth] = False
    return ring


def _coarse(values: np.ndarray) -> np.ndarray:
    """(H, W) values with their long side reduced to COARSE, if it is longer."""
    long = max(values.shape)
    if long <= COARSE:
        return values
    shape = tuple(max(1, round(n * COARSE / long)) for n in values.shape)
    return resize(values, shape, Image.Resampling.BOX)


def resize(values: np.ndarray, shape: tuple[int, ...], kernel: Image.Resampling) -> np.ndarray:
    """(H, W) values at another shape (H, W), as float32, by one of Pillow's antialiasing kernels."""
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
