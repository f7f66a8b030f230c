"""An exported file beside the module it came from: the same names, shapes and types, the same numbers.

Tolerance. Both sides compute in float32 and sum in different orders, which leaves a few units in the last
place of the largest value on the way: 1e-6 of the largest logit is typical, whatever the depth. A wrong
lowering, weight or shape is far outside. So logits agree if they differ by at most 1e-5 + 1e-4 * (the largest
magnitude in the batch): two orders above rounding, and below what could change the answer for any image whose
two best logits lie 2e-4 of that apart.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zoo.errors import UsageError, ValidationError, one_line

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from zoo.export.session import OnnxModel

BATCHES = (1, 2, 3, 17)
ATOL, RTOL = 1e-5, 1e-4


@dataclass(frozen=True)
class Validation:
    """What was compared, and how well it agreed.

    `max_difference` and `largest` (magnitude) are in logits; `agreed` of `compared` images have the same
    first class. Where all logits agree, classes can differ only for an image whose two best logits are within
    twice the tolerance.
    """

    batches: tuple[int, ...]
    max_difference: float
    largest: float
    atol: float
    rtol: float
    compared: int
    agreed: int


def validate_onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    samples: Tensor,
    *,
    batches: Sequence[int] = BATCHES,
    atol: float = ATOL,
    rtol: float = RTOL,
) -> Validation:
    """Compare the ONNX file at `path`, run by ONNX Runtime on the CPU, with `model`, run by torch in float32.

    On CUDA the model's convolutions run without TF32, which is worth three digits less.

    Parameters
    ----------
    model : the module that was exported, in eval mode.
    samples : (count, channels, height, width), float32, normalised; taken in turn, and again from the start.
    batches : the batch sizes to run.
    atol, rtol : see the module's docstring.

    Raises
    ------
    ValidationError
        A name, shape or type is not what was promised, a value is no number, or logits or classes differ.
    DamagedError, DeviceError
        As `open_session`.
    """
    import numpy as np
    import torch

    from zoo.export.session import OnnxModel
    from zoo.modes import evaluating, without_tf32

    if len(samples) == 0 or not batches:
        raise UsageError("validation needs at least one sample and one batch size")
    _check_form(path)
    exported = OnnxModel(path)
    place = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    worst = largest = 0.0
    agreed = compared = start = 0
    for batch in batches:
        images = samples[torch.arange(start, start + batch) % len(samples)].to(torch.float32)
        start += batch
        with evaluating(model), without_tf32():
            expected = model(images.to(place)).float().cpu().numpy()
        if compared == 0:
            _check_signature(exported, tuple(images.shape[1:]), expected.shape[1])
        try:
            got = exported(images)
        except Exception as error:
            reason = one_line(error)[:200]
            raise ValidationError(f"ONNX Runtime does not run it at batch {batch}: {reason}") from error
        difference, same = agreement(expected, got, atol=atol, rtol=rtol, where=f" at batch {batch}")
        worst = max(worst, difference)
        largest = max(largest, float(np.abs(expected).max()))
        agreed, compared = agreed + same, compared + batch
    return Validation(tuple(batches), worst, largest, atol, rtol, compared, agreed)


def agreement(
    expected: np.ndarray, got: np.ndarray, *, atol: float = ATOL, rtol: float = RTOL, where: str = ""
) -> tuple[float, int]:
    """The largest difference of two arrays of logits (batch, classes), and how many rows have the same class.

    Raises
    ------
    ValidationError
        Shape, type, a value that is no number, or a difference above the tolerance.
    """
    import numpy as np

    if got.shape != expected.shape or got.dtype != np.float32:
        raise ValidationError(f"ONNX Runtime gives {got.dtype} {got.shape}{where}, and torch float32 {expected.shape}")
    for name, values in (("torch itself", expected), ("ONNX Runtime", got)):
        bad = int((~np.isfinite(values)).any(axis=1).sum())
        if bad:
            raise ValidationError(f"{name} gives no finite numbers for {bad} of {len(values)} images{where}")
    tolerance = atol + rtol * float(np.abs(expected).max(initial=0.0))
    difference = float(np.abs(expected.astype(np.float64) - got).max(initial=0.0))
    if difference > tolerance:
        raise ValidationError(f"ONNX Runtime and torch differ by {difference:.2g}{where}; allowed are {tolerance:.2g}")
    return difference, int((expected.argmax(axis=1) == got.argmax(axis=1)).sum())


def _check_signature(exported: OnnxModel, size: tuple[int, ...], classes: int) -> None:
    """One input and one output of the promised names, types and shapes, both with a batch of any size."""
    from zoo.export.capture import INPUT, OUTPUT

    for kind, values, name, rest in (
        ("input", exported.inputs, INPUT, list(size)),
        ("output", exported.outputs, OUTPUT, [classes]),
    ):
        found = [(value.name, value.type, value.shape[1:]) for value in values]
        if found != [(name, "tensor(float)", rest)]:
            raise ValidationError(f"the {kind} should be ({name!r}, 'tensor(float)', {rest}), the file has {found}")
        if isinstance(values[0].shape[0], int):
            raise ValidationError(f"the {kind} {name!r} has a fixed batch of {values[0].shape[0]}")


def _check_form(path: str | os.PathLike[str]) -> None:
    """The rules of the format, by path: a large model does not fit in one message."""
    import onnx

    try:
        onnx.checker.check_model(os.fspath(path), full_check=True)
    except Exception as error:
        reason = one_line(error)[:200]
        raise ValidationError(f"the file breaks a rule of ONNX: {reason}") from error
