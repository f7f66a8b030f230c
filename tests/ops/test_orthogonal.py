"""Orthogonal attention against its literal definition in float64, at the inputs where numerics break."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from zoo.ops import naive, orthogonal_attention


def sample(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3))
    return q, k, v


# --- accuracy -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_norm", [None, 14.0, 50.0])
@pytest.mark.parametrize("tokens", [1, 2, 3, 17, 65])
@pytest.mark.parametrize("lead", [(1, 3), (0, 3), (2, 3), (3,), (2, 2, 3)], ids=str)
def test_float64_is_exact(lead: tuple[int, ...], tokens: int, max_norm: float | None) -> None:
    q, k, v = sample(*lead, tokens, 5, dtype=torch.float64)
    alpha = torch.tensor([0.1, -0.2, 0.03], dtype=torch.float64)
    out = orthogonal_attention(q, k, v, alpha, max_norm=max_norm)
    truth = naive.orthogonal_attention(q, k, v, alpha)
    assert out.shape == v.shape
    assert (out - truth).norm() <= 1e-12 * v.norm()


@pytest.mark.parametrize("fixed", [False, True], ids=["data", "fixed"])
@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("generic 0.01", 5e-6),
        ("generic 0.3", 5e-6),
        ("generic 3", 5e-6),
        ("generic 8", 5e-6),
        ("generic 15", 5e-6),
        ("generic 30", 5e-6),
        ("near q", 5e-6),
        ("rank one", 5e-6),
        ("equal tokens", 2e-5),
        ("duplicated columns", 1e-5),
        ("large column", 5e-5),
        ("small large column", 5e-5),
        ("repeated token", 5e-6),
    ],
)
def test_float32_accuracy(
    name: str,
    bound: float,
    fixed: bool,
    build: Callable[..., tuple[Tensor, Tensor, Tensor, float]],
    norms: Callable[..., tuple[Tensor, Tensor]],
    error: Callable[..., float],
) -> None:
    *wide, alpha = build(name)
    q, k, v = (x.float() for x in wide)
    max_norm = 1.02 * float(norms(q, k, alpha)[1].max()) + 0.1 if fixed else None
    assert error(orthogonal_attention(q, k, v, alpha, max_norm=max_norm), q, k, v, alpha) <= bound


@pytest.mark.parametrize("name", ["near q", "rank one", "equal tokens", "duplicated columns", "large column"])
def test_float64_accuracy_at_awkward_inputs(
    name: str, build: Callable[..., tuple], error: Callable[..., float]
) -> None:
    q, k, v, alpha = build(name)
    assert error(orthogonal_attention(q, k, v, alpha), q, k, v, alpha) <= 2e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("max_norm", [None, 4000.0])
def test_one_batch_of_wildly_different_norms(
    dtype: torch.dtype, max_norm: float | None, norms: Callable[..., tuple[Tensor, Tensor]]
) -> None:
    q, k, v = sample(8, 1, 65, 16, dtype=torch.float64)
    sizes = torch.tensor([0.0, 1e-15, 1e-8, 1e-3, 0.1, 0.3, 1.0, 5.5])[:, None, None, None]
    q, k, v = (x.to(dtype) for x in (q * sizes, k * sizes, v))
    out = orthogonal_attention(q, k, v, 1.5, max_norm=max_norm).double()
    truth = naive.orthogonal_attention(q.double(), k.double(), v.double(), 1.5)
    errors = ((out - truth).norm(dim=(-2, -1)) / v.double().norm(dim=(-2, -1))).squeeze(1)
    size = norms(q.double(), k.double(), 1.5)[0].squeeze(1)
    assert size[-1] > 1200
    eps = torch.finfo(dtype).eps
    assert (errors <= 2 * eps * (size + 1)).all() if dtype == torch.float32 else (errors <= 16 * eps * (size + 1)).all()


@pytest.mark.parametrize("exponent", [-12, -6, -3, 3, 6, 12])
def test_only_the_product_of_scales_counts(exponent: int, error: Callable[..., float]) -> None:
    q, k, v = sample(2, 2, 33, 8)
    out = orthogonal_attention(q * 10.0**exponent, k * 10.0**-exponent, v, 0.3)
    assert error(out, q, k, v, 0.3) <= 5e-6


@pytest.mark.parametrize("exponent", range(-15, 9))
def test_a_rotation_at_every_scale(exponent: int) -> None:
    """Orthogonal to rounding, or NaN where the angles are lost; never something in between."""
    q, k, _ = sample(2, 2, 20, 4)
    identity = torch.eye(20).expand(2, 2, 20, 20)
    matrix = orthogonal_attention(q * 10.0**exponent, k * 10.0**exponent, identity, 1.0).double()
    if exponent >= 6:
        assert matrix.isnan().all()
    else:
        defect = torch.linalg.matrix_norm(matrix.mT @ matrix - torch.eye(20, dtype=torch.float64), 2)
        assert (defect <= (2e-6 if exponent < 4 else 1e-3)).all()


# --- what it is -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 2, 5, 12, 40])
@pytest.mark.parametrize("max_norm", [None, 8.0, 40.0])
def test_the_matrix_is_a_rotation(tokens: int, max_norm: float | None) -> None:
    q, k, v = sample(2, 3, tokens, 4, dtype=torch.float64)
    identity = torch.eye(tokens, dtype=torch.float64).expand(2, 3, tokens, tokens)
    matrix = orthogonal_attention(q, k, identity, 0.2, max_norm=max_norm)
    torch.testing.assert_close(matrix.mT @ matrix, identity, rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.linalg.det(matrix), torch.ones(2, 3, dtype=torch.float64), rtol=0, atol=1e-12)
    back = orthogonal_attention(q, k, matrix, -0.2, max_norm=max_norm)
    torch.testing.assert_close(back, identity, rtol=0, atol=1e-12)
    out = orthogonal_attention(q, k, v, 0.2, max_norm=max_norm)
    torch.testing.assert_close(out.norm(dim=-2), v.norm(dim=-2), rtol=1e-12, atol=0)
    torch.testing.assert_close(out, matrix @ v, rtol=0, atol=1e-12)


def test_permuted_tokens_give_the_permuted_result() -> None:
    q, k, v = sample(2, 3, 31, 8, dtype=torch.float64)
    order = torch.randperm(31, generator=torch.Generator().manual_seed(1))
    out = orthogonal_attention(q, k, v, 0.4)
    moved = orthogonal_attention(q[..., order, :], k[..., order, :], v[..., order, :], 0.4)
    torch.testing.assert_close(moved, out[..., order, :], rtol=0, atol=1e-12)


@pytest.mark.parametrize("value_dim", [1, 3, 30])
def test_values_may_have_another_width(value_dim: int, error: Callable[..., float]) -> None:
    q, k, _ = sample(2, 3, 17, 4)
    v = torch.randn(2, 3, 17, value_dim)
    assert error(orthogonal_attention(q, k, v, 0.5), q, k, v, 0.5) <= 5e-6


@pytest.mark.parametrize("alpha", [0.3, torch.tensor(0.3), torch.tensor([0.1, -0.2, 0.0]), 0, torch.tensor(1)], ids=str)
def test_alpha_may_be_a_number_or_a_tensor(alpha: float | Tensor, error: Callable[..., float]) -> None:
    q, k, v = sample(2, 3, 17, 4)
    assert error(orthogonal_attention(q, k, v, alpha), q, k, v, alpha) <= 5e-6


@pytest.mark.parametrize("max_norm", [None, 8.0, 100.0])
def test_no_rotation_gives_v_bit_for_bit(max_norm: float | None) -> None:
    q, k, v = sample(2, 3, 49, 16)
    nothing = torch.zeros_like(q)
    heads = torch.tensor([0.0, -0.0, 0.0])
    for a, b, alpha in (
        (q, k, 0.0),
        (q, k, heads),
        (q, q.clone(), 0.3),
        (q, 2 * q, 0.3),
        (q, nothing, 0.3),
        (nothing, k, 0.3),
        (q[..., :1, :], k[..., :1, :], 0.3),
    ):
        values = v[..., : a.shape[-2], :]
        assert torch.equal(orthogonal_attention(a, b, values, alpha, max_norm=max_norm), values)


@pytest.mark.parametrize("tokens", [0, 1, 9])
@pytest.mark.parametrize("max_norm", [None, 8.0, 100.0])
def test_nothing_in_nothing_out(tokens: int, max_norm: float | None) -> None:
    for shape in ((2, 3, 0, 4), (0, 3, tokens, 4), (0, tokens, 4), (2, 0, tokens, 4)):
        q, k, v = (x.requires_grad_() for x in sample(*shape))
        alpha = torch.tensor(0.3, requires_grad=True)
        out = orthogonal_attention(q, k, v, alpha, max_norm=max_norm)
        assert out.shape == v.shape
        grads = torch.autograd.grad(out.sum(), (q, k, v, alpha))
        assert [g.shape for g in grads] == [q.shape, k.shape, v.shape, alpha.shape]
        assert grads[3] == 0


# --- what must not leak -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rubbish", [0.0, math.nan, math.inf, 1e30])
@pytest.mark.parametrize("max_norm", [None, 14.0, 40.0])
def test_masked_tokens_are_left_alone_and_without_influence(rubbish: float, max_norm: float | None) -> None:
    q, k, v = sample(3, 2, 12, 4)
    keep = torch.ones(3, 12, dtype=torch.bool)
    keep[0, 5:] = keep[1, ::2] = False
    for x in (q, k, v):
        x[~keep[:, None].expand(3, 2, 12)] = rubbish
        x.requires_grad_()
    alpha = torch.tensor([0.3, 0.6], requires_grad=True)
    out = orthogonal_attention(q, k, v, alpha, max_norm=max_norm, key_mask=keep)
    for b in range(3):
        alone = naive.orthogonal_attention(*(x[b, :, keep[b]].double() for x in (q, k, v)), alpha)
        torch.testing.assert_close(out[b, :, keep[b]].double(), alone, rtol=0, atol=1e-5)
    left = ~keep[:, None, :, None].expand_as(v)
    assert torch.equal(out[left].view(torch.int32), v[left].view(torch.int32))
    grads = torch.autograd.grad(out[~left].sum(), (q, k, v, alpha))
    assert all(g.isfinite().all() for g in grads)
    assert all((g[left] == 0).all() for g in grads[:3])
    torch.testing.assert_close(
        out, naive.orthogonal_attention(q, k, v, alpha, key_mask=keep), equal_nan=True, rtol=0, atol=1e-5
    )


def test_a_mask_of_all_or_none() -> None:
    q, k, v = sample(2, 3, 12, 4)
    every = torch.ones(2, 12, dtype=torch.bool)
    out = orthogonal_attention(q, k, v, 0.4, max_norm=8.0)
    assert torch.equal(orthogonal_attention(q, k, v, 0.4, max_norm=8.0, key_mask=every), out)
    assert torch.equal(orthogonal_attention(q, k, v, 0.4, max_norm=8.0, key_mask=~every), v)


@pytest.mark.parametrize("max_norm", [4.0, 40.0])
def test_beyond_max_norm_is_nan_for_that_matrix_alone(
    max_norm: float, norms: Callable[..., tuple[Tensor, Tensor]]
) -> None:
    q, k, v = sample(3, 2, 20, 4)
    alpha = 0.9 * max_norm / float(norms(q, k, 1.0)[1].max())
    inside = [x.clone().requires_grad_() for x in (q, k, v)]
    q[1, 0] *= 3.0
    outside = [x.clone().requires_grad_() for x in (q, k, v)]
    expected = orthogonal_attention(*inside, alpha, max_norm=max_norm)
    out = orthogonal_attention(*outside, alpha, max_norm=max_norm)
    lost = torch.zeros(3, 2, dtype=torch.bool)
    lost[1, 0] = True
    assert expected.isfinite().all()
    assert out[lost].isnan().all()
    assert torch.equal(out[~lost], expected[~lost])
    with torch.no_grad():
        assert torch.equal(orthogonal_attention(*outside, alpha, max_norm=max_norm)[~lost], expected[~lost])
    grads = torch.autograd.grad(out.sum(), outside)
    for grad, other in zip(grads, torch.autograd.grad(expected.sum(), inside), strict=True):
        assert grad[lost].isnan().all()
        assert torch.equal(grad[~lost], other[~lost])


def test_far_beyond_max_norm_and_overflow_are_nan() -> None:
    q, k, v = sample(6, 1, 20, 4)
    q[:5] *= torch.tensor([1e2, 1e5, 1e10, 1e20, 1e38])[:, None, None, None]
    for max_norm in (8.0, 100.0, None):
        out = orthogonal_attention(q, k, v, 1.0 if max_norm is None else 0.2, max_norm=max_norm)
        assert out[3 if max_norm is None else 0 : 5].isnan().all()
        assert out[5].isfinite().all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("max_norm", [None, 8.0, 100.0])
@pytest.mark.parametrize("tokens", [1, 3, 12])
def test_nan_in_gives_nan_out(bad: float, max_norm: float | None, tokens: int) -> None:
    for which in (0, 1):
        inputs = sample(2, 3, tokens, 4)
        inputs[which][1, 2, tokens // 2, 1] = bad
        out = orthogonal_attention(*inputs, 0.2, max_norm=max_norm)
        assert out[1, 2].isnan().all()
        assert out[0].isfinite().all()
        assert out[1, :2].isfinite().all()
    q, k, v = sample(2, 3, tokens, 4)
    v[1, 2, tokens // 2, 1] = math.nan
    out = orthogonal_attention(q, k, v, 0.2, max_norm=max_norm)
    assert out[1, 2, :, 1].isnan().all()
    assert out.isnan().sum() == tokens
    assert orthogonal_attention(q, k, v, math.nan, max_norm=max_norm).isnan().all()
