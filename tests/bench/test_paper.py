"""The protocol of arXiv 2609.27735, table 3: one set of weights, rounds of many calls, the definition beside."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import zoo.bench.compare as module
from zoo import registry
from zoo.bench import run
from zoo.bench.arms import initialised, literal_of, twin_with_weights_of
from zoo.bench.protocol import PROTOCOLS, Protocol, measure, paired_ratio, protocol_of
from zoo.cli import main
from zoo.errors import UsageError, ValidationError
from zoo.loading import load
from zoo.ops import naive
from zoo.training import result

CPU = torch.device("cpu")
QUICK = {"protocol": "paper", "rounds": 3, "repeats": 2, "warmup": 1, "batch_size": 2, "threads": 1}
NS = [
    name
    for name in registry.names(hidden=True)
    if registry.get(name).hidden and registry.get(name).mechanism == "newton-schulz"
]


def test_the_papers_numbers() -> None:
    paper = PROTOCOLS["paper"]
    assert (paper.rounds, paper.warmup, paper.repeats, paper.batch_size) == (3, 50, 200, 128)
    assert protocol_of("paper", rounds=None, repeats=8) == Protocol(8, 50, None, 3, 128, True)
    assert protocol_of("turns") == Protocol()


def test_a_round_warms_up_and_times_each_arm_in_a_row_and_the_next_goes_backwards() -> None:
    calls: list[str] = []
    arms = {name: lambda name=name: calls.append(name) for name in "ab"}
    times = measure(arms, rounds=3, repeats=2, warmup=1)
    assert "".join(calls) == "aaabbb" + "bbbaaa" + "aaabbb"
    assert {name: values.shape for name, values in times.items()} == {"a": (3, 2), "b": (3, 2)}
    assert all((values > 0).all() for values in times.values())


def test_overhead_is_that_of_the_rounds_medians_with_its_range() -> None:
    """A call that was interrupted moves no median; drift between rounds that both arms share leaves the ratio alone."""
    twin = np.array([[10, 10, 10], [40, 40, 40], [20, 20, 20]]) * 1_000_000
    model = np.array([[11, 11, 900], [48, 48, 48], [24, 1, 24]]) * 1_000_000
    assert paired_ratio(model, twin) == pytest.approx((1.2, 1.1, 1.2))


@pytest.mark.parametrize("name", NS)
def test_a_model_beside_its_twin_and_its_definition(name: str) -> None:
    twin = registry.get(name).twin
    backends = ("eager", "onnxruntime") if name == NS[0] else ("eager",)  # an export takes seconds
    report = run(name, **QUICK, backends=backends)
    assert [(row.model, row.arm, row.backend) for row in report.rows] == [
        (label, arm, backend)
        for label, arm in ((name, "model"), (twin, "twin"), (f"{name} (literal)", "literal"))
        for backend in backends
    ]
    assert len({row.state_sha256 for row in report.rows}) == 1  # the same names, the same values
    for row in report.rows:
        assert row.weights == "own initialisation"
        assert row.latency.n == 6
        assert len(row.round_medians_ms) == 3
        assert row.twin == (None if row.arm == "twin" else twin)
    count = len(backends)
    for row, other in zip(report.rows[:count], report.rows[count : 2 * count], strict=True):
        ratios = np.divide(row.round_medians_ms, other.round_medians_ms)
        assert row.ratio == pytest.approx((np.median(ratios), ratios.min(), ratios.max()))
    assert [line for line in report.warnings if "no weights here" in line] == [
        f"{name} has no weights here and was timed as it was initialised (seed 0)"
    ]


def test_literal_copies_compute_the_definition_and_leave_the_model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = initialised("test-ns-vit", CPU)
    literal = literal_of(model)
    assert {block.attn.literal for block in literal.blocks} == {True}
    assert {block.attn.literal for block in model.blocks} == {False}
    assert literal.state_dict().keys() == model.state_dict().keys()
    images = torch.randn(2, 3, 32, 32)
    calls: list[torch.Size] = []
    definition = naive.newton_schulz
    monkeypatch.setattr(naive, "newton_schulz", lambda x, **how: calls.append(x.shape) or definition(x, **how))
    with torch.inference_mode():
        model(images)
        assert calls == []
        literal(images)
    assert len(calls) == len(model.blocks) > 0  # once a block
    assert literal_of(initialised("test-vit", CPU)) is None


def test_no_speed_where_the_definition_gives_other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "measure", lambda *args, **kwargs: pytest.fail("timed a wrong model"))
    monkeypatch.setattr("zoo.ops.naive.newton_schulz", lambda x, **kwargs: 1.5 * x)
    with pytest.raises(ValidationError, match=r"^test-ns-vit \(literal\): its literal definition differs"):
        run("test-ns-vit", **QUICK, backends="eager")


def test_the_definition_is_checked_once_for_all_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []
    monkeypatch.setattr(module, "check_literal", lambda model, literal, images: checked.append(len(images)))
    for backend in module.BACKENDS:
        monkeypatch.setitem(module.BACKENDS, backend, lambda *rest: lambda: None)
    run("test-ns-vit", **QUICK)
    assert checked == [2]


def test_own_initialisation_is_always_the_same_and_draws_from_nobody() -> None:
    before = torch.random.get_rng_state()
    first, second = (initialised("test-ns-vit", CPU).state_dict() for _ in range(2))
    twin_with_weights_of(initialised("test-ns-vit", CPU), "test-cifar-vit", CPU)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_a_mechanism_without_a_literal_layer(recwarn: pytest.WarningsRecorder) -> None:
    """Weights that do not fit the twin are told of, and the twin has its own then."""
    report = run("test-osa-vit", **QUICK, backends="eager")
    assert [row.arm for row in report.rows] == ["model", "twin"]
    assert report.rows[0].state_sha256 != report.rows[1].state_sha256
    assert any("test-osa-vit do not fit its twin test-vit, which was timed with its own" in w for w in report.warnings)


def stored(folder: Path, **arguments: int) -> str:
    model = load("test-ns-vit", pretrained=False, **arguments)
    folder.mkdir()
    result.save_config(model, folder / "config.json")
    result.save_weights(model, folder / "model.safetensors")
    return str(folder)


@pytest.mark.parametrize("arguments", [{"depth": 3}, {"num_heads": 6}])
def test_a_folder_of_other_layers_or_heads_has_no_twin(arguments: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="do not fit the twin test-cifar-vit"):
        run(stored(tmp_path / "run", **arguments), **QUICK, backends="eager")


@pytest.mark.parametrize("arguments", [{}, {"num_classes": 7}, {"img_size": 64}])
def test_a_folder_has_the_twin_of_the_model_that_it_holds(arguments: dict[str, int], tmp_path: Path) -> None:
    """With its classes and for its pictures."""
    folder = stored(tmp_path / "run", **arguments)
    report = run(folder, **QUICK, backends="eager")
    assert [row.model for row in report.rows] == [folder, "test-cifar-vit", f"{folder} (literal)"]
    assert {row.weights for row in report.rows} == {"trained"}
    assert len({row.state_sha256 for row in report.rows}) == 1


def test_trained_weights_are_what_all_arms_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    model = initialised("test-ns-vit", CPU)
    with torch.no_grad():
        model.head.bias.add_(1.0)
    monkeypatch.setattr(module, "_load", lambda name, place: (model, "trained"))
    seen: list[nn.Module] = []
    monkeypatch.setitem(module.BACKENDS, "eager", lambda model, *rest: seen.append(model) or (lambda: None))
    report = run("test-ns-vit", **QUICK, backends="eager")
    assert [type(each).__name__ for each in seen] == [
        "NsVisionTransformer", "CifarVisionTransformer", "NsVisionTransformer",
    ]  # fmt: skip
    assert all(torch.equal(each.head.bias, model.head.bias) for each in seen)
    assert {row.weights for row in report.rows} == {"trained"}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"protocol": "papyrus"}, "protocols are turns and paper; got 'papyrus'"),
        ({"protocol": None}, "protocols are turns and paper"),
        ({"rounds": 0}, "rounds has to be a whole number from 1"),
        ({"repeats": 0}, "repeats"),
        ({"warmup": -1}, "warmup"),
        ({"batch_size": 0}, "batch_size"),
        ({"protocol": "turns"}, "rounds belong to the protocol paper"),
        ({"twin": False}, "leave out --no-twin or --protocol"),
        ({"names": "test-vit"}, "test-vit has no twin"),
        ({"names": ["test-ns-vit", "test-vit"]}, "test-vit has no twin"),
    ],
)
def test_what_makes_no_sense(wrong: dict[str, object], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "measure", lambda *args, **kwargs: pytest.fail("timed nonsense"))
    with pytest.raises(UsageError, match=said):
        run(**{"names": "test-ns-vit", **QUICK, **wrong})


def test_the_command_prints_one_document() -> None:
    words = (
        "bench test-ns-swin --protocol paper --batch 2 --rounds 2 --repeats 3 --warmup 0 --threads 1 --backend eager"
    )
    done = CliRunner().invoke(main, [*words.split(), "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    protocol, settings = document["protocol"], document["settings"]
    assert {key: protocol[key] for key in ("name", "rounds", "repeats", "warmup", "batch_size", "threads")} == {
        "name": "paper", "rounds": 2, "repeats": 3, "warmup": 0, "batch_size": 2, "threads": 1,
    }  # fmt: skip
    assert settings["device"].startswith("cpu")
    assert settings["dtype"] == "float32"
    model, twin, literal = document["results"]
    assert model["ratio"].keys() == literal["ratio"].keys() == {"median", "min", "max"}
    assert twin["ratio"] is None
    assert all(len(row["round_medians_ms"]) == 2 for row in document["results"])
    table = CliRunner().invoke(main, words.split()).stdout.splitlines()
    assert "over twin" in table[0]
    assert [line.rstrip().endswith(")") for line in table[1:]] == [True, False, True]
    assert " % (" in table[1]


@pytest.mark.parametrize(
    "words", ["--rounds 0", "--batch 0", "--repeats 0", "--warmup -1", "--threads 0", "--no-twin", "--protocol papers"]
)
def test_bad_words_are_one_line_and_code_2(words: str) -> None:
    done = CliRunner().invoke(main, ["bench", "test-ns-vit", "--protocol", "paper", *words.split()])
    assert done.exit_code == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
