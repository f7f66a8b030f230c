"""One set of weights, every basis: the same function, up to rounding, once a basis has converged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import zoo
from zoo.data import open_dataset
from zoo.data.preprocessing import Preprocessing
from zoo.errors import UsageError

NAME = "osa-vit-mnist"
ARMS = {"qr": (1e-11, 2e-5), "newton-schulz": (0.05, 0.05), "polar-express": (1e-5, 5e-5)}


def trained(basis: str, dtype: torch.dtype, **arguments: int) -> torch.nn.Module:
    return zoo.load(NAME, basis=basis, dtype=dtype, **arguments)


def noise() -> torch.Tensor:
    return torch.randn(8, 1, 28, 28, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("basis", ARMS)
def test_the_same_weights_give_the_same_logits(basis: str) -> None:
    """12 cubic steps leave small directions of a few trained heads short of one, which the logits show."""
    with torch.no_grad():
        for dtype, most in zip((torch.float64, torch.float32), ARMS[basis], strict=True):
            truth = trained("gram", torch.float64)(noise())
            found = trained(basis, dtype)(noise().to(dtype)).double()
            assert (found - truth).abs().max() <= most
            assert torch.equal(found.argmax(1), truth.argmax(1))


def test_more_steps_converge() -> None:
    with torch.no_grad():
        truth = trained("gram", torch.float64)(noise())
        found = [trained("newton-schulz", torch.float64, steps=steps)(noise()) for steps in (6, 12, 24)]
    errors = [float((each - truth).abs().max()) for each in found]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-9


@pytest.mark.parametrize("basis", ARMS)
def test_the_same_digits_are_read(basis: str, data_dir: Path) -> None:
    data = open_dataset("mnist", "test", data_dir).first(500)
    images = Preprocessing.of(trained("gram", torch.float32)).normalize(data.images)
    with torch.no_grad():
        plain, found = (trained(each, torch.float32)(images).argmax(1) for each in ("gram", basis))
    assert (plain == found).float().mean() >= 0.998


def test_a_basis_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="newton-schulz"):
        zoo.load(NAME, basis="cholesky")
    with pytest.raises(UsageError, match="takes no steps"):
        zoo.load(NAME, steps=3)
