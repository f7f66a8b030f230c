"""phi_1(Z) U for the core of a skew exponential: one Chebyshev series, and its adjoint by hand.

With spectrum ±i theta, 0 <= theta <= rho, phi_1(Z) = (e^Z - 1)/Z splits into

    phi_1(Z) = e(Z^2) + Z o(Z^2),   e = sin(theta)/theta,   o = (1 - cos(theta))/theta^2,

both entire in theta^2. In x = 2 theta^2/rho^2 - 1 the action is sum_j T_j(X) (e_j U + o_j Z U). Half the degrees are
saved by T_2i(x) = T_i(y) and T_2i+1(x) = x W_i(y) with y = 2 x^2 - 1: with s = -2/rho^2 it is

    sum_i T_i(Y) (a_i U + b_i Z U + c_i W U + d_i W Z U),   W = Z^2,   Y = I + V/2,   V = 4 s^2 W^2 - 8 s W,

by Clenshaw's recurrence one thin product for two degrees. It runs on W and V, which vanish with Z, and on the
differences of its terms (Reinsch): so a norm far below rho loses nothing to rounding the identity away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from zoo.ops._modes import transformed

Series = tuple[tuple[float, float, float, float], ...]


def coefficients(rho: float, eps: float) -> list[tuple[float, float]]:
    """The pairs (e_j, o_j), j = 0..degree, that hold on 0 <= theta <= rho to the rounding unit `eps`.

    From e = int_0^1 cos(s theta) ds, o = int_0^1 (1 - s) cos(s theta) ds and the Jacobi-Anger series,

        e_j = w_j (2 / rho) A_{2j+1},     A_n = J_n(rho) + A_{n+2},
        o_j = w_j (4 / rho^2) B_{2j+2},   B_n = A_n + B_{n+2},     w_j = (2 - [j = 0]) (-1)^j,

    J_n the Bessel functions, by Miller's backward recurrence: every coefficient to full relative
    precision. What is cut off, weighted as it enters S phi_1(S) (rho |e_j| + rho^2 |o_j|), stays below half
    the error eps * max(1, rho) that rounding S makes.
    """
    start = 2 * int(rho / 2 + 6 * rho ** (1 / 3) + 20)
    bessel = [0.0] * (start + 3)
    bessel[start] = 1e-300
    for n in range(start, 0, -1):
        bessel[n - 1] = (2 * n / rho) * bessel[n] - bessel[n + 1]
    scale = 1.0 / (bessel[0] + 2.0 * math.fsum(bessel[2::2]))
    first = [scale * value for value in bessel]
    second = first.copy()
    for n in range(start, -1, -1):
        first[n] += first[n + 2]
        second[n] = first[n] + second[n + 2]
    pairs, rest, degree = [], 0.0, 3
    for j in range(start // 2):
        weight = (2.0 if j else 1.0) * (-1.0) ** j
        pairs.append((weight * 2 / rho * first[2 * j + 1], weight * 4 / rho**2 * second[2 * j + 2]))
    for j in range(len(pairs) - 1, 3, -1):
        rest += rho * abs(pairs[j][0]) + rho * rho * abs(pairs[j][1])
        if rest > 0.5 * eps * max(1.0, rho):
            degree = j | 1  # an even degree would cost as much as the odd one above it
            break
    return pairs[: degree + 1]


def series(rho: float, eps: float) -> Series:
    """The quadruples (a_i, b_i, c_i, d_i) of the module's docstring, from `coefficients`, computed once."""
    compiling = torch.compiler.is_dynamo_compiling()  # which traces through a cache, and warns of it
    return _series(rho, eps) if compiling else _cached_series(rho, eps)


def _series(rho: float, eps: float) -> Series:
    pairs = coefficients(rho, eps)
    odd_part = [[0.0, 0.0] for _ in pairs[1::2]]
    for i, (even, odd) in enumerate(pairs[1::2]):
        for j in range(i + 1):  # W_i(y) = 2 T_i - 2 T_{i-1} + ... ± T_0
            weight = (-1.0) ** (i - j) * (2.0 if j else 1.0)
            odd_part[j][0] += weight * even
            odd_part[j][1] += weight * odd
    s = -2.0 / rho**2  # x = s w - 1
    return tuple((a - c, b - d, s * c, s * d) for (a, b), (c, d) in zip(pairs[0::2], odd_part, strict=True))


_cached_series = lru_cache(maxsize=256)(_series)


def action(z: Tensor, u: Tensor, rho: float, table: Series) -> tuple[Tensor, ...]:
    """phi_1(Z) U, and what its adjoint needs.

    z: (batch, m, m), u: (batch, m, n). Returns the result, then Z U, W, V, `_within` and the differences of
    Clenshaw's terms. Where (tr Z^4 / 2)^(1/4), an upper bound of |theta|, exceeds rho, the result is NaN.
    """
    s = -2.0 / rho**2
    w = torch.bmm(z, z)
    v = torch.baddbmm(w, w, w, beta=-8.0 * s, alpha=4.0 * s * s)
    zu = torch.bmm(z, u)
    sides = _mix(table, [u, zu, torch.bmm(w, u), torch.bmm(w, zu)])
    term = sides.pop()
    steps = [term]
    while len(sides) > 1:
        steps.append(_plus(sides.pop().add_(steps[-1]), v, term))
        term = term + steps[-1]
    within = _within(w, v, s)
    result = _plus(sides.pop().add_(steps[-1]), v, term, 0.5) * within
    return (result, zu, w, v, within, *steps[::-1])


def _plus(total: Tensor, left: Tensor, right: Tensor, alpha: float = 1.0) -> Tensor:
    """total + alpha left right, in place but where torch.vmap may see it, which knows no rule for that."""
    if transformed() or torch.compiler.is_compiling():
        return torch.baddbmm(total, left, right, alpha=alpha)
    return total.baddbmm_(left, right, alpha=alpha)


def _within(w: Tensor, v: Tensor, s: float) -> Tensor:
    """1 where tr Z^4 <= 2 rho^4, NaN elsewhere: (batch, 1, 1). A factor, so that gradients are NaN too.

    tr V = 4 s^2 tr Z^4 - 8 s tr W.
    """
    trace = torch.add(v.diagonal(dim1=-2, dim2=-1), w.diagonal(dim1=-2, dim2=-1), alpha=8.0 * s).sum(-1)
    return torch.where(trace <= 32.0, 1.0, math.nan).to(w.dtype)[:, None, None]


def action_adjoint(
    z: Tensor, u: Tensor, rho: float, table: Series, saved: tuple[Tensor, ...], turned: Tensor
) -> tuple[Tensor, Tensor]:
    """The adjoint of `action` for Z = J G, G symmetric, in turned coordinates.

    J Z^T = -Z J, so J times every gradient follows the recurrence of `action` itself, with Z for Z^T: nothing
    is transposed. J^T W and J^T V are skew, so of their gradients the skew part alone counts, and the two
    products of a squaring's adjoint fall into one.

    turned: J times the gradient of the result; `saved` what `action` returned after it. Returns (Gamma, J gradient
    of U), Gamma + Gamma^T the gradient of G as it enters G = M^T M.
    """
    zu, w, v, within, *steps = saved
    s = -2.0 / rho**2
    now = turned * within
    step = torch.bmm(v, now).mul_(0.5)
    past = now * 0.5  # the sum of the terms so far, the first of them half
    skew_v = torch.bmm(past, steps[0].mT)
    terms = [now]
    for i in range(1, len(table)):
        now = now + step
        terms.append(now)
        if i + 1 < len(table):
            step.baddbmm_(v, now)
            past.add_(now)
            skew_v.baddbmm_(past, steps[i].mT)
    grad_u, grad_zu, grad_wu, grad_wzu = _mix(tuple(zip(*table, strict=True)), terms)
    skew_w = skew_v.baddbmm_(w, skew_v - skew_v.mT, beta=8.0 * s, alpha=-4.0 * s * s)
    skew_w.baddbmm_(grad_wu, u.mT, alpha=-1.0).baddbmm_(grad_wzu, zu.mT, alpha=-1.0)
    grad_zu.baddbmm_(w, grad_wzu)
    grad_u.baddbmm_(w, grad_wu).baddbmm_(z, grad_zu, alpha=-1.0)
    gamma = torch.bmm(z, skew_w.mT - skew_w)
    return gamma.baddbmm_(grad_zu, u.mT, alpha=-1.0), grad_u


def _mix(weights: Sequence[Sequence[float]], parts: list[Tensor]) -> list[Tensor]:
    """sum_j weights[i][j] parts[j] for every i.

    Sums where they are cheap (a CPU) or fused (torch.compile); one product where every operator costs a start
    (a GPU, ONNX).
    """
    first = parts[0]
    exporting = torch.compiler.is_exporting()
    if not exporting and (first.device.type == "cpu" or torch.compiler.is_compiling()):
        sums = [first * row[0] for row in weights]
        for total, row in zip(sums, weights, strict=True):
            for part, weight in zip(parts[1:], row[1:], strict=True):
                total.add_(part, alpha=weight)
        return sums
    make = _matrix if exporting or type(first) is not Tensor else _cached_matrix
    product = make(tuple(map(tuple, weights)), first.dtype, first.device) @ torch.stack(parts).flatten(1)
    product = product.view(len(weights), *first.shape)
    return [product[i] for i in range(len(weights))]


def _matrix(weights: tuple[tuple[float, ...], ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(weights, dtype=dtype, device=device)


_cached_matrix = lru_cache(maxsize=64)(_matrix)  # a GPU waits for it once, not at every call
