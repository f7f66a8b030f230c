"""How time is taken: warm-up, wall clock around a synchronised call, all arms in turn in every round.

A machine's speed drifts with heat, load and frequency. Arms that are measured one after another carry that
drift in their difference; arms that take turns share it. So each round runs every arm, in an order that is
reversed from round to round, and arms are compared round by round. The protocol "turns" runs an arm once a
round, in many rounds; "paper", which is that of arXiv 2609.27735, table 3, runs it many times in a row, in few.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from zoo.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import torch

NOISY = 0.2  # an interquartile range above this part of the median is worth a warning
_MOST_THREADS = 1024
_LARGEST_BATCH = 1 << 24


@dataclass(frozen=True)
class Protocol:
    """How often, and with which weights.

    `rounds` None: in each of `repeats` rounds every arm runs once, after `warmup` rounds that are not measured.
    A number: in each of so many rounds every arm runs `warmup` times unmeasured, then `repeats` times.
    `same_weights`: the twin carries the model's, as does the literal definition, which is timed too where the model's
    layers have one. `batch_size`: images a call. `threads`: of torch and of ONNX Runtime.
    """

    repeats: int = 50
    warmup: int = 10
    threads: int | None = None
    rounds: int | None = None
    batch_size: int = 1
    same_weights: bool = False

    def __post_init__(self) -> None:
        whole_number("batch_size", self.batch_size, 1, _LARGEST_BATCH)
        whole_number("repeats", self.repeats, 1, 1_000_000)
        whole_number("warmup", self.warmup, 0, 1_000_000)
        if self.rounds is not None:
            whole_number("rounds", self.rounds, 1, 1_000_000)
        if self.threads is not None:
            whole_number("threads", self.threads, 1, _MOST_THREADS)

    def to_dict(self) -> dict[str, Any]:
        """The protocol in words and numbers, ready for JSON."""
        facts = {
            **asdict(self),
            "clock": "time.perf_counter_ns around one call, the device synchronised before and after",
            "order": "every arm once a round, the order reversed from round to round",
            "mode": "torch.inference_mode, garbage collection off, ONNX Runtime's threads stop spinning after a run",
            "precision": "float32; TF32 off in cuDNN's convolutions, as in ONNX Runtime; products as torch has them",
            "images_per_second": "images of all rounds / time of all rounds",
            "ratio": "median over the rounds of model / twin, with the quartiles",
        }
        if self.rounds is not None:
            facts["order"] = "in a round every arm's warm-up and calls in a row, the order reversed from round to round"
            facts["ratio"] = "median of a round's calls, model / twin round by round, then median and range over rounds"
        if self.same_weights:
            facts["weights"] = "the twin and the literal definition carry the model's"
        return facts


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
    rounds: int | None = None,
    synchronize: Callable[[], object] | None = None,
) -> dict[str, np.ndarray]:
    """Nanoseconds of every call: name of the arm -> int64 of shape (repeats,), where position i is round i.

    With `rounds` (see `Protocol`) the shape is (rounds, repeats).

    Parameters
    ----------
    arms : what is timed, by name.
    synchronize : waits until the device has done what it was given; None where calls return when they are
        done.
    """
    import numpy as np

    wait = synchronize or (lambda: None)
    names = list(arms)
    first, turns, before, calls = (warmup, repeats, 0, 1) if rounds is None else (0, rounds, warmup, repeats)
    times = {name: np.zeros((turns, calls), dtype=np.int64) for name in names}
    for _ in range(first):
        for name in names:
            arms[name]()
            wait()
    with _no_garbage_collection():
        for turn in range(turns):
            for name in names if turn % 2 == 0 else reversed(names):
                call = arms[name]
                for _ in range(before):
                    call()
                    wait()
                wait()
                for position in range(calls):
                    start = time.perf_counter_ns()
                    call()
                    wait()
                    times[name][turn, position] = time.perf_counter_ns() - start
    return {name: found[:, 0] if rounds is None else found for name, found in times.items()}


def summarize(nanoseconds: np.ndarray) -> Summary:
    """Percentiles of one arm's calls."""
    import numpy as np

    p25, p50, p75, p90, p99 = (float(value) / 1e6 for value in np.percentile(nanoseconds, (25, 50, 75, 90, 99)))
    mean = float(nanoseconds.mean()) / 1e6
    return Summary(nanoseconds.size, p50, p90, p99, mean, (p75 - p25) / p50 if p50 else 0.0)


def paired_ratio(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float, float]:
    """Median and spread of ours / theirs round by round.

    (p50, p25, p75) over many rounds of one call, shape (rounds,); median, least and largest over few rounds of many
    calls, shape (rounds, calls), whose medians are compared.
    """
    import numpy as np

    low, high = (25, 75) if ours.ndim == 1 else (0, 100)
    ratios = round_medians(ours) / np.maximum(round_medians(theirs), 1)
    least, middle, most = np.percentile(ratios, (low, 50, high))
    return float(middle), float(least), float(most)


def round_medians(nanoseconds: np.ndarray) -> np.ndarray:
    """(rounds, calls) -> (rounds,); rounds of one call, (rounds,), are their own."""
    import numpy as np

    return nanoseconds if nanoseconds.ndim == 1 else np.median(nanoseconds, axis=1)


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


PROTOCOLS: dict[str, Protocol] = {
    "turns": Protocol(),
    "paper": Protocol(repeats=200, warmup=50, rounds=3, batch_size=128, same_weights=True),
}


def protocol_of(name: object, **changes: Any) -> Protocol:
    """The protocol of this name; of the changes, those that are None are none. UsageError for what makes no sense."""
    found = PROTOCOLS.get(name) if isinstance(name, str) else None
    if found is None:
        raise UsageError(f"protocols are {' and '.join(PROTOCOLS)}; got {name!r}")
    if found.rounds is None and changes.get("rounds") is not None:
        raise UsageError(f"rounds belong to the protocol paper; in the protocol {name} their number is that of repeats")
    return replace(found, **{key: value for key, value in changes.items() if value is not None})
