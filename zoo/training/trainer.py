"""Train an entry by its recipe; accelerate takes care of device, precision and processes.

Every random draw of a step comes from the recipe's seed and the step's number alone, so a resumed training needs no
state of a random generator and equals an uninterrupted one bit for bit (on the CPU, with the same thread count).
"""

from __future__ import annotations

import contextlib
import math
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

import msgspec
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from zoo import registry
from zoo.data import batch_of_step
from zoo.data.arrays import steps_per_epoch
from zoo.errors import DamagedError, DivergedError, InterruptedRun, StoppedRun, UsageError
from zoo.loading import load, resolve_device
from zoo.training import checkpoint, copying, recipes, result
from zoo.training.copying import CopyTask
from zoo.training.folder import claimed, clear, inspect, job_of
from zoo.training.job import Job
from zoo.training.log import Log
from zoo.training.optimisation import optimizer_of, schedule_of
from zoo.training.pictures import ImageTask
from zoo.training.process import StopSignal, accelerator_on, progress_bar, world_size
from zoo.training.recipes import RECIPES
from zoo.training.text import TextTask


def train(
    name: str,
    *,
    output: str | Path | None = None,
    data_dir: str | Path | None = None,
    device: str = "cpu",
    precision: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    recipe: str | None = None,
    data: str | None = None,
    init: str | None = None,
    settings: Mapping[str, Any] | None = None,
    stop_after: int | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Train the registry entry `name` by its recipe and write the result to `output` (default `runs/NAME`).

    Parameters
    ----------
    output : folder; in the end it holds what `weights/NAME/` holds: weights, configuration, card, results, log.
    data_dir : where the data set is, see `zoo.data.open_dataset`.
    device : "cpu", "cuda", "cuda:N" or "mps".
    precision : "no", "bf16" or "fp16"; None as the recipe says.
    resume : go on from the checkpoint in `output`, with the settings it was made with.
    overwrite : discard what is there.
    recipe : another recipe than the entry's, by its name.
    data : another data set than the entry's: a name, or "imagefolder:DIR" for any folder of class folders, of which the
        head gets the classes; of a language model "textfile:FILE" for any text, or "copy" for the copy task.
    init : whose weights to start from, as `zoo.load` takes it: an entry, a folder or a Hub id of the same
        architecture or its twin. A head of another number of classes starts anew.
    settings : fields of the recipe, or arguments of the architecture, to change.
    stop_after : stop after that many steps in all and leave a checkpoint, as if interrupted.
    progress : show a bar on stderr.

    Returns
    -------
    What `results.json` says.

    Raises
    ------
    UsageError, NotFoundError, DamagedError, DeviceError
        Something stands in the way; nothing was begun.
    DivergedError
        The loss is no number any more; the last good checkpoint stays.
    InterruptedRun
        Ctrl-C or SIGTERM, or `stop_after` (a StoppedRun); the state is saved.
    """
    entry = registry.get(name)
    given = dict(settings or {}) | ({"precision": precision} if precision is not None else {})
    place = resolve_device(device)
    for option, text in (("--output", output), ("--recipe", recipe), ("--init", init)):
        if text is not None and not str(text).strip():
            raise UsageError(f"{option} is empty; leave it out, or say which")
    folder = Path(output or Path("runs") / name)
    if init is not None and not resume and folder.is_dir() and Path(init).is_dir() and folder.samefile(init):
        raise UsageError(f"the weights in {init} cannot be start and result at once; --output names another folder")
    state = inspect(folder, resume=resume, overwrite=overwrite)
    if state is None:
        chosen = recipe or entry.recipe
        if chosen is None:
            raise UsageError(f"{name} has no recipe in the registry; name one with --recipe: {', '.join(RECIPES)}")
        known = {key: value for key, value in given.items() if key in recipes.fields_of(chosen)}
        values = recipes.override(recipes.recipe(chosen), known)
        model_args = {key: value for key, value in given.items() if key not in known}
        _refuse_reserved(model_args)
        job = Job(name, values, chosen, model_args, folder, data_dir, data, init)
    else:
        asked = {"recipe_name": recipe, "data": data, "init": init}
        job = job_of(state, name, given, asked, world_size(), folder, data_dir)
    with accelerator_on(place, job.recipe.precision) as accelerator, contextlib.ExitStack() as held:
        run = _Run(job, accelerator, resumed=state is not None)
        if accelerator.is_main_process:
            held.enter_context(claimed(folder))
            clear(folder, keep=state is not None)
        accelerator.wait_for_everyone()
        if state is not None:
            run.restore(state)
        run.go(stop_after, progress)
        accelerator.wait_for_everyone()
    return result.read(folder)


class _Run:
    """One training in one process: model, optimiser, schedule, data, and how far it is."""

    def __init__(self, job: Job, accelerator: Accelerator, *, resumed: bool) -> None:
        self.job, self.accelerator, recipe = job, accelerator, job.recipe
        self.task = _task_of(job)(job, resumed=resumed)
        self.bare = self.task.model
        self.task.to(accelerator.device)
        self.epoch_steps = steps_per_epoch(self.task.size, recipe.batch_size, self.task.repeats)
        if not self.epoch_steps:
            most = self.task.size * self.task.repeats
            found = f"batch_size {recipe.batch_size} is more than the {most} training {self.task.samples}"
            raise UsageError(
                f"{found}; --set batch_size={most} would do" if most else f"{self.job.dataset} is too short"
            )
        parts = accelerator.num_processes * recipe.accumulate
        if recipe.batch_size % parts:
            parts_of = {"processes": accelerator.num_processes, "accumulate": recipe.accumulate}
            cut = " x ".join(f"{what} {count}" for what, count in parts_of.items() if count > 1)
            raise UsageError(f"batch_size {recipe.batch_size} is no multiple of {cut}")
        self.total = recipe.epochs * self.epoch_steps
        self.optimizer = optimizer_of(self.bare, recipe)
        self.schedule = schedule_of(self.optimizer, recipe, self.total)
        self.model, self.prepared = accelerator.prepare(self.bare, self.optimizer)
        if recipe.compile:
            self.model = torch.compile(self.model)
        self.step, self.seconds = 0, 0.0
        self._losses: list[Tensor] = []
        self._mark = 0, 0.0  # step and time of the last report

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state`, which `state()` made, stands; UsageError where the data are no longer the same."""
        found = state["data_facts"]
        if found.keys() != self.task.data_facts.keys() or not 0 <= state["step"] < self.total:
            raise checkpoint.no_checkpoint(self.job.folder, ValueError("another version made it"))
        if found != self.task.data_facts:
            raise UsageError(
                f"{self.job.dataset} is not what this training began with: {self.task.difference(found)}; bring it"
                " back, or start anew with --overwrite"
            )
        try:
            self.bare.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.schedule.load_state_dict(state["schedule"])
            if self.accelerator.scaler is not None:
                self.accelerator.scaler.load_state_dict(state["scaler"])
        except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise checkpoint.no_checkpoint(self.job.folder, error) from None
        self.step, self.seconds = state["step"], state["seconds"]

    def state(self) -> dict[str, Any]:
        """All that decides how the training goes on."""
        scaler = self.accelerator.scaler
        return {
            "name": self.job.name,
            "data": self.job.data,
            "data_facts": self.task.data_facts,
            "init": self.job.init,
            "recipe_name": self.job.recipe_name,
            "recipe": msgspec.to_builtins(self.job.recipe),
            "model_args": self.job.model_args,
            "processes": self.accelerator.num_processes,
            "step": self.step,
            "seconds": self.seconds,
            "model": self.bare.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": scaler.state_dict() if scaler is not None else None,
        }

    def go(self, stop_after: int | None, progress: bool) -> None:
        """Train to the end and write the result."""
        job, main = self.job, self.accelerator.is_main_process
        log = Log(job.folder, keep_until=self.step) if main else None
        if log is not None and self.step == 0:
            origin = {"recipe_name": job.recipe_name, "data": job.public_data, "init": job.public_init}
            log.write(
                step=0, name=job.name, **origin, recipe=msgspec.to_builtins(job.recipe), model_args=job.model_args
            )
        with (
            progress_bar(self.total, self.step, job.name, shown=progress and main) as bar,
            StopSignal(self.accelerator) as stop,
        ):
            if not bar.disable:
                bar.write(self.task.describe(), file=sys.stderr)
            self._mark = self.step, time.perf_counter()
            while self.step < self.total:
                rate = self.optimizer.param_groups[0]["lr"]
                self._losses.append(self._update())
                self.step += 1
                bar.update(1)
                epoch_ends = self.step % self.epoch_steps == 0
                if epoch_ends or self.step % job.recipe.log_every == 0:
                    self._report_loss(log, bar, rate)
                if epoch_ends and self.step // self.epoch_steps % job.recipe.test_every == 0:
                    self._report_test(log, bar)
                interrupted = stop.arrived()
                stopping = interrupted or self.step >= (stop_after or self.total)
                if stopping or epoch_ends or self.step % job.recipe.save_every == 0:
                    self._check_state()
                    if main and self.step < self.total:
                        checkpoint.save(job.folder, self.state())
                if stopping and self.step < self.total:
                    kind = InterruptedRun if interrupted else StoppedRun
                    raise kind(f"stopped at step {self.step} of {self.total}; `{self._command('--resume')}` goes on")
        if main:
            device = str(self.accelerator.device)
            result.write(self.task, steps=self.total, seconds=self.seconds, device=device)
            checkpoint.discard(job.folder)

    def _update(self) -> Tensor:
        """One step of the optimiser; returns the loss, detached, which nothing has read back from the device yet."""
        recipe, rank, world = self.job.recipe, self.accelerator.process_index, self.accelerator.num_processes
        draw = (recipe.seed << 40) + self.step * world + rank
        torch.manual_seed(draw)
        index = batch_of_step(
            self.task.size,
            recipe.batch_size,
            self.step,
            seed=recipe.seed,
            repeats=self.task.repeats,
            rank=rank,
            world=world,
        )
        generator = torch.Generator().manual_seed(draw)
        total = torch.zeros((), device=self.accelerator.device)
        parts = index.chunk(recipe.accumulate)
        for number, part in enumerate(parts, 1):
            waiting = contextlib.nullcontext() if number == len(parts) else self.accelerator.no_sync(self.model)
            with waiting:  # the processes add up their gradients once
                loss = self.task.loss(self.model, part, generator) / len(parts)
                self.accelerator.backward(loss)
            total += loss.detach()
        if recipe.clip is not None:
            self.accelerator.clip_grad_norm_(self.model.parameters(), recipe.clip)
        self.prepared.step()
        if not self.accelerator.optimizer_step_was_skipped:
            self.schedule.step()
        self.prepared.zero_grad(set_to_none=True)
        return total

    def _mean_loss(self) -> float:
        """Mean since it was last asked, for which the device is waited for; DivergedError if it is no number."""
        if not self._losses:
            return 0.0
        mean = float(self.accelerator.reduce(torch.stack(self._losses).mean(), "mean"))
        self._losses.clear()
        if not math.isfinite(mean):
            raise self._diverged("the loss is")
        return mean

    def _check_state(self) -> None:
        """Raise DivergedError unless loss and parameters are numbers, so that no checkpoint is made of others."""
        self._mean_loss()
        if not all(bool(parameter.isfinite().all()) for parameter in self.bare.parameters()):
            raise self._diverged("parameters are")

    def _diverged(self, what: str) -> DivergedError:
        words = self.job.command(lr=self.job.recipe.lr / 2)
        gentler = shlex.join([*words, "--output", str(self.job.folder), "--overwrite"])
        kept = f"; a checkpoint from before stays in {self.job.folder}" if checkpoint.there(self.job.folder) else ""
        return DivergedError(
            f"{what} no number any more, by step {self.step} of {self.total} of {self.job.name}{kept};"
            f" `{gentler}` starts gentler"
        )

    def _command(self, *words: str) -> str:
        return shlex.join(("zoo", "train", self.job.name, "--output", str(self.job.folder), *words))

    def _report_loss(self, log: Log | None, bar: Any, rate: float) -> None:
        loss = self._mean_loss()
        (step, then), now = self._mark, time.perf_counter()
        self._mark = self.step, now
        self.seconds += now - then
        speed = (self.step - step) * self.job.recipe.batch_size * self.task.per_sample / (now - then)
        bar.set_postfix(loss=f"{loss:.4f}")
        if log is not None:
            rates = {"lr": rate, f"{self.task.unit}_per_second": speed}
            log.write(step=self.step, epoch=self.step / self.epoch_steps, loss=loss, **rates)

    def _report_test(self, log: Log | None, bar: Any) -> None:
        self._check_state()
        if log is not None:
            epoch = self.step // self.epoch_steps
            try:
                with _own_forward(self.bare):
                    figures = self.task.figures()
            except DamagedError:
                self.accelerator.set_trigger()
            else:
                log.write(step=self.step, epoch=epoch, **{self.task.split: figures})
                if not bar.disable:
                    bar.write(f"epoch {epoch}: {self.task.split} {self.task.headline(figures)}", file=sys.stderr)
        if self.accelerator.check_trigger():  # all processes leave together, or the others would wait forever
            raise self._diverged(f"answers to the {self.task.split} set are")
        self._mark = self.step, time.perf_counter()


@contextlib.contextmanager
def _own_forward(model: nn.Module) -> Iterator[None]:
    """`model` without the forward pass that accelerate put on it, which turns autocast on whatever stands around it."""
    wrapped = model.__dict__.pop("forward", None)
    try:
        yield
    finally:
        if wrapped is not None:
            model.__dict__["forward"] = wrapped


def _task_of(job: Job) -> type[ImageTask] | type[TextTask] | type[CopyTask]:
    if registry.get(job.name).task == "image-classification":
        return ImageTask
    return CopyTask if job.dataset == copying.DATASET else TextTask


def _refuse_reserved(model_args: Mapping[str, Any]) -> None:
    """UsageError for a setting that is no argument of an architecture, but one of `zoo.load` itself."""
    reserved = set(signature(load).parameters) - {"model_args"}
    for key in sorted(reserved & model_args.keys()):
        raise UsageError(f"{key} is no setting of a recipe or an architecture; `zoo train --help` shows the options")
