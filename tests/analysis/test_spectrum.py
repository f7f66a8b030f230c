"""The spectra of section 3.4 of arXiv 2609.27735: from Gram eigenvalues, after the transformation, of every head."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import zoo
from zoo.analysis import head_spectra
from zoo.analysis.spectrum import _sums
from zoo.errors import UsageError
from zoo.layers import insert_newton_schulz


def test_a_known_spectrum():
    values = torch.tensor([3.0, 2.0, 1.0])
    left, _ = torch.linalg.qr(torch.randn(2, 7, 3))
    right, _ = torch.linalg.qr(torch.randn(2, 3, 3))
    sums = _sums(left * values @ right)
    p = values.double() ** 2 / 14
    torch.testing.assert_close(sums[:3] / 2, p, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(sums[3] / 2, (-(p * p.log()).sum()).exp(), rtol=1e-6, atol=1e-6)
    assert sums[4] == 2


def test_rank_one_and_a_rotation_are_the_extremes():
    assert _sums(torch.ones(1, 5, 4))[-2] == pytest.approx(1.0, abs=1e-6)
    assert _sums(torch.eye(4)[None])[-2] == pytest.approx(4.0, abs=1e-9)


def test_a_zero_matrix_is_left_out():
    x = torch.stack((torch.zeros(5, 4), torch.ones(5, 4)))
    assert _sums(x)[-1] == 1
    assert torch.isfinite(_sums(x)).all()


@pytest.mark.parametrize(("name", "matrices"), [("ns-vit-cifar10", 9 * 12), ("ns-swin-cifar10", 288)])
def test_there_are_as_many_matrices_as_the_paper_counts(name, matrices):
    found = head_spectra(zoo.load(name, pretrained=False), torch.randn(2, 3, 32, 32))
    assert found.matrices == 2 * matrices
    assert len(found.spectrum) == 16
    assert sum(found.spectrum) == pytest.approx(1.0)
    assert found.spectrum[0] == found.leading
    assert 1.0 <= found.effective_rank <= 16.0


@pytest.mark.parametrize("name", ["test-ns-vit", "test-ns-swin"])
def test_it_is_measured_after_the_transformation(name):
    torch.manual_seed(0)
    model = zoo.load(name, pretrained=False)
    plain = zoo.load(zoo.info(name).twin, pretrained=False)
    plain.load_state_dict(model.state_dict())
    x = torch.randn(4, 3, 32, 32)
    with insert_newton_schulz(plain):
        inserted = head_spectra(plain, x)
    assert inserted.effective_rank == pytest.approx(head_spectra(model, x).effective_rank, rel=1e-4)
    assert head_spectra(plain, x).effective_rank < inserted.effective_rank


def test_batches_do_not_matter_and_nothing_is_left_behind():
    model = zoo.load("test-ns-vit", pretrained=False).train()
    x = torch.randn(5, 3, 32, 32)
    one, other = head_spectra(model, x, batch_size=5), head_spectra(model, x, batch_size=2)
    assert one.effective_rank == pytest.approx(other.effective_rank, rel=1e-5)
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_what_cannot_be_measured_is_said():
    model = zoo.load("test-ns-vit", pretrained=False)
    with pytest.raises(UsageError, match="no pictures"):
        head_spectra(model, torch.randn(0, 3, 32, 32))
    with pytest.raises(UsageError, match="no attention"):
        head_spectra(nn.Linear(2, 2), torch.randn(1, 2))
    with pytest.raises(UsageError, match="batch size"):
        head_spectra(model, torch.randn(1, 3, 32, 32), batch_size=0)
