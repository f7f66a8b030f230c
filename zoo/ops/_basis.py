"""exp(S) V by a basis of the columns of M = [Q, K], as the source has it (arXiv 2602.05996, theorem 2.1 and section 3).

With B a basis and [S] = B^T S B,   exp(S) V = V + B (exp([S]) - I) B^T V.   Three bases:

- "qr": the orthonormal factor of M = B R. It is exp(S) V exactly, so it shares the gradient of the form without a
  basis; the derivative of a QR factorisation itself explodes where columns of M come to depend on each other.
- "newton-schulz", "polar-express": the last iterate of a polynomial iteration (`zoo.ops.polar`). Until it has converged
  B is not orthonormal, and the result is another function than exp(S) V: a model has to be used with the basis it was
  trained with. The source starts from M / (||M||_F + eps); eps is 0 here, so that the scale of M does not matter.

Shapes: q, k (..., heads, tokens, w), v (..., heads, tokens, n), m = 2 w; "batch" is all that comes before tokens, in
one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.ops._gram import gram_attention, scale
from zoo.ops._modes import transformed, watched
from zoo.ops._skew import bound_of, needs_double, phi1, plan, table_of
from zoo.ops.polar import MARGIN, iterate, schedule_of


def qr_attention(q: Tensor, k: Tensor, v: Tensor, alpha: float | Tensor, max_norm: float | None) -> Tensor:
    """exp(S) V by the QR factorisation of [Q, K]; its gradient, and its export, by the form without a basis."""
    if torch.compiler.is_exporting():  # there is no QR in ONNX, and no need of one: it is the same function
        return gram_attention(q, k, v, alpha, max_norm)
    if not transformed() and not watched(q, k, v, alpha):
        return _apply(basis_of(q, k, "qr"), q, k, v, alpha, max_norm)
    exact = gram_attention(q, k, v, alpha, max_norm)
    q, k, v = (x.detach() for x in (q, k, v))
    fixed = alpha.detach() if isinstance(alpha, Tensor) else alpha
    return exact + (_apply(basis_of(q, k, "qr"), q, k, v, fixed, max_norm) - exact).detach()


def iterated_attention(
    q: Tensor, k: Tensor, v: Tensor, alpha: float | Tensor, max_norm: float | None, method: str, steps: int | None
) -> Tensor:
    """V + B (exp([S]) - I) B^T V, B the last iterate of `method`; the gradient goes through the iteration."""
    return _apply(basis_of(q, k, method, steps), q, k, v, alpha, max_norm)


def basis_of(q: Tensor, k: Tensor, basis: str, steps: int | None = None) -> Tensor:
    """B: orthonormal (..., tokens, min(tokens, m)) by "qr", nearly so (..., tokens, m) by an iteration."""
    m = torch.cat((q, k), -1)
    return torch.linalg.qr(m).Q if basis == "qr" else iterate(m, schedule_of(basis, steps), MARGIN[basis])


def reduced(b: Tensor, q: Tensor, k: Tensor, alpha: float | Tensor) -> Tensor:
    """[S] = B^T S B: (batch, m, m), exactly skew."""
    half = scale(alpha, q) * ((b.mT @ q) @ (b.mT @ k).mT)
    return (half - half.mT).flatten(0, -3)


def _apply(b: Tensor, q: Tensor, k: Tensor, v: Tensor, alpha: float | Tensor, max_norm: float | None) -> Tensor:
    small, flat = reduced(b, q, k, alpha), b.flatten(0, -3)
    y = exp_minus_one(small, torch.bmm(flat.mT, v.flatten(0, -3)), max_norm)
    return v + torch.bmm(flat, y).view(v.shape)


def exp_minus_one(w: Tensor, u: Tensor, max_norm: float | None) -> Tensor:
    """(exp(W) - I) U = phi_1(W) (W U) of a skew W: (batch, m, m), u: (batch, m, n); NaN beyond `max_norm`."""
    rho, doublings = plan(bound_of(w) if max_norm is None else max_norm)
    if needs_double(doublings, w):
        return exp_minus_one(w.double(), u.double(), max_norm).to(w.dtype)
    return phi1(w, torch.bmm(w, u), rho, table_of(rho, doublings, w.dtype), doublings)
