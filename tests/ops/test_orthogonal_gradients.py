"""Gradients of orthogonal attention: by finite differences in float64, and against the literal form."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from zoo.ops import naive, orthogonal_attention

BOUNDS = [None, 6.0, 30.0]  # chosen from the data, one action, doubled


def sample(*shape: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3)]


def check(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, max_norm: float | None, mask: Tensor | None = None) -> None:
    inputs = [x.detach().clone().requires_grad_() for x in (q, k, v, alpha)]
    assert gradcheck(lambda *x: orthogonal_attention(*x, max_norm=max_norm, key_mask=mask), inputs)


@pytest.mark.parametrize("max_norm", BOUNDS)
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 17])
def test_gradcheck(tokens: int, max_norm: float | None) -> None:
    alpha = torch.tensor([0.2, -0.3], dtype=torch.float64)
    check(*sample(1, 2, tokens, 3), alpha, max_norm)


@pytest.mark.parametrize("max_norm", BOUNDS)
def test_gradcheck_of_every_form_of_alpha_and_shape(max_norm: float | None) -> None:
    q, k, v = sample(2, 3, 4, 2)
    check(q, k, v, torch.tensor(0.4, dtype=torch.float64), max_norm)
    check(q[0], k[0], torch.cat((v, v + 1), -1)[0], torch.tensor([0.4, 0.0, 1.0], dtype=torch.float64), max_norm)


@pytest.mark.parametrize("max_norm", BOUNDS)
@pytest.mark.parametrize("kept", ["all", "some", "one", "none"])
def test_gradcheck_with_a_mask(kept: str, max_norm: float | None) -> None:
    count = {"all": 5, "some": 3, "one": 1, "none": 0}[kept]
    mask = torch.arange(5).expand(2, 5) < count
    mask = torch.stack((mask[0], mask[1].flip(0)))
    check(*sample(2, 2, 5, 2), torch.tensor([0.4, -0.7], dtype=torch.float64), max_norm, mask)


@pytest.mark.parametrize("max_norm", BOUNDS)
@pytest.mark.parametrize(
    "kind", ["tokens", "columns", "k is q", "k is a multiple of q", "no q", "no k", "no alpha", "one direction"]
)
def test_gradcheck_where_rank_is_lost(kind: str, max_norm: float | None) -> None:
    q, k, v = sample(1, 2, 6, 3)
    alpha = torch.tensor([0.3, -0.5], dtype=torch.float64)
    if kind == "tokens":
        q, k = q[..., :1, :].expand_as(q), k[..., :1, :].expand_as(k)
    elif kind == "columns":
        q, k = q[..., :1].expand_as(q), k[..., :1].expand_as(k)
    elif kind == "k is q":
        k = q
    elif kind == "k is a multiple of q":
        k = q * torch.tensor([2.0, -1.0, 0.0], dtype=torch.float64)
    elif kind == "no q":
        q = torch.zeros_like(q)
    elif kind == "no k":
        k = torch.zeros_like(k)
    elif kind == "no alpha":
        alpha = torch.zeros_like(alpha)
    else:
        q, k = q[..., :1] * q[..., :1, :], q[..., :1] * k[..., :1, :]
    check(q, k, v, alpha, max_norm)


@pytest.mark.parametrize("max_norm", [None, 14.0, 40.0])
@pytest.mark.parametrize("tokens", [1, 2, 3, 17, 65])
@pytest.mark.parametrize("batch", [0, 1, 4])
def test_gradients_are_those_of_the_literal_form(batch: int, tokens: int, max_norm: float | None) -> None:
    q, k, v = (x.requires_grad_() for x in sample(batch, 2, tokens, 8))
    alpha = torch.tensor([0.1, -0.2], dtype=torch.float64, requires_grad=True)
    grad = torch.randn(v.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    truth = torch.autograd.grad(naive.orthogonal_attention(q, k, v, alpha), (q, k, v, alpha), grad)
    found = torch.autograd.grad(orthogonal_attention(q, k, v, alpha, max_norm=max_norm), (q, k, v, alpha), grad)
    for x, y in zip(found, truth, strict=True):
        assert (x - y).norm() <= 1e-11 * (y.norm() + 1)


@pytest.mark.parametrize("name", ["generic 0.01", "generic 3", "generic 12", "near q", "rank one", "equal tokens"])
@pytest.mark.parametrize("max_norm", [None, 16.0])
def test_float32_gradients(name: str, max_norm: float | None, build: Callable[..., tuple]) -> None:
    """As near to the float64 truth as the awkwardness allows, and nearer than twice the literal form is."""
    *wide, alpha = build(name)
    narrow = [x.float().requires_grad_() for x in (*wide, torch.tensor(alpha))]
    literal = [x.detach().clone().requires_grad_() for x in narrow]
    exact = [x.detach().double().requires_grad_() for x in narrow]
    grad = torch.randn(wide[2].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    found = torch.autograd.grad(orthogonal_attention(*narrow, max_norm=max_norm), narrow, grad.float())
    plain = torch.autograd.grad(naive.orthogonal_attention(*literal), literal, grad.float())
    truth = torch.autograd.grad(naive.orthogonal_attention(*exact), exact, grad)
    sizes = [true.norm() for true in truth[:3]]
    sizes.append(0.01 * (truth[0] * exact[0]).abs().sum() / alpha)  # alpha's gradient is a sum that cancels
    for x, y, true, size in zip(found, plain, truth, sizes, strict=True):
        assert (x - true).norm() <= max(2 * (y - true).norm(), 2e-6 * size)
        assert (x - true).norm() <= 1e-4 * size


def test_frozen_inputs_get_no_gradient_and_the_others_theirs() -> None:
    inputs = [*sample(2, 2, 7, 3), torch.tensor([0.3, 0.6], dtype=torch.float64)]
    for max_norm in BOUNDS:
        full = [x.clone().requires_grad_() for x in inputs]
        orthogonal_attention(*full, max_norm=max_norm).square()[..., 0].sum().backward()
        for wanted in range(4):
            one = [x.clone().requires_grad_(i == wanted) for i, x in enumerate(inputs)]
            orthogonal_attention(*one, max_norm=max_norm).square()[..., 0].sum().backward()
            torch.testing.assert_close(one[wanted].grad, full[wanted].grad, rtol=1e-12, atol=1e-12)
            assert all(x.grad is None for i, x in enumerate(one) if i != wanted)


def test_gradients_of_any_layout() -> None:
    """A gradient that arrives expanded, transposed or sliced."""
    inputs = [x.requires_grad_() for x in sample(2, 3, 7, 4)]
    weight = torch.randn(4, 7, 3, 2, dtype=torch.float64).permute(3, 2, 1, 0)
    for max_norm in BOUNDS:
        out = orthogonal_attention(*inputs, 0.3, max_norm=max_norm)
        for grad in (
            torch.ones((), dtype=torch.float64).expand_as(out),
            weight,
            torch.cat((weight, weight), -1)[..., ::2],
        ):
            plain = torch.autograd.grad(out, inputs, grad.contiguous(), retain_graph=True)
            found = torch.autograd.grad(out, inputs, grad, retain_graph=True)
            for x, y in zip(found, plain, strict=True):
                torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


def test_a_loss_of_numbers_that_came_out_nan_has_nan_gradients() -> None:
    q, k, v = (x.requires_grad_() for x in sample(2, 2, 7, 3))
    alpha = torch.tensor([0.1, 50.0], dtype=torch.float64, requires_grad=True)
    for max_norm in (8.0, 20.0):
        grads = torch.autograd.grad(orthogonal_attention(q, k, v, alpha, max_norm=max_norm).sum(), (q, k, v, alpha))
        assert all(math.isnan(float(g[:, 1].sum())) for g in grads[:3])
        assert all(g[:, 0].isfinite().all() for g in grads[:3])
        assert grads[3][0].isfinite()
        assert grads[3][1].isnan()


@pytest.mark.parametrize("tokens", [1, 2, 5])
@pytest.mark.parametrize("max_norm", [8.0, 40.0])
def test_second_derivatives(tokens: int, max_norm: float) -> None:
    inputs = tuple(x.requires_grad_() for x in sample(1, 1, tokens, 2))
    alpha = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(
        lambda q, k, v, a: orthogonal_attention(q, k, v, a, max_norm=max_norm), (*inputs, alpha)
    )


def test_a_penalty_on_the_gradient_is_the_literal_ones() -> None:
    q, k, v = (x.requires_grad_() for x in sample(1, 1, 5, 2))
    found = []
    for form in (lambda *x: orthogonal_attention(*x, max_norm=8.0), naive.orthogonal_attention):
        y = form(q, k, v, 0.3)
        (grad,) = torch.autograd.grad(y.sum(), q, create_graph=True)
        found.append(torch.autograd.grad(y.square().sum() + grad.square().sum(), k)[0])
    torch.testing.assert_close(*found)


def test_second_derivatives_do_not_see_autocast() -> None:
    found = []
    for enabled in (False, True):
        q, k, v = (x.float().requires_grad_() for x in sample(2, 2, 9, 4))
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            out = orthogonal_attention(q, k, v, 0.3, max_norm=8.0)
            (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
        found.append((grad.detach(), torch.autograd.grad(grad.square().sum(), k)[0]))
    for plain, cast in zip(*found, strict=True):
        assert torch.equal(plain, cast)
