"""The layer around orthogonal attention: shapes, initialisation, precision, masks."""

from __future__ import annotations

import pytest
import torch

from zoo.errors import UsageError
from zoo.layers import GELU_GAIN, OrthogonalMlp, OrthogonalSelfAttention, scaled_uniform_orthogonal_, stiefel_


def attention(dim=64, heads=4, **arguments):
    torch.manual_seed(0)
    return OrthogonalSelfAttention(dim, heads, dtype=torch.float64, **arguments)


def singular_values(matrix):
    return torch.linalg.svdvals(matrix.double())


def test_queries_and_keys_of_a_head_are_one_stiefel_sample():
    layer = attention()
    q, k, _ = layer.qkv.weight.view(3, 4, 16, 64)
    for head in range(4):
        pair = torch.cat((q[head], k[head]))
        torch.testing.assert_close(pair @ pair.T, torch.eye(32, dtype=torch.float64))
        # Theorem 4.2: W = W^Q W^K' - W^K W^Q' has condition number one on its range.
        skew = q[head].T @ k[head] - k[head].T @ q[head]
        torch.testing.assert_close(singular_values(skew)[:32], torch.ones(32, dtype=torch.float64))
    assert not torch.allclose(q[0], q[1])


def test_values_and_output_are_orthogonal_over_the_heads_together():
    layer = attention()
    v, out = layer.qkv.weight.view(3, 64, 64)[2], layer.proj.weight
    torch.testing.assert_close(singular_values(out @ v), torch.ones(64, dtype=torch.float64))


def test_per_head_values_are_the_literal_reading():
    layer = attention(value_init="per_head")
    v, out = layer.qkv.weight.view(3, 4, 16, 64)[2], layer.proj.weight.view(64, 4, 16)
    for head in range(4):
        torch.testing.assert_close(v[head] @ v[head].T, torch.eye(16, dtype=torch.float64))
        torch.testing.assert_close(out[:, head].T @ out[:, head], torch.eye(16, dtype=torch.float64))
    total = singular_values(layer.proj.weight @ layer.qkv.weight.view(3, 64, 64)[2])
    assert total[0] / total[-1] > 10, "the sum over heads is badly conditioned, which is why joint is the default"


def test_one_head():
    layer = attention(16, 1)
    assert torch.isfinite(layer(torch.randn(2, 5, 16, dtype=torch.float64))).all()


def test_it_starts_near_the_orthogonal_map():
    layer, x = attention(), torch.randn(2, 49, 64, dtype=torch.float64)
    plain = x @ (layer.proj.weight @ layer.qkv.weight.view(3, 64, 64)[2]).T
    assert ((layer(x) - plain).norm() / plain.norm()) < 0.3
    torch.testing.assert_close(layer(x).norm(), x.norm(), rtol=1e-9, atol=0)


def test_alpha_zero_is_the_linear_map_alone():
    layer, x = attention(alpha=0.0), torch.randn(2, 7, 64, dtype=torch.float64)
    assert torch.equal(layer(x), layer.proj(layer.qkv(x)[..., 128:]))


@pytest.mark.parametrize("shape", [(0, 5, 64), (1, 1, 64), (2, 3, 64), (3, 40, 64), (2, 0, 64)])
def test_odd_shapes_and_gradients(shape):
    layer = attention()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    assert y.shape == shape
    y.square().sum().backward()
    for tensor in (x, *layer.parameters()):
        assert torch.isfinite(tensor.grad).all()


def test_every_parameter_learns():
    layer = attention()
    layer(torch.randn(2, 9, 64, dtype=torch.float64)).pow(3).sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in layer.parameters())


def test_a_mask_hides_tokens():
    layer, x = attention(), torch.randn(2, 9, 64, dtype=torch.float64)
    keep = torch.ones(2, 9, dtype=torch.bool)
    keep[:, 6:] = False
    torch.testing.assert_close(layer(x, key_mask=keep)[:, :6], layer(x[:, :6]))


def test_permuting_tokens_permutes_the_answer():
    layer, x = attention(), torch.randn(2, 9, 64, dtype=torch.float64)
    order = torch.randperm(9)
    torch.testing.assert_close(layer(x)[:, order], layer(x[:, order]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_and_autocast(dtype):
    layer = attention(alpha=0.1).float()
    x = torch.randn(2, 49, 64)
    truth = layer.double()(x.double())
    low = layer.to(dtype)(x.to(dtype))
    assert low.dtype == dtype
    torch.testing.assert_close(low.double(), truth, atol=0.1, rtol=0.05)
    layer.float()
    if dtype == torch.bfloat16:
        with torch.autocast("cpu", dtype):
            mixed = layer(x)
        torch.testing.assert_close(mixed.double(), truth, atol=0.1, rtol=0.05)


def test_beyond_max_norm_is_nan_never_wrong():
    layer = attention(alpha=50.0, max_norm=2.0)
    assert layer(torch.randn(1, 9, 64, dtype=torch.float64)).isnan().all()


def test_arguments_that_do_not_fit():
    with pytest.raises(UsageError, match="multiple"):
        OrthogonalSelfAttention(10, 3)
    for alpha in (float("nan"), float("inf"), True, "abc", None):
        with pytest.raises(UsageError, match="alpha must be a finite number"):
            OrthogonalSelfAttention(16, 2, alpha=alpha)
    for heads in (0, -4):
        with pytest.raises(UsageError, match="multiple"):
            OrthogonalSelfAttention(16, heads)
    for bound in (0, -1.0, "8", float("inf"), 1e-12):
        with pytest.raises(UsageError, match="max_norm must be a finite number"):
            OrthogonalSelfAttention(16, 2, max_norm=bound)
    with pytest.raises(UsageError, match="per_head"):
        OrthogonalSelfAttention(16, 2, value_init="both")
    with pytest.raises(UsageError, match="rows <= columns"):
        stiefel_(torch.empty(5, 4))


@pytest.mark.parametrize("shape", [(64, 16), (16, 64), (32, 32), (64, 1, 4, 4)])
def test_scaled_uniform_orthogonal_keeps_the_mean_square(shape):
    torch.manual_seed(0)
    weight = scaled_uniform_orthogonal_(torch.empty(shape, dtype=torch.float64)).flatten(1)
    x = torch.randn(4000, weight.shape[1], dtype=torch.float64)
    ratio = (x @ weight.T).square().mean() / x.square().mean()
    assert ratio == pytest.approx(1.0, abs=1e-9 if weight.shape[0] >= weight.shape[1] else 0.02)


def test_stiefel_samples_are_uniform():
    """The sign correction matters: without it the first entry of a QR sample is never positive."""
    torch.manual_seed(0)
    first = torch.stack([stiefel_(torch.empty(1, 3))[0, 0] for _ in range(400)])
    assert 0.4 < (first > 0).double().mean() < 0.6


def test_the_mlp_keeps_the_scale():
    torch.manual_seed(0)
    mlp = OrthogonalMlp(64, 128, dtype=torch.float64)
    x = torch.randn(2000, 64, dtype=torch.float64)
    with torch.no_grad():
        assert mlp(x).square().mean() == pytest.approx(1.0, abs=0.15)
        assert OrthogonalMlp(64, 128, act_gain=1.0).double()(x).square().mean() < 0.6
    torch.testing.assert_close(
        singular_values(mlp.fc2.weight.detach()), torch.full((64,), GELU_GAIN, dtype=torch.float64)
    )
    torch.testing.assert_close(singular_values(mlp.fc1.weight.detach()), torch.full((64,), 2**0.5, dtype=torch.float64))
    assert not mlp.fc1.bias.any()
    assert not mlp.fc2.bias.any()
