"""`to_onnx`: a model as one ONNX file that takes batches of any size, checked before it gets its name."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.errors import UsageError, ValidationError, ZooError, one_line
from zoo.export.capture import INPUT, OUTPUT, check_opset, convert
from zoo.export.files import destination
from zoo.export.samples import noise_for
from zoo.export.validate import Validation, validate_onnx
from zoo.files import staged
from zoo.modes import evaluating, takes_text

if TYPE_CHECKING:
    import torch
    from onnx import ModelProto
    from torch import Tensor, nn

ONE_FILE = 1_500_000_000  # bytes; the format ends at 2 GiB, and passes over the file need room for their own
_PREPROCESSING = ("input_size", "mean", "std", "interpolation", "crop_pct", "crop_mode", "framing")


@dataclass(frozen=True)
class OnnxReport:
    """What was written, and how it was checked.

    `files` are the ONNX file and, for models above 1.5 GB, its weights; `bytes` is their size together.
    `samples` says what the check ran on. `validation` is None where the check was declined.
    """

    path: Path
    files: tuple[Path, ...]
    bytes: int
    opset: int
    ir_version: int
    nodes: int
    samples: str
    validation: Validation | None
    metadata: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON takes it."""
        return {**asdict(self), "path": str(self.path), "files": [str(file) for file in self.files]}

    def __str__(self) -> str:
        check = "not checked"
        if self.validation is not None:
            batches = ", ".join(map(str, self.validation.batches))
            check = (
                f"equals torch at batch {batches} to {self.validation.max_difference:.1e}, "
                f"{self.validation.agreed}/{self.validation.compared} classes the same, on {self.samples}"
            )
        return f"{self.path}: {self.bytes / 1e6:.2f} MB, opset {self.opset}, {check}"


def to_onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    opset: int = 20,
    validate: bool = True,
    samples: Tensor | None = None,
) -> OnnxReport:
    """Write `model` as ONNX: "images" (batch, channels, height, width) -> "logits" (batch, classes).

    The file gets its name only after ONNX Runtime gave torch's numbers at batch 1, 2, 3 and 17 (see
    `zoo.export.validate`); until then a file of that name stays what it was. It carries its facts (name,
    labels, preprocessing, versions, hashes) as metadata. The model itself comes back unchanged, in the mode
    it was in.

    Parameters
    ----------
    model : a float32 image classifier, on any device. Its `pretrained_cfg` says the size of an image.
    path : ends in .onnx; missing folders are made.
    opset : version of the ONNX operators, 18 to 23.
    validate : False skips the check.
    samples : (count, channels, height, width), float32, normalised: what to check on. None takes noise in the
        range of the model's pixels; real images say more.

    Raises
    ------
    UsageError
        An opset out of range, a path that cannot be written, a model or samples of another kind.
    MissingDependencyError
        onnx, onnxscript or onnxruntime is not installed.
    ZooError
        The model cannot be exported: names the operator and the layer. Or the disk is full.
    ValidationError
        ONNX Runtime does not compute what torch computes. Nothing is written.
    """
    import torch

    check_opset(opset)
    target = destination(path, ".onnx")
    place = _check_model(model)
    cfg: Mapping[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    with staged(target) as draft:
        with evaluating(model):
            inputs, source = _inputs(model, cfg, samples)
            example = inputs[torch.arange(2) % len(inputs)].to(place)
            _check_output(model, example)
            proto = convert(model, example, opset)
        facts = _facts(model, cfg, opset)
        for key, value in facts.items():
            proto.metadata_props.add(key=key, value=value)
        nodes, ir_version = len(proto.graph.node), proto.ir_version
        _save(proto, draft)
        del proto
        validation = None
        if validate:
            try:
                validation = validate_onnx(model, draft, inputs)
            except ZooError as error:
                kind = ValidationError if error.exit_code != 1 else type(error)
                reason = str(error).replace(str(draft), "the file")
                raise kind(f"{_name(model, cfg)}: {reason}; {target} was not written") from error
        sizes = {file.name: file.stat().st_size for file in draft.parent.iterdir()}
    return OnnxReport(
        path=target,
        files=tuple(target.with_name(name) for name in sorted(sizes)),
        bytes=sum(sizes.values()),
        opset=opset,
        ir_version=ir_version,
        nodes=nodes,
        samples=source,
        validation=validation,
        metadata=facts,
    )


def _check_model(model: nn.Module) -> torch.device:
    """The device of `model`, if it is a float32 module that has its weights."""
    import torch

    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"a torch module is needed, such as zoo.load gives, got {type(model).__name__}")
    if takes_text(model):
        raise UsageError("this is a language model; only image models are exported so far")
    place = torch.device("cpu")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_floating_point() and tensor.dtype is not torch.float32:
            raise UsageError(f"export takes float32 models; {name} is {tensor.dtype}: load with dtype=torch.float32")
        place = tensor.device
    if place.type == "meta":
        raise UsageError("the model is on the meta device and has no weights; load it on cpu or cuda")
    return place


def _inputs(model: nn.Module, cfg: Mapping[str, Any], samples: Tensor | None) -> tuple[Tensor, str]:
    """Images to trace and to check with, on the CPU, and what they are in words."""
    import torch

    if samples is None:
        return noise_for(model)
    if not isinstance(samples, torch.Tensor) or samples.dim() != 4 or len(samples) == 0:
        shape = tuple(getattr(samples, "shape", ()))
        raise UsageError(f"samples are a tensor of (count, channels, height, width), got {shape}")
    if not samples.is_floating_point():
        raise UsageError(f"samples are normalised images in float32, got {samples.dtype}")
    size = cfg.get("input_size")
    if size and tuple(samples.shape[1:]) != tuple(size):
        raise UsageError(f"the model takes images of {tuple(size)}, the samples are {tuple(samples.shape[1:])}")
    return samples.detach().to("cpu", torch.float32), f"{len(samples)} given images"


def _check_output(model: nn.Module, example: Tensor) -> None:
    import torch

    try:
        logits = model(example)
    except Exception as error:
        reason = one_line(error)[:200]
        raise UsageError(f"the model does not take images of {tuple(example.shape)}: {reason}") from error
    if not isinstance(logits, torch.Tensor) or logits.dim() != 2 or len(logits) != len(example):
        kind = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise UsageError(f"export takes models that return logits of (batch, classes); this one returns {kind}")


def _name(model: nn.Module, cfg: Mapping[str, Any]) -> str:
    return str(cfg.get("zoo_name") or cfg.get("architecture") or type(model).__name__)


def _facts(model: nn.Module, cfg: Mapping[str, Any], opset: int) -> dict[str, str]:
    """What the file says about itself. Lists and mappings are JSON."""
    import torch

    try:
        version = metadata.version("attention-zoo")
    except metadata.PackageNotFoundError:
        version = "unknown"
    facts = {
        "zoo_version": version,
        "model": _name(model, cfg),
        "architecture": str(cfg.get("architecture") or type(model).__name__),
        "opset": str(opset),
        "torch_version": torch.__version__,
        "state_sha256": state_sha256(model),
        "input": INPUT,
        "output": OUTPUT,
    }
    if cfg.get("label_names"):
        facts["labels"] = json.dumps(list(cfg["label_names"]))
    preprocessing = {key: cfg[key] for key in _PREPROCESSING if cfg.get(key) is not None}
    if preprocessing:
        facts["preprocessing"] = json.dumps(preprocessing)
    return facts


def state_sha256(model: nn.Module) -> str:
    """SHA-256 over names, types, shapes and bytes of the model's state, in the order of the names."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().tobytes() if len(flat) else b"")
    return digest.hexdigest()


def _save(proto: ModelProto, path: Path) -> None:
    """One file where it fits, else the weights in NAME.onnx.data beside it."""
    import onnx

    if sum(len(tensor.raw_data) for tensor in proto.graph.initializer) <= ONE_FILE:
        path.write_bytes(proto.SerializeToString())
    else:
        onnx.save_model(proto, path, save_as_external_data=True, location=path.name + ".data")
