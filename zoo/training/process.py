"""The process a training runs in: its accelerator, its signals, its progress bar; all given back afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from zoo.errors import UsageError


@contextlib.contextmanager
def accelerator_on(device: torch.device, precision: str) -> Iterator[Accelerator]:
    """An Accelerator on exactly `device`, or on the device of its rank where `accelerate launch` started several.

    `precision` is "no", "bf16" or "fp16" (which brings a gradient scaler). Raises UsageError for fp16 on the CPU.
    """
    if precision == "fp16" and device.type == "cpu":
        raise UsageError("precision fp16 needs a GPU; on the CPU use bf16 or no")
    name = "ACCELERATE_TORCH_DEVICE"
    before = os.environ.get(name)
    if world_size() == 1:
        os.environ[name] = str(device)
    # accelerate keeps its settings for the life of the process; a second training may want others.
    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        accelerator = Accelerator(mixed_precision=precision, cpu=device.type == "cpu")
        cuda = [accelerator.device] if accelerator.device.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda):
            yield accelerator
        accelerator.end_training()
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


def world_size() -> int:
    """How many processes train together, as their launcher says."""
    return int(os.environ.get("WORLD_SIZE", "1"))


class StopSignal:
    """Ctrl-C or SIGTERM as a wish, so that the step in hand ends and the state is saved. A second one interrupts."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._wished = threading.Event()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._wished.is_set():
            raise KeyboardInterrupt
        self._wished.set()

    def arrived(self) -> bool:
        """Whether any process got a signal: all stop after the same step, or they would wait for each other forever."""
        if self._accelerator.num_processes == 1:
            return self._wished.is_set()
        if self._wished.is_set():
            self._accelerator.set_trigger()
        return self._accelerator.check_trigger()


def progress_bar(total: int, done: int, name: str, *, shown: bool, unit: str = "step") -> Any:
    """tqdm's bar on stderr, counting steps or what `unit` says."""
    from tqdm import tqdm

    return tqdm(total=total, initial=done, disable=not shown, desc=name, unit=unit, dynamic_ncols=True)
