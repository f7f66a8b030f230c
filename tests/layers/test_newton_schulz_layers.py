"""Our layers are timm's with the literal transformation between the values' aggregation and the head merge."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from timm.layers import Attention
from timm.models.swin_transformer import SwinTransformerBlock, WindowAttention
from torch import nn

from zoo.errors import UsageError
from zoo.layers import NewtonSchulzAttention, NewtonSchulzWindowAttention
from zoo.ops import naive


def transformed(layer, steps):
    """From now on `layer` of timm parts its merged heads, transforms them by the definition and merges them again."""

    def transform(module, inputs):
        parts = inputs[0].unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
        return (naive.newton_schulz(parts, steps=steps).transpose(1, 2).flatten(2),)

    (layer.norm if hasattr(layer, "norm") else layer.proj).register_forward_pre_hook(transform)
    return layer


def pair(kind, plain, *arguments, steps=1, fused=True, **keywords):
    """Our layer, and timm's with the definition in it, in float64 with the same random weights."""
    torch.manual_seed(0)
    ours = kind(*arguments, ns_steps=steps, **keywords).double()
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.4)
    theirs = plain(*arguments, **keywords).double()
    theirs.load_state_dict(ours.state_dict())
    ours.fused_attn = theirs.fused_attn = fused
    return ours, transformed(theirs, steps)


def same(ours, theirs, x, *arguments, **keywords):
    """Values and gradients, of the input and of every parameter."""
    grads = []
    for layer in (ours, theirs):
        y = x.clone().requires_grad_()
        out = layer(y, *arguments, **keywords)
        weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=out.dtype)
        grads.append([out, *torch.autograd.grad((out * weight).sum(), [y, *layer.parameters()])])
    for one, two in zip(*grads, strict=True):
        torch.testing.assert_close(one, two, atol=1e-10, rtol=1e-8)


def tokens(count=17, dim=24, batch=3):
    return torch.randn(batch, count, dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


OPTIONS = [
    {},
    {"qkv_bias": True},
    {"qk_norm": True, "norm_layer": nn.LayerNorm},
    {"scale_norm": True, "norm_layer": nn.LayerNorm},
    {"gated": True, "qkv_bias": True},
    {"proj_bias": False},
    {"attn_head_dim": 4, "dim_out": 10},
    {"qkv_bias": True, "qk_norm": True, "scale_norm": True, "gated": True, "norm_layer": nn.LayerNorm},
]


def masks(count=17):
    """None, hidden tokens, single pairs, a bias a head, and causal attention."""
    generator = torch.Generator().manual_seed(3)
    pairs = torch.rand(3, 1, count, count, generator=generator) > 0.4
    pairs |= torch.eye(count, dtype=torch.bool)
    keys = torch.ones(3, 1, 1, count, dtype=torch.bool)
    keys[1:, ..., count // 2 :] = False
    bias = torch.randn(1, 3, count, count, generator=generator, dtype=torch.float64)
    return [{}, {"attn_mask": keys}, {"attn_mask": pairs}, {"attn_mask": bias}, {"is_causal": True}]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(options) or "plain")
def test_attention_is_timm_s_and_the_literal_transformation(options, steps, fused):
    ours, theirs = pair(NewtonSchulzAttention, Attention, 24, 3, steps=steps, fused=fused, **options)
    for mask in masks():
        same(ours, theirs, tokens(), **mask)


@pytest.mark.parametrize(("count", "batch"), itertools.product((1, 2, 3, 17, 65), (1, 3)))
def test_attention_of_other_sizes(count, batch):
    ours, theirs = pair(NewtonSchulzAttention, Attention, 24, 3)
    same(ours, theirs, tokens(count, batch=batch))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(
    "options",
    [{}, {"qkv_bias": False}, {"head_dim": 4}, {"window_size": (2, 3)}],
    ids=lambda options: ",".join(options) or "plain",
)
def test_window_attention_is_timm_s_and_the_literal_transformation(options, steps, fused):
    keywords = {"window_size": 4, **options}
    ours, theirs = pair(NewtonSchulzWindowAttention, WindowAttention, 24, 3, steps=steps, fused=fused, **keywords)
    x = tokens(ours.window_area, batch=8)  # two pictures of four windows
    same(ours, theirs, x)
    mask = torch.where(torch.rand(4, ours.window_area, ours.window_area) > 0.5, -100.0, 0.0).double()
    same(ours, theirs, x, mask)
    same(ours, theirs, x, mask=mask)


@pytest.mark.parametrize("fused", [True, False])
def test_in_a_block_with_shifted_windows(fused):
    torch.manual_seed(0)
    block = SwinTransformerBlock(24, (8, 8), 3, window_size=4, shift_size=2).double().eval()
    block.attn.fused_attn = fused
    other = copy.deepcopy(block)
    other.attn = NewtonSchulzWindowAttention.like(block.attn, 2)
    other.attn.fused_attn = fused
    assert block.attn_mask.shape == (4, 16, 16)
    x = torch.randn(2, 8, 8, 24, dtype=torch.float64)
    transformed(block.attn, 2)
    torch.testing.assert_close(other(x), block(x), atol=1e-10, rtol=1e-8)


def test_like_keeps_what_it_is_like():
    plain = WindowAttention(24, 3, head_dim=4, window_size=(2, 3), qkv_bias=False, attn_drop=0.1, proj_drop=0.2)
    ours = NewtonSchulzWindowAttention.like(plain.bfloat16(), 2)
    assert (ours.ns_steps, ours.window_size, ours.attn_drop.p, ours.proj_drop.p) == (2, (2, 3), 0.1, 0.2)
    assert ours.qkv.bias is None
    for key, value in plain.state_dict().items():
        assert torch.equal(value, ours.state_dict()[key])
    assert ours.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.parametrize("kind", [NewtonSchulzAttention, NewtonSchulzWindowAttention])
def test_dropout_steps_and_empty_batches(kind):
    layer = kind(24, 3, attn_drop=0.5, proj_drop=0.5, **({} if kind is NewtonSchulzAttention else {"window_size": 4}))
    x = tokens(16).float()
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    assert layer(x[:0]).shape == (0, 16, 24)
    assert "ns_steps=1" in repr(layer)
    for steps in (0, -1, 1.0, True, None, "1"):
        with pytest.raises(UsageError, match="steps"):
            kind(24, 3, ns_steps=steps, **({} if kind is NewtonSchulzAttention else {"window_size": 4}))
