"""Rotary positions against complex numbers and transformers' own."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import grad
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from zoo.ops import apply_rotary, naive, signed_sine


@pytest.mark.parametrize("shape", [(1, 2), (2, 4), (3, 4), (2, 1, 17, 6), (0, 2, 5, 8), (2, 3, 2, 9, 16)], ids=str)
def test_it_turns_pairs_of_features(shape: tuple[int, ...]) -> None:
    tokens, dim = shape[-2:]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    angles = torch.rand(tokens, dim // 2, generator=generator, dtype=torch.float64) * 1000
    cos, sin = (torch.cat((half, half), -1) for half in (angles.cos(), angles.sin()))
    found, true = apply_rotary(x, cos, signed_sine(sin)), naive.apply_rotary(x, angles)
    torch.testing.assert_close(found, true, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(grad(found.sum(), x)[0], grad(true.sum(), x)[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(found, apply_rotary_pos_emb(x, x, cos, sin, unsqueeze_dim=0)[0].view(shape))


def test_half_precision_is_as_good_as_that_of_complex_numbers() -> None:
    x = torch.randn(64, 17, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
    angles = torch.outer(torch.arange(17.0), torch.logspace(0, -3, 16))
    cos, sin = (torch.cat((half, half), -1) for half in (angles.cos(), angles.sin()))
    truth = naive.apply_rotary(x.double(), angles.double())
    found = apply_rotary(x, cos, signed_sine(sin))
    rounded = naive.apply_rotary(x, angles)
    assert found.dtype == torch.bfloat16
    assert (found.double() - truth).norm() <= 2 * (rounded.double() - truth).norm()
