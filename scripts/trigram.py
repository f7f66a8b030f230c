"""Perplexity of an interpolated trigram on the tokens that a language model of the zoo learns from.

    python scripts/trigram.py [--tokenizer wikitext-2-bpe-8192] [--dataset wikitext-2]

p(w | u v) = a3 c(u v w) / c(u v) + a2 c(v w) / c(v) + a1 c(w) / N + a0 / V with counts of the training split. The
weights a depend on how often u v was seen (seven classes), and are found by expectation maximisation on the validation
split. Prints one JSON document: perplexity a token and a word of validation and test, as `zoo eval` counts them.
"""

from __future__ import annotations

import json
import math

import click
import numpy as np

from zoo.data.tokenizers import open_tokenizer
from zoo.training.corpus import corpus

_ROUNDS = 60
_EDGES = np.array([1, 2, 4, 8, 32, 128])  # of how often the context was seen


class Counts:
    """How often each run of one, two and three tokens comes in a text; keys are numbers in base `size`."""

    def __init__(self, ids: np.ndarray, size: int) -> None:
        self.size, self.total = size, len(ids)
        self.one = np.bincount(ids, minlength=size).astype(np.float64)
        self.two = np.unique(self.pairs(ids), return_counts=True)
        self.three = np.unique(self.triples(ids), return_counts=True)

    def pairs(self, ids: np.ndarray) -> np.ndarray:
        """Key of each two tokens in a row."""
        return ids[:-1] * self.size + ids[1:]

    def triples(self, ids: np.ndarray) -> np.ndarray:
        """Key of each three tokens in a row."""
        return (ids[:-2] * self.size + ids[1:-1]) * self.size + ids[2:]

    def parts(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(tokens - 2, 4) probabilities of the third token on by each order, and the class of its context."""
        context = times_of(self.two, self.pairs(ids)[:-1])
        three = times_of(self.three, self.triples(ids))
        two, before = times_of(self.two, self.pairs(ids)[1:]), self.one[ids[1:-1]]
        orders = [
            np.divide(three, context, out=np.zeros_like(three), where=context > 0),
            np.divide(two, before, out=np.zeros_like(two), where=before > 0),
            self.one[ids[2:]] / self.total,
            np.full(len(ids) - 2, 1 / self.size),
        ]
        return np.stack(orders, 1), np.searchsorted(_EDGES, context, side="right")


def times_of(counts: tuple[np.ndarray, np.ndarray], keys: np.ndarray) -> np.ndarray:
    """How often each key was counted; 0 where it was not."""
    known, times = counts
    places = np.searchsorted(known, keys).clip(max=len(known) - 1)
    return np.where(known[places] == keys, times[places], 0).astype(np.float64)


def weights_of(parts: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """(classes, 4) mixture weights that make `parts` likeliest."""
    weights = np.full((len(_EDGES) + 1, 4), 0.25)
    for _ in range(_ROUNDS):
        shares = weights[classes] * parts
        shares /= shares.sum(1, keepdims=True)
        for number in range(len(weights)):
            if (classes == number).any():
                weights[number] = shares[classes == number].mean(0)
    return weights


@click.command(help=__doc__)
@click.option("--tokenizer", default="wikitext-2-bpe-8192", show_default=True)
@click.option("--dataset", default="wikitext-2", show_default=True)
def main(tokenizer: str, dataset: str) -> None:
    """Count, fit, measure, print."""
    known = open_tokenizer(tokenizer)
    found = {split: corpus(dataset, split, known) for split in ("train", "validation", "test")}
    # The first token of a split has no context of two: the text's own end marker stands before it twice.
    ids = {split: np.insert(row.numpy().astype(np.int64), 0, known.eos_token_id) for split, (row, _) in found.items()}
    counts = Counts(ids["train"], len(known))
    weights = weights_of(*counts.parts(ids["validation"]))
    document: dict[str, object] = {"tokenizer": tokenizer, "dataset": dataset, "weights": weights.round(4).tolist()}
    for split in ("validation", "test"):
        parts, classes = counts.parts(ids[split])
        loss = -np.log((weights[classes] * parts).sum(1))
        words = found[split][1]
        document[split] = {
            "loss": loss.mean(),
            "perplexity": math.exp(loss.mean()),
            "word_perplexity": math.exp(loss.sum() / words),
            "tokens": len(loss),
            "words": words,
        }
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
