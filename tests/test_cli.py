"""The command line: results on stdout, one line on stderr, an exit code for each kind of fault."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import zoo
from zoo import hub, registry
from zoo.cli import main
from zoo.training import result

ROOT = Path(__file__).resolve().parents[1]
DIGITS = ROOT / "tests" / "assets" / "digits"
TRAINED = [name for name in registry.names(task="image-classification") if hub.at_hand(registry.get(name))]


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Run the command in this process; returns click's result, stdout and stderr apart."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object):
        return CliRunner().invoke(main, [str(word) for word in words])

    return run


def fault(result, code: int, *words: str) -> None:
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if line]  # click ends the line that ^C is on
    assert len(lines) == 1, lines
    assert lines[0].startswith("zoo: ")
    for word in words:
        assert word in lines[0]


def test_list_is_one_name_a_line_where_there_is_no_terminal(call):
    assert call("list").stdout.splitlines() == registry.names()
    assert call("list", "--all").stdout.splitlines() == registry.names(hidden=True)
    assert call("list", "OSA-*").stdout.splitlines() == registry.names("osa-*")


def test_list_json(call):
    entries = json.loads(call("list", "--json").stdout)
    assert [entry["name"] for entry in entries] == registry.names()
    assert json.loads(call("list", "nothing*", "--json").stdout) == []


def test_list_on_a_terminal_fits_it(run_zoo):
    import pty
    import select

    for width in (40, 120):
        leader, follower = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "zoo", "list"],
            stdout=follower,
            env={**os.environ, "COLUMNS": str(width), "NO_COLOR": "1", "TERM": "xterm"},
        )
        os.close(follower)
        text = b""
        while select.select([leader], [], [], 20)[0]:
            try:
                chunk = os.read(leader, 65536)
            except OSError:
                break
            if not chunk:
                break
            text += chunk
        assert process.wait() == 0
        assert "\x1b[3" not in text.decode(), "NO_COLOR is kept"
        lines = re.sub(r"\x1b\[[0-9;]*m", "", text.decode()).replace("\r", "").splitlines()
        assert any(line.startswith("osa-vit-mnist") for line in lines)
        assert all(len(line) <= width for line in lines)


def test_list_of_nothing(call):
    fault(call("list", "nothing*"), 3, "nothing*", "zoo list")


def test_info(call):
    facts = json.loads(call("info", "osa-vit-mnist", "--json").stdout)
    assert facts["twin"] == "vit-mnist"
    text = call("info", "osa-vit-mnist").stdout
    assert "arXiv 2602.05996" in text
    assert "vit-mnist" in text


def test_version(call):
    assert zoo.__version__ in call("--version").stdout


def test_help_everywhere(call):
    assert call("--help").exit_code == 0
    for command in main.commands:
        result = call(command, "--help")
        assert result.exit_code == 0
        assert "Usage: " in result.stdout


@pytest.mark.parametrize("command", ["info", "eval", "train"])
def test_unknown_names_exit_3(call, command):
    fault(call(command, "osa-vit-mnsit"), 3, "did you mean osa-vit-mnist")


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["list", "--colour"],
        ["info"],
        ["eval", "osa-vit-mnist", "--batch", "0"],
        ["eval", "osa-vit-mnist", "--batch", "-7"],
        ["eval", "osa-vit-mnist", "--batch", "many"],
        ["predict", "osa-vit-mnist"],
        ["predict", "osa-vit-mnist", str(DIGITS), "--top", "0"],
        ["train", "test-osa-vit", "--precision", "fp8"],
        ["train", "test-osa-vit", "--set", "epochs"],
        ["train", "test-osa-vit", "--set", "colour=red"],
        ["train", "test-osa-vit", "--set", "lr=fast"],
        ["train", "test-osa-vit", "--stop-after", "0"],
    ],
)
def test_usage_faults_exit_2(call, words):
    fault(call(*words), 2)


@pytest.mark.parametrize("words", [["eval", "osa-vit-mnist"], ["train", "test-osa-vit"]])
@pytest.mark.parametrize("device", ["cuda:99", "tpu"])
def test_devices_that_are_not_there_exit_5(call, words, device):
    fault(call(*words, "--device", device), 5, device)


@pytest.mark.parametrize("command", ["eval", "train"])
def test_a_missing_data_folder_names_both_ways(call, command):
    name = TRAINED[0] if command == "eval" and TRAINED else "test-osa-vit"
    if command == "eval" and not TRAINED:
        pytest.skip("no trained model yet")
    fault(call(command, name, "--data-dir", "/nowhere"), 3, "--data-dir", "ZOO_DATA", "Hub")


def test_eval_without_weights(call):
    fault(call("eval", "test-osa-vit"), 3, "pretrained=False", "zoo train test-osa-vit")


def test_train_eval_predict(call, data_dir, tmp_path):
    result = call("train", "test-osa-vit", "--data-dir", data_dir, "-o", "mine", "--set", "lr=1e-3", "--json")
    assert result.exit_code == 0, result.stderr
    trained = json.loads(result.stdout)
    assert trained["recipe"]["lr"] == 1e-3
    figures = json.loads(call("eval", "./mine", "--data-dir", data_dir, "--json").stdout)
    assert figures.keys() == {"top1", "correct", "total", "loss"}
    assert figures["correct"] == trained["correct"]
    rows = json.loads(call("predict", "./mine", DIGITS, "--json").stdout)
    assert len(rows) == 10
    fault(call("train", "test-osa-vit", "--data-dir", data_dir, "-o", "mine"), 2, "--overwrite")


def test_stopping_and_resuming(call, data_dir, tmp_path):
    words = ["train", "test-osa-vit", "--data-dir", data_dir, "-o", "half"]
    result = call(*words, "--stop-after", "3")
    assert result.exit_code == 0  # as was asked
    assert "--resume" in result.stderr.splitlines()[-1]
    fault(call("eval", "half", "--data-dir", data_dir), 3, "not finished")
    assert call(*words, "--resume").exit_code == 0


@pytest.mark.skipif(not TRAINED, reason="no trained model in this checkout")
def test_predict_json(call):
    rows = json.loads(call("predict", "osa-vit-mnist", DIGITS, "--json", "--top", "3").stdout)
    for row in rows:
        assert row.keys() == {"file", "label", "score", "top"}
        assert row["label"] == Path(row["file"]).stem[0]
        assert isinstance(row["label"], str)
        assert len(row["top"]) == 3


@pytest.mark.skipif(not TRAINED, reason="no trained model in this checkout")
def test_a_bad_file_does_not_stop_the_others(call, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no picture")
    result = call("predict", "osa-vit-mnist", DIGITS, "broken.png")
    assert result.exit_code == 4
    assert len(result.stdout.splitlines()) == 10
    assert len(result.stderr.splitlines()) == 1
    assert "broken.png" in result.stderr
    top = call("predict", "osa-vit-mnist", DIGITS, "--top", "3").stdout.splitlines()
    assert all(len(line.split("\t")) == 7 for line in top)


@pytest.mark.skipif(not TRAINED, reason="no trained model in this checkout")
def test_a_missing_file(call):
    fault(call("predict", "osa-vit-mnist", "nowhere.png"), 3, "nowhere.png")


def test_no_command_is_help():
    result = CliRunner().invoke(main, [])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") > 5


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("a=1e-3", 1e-3),
        ("a=2", 2),
        ("a=0.5", 0.5),
        ("a=false", False),
        ("a=true", True),
        ("a=null", None),
        ("a=newton-schulz", "newton-schulz"),
        ("a=", None),
        ("a=x=y", "x=y"),
        ("a=[1, 2]", [1, 2]),
    ],
)
def test_settings_are_read_as_yaml(word, value):
    from zoo.console import read_settings

    assert read_settings([word]) == {"a": value}


def test_traceback_on_request(call):
    result = call("info", "nothing", "--traceback")
    assert result.exit_code == 3
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("zoo: unknown model")


def test_an_error_nobody_thought_of_is_one_line(call, monkeypatch):
    def fail(name):
        raise RuntimeError("first\nsecond")

    monkeypatch.setattr(registry, "get", fail)
    fault(call("info", "osa-vit-mnist"), 1, "RuntimeError: first second", "--traceback")


def test_a_damaged_registry_exits_4(call, monkeypatch, tmp_path):
    (tmp_path / "more.yaml").write_text("a: {b\n")
    monkeypatch.setenv("ZOO_REGISTRY", str(tmp_path / "more.yaml"))
    fault(call("list"), 4, "more.yaml, line")


def test_a_reader_that_has_enough():
    """`zoo list | true` must neither hang nor complain."""
    process = subprocess.run(
        f"{sys.executable} -m zoo list --json | head -c 1 > {os.devnull}; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 0
    assert process.stderr == ""


@pytest.mark.skipif(not TRAINED, reason="no trained model in this checkout")
def test_a_locale_that_is_not_utf_8(run_zoo, tmp_path):
    shutil.copy(DIGITS / "7.png", tmp_path / "sieben-\u4e03.png")
    result = run_zoo("predict", "osa-vit-mnist", tmp_path, LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert result.returncode == 0, result.stderr
    assert "\t7\t" in result.stdout


def test_interrupting_before_anything_began(monkeypatch, call):
    def stop(*words, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(registry, "names", stop)
    fault(call("list"), 130, "interrupted")


def test_exports_are_called_as_they_were_named_and_never_replace_each_other(call, tmp_path):
    for part in ("one", "two/one"):
        model = zoo.load("test-osa-vit", pretrained=False)
        result.save_weights(model, tmp_path / part / "model.safetensors")
        result.save_config(model, tmp_path / part / "config.json")
    fault(call("export", "one", "two/one", "--onnx"), 2, "exports/one/model.onnx")
    assert not (tmp_path / "exports").exists()
    done = call("export", "one/", "--onnx")
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "exports/one/model.onnx").is_file()
