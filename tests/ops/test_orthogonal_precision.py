"""Low precision, memory, strides and faulty input of orthogonal attention."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from zoo.errors import UsageError
from zoo.ops import naive, orthogonal_attention


def sample(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3))
    return q, k, v


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("norm", [1e-3, 0.3, 3.0, 12.0])
@pytest.mark.parametrize("max_norm", [None, 24.0])
def test_low_precision_costs_no_more_than_twice_the_naive_error(
    dtype: torch.dtype,
    norm: float,
    max_norm: float | None,
    build: Callable[..., tuple[Tensor, Tensor, Tensor, float]],
    error: Callable[..., float],
) -> None:
    *wide, alpha = build(f"generic {norm}")
    q, k, v = (x.to(dtype) for x in wide)
    out = orthogonal_attention(q, k, v, alpha, max_norm=max_norm)
    assert out.dtype == dtype
    plain = naive.orthogonal_attention(q, k, v, alpha)
    assert error(out, q, k, v, alpha) <= 2 * error(plain, q, k, v, alpha)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("max_norm", [8.0, 40.0, None])
def test_autocast_does_not_reach_the_small_matrices(dtype: torch.dtype, max_norm: float | None) -> None:
    q, k, v = (x.requires_grad_() for x in sample(2, 3, 33, 8))
    alpha = torch.tensor([0.1, 0.2, 0.3], requires_grad=True)
    plain = orthogonal_attention(q, k, v, alpha, max_norm=max_norm)
    plain_grads = torch.autograd.grad(plain.sum(), (q, k, v, alpha))
    with torch.autocast("cpu", dtype):
        cast = orthogonal_attention(q, k, v, alpha, max_norm=max_norm)
        literal = naive.orthogonal_attention(q, k, v, alpha)
        cast_grads = torch.autograd.grad(cast.sum(), (q, k, v, alpha))
    assert torch.equal(cast, plain)
    torch.testing.assert_close(literal, plain, rtol=0, atol=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(cast_grads, plain_grads, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_gradients_have_their_inputs_type(dtype: torch.dtype) -> None:
    q, k, v = (x.requires_grad_() for x in sample(2, 3, 33, 8, dtype=dtype))
    wide = [x.detach().float().requires_grad_() for x in (q, k, v)]
    alpha = torch.tensor([0.1, 0.2, 0.3], requires_grad=True)
    grads = torch.autograd.grad(orthogonal_attention(q, k, v, alpha, max_norm=8.0).float().sum(), (q, k, v, alpha))
    truth = torch.autograd.grad(orthogonal_attention(*wide, alpha, max_norm=8.0).sum(), (*wide, alpha))
    assert [g.dtype for g in grads] == [dtype] * 3 + [torch.float32]
    for grad, true in zip(grads, truth, strict=True):
        assert (grad.float() - true).norm() <= 2 * torch.finfo(dtype).eps * true.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_long_sequences_in_low_precision(dtype: torch.dtype) -> None:
    q, k, v = (x.requires_grad_() for x in sample(1, 2, 8192, 16, dtype=dtype))
    out = orthogonal_attention(q, k, v, 0.003, max_norm=32.0)
    torch.testing.assert_close(out.float().norm(dim=-2), v.float().norm(dim=-2), rtol=2e-3, atol=0)
    grads = torch.autograd.grad(out.float().square().sum(), (q, k, v))
    assert all(g.isfinite().all() for g in grads)


# --- how it computes ----------------------------------------------------------------------------------------------


class Watch(TorchDispatchMode):
    """The largest tensor that any operator makes, and how often a tensor is asked for a number."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0
        self.asked = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.asked += func is torch.ops.aten._local_scalar_dense.default
        if isinstance(result, Tensor):
            self.largest = max(self.largest, result.numel())
        return result


@pytest.mark.parametrize(("max_norm", "asked"), [(8.0, 0), (100.0, 0), (None, 1)])
def test_never_tokens_by_tokens_and_never_a_python_number(max_norm: float | None, asked: int) -> None:
    q, k, v = (x.requires_grad_() for x in sample(1, 1, 1000, 4))
    with Watch() as watch:
        out = orthogonal_attention(q, k, v, torch.tensor(0.01), max_norm=max_norm)
        torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    assert watch.largest <= 1000 * 16
    assert watch.asked == asked


@pytest.mark.parametrize("max_norm", [8.0, 100.0])
def test_inference_saves_nothing(max_norm: float) -> None:
    saved = []

    def pack(x: Tensor) -> Tensor:
        saved.append(x)
        return x

    q, k, v = sample(2, 3, 17, 4)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out = orthogonal_attention(q, k, v, 0.1, max_norm=max_norm)
        with torch.no_grad():
            orthogonal_attention(q.requires_grad_(), k, v, 0.1, max_norm=max_norm)
        assert not saved
        assert not out.requires_grad
        orthogonal_attention(q, k, v, 0.1, max_norm=max_norm)
        assert saved


@pytest.mark.parametrize("max_norm", [None, 8.0, 100.0])
def test_no_memory_is_read_before_it_is_written(max_norm: float | None) -> None:
    """`torch.empty` filled with NaN changes nothing."""
    q, k, v = (x.requires_grad_() for x in sample(2, 3, 17, 4))
    alpha = torch.tensor(0.3, requires_grad=True)

    def run() -> list[Tensor]:
        out = orthogonal_attention(q, k, v, alpha, max_norm=max_norm)
        return [out, *torch.autograd.grad(out.sum(), (q, k, v, alpha))]

    plain = run()
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        filled = run()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(plain, filled, strict=True))


def test_strided_and_expanded_inputs() -> None:
    x = torch.randn(2, 17, 3, 3, 4, generator=torch.Generator().manual_seed(0)).permute(2, 0, 3, 1, 4)
    q, k, v = x.unbind(0)
    packed = [y.contiguous() for y in (q, k, v)]
    torch.testing.assert_close(
        orthogonal_attention(q, k, v, 0.3, max_norm=8.0),
        orthogonal_attention(*packed, 0.3, max_norm=8.0),
        rtol=0,
        atol=5e-6,
    )
    once = torch.randn(1, 1, 17, 4).expand(2, 3, 17, 4)
    out = orthogonal_attention(once, once.flip(-1), once, 0.3, max_norm=8.0)
    torch.testing.assert_close(out[1, 2], out[0, 0], rtol=1e-6, atol=1e-6)


# --- what users are told ------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_one_clear_line() -> None:
    q, k, v = sample(2, 3, 17, 4)
    bad = [
        ({"basis": "qr2"}, "gram"),
        ({"max_norm": 0.0}, "max_norm"),
        ({"max_norm": -1.0}, "max_norm"),
        ({"max_norm": math.inf}, "max_norm"),
        ({"max_norm": math.nan}, "max_norm"),
        ({"k": k[..., :3]}, r"k \(2, 3, 17, 3\)"),
        ({"k": k[:1]}, r"k \(1, 3, 17, 4\)"),
        ({"v": v[:, :, :5]}, r"v \(2, 3, 5, 4\)"),
        ({"q": q[0, 0], "k": k[0, 0], "v": v[0, 0]}, "tokens"),
        ({"q": q[..., :0], "k": k[..., :0]}, "head_dim"),
        ({"v": v.long()}, "v must be of a floating-point type"),
        ({"v": v.to(torch.float8_e5m2)}, "v must be of a floating-point type from float16 on"),
        ({"v": v.to_sparse()}, "dense"),
        ({"alpha": torch.ones(2)}, r"\(heads,\) = \(3,\)"),
        ({"alpha": torch.ones(3, 1)}, r"\(heads,\) = \(3,\)"),
        ({"key_mask": torch.ones(2, 17)}, "bool"),
        ({"key_mask": torch.ones(2, 16, dtype=torch.bool)}, r"\(2, 17\)"),
        ({"key_mask": torch.ones(2, 3, 17, dtype=torch.bool)}, r"\(2, 17\)"),
    ]
    for change, words in bad:
        with pytest.raises(UsageError, match=words) as caught:
            orthogonal_attention(**{"q": q, "k": k, "v": v, "alpha": 0.1, **change})
        assert "\n" not in str(caught.value)


def test_what_is_no_number_is_refused_and_numpy_s_numbers_are_taken() -> None:
    q, k, v = sample(1, 2, 9, 4)
    for change in ({"alpha": torch.tensor(0.1 + 5j)}, {"alpha": [0.1]}, {"alpha": None}, {"max_norm": "8"}):
        with pytest.raises(UsageError, match=next(iter(change))):
            orthogonal_attention(**{"q": q, "k": k, "v": v, "alpha": 0.1, **change})
    odd = np.float32(7.3)
    first = orthogonal_attention(q, k, v, 0.1, max_norm=odd)
    assert first.isfinite().all()
    assert torch.equal(first, orthogonal_attention(q, k, v, 0.1, max_norm=float(odd)))
