from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

import zoo.export.onnx as module
from zoo.errors import MissingDependencyError, UsageError, ValidationError, ZooError
from zoo.export import OnnxModel, samples_of, to_onnx
from zoo.export.samples import noise


def left(folder: Path) -> list[str]:
    """Every file and folder below, hidden ones too."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_the_file_computes_what_the_module_computes(tiny: nn.Module, digits: Tensor, tmp_path: Path) -> None:
    report = to_onnx(tiny, tmp_path / "model.onnx", samples=digits)
    assert left(tmp_path) == ["model.onnx"]  # one file: no weights beside it
    assert report.path == tmp_path / "model.onnx"
    assert report.bytes == report.path.stat().st_size
    assert report.samples == "23 given images"
    check = report.validation
    assert check is not None
    assert (check.batches, check.compared, check.agreed) == ((1, 2, 3, 17), 23, 23)
    assert check.max_difference < 1e-5
    exported = OnnxModel(report.path)
    for batch in (1, 2, 3, 5, 17, 40):
        images = torch.randn(batch, 1, 8, 8)
        np.testing.assert_allclose(exported(images), tiny(images).detach().numpy(), atol=1e-5)
    json.dumps(report.to_dict(), allow_nan=False)
    assert "equals torch at batch 1, 2, 3, 17" in str(report)


def test_the_file_says_what_it_is(tiny: nn.Module, digits: Tensor, tmp_path: Path) -> None:
    to_onnx(tiny, tmp_path / "model.onnx", samples=digits)
    proto = onnx.load(tmp_path / "model.onnx")
    facts = {prop.key: prop.value for prop in proto.metadata_props}
    assert proto.ir_version == 10
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", 20)]
    assert facts["model"] == "tiny-model"
    assert facts["architecture"] == "tiny"
    assert facts["opset"] == "20"
    assert facts["torch_version"] == torch.__version__
    assert facts["zoo_version"]
    assert json.loads(facts["labels"]) == ["none", "ones", "deux", "drei"]
    stated = json.loads(facts["preprocessing"])
    assert (stated["input_size"], stated["mean"], stated["std"]) == ([1, 8, 8], [0.25], [0.5])
    assert OnnxModel(tmp_path / "model.onnx").metadata == facts
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    # No source line or path of the machine that exported it.
    assert b".py" not in (tmp_path / "model.onnx").read_bytes()


def test_the_hash_follows_the_weights(tiny: nn.Module) -> None:
    before = module.state_sha256(tiny)
    assert before == module.state_sha256(tiny)
    with torch.no_grad():
        tiny.head.bias[0] += 1e-3
    assert before != module.state_sha256(tiny)
    assert module.state_sha256(nn.Identity())


@pytest.mark.parametrize("opset", [18, 23])
def test_both_ends_of_the_opset_range(opset: int, tiny: nn.Module, tmp_path: Path) -> None:
    report = to_onnx(tiny, tmp_path / "model.onnx", opset=opset)
    assert report.opset == opset
    assert onnx.load(report.path).opset_import[0].version == opset


@pytest.mark.parametrize("opset", [0, 11, 17, 24, 28, -1, "abc", "20", 20.0, True, None])
def test_other_opsets_are_refused_before_any_work(opset: object, tiny: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="from 18 to 23"):
        to_onnx(tiny, tmp_path / "new" / "model.onnx", opset=opset)
    assert left(tmp_path) == []


def test_without_samples_noise_is_taken_and_named(tiny: nn.Module, tmp_path: Path) -> None:
    state = torch.get_rng_state()
    report = to_onnx(tiny, tmp_path / "model.onnx")
    assert report.samples == "23 images of noise"
    assert torch.equal(torch.get_rng_state(), state)


def test_noise_stays_where_the_model_answers(tmp_path: Path, tiny_with) -> None:
    """A layer that answers NaN beyond its range, as attention with a fixed computation does."""

    class Bounded(nn.Module):
        limit = 1e9

        def forward(self, x: Tensor) -> Tensor:
            return torch.where(x.abs().amax((1, 2, 3), keepdim=True) < self.limit, x, torch.nan)

    layer = Bounded()
    model = tiny_with(layer)
    nn.init.zeros_(model.stem.bias)
    with torch.no_grad():
        layer.limit = 0.6 * float(model.blocks[:2](model.stem(noise(model.pretrained_cfg))).abs().max())
    report = to_onnx(model, tmp_path / "model.onnx")
    assert report.samples == "23 images of noise at contrast 0.5"
    with pytest.raises(ValidationError, match="torch itself gives no finite numbers"):
        to_onnx(model, tmp_path / "model.onnx", samples=torch.full((3, 1, 8, 8), 1e3))


def test_fewer_samples_than_a_batch_are_taken_again(tiny: nn.Module, digits: Tensor, tmp_path: Path) -> None:
    report = to_onnx(tiny, tmp_path / "model.onnx", samples=digits[:1])
    assert report.validation is not None
    assert report.validation.compared == 23


def test_the_model_comes_back_as_it_was(tiny: nn.Module, digits: Tensor, tmp_path: Path) -> None:
    tiny.train()
    tiny.blocks[0].eval()
    modes = [child.training for child in tiny.modules()]
    state = {name: tensor.clone() for name, tensor in tiny.state_dict().items()}
    with torch.autocast("cpu", torch.bfloat16):  # the caller's, and none of the export's business
        report = to_onnx(tiny, tmp_path / "model.onnx", samples=digits)
    assert [child.training for child in tiny.modules()] == modes
    assert all(torch.equal(tensor, state[name]) for name, tensor in tiny.state_dict().items())
    assert all(parameter.requires_grad for parameter in tiny.parameters())
    assert report.validation is not None
    assert "Dropout" not in {node.op_type for node in onnx.load(report.path).graph.node}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_refused(dtype: torch.dtype, tiny: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"float32 models; stem.weight is {dtype}: load with"):
        to_onnx(tiny.to(dtype), tmp_path / "model.onnx")
    assert left(tmp_path) == []


def test_a_model_without_weights_or_module_is_refused(tiny: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="meta device"):
        to_onnx(tiny.to("meta"), tmp_path / "model.onnx")
    with pytest.raises(UsageError, match=r"a torch module is needed.*got str"):
        to_onnx("osa-vit-mnist", tmp_path / "model.onnx")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        (torch.zeros(0, 1, 8, 8), "count, channels"),
        (torch.zeros(1, 8, 8), "count, channels"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), "normalised images in float32"),
        (torch.zeros(2, 3, 8, 8), r"takes images of \(1, 8, 8\)"),
        ([1.0], "count, channels"),
    ],
)
def test_samples_of_another_kind_are_refused(samples: Tensor, said: str, tiny: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        to_onnx(tiny, tmp_path / "new" / "model.onnx", samples=samples)
    assert left(tmp_path) == []


def test_a_bare_module_needs_samples(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    with pytest.raises(UsageError, match="samples="):
        to_onnx(model, tmp_path / "model.onnx")
    report = to_onnx(model, tmp_path / "model.onnx", samples=torch.randn(4, 1, 8, 8))
    assert report.metadata["model"] == "Sequential"
    assert "labels" not in report.metadata


@pytest.mark.parametrize("answer", ["tokens", "tuple", "wrong size"])
def test_only_classifiers_are_exported(answer: str, tmp_path: Path) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> object:
            return {"tokens": x, "tuple": (x.flatten(1),)}[answer]

    with pytest.raises(UsageError, match=r"returns? logits|does not take images"):
        to_onnx(Odd(), tmp_path / "model.onnx", samples=torch.randn(2, 1, 8, 8))


class Inverse(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.inv(x + 4 * torch.eye(x.shape[-1]))


class UntilConverged(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        while x.norm() > 1:
            x = x * 0.5
        return x


class FixedBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(2, 4, 4, 4)


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (Inverse(), r"layer 'blocks\.1\.1' \(Inverse\) uses aten\.linalg_inv_ex, which has no ONNX form"),
        (UntilConverged(), r"layer 'blocks\.1\.1' \(UntilConverged\) lets a tensor's values decide"),
        (FixedBatch(), r"batch size became a constant of the graph in layer 'blocks\.1\.1' \(FixedBatch\)"),
    ],
)
def test_what_cannot_be_exported_is_named_with_its_layer(
    layer: nn.Module, said: str, tiny_with, digits: Tensor, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ZooError, match=said) as caught:
        to_onnx(tiny_with(layer), tmp_path / "new" / "model.onnx", samples=digits)
    assert caught.value.exit_code == 1
    assert "\n" not in str(caught.value)
    assert left(tmp_path) == []
    assert capfd.readouterr() == ("", "")


def test_a_quiet_export(tiny: nn.Module, tmp_path: Path, capfd: pytest.CaptureFixture[str], recwarn) -> None:
    to_onnx(tiny, tmp_path / "model.onnx")
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named_with_its_command(
    package: str, tiny: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(MissingDependencyError, match=f"pip install {package}"):
        to_onnx(tiny, tmp_path / "model.onnx")
    assert left(tmp_path) == []


def test_weights_beside_the_file_where_one_file_is_too_small(
    tiny: nn.Module, digits: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ONE_FILE", 100)
    monkeypatch.chdir(tmp_path)
    with torch.no_grad():
        tiny.head = nn.Linear(64, 40)  # above the size that the format keeps in the file
    report = to_onnx(tiny, "big/model.onnx", samples=digits)
    assert left(tmp_path) == ["big", "big/model.onnx", "big/model.onnx.data"]
    assert report.files == (tmp_path / "big/model.onnx", tmp_path / "big/model.onnx.data")
    assert report.bytes == sum(file.stat().st_size for file in report.files)
    monkeypatch.chdir("/")  # found by the file's place, not by the working directory
    np.testing.assert_allclose(OnnxModel(report.path)(digits), tiny(digits).detach().numpy(), atol=1e-5)


def test_real_digits(data_dir: Path) -> None:
    from zoo.data import open_dataset
    from zoo.data.preprocessing import Preprocessing

    config = {"input_size": (1, 28, 28), "mean": (0.1307,), "std": (0.3081,)}
    preprocessing = Preprocessing.from_config(config)
    dataset = open_dataset("mnist", "test", data_dir)
    samples = samples_of(dataset, preprocessing)
    assert samples.shape == (23, 1, 28, 28)
    assert samples.dtype == torch.float32
    expected = (dataset.images[:23].float() / 255 - 0.1307) / 0.3081
    torch.testing.assert_close(samples, expected)
    smaller = Preprocessing.from_config({**config, "input_size": (1, 14, 14)})
    assert samples_of(dataset, smaller, 2).shape == (2, 1, 14, 14)
    with pytest.raises(UsageError, match="at least one image"):
        samples_of(dataset, preprocessing, 0)
