"""Streams: shards in their order and only when they are reached, and what is learned from them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from zoo import hub, training
from zoo.data import streams
from zoo.data.streams import Stream, documents
from zoo.errors import DamagedError, NotFoundError, UsageError


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that are fetched from a stream of three shards of 1,100 documents each."""
    names: list[str] = []

    def fetch(repository: str, filename: str, **how: object) -> Path:
        assert repository == "Skylion007/openwebtext" and how["repo_type"] == "dataset"
        names.append(filename)
        path = tmp_path / filename.replace("/", "-")
        rows = [f"{filename[17:22]} document {number} of many\nends" for number in range(1100)]
        pyarrow.parquet.write_table(pyarrow.table({"text": rows}), path)
        return path

    known = streams.STREAMS["openwebtext"]
    monkeypatch.setitem(streams.STREAMS, "openwebtext", Stream(known.repository, known.name, 3))
    monkeypatch.setattr(hub, "fetch", fetch)
    return names


def test_shards_come_in_their_order_and_when_they_are_reached(fetched: list[str]) -> None:
    found = documents("openwebtext", "train")
    assert fetched == []
    first = list(islice(found, 1100))
    assert fetched == ["plain_text/train-00000-of-00003.parquet"]
    assert first[7] == "00000 document 7 of many\nends"
    assert next(found) == "00001 document 0 of many\nends" and len(fetched) == 2
    assert len(list(found)) == 1099 and len(fetched) == 2, "the last shard is not for training"


def test_the_last_shard_gives_the_other_splits(fetched: list[str]) -> None:
    validation, test = (list(documents("openwebtext", split)) for split in ("validation", "test"))
    assert validation[0].startswith("00002 document 0 ") and test[0].startswith("00002 document 500 ")
    assert len(validation) == len(test) == 500


def test_what_cannot_be_meant(fetched: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFoundError, match="unknown stream"):
        documents("closedwebtext", "train")
    with pytest.raises(UsageError, match="unknown split"):
        documents("openwebtext", "dev")
    for content in (pyarrow.table({"text": [1, 2]}), pyarrow.table({"other": ["a"]})):
        pyarrow.parquet.write_table(content, tmp_path / "x.parquet")
        monkeypatch.setattr(hub, "fetch", lambda *_, **__: tmp_path / "x.parquet")
        with pytest.raises(DamagedError):
            list(documents("openwebtext", "test"))


def test_a_training_takes_as_much_as_it_needs(fetched: list[str], small_text: Path, tmp_path: Path) -> None:
    how = {"data": "openwebtext", "data_dir": small_text}
    results = training.train("test-mgt-lm", output=tmp_path / "run", settings={"samples": 16}, **how)
    assert results["dataset"] == "openwebtext" and results["steps"] == 2
    assert set(fetched) == {f"plain_text/train-{shard:05d}-of-00003.parquet" for shard in (0, 2)}
    assert results["words"] == 500 * 7  # six words and an end of a line
    assert training.evaluate_named(str(tmp_path / "run"), data_dir=small_text).perplexity == results["perplexity"]
    with pytest.raises(UsageError, match=r"stream without an end: .*--set samples=.*validation and test"):
        training.train("test-mgt-lm", output=tmp_path / "other", settings={"samples": None}, **how)
