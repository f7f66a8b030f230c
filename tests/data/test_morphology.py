"""Shapes in a grey picture."""

from __future__ import annotations

import numpy as np
import pytest

from zoo.data.morphology import components, dilate, remove_small_dark, stroke_width


def test_components_join_what_touches_even_by_a_corner():
    rows = ["##...#.", "..#..#.", "#.....#", "#.####.", "......."]
    label, parts = components(np.array([[sign == "#" for sign in row] for row in rows]))
    assert sorted(part.area for part in parts) == [2, 3, 7]
    assert label[0, 0] == label[1, 2]
    assert label[2, 0] == label[3, 0] != label[0, 0]
    assert label[3, 2] == label[2, 6] == label[0, 5] != label[0, 0]
    for part in parts:
        own = label == part.index
        assert own.sum() == part.area
        assert own[part.top : part.bottom, part.left : part.right].sum() == part.area


def test_components_agree_with_a_flood_fill():
    mask = np.random.default_rng(0).random((25, 31)) < 0.45
    label, parts = components(mask)
    seen = np.zeros(mask.shape, int)
    count = 0
    for start in zip(*np.nonzero(mask), strict=True):
        if seen[start]:
            continue
        count += 1
        stack = [start]
        while stack:
            y, x = stack.pop()
            if 0 <= y < 25 and 0 <= x < 31 and mask[y, x] and not seen[y, x]:
                seen[y, x] = count
                stack += [(y + i, x + j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    assert len(parts) == count
    assert len({*zip(label.ravel().tolist(), seen.ravel().tolist(), strict=True)}) == count + 1
    assert components(np.zeros((3, 4), bool))[1] == []


def test_dilation_is_about_a_disc():
    point = np.zeros((41, 41))
    point[20, 20] = 1
    for radius in (1, 3, 8, 15):
        area = dilate(point, radius).sum()
        assert 0.8 * np.pi * radius**2 < area < 1.4 * np.pi * (radius + 0.5) ** 2
    assert (dilate(point, 0) == point).all()


def test_closing_removes_what_is_narrow_and_keeps_what_is_wide():
    values = np.ones((40, 60))
    values[10:14, 5:50] = 0.2
    values[20:, 30:] = 0.5
    closed = remove_small_dark(values, 9, extend=True)
    assert (closed[10:14] == 1).all()
    assert (closed[20:, 30:] == 0.5).all()


def test_the_width_of_a_stroke():
    bar = np.zeros((60, 400), bool)
    bar[20:30, 20:380] = True
    assert stroke_width(bar) == pytest.approx(10 * 4 / np.pi, rel=0.1)  # along an axis the estimate is 4/pi too high
