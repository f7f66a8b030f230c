from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from zoo.errors import DamagedError, DeviceError, MissingDependencyError, NotFoundError, UsageError
from zoo.export import OnnxModel, open_session, to_onnx

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="what happens where there is no GPU")


@no_gpu
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:7", torch.device("cuda", 1)])
def test_no_silent_run_on_the_cpu(
    device: object, path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(path.parent)
    with pytest.raises(DeviceError, match="cuda") as caught:
        open_session(path.name, device)
    assert caught.value.exit_code == 5
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")  # the reason is in the line, not in a screen of native messages


class Fake:
    """A session that was created somewhere else than it was asked to be."""

    asked: tuple = ()

    def __init__(self, file: str, options: object, **kwargs: object) -> None:
        type(self).asked = (file, kwargs)

    def get_providers(self) -> list[str]:
        return ["CPUExecutionProvider"]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    monkeypatch.setattr("onnxruntime.InferenceSession", Fake)
    monkeypatch.setattr("onnxruntime.preload_dlls", lambda: print("Failed to load libcublas"))
    return Fake


def test_a_provider_that_fell_back_is_an_error(
    path: Path, fake: type[Fake], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    everything = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: everything)
    with pytest.raises(DeviceError, match=r"cannot use cuda:1 \(it would run on CPUExecutionProvider\)"):
        open_session(path, "cuda:1")
    file, kwargs = fake.asked
    assert Path(file).is_absolute()
    # What was asked for and nothing that stands before it in ONNX Runtime's own order; no second try on the CPU.
    providers = kwargs["providers"]
    assert providers == [("CUDAExecutionProvider", {"device_id": 1, "use_tf32": "0"}), "CPUExecutionProvider"]
    assert kwargs["enable_fallback"] == 0
    assert capfd.readouterr() == ("", "")


def test_the_cpu_is_asked_for_by_name(path: Path, fake: type[Fake]) -> None:
    open_session(path, "cpu")
    assert fake.asked[1]["providers"] == ["CPUExecutionProvider"]


def test_a_build_without_cuda(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(DeviceError, match="pip install onnxruntime-gpu"):
        open_session(path, "cuda")


@pytest.mark.parametrize("device", ["mps", "tpu", "cuda:-1", "cuda:x", "CUDA", "", None, "cpu:0"])
def test_devices_that_onnxruntime_does_not_know(device: object, path: Path) -> None:
    with pytest.raises(DeviceError, match="use cpu, cuda or cuda:N"):
        open_session(path, device)


def test_onnxruntime_missing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(MissingDependencyError, match="pip install onnxruntime"):
        open_session(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
        (b"\n<!DOCTYPE html><html></html>", "web page"),
        (b"PK\x03\x04 no model at all", "no ONNX model"),
    ],
)
def test_files_that_are_no_model(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(DamagedError, match=said) as caught:
        open_session(tmp_path / "model.onnx")
    assert "\n" not in str(caught.value)


def test_a_cut_file(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DamagedError, match="no ONNX model that ONNX Runtime can read"):
        open_session(path)
    assert capfd.readouterr() == ("", "")


def test_weights_left_behind(tiny: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.export.onnx.ONE_FILE", 100)
    tiny.head = nn.Linear(64, 40)
    to_onnx(tiny, tmp_path / "model.onnx", validate=False)
    (tmp_path / "model.onnx.data").unlink()
    with pytest.raises(DamagedError, match="weights"):
        open_session(tmp_path / "model.onnx")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="zoo export"):
        open_session(tmp_path / "model.onnx")
    with pytest.raises(UsageError, match="is a folder"):
        open_session(tmp_path)


def test_what_goes_in(path: Path, tiny: nn.Module, digits: Tensor) -> None:
    exported = OnnxModel(path)
    expected = tiny(digits).detach().numpy()
    for images in (digits, digits.numpy(), digits.double(), digits.numpy().astype(np.float64), digits.requires_grad_()):
        answer = exported(images)
        assert isinstance(answer, np.ndarray)
        np.testing.assert_allclose(answer, expected, atol=1e-5)
    strided = digits.detach().transpose(-1, -2)
    np.testing.assert_allclose(exported(strided), tiny(strided).detach().numpy(), atol=1e-5)
    assert exported(digits.detach().half()).shape == (23, 4)
    assert exported(digits[:0].detach()).shape == (0, 4)
    for images, said in (
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), "normalised to floating point"),
        (torch.zeros(2, 3, 8, 8), r"of shape \(batch, 1, 8, 8\), got \(2, 3, 8, 8\)"),
        (torch.zeros(8, 8), "of shape"),
    ):
        with pytest.raises(UsageError, match=said):
            exported(images)


def test_bound_calls_read_and_write_in_place(path: Path, tiny: nn.Module, digits: Tensor) -> None:
    images = digits[:3].clone()
    run, logits = OnnxModel(path, threads=1).bind(images)
    run()
    torch.testing.assert_close(logits, tiny(images).detach(), atol=1e-5, rtol=0)
    images.mul_(0.5)
    run()
    torch.testing.assert_close(logits, tiny(images).detach(), atol=1e-5, rtol=0)
    for odd in (digits.double(), digits.transpose(-1, -2)):
        with pytest.raises(UsageError, match="contiguous float32"):
            OnnxModel(path).bind(odd)
