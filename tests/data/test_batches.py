"""Order, shards and augmentation of batches are functions of seed, epoch and step alone."""

from __future__ import annotations

import pytest
import torch

from zoo.data import batch_of_step
from zoo.data.arrays import steps_per_epoch


def epoch(number, total=103, batch_size=10, **options):
    steps = total // batch_size
    return [batch_of_step(total, batch_size, number * steps + i, **{"seed": 0, **options}) for i in range(steps)]


def test_an_epoch_sees_each_picture_once():
    batches = epoch(3)
    assert [len(batch) for batch in batches] == [10] * 10
    assert len(torch.cat(batches).unique()) == 100


def test_epochs_and_seeds_differ():
    first = torch.cat(epoch(0))
    assert not torch.equal(first, torch.cat(epoch(1)))
    assert not torch.equal(first, torch.cat(epoch(0, seed=1)))


def test_a_step_knows_its_batch_without_those_before():
    whole = epoch(2)
    assert torch.equal(batch_of_step(103, 10, 27, seed=0), whole[7])


def test_processes_share_a_batch():
    for batch, one, two in zip(epoch(0), epoch(0, rank=0, world=2), epoch(0, rank=1, world=2), strict=True):
        assert set(one.tolist()).isdisjoint(two.tolist())
        assert set(batch.tolist()) == {*one.tolist(), *two.tolist()}


def test_repeats_follow_one_another_and_lengthen_the_epoch():
    steps = steps_per_epoch(103, 10, 3)
    assert steps == 30
    batches = [batch_of_step(103, 10, 2 * steps + i, seed=0, repeats=3) for i in range(steps)]
    assert {len(batch) for batch in batches} == {10}
    stream = torch.cat(batches).view(100, 3)
    assert (stream == stream[:, :1]).all()
    assert torch.equal(stream[:, 0], torch.cat(epoch(2)))  # the same order, each picture three times
    assert not torch.equal(batches[0], batch_of_step(103, 10, 3 * steps, seed=0, repeats=3))


def test_steps_of_an_epoch():
    assert steps_per_epoch(50_000, 128, 3) == 1171
    assert steps_per_epoch(50_000, 128) == 390
    assert steps_per_epoch(9, 10) == 0


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_processes_share_a_batch_of_repeats(world):
    """Picture by picture in turn, so that the copies of one go to different processes."""
    for step in range(31):
        whole = batch_of_step(103, 12, step, seed=5, repeats=3)
        shares = [batch_of_step(103, 12, step, seed=5, repeats=3, rank=rank, world=world) for rank in range(world)]
        assert torch.equal(torch.stack(shares, 1).flatten(), whole)
