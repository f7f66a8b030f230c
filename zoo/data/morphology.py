"""Shapes in a grey picture, by numpy alone: connected components, dilation, closing, the width of strokes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Component:
    """A connected set of pixels: its number in the label image, its pixel count and its box, ends excluded."""

    index: int
    area: int
    top: int
    left: int
    bottom: int
    right: int

    @property
    def length(self) -> int:
        """The longer side of the bounding box, in pixels."""
        return max(self.bottom - self.top, self.right - self.left)

    def edges(self, shape: tuple[int, int]) -> int:
        """How many of the four edges of a picture of this shape (H, W) it touches."""
        return (self.top == 0) + (self.left == 0) + (self.bottom == shape[0]) + (self.right == shape[1])

    def span(self, shape: tuple[int, int]) -> float:
        """The greatest share of a picture's edge that it runs along, among the edges that it touches."""
        height, width = shape
        along_y = (self.bottom - self.top) / height if self.left == 0 or self.right == width else 0.0
        along_x = (self.right - self.left) / width if self.top == 0 or self.bottom == height else 0.0
        return max(along_y, along_x)


def components(mask: np.ndarray) -> tuple[np.ndarray, list[Component]]:
    """The connected sets of true pixels, diagonal neighbours included.

    Runs of true pixels along the rows are joined to those they touch in the row above, by union-find.

    Parameters
    ----------
    mask
        (H, W) bool.

    Returns
    -------
    label: (H, W) int32, 0 outside, and the components in the order of their numbers, which start at 1.
    """
    height, width = mask.shape
    padded = np.zeros((height, width + 2), np.int8)
    padded[:, 1:-1] = mask
    step = np.diff(padded, axis=1)
    rows, starts = np.nonzero(step == 1)
    ends = np.nonzero(step == -1)[1]
    first = np.searchsorted(rows, np.arange(height + 1)).tolist()
    begin, end = starts.tolist(), ends.tolist()
    parent = list(range(len(begin)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for y in range(1, height):
        i, j = first[y - 1], first[y]
        while i < first[y] and j < first[y + 1]:
            if begin[i] <= end[j] and begin[j] <= end[i]:
                parent[root(j)] = root(i)
            if end[i] < end[j]:
                i += 1
            else:
                j += 1

    roots = np.array([root(i) for i in range(len(parent))], np.int64)
    names, run = np.unique(roots, return_inverse=True)
    label = np.zeros((height, width), np.int32)
    label[mask] = np.repeat(run + 1, ends - starts)
    count = len(names)
    area = np.bincount(run, ends - starts, count).astype(np.int64)
    box = np.array([[height], [width], [0], [0]]) * np.ones((1, count), np.int64)
    for row, values, least in ((0, rows, True), (1, starts, True), (2, rows + 1, False), (3, ends, False)):
        (np.minimum if least else np.maximum).at(box[row], run, values)
    return label, [Component(i + 1, int(area[i]), *box[:, i].tolist()) for i in range(count)]


def dilate(values: np.ndarray, radius: int) -> np.ndarray:
    """(H, W) greatest value within `radius` pixels: squares and crosses by turns, which make an octagon."""
    for i in range(radius):
        padded = np.pad(values, 1, constant_values=-math.inf)
        across = np.maximum(np.maximum(padded[:, :-2], padded[:, 2:]), padded[:, 1:-1])
        if i % 2:
            values = np.maximum(np.maximum(across[:-2], across[2:]), across[1:-1])
        else:
            values = np.maximum(np.maximum(padded[:-2, 1:-1], padded[2:, 1:-1]), across[1:-1])
    return values


def remove_small_dark(values: np.ndarray, size: int, *, extend: bool) -> np.ndarray:
    """Grey closing of (H, W) values by a square of `size` (odd) pixels: dark structures that hold no such square go.

    `extend` continues the picture beyond its edges with the values there; without it nothing lies beyond.
    """
    reach = size // 2
    if extend:
        values = np.pad(values, reach, mode="edge")
    for axis in (0, 1):
        values = _running_max(values, reach, axis)
    for axis in (0, 1):
        values = -_running_max(-values, reach, axis)
    return values[reach:-reach, reach:-reach] if extend and reach else values


def _running_max(values: np.ndarray, reach: int, axis: int) -> np.ndarray:
    """Greatest value within `reach` pixels to either side along `axis`, fewer at the edges."""
    pad = [(reach, reach) if a == axis else (0, 0) for a in (0, 1)]
    padded = np.pad(values, pad, constant_values=-math.inf)
    return np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1, axis).max(-1)


def stroke_width(strokes: np.ndarray) -> float:
    """Mean width, in pixels, of the strokes in (H, W) bool `strokes`: twice their area over their perimeter.

    The perimeter is that of Cauchy and Crofton: pi/4 times the number of changes along rows and columns.
    """
    padded = np.pad(strokes, 1)
    changes = (padded[1:] != padded[:-1]).sum() + (padded[:, 1:] != padded[:, :-1]).sum()
    return float(2 * strokes.sum() / max(math.pi / 4 * changes, 1))
