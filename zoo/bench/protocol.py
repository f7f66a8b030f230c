"""How time is taken: warm-up, wall clock around a synchronised call, all arms in turn in every round.

A machine's speed drifts with heat, load and frequency. Arms that are measured one after another carry that
drift in their difference; arms that take turns share it. So each round runs every arm once, in an order that
is reversed from round to round, and arms are compared round by round.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from zoo.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import torch

NOISY = 0.2  # an interquartile range above this part of the median is worth a warning
_MOST_THREADS = 1024


@dataclass(frozen=True)
class Protocol:
    """`repeats` rounds are measured after `warmup` rounds that are not. `threads`: of torch and of ONNX
    Runtime."""

    repeats: int = 50
    warmup: int = 10
    threads: int | None = None

    def __post_init__(self) -> None:
        whole_number("repeats", self.repeats, 1, 1_000_000)
        whole_number("warmup", self.warmup, 0, 1_000_000)
        if self.threads is not None:
            whole_number("threads", self.threads, 1, _MOST_THREADS)

    def to_dict(self) -> dict[str, Any]:
        """The protocol in words and numbers, ready for JSON."""
        return {
            **asdict(self),
            "clock": "time.perf_counter_ns around one call, the device synchronised before and after",
            "order": "every arm once a round, the order reversed from round to round",
            "mode": "torch.inference_mode, garbage collection off, ONNX Runtime's threads stop spinning after a run",
            "precision": "float32; TF32 off in cuDNN's convolutions, as in ONNX Runtime; products as torch has them",
            "images_per_second": "images of all rounds / time of all rounds",
            "ratio": "median over the rounds of model / twin, with the quartiles",
        }


@dataclass(frozen=True)
class Summary:
    """One arm's latencies in milliseconds a call; `spread` is the interquartile range as a part of the
    median."""

    n: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    mean_ms: float
    spread: float

    @property
    def noisy(self) -> bool:
        """Whether the machine was too busy for the figures to be taken as they are."""
        return self.spread > NOISY


def measure(
    arms: Mapping[str, Callable[[], object]],
    *,
    repeats: int,
    warmup: int,
    synchronize: Callable[[], object] | None = None,
) -> dict[str, np.ndarray]:
    """Nanoseconds of every call: name of the arm -> int64 of shape (repeats,), where position i is round i.

    Parameters
    ----------
    arms : what is timed, by name.
    synchronize : waits until the device has done what it was given; None where calls return when they are
        done.
    """
    import numpy as np

    wait = synchronize or (lambda: None)
    names = list(arms)
    times = {name: np.zeros(repeats, dtype=np.int64) for name in names}
    for _ in range(warmup):
        for name in names:
            arms[name]()
            wait()
    with _no_garbage_collection():
        for turn in range(repeats):
            for name in names if turn % 2 == 0 else reversed(names):
                call = arms[name]
                wait()
                start = time.perf_counter_ns()
                call()
                wait()
                times[name][turn] = time.perf_counter_ns() - start
    return times


def summarize(nanoseconds: np.ndarray) -> Summary:
    """Percentiles of one arm's calls."""
    import numpy as np

    p25, p50, p75, p90, p99 = (float(value) / 1e6 for value in np.percentile(nanoseconds, (25, 50, 75, 90, 99)))
    mean = float(nanoseconds.mean()) / 1e6
    return Summary(len(nanoseconds), p50, p90, p99, mean, (p75 - p25) / p50 if p50 else 0.0)


def paired_ratio(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float, float]:
    """Median and quartiles, (p50, p25, p75), of ours / theirs round by round."""
    import numpy as np

    p25, p50, p75 = np.percentile(ours / np.maximum(theirs, 1), (25, 50, 75))
    return float(p50), float(p25), float(p75)


def synchronizer(device: torch.device) -> Callable[[], object] | None:
    """What waits for `device`; None for the CPU, whose calls return when they are done."""
    import torch

    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    if device.type == "mps":
        return torch.mps.synchronize
    return None


@contextlib.contextmanager
def torch_threads(count: int | None) -> Iterator[int]:
    """torch on `count` threads (None: as many as it has now); yields the number, and restores it
    afterwards."""
    import torch

    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield torch.get_num_threads()
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def whole_number(name: str, value: object, low: int, high: int) -> int:
    """`value` if it is a whole number within the bounds, else a UsageError that names them."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UsageError(f"{name} has to be a whole number from {low} to {high}, got {value!r}")
    return value


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
