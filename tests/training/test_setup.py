"""What a training starts from: recipes of the paper, other data, other weights, a slice held out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

import zoo
from zoo import registry, training
from zoo.data import open_dataset
from zoo.data.arrays import steps_per_epoch
from zoo.errors import InterruptedRun, UsageError
from zoo.loading import facts
from zoo.training import log, recipes
from zoo.training.card import card
from zoo.training.folder import claimed
from zoo.training.job import Job
from zoo.training.pictures import model_and_data
from zoo.training.result import save_weights

SHORT = {"samples": 64, "batch_size": 32, "log_every": 1}


def job(name: str = "test-ns-vit", recipe: str = "test-cifar", settings: dict | None = None, **others) -> Job:
    values = recipes.override(recipes.recipe(recipe), settings or {})
    return Job(name, values, recipe, {}, Path("unused"), **others)


@pytest.fixture(scope="module")
def folder_of_pictures(tmp_path_factory) -> Path:
    """Three classes of twelve pictures of 40 x 30 pixels, one colour a class."""
    root = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for place, name in enumerate(("apple", "bread", "cheese")):
        (root / name).mkdir()
        for number in range(12):
            pixels = rng.integers(0, 60, (30, 40, 3), dtype=np.uint8)
            pixels[..., place] += 150
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    return root


def test_the_recipe_of_the_paper_has_its_every_number():
    recipe = recipes.recipe("ns-cifar")
    stated = {
        "epochs": 100,
        "batch_size": 128,
        "lr": 1e-3,
        "weight_decay": 0.05,
        "schedule": "warm-up-cosine",
        "warmup": 0.1,
        "decay_all": True,
        "clip": None,
        "repeats": 3,
        "flip": True,
        "shift": 4,
        "auto_augment": True,
        "erasing": 0.25,
        "mixup": 1.0,
        "cutmix": 1.0,
        "mix_probability": 0.5,
        "label_smoothing": 0.1,
        "drop_path": 0.1,
    }
    assert {key: getattr(recipe, key) for key in stated} == stated
    assert steps_per_epoch(50_000, recipe.batch_size, recipe.repeats) == 1171
    assert 5 * steps_per_epoch(50_000, recipe.batch_size, recipe.repeats) == 5855


def test_one_slice_is_held_out_and_never_learned_from(small_cifar):
    _, train, held = model_and_data(job(settings={"holdout": 100, "samples": None}, data_dir=small_cifar))
    whole = open_dataset("cifar10", "train", small_cifar)
    assert len(train) == 540
    assert torch.equal(held.images, whole.images[540:])
    with pytest.raises(UsageError, match="leaves nothing"):
        model_and_data(job(settings={"holdout": 640}, data_dir=small_cifar))


def test_a_shift_out_of_the_picture(small_cifar):
    with pytest.raises(UsageError, match="shift 32 moves pictures of 32 pixels out of themselves; 31 at most"):
        model_and_data(job(settings={"shift": 32}, data_dir=small_cifar))


def test_attention_without_the_fused_kernel_is_the_same_function(small_cifar):
    fused, _, _ = model_and_data(job(settings={"drop_path": 0.0}, data_dir=small_cifar))
    plain, _, _ = model_and_data(job(settings={"drop_path": 0.0, "fused_attention": False}, data_dir=small_cifar))
    assert not any(getattr(module, "fused_attn", False) for module in plain.modules())
    assert any(getattr(module, "fused_attn", False) for module in fused.modules())
    x = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(fused(x), plain(x), rtol=1e-4, atol=1e-5)


def test_drop_path_is_of_the_recipe_unless_the_caller_says_otherwise(small_cifar):
    model, _, _ = model_and_data(job(settings={"drop_path": 0.3}, data_dir=small_cifar))
    assert {block.drop_path1.drop_prob for block in model.blocks} == {0.3}
    named = job(settings={"drop_path": 0.3}, data_dir=small_cifar)
    named.model_args["drop_path_rate"] = 0.2
    model, _, _ = model_and_data(named)
    assert {block.drop_path1.drop_prob for block in model.blocks} == {0.2}


def test_every_augmentation_is_resumed_bit_for_bit(small_cifar, tmp_path):
    settings = {**SHORT, "drop_path": 0.2}
    for name, stops in (("one", []), ("two", [1, 3])):
        asked = {"output": tmp_path / name, "data_dir": small_cifar, "settings": settings}
        for stop in stops:
            with pytest.raises(InterruptedRun):
                training.train("test-ns-vit", **asked, stop_after=stop, resume=stop != stops[0])
        training.train("test-ns-vit", **asked, resume=bool(stops))
    one, two = (safetensors.torch.load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.fixture(scope="module")
def trained(small_cifar, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    training.train("test-ns-vit", output=folder, data_dir=small_cifar, settings=SHORT)
    return folder


def test_weights_are_stored_in_half_precision_and_measured_as_they_are_stored(trained, small_cifar):
    stored = safetensors.torch.load_file(trained / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    results = json.loads((trained / "results.json").read_text())
    assert training.evaluate_named(str(trained), data_dir=small_cifar).top1 == results["top1"]
    assert {p.dtype for p in zoo.load(trained).parameters()} == {torch.float32}


def test_the_log_tests_in_full_precision_as_the_results_do(small_cifar, tmp_path):
    settings = {**SHORT, "precision": "bf16", "storage": "float32"}
    results = training.train("test-ns-vit", output=tmp_path / "run", data_dir=small_cifar, settings=settings)
    tests = [row["test"] for row in log.read(tmp_path / "run" / "log.jsonl") if "test" in row]
    assert tests[-1]["loss"] == pytest.approx(results["loss"], rel=1e-6)


def test_fine_tuning_on_a_folder_of_pictures(trained, folder_of_pictures, tmp_path, small_cifar):
    output, data = tmp_path / "fine", f"imagefolder:{folder_of_pictures}"
    settings = {**SHORT, "samples": None, "batch_size": 8, "epochs": 3, "mixup": 0, "cutmix": 0}
    results = training.train("test-ns-vit", output=output, data=data, init=str(trained), settings=settings)
    assert results["total"] == 3
    model = zoo.load(output)
    assert model.num_classes == 3
    assert facts(model)["label_names"] == ["apple", "bread", "cheese"]
    assert training.evaluate_named(str(output), data=data).top1 == results["top1"]
    public = f"imagefolder:{folder_of_pictures.name}"
    assert results["dataset"] == public
    assert f"--data {public} --init {trained.name}" in results["trained_by"]
    card = (output / "README.md").read_text()
    assert "The source's figure" not in card
    assert "3 classes (apple, bread, cheese)" in card
    assert 'zoo.load("test-ns-vit")' not in card
    assert 'zoo.load("this/folder")' in card
    for path in (output / "README.md", output / "log.jsonl", output / "results.json", output / "config.json"):
        assert str(folder_of_pictures) not in path.read_text()
        assert str(trained) not in path.read_text()
    assert (output / "config.json").read_text().count("cheese") >= 1
    answer = zoo.predict(model, folder_of_pictures / "apple/0.png")
    assert {label for label, _ in answer} == {"apple", "bread", "cheese"}
    with pytest.raises(UsageError, match="--data"):
        training.evaluate_named(str(output))
    with pytest.raises(UsageError, match="knows 3 classes"):
        training.evaluate_named(str(output), data="cifar10", data_dir=small_cifar)


def test_all_but_a_head_of_another_size_comes_from_the_start(trained, folder_of_pictures):
    source = zoo.load(trained).state_dict()
    model, _, _ = model_and_data(job(data=f"imagefolder:{folder_of_pictures}", init=str(trained)))
    for key, value in model.state_dict().items():
        assert key.startswith("head.") or torch.equal(value, source[key]), key
    assert model.head.out_features == 3


def test_a_twin_starts_from_the_weights_of_the_other(trained, small_cifar):
    source = zoo.load(trained).state_dict()
    model, _, _ = model_and_data(job("test-cifar-vit", init=str(trained), data_dir=small_cifar))
    assert all(torch.equal(value, source[key]) for key, value in model.state_dict().items())


def test_weights_of_another_architecture_are_no_start(trained, small_cifar):
    with pytest.raises(UsageError, match="no start for test-ns-swin"):
        model_and_data(job("test-ns-swin", init=str(trained), data_dir=small_cifar))


def test_a_training_is_resumed_on_its_own_data(folder_of_pictures, tmp_path):
    output, data = tmp_path / "run", f"imagefolder:{folder_of_pictures}"
    settings = {**SHORT, "samples": None, "batch_size": 8}
    with pytest.raises(InterruptedRun):
        training.train("test-ns-vit", output=output, data=data, settings=settings, stop_after=2)
    with pytest.raises(UsageError, match="another training"):
        training.train("test-ns-vit", output=output, data="cifar10", resume=True)
    assert training.train("test-ns-vit", output=output, resume=True)["labels"] == ["apple", "bread", "cheese"]


def test_an_entry_without_data_or_recipe_says_what_is_missing(folder_of_pictures, tmp_path):
    with pytest.raises(UsageError, match="--recipe"):
        training.train("ns-vit-small-224", output=tmp_path / "run", data=f"imagefolder:{folder_of_pictures}")
    with pytest.raises(UsageError, match="--data"):
        training.train("ns-vit-small-224", output=tmp_path / "run", recipe="cifar-cpu")


def test_as_many_classes_as_the_data_have_or_none_named(folder_of_pictures):
    named = job(data=f"imagefolder:{folder_of_pictures}")
    named.model_args["num_classes"] = 7
    with pytest.raises(UsageError, match="has 3 classes, the model 7"):
        model_and_data(named)


def test_the_recipe_of_the_paper_trains(small_cifar, tmp_path):
    settings = {"samples": 64, "batch_size": 32, "epochs": 2, "log_every": 1}
    results = training.train(
        "test-ns-swin", output=tmp_path / "run", data_dir=small_cifar, recipe="ns-cifar", settings=settings
    )
    assert results["steps"] == 12  # each picture three times
    losses = [row["loss"] for row in log.read(tmp_path / "run" / "log.jsonl") if "loss" in row]
    assert len(losses) == 12
    assert all(1 < loss < 5 for loss in losses)
    assert results["recipe_name"] == "ns-cifar"


def test_a_compiled_model_is_trained_and_stored_under_its_own_names(small_cifar, tmp_path, monkeypatch):
    compiled = []

    def compile_(model):
        compiled.append(model)
        return torch._dynamo.optimize("eager")(model)

    monkeypatch.setattr(torch, "compile", compile_)
    training.train("test-ns-vit", output=tmp_path / "run", data_dir=small_cifar, settings={**SHORT, "compile": True})
    assert len(compiled) == 1
    assert not [key for key in safetensors.torch.load_file(tmp_path / "run/model.safetensors") if "_orig_mod" in key]


@pytest.mark.parametrize(
    ("recipe", "changed", "said"),
    [
        ("ns-cifar", {}, "followed its recipe"),
        ("ns-cifar", {"precision": "bf16", "compile": True, "seed": 1}, "followed its recipe"),
        ("ns-cifar", {"lr": 2e-3}, "do not compare"),
        ("cifar-cpu", {}, "do not compare"),
    ],
)
def test_the_card_says_whether_the_papers_recipe_was_run(recipe, changed, said):
    results = {
        "name": "ns-vit-cifar100",
        "dataset": "cifar100",
        "split": "test",
        "top1": 50.0,
        "correct": 1,
        "total": 2,
        "loss": 1.0,
        "command": "zoo eval runs/x",
        "trained_by": "zoo train x",
        "parameters": 1,
        "steps": 1,
        "training_seconds": 1.0,
        "recipe_name": recipe,
        "recipe": msgspec.to_builtins(recipes.override(recipes.recipe(recipe), changed)),
        "environment": {"torch": "2", "timm": "1", "device": "cpu", "threads": 1},
    }
    text = card(results)
    assert said in text
    assert "73.25" in text
    assert 'zoo.load("this/folder")' in text  # the name stands for the published weights
    assert 'zoo.load("ns-vit-cifar100")' in card({**results, "command": "zoo eval ns-vit-cifar100"})


def test_the_recipe_that_an_entry_names_as_the_papers_is_there():
    for name in registry.names(hidden=True):
        paper = registry.get(name).paper
        assert paper is None or paper.recipe is None or paper.recipe in recipes.RECIPES


def test_pictures_of_another_size_are_refused_before_anything_is_discarded(trained, small_cifar):
    before = {path.name: path.read_bytes() for path in trained.iterdir()}
    with pytest.raises(UsageError, match="imagefolder"):
        training.train(
            "test-ns-vit", output=trained, data_dir=small_cifar, overwrite=True, settings={**SHORT, "img_size": 64}
        )
    assert {path.name: path.read_bytes() for path in trained.iterdir()} == before


def test_a_folder_is_written_by_one_training_at_a_time(small_cifar, tmp_path):
    with claimed(tmp_path / "run"), pytest.raises(UsageError, match="another training"):
        training.train("test-ns-vit", output=tmp_path / "run", data_dir=small_cifar, settings=SHORT)
    training.train("test-ns-vit", output=tmp_path / "run", data_dir=small_cifar, settings=SHORT)
    assert not (tmp_path / "run/.lock").exists()


@pytest.mark.parametrize("change", ["rename", "remove", "move"])
def test_a_training_does_not_go_on_with_other_pictures(change, folder_of_pictures, tmp_path):
    pictures, output = tmp_path / "pictures", tmp_path / "run"
    shutil.copytree(folder_of_pictures, pictures)
    settings = {**SHORT, "samples": None, "batch_size": 8}
    with pytest.raises(InterruptedRun):
        training.train("test-ns-vit", output=output, data=f"imagefolder:{pictures}", settings=settings, stop_after=2)
    if change == "rename":
        (pictures / "apple").rename(pictures / "zucchini")
    elif change == "move":  # one of each to the other class: as many pictures, and the same ones
        (pictures / "apple/3.png").rename(pictures / "bread/x.png")
        (pictures / "bread/3.png").rename(pictures / "apple/3.png")
        (pictures / "bread/x.png").rename(pictures / "bread/3.png")
    else:
        (pictures / "bread/3.png").unlink()
        (pictures / "bread/4.png").unlink()
    with pytest.raises(UsageError, match="is not what this training began with"):
        training.train("test-ns-vit", output=output, resume=True)


def test_a_folder_of_pictures_may_move(folder_of_pictures, tmp_path):
    pictures, output = tmp_path / "pictures", tmp_path / "run"
    shutil.copytree(folder_of_pictures, pictures)
    settings = {**SHORT, "samples": None, "batch_size": 8}
    with pytest.raises(InterruptedRun):
        training.train("test-ns-vit", output=output, data=f"imagefolder:{pictures}", settings=settings, stop_after=2)
    pictures.rename(tmp_path / "moved")
    results = training.train("test-ns-vit", output=output, data=f"imagefolder:{tmp_path / 'moved'}", resume=True)
    assert results["dataset"] == "imagefolder:moved"


def test_weights_beyond_half_precision_are_named(tmp_path):
    model = zoo.load("test-ns-vit", pretrained=False)
    with torch.no_grad():
        model.pos_embed.fill_(1e6)
    with pytest.raises(UsageError, match=r"pos_embed.*storage=float32"):
        save_weights(model, tmp_path / "model.safetensors", torch.float16)
    assert not (tmp_path / "model.safetensors").exists()


def test_equal_weights_have_equal_files(tmp_path):
    model = zoo.load("test-ns-vit", pretrained=False)
    for number in range(6):
        save_weights(model, tmp_path / f"{number}.safetensors")
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


@pytest.mark.parametrize("key", ["pretrained", "dtype", "device", "name"])
def test_what_is_no_setting_is_said(key, small_cifar, tmp_path):
    with pytest.raises(UsageError, match=f"{key} is no setting"):
        training.train("test-ns-vit", output=tmp_path / "run", data_dir=small_cifar, settings={key: True})


@pytest.mark.parametrize("field", ["lr", "clip", "mixup", "weight_decay"])
def test_no_setting_is_infinite(field):
    with pytest.raises(UsageError, match="does not fit"):
        recipes.override(recipes.recipe("cifar-cpu"), {field: float("inf")})


def test_precision_no_is_a_word():
    assert recipes.override(recipes.recipe("cifar-cpu"), {"precision": False}).precision == "no"
