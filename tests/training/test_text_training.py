"""Training on text: exact resumption, accumulation, two processes, and a folder that transformers opens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

import zoo
from zoo import training
from zoo.errors import InterruptedRun, NotFoundError, UsageError
from zoo.training import log, recipes

NAME = "test-mgt-lm"


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in log.read(folder / "log.jsonl") if "loss" in row]


def same(one: Path, other: Path) -> bool:
    a, b = (safetensors.torch.load_file(folder / "model.safetensors") for folder in (one, other))
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.fixture(scope="module")
def trained(small_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("straight") / "run"
    training.train(NAME, output=folder, data_dir=small_text)
    return folder


def test_the_result_is_whole_and_the_figures_are_those_of_the_folder(trained: Path, small_text: Path) -> None:
    assert {path.name for path in trained.iterdir()} == set(training.trainer.result.FILES)
    stated = json.loads((trained / "results.json").read_text())
    figures = training.evaluate_named(str(trained), data_dir=small_text)
    assert figures.to_dict() == {key: stated[key] for key in figures.to_dict()}
    assert stated["steps"] == 10 and stated["context"] == 32 and stated["stride"] == 16
    validation = training.evaluate_named(str(trained), data_dir=small_text, split="validation")
    assert validation.to_dict() == stated["validation"]
    card = (trained / "README.md").read_text()
    assert f"{stated['perplexity']:.2f}" in card and "transformers" in card
    assert 200 < stated["perplexity"] < 512, "ten steps are better than guessing"


def test_the_card_passes_the_hubs_own_check(trained: Path) -> None:
    from huggingface_hub import ModelCard

    card = ModelCard.load(trained / "README.md")
    assert card.data.library_name == "transformers"
    assert card.data.eval_results[0].metric_type == "perplexity"


def test_it_opens_in_transformers_with_its_tokenizer(trained: Path) -> None:
    ours = zoo.load(trained)
    for dtype in (torch.float32, torch.bfloat16):
        theirs = AutoModelForCausalLM.from_pretrained(trained, dtype=dtype).eval()
        ids = AutoTokenizer.from_pretrained(trained)("The city of", return_tensors="pt").input_ids
        with torch.no_grad():
            torch.testing.assert_close(theirs(ids).logits, zoo.load(trained, dtype=dtype)(ids).logits)
    assert ours.config.eos_token_id == zoo.tokenizer(ours).eos_token_id
    assert ours.config.zoo == {
        "zoo_name": NAME,
        "dataset": "wikitext-2",
        "tokenizer": "wikitext-2-bpe-512",
        "context": 32,
    }
    file = safetensors.torch.load_file(trained / "model.safetensors")
    assert "lm_head.weight" not in file and all(tensor.dtype == torch.bfloat16 for tensor in file.values())
    answer = pipeline("text-generation", model=str(trained))("The city of", max_new_tokens=5, do_sample=False)
    assert answer[0]["generated_text"].startswith("The city of")


def test_the_log_tells_the_story(trained: Path) -> None:
    rows = log.read(trained / "log.jsonl")
    assert [row["step"] for row in rows if "loss" in row] == [2, 4, 6, 8, 10]
    assert rows[1]["tokens_per_second"] > 0
    assert rows[-1]["validation"]["words"] > 1000
    assert losses(trained)[-1] < losses(trained)[0]


@pytest.mark.parametrize("accumulate", [1, 4])
def test_two_halves_equal_the_whole(accumulate: int, trained: Path, small_text: Path, tmp_path: Path) -> None:
    settings = {"accumulate": accumulate, "attention_dropout": 0.1}
    training.train(NAME, output=tmp_path / "whole", data_dir=small_text, settings=settings)
    with pytest.raises(InterruptedRun, match="step 5 of 10"):
        training.train(NAME, output=tmp_path / "two", data_dir=small_text, settings=settings, stop_after=5)
    training.train(NAME, output=tmp_path / "two", data_dir=small_text, resume=True)
    assert same(tmp_path / "whole", tmp_path / "two")
    assert losses(tmp_path / "whole")[-2:] == losses(tmp_path / "two")[-2:]


def test_accumulated_parts_are_the_whole_batch(trained: Path, small_text: Path, tmp_path: Path) -> None:
    settings = {"accumulate": 8, "storage": "float32"}
    training.train(NAME, output=tmp_path / "parts", data_dir=small_text, settings=settings)
    training.train(NAME, output=tmp_path / "whole", data_dir=small_text, settings={"storage": "float32"})
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)
    with pytest.raises(UsageError, match="no multiple of accumulate 3"):
        training.train(NAME, output=tmp_path / "odd", data_dir=small_text, settings={"accumulate": 3})


def test_two_processes_learn_what_one_does(trained: Path, small_text: Path, tmp_path: Path) -> None:
    for accumulate in (1, 2):
        command = [
            *(
                sys.executable,
                "-m",
                "accelerate.commands.launch",
                "--cpu",
                "--num_processes",
                "2",
                "--num_machines",
                "1",
            ),
            *("--mixed_precision", "no", "--dynamo_backend", "no", "-m", "zoo", "train", NAME),
            *("--output", str(tmp_path / str(accumulate)), "--data-dir", str(small_text)),
            *("--set", f"accumulate={accumulate}"),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        assert losses(tmp_path / str(accumulate)) == pytest.approx(losses(trained), rel=1e-5)


def test_checkpointing_and_the_other_kernel_change_nothing_but_rounding(
    trained: Path, small_text: Path, tmp_path: Path
) -> None:
    for number, settings in enumerate(({"checkpointing": True}, {"fused_attention": False})):
        training.train(NAME, output=tmp_path / str(number), data_dir=small_text, settings=settings)
        assert losses(tmp_path / str(number)) == pytest.approx(losses(trained), rel=1e-4)
        assert "attn_implementation" not in (tmp_path / str(number) / "config.json").read_text()


def test_another_text_and_a_start_from_earlier_weights(trained: Path, small_text: Path, tmp_path: Path) -> None:
    text = tmp_path / "my.txt"
    text.write_text("to be or not to be \n" * 400, encoding="utf-8")
    results = training.train(
        NAME,
        output=tmp_path / "run",
        data_dir=small_text,
        data=f"textfile:{text}",
        init=str(trained),
        settings={"samples": 40},
    )
    assert (
        results["dataset"] == "textfile:my.txt"
        and "trained on textfile:my.txt" in (tmp_path / "run/README.md").read_text()
    )
    assert results["perplexity"] < 400
    with pytest.raises(UsageError, match="textfile:FILE"):
        training.evaluate_named(str(tmp_path / "run"))
    found = training.evaluate_named(str(tmp_path / "run"), data=f"textfile:{text}", data_dir=small_text)
    assert found.perplexity == pytest.approx(results["perplexity"])
    with pytest.raises(UsageError, match="no start"):
        training.train("test-std-lm", output=tmp_path / "other", data_dir=small_text, init=str(trained))


@pytest.mark.parametrize(
    ("key", "value"),
    [("gate_scale", 2.0), ("gate_input", "norm"), ("delta_preset", "ddl"), ("num_attention_heads", 1)],
)
def test_weights_are_no_start_for_another_function_of_them(key, value, trained: Path, small_text: Path, tmp_path: Path):
    with pytest.raises(UsageError, match=rf"--set {key}=\S+ would be right"):
        training.train(
            NAME, output=tmp_path / "run", data_dir=small_text, init=str(trained), settings={"samples": 16, key: value}
        )


@pytest.mark.parametrize("text", ["hello world " * 300 + " " * 1000, " " * 2000])
def test_a_part_without_words_is_noticed_before_the_first_step(text: str, small_text: Path, tmp_path: Path) -> None:
    path = tmp_path / "my.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=r"part of textfile:.* has no word"):
        training.train(NAME, output=tmp_path / "run", data_dir=small_text, data=f"textfile:{path}")
    assert not (tmp_path / "run").exists()


def test_a_training_does_not_go_on_with_another_text(small_text: Path, tmp_path: Path) -> None:
    text = tmp_path / "my.txt"
    text.write_text("to be or not to be \n" * 400, encoding="utf-8")
    how = {"output": tmp_path / "run", "data_dir": small_text, "data": f"textfile:{text}", "settings": {"samples": 40}}
    with pytest.raises(InterruptedRun):
        training.train(NAME, **how, stop_after=2)
    for change, words in (
        ("to be or not to go \n" * 400, "tokens were others|training tokens, now"),
        ("short \n" * 400, "now"),
    ):
        text.write_text(change, encoding="utf-8")
        with pytest.raises(UsageError, match=words):
            training.train(NAME, output=tmp_path / "run", data_dir=small_text, data=f"textfile:{text}", resume=True)


@pytest.mark.parametrize(
    ("settings", "recipe", "words"),
    [
        ({"context": 65}, None, "more than the 64 tokens"),
        ({"flip": True}, None, "has no 'flip'"),
        ({}, "mnist", "for pictures"),
        ({"vocab_size": 300}, None, "has 512 entries"),
        ({"batch_size": 100_000}, None, "more than the"),
        ({"device": "cuda"}, None, "no setting"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(settings, recipe, words, small_text, tmp_path) -> None:
    with pytest.raises(UsageError, match=words):
        training.train(NAME, output=tmp_path / "run", data_dir=small_text, settings=settings, recipe=recipe)
    assert not (tmp_path / "run").exists()


def test_recipes_of_the_other_kind_are_refused(small_mnist: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="for text"):
        training.train("test-osa-vit", output=tmp_path, data_dir=small_mnist, recipe="test-text")
    assert isinstance(recipes.recipe("test-text"), recipes.TextRecipe)
    with pytest.raises(NotFoundError):
        training.evaluate_named("test-mgt-lm")
    with pytest.raises(UsageError, match="no window"):
        training.evaluate_named("osa-vit-mnist", context=5)


def test_options_do_what_they_say(small_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate import Accelerator

    from zoo.training.text import TextTask

    sizes: list[int] = []
    waits: list[object] = []
    ways: set[tuple[bool, str]] = set()
    loss, no_sync = TextTask.loss, Accelerator.no_sync

    def watched(task: TextTask, model: torch.nn.Module, index: torch.Tensor, generator: torch.Generator):
        sizes.append(len(index))
        layer = task.model.model.layers[0]
        ways.add((layer.gradient_checkpointing, task.model.config._attn_implementation))
        return loss(task, model, index, generator)

    def waited(accelerator: Accelerator, model: torch.nn.Module):
        waits.append(model)
        return no_sync(accelerator, model)

    monkeypatch.setattr(TextTask, "loss", watched)
    monkeypatch.setattr(Accelerator, "no_sync", waited)
    settings = {"samples": 16, "accumulate": 4, "checkpointing": True, "fused_attention": False}
    training.train(NAME, output=tmp_path / "one", data_dir=small_text, settings=settings)
    assert sizes == [2] * 8 and len(waits) == 6 and ways == {(True, "eager")}
    sizes.clear(), waits.clear(), ways.clear()
    training.train(NAME, output=tmp_path / "two", data_dir=small_text, settings={"samples": 16})
    assert sizes == [8, 8] and not waits and ways == {(False, "sdpa")}


def test_what_a_kill_left_is_removed(small_text: Path, tmp_path: Path) -> None:
    left = tmp_path / f".tokenizer.{'0' * 16}.tmp"
    left.mkdir()
    (left / "tokenizer.json").write_text("half")
    training.train(NAME, output=tmp_path, data_dir=small_text, settings={"samples": 16})
    assert not left.exists()
