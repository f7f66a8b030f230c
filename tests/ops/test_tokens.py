"""Long sequences go through the cache in pieces where only numbers are wanted; the answer is that of the whole."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from zoo.ops import _tokens, naive, orthogonal_attention


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Makes pieces small; the sizes that were taken."""
    taken: list[int] = []
    plain = _tokens._in_pieces

    def watched(q: Tensor, k: Tensor, v: Tensor, c: Tensor, step: int) -> object:
        taken.append(step)
        return plain(q, k, v, c, step)

    monkeypatch.setattr(_tokens, "_in_pieces", watched)
    return taken


def sample(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3))
    return q, k, v


@pytest.mark.parametrize("tokens", [1024, 1025, 1300, 2047])
@pytest.mark.parametrize("max_norm", [None, 8.0, 40.0])
@pytest.mark.parametrize("alpha", [0.003, torch.tensor([0.001, -0.003, 0.0])], ids=["number", "heads"])
def test_pieces_give_what_the_whole_gives(
    tokens: int, max_norm: float | None, alpha: float | Tensor, pieces: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_tokens, "_CHUNK", 256 * 6 * (2 * 8 + 5))
    q, k, _ = sample(2, 3, tokens, 8, dtype=torch.float64)
    v = sample(2, 3, tokens, 5, dtype=torch.float64)[2]
    found = orthogonal_attention(q, k, v, alpha, max_norm=max_norm)
    assert pieces and set(pieces) == {256}
    pieces.clear()
    whole = orthogonal_attention(q, k, v.clone().requires_grad_(), alpha, max_norm=max_norm).detach()
    assert not pieces
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-11)
    if (tokens, max_norm) == (1025, 8.0):
        torch.testing.assert_close(found, naive.orthogonal_attention(q, k, v, alpha), rtol=0, atol=1e-10)


def test_one_long_sequence_is_taken_in_pieces_without_being_asked(pieces: list[int]) -> None:
    q, k, v = sample(1, 6, 4096, 64)
    out = orthogonal_attention(q, k, v, 0.0005, max_norm=8.0)
    assert pieces == [_tokens._CHUNK // (6 * 3 * 64)]
    s = (0.0005 / 8) * (q @ k.mT - k @ q.mT)[0, 0]
    term, truth = v[0, 0].double(), v[0, 0].double()
    for n in range(1, 40):
        term = s.double() @ term / n
        truth = truth + term
    assert (out[0, 0] - truth).norm() <= 2e-6 * truth.norm()


def test_the_cancellation_is_taken_away_in_pieces_too(pieces: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tokens, "_CHUNK", 256 * 3 * 16)
    q, noise, v = sample(1, 1, 1024, 16)
    k = q + 0.01 * noise
    out = orthogonal_attention(q, k, v, 1.0, max_norm=16.0)
    assert pieces
    truth = naive.orthogonal_attention(q.double(), k.double(), v.double(), 1.0)
    assert (out - truth).norm() <= 5e-6 * truth.norm()


def test_strides_masks_and_nan(pieces: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tokens, "_CHUNK", 256 * 2 * 3 * 8)
    packed = torch.randn(1, 1024, 3, 2, 8, generator=torch.Generator().manual_seed(1))
    q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
    keep = torch.rand(1, 1024, generator=torch.Generator().manual_seed(2)) < 0.8
    k = torch.where(keep[:, None, :, None], k, math.nan)
    out = orthogonal_attention(q, k, v, 0.005, max_norm=8.0, key_mask=keep)
    assert pieces
    truth = naive.orthogonal_attention(q.double(), k.double(), v.double(), 0.005, key_mask=keep)
    assert (out - truth).norm() <= 5e-6 * truth.norm()
    spoiled = orthogonal_attention(q, k, v, 0.005, max_norm=8.0)
    assert spoiled.isnan().all()


def test_training_and_transforms_take_the_whole(pieces: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tokens, "_CHUNK", 256 * 2 * 3 * 8)
    q, k, v = sample(2, 1024, 8)
    orthogonal_attention(q.requires_grad_(), k, v, 0.001, max_norm=8.0).sum().backward()
    torch.func.vmap(lambda x: orthogonal_attention(x, k, v, 0.001, max_norm=8.0))(q.detach()[None])
    torch.compile(
        lambda: orthogonal_attention(q.detach(), k, v, 0.001, max_norm=8.0), backend="eager", fullgraph=True
    )()
    assert not pieces


def test_a_trace_serves_other_lengths_and_batches() -> None:
    def attend(x: Tensor) -> Tensor:
        q, k, v = x.unbind(0)
        return orthogonal_attention(q, k, v, 0.001, max_norm=8.0)

    with torch.no_grad():
        traced = torch.jit.trace(attend, torch.randn(3, 1, 6, 1100, 64))
        for shape in ((3, 1, 6, 1600, 64), (3, 2, 6, 40, 64)):
            x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
            torch.testing.assert_close(traced(x), attend(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("basis", ["gram", "qr", "newton-schulz", "polar-express"])
def test_shapes_without_numbers(basis: str) -> None:
    q, k, v = torch.empty(3, 2, 4, 17, 8, device="meta")
    assert orthogonal_attention(q, k, v, 0.1, basis=basis, max_norm=8.0).shape == v.shape
