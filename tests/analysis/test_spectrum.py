"""The spectra of section 3.4 of arXiv 2609.27735: from Gram eigenvalues, after the transformation, of every head."""

from __future__ import annotations

import pytest
import torch
from timm.layers import Attention
from torch import nn

import zoo
from zoo.analysis import HeadSpectra, head_spectra
from zoo.errors import DamagedError, UsageError
from zoo.layers import insert_newton_schulz


class Values(Attention):
    """An attention of one head that hands its input to the merge."""

    def __init__(self, width: int) -> None:
        super().__init__(width, num_heads=1)
        with torch.no_grad():
            self.qkv.weight.zero_()
            self.qkv.weight[2 * width :] = torch.eye(width)


def spectra_of(x: torch.Tensor) -> HeadSpectra:
    """Of the matrices x (batch, tokens, width), as one head would give them."""
    attention = Values(x.shape[-1])
    with torch.no_grad():  # the softmax of equal scores would mix the tokens
        attention.attn_drop, attention.fused_attn = Identical(), False
    return head_spectra(nn.Sequential(attention), x)


class Identical(nn.Module):
    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        return torch.eye(scores.shape[-1]).expand_as(scores)


def test_a_known_spectrum():
    values = torch.tensor([3.0, 2.0, 1.0])
    left, _ = torch.linalg.qr(torch.randn(2, 7, 3))
    right, _ = torch.linalg.qr(torch.randn(2, 3, 3))
    found = spectra_of(left * values @ right)
    p = values.double() ** 2 / 14
    assert found.spectrum == pytest.approx(p.tolist(), rel=1e-5)
    assert found.effective_rank == pytest.approx(float((-(p * p.log()).sum()).exp()), rel=1e-5)
    assert found.matrices == 2


def test_rank_one_and_a_rotation_are_the_extremes():
    assert spectra_of(torch.ones(1, 5, 4)).effective_rank == pytest.approx(1.0, abs=1e-6)
    assert spectra_of(torch.eye(4)[None]).effective_rank == pytest.approx(4.0, abs=1e-6)


def test_a_zero_matrix_is_left_out():
    found = spectra_of(torch.stack((torch.zeros(5, 4), torch.ones(5, 4))))
    assert found.matrices == 1
    assert found.leading == pytest.approx(1.0)
    with pytest.raises(UsageError, match="nothing but zeros"):
        spectra_of(torch.zeros(2, 5, 4))


def test_no_number_has_no_spectrum():
    with pytest.raises(DamagedError, match="NaN"):
        spectra_of(torch.full((1, 5, 4), torch.nan))


def test_an_attention_in_two_places_is_counted_once_a_call():
    attention = Values(4)
    assert head_spectra(nn.Sequential(attention, attention), torch.randn(3, 5, 4)).matrices == 6


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
