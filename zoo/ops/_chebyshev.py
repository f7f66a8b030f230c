"""phi_1(Z) U for the core of a skew exponential, as one Chebyshev series in Z^2.

With spectrum ±i theta, 0 <= theta <= rho, phi_1(Z) = (e^Z - 1)/Z splits into

    phi_1(Z) = e(Z^2) + Z o(Z^2),   e = sin(theta)/theta,   o = (1 - cos(theta))/theta^2,

both entire in theta^2. In x = 2 theta^2/rho^2 - 1, that is X = -(2/rho^2) Z^2 - I, the action is
sum_j T_j(X) (e_j U + o_j Z U), by Clenshaw's recurrence one thin matrix product a degree, and its
adjoint runs the same recurrence the other way.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

Table = tuple[tuple[float, float], ...]


@lru_cache(maxsize=256)
def coefficients(rho: float, eps: float) -> Table:
    """The pairs (e_j, o_j), j = 0..degree, that hold on 0 <= theta <= rho to the rounding unit `eps`.

    From e = int_0^1 cos(s theta) ds, o = int_0^1 (1 - s) cos(s theta) ds and the Jacobi-Anger series,

        e_j = w_j (2 / rho) A_{2j+1},     A_n = J_n(rho) + A_{n+2},
        o_j = w_j (4 / rho^2) B_{2j+2},   B_n = A_n + B_{n+2},     w_j = (2 - [j = 0]) (-1)^j,

    J_n the Bessel functions, by Miller's backward recurrence: every coefficient to full relative
    precision. What is cut off, weighted as it enters S phi_1(S) (rho |e_j| + rho^2 |o_j|), stays below an
    eighth of the error eps * max(1, rho) that rounding S makes.
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
    table, cut = [], 0.0
    for j in range(start // 2 - 1, -1, -1):
        sign = (2.0 if j else 1.0) * (-1.0) ** j
        even, odd = sign * 2 / rho * first[2 * j + 1], sign * 4 / rho**2 * second[2 * j + 2]
        cut += rho * abs(even) + rho * rho * abs(odd)
        if j < 2 or cut > 0.125 * eps * max(1.0, rho):
            table.append((even, odd))
    return tuple(reversed(table))


def clenshaw(twice_x: Tensor, u: Tensor, zu: Tensor, table: Table) -> list[Tensor]:
    """Clenshaw's terms b_0, b_1, ..., b_degree; b_0 is sum_j T_j(X) (e_j U + o_j Z U).

    twice_x: (batch, m, m), holding 2X. u, zu: (batch, m, n).
    """
    terms: list[Tensor] = []
    for j in range(len(table) - 1, -1, -1):
        even, odd = table[j]
        term = torch.mul(u, even).add_(zu, alpha=odd)
        if len(terms) > 1:
            term.sub_(terms[-2])
        if terms:
            term.baddbmm_(twice_x, terms[-1], alpha=1.0 if j else 0.5)
        terms.append(term)
    return terms[::-1]


def clenshaw_adjoint(
    twice_x: Tensor, terms: list[Tensor], table: Table, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of 2X, U and ZU from the gradient of b_0 and the stored terms of `clenshaw`."""
    transposed = twice_x.mT
    grad_u, grad_zu = torch.mul(grad, table[0][0]), torch.mul(grad, table[0][1])
    grad_twice_x = torch.bmm(grad, terms[1].mT).mul_(0.5)
    before, now = grad, torch.bmm(transposed, grad).mul_(0.5)
    for j in range(1, len(table)):
        grad_u.add_(now, alpha=table[j][0])
        grad_zu.add_(now, alpha=table[j][1])
        if j + 1 < len(table):
            grad_twice_x.baddbmm_(now, terms[j + 1].mT)
            before, now = now, torch.baddbmm(before, transposed, now, beta=-1.0)
    return grad_twice_x, grad_u, grad_zu
