"""The pages in docs/results say what the logs beside them say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from zoo import registry
from zoo.training import recipes

ROOT = Path(__file__).resolve().parent.parent
ARMS = sorted(path.parent for path in (ROOT / "docs/results/osa-mnist").glob("*/results.json"))


@pytest.mark.parametrize(
    "script", ["figure_osa_mnist.py", "figure_ns_cifar.py", "figure_mgt.py", "mgt_parameters.py", "bench_decoding.py"]
)
def test_the_tables_are_those_of_the_logs(script: str) -> None:
    command = [sys.executable, str(ROOT / "scripts" / script), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_there_are_all_arms() -> None:
    assert len(ARMS) == 7


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_every_arm_had_the_same_recipe(arm: Path) -> None:
    results = json.loads((arm / "results.json").read_text(encoding="utf-8"))
    recipe = recipes.override(recipes.recipe("mnist"), {"epochs": 6})
    assert (
        msgspec.convert(results["recipe"], recipes.ImageRecipe) == recipe
    )  # fields added since have kept their meaning
    log = [json.loads(line) for line in (arm / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["test"] for row in log if "test" in row][-1]["top1"] == results["top1"]
    assert log[-1]["step"] == results["steps"] == 2808


NS_ARMS = sorted(path.parent for path in (ROOT / "docs/results/ns-cifar").glob("*/results.json"))
NS_FLOORS = {"ns-vit-cifar100": 35, "ns-swin-cifar100": 40, "ns-vit-cifar10": 68, "ns-swin-cifar10": 72}
PUBLISHED = sorted((ROOT / "weights").glob("*/results.json"))


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.parent.name)
def test_published_weights_were_trained_by_their_entry_s_recipe(path: Path) -> None:
    results = json.loads(path.read_text(encoding="utf-8"))
    recipe = registry.get(results["name"]).recipe
    assert recipes.stored(recipe, results["recipe"]) == recipes.recipe(recipe)


@pytest.mark.parametrize("arm", NS_ARMS, ids=lambda arm: arm.name)
def test_every_arm_of_ns_cifar_had_the_same_recipe(arm: Path) -> None:
    results = json.loads((arm / "results.json").read_text(encoding="utf-8"))
    assert msgspec.convert(results["recipe"], recipes.ImageRecipe) == recipes.recipe("cifar-cpu")
    log = [json.loads(line) for line in (arm / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert log[-1]["step"] == results["steps"] == 9372


@pytest.mark.parametrize("name", NS_FLOORS)
def test_published_weights_of_ns_cifar_are_above_their_floors_and_misses_are_told(name: str) -> None:
    path = ROOT / "weights" / name / "results.json"
    if path.is_file():
        assert json.loads(path.read_text(encoding="utf-8"))["top1"] >= NS_FLOORS[name]
        return
    page = (ROOT / "docs/results/ns-cifar.md").read_text(encoding="utf-8")
    runs = [*(ROOT / "docs/results/ns-cifar").glob(f"**/{name}/results.json")]
    assert runs and f"`{name}` missed its" in page and registry.get(name).weights.sha256 is None
    for run in runs:
        top1 = json.loads(run.read_text(encoding="utf-8"))["top1"]
        assert top1 < NS_FLOORS[name] and f"({top1:.2f} %)" in page


MGT = ROOT / "docs/results/mgt"
MGT_RUNS = sorted(path.parent for path in MGT.glob("**/results.json"))
MGT_RECIPES = {  # of every arm the same
    "12L": recipes.recipe("lm-cpu"),
    "48L": recipes.override(recipes.recipe("lm-cpu"), {"epochs": 1, "samples": 5248}),
    "copy": recipes.recipe("copy"),
}


@pytest.mark.parametrize("run", MGT_RUNS, ids=lambda run: str(run.relative_to(MGT)))
def test_every_arm_of_mgt_had_the_same_recipe_and_knows_more_than_a_trigram(run: Path) -> None:
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    kind = "copy" if run.parent.name == "copy" else "48L" if "-48L" in run.name else "12L"
    assert msgspec.convert(results["recipe"], recipes.TextRecipe) == MGT_RECIPES[kind]
    log = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert log[-1]["step"] == results["steps"] and log[0]["name"] == results["name"] == run.name
    assert not log[0]["model_args"] and log[0]["init"] is None
    if kind == "copy":
        return
    trigram = json.loads((MGT / "trigram.json").read_text(encoding="utf-8"))
    assert (trigram["dataset"], trigram["tokenizer"]) == (results["dataset"], registry.get(run.name).tokenizer)
    assert results["tokens"] == trigram["test"]["tokens"] and results["words"] == trigram["test"]["words"]
    assert kind == "48L" or results["loss"] < trigram["test"]["loss"]  # half an epoch alone need not be enough
