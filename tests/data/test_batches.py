"""Order, shards and augmentation of batches are functions of seed, epoch and step alone."""

from __future__ import annotations

import torch

from zoo.data import random_shift, shuffled_batches


def test_an_epoch_sees_each_picture_once():
    batches = list(shuffled_batches(103, 10, seed=0, epoch=3))
    assert len(batches) == 10
    seen = torch.cat(batches)
    assert len(seen.unique()) == 100


def test_epochs_and_seeds_differ():
    first = [torch.cat(list(shuffled_batches(50, 10, seed=s, epoch=e))) for s, e in ((0, 0), (0, 1), (1, 0))]
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])
    assert torch.equal(first[0], torch.cat(list(shuffled_batches(50, 10, seed=0, epoch=0))))


def test_a_resumed_epoch_goes_on():
    whole = list(shuffled_batches(64, 8, seed=0, epoch=0))
    rest = list(shuffled_batches(64, 8, seed=0, epoch=0, start=5))
    assert all(torch.equal(a, b) for a, b in zip(whole[5:], rest, strict=True))


def test_processes_share_a_batch():
    whole = list(shuffled_batches(64, 8, seed=0, epoch=0))
    parts = [list(shuffled_batches(64, 8, seed=0, epoch=0, rank=rank, world=2)) for rank in range(2)]
    for batch, one, two in zip(whole, *parts, strict=True):
        assert set(one.tolist()).isdisjoint(two.tolist())
        assert set(batch.tolist()) == {*one.tolist(), *two.tolist()}


def test_a_shift_moves_and_loses_nothing_inside():
    images = torch.zeros(200, 2, 9, 9, dtype=torch.uint8)
    images[:, :, 4, 4] = torch.arange(1, 201, dtype=torch.uint8)[:, None]
    moved = random_shift(images, 3, torch.Generator().manual_seed(0))
    assert moved.dtype == images.dtype
    assert torch.equal(moved.amax((2, 3)), images.amax((2, 3)))
    places = moved[:, 0].flatten(1).argmax(1)
    rows, columns = places // 9, places % 9
    assert set(rows.tolist()) == set(columns.tolist()) == set(range(1, 8))
    assert not torch.equal(rows, columns)


def test_a_shift_pushes_out_what_leaves():
    images = torch.ones(50, 1, 4, 4)
    moved = random_shift(images, 2, torch.Generator().manual_seed(1))
    assert ((moved == 0) | (moved == 1)).all()
    assert moved.flatten(1).sum(1).min() == 4


def test_no_shift_is_the_same_picture():
    images = torch.rand(3, 1, 5, 5)
    assert random_shift(images, 0) is images
    assert random_shift(images[:0], 2).shape == (0, 1, 5, 5)
