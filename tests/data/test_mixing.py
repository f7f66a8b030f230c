"""Mixup and CutMix: pictures and targets are mixed by the same share, with the same partner."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot

from zoo.data.mixing import mix

DEFAULTS = {"mixup_alpha": 1.0, "cutmix_alpha": 1.0, "probability": 1.0, "label_smoothing": 0.0}


def mixes(count, batch=6, size=(10, 14), **options):
    """`count` mixed batches in which picture i has the value i everywhere and is the only one of class i."""
    generator = torch.Generator().manual_seed(0)
    images = torch.arange(batch).float().view(-1, 1, 1, 1).expand(-1, 2, *size)
    for _ in range(count):
        yield mix(images, torch.arange(batch), max(batch, 1), generator=generator, **DEFAULTS | options)


def share(soft):
    """λ of the pictures whose partner is another one, or None if there is none."""
    parts = soft.diagonal()[soft.diagonal() < 1]
    assert torch.allclose(parts, parts[:1])
    return parts[0].item() if len(parts) else None


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_unmixed_targets_give_torchs_own_loss(smoothing):
    generator = torch.Generator().manual_seed(0)
    images, targets = torch.rand(20, 3, 4, 4), torch.randint(0, 7, (20,), generator=generator)
    logits = 3 * torch.randn(20, 7, generator=generator, dtype=torch.float64)
    options = DEFAULTS | {"probability": 0.0, "label_smoothing": smoothing}
    same, soft = mix(images, targets, 7, generator=generator, **options)
    assert same is images
    assert soft.dtype == torch.float32
    expected = cross_entropy(logits, targets, label_smoothing=smoothing)
    assert torch.allclose(cross_entropy(logits, soft.double()), expected, rtol=1e-6)  # float32 targets


def test_mixed_targets_give_the_mixed_loss():
    """λ CE(y_i) + (1 - λ) CE(y_j), both smoothed, as the papers' code has it."""
    images, targets = torch.rand(9, 1, 4, 4), torch.arange(9)
    logits = torch.randn(9, 9, generator=torch.Generator().manual_seed(1))
    options = DEFAULTS | {"cutmix_alpha": 0.0}
    hard, soft = (
        mix(images, targets, 9, generator=torch.Generator().manual_seed(3), **options | {"label_smoothing": smoothing})[
            1
        ]
        for smoothing in (0.0, 0.1)
    )
    lam = share(hard)
    partner = (hard - lam * one_hot(targets, 9)).argmax(1)
    expected = lam * cross_entropy(logits, targets, label_smoothing=0.1)
    expected += (1 - lam) * cross_entropy(logits, partner, label_smoothing=0.1)
    assert torch.allclose(cross_entropy(logits, soft), expected)


@pytest.mark.parametrize("alphas", [(1.0, 0.0), (0.0, 1.0)], ids=["mixup", "cutmix"])
def test_pictures_and_targets_have_the_same_shares(alphas):
    values = torch.arange(6).float()
    for images, soft in mixes(200, mixup_alpha=alphas[0], cutmix_alpha=alphas[1]):
        assert torch.allclose(images.mean((2, 3)), (soft @ values)[:, None].expand(-1, 2), atol=1e-5)
        assert torch.allclose(soft.sum(1), torch.ones(6))
        assert torch.allclose(soft.sum(0), torch.ones(6))  # each is the partner of one
        assert ((soft > 0).sum(1) <= 2).all()


def test_cutmix_cuts_one_box_for_all():
    boxes = set()
    for images, _ in mixes(300, mixup_alpha=0.0):
        foreign = images[:, 0] != torch.arange(6).view(-1, 1, 1)
        partner = images[:, 0].flatten(1)
        assert all(len(row.unique()) <= 2 for row in partner)
        box = foreign.any(0)
        assert torch.equal(box, box.any(1, keepdim=True) & box.any(0, keepdim=True))
        assert all(torch.equal(mask, box) for mask in foreign if mask.any())
        boxes.add(tuple(box.flatten().tolist()))
    assert len(boxes) > 100


def test_cutmix_boxes_reach_every_pixel():
    """The box's centre is uniform and it is clipped, so the middle is cut more often than the corners, but all are."""
    cut = torch.zeros(10, 14)
    for images, _ in mixes(1000, mixup_alpha=0.0):
        cut += (images[:, 0] != torch.arange(6).view(-1, 1, 1)).any(0)
    assert cut.min() > 50
    assert cut[5, 7] > cut[0, 0]
    assert torch.allclose(cut, cut.flip(0).flip(1), atol=160)  # five standard deviations of a count near 500


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_mixup_shares_are_of_the_beta_distribution(alpha):
    drawn = torch.tensor([lam for _, soft in mixes(3000, cutmix_alpha=0.0, mixup_alpha=alpha) if (lam := share(soft))])
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(drawn.mean() - 0.5) < 5 * math.sqrt(variance / len(drawn))
    assert drawn.var() == pytest.approx(variance, rel=0.12)


def kind(images):
    """What was done to pictures of one value each."""
    whole = images == images[:, :, :1, :1]
    if not whole.all():
        return "cutmix"
    return "none" if torch.equal(images[:, 0, 0, 0], torch.arange(6).float()) else "mixup"


@pytest.mark.parametrize("probability", [0.5, 0.8])
def test_half_of_the_mixed_batches_are_cut(probability):
    """A permutation that moves nothing, or a box of the whole or of nothing, looks different, rarely."""
    kinds = [kind(images) for images, _ in mixes(2000, size=(40, 40), probability=probability)]
    for name, chance in (("cutmix", probability / 2), ("mixup", probability / 2), ("none", 1 - probability)):
        assert abs(kinds.count(name) / 2000 - chance) < 5 * math.sqrt(0.25 / 2000)


def test_one_of_the_two_can_be_off():
    assert {kind(images) for images, _ in mixes(100, cutmix_alpha=0.0)} <= {"mixup", "none"}
    assert kind(next(iter(mixes(1, cutmix_alpha=0.0, mixup_alpha=0.0)))[0]) == "none"


def test_a_setting_leaves_the_other_draws_as_they_are():
    first, other = (list(mixes(20, label_smoothing=smoothing)) for smoothing in (0.0, 0.1))
    assert all(torch.equal(one[0], two[0]) for one, two in zip(first, other, strict=True))


@pytest.mark.parametrize("batch", [0, 1])
def test_a_batch_of_one_or_none_has_no_partner(batch):
    for images, soft in mixes(20, batch=batch):
        assert torch.equal(images, torch.zeros(batch, 2, 10, 14))
        assert torch.allclose(soft, torch.ones(batch, 1))
