"""What runs a model under the clock: torch as it is, and ONNX Runtime on a file that was checked before."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.errors import UsageError, ValidationError, ZooError

if TYPE_CHECKING:
    from torch import Tensor, nn

Call = Callable[[], object]
Builder = Callable[["nn.Module", "Tensor", int, Path], Call]


def eager(model: nn.Module, images: Tensor, threads: int, folder: Path) -> Call:
    """The module itself, called by torch.

    images: (batch, channels, height, width), float32, on the model's device. Raises ValidationError if the
    answer is no number, since such a speed says nothing.
    """
    import torch

    def call() -> Tensor:
        with torch.inference_mode():
            return model(images)

    with out_of_memory_told(len(images)):
        if not bool(call().isfinite().all()):
            raise ValidationError("torch gives no finite numbers on the benchmark's images; no speed is measured")
    return call


def onnxruntime(model: nn.Module, images: Tensor, threads: int, folder: Path) -> Call:
    """The model exported to `folder`, validated, and run by ONNX Runtime on the device of `images`.

    Nothing is timed before two checks: the export's own, and the logits of the very call that is timed, on
    the device and batch it is timed on, against torch. Raises ValidationError, or what `zoo.export.to_onnx`
    raises.
    """
    import torch

    from zoo.export import OnnxModel, to_onnx
    from zoo.export.validate import agreement

    path = to_onnx(model, folder / "model.onnx").path
    with out_of_memory_told(len(images)):
        run, logits = OnnxModel(path, images.device, threads=threads).bind(images)
        run()
        with torch.inference_mode():
            expected = model(images)
    agreement(expected.cpu().numpy(), logits.cpu().numpy(), where=f" at batch {len(images)} on {images.device}")
    return run


BACKENDS: dict[str, Builder] = {"eager": eager, "onnxruntime": onnxruntime}


def known(names: object) -> tuple[str, ...]:
    """`names` (one, or several) as backends to run, in the order given; UsageError naming the choices if
    not."""
    wanted = (names,) if isinstance(names, str) else tuple(names) if isinstance(names, (list, tuple)) else ()
    if not wanted or any(name not in BACKENDS for name in wanted) or len(set(wanted)) != len(wanted):
        raise UsageError(f"backends are one or more of {', '.join(BACKENDS)}, each once; got {names!r}")
    return wanted


@contextlib.contextmanager
def out_of_memory_told(batch: int) -> Iterator[None]:
    """A line about the batch size instead of the allocator's report."""
    import torch

    line = f"a batch of {batch} does not fit in memory; choose a smaller one"
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise ZooError(line) from error
    except RuntimeError as error:
        if "not enough memory" in str(error) or "can't allocate" in str(error) or "out of memory" in str(error):
            raise ZooError(line) from error
        raise
