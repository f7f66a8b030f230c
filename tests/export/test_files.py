from __future__ import annotations

import errno
import os
from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

import zoo.export.onnx as module
from zoo.errors import UsageError, ValidationError, ZooError
from zoo.export import OnnxModel, to_onnx
from zoo.export.files import destination


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def damage(proto: onnx.ModelProto) -> None:
    """Change one weight of the graph, and nothing of its form."""
    for tensor in proto.graph.initializer:
        if tensor.name == "head.bias":
            values = onnx.numpy_helper.to_array(tensor).copy()
            values[0] += 0.5
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
            return
    raise AssertionError("no such weight")


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exporter that gets a weight wrong."""
    right = module.convert

    def convert(*args: object) -> onnx.ModelProto:
        proto = right(*args)
        damage(proto)
        return proto

    monkeypatch.setattr(module, "convert", convert)


@pytest.mark.usefixtures("wrong")
def test_a_wrong_file_never_gets_its_name(tiny: nn.Module, digits: Tensor, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"tiny-model: .* differ by 0\.5 at batch 1; allowed are") as caught:
        to_onnx(tiny, tmp_path / "a" / "b" / "model.onnx", samples=digits)
    assert caught.value.exit_code == 6
    assert "was not written" in str(caught.value)
    assert left(tmp_path) == []


@pytest.mark.usefixtures("wrong")
def test_a_wrong_file_leaves_the_one_before_alone(tiny: nn.Module, digits: Tensor, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"the one before")
    with pytest.raises(ValidationError):
        to_onnx(tiny, path, samples=digits)
    assert path.read_bytes() == b"the one before"
    assert left(tmp_path) == ["model.onnx"]
    report = to_onnx(tiny, path, samples=digits, validate=False)  # on demand, unchecked, and the report says so
    assert report.validation is None
    assert "not checked" in str(report)


def test_the_same_path_twice(tiny: nn.Module, digits: Tensor, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    first = to_onnx(tiny, path, samples=digits)
    with torch.no_grad():
        tiny.head.bias += 1
    second = to_onnx(tiny, path, samples=digits)
    assert left(tmp_path) == ["model.onnx"]
    assert first.metadata["state_sha256"] != second.metadata["state_sha256"]
    assert OnnxModel(path).metadata == second.metadata


@pytest.mark.parametrize("name", ["a b/ü–模型.onnx", "deep/er/model.ONNX", "model.v1.2.onnx"])
def test_any_name(name: str, tiny: nn.Module, digits: Tensor, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    report = to_onnx(tiny, name, samples=digits)
    assert report.path == tmp_path / name
    assert report.path.is_file()
    assert (report.path.stat().st_mode & 0o777) == 0o666 & ~umask()
    monkeypatch.chdir("/")
    moved = tmp_path / "moved.onnx"
    report.path.rename(moved)
    assert OnnxModel(moved)(digits).shape == (23, 4)
    assert OnnxModel(os.path.relpath(moved, "/"))(digits).shape == (23, 4)


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("name", ["model", "model.pt", "model.onnx.data", "", " ", "a\0b.onnx", None, b"model.onnx"])
def test_a_name_without_the_suffix_is_refused(name: object) -> None:
    with pytest.raises(UsageError, match=r"\.onnx"):
        destination(name, ".onnx")  # type: ignore[arg-type]


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder.onnx").mkdir()
    for name in (tmp_path, tmp_path / "folder.onnx", f"{tmp_path}/new.onnx/"):
        with pytest.raises(UsageError, match="is a folder; name a file in it"):
            destination(name, ".onnx")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.EPERM])
def test_a_read_only_folder_is_known_before_any_work(
    code: int, tiny: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Path.mkdir

    def refuse(path: Path, *args: object, **kwargs: object) -> None:
        if path.suffix == ".tmp":
            raise OSError(code, os.strerror(code))
        make(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(module, "convert", lambda *args: pytest.fail("worked in vain"))
    with pytest.raises(UsageError, match=f"cannot write .*{os.strerror(code)}; choose"):
        to_onnx(tiny, tmp_path / "new" / "model.onnx")
    assert left(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_really_is_read_only(tiny: nn.Module, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(UsageError, match="cannot write"):
            to_onnx(tiny, tmp_path / "model.onnx")
    finally:
        tmp_path.chmod(0o700)


def test_a_full_disk_leaves_nothing(tiny: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"the one before")

    def half(self: Path, data: bytes) -> int:
        with self.open("wb") as stream:
            stream.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(ZooError, match="No space left on device; make room") as caught:
        to_onnx(tiny, path)
    assert caught.value.exit_code == 1
    assert path.read_bytes() == b"the one before"
    assert left(tmp_path) == ["model.onnx"]
