"""Reading `registry.yaml`: what is right is typed, what is wrong is named with its line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from zoo import registry
from zoo.errors import DamagedError, NotFoundError

ROOT = Path(__file__).resolve().parents[1]

GOOD = """
mine:
  summary: mine
  architecture: osa_vit_mnist
  mechanism: orthogonal
  task: image-classification
  preprocessing:
    input_size: [1, 28, 28]
    mean: [0.5]
    std: [0.5]
  labels: [a, b]
"""


@pytest.fixture
def extra(tmp_path, monkeypatch):
    """Write a registry file of a user and name it in ZOO_REGISTRY."""

    def write(text: str) -> Path:
        path = tmp_path / "more.yaml"
        path.write_text(text, encoding="utf-8")
        monkeypatch.setenv("ZOO_REGISTRY", str(path))
        return path

    return write


def test_own_entries_are_whole():
    for entry in registry.entries().values():
        assert bool(entry.recipe) == bool(entry.dataset), entry.name
        assert entry.dataset or not entry.weights.sha256, entry.name
        assert entry.twin is None or entry.twin in registry.entries()
        assert entry.name.startswith("test-") == entry.hidden
        assert entry.license == "apache-2.0"


def test_own_entries_name_what_there_is():
    import timm
    from transformers import CONFIG_MAPPING

    import zoo.models  # noqa: F401 -- registers with timm and transformers
    from zoo.data import DATASETS
    from zoo.data.text import TEXTS
    from zoo.training import RECIPES

    for entry in registry.entries().values():
        language = entry.task == "text-generation"
        assert entry.dataset in {None, *(TEXTS if language else DATASETS)}, entry.name
        assert entry.recipe in {None, *RECIPES}, entry.name
        known = entry.architecture in CONFIG_MAPPING if language else timm.is_model(entry.architecture)
        assert known, entry.name


def test_a_new_mechanism_needs_an_entry_alone(extra):
    extra(GOOD.replace("mechanism: orthogonal", "mechanism: fifth-2"))
    assert registry.get("mine").mechanism == "fifth-2"


@pytest.mark.parametrize(
    ("text", "legal"),
    [("a", True), ("ns-swin_v1.2", True), ("7", True), ("", False), ("a/b", False), (".a", False), ("ä", False),
     ("a\n", False), ("a b", False), (None, False), (3, False)],
)  # fmt: skip
def test_what_may_be_a_name(text, legal):
    assert registry.is_name(text) is legal


def test_committed_weights_are_those_of_the_registry():
    from zoo import hub

    folders = sorted(path.parent.name for path in (ROOT / "weights").glob("*/model.safetensors"))
    if os.environ.get("CI") == "true":
        assert "osa-vit-mnist" in folders, "the checkout lacks the weights that its tests are about"
    for name in folders:
        path = ROOT / "weights" / name / "model.safetensors"
        facts = registry.get(name).weights
        assert (facts.sha256, facts.bytes) == (hub.sha256_of(path), path.stat().st_size), name


def test_our_figures_are_those_of_the_results():
    for entry in registry.entries().values():
        path = ROOT / "weights" / entry.name / "results.json"
        if entry.ours is not None:
            assert entry.ours.value == pytest.approx(json.loads(path.read_text())[entry.ours.metric], abs=0.005)


def test_names_and_patterns():
    assert "osa-vit-mnist" in registry.names()
    assert "test-osa-vit" not in registry.names()
    assert "test-osa-vit" in registry.names(hidden=True)
    assert "osa-vit-mnist" in registry.names("OSA-*")
    assert registry.names("nothing-*") == []


def test_entries_of_a_user_are_added(extra):
    extra(GOOD)
    assert registry.get("mine").labels == ("a", "b")
    assert registry.get("osa-vit-mnist")


def test_several_files(extra, tmp_path, monkeypatch):
    one = extra(GOOD)
    two = tmp_path / "two.yaml"
    two.write_text(GOOD.replace("mine:", "other:", 1))
    monkeypatch.setenv("ZOO_REGISTRY", os.pathsep.join([str(one), str(two)]))
    assert {"mine", "other"} <= set(registry.names())


def test_a_changed_file_is_read_again(extra):
    path = extra(GOOD)
    assert registry.get("mine")
    path.write_text(GOOD.replace("mine:", "yours:", 1))
    os.utime(path, ns=(1, 1))
    assert registry.get("yours")
    with pytest.raises(NotFoundError):
        registry.get("mine")


@pytest.mark.parametrize("name", ["OSA-ViT-MNIST", "osa_vit_mnist", "osa-vit-mnist ", "osa-vit-mnis", "osa-vit-mnist2"])
def test_an_unknown_name_offers_the_nearest(name):
    with pytest.raises(NotFoundError, match="did you mean osa-vit-mnist") as caught:
        registry.get(name)
    assert "\n" not in str(caught.value)


def test_three_nearest(extra):
    extra(GOOD)
    assert registry.nearest("osa-vit", 3)[0] == "osa-vit-mnist"
    assert len(registry.nearest("zzz")) == 3


@pytest.mark.parametrize("name", ["", "  ", None, 3])
def test_no_name_at_all(name):
    with pytest.raises(NotFoundError, match="a model name is needed"):
        registry.get(name)


@pytest.mark.parametrize(
    ("fault", "line", "words"),
    [
        ("mine:\n  summary: a\n  summary: b\n", 3, "'summary' is given twice"),
        (GOOD + GOOD, 13, "'mine' is given twice"),
        (GOOD.replace("mine:", "osa-vit-mnist:", 1), 2, "already taken"),
        (GOOD + "\tx: 1\n", 12, "\\t"),
        (GOOD + "  colour: red\n", 12, "unknown field `colour`"),
        (GOOD.replace("  mechanism: orthogonal", "  mechanism: Black Magic"), 5, "matching regex"),
        (GOOD.replace("mean: [0.5]", "mean: high"), 9, "Expected `array`"),
        (GOOD.replace("mean: [0.5]", "mean: [0.5, 0.5]"), 2, "one value for each channel"),
        (GOOD.replace("[1, 28, 28]", "[1, 28]"), 8, "length 3"),
        (GOOD.replace("[1, 28, 28]", "[0, 28, 28]"), 8, ">= 1"),
        (GOOD.replace("[a, b]", "[a, yes]"), 11, "Expected `str`"),
        (GOOD.replace("[a, b]", "[a, a]"), 2, "differ"),
        (GOOD.replace("mine:", "my/own:", 1), 2, "no model name"),
        (GOOD + "  twin: nobody\n", 2, "twin 'nobody'"),
        (GOOD + "  weights: {sha256: abc, bytes: 3}\n", 12, "sha256"),
        (GOOD + f"  weights: {{sha256: {'a' * 64}}}\n", 2, "both sha256 and bytes"),
        (GOOD + "  weights: {repository: org/name}\n", 2, "needs a revision"),
        (GOOD + "  name: other\n", 2, "without `name`"),
        ("- a\n- b\n", 1, "maps names to entries"),
        ("mine: 3\n", 1, "mapping of facts"),
        ("mine: {summary: x}\n", 1, "missing required field"),
        ("mine: !!python/object/apply:os.system ['true']\n", 1, "python/object"),
        ("mine: [\n", 2, ""),
        ("[a, b]: 1\n", 1, "a key has to be plain text"),
        (GOOD + "  arguments:\n    ? {a: b}\n    : 1\n", 13, "a key has to be plain text"),
        (GOOD.replace("summary: mine", "summary: 2024-13-01"), 3, "month"),
        ("../registry.yaml", 1, "core.symlinks=true"),
        ("../registry.yaml\n", 1, "core.symlinks=true"),
    ],
)
def test_a_fault_is_named_with_its_line(extra, fault, line, words):
    path = extra(fault)
    with pytest.raises(DamagedError) as caught:
        registry.entries()
    message = str(caught.value)
    assert f"{path}, line {line}:" in message
    assert words in message
    assert "\n" not in message


def test_not_text(extra):
    path = extra("")
    path.write_bytes(b"\xff\xfe\x00mine")
    with pytest.raises(DamagedError, match="no YAML"):
        registry.entries()


def test_what_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_REGISTRY", str(tmp_path))
    with pytest.raises(DamagedError, match=f"{tmp_path} cannot be read: Is a directory"):
        registry.entries()
    (tmp_path / "more.yaml").write_text(GOOD)
    monkeypatch.setenv("ZOO_REGISTRY", str(tmp_path / "more.yaml"))

    def refuse(path, *args, **kwargs):
        raise PermissionError(13, "Permission denied")

    registry.entries()
    os.utime(tmp_path / "more.yaml", ns=(1, 1))
    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(DamagedError, match="cannot be read: Permission denied"):
        registry.entries()


def test_nested_beyond_measure(extra):
    extra("mine: " + "[" * 10_000)
    with pytest.raises(DamagedError, match="no YAML"):
        registry.entries()


def test_an_empty_file_adds_nothing(extra):
    extra("# nothing yet\n")
    assert registry.get("osa-vit-mnist")


def test_a_missing_file_is_named(monkeypatch):
    monkeypatch.setenv("ZOO_REGISTRY", "/nowhere/more.yaml")
    with pytest.raises(NotFoundError, match=r"/nowhere/more\.yaml.*ZOO_REGISTRY"):
        registry.entries()


def test_facts_survive_a_round_trip():
    entry = registry.get("osa-vit-mnist")
    assert msgspec.convert(msgspec.to_builtins(entry), registry.Entry) == entry
