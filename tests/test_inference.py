"""Predictions on pictures: labels, scores, devices, dtypes, and what is said of those that cannot be read."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import zoo
from zoo import registry
from zoo.data.images import open_image
from zoo.errors import DamagedError, NotFoundError, UsageError
from zoo.inference import Failure, Prediction, expand, predict, predict_files

ROOT = Path(__file__).resolve().parents[1]
DIGITS = ROOT / "tests" / "assets" / "digits"
FILES = sorted(path for path in DIGITS.iterdir() if path.suffix != ".md")
NAMES = ("night", "dusk", "day")


class Brightness(nn.Module):
    """Says how bright a picture is; NaN for a picture that is white throughout."""

    def __init__(self, **facts) -> None:
        super().__init__()
        self.pretrained_cfg = {
            "input_size": (1, 8, 8),
            "mean": (0.5,),
            "std": (0.25,),
            "label_names": NAMES,
            **facts,
        }
        self.weight = nn.Parameter(torch.tensor([[-4.0], [0.0], [4.0]]))
        self.noise = nn.Dropout(0.9)
        self.seen: list[tuple[torch.dtype, bool, bool, int]] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen.append((images.dtype, torch.is_inference_mode_enabled(), self.noise.training, len(images)))
        level = self.noise(images).mean((1, 2, 3))[:, None]
        logits = level @ self.weight.T - self.weight.T.abs()
        return torch.where(level > 1.9, float("nan"), logits)


@pytest.fixture
def model():
    return Brightness().eval()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with pictures of several kinds, which is also where we are."""
    monkeypatch.chdir(tmp_path)
    for name, level in {"dark.png": 10, "2.png": 200, "10.png": 230, "B.PNG": 40}.items():
        shade(level).save(name)
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / ".hidden.png").write_bytes(b"no picture")
    (tmp_path / "below").mkdir()
    shade(1).save("below/deep.png")
    return tmp_path


def shade(level: int) -> Image.Image:
    return Image.new("L", (12, 9), level)


# --- one picture ------------------------------------------------------------------------------------------------------


def test_labels_and_scores(model):
    answers = predict(model, shade(10))
    assert [label for label, _ in answers] == ["night", "dusk", "day"]
    scores = [score for _, score in answers]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) == pytest.approx(1, abs=1e-6)
    assert all(type(label) is str and type(score) is float for label, score in answers)
    level = (10 / 255 - 0.5) / 0.25
    expected = torch.softmax(torch.tensor([-4 * level - 4, 0.0, 4 * level - 4]), 0)
    assert scores == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize(("top", "count"), [(1, 1), (2, 2), (3, 3), (100, 3)])
def test_top(model, top, count):
    assert len(predict(model, shade(10), top=top)) == count


@pytest.mark.parametrize("top", [0, -1])
def test_top_below_one(model, top):
    with pytest.raises(UsageError, match="1 or more"):
        predict(model, shade(10), top=top)
    with pytest.raises(UsageError, match="1 or more"):
        list(predict_files(model, [], top=top))


@pytest.mark.parametrize("names", [None, (), ("only", "two")])
def test_labels_without_names_that_fit_are_indices(names):
    assert [label for label, _ in predict(Brightness(label_names=names).eval(), shade(10))] == ["0", "1", "2"]


def test_labels_are_strings_whatever_the_names_are():
    assert predict(Brightness(label_names=[7, 8, 9]).eval(), shade(10))[0][0] == "7"


def test_every_source(model, tmp_path):
    path = tmp_path / "a.png"
    shade(200).save(path)
    data = path.read_bytes()
    expected = predict(model, path)
    for source in (str(path), data, io.BytesIO(data), shade(200)):
        assert predict(model, source) == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_models_dtype_is_its_own(model, dtype):
    expected = predict(model, shade(200))
    model.to(dtype)
    answers = predict(model, shade(200))
    assert model.seen[-1][0] == dtype
    assert [label for label, _ in answers] == [label for label, _ in expected]
    assert [score for _, score in answers] == pytest.approx([score for _, score in expected], abs=0.03)
    assert sum(score for _, score in answers) == pytest.approx(1, abs=1e-6), "the softmax is in float32"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_models_device_is_its_own(model):
    expected = predict(model, shade(200))
    assert predict(model.cuda(), shade(200))[0][0] == expected[0][0]


def test_a_model_without_parameters():
    model = nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(2))
    model.pretrained_cfg = {"input_size": (1, 8, 8), "mean": (0.5,), "std": (0.25,)}
    assert len(predict(model, shade(200))) == 2


def test_runs_in_eval_and_inference_mode_and_leaves_every_module_as_it_was(model):
    model.train()
    model.noise.eval()
    extra = model.add_module("frozen", nn.BatchNorm2d(1)) or model.frozen.eval()
    predict(model, shade(10))
    assert model.seen[-1][1:3] == (True, False)
    assert (model.training, model.noise.training, extra.training) == (True, False, False)
    model.noise.train()
    model.noise.register_forward_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("broken")))
    with pytest.raises(RuntimeError, match="broken"):
        predict(model, shade(10))
    assert model.noise.training, "also after an error"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_an_answer_that_is_no_number_is_never_a_class(model, value):
    model.weight.data[1] = value
    with pytest.raises(DamagedError) as error:
        predict(model, shade(10))
    assert "\n" not in str(error.value)


def test_faults_of_the_source(model, tmp_path):
    with pytest.raises(NotFoundError, match=r"nowhere\.png"):
        predict(model, tmp_path / "nowhere.png")
    with pytest.raises(DamagedError):
        predict(model, b"no picture")


def test_a_model_that_does_not_say_how_to_prepare_its_pictures():
    with pytest.raises(UsageError, match="mean"):
        predict(Brightness(mean=None), shade(10))


# --- many files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 2, 3, 64])
def test_one_answer_a_file_in_order(model, folder, batch_size):
    (folder / "broken.png").write_bytes(b"no picture")
    (folder / "empty.png").write_bytes(b"")
    shade(255).save("white.png")
    files = ["broken.png", "dark.png", "nowhere.png", "2.png", "white.png", "empty.png", "10.png", "below"]
    answers = list(predict_files(model, files, batch_size=batch_size))
    assert [answer.file for answer in answers] == files
    kinds = [type(answer) for answer in answers]
    assert kinds == [Failure, Prediction, Failure, Prediction, Failure, Failure, Prediction, Failure]
    for answer in answers:
        if isinstance(answer, Failure):
            assert answer.file in answer.message
            assert "\n" not in answer.message
            assert answer.exit_code == (3 if answer.file == "nowhere.png" else 4)
        else:
            alone = predict(model, answer.file)
            assert [label for label, _ in answer.top] == [label for label, _ in alone]
            assert [score for _, score in answer.top] == pytest.approx([score for _, score in alone], abs=1e-6)
            assert (answer.label, answer.score) == answer.top[0]
    assert max(count for *_, count in model.seen) <= batch_size


def test_files_are_read_as_they_are_asked_for(model, folder):
    asked = []

    def names():
        for name in ["dark.png", "2.png", "10.png", "B.PNG"]:
            asked.append(name)
            yield name

    answers = predict_files(model, names(), batch_size=2)
    next(answers)
    assert asked == ["dark.png", "2.png"]
    assert not torch.is_inference_mode_enabled(), "between two answers the caller's own mode holds"
    assert model.training is False
    assert len(list(answers)) == 3


def test_no_files_no_answers(model):
    assert list(predict_files(model, [])) == []


@pytest.mark.parametrize("batch_size", [0, -3])
def test_batch_size_below_one(model, batch_size):
    with pytest.raises(UsageError, match="batch size"):
        list(predict_files(model, ["a.png"], batch_size=batch_size))


def test_an_answer_as_json(model, folder):
    (answer,) = predict_files(model, ["dark.png"], top=2)
    row = json.loads(json.dumps(answer.to_dict()))
    assert row.keys() == {"file", "label", "score", "top"}
    assert (row["file"], row["label"], len(row["top"])) == ("dark.png", "night", 2)
    assert row["top"][0] == {"label": "night", "score": row["score"]}


# --- names of files ---------------------------------------------------------------------------------------------------


def names(words) -> list[str]:
    return [path.as_posix() for path in expand(words)]


def test_files_stay_in_their_order(folder):
    assert names(["dark.png", "2.png", "notes.txt"]) == ["dark.png", "2.png", "notes.txt"]
    assert names([Path("2.png"), "2.png"]) == ["2.png"]


def test_a_folder_is_every_picture_in_it(folder):
    assert names(["."]) == ["2.png", "10.png", "B.PNG", "dark.png"]
    assert names([str(folder), "below"])[-1] == "below/deep.png"


def test_the_folder_of_digits(folder):
    assert [path.stem for path in expand([DIGITS])] == [str(digit) for digit in range(10)]


def test_globs_that_the_shell_did_not_expand(folder):
    assert names(["*0.png"]) == ["10.png"]
    assert names(["?.png", "d*"]) == ["2.png", "dark.png"]
    assert names(["*"]) == ["2.png", "10.png", "B.PNG", "dark.png"]
    assert names(["**/*.png"]) == ["2.png", "10.png", "below/deep.png", "dark.png"]
    assert names(["*.txt"]) == ["notes.txt"]


def test_a_name_that_looks_like_a_glob_and_exists(folder):
    shade(3).save("scan[1].png")
    assert names(["scan[1].png"]) == ["scan[1].png"]


@pytest.mark.parametrize("word", ["nowhere.png", "*.jpg", "nothing", "a" * 5000])
def test_nothing_of_that_name(folder, word):
    with pytest.raises(NotFoundError) as error:
        expand([word])
    assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_does_not_stop_the_others(model, folder):
    files = expand(["dark.png", "nowhere.png", "2.png"])
    assert [type(answer) for answer in predict_files(model, files)] == [Prediction, Failure, Prediction]


def test_a_folder_without_pictures(folder):
    (folder / "void").mkdir()
    with pytest.raises(NotFoundError, match=r"void.*no pictures"):
        expand(["void"])


def test_no_words():
    with pytest.raises(UsageError):
        expand([])


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read(folder):
    (folder / "below").chmod(0)
    try:
        with pytest.raises(DamagedError, match="below"):
            expand(["below"])
    finally:
        (folder / "below").chmod(0o755)


# --- the real model ---------------------------------------------------------------------------------------------------


def trained() -> bool:
    return registry.get("osa-vit-mnist").weights.sha256 is not None


@pytest.fixture(scope="module")
def reader():
    if not trained():  # and only then
        pytest.skip("the registry has no weights of osa-vit-mnist yet")
    return zoo.load("osa-vit-mnist")


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_the_digits_are_read(reader, file):
    label, score = predict(reader, file, top=1)[0]
    assert label == file.stem
    assert score > 0.9


def test_all_digits_at_once(reader):
    answers = list(predict_files(reader, expand([DIGITS]), batch_size=4))
    assert [answer.label for answer in answers] == [str(digit) for digit in range(10)]


def test_a_picture_and_its_negative_get_the_same_answer(reader):
    digit = open_image(DIGITS / "0.png")
    assert predict(reader, digit) == predict(reader, Image.fromarray(255 - np.asarray(digit)))


@pytest.mark.parametrize("how", [{"num_classes": 0}, {"features_only": True, "out_indices": [1]}])
def test_features_are_no_answer(how):
    model = zoo.load("test-osa-vit", pretrained=False, **how)
    with pytest.raises(UsageError, match="no head"):
        zoo.predict(model, DIGITS / "7.png")
    with pytest.raises(UsageError, match="no head"):
        next(predict_files(model, [DIGITS / "7.png"]))
