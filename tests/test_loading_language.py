"""Language models by name, folder and Hub: the same configuration each way, and what is no such model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import zoo
from zoo import hub, loading, registry, training
from zoo.errors import DamagedError, NotFoundError, UsageError

NAME = "test-mgt-lm"


@pytest.fixture(scope="module")
def trained(small_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("language") / "run"
    training.train(NAME, output=folder, data_dir=small_text, settings={"samples": 16})
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "mine")
    return tmp_path / "mine"


def change(folder: Path, **facts: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


def test_by_name_and_by_folder_it_is_the_same(trained: Path, small_text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def find_weights(entry: registry.Entry, **how: object) -> Path:
        asked.update(how)
        return trained / "model.safetensors"

    monkeypatch.setattr(hub, "find_weights", find_weights)
    named, filed = zoo.load(NAME), zoo.load(trained)
    assert named.config.to_dict() == filed.config.to_dict()
    assert named.generation_config.eos_token_id == filed.generation_config.eos_token_id is not None
    assert asked["beside"] == ("config.json", "tokenizer.json", "tokenizer_config.json")
    stated = json.loads((trained / "results.json").read_text())
    assert training.evaluate_named(NAME, data_dir=small_text).perplexity == pytest.approx(stated["perplexity"])
    assert zoo.generate(named, "The", max_new_tokens=5) == zoo.generate(filed, "The", max_new_tokens=5)


@pytest.mark.parametrize("tokenizer", ["wikitext-2-bpe-512", None])
def test_from_the_hub_with_the_files_that_there_are(
    tokenizer: str | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(folder, zoo={"zoo_name": NAME, "dataset": "copy", "tokenizer": tokenizer})
    if tokenizer is None:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).unlink()
    asked: list[str] = []

    def fetch(repository: str, filename: str, **how: object) -> Path:
        asked.append(filename)
        if not (folder / filename).is_file():
            raise NotFoundError(f"{repository} has no file {filename}")
        return folder / filename

    monkeypatch.setattr(loading.hub, "fetch", fetch)
    model = zoo.load("hf-hub:somebody/mine")
    assert model.config.zoo["zoo_name"] == NAME
    assert ("tokenizer.json" in asked) is (tokenizer is not None)
    if tokenizer is None:
        with pytest.raises(UsageError, match="no tokenizer"):
            zoo.tokenizer(model)
    else:
        assert zoo.tokenizer(model)("The").input_ids


@pytest.mark.parametrize(
    "facts",
    [
        {"model_type": "no_such_model"},
        {"gate": 2},
        {"gate": "yes"},
        {"delta_init": "much"},
        {"num_hidden_layers": True},
        {"hidden_size": -1},
        {"surprise": 1, "hidden_size": 31},
        {"zoo": {"context": "x"}},
        {"zoo": {"dataset": ["a"]}},
        {"zoo": 3},
    ],
    ids=str,
)
def test_a_config_that_makes_no_sense_is_damaged_and_named(facts: dict[str, object], folder: Path) -> None:
    change(folder, **facts)
    with pytest.raises(DamagedError, match=r"config\.json"):
        zoo.load(folder)


def test_arguments_that_make_no_sense_are_the_callers(folder: Path) -> None:
    for arguments in ({"gate": 2}, {"hidden_size": 31}, {"surprise": 1}, {"delta_scale": "x"}):
        for name in (NAME, folder):
            with pytest.raises(UsageError):
                zoo.load(name, pretrained=False, **arguments)


def test_weights_of_another_size_or_kind(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    with pytest.raises(DamagedError, match="do not fit"):
        zoo.load(folder, hidden_size=64)
    state = load_file(folder / "model.safetensors")
    state["model.norm.weight"] = state["model.norm.weight"].to(torch.int8)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DamagedError, match=r"model\.norm\.weight as I8"):
        zoo.load(folder)


def test_weights_in_several_files_are_told_as_such(folder: Path, tmp_path: Path) -> None:
    zoo.load(folder).save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    with pytest.raises(NotFoundError, match="several files"):
        zoo.load(tmp_path / "parts")


def test_models_of_transformers_that_know_no_limit_generate_too(folder: Path, tmp_path: Path) -> None:
    from transformers import BloomConfig, BloomForCausalLM, T5Config, T5ForConditionalGeneration

    config = BloomConfig(vocab_size=512, hidden_size=16, n_layer=1, n_head=2)
    BloomForCausalLM(config).save_pretrained(tmp_path / "bloom")
    shutil.copy(folder / "tokenizer.json", tmp_path / "bloom")
    shutil.copy(folder / "tokenizer_config.json", tmp_path / "bloom")
    assert zoo.generation.continuation(zoo.load(tmp_path / "bloom"), "The", max_new_tokens=3).tokens == 3
    small = T5Config(vocab_size=512, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(small).save_pretrained(tmp_path / "t5")
    with pytest.raises(DamagedError, match="describes no model") as caught:
        zoo.load(tmp_path / "t5")
    assert len(str(caught.value)) < 600


def test_an_image_model_saved_by_transformers_is_an_image_model(tmp_path: Path) -> None:
    from transformers import AutoModelForImageClassification

    from zoo.training import result

    model = zoo.load("test-osa-vit", pretrained=False)
    result.save_weights(model, tmp_path / "timm/model.safetensors")
    result.save_config(model, tmp_path / "timm/config.json")
    AutoModelForImageClassification.from_pretrained(tmp_path / "timm").save_pretrained(tmp_path / "hf")
    config = json.loads((tmp_path / "hf/config.json").read_text())
    assert config["model_type"] and config["pretrained_cfg"]
    images = torch.randn(2, 1, 28, 28)
    with torch.no_grad():
        assert torch.equal(zoo.load(tmp_path / "hf")(images), model(images))


def test_a_start_with_another_tokenizer_is_refused(folder: Path, small_text: Path, tmp_path: Path) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["merges"] = content["model"]["merges"][:-1]
    path.write_text(json.dumps(content))
    with pytest.raises(UsageError, match="another tokenizer"):
        training.train(NAME, output=tmp_path / "run", data_dir=small_text, init=str(folder), settings={"samples": 16})
