"""`run`: models under the clock, each beside its twin, on every backend, with nothing timed that is not
right."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.bench.arms import SEED, Arm, check_literal, initialised, literal_of, twin_with_weights_of, without_insertion
from zoo.bench.backends import BACKENDS, Call, known, out_of_memory_told
from zoo.bench.environment import environment
from zoo.bench.protocol import (
    NOISY,
    Protocol,
    measure,
    paired_ratio,
    protocol_of,
    round_medians,
    summarize,
    synchronizer,
    torch_threads,
)
from zoo.bench.report import Report, Row
from zoo.bench.subjects import Subject, check_twins, ready, subjects_of, twin_by_facts
from zoo.errors import DeviceError, NotFoundError, UsageError, ZooError
from zoo.modes import takes_text

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import nn


def run(
    names: str | nn.Module | Sequence[str | nn.Module],
    *,
    device: str | torch.device = "cpu",
    batch_size: int | None = None,
    backends: str | Sequence[str] = tuple(BACKENDS),
    repeats: int | None = None,
    warmup: int | None = None,
    threads: int | None = None,
    twin: bool = True,
    protocol: str = "turns",
    rounds: int | None = None,
) -> Report:
    """Time models on a device, each in turn with its twin, the same network with standard attention.

    Parameters
    ----------
    names : what `zoo.load` takes, and modules. A name without weights is timed as it was initialised, always in
        the same way, and the report says so. A module, such as a timm model, is copied and timed in eval
        mode; its `pretrained_cfg` says its name and its input. What `insert_newton_schulz` was called on has itself
        without the insertion as its twin; any other module has one under "paper" alone, by its `zoo_name`.
    device : "cpu", "cuda", "cuda:N" or "mps" (not for ONNX Runtime).
    batch_size : images a call; None takes the protocol's, as do `repeats`, `warmup` and `rounds`.
    backends : of "eager" and "onnxruntime".
    repeats, warmup : calls of each arm that are measured, and calls before them that are not.
    threads : of torch and ONNX Runtime alike; None takes torch's number. It is restored afterwards.
    twin : False leaves the twins out.
    protocol : "turns", where the arms take turns call by call; or "paper", that of arXiv 2609.27735, table 3,
        where the twin carries the model's weights, each of `rounds` rounds runs `repeats` calls of an arm in a
        row, and the mechanism's literal definition is a third arm where its layers have one.

    Raises
    ------
    UsageError
        A number, name or backend that makes no sense; a module that cannot be timed: it does not say its input, is
        compiled, in half precision, or returns no tensor; under "paper" a model without a twin.
    NotFoundError
        An unknown model.
    DeviceError
        The device is not there, or ONNX Runtime does not run on it: never another device instead.
    ValidationError
        A backend's numbers are wrong: then no speed is given at all.
    ZooError
        The batch does not fit in memory.
    """
    from zoo.loading import resolve_device
    from zoo.modes import without_tf32

    plan = protocol_of(protocol, batch_size=batch_size, repeats=repeats, warmup=warmup, rounds=rounds, threads=threads)
    chosen = known(backends)
    place = resolve_device(device)
    if "onnxruntime" in chosen and place.type not in ("cpu", "cuda"):
        raise DeviceError(f"ONNX Runtime does not run on {place}; use cpu or cuda, or the backend eager alone")
    subjects = subjects_of(names, twin)
    if plan.same_weights:
        check_twins(subjects, twin)
    rows: list[Row] = []
    lines: list[str] = []
    with torch_threads(threads) as count, without_tf32():
        for subject in subjects:
            found, said = _time(subject, place, chosen, plan, count)
            rows += found
            lines += said
    facts = environment()
    settings = {"device": _device_name(place), "dtype": "float32", "batch_size": plan.batch_size, "threads": count}
    return Report(
        tuple(rows),
        (*lines, *facts["warnings"]),
        {**settings, "backends": list(chosen), "inputs": "random pixels in the range of each model's data"},
        {"name": protocol, **plan.to_dict(), "threads": count},
        facts,
    )


def _time(
    subject: Subject, place: torch.device, backends: Sequence[str], protocol: Protocol, threads: int
) -> tuple[list[Row], list[str]]:
    """Rows and warnings of one model and what stands beside it: all their arms in the same rounds."""
    arms, lines = _arms(subject, place, protocol)
    with tempfile.TemporaryDirectory(prefix="zoo-bench-") as folder:
        calls: dict[tuple[str, str], Call] = {}
        for arm in arms:
            images = _images(arm.model, protocol.batch_size, place)
            if arm.kind == "literal":
                with _named(arm.label), out_of_memory_told(protocol.batch_size):
                    check_literal(arms[0].model, arm.model, images)
            for backend in backends:
                with _named(f"{arm.label} on {backend}"):
                    inside = Path(folder) / str(len(calls))
                    calls[arm.kind, backend] = BACKENDS[backend](arm.model, images, threads, inside)
        # Neighbours in a round are what a ratio compares, so the arms of one backend stand side by side.
        ordered = {f"{arm.kind} {backend}": calls[arm.kind, backend] for backend in backends for arm in arms}
        with out_of_memory_told(protocol.batch_size):
            times = measure(
                ordered,
                repeats=protocol.repeats,
                warmup=protocol.warmup,
                rounds=protocol.rounds,
                synchronize=synchronizer(place),
            )
    twin = next((arm.name for arm in arms if arm.kind == "twin"), None)
    rows = []
    for arm in arms:
        for backend in backends:
            mine = times[f"{arm.kind} {backend}"]
            paired = twin is not None and arm.kind != "twin"
            ratio = paired_ratio(mine, times[f"twin {backend}"]) if paired else None
            rows.append(_row(arm, backend, protocol, times=mine, twin=twin if paired else None, ratio=ratio))
    lines += [
        f"{row.model} on {row.backend}: the middle half of the calls spreads over {row.latency.spread:.0%} of the"
        f" median, more than {NOISY:.0%}; the machine is busy, measure again"
        for row in rows
        if row.latency.noisy
    ]
    return rows, lines


@contextlib.contextmanager
def _named(what: str) -> Iterator[None]:
    """What is raised says of whom it speaks."""
    try:
        yield
    except ZooError as error:
        raise type(error)(f"{what}: {error}") from error


def _arms(subject: Subject, place: torch.device, protocol: Protocol) -> tuple[list[Arm], list[str]]:
    """The model, its twin, its literal definition, as far as there are and the protocol wants them; and
    warnings."""
    name = subject.name
    if subject.module is None:
        model, weights = _load(name, place)
    else:
        model, weights = ready(name, subject.module, place), "given"
    arms, lines = [Arm(name, "model", model, weights)], []
    if subject.inserted:
        arms.append(Arm(f"{name} (without insertion)", "twin", without_insertion(model), weights))
    elif protocol.same_weights:
        other = subject.twin or twin_by_facts(name, model)
        twin = twin_with_weights_of(model, other, place)
        if twin is not None:
            arms.append(Arm(other, "twin", twin, weights))
        elif subject.twin is None:
            raise UsageError(f"the weights of {name} do not fit the twin {other}, and the protocol paper times one set")
        else:
            lines.append(f"the weights of {name} do not fit its twin {other}, which was timed with its own")
            arms.append(Arm(other, "twin", *_load(other, place)))
    elif subject.twin is not None:
        arms.append(Arm(subject.twin, "twin", *_load(subject.twin, place)))
    shared = protocol.same_weights and not lines  # what is said of the model's weights is said of the twin's
    literal = literal_of(model) if protocol.same_weights else None
    if literal is not None:
        arms.append(Arm(name, "literal", literal, weights))
    lines += [
        f"{arm.name} has no weights here and was timed as it was initialised (seed {SEED})"
        for arm in (arms[:1] if shared else arms)
        if arm.weights == "own initialisation" and arm.kind != "literal"
    ]
    return arms, lines


def _row(
    arm: Arm,
    backend: str,
    protocol: Protocol,
    *,
    times: np.ndarray,
    twin: str | None,
    ratio: tuple[float, float, float] | None,
) -> Row:
    from zoo.export.onnx import state_sha256

    latency = summarize(times)
    return Row(
        model=arm.label,
        backend=backend,
        weights=arm.weights,
        parameters=sum(parameter.numel() for parameter in arm.model.parameters()),
        batch_size=protocol.batch_size,
        latency=latency,
        images_per_second=1e3 * protocol.batch_size / latency.mean_ms if latency.mean_ms else 0.0,
        twin=twin,
        ratio=ratio,
        arm=arm.kind,
        state_sha256=state_sha256(arm.model),
        round_medians_ms=None
        if protocol.rounds is None
        else tuple(float(value) / 1e6 for value in round_medians(times)),
    )


def _load(name: str, place: torch.device) -> tuple[nn.Module, str]:
    """The model on its device, and whether its weights are "trained" or its "own initialisation"."""
    from zoo import registry
    from zoo.loading import load

    try:
        model = load(name, device=place)
        if takes_text(model):
            raise UsageError(f"{name} is a language model; only image models are timed so far")
        return model, "trained"
    except NotFoundError:
        entry = registry.entries().get(name)
        if entry is None or entry.weights.sha256 is not None:  # unknown, or weights that exist and cannot be had
            raise
    return initialised(name, place), "own initialisation"


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
