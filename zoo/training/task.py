"""What the trainer asks of what it trains: a model, samples by their number, a loss, figures, a folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from zoo.training.job import Job


class Task(ABC):
    """One kind of training: pictures with their classes, or text.

    Attributes
    ----------
    job : what is trained, on what, how, and where to.
    model : in training mode, on the CPU.
    size : how many samples an epoch goes over, each `repeats` times.
    data_facts : by which a resumed training knows its data.
    library : whose model it is, for the record of versions.
    samples : what they are called. unit, per_sample : what speed is counted in, and how many of them a sample has.
    split : what is tested on while it trains, as the log calls it.
    """

    library: ClassVar[str]
    samples: ClassVar[str]
    unit: ClassVar[str]
    split: ClassVar[str]
    job: Job
    model: nn.Module
    size: int
    data_facts: dict[str, Any]
    repeats: int = 1
    per_sample: int = 1

    @abstractmethod
    def to(self, device: torch.device) -> None:
        """Move the data to learn from to where batches are cut from them."""

    @abstractmethod
    def describe(self) -> str:
        """The data in one line."""

    @abstractmethod
    def difference(self, found: Mapping[str, Any]) -> str:
        """How the data that a checkpoint was made with, of which `found` are the facts, differ from these."""

    @abstractmethod
    def loss(self, model: nn.Module, index: Tensor, generator: torch.Generator) -> Tensor:
        """Mean loss of the samples `index` by `model`, which may be wrapped; what is drawn comes from `generator`."""

    @abstractmethod
    def figures(self) -> dict[str, Any]:
        """What the model does on the data that it does not learn from; DamagedError where its answers are NaN."""

    @abstractmethod
    def headline(self, figures: Mapping[str, Any]) -> str:
        """The figures in a few words."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write weights and configuration, each atomically."""

    @abstractmethod
    def results(self, folder: Path) -> dict[str, Any]:
        """What `results.json` says of data and figures, measured on the model as it is read back from `folder`."""
