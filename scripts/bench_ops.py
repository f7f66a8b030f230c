"""Time every form of orthogonal attention and of the Newton-Schulz transformation against the literal ones.

    python scripts/bench_ops.py                      forward passes at 1,024, 4,096 and 16,384 tokens
    python scripts/bench_ops.py --backward           forward and backward at the shapes of two ViTs
    python scripts/bench_ops.py --memory             peak memory at growing numbers of tokens
    python scripts/bench_ops.py --newton-schulz      the transformation at the shapes of a ViT and of a Swin's first
                                                     stage, batch 128; with --backward, forward and backward

All forms of a shape take turns in one process, warm; a ratio is the median over the rounds of one form's time over
the default form's ("gram"), with the quartiles: 3.0 beside "literal qr" says that the default is three times as fast.
Orthogonal attention is measured beside softmax attention too.
A form that would need more than `--most-seconds` a call is left out and named.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import click
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from zoo.bench import environment
from zoo.bench.protocol import measure, paired_ratio, summarize, synchronizer
from zoo.loading import resolve_device
from zoo.ops import naive, newton_schulz, orthogonal_attention, skew_norm

Form = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
DEFAULT = "gram"
FORMS: dict[str, Form] = {
    DEFAULT: partial(orthogonal_attention, max_norm=8.0),
    "gram, max_norm=None": orthogonal_attention,
    "qr": partial(orthogonal_attention, basis="qr", max_norm=8.0),
    "newton-schulz": partial(orthogonal_attention, basis="newton-schulz", max_norm=8.0),
    "polar-express": partial(orthogonal_attention, basis="polar-express", max_norm=8.0),
    "literal qr": naive.qr_attention,
    "literal newton-schulz": naive.iterated_attention,
    "softmax (sdpa)": lambda q, k, v, alpha: scaled_dot_product_attention(q, k, v),
}
NEWTON_SCHULZ: dict[str, Form] = {  # of v alone
    DEFAULT: lambda q, k, v, alpha: newton_schulz(v),
    "literal": lambda q, k, v, alpha: naive.newton_schulz(v),
    "gram, 2 steps": lambda q, k, v, alpha: newton_schulz(v, steps=2),
    "literal, 2 steps": lambda q, k, v, alpha: naive.newton_schulz(v, steps=2),
}
FORWARD = ((1, 6, 1024, 32), (1, 6, 4096, 64), (1, 6, 16384, 64))
BACKWARD = ((128, 4, 49, 16), (32, 6, 197, 32))
HEADS = ((128, 12, 65, 16), (2048, 3, 16, 32))


def inputs(shape: tuple[int, ...], device: torch.device, backward: bool) -> list[Tensor]:
    """q, k, v and an alpha a head, so that the norm of S is about 3 radians."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(shape, generator=generator).to(device) for _ in range(3))
    alpha = torch.full((shape[1],), 3.0 / max(1e-6, float(skew_norm(q[:1], k[:1], 1.0).max())), device=device)
    return [x.requires_grad_(backward) for x in (q, k, v, alpha)]


def call(form: Form, given: list[Tensor], backward: bool) -> Callable[[], object]:
    """One measured call."""
    if not backward:

        def forward() -> Tensor:
            with torch.inference_mode():
                return form(*given)

        return forward
    grad = torch.randn_like(given[2])
    return lambda: torch.autograd.grad(form(*given), given, grad, allow_unused=True)


def compare(
    forms: dict[str, Form], shape: tuple[int, ...], device: torch.device, backward: bool, rounds: int, most: float
) -> dict[str, Any]:
    """Milliseconds of every form at one shape, and ratios to the default's."""
    given, arms, slow = inputs(shape, device, backward), {}, []
    wait = synchronizer(device) or (lambda: None)
    for name, form in forms.items():
        arm = call(form, given, backward)
        arm()
        wait()
        start = time.perf_counter()
        arm()
        wait()
        if name != DEFAULT and time.perf_counter() - start > most:
            slow.append(name)
        else:
            arms[name] = arm
    times = measure(arms, repeats=rounds, warmup=2, synchronize=synchronizer(device))
    rows = {}
    for name in arms:
        median, low, high = paired_ratio(times[name], times[DEFAULT])
        rows[name] = {
            "p50_ms": round(summarize(times[name]).p50_ms, 4),
            "ratio": round(median, 3),
            "quartiles": [round(low, 3), round(high, 3)],
        }
    what = "forward and backward" if backward else "forward"
    return {"shape": list(shape), "what": what, "forms": rows, "left_out": slow}


def peak(name: str, shape: tuple[int, ...], device: str) -> float:
    """Megabytes that one forward pass adds to the peak memory of a process of its own."""
    command = [sys.executable, __file__, "--probe", name, "--shape", ",".join(map(str, shape)), "--device", device]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def probe(name: str, shape: tuple[int, ...], device: torch.device) -> float:
    """What `peak` starts: the rise of the peak over what the inputs and the libraries take."""
    small = inputs((1, shape[1], 32, shape[3]), device, False)
    call(FORMS[name], small, False)()
    given = inputs(shape, device, False)
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call(FORMS[name], given, False)()
        return (torch.cuda.max_memory_allocated(device) - before) / 1e6
    with torch.profiler.profile(profile_memory=True) as watched:
        call(FORMS[name], given, False)()
    held = most = 0
    for event in watched.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most / 1e6


def shown(rows: list[dict[str, Any]]) -> str:
    """The comparisons as tables."""
    lines = []
    for row in rows:
        lines += [f"{row['what']} at {tuple(row['shape'])}", f"  {'form':24}{'ms':>10}  over {DEFAULT} (quartiles)"]
        for name, each in row["forms"].items():
            low, high = each["quartiles"]
            lines.append(f"  {name:24}{each['p50_ms']:>10.2f}  {each['ratio']:.2f} ({low:.2f} to {high:.2f})")
        lines += [f"  {name:24}{'too slow':>10}" for name in row["left_out"]]
    return "\n".join(lines)


@click.command(help=__doc__.split("\n", maxsplit=1)[0])
@click.option("--tokens", multiple=True, type=click.IntRange(1), help="At (1, 6, TOKENS, 64); repeatable.")
@click.option("--shape", "shapes", multiple=True, help="At BATCH,HEADS,TOKENS,HEAD_DIM; repeatable.")
@click.option("--backward", is_flag=True, help="Forward and backward.")
@click.option("--memory", is_flag=True, help="Peak memory in place of time.")
@click.option("--newton-schulz", "transformation", is_flag=True, help="The Newton-Schulz transformation.")
@click.option("--device", default="cpu", show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=15, show_default=True)
@click.option("--most-seconds", default=20.0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.option("--probe", "probed", hidden=True)
def main(
    tokens: tuple[int, ...],
    shapes: tuple[str, ...],
    backward: bool,
    memory: bool,
    transformation: bool,
    device: str,
    rounds: int,
    most_seconds: float,
    as_json: bool,
    probed: str | None,
) -> None:
    """Measure and print."""
    if memory and transformation:
        raise click.UsageError("--memory measures orthogonal attention: leave out --newton-schulz")
    place = resolve_device(device)
    chosen = [(1, 6, count, 64) for count in tokens]
    for text in shapes:
        parts = text.split(",")
        if len(parts) != 4 or not all(part.strip().isdigit() and int(part) for part in parts):
            raise click.UsageError(f"--shape needs BATCH,HEADS,TOKENS,HEAD_DIM, not {text!r}")
        chosen.append(tuple(map(int, parts)))  # type: ignore[arg-type]
    if probed is not None:
        click.echo(probe(probed, chosen[0], place))
        return
    document: dict[str, Any] = {"environment": environment(), "device": str(place)}
    if memory:
        sizes = chosen or [(1, 6, count, 64) for count in (1024, 2048, 4096, 8192, 16384)]
        document["megabytes"] = [
            {"shape": list(size), **{name: round(peak(name, size, device), 2) for name in (DEFAULT, "softmax (sdpa)")}}
            for size in sizes
        ]
        text = "\n".join(str(row) for row in document["megabytes"])
    else:
        forms = NEWTON_SCHULZ if transformation else FORMS
        usual = HEADS if transformation else BACKWARD if backward else FORWARD
        rows = [compare(forms, shape, place, backward, rounds, most_seconds) for shape in chosen or usual]
        document["comparisons"] = rows
        text = shown(rows)
    click.echo(json.dumps(document, indent=2) if as_json else text)


if __name__ == "__main__":
    main()
