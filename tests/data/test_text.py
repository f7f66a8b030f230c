"""Text data sets: where they are found, what they hold, and what is no text."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from zoo import hub
from zoo.data import text as module
from zoo.data.text import TEXTS, open_text, words_of
from zoo.errors import DamagedError, NotFoundError, UsageError

LINES = " \n = Title = \n \n A first line of text . \n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """WikiText-2 in three files, of which one is packed."""
    root = tmp_path / "wikitext-2"
    root.mkdir()
    for word in ("train", "valid"):
        (root / f"wiki.{word}.tokens").write_text(f"{word}{LINES}", encoding="utf-8")
    (root / "wiki.test.tokens.gz").write_bytes(gzip.compress(f"test{LINES}".encode()))
    return tmp_path


def test_the_real_wikitexts_have_the_words_that_their_authors_count(data_of) -> None:
    root = data_of("wikitext-2")
    data_of("wikitext-103-eval")
    counts = {split: words_of(open_text("wikitext-2", split, root)) for split in ("train", "validation", "test")}
    assert counts == {"train": 2_088_628, "validation": 217_646, "test": 245_569}
    assert words_of(open_text("wikitext-103", "test", root)) == 245_569


def test_tinyshakespeare_is_cut_by_characters(data_of) -> None:
    root = data_of("tinyshakespeare")
    train, rest = open_text("tinyshakespeare", "train", root), open_text("tinyshakespeare", "validation", root)
    assert len(train) == 1_003_854 and len(train) + len(rest) == 1_115_394
    assert rest == open_text("tinyshakespeare", "test", root)


def test_a_folder_of_sets_or_of_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for root in (folder, folder / "wikitext-2"):
        assert open_text("wikitext-2", "validation", root) == f"valid{LINES}"
        assert open_text("wikitext-2", "test", root) == f"test{LINES}"
    monkeypatch.setenv("ZOO_DATA", str(folder))
    assert open_text("wikitext-2", "train") == f"train{LINES}"


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "my text.txt"
    path.write_text("0123456789äöü" * 10, encoding="utf-8")
    parts = [open_text(f"textfile:{path}", split) for split in ("train", "test")]
    assert "".join(parts) == path.read_text(encoding="utf-8") and len(parts[0]) == 117


def test_a_file_of_ones_own_may_be_a_page_and_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_bytes(b"\xef\xbb\xbf<html> a page </html>" + b" and more" * 20)
    assert open_text(f"textfile:{path}", "train").startswith("<html> a page")
    path.write_bytes(b"")
    with pytest.raises(DamagedError, match="empty"):
        open_text(f"textfile:{path}", "train")


def test_the_hubs_rows_are_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fetch(repository: str, filename: str, **how: object) -> Path:
        asked.append(f"{repository}/{filename}")
        path = tmp_path / filename.replace("/", "-")
        rows = ["", " = Title = \n", "", f" {filename[-23:]} \n"]
        pyarrow.parquet.write_table(pyarrow.table({"text": rows}), path)
        return path

    monkeypatch.delenv("ZOO_DATA", raising=False)
    monkeypatch.setattr(hub, "fetch", fetch)
    assert open_text("wikitext-2", "validation") == " \n = Title = \n \n -00000-of-00001.parquet \n"
    both = open_text("wikitext-103", "train")
    assert both.count("Title") == 2 and both.index("00000-of-00002") < both.index("00001-of-00002")
    assert asked[0] == "Salesforce/wikitext/wikitext-2-v1/validation-00000-of-00001.parquet"
    monkeypatch.setattr(module.hub, "fetch", lambda *_, **__: tmp_path / "nothing.parquet")
    with pytest.raises(DamagedError, match="no Parquet file"):
        open_text("wikitext-2", "test")


def test_offline_both_ways_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ZOO_DATA", raising=False)
    for name in TEXTS:
        with pytest.raises(NotFoundError, match=r"not at hand.*--data-dir"):
            open_text(name, "train", local_files_only=True)
        with pytest.raises(NotFoundError, match=r"no .* in .*--data-dir or ZOO_DATA"):
            open_text(name, "train", tmp_path)
    with pytest.raises(NotFoundError, match="no data folder"):
        open_text("wikitext-2", "train", tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"\xff\xfe\x00text", "UTF-8"),
        (gzip.compress(b"text" * 100)[:20], "cannot be read"),
    ],
)
def test_what_is_no_text(content: bytes, words: str, folder: Path) -> None:
    (folder / "wikitext-2" / "wiki.train.tokens").write_bytes(content)
    with pytest.raises(DamagedError, match=words):
        open_text("wikitext-2", "train", folder)


@pytest.mark.parametrize(
    ("name", "split", "kind"),
    [
        ("wikitext-3", "train", NotFoundError),
        ("wikitext-2", "dev", UsageError),
        ("textfile:", "train", UsageError),
        ("textfile:nowhere.txt", "train", NotFoundError),
        ("textfile:.", "train", UsageError),
    ],
)
def test_what_cannot_be_meant(name: str, split: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        open_text(name, split, "/")


def test_a_folder_of_the_other_wikitext_is_not_taken_for_it(folder: Path) -> None:
    with pytest.raises(NotFoundError, match="no WikiText-103"):
        open_text("wikitext-103", "train", folder / "wikitext-2")
    (folder / "wikitext-2").rename(folder / "mine")
    assert open_text("wikitext-103", "train", folder / "mine") == f"train{LINES}"
