"""The folder of a training: nothing of anybody's is discarded unasked, and a checkpoint that is none says so."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import zoo
from zoo import training
from zoo.errors import DamagedError, InterruptedRun, UsageError
from zoo.training import checkpoint

NAME = "test-ns-vit"
SHORT = {"samples": 16, "batch_size": 8, "epochs": 2, "save_every": 1}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def stopped(small_cifar: Path, tmp_path: Path) -> Path:
    """A training that stands at step 2 of 8."""
    with pytest.raises(InterruptedRun):
        training.train(NAME, output=tmp_path / "run", data_dir=small_cifar, settings=SHORT, stop_after=2)
    return tmp_path / "run"


@pytest.mark.parametrize("name", ["README.md", "config.json", "model.safetensors", "log.jsonl"])
def test_files_of_somebody_else_stay(name: str, small_cifar: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    (tmp_path / ".mine.tmp").write_text("mine too")
    before = contents(tmp_path)
    with pytest.raises(UsageError, match=rf"{name}.*would replace.*--overwrite"):
        training.train(NAME, output=tmp_path, data_dir=small_cifar, settings=SHORT)
    assert contents(tmp_path) == before
    training.train(NAME, output=tmp_path, data_dir=small_cifar, settings=SHORT, overwrite=True)
    assert (tmp_path / ".mine.tmp").read_text() == "mine too"


def test_what_a_kill_left_is_removed_and_no_reason_to_refuse(small_cifar: Path, tmp_path: Path) -> None:
    from zoo.training.log import Log

    Log(tmp_path, keep_until=0).write(step=0, name=NAME, recipe_name="test-cifar")
    (tmp_path / f".model.safetensors.{'0' * 16}.tmp").write_text("half")
    training.train(NAME, output=tmp_path, data_dir=small_cifar, settings=SHORT)
    assert not list(tmp_path.glob(".*.tmp"))


def test_the_start_is_not_replaced_by_what_starts_from_it(small_cifar: Path, tmp_path: Path) -> None:
    training.train(NAME, output=tmp_path / "run", data_dir=small_cifar, settings=SHORT)
    before = contents(tmp_path / "run")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="start and result at once"):
            training.train(
                NAME,
                output=tmp_path / "run",
                data_dir=small_cifar,
                init=str(tmp_path / "." / "run"),
                overwrite=overwrite,
            )
    assert contents(tmp_path / "run") == before


def test_a_head_for_other_names_starts_anew(small_cifar: Path, tmp_path: Path) -> None:
    from PIL import Image

    training.train(NAME, output=tmp_path / "ten", data_dir=small_cifar, settings=SHORT)
    still = {**SHORT, "samples": 10, "lr": 1e-12, "weight_decay": 0.0, "storage": "float32"}
    labels = zoo.load(tmp_path / "ten").pretrained_cfg["label_names"]
    start = zoo.load(tmp_path / "ten").state_dict()
    for names, kept in ((sorted(labels), True), ([str(number) for number in range(10)], False)):
        data = tmp_path / f"data-{kept}"
        for number, name in enumerate(names):
            for part in ("train", "test"):
                (data / part / name).mkdir(parents=True)
                Image.new("RGB", (32, 32), (number, 0, 0)).save(data / part / name / "0.png")
        how = {"data": f"imagefolder:{data}", "init": str(tmp_path / "ten"), "settings": still}
        training.train(NAME, output=tmp_path / f"run-{kept}", **how)
        state = zoo.load(tmp_path / f"run-{kept}").state_dict()
        assert torch.allclose(state["blocks.0.attn.qkv.weight"], start["blocks.0.attn.qkv.weight"], atol=1e-6)
        assert torch.allclose(state["head.weight"], start["head.weight"], atol=1e-6) is kept


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["recipe"].update(zzz=1),
        lambda state: state["model"].popitem(),
        lambda state: state.update(optimizer={}),
        lambda state: state.update(data_facts={}),
        lambda state: state.update(model_args=None),
        lambda state: state.update(recipe_name="gone"),
        lambda state: state.update(step=10**6),
        lambda state: state.pop("step"),
    ],
    ids=["field", "parameter", "optimizer", "facts", "arguments", "recipe", "step", "key"],
)
def test_a_checkpoint_of_another_kind_is_damaged_and_stays(change: Any, stopped: Path, small_cifar: Path) -> None:
    state = checkpoint.load(stopped)
    change(state)
    torch.save(state, stopped / checkpoint.FILE)
    before = contents(stopped)
    with pytest.raises(DamagedError, match="--overwrite"):
        training.train(NAME, output=stopped, data_dir=small_cifar, resume=True)
    assert contents(stopped) == before


@pytest.mark.parametrize(
    "content", [b"", b"hello world", b"PK\x03\x04", b"\x80\x02}q\x00.", b"version https://git-lfs"]
)
def test_a_file_of_anything_is_no_checkpoint(content: bytes, tmp_path: Path) -> None:
    (tmp_path / checkpoint.FILE).write_bytes(content)
    with pytest.raises(DamagedError, match=r"is no checkpoint of a training \(.+\)"):
        training.train(NAME, output=tmp_path, resume=True)


def test_other_test_pictures_are_noticed(stopped: Path, small_cifar: Path, tmp_path: Path) -> None:
    import pyarrow.parquet

    shutil.copytree(small_cifar, tmp_path / "data")
    (path,) = (tmp_path / "data/cifar10").glob("test-*.parquet")
    pyarrow.parquet.write_table(pyarrow.parquet.read_table(path).slice(0, 50), path)
    with pytest.raises(UsageError, match="its test pictures were others"):
        training.train(NAME, output=stopped, data_dir=tmp_path / "data", resume=True)


def test_the_entrys_own_data_may_be_named_on_resuming(stopped: Path, small_cifar: Path) -> None:
    training.train(NAME, output=stopped, data_dir=small_cifar, resume=True, data="cifar10")
    assert (stopped / "results.json").is_file()


@pytest.mark.parametrize("option", ["output", "recipe", "init", "data"])
def test_an_empty_option_is_no_choice(option: str, small_cifar: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"--{option} is empty"):
        training.train(NAME, data_dir=small_cifar, **{option: ""})
    assert not list(tmp_path.iterdir())
    if option == "data":
        with pytest.raises(UsageError, match="--data is empty"):
            training.evaluate_named("osa-vit-mnist", data="")
