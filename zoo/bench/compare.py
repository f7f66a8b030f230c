"""`run`: models under the clock, each beside its twin, on every backend, with nothing timed that is not
right."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.bench.backends import BACKENDS, Call, known, out_of_memory_told
from zoo.bench.environment import environment
from zoo.bench.protocol import (
    NOISY,
    Protocol,
    measure,
    paired_ratio,
    summarize,
    synchronizer,
    torch_threads,
    whole_number,
)
from zoo.bench.report import Report, Row
from zoo.errors import DeviceError, NotFoundError, UsageError, ZooError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import nn

_LARGEST = 1 << 24


def run(
    names: str | Sequence[str],
    *,
    device: str | torch.device = "cpu",
    batch_size: int = 1,
    backends: str | Sequence[str] = tuple(BACKENDS),
    repeats: int = 50,
    warmup: int = 10,
    threads: int | None = None,
    twin: bool = True,
) -> Report:
    """Time models on a device, each in turn with its twin, the same network with standard attention.

    Parameters
    ----------
    names : what `zoo.load` takes. A model without weights is timed as it was initialised, and the report says
        so.
    device : "cpu", "cuda", "cuda:N" or "mps" (not for ONNX Runtime).
    batch_size : images a call.
    backends : of "eager" and "onnxruntime".
    repeats, warmup : rounds that are measured, and rounds before them that are not.
    threads : of torch and ONNX Runtime alike; None takes torch's number. It is restored afterwards.
    twin : False leaves the twins out.

    Raises
    ------
    UsageError
        A number, name or backend that makes no sense.
    NotFoundError
        An unknown model.
    DeviceError
        The device is not there, or ONNX Runtime does not run on it: never another device instead.
    ValidationError
        A backend's numbers are wrong: then no speed is given at all.
    ZooError
        The batch does not fit in memory.
    """
    from zoo.export.capture import without_tf32
    from zoo.loading import resolve_device

    wanted = [names] if isinstance(names, str) else list(names)
    if not wanted:
        raise UsageError("no model to time; name one, `zoo list` shows them")
    whole_number("batch_size", batch_size, 1, _LARGEST)
    chosen = known(backends)
    protocol = Protocol(repeats, warmup, threads)
    place = resolve_device(device)
    if "onnxruntime" in chosen and place.type not in ("cpu", "cuda"):
        raise DeviceError(f"ONNX Runtime does not run on {place}; use cpu or cuda, or the backend eager alone")
    rows: list[Row] = []
    lines: list[str] = []
    with torch_threads(threads) as count, without_tf32():
        for name, other in _pairs(wanted, twin):
            found, said = _time(name, other, place, batch_size, chosen, protocol, count)
            rows += found
            lines += said
    facts = environment()
    settings = {"device": _device_name(place), "dtype": "float32", "batch_size": batch_size, "threads": count}
    return Report(
        tuple(rows),
        (*lines, *facts["warnings"]),
        {**settings, "backends": list(chosen), "inputs": "random pixels in the range of each model's data"},
        {**protocol.to_dict(), "threads": count},
        facts,
    )


def _pairs(names: Sequence[str], twin: bool) -> list[tuple[str, str | None]]:
    """Each name with its twin. Who is in the list only as another's twin is not timed a second time."""
    from zoo import registry

    known_names = registry.entries()
    pairs = []
    for name in dict.fromkeys(names):
        entry = known_names.get(name)
        pairs.append((name, entry.twin if entry is not None and twin else None))
    covered = {other for _, other in pairs}
    return [(name, other) for name, other in pairs if other is not None or name not in covered]


def _time(
    name: str,
    other: str | None,
    place: torch.device,
    batch_size: int,
    backends: Sequence[str],
    protocol: Protocol,
    threads: int,
) -> tuple[list[Row], list[str]]:
    """Rows and warnings of one model and its twin: all their arms in the same rounds."""
    models = {each: _load(each, place) for each in (name, other) if each is not None}
    with tempfile.TemporaryDirectory(prefix="zoo-bench-") as folder:
        arms: dict[tuple[str, str], Call] = {}
        for each, (model, _) in models.items():
            images = _images(model, batch_size, place)
            for backend in backends:
                inside = Path(folder) / str(len(arms))
                try:
                    arms[each, backend] = BACKENDS[backend](model, images, threads, inside)
                except ZooError as error:
                    raise type(error)(f"{each} on {backend}: {error}") from error
        # Neighbours in a round are what a ratio compares, so the arms of one backend stand side by side.
        ordered = {f"{each} {backend}": arms[each, backend] for backend in backends for each in models}
        with out_of_memory_told(batch_size):
            times = measure(
                ordered,
                repeats=protocol.repeats,
                warmup=protocol.warmup,
                synchronize=synchronizer(place),
            )
    rows = []
    for each, (model, weights) in models.items():
        for backend in backends:
            mine = times[f"{each} {backend}"]
            paired = other is not None and each == name
            ratio = paired_ratio(mine, times[f"{other} {backend}"]) if paired else None
            rows.append(_row(each, backend, weights, model, batch_size, mine, other if paired else None, ratio))
    lines = [
        f"{each} has no weights here and was timed as it was initialised"
        for each, (_, weights) in models.items()
        if weights != "trained"
    ]
    lines += [
        f"{row.model} on {row.backend}: the middle half of the calls spreads over {row.latency.spread:.0%} of the"
        f" median, more than {NOISY:.0%}; the machine is busy, measure again"
        for row in rows
        if row.latency.noisy
    ]
    return rows, lines


def _row(
    name: str,
    backend: str,
    weights: str,
    model: nn.Module,
    batch_size: int,
    times: np.ndarray,
    twin: str | None,
    ratio: tuple[float, float, float] | None,
) -> Row:
    latency = summarize(times)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    speed = 1e3 * batch_size / latency.mean_ms if latency.mean_ms else 0.0
    return Row(name, backend, weights, parameters, batch_size, latency, speed, twin, ratio)


def _load(name: str, place: torch.device) -> tuple[nn.Module, str]:
    """The model on its device, and whether its weights are "trained" or its "own initialisation"."""
    from zoo import registry
    from zoo.loading import load

    try:
        return load(name, device=place), "trained"
    except NotFoundError:
        entry = registry.entries().get(name)
        if entry is None or entry.weights.sha256 is not None:  # unknown, or weights that exist and cannot be had
            raise
    return load(name, pretrained=False, device=place), "own initialisation"


def _images(model: nn.Module, batch_size: int, place: torch.device) -> Any:
    """Random images for `model`, once it is certain that they and its activations fit in memory."""
    from zoo.export.samples import noise_for

    one, _ = noise_for(model, 1)
    need, free = batch_size * _bytes_an_image(model, one.to(place)), _free_memory(place)
    if free is not None and need > free:
        raise ZooError(
            f"a batch of {batch_size} needs about {need / 2**30:.1f} GiB and {free / 2**30:.1f} are free;"
            " choose a smaller one"
        )
    with out_of_memory_told(batch_size):
        return noise_for(model, batch_size)[0].to(place)


def _bytes_an_image(model: nn.Module, one: torch.Tensor) -> int:
    """A modest estimate: the image twice (it is made, then moved) and thrice the largest output of any
    layer."""
    import torch

    largest = one.nbytes

    def look(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal largest
        if isinstance(output, torch.Tensor):
            largest = max(largest, output.nbytes)

    hooks = [module.register_forward_hook(look) for module in model.modules()]
    try:
        with torch.inference_mode():
            model(one)
    finally:
        for hook in hooks:
            hook.remove()
    return 2 * one.nbytes + 3 * largest


def _free_memory(place: torch.device) -> int | None:
    """Bytes that can still be had on `place`; None where the system does not tell."""
    import torch

    if place.type == "cuda":
        return torch.cuda.mem_get_info(place)[0]
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _device_name(place: torch.device) -> str:
    import torch

    from zoo.bench.environment import cpu_model

    if place.type == "cuda":
        return f"{place} {torch.cuda.get_device_name(place)}"
    return f"{place} {cpu_model()}" if place.type == "cpu" else str(place)
