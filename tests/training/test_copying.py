"""The copy task: what a sequence is, what counts, and that attention learns it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import zoo
from zoo import training
from zoo.errors import DamagedError, InterruptedRun, UsageError
from zoo.models import MgtConfig
from zoo.training import log
from zoo.training.copying import evaluate_copy, sequences


def test_the_second_half_is_the_first() -> None:
    rows = sequences(200, 10, seed=0)
    assert rows.shape == (200, 10) and torch.equal(rows[:, :5], rows[:, 5:])
    assert rows.min() == 0 and rows.max() == 63
    assert torch.equal(rows, sequences(200, 10, seed=0)) and not torch.equal(rows, sequences(200, 10, seed=1))
    for length in (0, 1, 7):
        with pytest.raises(UsageError, match="even length"):
            sequences(3, length, seed=0)


def test_only_the_second_half_counts() -> None:
    class Perfect(torch.nn.Module):
        """Says what stood half a length before."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.config = MgtConfig(vocab_size=64)

        def forward(self, input_ids: torch.Tensor, use_cache: bool) -> object:
            said = torch.nn.functional.one_hot(input_ids[:, [0] * 8 + list(range(1, 8))], 64) * 50.0
            from transformers.modeling_outputs import CausalLMOutputWithPast

            return CausalLMOutputWithPast(logits=said)

    found = evaluate_copy(Perfect(), 16)
    # Of each second half the first token is said by position 7 in its place, as it is by every earlier one.
    assert found.accuracy == 100.0 and found.total == found.correct == 4000 and found.loss < 1e-3
    other = evaluate_copy(zoo.load("test-mgt-lm", pretrained=False), 16)
    assert other.accuracy < 10 and other.loss > 3
    broken = zoo.load("test-mgt-lm", pretrained=False)
    broken.lm_head.weight.data.fill_(torch.nan)
    with pytest.raises(DamagedError):
        evaluate_copy(broken, 16)


def test_a_training_and_its_folder(tmp_path: Path) -> None:
    how = {"data": "copy", "recipe": "copy"}
    settings = {"samples": 320, "context": 16, "precision": "no", "log_every": 2}
    results = training.train("test-mgt-lm", output=tmp_path / "one", settings=settings, **how)
    assert results["dataset"] == "copy" and results["steps"] == 10 and results["total"] == 4000
    assert training.evaluate_named(str(tmp_path / "one")).to_dict().items() <= results.items()
    assert f"{results['accuracy']:.2f} %" in (tmp_path / "one/README.md").read_text()
    assert not (tmp_path / "one/tokenizer.json").exists()
    assert json.loads((tmp_path / "one/config.json").read_text())["zoo"]["dataset"] == "copy"
    with pytest.raises(InterruptedRun):
        training.train("test-mgt-lm", output=tmp_path / "two", settings=settings, stop_after=5, **how)
    training.train("test-mgt-lm", output=tmp_path / "two", resume=True)
    losses = [
        [row["loss"] for row in log.read(tmp_path / run / "log.jsonl") if "loss" in row] for run in ("one", "two")
    ]
    assert losses[0][-2:] == losses[1][-2:]
    with pytest.raises(UsageError, match="no tokenizer"):
        zoo.generate(zoo.load(tmp_path / "one"), "The")


@pytest.mark.parametrize("name", ["test-mgt-lm", "test-std-lm"])
def test_attention_learns_it(name: str, tmp_path: Path) -> None:
    settings = {"samples": 64 * 500, "batch_size": 64, "context": 8, "lr": 3e-3, "precision": "no"}
    results = training.train(name, output=tmp_path, data="copy", recipe="copy", settings=settings)
    assert results["accuracy"] > 95


def test_what_does_not_fit(tmp_path: Path) -> None:
    for settings, words in (
        ({"context": 7}, "even"),
        ({"context": 66}, "more than the 64"),
        ({"vocab_size": 10}, "64 tokens"),
    ):
        with pytest.raises(UsageError, match=words):
            training.train("test-mgt-lm", output=tmp_path, data="copy", recipe="copy", settings=settings)
    model = zoo.load("test-mgt-lm", pretrained=False, vocab_size=10)
    with pytest.raises(UsageError, match="64 tokens"):
        evaluate_copy(model, 16)
    with pytest.raises(UsageError, match="tested on"):
        evaluate_copy(zoo.load("test-mgt-lm", pretrained=False), 16, "train")
    with pytest.raises(UsageError, match="no end"):
        training.train("mgt-lm-12L", output=tmp_path, data="copy")
