"""Tokenizers: what they encode they give back, the same each time, and as other implementations do."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from transformers import AutoTokenizer

import zoo
from zoo import hub
from zoo.data import tokenizers as module
from zoo.data.text import open_text
from zoo.data.tokenizers import encode, open_tokenizer, read_tokenizer, tokenizer_of, train_tokenizer
from zoo.errors import DamagedError, NotFoundError, UsageError

ODD = [
    "",
    " ",
    "\n",
    "a\n\n\n b",
    "\t x  y   \n  z\n",
    "naïve 中文 🙂\u200d🙂 \x00 <|endoftext|>",
    " \n = = A = = \n \n b",
]


@pytest.fixture(scope="module")
def small():
    text = "".join(f" the cat sat on mat {number} ; naïve \n" for number in range(50))
    return train_tokenizer(text, 300)


@pytest.mark.parametrize("text", ODD, ids=repr)
def test_nothing_is_lost(small, text: str) -> None:
    assert small.decode(small(text)["input_ids"]) == text
    assert small.decode(encode(small, text).tolist()) == text


def test_pieces_give_what_the_whole_gives(small, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(["one line", "", "  two", " three ", "", "", "four", "five\t", " six"] * 5)
    whole = small(text)["input_ids"]
    for length in (1, 2, 7, 20):
        monkeypatch.setattr(module, "_PIECE", length)
        assert encode(small, text).tolist() == whole


def test_real_text_in_pieces_is_the_whole(data_of) -> None:
    root = data_of("tinyshakespeare")
    data_of("gpt2-bpe")
    gpt2 = open_tokenizer("gpt2", root)
    assert len(gpt2) == 50_257 and gpt2.eos_token_id == 50_256
    # The counts that nanoGPT's notes give for GPT-2's tokens.
    assert len(encode(gpt2, open_text("tinyshakespeare", "train", root))) == 301_966
    assert len(encode(gpt2, open_text("tinyshakespeare", "test", root))) == 36_059
    assert gpt2("Hello world").input_ids == [15496, 995]


def test_the_same_text_gives_the_same_entries_each_time(data_of) -> None:
    root = data_of("wikitext-2")
    text = open_text("wikitext-2", "validation", root)[:200_000]
    first, second = (train_tokenizer(text, 600) for _ in range(2))
    digest = [hashlib.sha256(one.backend_tokenizer.to_str().encode()).hexdigest() for one in (first, second)]
    assert digest[0] == digest[1] and len(first) == 600
    assert first.decode(encode(first, text).tolist()) == text


def test_saved_it_opens_in_transformers(small, tmp_path: Path) -> None:
    small.save_pretrained(tmp_path)
    for other in (read_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)):
        assert other(ODD[5]).input_ids == small(ODD[5]).input_ids
        assert other.eos_token_id == small.eos_token_id == other.pad_token_id
    assert {path.name for path in tmp_path.iterdir()} == set(hub.TOKENIZER_FILES)


def test_what_is_no_tokenizer(tmp_path: Path, data_of) -> None:
    for name in ("gpt3", "wikitext-2-bpe-0", "nothing-bpe-512", "", "wikitext-2-bpe-8192x"):
        with pytest.raises(NotFoundError, match="unknown tokenizer"):
            open_tokenizer(name, tmp_path)
    with pytest.raises(UsageError, match="every byte"):
        open_tokenizer("wikitext-2-bpe-100", data_of("wikitext-2"))
    with pytest.raises(NotFoundError, match=r"tokenizer\.json"):
        read_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DamagedError, match="no tokenizer"):
        read_tokenizer(tmp_path)
    (tmp_path / "encoder.json").write_text("[]")
    (tmp_path / "vocab.bpe").write_text("")
    with pytest.raises(DamagedError, match="no BPE"):
        open_tokenizer("gpt2", tmp_path)
    (tmp_path / "vocab.bpe").unlink()
    with pytest.raises(NotFoundError, match=r"no GPT-2 BPE.*--data-dir"):
        open_tokenizer("gpt2", tmp_path)
    with pytest.raises(NotFoundError, match=r"no data folder.*--data-dir"):
        open_tokenizer("gpt2", tmp_path / "nothing")
    with pytest.raises(UsageError, match="no tokenizer"):
        tokenizer_of(zoo.load("test-osa-vit", pretrained=False))
