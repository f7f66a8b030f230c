"""Training: exact resumption, survival of kill -9, clean stops, and a result folder that is whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch
from torch import nn

import zoo
from zoo import registry, training
from zoo.errors import DamagedError, DeviceError, DivergedError, InterruptedRun, NotFoundError, UsageError
from zoo.training import checkpoint, log

TESTS = registry.names("test-*", hidden=True, task="image-classification")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


def same(one: Path, other: Path) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.fixture(scope="module")
def data_dir(small_mnist) -> Path:
    """Ten steps see 320 pictures; tests and epochs' ends need no more of them than a few hundred."""
    return small_mnist


@pytest.fixture(scope="module")
def straight(data_dir, tmp_path_factory) -> Path:
    """The ten steps of the test recipe without a stop."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    training.train("test-osa-vit", output=folder, data_dir=data_dir)
    return folder


def test_the_result_is_whole(straight):
    assert {path.name for path in straight.iterdir()} == {
        "model.safetensors",
        "config.json",
        "README.md",
        "results.json",
        "log.jsonl",
    }
    results = json.loads((straight / "results.json").read_text())
    assert results["steps"] == 10
    assert results["sha256"] == zoo.hub.sha256_of(straight / "model.safetensors")
    assert results["parameters"] == sum(tensor.numel() for tensor in weights(straight).values())
    card = (straight / "README.md").read_text()
    assert f"{results['top1']:.2f} %" in card
    assert card.startswith("---\nlicense:")
    with safetensors.safe_open(straight / "model.safetensors", "pt") as file:
        assert file.metadata()["format"] == "pt"


def test_the_result_opens_in_timm_and_the_zoo(straight):
    by_zoo = zoo.load(straight)
    by_timm = timm.create_model(f"local-dir:{straight}", pretrained=True).eval()
    x = torch.randn(2, 1, 28, 28)
    assert torch.equal(by_zoo(x), by_timm(x))


def test_the_card_passes_the_hubs_own_check(straight):
    from huggingface_hub import ModelCard

    card = ModelCard.load(straight / "README.md")
    assert card.data.eval_results[0].metric_value == pytest.approx(
        json.loads((straight / "results.json").read_text())["top1"] / 100, abs=1e-4
    )


def test_the_log_tells_the_story(straight):
    rows = log.read(straight / "log.jsonl")
    assert rows[0]["recipe"]["batch_size"] == 32
    assert [row["step"] for row in rows if "loss" in row] == [2, 4, 6, 8, 10]
    assert rows[-1]["test"]["total"] == 500


def test_figures_come_from_weights_and_data_alone(straight, data_dir):
    stated = json.loads((straight / "results.json").read_text())
    (straight / "results.json").rename(straight / "hidden.json")
    try:
        figures = training.evaluate_named(str(straight), data_dir=data_dir)
    finally:
        (straight / "hidden.json").rename(straight / "results.json")
    assert figures.correct == stated["correct"]
    assert figures.loss == pytest.approx(stated["loss"], rel=1e-5)


def test_two_halves_equal_the_whole(straight, data_dir, tmp_path):
    with pytest.raises(InterruptedRun, match=r"stopped at step 5 of 10.*--resume"):
        training.train("test-osa-vit", output=tmp_path, data_dir=data_dir, stop_after=5)
    assert (tmp_path / "checkpoint.pt").is_file()
    assert not (tmp_path / "model.safetensors").exists()
    training.train("test-osa-vit", output=tmp_path, data_dir=data_dir, resume=True)
    assert same(straight, tmp_path)
    losses = [
        [row["loss"] for row in log.read(folder / "log.jsonl") if "loss" in row][-2:] for folder in (straight, tmp_path)
    ]
    assert losses[0] == losses[1]
    assert not (tmp_path / "checkpoint.pt").exists()


def test_dropout_does_not_break_exact_resumption(data_dir, tmp_path):
    settings = {"drop_rate": 0.3, "proj_drop_rate": 0.1}
    for name, stops in (("one", []), ("two", [3, 7])):
        for stop in stops:
            with pytest.raises(InterruptedRun):
                training.train(
                    "test-vit",
                    output=tmp_path / name,
                    data_dir=data_dir,
                    settings=settings,
                    stop_after=stop,
                    resume=stop != stops[0],
                )
        training.train("test-vit", output=tmp_path / name, data_dir=data_dir, settings=settings, resume=bool(stops))
    assert same(tmp_path / "one", tmp_path / "two")


def start(folder: Path, data_dir: Path, *words: str) -> subprocess.Popen[bytes]:
    """A training in a process of its own that saves every step; what it says on stderr goes to a file."""
    command = [sys.executable, "-m", "zoo", "train", "test-osa-vit", "--output", folder, "--data-dir", data_dir]
    settings = ["--set", "epochs=40", "--set", "save_every=1"]
    with folder.with_suffix(".err").open("wb") as err:
        return subprocess.Popen([*map(str, command), *settings, *words], stderr=err, stdout=subprocess.DEVNULL)


def wait_for_step(process: subprocess.Popen[bytes], folder: Path, step: int) -> None:
    deadline = time.monotonic() + 200
    while not (folder / "checkpoint.pt").is_file() or checkpoint.load(folder)["step"] <= step:
        assert process.poll() is None, folder.with_suffix(".err").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_kill_9_loses_at_most_one_checkpoint(data_dir, tmp_path):
    folder, last = tmp_path / "killed", 0
    for attempt in range(3):
        process = start(folder, data_dir, *(["--resume"] if attempt else []))
        wait_for_step(process, folder, last)
        time.sleep(0.013 * attempt)  # so that the kill meets different moments of a step
        process.kill()
        process.wait()
        state = checkpoint.load(folder)
        assert state["step"] > last
        last = state["step"]
    settings = {"epochs": 40, "save_every": 1}
    for place, resume in ((folder, True), (tmp_path / "whole", False)):
        with pytest.raises(InterruptedRun):
            training.train(
                "test-osa-vit", output=place, data_dir=data_dir, resume=resume, settings=settings, stop_after=last + 3
            )
    killed, whole = checkpoint.load(folder)["model"], checkpoint.load(tmp_path / "whole")["model"]
    assert all(torch.equal(killed[key], whole[key]) for key in whole)
    steps = [row["step"] for row in log.read(folder / "log.jsonl") if "loss" in row]
    assert steps == sorted(set(steps))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_cleanly(data_dir, tmp_path, number):
    folder = tmp_path / "stopped"
    process = start(folder, data_dir)
    wait_for_step(process, folder, 0)
    process.send_signal(number)
    assert process.wait(timeout=200) == 130
    err = folder.with_suffix(".err").read_text()
    assert "--resume" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert checkpoint.load(folder)["step"] >= 1


def test_a_loss_that_is_no_number_stops(data_dir, tmp_path):
    with pytest.raises(DivergedError, match="lr="):
        training.train(
            "test-osa-vit", output=tmp_path, data_dir=data_dir, settings={"lr": 1e30, "clip": None, "log_every": 1}
        )
    assert not (tmp_path / "model.safetensors").exists()
    if (tmp_path / "checkpoint.pt").exists():
        assert all(torch.isfinite(value).all() for value in checkpoint.load(tmp_path)["model"].values())


def test_nothing_is_overwritten_unasked(straight, data_dir):
    before = {path.name: path.read_bytes() for path in straight.iterdir()}
    with pytest.raises(UsageError, match="--overwrite"):
        training.train("test-osa-vit", output=straight, data_dir=data_dir)
    with pytest.raises(UsageError, match="finished"):
        training.train("test-osa-vit", output=straight, data_dir=data_dir, resume=True)
    assert before == {path.name: path.read_bytes() for path in straight.iterdir()}


def test_an_unfinished_training_is_not_discarded_unasked(data_dir, tmp_path):
    with pytest.raises(InterruptedRun):
        training.train("test-osa-vit", output=tmp_path, data_dir=data_dir, stop_after=1)
    with pytest.raises(UsageError, match="--resume"):
        training.train("test-osa-vit", output=tmp_path, data_dir=data_dir)
    with pytest.raises(UsageError, match=r"another training \(lr 0.002, not 0.1\)"):
        training.train("test-osa-vit", output=tmp_path, data_dir=data_dir, resume=True, settings={"lr": "0.1"})
    with pytest.raises(UsageError, match="num_heads None, not 4"):
        training.train("test-osa-vit", output=tmp_path, data_dir=data_dir, resume=True, settings={"num_heads": 4})
    with pytest.raises(UsageError, match="name test-osa-vit, not test-vit"):
        training.train("test-vit", output=tmp_path, data_dir=data_dir, resume=True)
    training.train("test-osa-vit", output=tmp_path, data_dir=data_dir, overwrite=True)


def test_resuming_takes_the_settings_of_the_checkpoint(data_dir, tmp_path):
    """The command that the message names is enough, and what it says may be repeated."""
    settings = {"lr": 0.001, "mlp_ratio": 1.0}
    with pytest.raises(InterruptedRun, match="--resume` goes on"):
        training.train("test-osa-vit", output=tmp_path, data_dir=data_dir, settings=settings, stop_after=2)
    with pytest.raises(InterruptedRun):
        training.train("test-osa-vit", output=tmp_path, data_dir=data_dir, resume=True, stop_after=2)
    results = training.train("test-osa-vit", output=tmp_path, data_dir=data_dir, resume=True, settings={"lr": "1e-3"})
    assert results["recipe"]["lr"] == 0.001
    assert results["model_args"] == {"mlp_ratio": 1.0}
    assert results["trained_by"] == "zoo train test-osa-vit --set=lr=0.001 --set=mlp_ratio=1.0"
    assert zoo.load(tmp_path).blocks[0].mlp.fc1.out_features == 16


def test_no_checkpoint_is_made_of_a_state_that_is_no_number(data_dir, tmp_path):
    settings = {"lr": 1e38, "clip": None, "save_every": 1, "log_every": 1}
    with pytest.raises(DivergedError):
        training.train("test-osa-vit", output=tmp_path, data_dir=data_dir, settings=settings)
    if (tmp_path / "checkpoint.pt").exists():
        assert all(torch.isfinite(value).all() for value in checkpoint.load(tmp_path)["model"].values())


def test_the_random_state_is_given_back(straight, data_dir, tmp_path):
    torch.manual_seed(123)
    expected = torch.rand(3)
    torch.manual_seed(123)
    training.train("test-vit", output=tmp_path, data_dir=data_dir)
    assert torch.equal(torch.rand(3), expected)


def test_a_damaged_checkpoint(data_dir, tmp_path):
    (tmp_path / "checkpoint.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(DamagedError, match="--overwrite"):
        training.train("test-osa-vit", output=tmp_path, data_dir=data_dir, resume=True)


def test_a_checkpoint_runs_no_code(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    torch.save({"trap": Trap()}, tmp_path / "checkpoint.pt")
    with pytest.raises(DamagedError):
        checkpoint.load(tmp_path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"settings": {"colour": 3}}, UsageError, "colour"),
        ({"settings": {"drop_path_rate": 0.5}}, UsageError, "drop_path"),
        ({"settings": {"seed": 20_000_000}}, UsageError, "seed"),
        ({"settings": {"epochs": "many"}}, UsageError, "epochs"),
        ({"settings": {"epochs": 0}}, UsageError, "epochs"),
        ({"settings": {"lr": -1}}, UsageError, "lr"),
        ({"settings": {"batch_size": 70_000}}, UsageError, "batch_size"),
        ({"device": "tpu"}, DeviceError, "tpu"),
        ({"precision": "fp16"}, UsageError, "fp16"),
        ({"precision": "fp8"}, UsageError, "fp8"),
        ({"resume": True}, NotFoundError, "no checkpoint"),
        ({"resume": True, "overwrite": True}, UsageError, "one of them"),
        ({"data_dir": "/nowhere"}, NotFoundError, "ZOO_DATA"),
    ],
)
def test_arguments_that_do_not_fit(data_dir, tmp_path, arguments, kind, words):
    with pytest.raises(kind, match=words) as caught:
        training.train("test-osa-vit", **{"output": tmp_path / "new", "data_dir": data_dir, **arguments})
    assert "\n" not in str(caught.value)


def test_output_that_is_a_file(data_dir, tmp_path):
    (tmp_path / "file").write_text("precious")
    for output in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError):
            training.train("test-osa-vit", output=output, data_dir=data_dir)
    assert (tmp_path / "file").read_text() == "precious"


def test_bf16(data_dir, tmp_path):
    results = training.train("test-osa-vit", output=tmp_path, data_dir=data_dir, precision="bf16")
    assert results["recipe"]["precision"] == "bf16"
    assert {tensor.dtype for tensor in weights(tmp_path).values()} == {torch.float32}


@pytest.mark.parametrize(
    "setting", [{"shift": 3}, {"weight_decay": 0.5}, {"label_smoothing": 0.2}, {"clip": 0.001}, {"seed": 7}]
)
def test_every_setting_changes_the_update(straight, data_dir, tmp_path, setting):
    training.train("test-osa-vit", output=tmp_path, data_dir=data_dir, settings=setting)
    assert not same(straight, tmp_path)


@pytest.mark.parametrize(
    ("settings", "near"),
    [({"basis": "qr"}, True), ({"basis": "polar-express"}, True), ({"basis": "newton-schulz", "steps": 3}, False)],
)
def test_a_basis_is_trained_with(straight, data_dir, tmp_path, settings, near):
    """What has converged gives the basis-free training up to rounding; what has not, another one, and says so."""
    results = training.train("test-osa-vit", output=tmp_path, data_dir=data_dir, settings=settings)
    assert results["model_args"] == settings
    assert all(f"--set={key}" in results["trained_by"] for key in settings)
    model, other = zoo.load(tmp_path), zoo.load(straight)
    assert model.blocks[0].attn.basis == settings["basis"]
    one, two = (torch.cat([p.detach().flatten() for p in each.parameters()]) for each in (model, other))
    distance = float((one - two).norm() / two.norm())
    assert distance < 1e-4 if near else distance > 1e-4


@pytest.mark.parametrize("name", TESTS)
def test_every_parameter_has_a_gradient(name):
    model = zoo.load(name, pretrained=False).train()
    images = torch.randn(4, *model.pretrained_cfg["input_size"])
    nn.functional.cross_entropy(model(images), torch.tensor([1, 2, 3, 4])).backward()
    assert [key for key, value in model.named_parameters() if value.grad is None] == []


@pytest.mark.parametrize("name", registry.names("osa-*", hidden=True))
def test_alpha_and_positions_do_not_decay(name):
    from timm.optim import param_groups_weight_decay

    model = zoo.load(name, pretrained=False)
    groups = param_groups_weight_decay(model, 0.05, no_weight_decay_list=model.no_weight_decay())
    decayed = {id(parameter) for group in groups if group["weight_decay"] for parameter in group["params"]}
    named = {key for key, parameter in model.named_parameters() if id(parameter) in decayed}
    assert not [key for key in named if "alpha" in key or "bias" in key or "pos_embed" in key]
    assert "blocks.0.attn.qkv.weight" in named


def test_process_state_is_given_back(straight, data_dir, tmp_path):
    before = signal.getsignal(signal.SIGINT), os.environ.get("ACCELERATE_TORCH_DEVICE")
    training.train("test-vit", output=tmp_path, data_dir=data_dir)
    assert before == (signal.getsignal(signal.SIGINT), os.environ.get("ACCELERATE_TORCH_DEVICE"))


def test_two_processes_train_together(data_dir, tmp_path):
    """As torchrun or `accelerate launch` start them: one result, one log, one voice on stdout."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "-m", "zoo", "train"]
    options = ["test-osa-vit", "--output", str(tmp_path / "two"), "--data-dir", str(data_dir), "--json"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 10
    assert [row["step"] for row in log.read(tmp_path / "two" / "log.jsonl") if "loss" in row] == [2, 4, 6, 8, 10]
