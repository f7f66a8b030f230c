"""Fixtures that all tests share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of the real data sets (`ZOO_DATA`). Absent: the test is skipped, and fails where `CI` is "true"."""
    named = os.environ.get("ZOO_DATA")
    if named and any((Path(named) / "mnist").glob("train-images*")):
        return Path(named).resolve()
    reason = f"no mnist/ in the folder {named}" if named else "ZOO_DATA names no folder with mnist/ in it"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


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
def small_cifar(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the first 640 training and 200 test pictures of CIFAR-10, which are read in no time."""
    import pyarrow.parquet

    root = tmp_path_factory.mktemp("data")
    (root / "cifar10").mkdir()
    for split, rows in (("train", 640), ("test", 200)):
        first = sorted((data_dir / "cifar10").glob(f"{split}-*.parquet"))[0]
        batch = next(pyarrow.parquet.ParquetFile(first).iter_batches(rows))
        path = root / "cifar10" / f"{split}-00000-of-00001.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_batches([batch]), path)
    return root
