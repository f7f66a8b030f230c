"""What a training starts from: recipes of the paper, other data, other weights, a slice held out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

import zoo
from zoo import training
from zoo.data import open_dataset
from zoo.data.arrays import steps_per_epoch
from zoo.data.preprocessing import Preprocessing
from zoo.errors import InterruptedRun, UsageError
from zoo.loading import facts
from zoo.training import recipes
from zoo.training.augmentation import augmented
from zoo.training.material import Job, model_and_data

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


def test_one_slice_is_held_out_and_never_learned_from(data_dir):
    _, train, held = model_and_data(job(settings={"holdout": 1000, "samples": None}, data_dir=data_dir))
    whole = open_dataset("cifar10", "train", data_dir)
    assert len(train) == 49_000
    assert torch.equal(held.images, whole.images[49_000:])
    with pytest.raises(UsageError, match="leaves nothing"):
        model_and_data(job(settings={"holdout": 50_000}, data_dir=data_dir))


def test_attention_without_the_fused_kernel_is_the_same_function(data_dir):
    fused, _, _ = model_and_data(job(settings={"drop_path": 0.0}, data_dir=data_dir))
    plain, _, _ = model_and_data(job(settings={"drop_path": 0.0, "fused_attention": False}, data_dir=data_dir))
    assert not any(getattr(module, "fused_attn", False) for module in plain.modules())
    assert any(getattr(module, "fused_attn", False) for module in fused.modules())
    x = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(fused(x), plain(x), rtol=1e-4, atol=1e-5)


def test_drop_path_is_of_the_recipe_unless_the_caller_says_otherwise(data_dir):
    model, _, _ = model_and_data(job(settings={"drop_path": 0.3}, data_dir=data_dir))
    assert {block.drop_path1.drop_prob for block in model.blocks} == {0.3}
    named = job(settings={"drop_path": 0.3}, data_dir=data_dir)
    named.model_args["drop_path_rate"] = 0.2
    model, _, _ = model_and_data(named)
    assert {block.drop_path1.drop_prob for block in model.blocks} == {0.2}


def test_a_batch_of_the_papers_recipe(data_dir):
    recipe = recipes.recipe("ns-cifar")
    model, data, _ = model_and_data(job(data_dir=data_dir))
    images, targets = data.images[:128], data.targets[:128]

    def draw(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return augmented(images, targets, 10, recipe, Preprocessing.of(model), generator)

    (x, y), (again, _), (other, _) = draw(0), draw(0), draw(1)
    assert x.shape == (128, 3, 32, 32) and x.dtype == torch.float32
    assert y.shape == (128, 10)
    torch.testing.assert_close(y.sum(1), torch.ones(128))
    assert torch.equal(x, again)
    assert not torch.equal(x, other)


def test_without_mixing_targets_stay_classes(data_dir):
    model, data, _ = model_and_data(job(data_dir=data_dir))
    recipe = recipes.recipe("cifar-cpu")
    _, y = augmented(
        data.images[:8], data.targets[:8], 10, recipe, Preprocessing.of(model), torch.Generator().manual_seed(0)
    )
    assert torch.equal(y, data.targets[:8])


@pytest.fixture(scope="module")
def trained(data_dir, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    training.train("test-ns-vit", output=folder, data_dir=data_dir, settings=SHORT)
    return folder


def test_weights_are_stored_in_half_precision_and_measured_as_they_are_stored(trained, data_dir):
    stored = safetensors.torch.load_file(trained / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    results = json.loads((trained / "results.json").read_text())
    assert training.evaluate_named(str(trained), data_dir=data_dir).top1 == results["top1"]
    assert {p.dtype for p in zoo.load(trained).parameters()} == {torch.float32}


def test_fine_tuning_on_a_folder_of_pictures(trained, folder_of_pictures, tmp_path, data_dir):
    output, data = tmp_path / "fine", f"imagefolder:{folder_of_pictures}"
    settings = {**SHORT, "samples": None, "batch_size": 8, "epochs": 3, "mixup": 0, "cutmix": 0}
    results = training.train("test-ns-vit", output=output, data=data, init=str(trained), settings=settings)
    assert results["total"] == 3
    model = zoo.load(output)
    assert model.num_classes == 3
    assert facts(model)["label_names"] == ["apple", "bread", "cheese"]
    assert training.evaluate_named(str(output), data=data).top1 == results["top1"]
    assert f"--data {data} --init {trained}" in results["trained_by"]
    assert str(folder_of_pictures) not in (output / "config.json").read_text()
    card = (output / "README.md").read_text()
    assert "The source's figure" not in card
    answer = zoo.predict(model, folder_of_pictures / "apple/0.png")
    assert {label for label, _ in answer} == {"apple", "bread", "cheese"}
    with pytest.raises(UsageError, match="--data"):
        training.evaluate_named(str(output))
    with pytest.raises(UsageError, match="knows 3 classes"):
        training.evaluate_named(str(output), data="cifar10", data_dir=data_dir)


def test_all_but_a_head_of_another_size_comes_from_the_start(trained, folder_of_pictures):
    source = zoo.load(trained).state_dict()
    model, _, _ = model_and_data(job(data=f"imagefolder:{folder_of_pictures}", init=str(trained)))
    for key, value in model.state_dict().items():
        assert key.startswith("head.") or torch.equal(value, source[key]), key
    assert model.head.out_features == 3


def test_a_twin_starts_from_the_weights_of_the_other(trained, data_dir):
    source = zoo.load(trained).state_dict()
    model, _, _ = model_and_data(job("test-source-vit", init=str(trained), data_dir=data_dir))
    assert all(torch.equal(value, source[key]) for key, value in model.state_dict().items())


def test_weights_of_another_architecture_are_no_start(trained, data_dir):
    with pytest.raises(UsageError, match="no start for test-ns-swin"):
        model_and_data(job("test-ns-swin", init=str(trained), data_dir=data_dir))


def test_a_training_is_resumed_on_its_own_data(folder_of_pictures, tmp_path):
    output, data = tmp_path / "run", f"imagefolder:{folder_of_pictures}"
    settings = {**SHORT, "samples": None, "batch_size": 8}
    with pytest.raises(InterruptedRun):
        training.train("test-ns-vit", output=output, data=data, settings=settings, stop_after=2)
    with pytest.raises(UsageError, match="another training"):
        training.train("test-ns-vit", output=output, data="cifar10", resume=True)
    assert training.train("test-ns-vit", output=output, resume=True)["dataset"] == data


def test_an_entry_without_data_or_recipe_says_what_is_missing(folder_of_pictures, tmp_path):
    with pytest.raises(UsageError, match="--recipe"):
        training.train("ns-vit-small-224", output=tmp_path / "run", data=f"imagefolder:{folder_of_pictures}")
    with pytest.raises(UsageError, match="--data"):
        training.train("ns-vit-small-224", output=tmp_path / "run", recipe="cifar-cpu")
