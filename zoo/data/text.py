"""Text to learn from: WikiText, TinyShakespeare, any text file."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from zoo import hub
from zoo.data import parquet
from zoo.data.places import from_folder_or_hub
from zoo.errors import DamagedError, NotFoundError, UsageError, ZooError, one_line
from zoo.files import impostor

SPLITS = ("train", "validation", "test")
# Before the path of any text file, in place of a name.
TEXT_FILE = "textfile:"
_WIKITEXT, _SHAKESPEARE = "Salesforce/wikitext", "karpathy/tiny_shakespeare"
_SHARE = 0.9  # of a text without splits of its own, to learn from


@dataclass(frozen=True)
class TextSet:
    """A text with a name: `title` for messages, its repository, how it is read from a folder and from the Hub."""

    title: str
    repository: str
    from_folder: Callable[[Path, str], str]
    from_hub: Callable[[str, bool], str]


def open_text(name: str, split: str, data_dir: str | Path | None = None, *, local_files_only: bool = False) -> str:
    """The whole text of a split: from `data_dir`, else from the folder that `ZOO_DATA` names, else from the Hub.

    "textfile:FILE" in place of a name reads any text file. It, and TinyShakespeare, have no splits of their own: the
    first nine tenths of their characters are for training, the rest for validation and test alike.

    Raises
    ------
    NotFoundError
        No such text; the folder, or the text in it, is not there, or the Hub cannot give it: the message says both
        ways.
    DamagedError
        A file cannot be read, or is no UTF-8 text.
    UsageError
        No such split, or a text file without a name.
    """
    if split not in SPLITS:
        raise UsageError(f"unknown split {split!r}; there are {', '.join(SPLITS)}")
    if name.startswith(TEXT_FILE):
        file = name.removeprefix(TEXT_FILE)
        if not file:
            raise UsageError(f"{name!r} names no file; {TEXT_FILE}FILE would be right")
        return _part(_read(Path(file).expanduser(), anything=True), split)
    if name not in TEXTS:
        raise NotFoundError(f"unknown text {name!r}; the zoo reads {', '.join(TEXTS)} and {TEXT_FILE}FILE")
    known = TEXTS[name]

    def from_hub() -> str:
        try:
            return known.from_hub(split, local_files_only)
        except ZooError as error:
            raise type(error)(f"{known.title} is not at hand: {error}; or name its folder with --data-dir") from None

    return from_folder_or_hub(name, data_dir, lambda root: known.from_folder(root, split), from_hub)


def words_of(text: str) -> int:
    """How many words a text has, each end of a line counted as one: WikiText's own count, with its <eos>."""
    return len(text.split()) + text.count("\n")


def _read(path: Path, anything: bool = False) -> str:
    """A UTF-8 text file, packed by gzip or not, with a byte order mark or not; `anything` a page of the web too."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; {TEXT_FILE}FILE reads one file")
    try:
        raw = path.read_bytes()
        content = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        cause = impostor(content[:64])
        if cause is not None and not (anything and content.lstrip()[:1] == b"<"):
            raise DamagedError(f"{path} holds no text: {cause}")
        return content.decode("utf-8-sig")
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path}") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DamagedError(f"{path} cannot be read as UTF-8 text ({one_line(error)[:200]})") from None


def _part(text: str, split: str) -> str:
    cut = int(_SHARE * len(text))
    return text[:cut] if split == "train" else text[cut:]


def _wikitext(size: int) -> TextSet:
    title, config = f"WikiText-{size}", f"wikitext-{size}-v1"
    word = {"train": "train", "validation": "valid", "test": "test"}

    def from_folder(root: Path, split: str) -> str:
        stem = f"wiki.{word[split]}.tokens"
        folders = [root / f"wikitext-{size}", root / config, root / f"wikitext-{size}-eval"]
        if not (root.name.startswith("wikitext-") and root.name.split("-")[1] != str(size)):
            folders.append(root)  # the files' own names do not say which of the two they are
        for folder in folders:
            for path in (folder / stem, folder / f"{stem}.gz"):
                if path.is_file():
                    return _read(path)
        raise NotFoundError(
            f"no {title} in {root}: {stem}[.gz] is neither there nor in its folder wikitext-{size}; name the right"
            " folder with --data-dir or ZOO_DATA, or leave both out to fetch it from the Hub"
        )

    def from_hub(split: str, local_files_only: bool) -> str:
        shards = 2 if (size, split) == (103, "train") else 1
        names = [f"{config}/{split}-{shard:05d}-of-{shards:05d}.parquet" for shard in range(shards)]
        paths = [hub.fetch(_WIKITEXT, name, repo_type="dataset", local_files_only=local_files_only) for name in names]
        # A row is a line; of an empty one the Hub's files leave out the blank and the end.
        rows = [row or " \n" for path in paths for row in parquet.texts(path)]
        if not rows:
            raise DamagedError(f"{paths[0]} holds no rows; delete it and fetch it again")
        return "".join(rows)

    return TextSet(title, _WIKITEXT, from_folder, from_hub)


def _shakespeare_folder(root: Path, split: str) -> str:
    for folder in (root / "tinyshakespeare", root):
        if (folder / "input.txt").is_file():
            return _part(_read(folder / "input.txt"), split)
    raise NotFoundError(
        f"no TinyShakespeare in {root}: input.txt is neither there nor in its folder tinyshakespeare; name the right"
        " folder with --data-dir or ZOO_DATA"
    )


def _shakespeare_hub(split: str, local_files_only: bool) -> str:
    raise NotFoundError("the Hub has no plain file of it; its input.txt is in github.com/karpathy/char-rnn")


# By the name that the registry uses.
TEXTS = {
    "wikitext-2": _wikitext(2),
    "wikitext-103": _wikitext(103),
    "tinyshakespeare": TextSet("TinyShakespeare", _SHAKESPEARE, _shakespeare_folder, _shakespeare_hub),
}
