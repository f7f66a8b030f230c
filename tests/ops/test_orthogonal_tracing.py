"""Orthogonal attention of fixed `max_norm` through torch.compile, torch.export, ONNX and functional transforms."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.ops import orthogonal_attention

SIMPLE = {  # what an exported graph may hold besides views: products and elementwise operators
    *("add", "addcmul", "baddbmm", "bmm", "cat", "clone", "detach", "div", "eq", "eye", "full", "le", "linear", "mul"),
    *("neg", "sub", "sum", "where", "copy", "diagonal", "_to_copy", "scalar_tensor", "logical_not", "fill"),
    *("view", "permute", "select", "unbind", "expand", "unsqueeze", "squeeze", "slice", "transpose", "t", "addmm"),
    *("alias", "arange", "sym_size", "_assert_tensor_metadata", "empty", "mm"),
}


class Attention(nn.Module):
    """The least model around the op: (batch, tokens, 8) -> the same, two heads."""

    def __init__(self, max_norm: float | None) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.qkv = nn.Linear(8, 24, bias=False)
        self.qkv.weight.data.normal_(std=0.5, generator=generator)
        self.alpha = nn.Parameter(torch.tensor([0.05, -0.1]))
        self.max_norm = max_norm

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = orthogonal_attention(q, k, v, self.alpha, max_norm=self.max_norm, key_mask=key_mask)
        return y.transpose(1, 2).reshape(batch, tokens, 8)


def images(batch: int, seed: int = 1) -> Tensor:
    return torch.randn(batch, 9, 8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("backend", "max_norm"), [("eager", 40.0), ("aot_eager", 8.0)])
@pytest.mark.usefixtures("fresh_dynamo")
def test_compiles_whole_and_once_for_every_batch(backend: str, max_norm: float) -> None:
    model = Attention(max_norm)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
        for batch in range(2, 12):
            with torch._dynamo.config.patch(error_on_recompile=batch > 2):
                x, y = images(batch).requires_grad_(), images(batch).requires_grad_()
                found, plain = compiled(x), model(y)
                torch.testing.assert_close(found, plain, rtol=0, atol=1e-5)
                if batch in (2, 7):
                    grads = torch.autograd.grad(found.square().sum(), (x, model.alpha))
                    truth = torch.autograd.grad(plain.square().sum(), (y, model.alpha))
                    for grad, true in zip(grads, truth, strict=True):
                        torch.testing.assert_close(grad, true, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("max_norm", "masked"), [(8.0, True), (40.0, False)])
def test_exports_to_products_and_elementwise_operators(max_norm: float, masked: bool) -> None:
    model = Attention(max_norm)
    mask = torch.ones(3, 9, dtype=torch.bool)
    mask[1, 4:] = False
    args = (images(3), mask) if masked else (images(3),)
    dynamic = tuple({0: torch.export.Dim.DYNAMIC} for _ in args)
    program = torch.export.export(model, args, dynamic_shapes=dynamic, strict=False)
    core = program.run_decompositions()
    used = {str(node.target).split(".")[1] for node in core.graph.nodes if "aten." in str(node.target)}
    assert used <= SIMPLE
    for batch in (1, 2, 5):
        inputs = (images(batch), torch.rand(batch, 9) < 0.7) if masked else (images(batch),)
        torch.testing.assert_close(program.module()(*inputs), model(*inputs), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("max_norm", "masked"), [(8.0, True), (40.0, False)])
@pytest.mark.filterwarnings("ignore")
def test_onnx_agrees_at_every_batch(max_norm: float, masked: bool, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = Attention(max_norm).eval()
    args = (images(3), torch.ones(3, 9, dtype=torch.bool)) if masked else (images(3),)
    dynamic = tuple({0: torch.export.Dim.DYNAMIC} for _ in args)
    path = tmp_path / "attention.onnx"
    torch.onnx.export(model, args, path, dynamo=True, dynamic_shapes=dynamic, opset_version=20, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_inputs()]
    for batch in (1, 2, 3, 17):
        x = images(batch)
        x[0] *= 10.0  # a matrix beyond max_norm: NaN there too, and there alone
        inputs = (x, torch.rand(batch, 9) < 0.7) if masked else (x,)
        (out,) = session.run(None, {name: value.numpy() for name, value in zip(names, inputs, strict=True)})
        with torch.no_grad():
            expected = model(*inputs)
        torch.testing.assert_close(torch.from_numpy(out), expected, rtol=0, atol=1e-5, equal_nan=True)


def test_a_bound_from_the_data_cannot_be_exported() -> None:
    with pytest.raises(UsageError, match="max_norm"):
        torch.export.export(Attention(None), (images(3),), strict=False)


def test_traces_to_torchscript_that_can_be_saved_also_while_gradients_are_followed(tmp_path: Path) -> None:
    model = Attention(8.0)
    traced = torch.jit.trace(model, images(3))
    torch.jit.save(traced, tmp_path / "model.pt")
    torch.testing.assert_close(torch.jit.load(tmp_path / "model.pt")(images(3)), model(images(3)), rtol=0, atol=1e-5)
