from __future__ import annotations

import gc
import time

import numpy as np
import pytest
import torch

from zoo.bench.protocol import Protocol, measure, paired_ratio, summarize, torch_threads, whole_number
from zoo.errors import UsageError


def test_arms_take_turns_and_the_order_is_reversed() -> None:
    calls: list[str] = []
    times = measure({name: lambda name=name: calls.append(name) for name in "abc"}, repeats=4, warmup=1)
    assert "".join(calls) == "abc" + "abc" + "cba" + "abc" + "cba"
    assert {name: values.shape for name, values in times.items()} == dict.fromkeys("abc", (4,))
    assert all((values > 0).all() for values in times.values())


def test_the_clock_stops_after_the_device_is_done() -> None:
    """A device that works on after the call came back: its time counts, what it still had to do before does
    not."""
    events: list[str] = []
    pending = [0.0]

    def launch() -> None:
        events.append("call")
        pending[0] += 0.005

    def synchronize() -> None:
        events.append("wait")
        time.sleep(pending[0])
        pending[0] = 0.0

    times = measure({"arm": launch}, repeats=3, warmup=1, synchronize=synchronize)
    assert events == ["call", "wait"] + ["wait", "call", "wait"] * 3
    assert (times["arm"] >= 5e6).all()


def test_garbage_collection_is_off_and_comes_back() -> None:
    seen = []
    assert gc.isenabled()
    measure({"arm": lambda: seen.append(gc.isenabled())}, repeats=2, warmup=0)
    assert seen == [False, False]
    with pytest.raises(ZeroDivisionError):
        measure({"arm": lambda: 1 / 0}, repeats=1, warmup=0)
    assert gc.isenabled()


def test_summary() -> None:
    summary = summarize(np.arange(1, 101) * 1_000_000)
    assert (summary.n, summary.p50_ms, summary.mean_ms) == (100, 50.5, 50.5)
    assert summary.p90_ms == pytest.approx(90.1)
    assert summary.p99_ms == pytest.approx(99.01)
    assert summary.spread == pytest.approx(49.5 / 50.5)
    assert summary.noisy
    assert not summarize(np.full(5, 1_000_000)).noisy


def test_ratio_is_taken_round_by_round() -> None:
    """Drift that both arms share leaves the ratio alone, though it is far larger than the difference."""
    drift = np.linspace(1e6, 9e6, 33)
    assert paired_ratio(1.25 * drift, drift) == pytest.approx((1.25, 1.25, 1.25))


def test_threads_come_back() -> None:
    before = torch.get_num_threads()
    with torch_threads(1) as count:
        assert count == torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    with pytest.raises(ZeroDivisionError), torch_threads(1):
        raise ZeroDivisionError
    assert torch.get_num_threads() == before
    with torch_threads(None) as count:
        assert count == before


@pytest.mark.parametrize("value", [0, -1, 11, 2.0, "2", True, None])
def test_whole_numbers(value: object) -> None:
    assert whole_number("n", 10, 1, 10) == 10
    with pytest.raises(UsageError, match="n has to be a whole number from 1 to 10"):
        whole_number("n", value, 1, 10)


@pytest.mark.parametrize("wrong", [{"repeats": 0}, {"warmup": -1}, {"threads": 0}, {"threads": 10**9}])
def test_protocols_that_make_no_sense(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Protocol(**wrong)


def matmul(size: int, batch: int = 1) -> tuple[torch.Tensor, float]:
    """A product whose cost is known: (its operand, floating-point operations)."""
    return torch.randn(batch, size, size), 2.0 * batch * size**3


def test_known_cost() -> None:
    """Products of known cost: speeds are below what any processor reaches, and twice the work is not free."""
    with torch_threads(1):
        small, once = matmul(128, 8)
        large, twice = matmul(128, 16)
        times = measure({"small": lambda: small @ small, "large": lambda: large @ large}, repeats=300, warmup=20)
    # The fastest call is what the processor can do; load from elsewhere only ever adds to it. A call takes less than a
    # scheduler's turn, a few milliseconds, so that some of the many are undisturbed on a busy machine too.
    speeds = [cost / times[name].min() for name, cost in (("small", once), ("large", twice))]
    assert all(0.1 < speed < 2000 for speed in speeds), f"{speeds} GFLOP/s on one thread"
    assert 1.4 < times["large"].min() / times["small"].min() < 3.0
