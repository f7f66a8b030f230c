"""One traced graph of a model: torch.export and its translation to ONNX, with failures told in one line."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import traceback
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from zoo.errors import MissingDependencyError, UsageError, ZooError

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch import Tensor, nn

INPUT, OUTPUT, BATCH = "images", "logits", "batch"
IR_VERSION = 10  # what torch writes; pinned, since a newer one shuts out runtimes that know the operators well
OPSETS = range(18, 24)  # torch implements its operators from 18 on and promises nothing above 23
_LOGGERS = (
    "torch.onnx",
    "torch.export",
    "torch._export",
    "torch.fx",
    "torch._dynamo",
    "onnxscript",
    "onnx_ir",
)


def check_opset(opset: object) -> int:
    """`opset` if it is one that torch writes and ONNX Runtime runs; UsageError naming the range if not."""
    if isinstance(opset, bool) or not isinstance(opset, int) or opset not in OPSETS:
        raise UsageError(f"opset has to be a whole number from {OPSETS[0]} to {OPSETS[-1]}, got {opset!r}")
    return opset


def convert(model: nn.Module, example: Tensor, opset: int) -> ModelProto:
    """The ONNX graph of `model`, with a batch of any size.

    Parameters
    ----------
    model : a module in eval mode that turns images into logits.
    example : (2 or more, channels, height, width); a batch of one would become a constant of the graph.
    opset : one of `OPSETS`.

    Raises
    ------
    MissingDependencyError
        onnx or onnxscript is not installed.
    ZooError
        The model cannot be exported; the message names the operator or the cause, and the layer.
    """
    import torch

    for package in ("onnx", "onnxscript"):
        try:
            __import__(package)
        except ImportError as error:
            raise MissingDependencyError(
                f"ONNX export needs {package}, which is not installed; run: pip install {package}"
            ) from error
    shapes = ({0: torch.export.Dim(BATCH, min=1)},)
    try:
        with _quiet():
            program = torch.onnx.export(
                model,
                (example,),
                dynamo=True,
                dynamic_shapes=shapes,
                opset_version=opset,
                input_names=[INPUT],
                output_names=[OUTPUT],
                verbose=False,
            )
            assert program is not None  # only the exporter before this one returns None
            proto = program.model_proto
    except Exception as error:
        raise _explained(error, model) from error
    _check_graph(proto, model, example, opset)
    _tidy(proto)
    return proto


def _check_graph(proto: ModelProto, model: nn.Module, example: Tensor, opset: int) -> None:
    """The exporter corrects some requests without failing; this makes those failures."""
    real = next((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), None)
    if real != opset:
        raise ZooError(f"the exporter wrote opset {real}, not {opset}; choose another from {OPSETS[0]} to {OPSETS[-1]}")
    if len(proto.graph.input) != 1 or len(proto.graph.output) != 1:
        raise UsageError("only models that turn one tensor of images into one tensor of logits are exported")
    if not proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param:
        where = ""
        try:
            model(example.new_zeros((len(example) + 1, *example.shape[1:])))
        except Exception as error:
            where = f" in {_layer(error, model)}"
        raise ZooError(f"the batch size became a constant of the graph{where}; take it from the tensor's shape instead")


def _tidy(proto: ModelProto) -> None:
    """Pin the IR version, and drop what torch writes beside every node: source lines of the exporting
    machine."""
    proto.ir_version = IR_VERSION
    del proto.graph.metadata_props[:]
    for node in proto.graph.node:
        kept = [prop for prop in node.metadata_props if prop.key == "namespace"]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    for value in (*proto.graph.value_info, *proto.graph.input, *proto.graph.output, *proto.graph.initializer):
        del value.metadata_props[:]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter's progress, graphs and advice kept from the terminal; what matters is in the exception."""
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    try:
        for name in levels:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _explained(error: BaseException, model: nn.Module) -> ZooError:
    """One line for an exporter's failure: the operator or the cause, and the layer it is in."""
    layer = _layer(error, model)
    causes = list(_chain(error))
    text = "\n".join(str(cause) for cause in causes)
    operator = re.search(r"No ONNX function found for <OpOverload\(op='([\w.]+)'", text)
    if operator:
        return ZooError(f"{layer} uses {operator[1]}, which has no ONNX form; write it with matrix products")
    if any("DataDependent" in type(cause).__name__ for cause in causes) or "data-dependent" in text:
        return ZooError(f"{layer} lets a tensor's values decide the program's course; use a fixed count or torch.where")
    root = causes[-1]
    if "entirely functional graph" in str(root):
        return ZooError(f"{layer} writes into a view of a tensor in place, such as its diagonal; write it out of place")
    reason = next((line.strip() for line in str(root).splitlines() if line.strip()), "no reason given")
    return ZooError(f"{layer} cannot be exported: {type(root).__name__}: {reason[:200]}")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _layer(error: BaseException, model: nn.Module) -> str:
    """The innermost layer on the error's stack, as "layer 'blocks.0.attn' (Attention)"."""
    from torch.fx import Node

    names = {id(module): (name, type(module).__name__) for name, module in model.named_modules()}
    found: tuple[str, str] | None = None
    for cause in _chain(error):
        for frame, _ in traceback.walk_tb(cause.__traceback__):
            node: Any = frame.f_locals.get("node")
            stack = node.meta.get("nn_module_stack") if isinstance(node, Node) else None
            if stack:
                path, kind = list(stack.values())[-1]
                found = path, str(getattr(kind, "__name__", kind)).rpartition(".")[-1]
            found = names.get(id(frame.f_locals.get("self")), found)
    if found is None or not found[0]:
        return f"the model ({type(model).__name__})"
    return f"layer {found[0]!r} ({found[1]})"
