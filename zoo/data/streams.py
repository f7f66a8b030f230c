"""Texts too large to be read whole: documents one after another, each shard fetched from the Hub when it is reached."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from zoo import hub
from zoo.data import parquet
from zoo.data.text import SPLITS
from zoo.errors import NotFoundError, UsageError

_HELD_OUT = 500  # documents of the last shard for validation, and as many after them for test


@dataclass(frozen=True)
class Stream:
    """Parquet shards with a column `text` on the Hub: `name` has places for the shard and for how many there are."""

    repository: str
    name: str
    shards: int

    def shard(self, number: int, local_files_only: bool) -> Iterator[str]:
        """The documents of one shard, which is fetched first."""
        name = self.name.format(number, self.shards)
        path = hub.fetch(self.repository, name, repo_type="dataset", local_files_only=local_files_only)
        return parquet.texts(path)


# By name; none is fetched unless it is asked for.
STREAMS = {"openwebtext": Stream("Skylion007/openwebtext", "plain_text/train-{:05d}-of-{:05d}.parquet", 80)}


def documents(name: str, split: str, *, local_files_only: bool = False) -> Iterator[str]:
    """The documents of a stream in their order: for "train" all shards but the last, which gives the others.

    Raises
    ------
    NotFoundError
        There is no such stream, or the Hub cannot give a shard.
    DamagedError
        A shard is no Parquet file of texts.
    UsageError
        No such split.
    """
    if name not in STREAMS:
        raise NotFoundError(f"unknown stream {name!r}; there are {', '.join(STREAMS)}")
    if split not in SPLITS:
        raise UsageError(f"unknown split {split!r}; there are {', '.join(SPLITS)}")
    stream = STREAMS[name]
    if split == "train":
        return (text for number in range(stream.shards - 1) for text in stream.shard(number, local_files_only))
    first = 0 if split == "validation" else _HELD_OUT
    return islice(stream.shard(stream.shards - 1, local_files_only), first, first + _HELD_OUT)
