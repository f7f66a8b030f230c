"""Train an entry by its recipe; accelerate takes care of device, precision and processes.

Every random draw of a step comes from the recipe's seed and the step's number alone, so a resumed training needs no
state of a random generator and equals an uninterrupted one bit for bit (on the CPU, with the same thread count).
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from timm.optim import param_groups_weight_decay
from torch import Tensor, nn

from zoo import registry
from zoo.data import ImageArrays, open_dataset, random_shift, shuffled_batches
from zoo.data.preprocessing import Preprocessing
from zoo.errors import DivergedError, InterruptedRun, NotFoundError, UsageError
from zoo.loading import load, resolve_device
from zoo.training import checkpoint, recipes, result
from zoo.training.evaluate import evaluate
from zoo.training.log import Log
from zoo.training.recipes import Recipe


def train(
    name: str,
    *,
    output: str | Path | None = None,
    data_dir: str | Path | None = None,
    device: str = "cpu",
    precision: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    settings: Mapping[str, Any] | None = None,
    stop_after: int | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Train the registry entry `name` by its recipe and write the result to `output` (default `runs/NAME`).

    Parameters
    ----------
    output : folder; in the end it holds what `weights/NAME/` holds: weights, configuration, card, results, log.
    data_dir : where the data set is, see `zoo.data.open_dataset`.
    device, precision : "cpu", "cuda", "cuda:N", "mps"; "no", "bf16", "fp16" (else the recipe's).
    resume : go on from the checkpoint in `output`. overwrite : discard what is there.
    settings : fields of the recipe, or arguments of the architecture, to change.
    stop_after : stop after that many steps in all and leave a checkpoint, as if interrupted.
    progress : show a bar on stderr.

    Returns what `results.json` says. Raises UsageError where something stands in the way, DivergedError when the loss
    is no number (the last good checkpoint stays), InterruptedRun after Ctrl-C or `stop_after` (state is saved).
    """
    entry = registry.get(name)
    if entry.dataset is None:
        raise UsageError(f"{name} has no data set in the registry, so there is nothing to train it on")
    fields = set(Recipe.__struct_fields__)
    changed = dict(settings or {})
    if precision is not None:
        changed["precision"] = precision
    recipe = recipes.override(recipes.recipe(entry.recipe), {k: v for k, v in changed.items() if k in fields})
    model_args = {k: v for k, v in changed.items() if k not in fields}
    place = resolve_device(device)
    folder = Path(output or Path("runs") / name)
    state = _prepare(folder, resume=resume, overwrite=overwrite)
    if state is not None:
        _same_training(state, name, recipe, model_args, folder)
    job = Job(name, entry.dataset, recipe, model_args, folder, place, data_dir)
    with _accelerator(place, recipe.precision) as accelerator:
        _run(job, accelerator, state, stop_after, progress)
    return result.read(folder)


@dataclass(frozen=True)
class Job:
    """What is trained, how, on what, and where to."""

    name: str
    dataset: str
    recipe: Recipe
    model_args: dict[str, Any]
    folder: Path
    device: torch.device
    data_dir: str | Path | None


def _run(
    job: Job, accelerator: Accelerator, state: dict[str, Any] | None, stop_after: int | None, progress: bool
) -> None:
    recipe, main = job.recipe, accelerator.is_main_process
    torch.manual_seed(recipe.seed)
    bare = load(job.name, pretrained=False, **job.model_args).train()
    preprocessing = Preprocessing.of(bare)
    data = _training_set(job, accelerator.device)
    test = open_dataset(job.dataset, "test", job.data_dir)
    epoch_steps = len(data) // recipe.batch_size
    if not epoch_steps:
        raise UsageError(f"batch_size {recipe.batch_size} is more than the {len(data)} pictures of the training set")
    total = recipe.epochs * epoch_steps

    optimizer = torch.optim.AdamW(
        param_groups_weight_decay(bare, recipe.weight_decay, no_weight_decay_list=bare.no_weight_decay()),
        lr=recipe.lr,
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.lr, total_steps=total, pct_start=recipe.warmup, cycle_momentum=False
    )
    model, prepared = accelerator.prepare(bare, optimizer)
    step = 0
    if state is not None:
        bare.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        if accelerator.scaler is not None and state["scaler"] is not None:
            accelerator.scaler.load_state_dict(state["scaler"])
        step = state["step"]
    log = Log(job.folder, keep_until=step) if main else None
    seconds_before = state["seconds"] if state is not None else 0.0

    def save() -> None:
        if not main:
            return
        scaler = accelerator.scaler
        checkpoint.save(
            job.folder,
            {
                "name": job.name,
                "recipe": msgspec.to_builtins(recipe),
                "model_args": job.model_args,
                "step": step,
                "seconds": seconds_before + time.perf_counter() - began,
                "model": bare.state_dict(),
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
                "scaler": scaler.state_dict() if scaler is not None else None,
            },
        )

    losses: list[Tensor] = []

    def check() -> float:
        """Mean loss since the last check; raises when it is no number. The only place that waits for the device."""
        mean = float(torch.stack(losses).mean()) if losses else 0.0
        losses.clear()
        if not math.isfinite(mean):
            raise DivergedError(
                f"the loss of {job.name} is no number any more (by step {step} of {total}); the last good state stays in"
                f" {job.folder}: `zoo train {job.name} --overwrite --set lr={recipe.lr / 2:g}` starts gentler"
            )
        return mean

    began = tick = time.perf_counter()
    seen = 0
    if main and log is not None and step == 0:
        log.write(step=0, name=job.name, recipe=msgspec.to_builtins(recipe), model_args=job.model_args, steps=total)
    with _bar(total, step, progress and main, job.name) as bar, _stop_signal() as stopped:
        while step < total:
            epoch = step // epoch_steps
            for index in shuffled_batches(
                len(data),
                recipe.batch_size,
                seed=recipe.seed,
                epoch=epoch,
                start=step % epoch_steps,
                rank=accelerator.process_index,
                world=accelerator.num_processes,
            ):
                rate = optimizer.param_groups[0]["lr"]
                losses.append(_step(model, prepared, data, index, preprocessing, job, accelerator, step))
                if not accelerator.optimizer_step_was_skipped:
                    schedule.step()
                step += 1
                seen += recipe.batch_size
                bar.update(1)
                ended = step % epoch_steps == 0
                if step % recipe.log_every == 0 or ended:
                    loss, now = check(), time.perf_counter()
                    if log is not None:
                        log.write(
                            step=step,
                            epoch=step / epoch_steps,
                            loss=loss,
                            lr=rate,
                            images_per_second=seen / (now - tick),
                        )
                    bar.set_postfix(loss=f"{loss:.4f}")
                    tick, seen = now, 0
                if ended and log is not None:
                    figures = evaluate(bare, test)
                    log.write(step=step, epoch=step // epoch_steps, test=figures.to_dict())
                    bar.write(f"epoch {step // epoch_steps}: test top-1 {figures.top1:.2f} %, loss {figures.loss:.4f}")
                    tick = time.perf_counter()
                if stopped.is_set() or step == stop_after:
                    check()
                    save()
                    raise InterruptedRun(
                        f"stopped at step {step} of {total}; `zoo train {job.name} --output {job.folder} --resume`"
                        " goes on"
                    )
                if (step % recipe.save_every == 0 or ended) and step < total:
                    check()
                    save()
        check()
    if main:
        seconds = seconds_before + time.perf_counter() - began
        result.write(job.folder, bare, job.name, recipe, job.dataset, test, steps=total, seconds=seconds)
        (job.folder / checkpoint.FILE).unlink(missing_ok=True)
    accelerator.wait_for_everyone()


def _step(
    model: nn.Module,
    optimizer: Any,
    data: ImageArrays,
    index: Tensor,
    preprocessing: Preprocessing,
    job: Job,
    accelerator: Accelerator,
    step: int,
) -> Tensor:
    """One update; returns the loss, detached, without waiting for the device."""
    recipe = job.recipe
    draw = (recipe.seed << 40) + step * accelerator.num_processes + accelerator.process_index
    torch.manual_seed(draw)
    generator = torch.Generator().manual_seed(draw)
    index = index.to(data.images.device)
    images = random_shift(data.images[index], recipe.shift, generator)
    with accelerator.autocast():
        logits = model(preprocessing.normalize(images))
    loss = nn.functional.cross_entropy(logits.float(), data.targets[index], label_smoothing=recipe.label_smoothing)
    accelerator.backward(loss)
    if recipe.clip is not None:
        accelerator.clip_grad_norm_(model.parameters(), recipe.clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def _training_set(job: Job, device: torch.device) -> ImageArrays:
    data = open_dataset(job.dataset, "train", job.data_dir)
    if job.recipe.samples is not None:
        data = data.first(job.recipe.samples)
    return data.to(device)


def _prepare(folder: Path, *, resume: bool, overwrite: bool) -> dict[str, Any] | None:
    """Make the folder ready; the state to go on from, or None to start. Nothing is discarded unasked."""
    if resume and overwrite:
        raise UsageError("--resume goes on and --overwrite starts anew: give one of them")
    unfinished = (folder / checkpoint.FILE).is_file()
    finished = (folder / result.FILE).is_file()
    if folder.is_file():
        raise UsageError(f"{folder} is a file; --output needs a folder")
    if resume:
        if unfinished:
            return checkpoint.load(folder)
        if finished:
            raise UsageError(f"the training in {folder} is finished; --overwrite starts it anew")
        raise NotFoundError(f"there is no checkpoint in {folder} to resume from; leave --resume out to start")
    if (unfinished or finished) and not overwrite:
        what = "an unfinished training; --resume goes on with it," if unfinished else "a finished training;"
        raise UsageError(f"{folder} holds {what} --overwrite discards it, --output names another folder")
    if overwrite:
        for file in (checkpoint.FILE, *result.FILES):
            (folder / file).unlink(missing_ok=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {folder}: {error.strerror}; choose another with --output") from None
    for stale in folder.glob(".*.tmp"):  # left by a kill in the middle of a write
        stale.unlink(missing_ok=True)
    if shutil.disk_usage(folder).free < 50 << 20:
        raise UsageError(f"less than 50 MB are free in {folder}; choose another place with --output")
    return None


def _same_training(
    state: dict[str, Any], name: str, recipe: Recipe, model_args: dict[str, Any], folder: Path
) -> None:
    then = (state["name"], recipes.override(recipe, state["recipe"]), state["model_args"])
    if then != (name, recipe, model_args):
        changed = [
            f"{key}={value!r}"
            for key, value in state["recipe"].items()
            if value != msgspec.to_builtins(recipe)[key]
        ]
        detail = f" ({', '.join(changed)})" if changed else ""
        raise UsageError(
            f"the checkpoint in {folder} belongs to {state['name']} with other settings{detail}; resume with the same"
            " ones, or start anew with --overwrite"
        )


@contextlib.contextmanager
def _accelerator(device: torch.device, precision: str) -> Iterator[Accelerator]:
    """An Accelerator on exactly `device`; its process-wide state is taken back afterwards."""
    if precision == "fp16" and device.type == "cpu":
        raise UsageError("precision fp16 needs a GPU; on the CPU use bf16 or no")
    before = os.environ.get("ACCELERATE_TORCH_DEVICE")
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        os.environ["ACCELERATE_TORCH_DEVICE"] = str(device)
    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        accelerator = Accelerator(mixed_precision=precision, cpu=device.type == "cpu")
        yield accelerator
        accelerator.end_training()
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
        if before is None:
            os.environ.pop("ACCELERATE_TORCH_DEVICE", None)
        else:
            os.environ["ACCELERATE_TORCH_DEVICE"] = before


@contextlib.contextmanager
def _stop_signal() -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets, so that the step in hand ends and the state is saved."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def handler(number: int, frame: FrameType | None) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _bar(total: int, done: int, shown: bool, name: str) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, initial=done, disable=not shown, desc=name, unit="step", dynamic_ncols=True)
