"""Fixtures that all tests share."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


def found(dataset: str) -> Path:
    """The folder `ZOO_DATA`, with `dataset` in it; else the test is skipped, and fails where `CI` is "true"."""
    named = os.environ.get("ZOO_DATA")
    if named and any((Path(named) / dataset).glob("*")):
        return Path(named).resolve()
    reason = f"no {dataset}/ in the folder {named}" if named else f"ZOO_DATA names no folder with {dataset}/ in it"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def data_of() -> Callable[[str], Path]:
    """The folder of the real data sets, for one of them by name."""
    return found


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of the real data sets, with MNIST in it."""
    return found("mnist")


@pytest.fixture
def run_zoo(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command `zoo` in a process of its own, offline, in an empty folder; returns the finished process."""

    def run(*words: str | Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "zoo", *map(str, words)],
            cwd=cwd or tmp_path,
            env={**os.environ, "HF_HUB_OFFLINE": "1", **env},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


@pytest.fixture(scope="session")
def small_cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the first 640 training and 200 test pictures of CIFAR-10, which are read in no time."""
    import pyarrow.parquet

    whole, root = found("cifar10"), tmp_path_factory.mktemp("data")
    (root / "cifar10").mkdir()
    for split, rows in (("train", 640), ("test", 200)):
        first = sorted((whole / "cifar10").glob(f"{split}-*.parquet"))[0]
        batch = next(pyarrow.parquet.ParquetFile(first).iter_batches(rows))
        path = root / "cifar10" / f"{split}-00000-of-00001.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_batches([batch]), path)
    return root


@pytest.fixture(scope="session")
def small_mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the first 640 training and 500 test pictures of MNIST."""
    from zoo.data import open_dataset

    whole, root = found("mnist"), tmp_path_factory.mktemp("data")
    (root / "mnist").mkdir()
    for split, word, count in (("train", "train", 640), ("test", "t10k", 500)):
        part = open_dataset("mnist", split, whole).first(count)
        for kind, content, sides in (
            ("images-idx3", part.images.numpy(), (count, 28, 28)),
            ("labels-idx1", part.targets.byte().numpy(), (count,)),
        ):
            head = struct.pack(f">HBB{len(sides)}I", 0, 8, len(sides), *sides)
            (root / "mnist" / f"{word}-{kind}-ubyte").write_bytes(head + content.tobytes())
    return root


@pytest.fixture(scope="session")
def small_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the beginning of WikiText-2's three files."""
    from zoo.data.text import open_text

    whole, root = found("wikitext-2"), tmp_path_factory.mktemp("data")
    (root / "wikitext-2").mkdir()
    for split, word, count in (("train", "train", 60_000), ("validation", "valid", 6_000), ("test", "test", 6_000)):
        part = open_text("wikitext-2", split, whole)[:count]
        (root / "wikitext-2" / f"wiki.{word}.tokens").write_text(part, encoding="utf-8")
    return root


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """No graph of another test is left, nor one of this test for the next."""
    import torch

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
