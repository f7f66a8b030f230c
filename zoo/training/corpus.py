"""A split of a text as the tokens that are learned from or measured on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zoo.data.streams import STREAMS, documents
from zoo.data.text import TEXT_FILE, TEXTS, open_text, words_of
from zoo.data.tokenizers import encode, end_of_text
from zoo.errors import NotFoundError, UsageError
from zoo.training.copying import DATASET

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def corpus(
    name: str,
    split: str,
    tokenizer: PreTrainedTokenizerFast,
    data_dir: str | Path | None = None,
    tokens: int | None = None,
) -> tuple[Tensor, int]:
    """Token ids (tokens,) int32, the end of a text before the first, and how many words the text has.

    A text is one row, whatever it is made of; of a stream each document ends with that token too. `tokens` stops a
    stream as soon as there are so many, which its training split needs, for it has no end that anybody waits for.

    Raises what `open_text` and `documents` of `zoo.data` raise; UsageError for a stream without an end, or a
    tokenizer without a token for it.
    """
    end = torch.tensor([end_of_text(tokenizer)], dtype=torch.int32)
    if name not in (*TEXTS, *STREAMS) and not name.startswith(TEXT_FILE):
        raise NotFoundError(
            f"unknown text {name!r}; there are {', '.join((*TEXTS, *STREAMS, DATASET))} and {TEXT_FILE}FILE"
        )
    if name not in STREAMS:
        text = open_text(name, split, data_dir)
        return torch.cat((end, encode(tokenizer, text))), words_of(text)
    if tokens is None and split == "train":
        raise UsageError(
            f"the training text of {name} is a stream without an end: train on as much as --set samples=100000 takes;"
            " what it is measured on are its splits validation and test"
        )
    parts, length, words = [end], 1, 0
    for text in documents(name, split):
        parts += [encode(tokenizer, text), end]
        length += len(parts[-2]) + 1
        words += words_of(text)
        if tokens is not None and length >= tokens:
            break
    return torch.cat(parts), words
