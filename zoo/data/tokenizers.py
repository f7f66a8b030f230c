"""The tokenizers of the language models, by name, as transformers and the `tokenizers` library know them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from zoo import hub
from zoo.data.places import from_folder_or_hub
from zoo.data.text import TEXTS, open_text
from zoo.errors import DamagedError, NotFoundError, UsageError, one_line
from zoo.hub import TOKENIZER_FILES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END = "<|endoftext|>"
_TRAINED = re.compile(r"(?P<text>[a-z0-9-]+)-bpe-(?P<size>[1-9]\d*)")
_LEAST = 257  # every byte, and the end of a text
_PIECE, _BATCH = 1 << 16, 16  # characters, at least, and pieces handed over at a time
# Of a run of blanks GPT-2's rule gives all but the last to one token; cut here it finds the same.
_CUT = re.compile(r"\n(?= \S)|(?<=\S)\n(?=\S)")


def open_tokenizer(
    name: str, data_dir: str | Path | None = None, *, local_files_only: bool = False
) -> PreTrainedTokenizerFast:
    """The tokenizer called `name`.

    "gpt2" is GPT-2's, read from `encoder.json` and `vocab.bpe` in the data folder, else fetched from the Hub.
    "TEXT-bpe-SIZE", such as "wikitext-2-bpe-8192", is a byte-level BPE of so many entries, trained anew on the training
    split of the text, which takes seconds and gives the same entries each time.

    Raises
    ------
    NotFoundError
        No such tokenizer, or what `zoo.data.text.open_text` says.
    DamagedError
        Files that are no tokenizer.
    UsageError
        A size that has no room for every byte.
    """
    if name == "gpt2":
        return _gpt2(data_dir, local_files_only)
    match = _TRAINED.fullmatch(name)
    if match is None or match["text"] not in TEXTS:
        first = next(iter(TEXTS))
        raise NotFoundError(f"unknown tokenizer {name!r}; there are gpt2 and TEXT-bpe-SIZE, such as {first}-bpe-8192")
    if int(match["size"]) < _LEAST:
        raise UsageError(f"a tokenizer of {match['size']} entries has no room for every byte; {_LEAST} at least")
    text = open_text(match["text"], "train", data_dir, local_files_only=local_files_only)
    return train_tokenizer(text, int(match["size"]))


def tokenizer_of(model: nn.Module, data_dir: str | Path | None = None) -> PreTrainedTokenizerFast:
    """The tokenizer that belongs to a language model of `zoo.load`: that of its weights, else that of its entry.

    Raises UsageError for a model that has none, NotFoundError and DamagedError as `read_tokenizer`, `open_tokenizer`.
    """
    own = getattr(getattr(model, "config", None), "zoo", None) or {}
    folder, name = getattr(model, "zoo_folder", None), own.get("tokenizer")
    if folder is not None and (name is not None or (folder / TOKENIZER_FILES[0]).is_file()):
        return read_tokenizer(folder)
    if name is None:
        raise UsageError("this model has no tokenizer: it is no language model, or learned something else than text")
    return open_tokenizer(name, data_dir)


def end_of_text(tokenizer: PreTrainedTokenizerFast) -> int:
    """The token that ends a text, and that a text starts after; UsageError for a tokenizer without one."""
    if tokenizer.eos_token_id is None:
        raise UsageError("the tokenizer has no token for the end of a text; set its eos_token and save it again")
    return tokenizer.eos_token_id


def train_tokenizer(text: str, size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE of at most `size` entries, learned from `text`; what it encodes it gives back exactly."""
    from tokenizers import models, pre_tokenizers, trainers

    tokenizer = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return _wrapped(tokenizer)


def read_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer in a model's folder; NotFoundError or DamagedError where there is none."""
    from transformers import PreTrainedTokenizerFast

    path = folder / TOKENIZER_FILES[0]
    if not path.is_file():
        raise NotFoundError(f"{folder} has no {TOKENIZER_FILES[0]}; a folder as `zoo train` writes it has one")
    try:
        return PreTrainedTokenizerFast.from_pretrained(folder)
    except Exception as error:  # the library in Rust raises plain Exceptions
        raise DamagedError(f"{path} is no tokenizer ({one_line(error)[:200]}); fetch it again") from None


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> Tensor:
    """All of `text` as token ids, (tokens,) int32; the same as of the whole at once.

    Beside the text and the ids it needs memory for a few pieces only, where the text has line ends to cut it at.
    """
    parts = [torch.zeros(0, dtype=torch.int32)]
    pieces = _pieces(text)
    while batch := list(islice(pieces, _BATCH)):
        found = tokenizer(batch, add_special_tokens=False, return_attention_mask=False)["input_ids"]
        parts += [torch.tensor(ids, dtype=torch.int32) for ids in found]
    return torch.cat(parts)


def _pieces(text: str) -> Iterator[str]:
    """`text` in parts of some length, cut where a byte-level BPE never has a token across."""
    start = 0
    while start < len(text):
        cut = _CUT.search(text, start + _PIECE)
        end = cut.end() if cut else len(text)
        yield text[start:end]
        start = end


def _gpt2(data_dir: str | Path | None, local_files_only: bool) -> PreTrainedTokenizerFast:
    from tokenizers import models

    def from_folder(root: Path) -> list[Path]:
        sets = [[place / "encoder.json", place / "vocab.bpe"] for place in (root / "gpt2-bpe", root)]
        paths = next((paths for paths in sets if all(path.is_file() for path in paths)), None)
        if paths is None:
            raise NotFoundError(
                f"no GPT-2 BPE in {root}: encoder.json and vocab.bpe are neither there nor in its folder gpt2-bpe; name"
                " the right folder with --data-dir or ZOO_DATA, or leave both out to fetch it from the Hub"
            )
        return paths

    def from_hub() -> list[Path]:
        files = ("vocab.json", "merges.txt")
        return [hub.fetch("openai-community/gpt2", file, local_files_only=local_files_only) for file in files]

    paths = from_folder_or_hub("GPT-2's tokenizer", data_dir, from_folder, from_hub)
    try:
        return _wrapped(_byte_level(models.BPE.from_file(*map(str, paths))))
    except Exception as error:  # the library in Rust raises plain Exceptions
        raise DamagedError(
            f"{paths[0]} and {paths[1]} are no BPE ({one_line(error)[:200]}); fetch them again"
        ) from None


def _byte_level(model: Any) -> Any:
    """A tokenizer of the `tokenizers` library that cuts and joins text as GPT-2's does."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers

    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _wrapped(tokenizer: object) -> PreTrainedTokenizerFast:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        pad_token=END,
        clean_up_tokenization_spaces=False,
    )
