"""The series of phi_1, its action and the adjoint written by hand, each against something slower."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from zoo.ops._chebyshev import action, action_adjoint, coefficients, series

EPS = {torch.float32: torch.finfo(torch.float32).eps, torch.float64: torch.finfo(torch.float64).eps}


def hamiltonian(batch: int, width: int, norm: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """G = M^T M and Z = J G of spectral radius `norm`, both (batch, 2 width, 2 width), float64."""
    generator = torch.Generator().manual_seed(seed)
    m = torch.randn(batch, 3 * width, 2 * width, generator=generator, dtype=torch.float64)
    gram = m.mT @ m
    z = turn(gram)
    radius = torch.linalg.eigvals(z).abs().amax(-1)[:, None, None]
    return gram * (norm / radius), z * (norm / radius)


def turn(x: Tensor) -> Tensor:
    """J X, J = [[0, I], [-I, 0]]."""
    upper, lower = x.chunk(2, -2)
    return torch.cat((lower, -upper), -2)


def dense_phi(z: Tensor) -> Tensor:
    """phi_1(Z), the corner of exp([[Z, I], [0, 0]])."""
    size = z.shape[-1]
    block = torch.zeros(len(z), 2 * size, 2 * size, dtype=z.dtype)
    block[:, :size, :size], block[:, :size, size:] = z, torch.eye(size, dtype=z.dtype)
    return torch.linalg.matrix_exp(block)[:, :size, size:]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rho", [1e-3, 0.3, 1.0, 2.0, 5.0, 8.0, 16.0])
def test_coefficients_hold_to_rounding(rho: float, dtype: torch.dtype) -> None:
    pairs = torch.tensor(coefficients(rho, EPS[dtype]), dtype=torch.float64)
    cosine = torch.linspace(0, 1, 2001, dtype=torch.float64)  # theta / rho; T_j(2 cosine^2 - 1) = T_2j(cosine)
    theta = rho * cosine
    polynomials = torch.cos(2 * torch.arange(len(pairs))[:, None] * torch.arccos(cosine))
    even, odd = pairs.T @ polynomials
    sinc = torch.sinc(theta / 2 / math.pi)
    error = theta * (even - sinc * torch.cos(theta / 2)).abs() + theta**2 * (odd - sinc**2 / 2).abs()
    assert error.max() <= max(EPS[dtype] * max(1.0, rho), 1e-15 * max(1.0, rho) ** 2)


def test_degrees_stay_low() -> None:
    products = {rho: len(series(rho, EPS[torch.float32])) - 1 for rho in (1.0, 1.8, 5.0, 8.0, 14.0)}
    assert products == {1.0: 1, 1.8: 2, 5.0: 3, 8.0: 4, 14.0: 6}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("rho", "norm"), [(1.0, 0.9), (1.0, 1e-4), (8.0, 5.0), (8.0, 0.1), (16.0, 10.0)])
def test_action_is_phi(rho: float, norm: float, dtype: torch.dtype) -> None:
    _, z = hamiltonian(3, 4, norm)
    z = z.to(dtype)
    u = torch.randn(3, 8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(dtype)
    result = action(z, u, rho, series(rho, EPS[dtype]))[0]
    truth = dense_phi(z.double()) @ u.double()
    assert (result - truth).norm() <= 20 * EPS[dtype] * max(1.0, rho) * truth.norm()


def test_action_is_nan_beyond_its_range() -> None:
    _, z = hamiltonian(3, 4, 5.0)
    z[1] *= 2.0
    u = torch.ones(3, 8, 1, dtype=torch.float64)
    result = action(z, u, 8.0, series(8.0, EPS[torch.float64]))[0]
    assert result[1].isnan().all()
    assert result[[0, 2]].isfinite().all()


@pytest.mark.parametrize("rho", [1.0, 2.0, 8.0, 16.0])
def test_adjoint_by_hand_is_what_autograd_finds(rho: float) -> None:
    gram, _ = hamiltonian(2, 3, 0.5 * rho)
    u = torch.randn(2, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    grad = torch.randn(2, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    gram.requires_grad_()
    u.requires_grad_()
    table = series(rho, EPS[torch.float64])
    saved = action(turn(gram), u, rho, table)
    true_gram, true_u = torch.autograd.grad(saved[0], (gram, u), grad)
    with torch.no_grad():
        gamma, turned_u = action_adjoint(turn(gram), u, rho, table, saved[1:], turn(grad))
    torch.testing.assert_close(gamma + gamma.mT, true_gram + true_gram.mT, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(turned_u, turn(true_u), rtol=1e-12, atol=1e-12)
