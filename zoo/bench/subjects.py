"""Who is timed: names for `zoo.load`, and modules that somebody has in hand."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from zoo.bench.arms import has_insertion
from zoo.bench.backends import out_of_memory_told
from zoo.errors import UsageError, one_line

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class Subject:
    """A name for `zoo.load`, or a `module` and what the report calls it.

    `twin` is a name of the registry. `inserted`: the twin is the module itself without what was inserted into it.
    """

    name: str
    module: nn.Module | None = None
    twin: str | None = None
    inserted: bool = False


def subjects_of(given: object, twin: bool) -> list[Subject]:
    """`given` (a name or module, or several) with their twins. Who is in the list only as another's twin is not timed
    a second time.

    UsageError for what is neither, and for a module that cannot be timed.
    """
    from torch import nn

    from zoo import registry

    single = isinstance(given, (str, os.PathLike, nn.Module)) or not isinstance(given, Iterable)
    wanted = [given] if single else list(given)  # type: ignore[call-overload]
    if not wanted:
        raise UsageError("no model to time; name one, `zoo list` shows them")
    entries = registry.entries()
    found: list[Subject] = []
    for one in dict.fromkeys(each if isinstance(each, nn.Module) else _text(each) for each in wanted):
        if isinstance(one, str):
            entry = entries.get(one)
            if entry is not None and entry.task != "image-classification":
                raise UsageError(f"{one} is a language model; only image models are timed so far")
            found.append(Subject(one, twin=entry.twin if entry is not None and twin else None))
        else:
            found.append(_checked(one, twin))
    covered = {subject.twin for subject in found}
    found = [each for each in found if each.module is not None or each.twin is not None or each.name not in covered]
    return _told_apart(found)


def check_twins(subjects: Sequence[Subject], twin: bool) -> None:
    """UsageError where the protocol paper has no twin to compare with; a folder, or what is on the Hub, shows that
    when it is loaded."""
    from zoo import registry

    if not twin:
        raise UsageError("the protocol paper compares a model with its twin; leave out --no-twin or --protocol")
    for subject in subjects:
        if subject.module is not None and not subject.inserted:
            twin_by_facts(subject.name, subject.module)
        elif subject.module is None and subject.twin is None and subject.name in registry.entries():
            raise UsageError(_no_twin(subject.name))


def twin_by_facts(name: str, model: nn.Module) -> str:
    """The twin of the registry's model that a folder's, or somebody's, model says to be; UsageError if there is
    none."""
    from zoo import registry
    from zoo.loading import facts

    entry = registry.entries().get(str(facts(model).get("zoo_name")))
    if entry is None or entry.twin is None:
        raise UsageError(_no_twin(name))
    return entry.twin


def ready(name: str, module: nn.Module, place: torch.device) -> nn.Module:
    """A copy of somebody's module in eval mode on `place`, which has answered one image; the module stays as it
    is."""
    import torch

    from zoo.export.samples import noise

    try:
        model = copy.deepcopy(module)
    except Exception as error:
        raise UsageError(f"{name} cannot be timed: it cannot be copied ({one_line(error)[:200]})") from error
    with out_of_memory_told(1):
        model = model.to(place).eval()
        images = noise(model.pretrained_cfg, 1).to(place)  # type: ignore[arg-type]
        try:
            with torch.inference_mode():
                answer = model(images)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            size = tuple(images.shape[1:])
            raise UsageError(
                f"{name} cannot be timed: it does not take images of {size}, the input_size of its pretrained_cfg"
                f" ({one_line(error)[:200]})"
            ) from error
    if not isinstance(answer, torch.Tensor):
        raise UsageError(f"{name} cannot be timed: it returns {type(answer).__name__}, a tensor of logits is needed")
    return model


def _text(one: object) -> str:
    if not isinstance(one, (str, os.PathLike)):
        raise UsageError(f"models to time are names, folders and torch modules, got {type(one).__name__}")
    return os.fspath(one)


def _checked(module: nn.Module, twin: bool) -> Subject:
    """The module by its name, if it can be timed as far as that shows without calling it."""
    from zoo.export.samples import noise

    cfg: Any = getattr(module, "pretrained_cfg", None)
    known = cfg if isinstance(cfg, Mapping) else {}
    name = str(known.get("zoo_name") or known.get("architecture") or type(module).__name__)
    wrong = _fault(module)
    if wrong is None:
        try:
            noise(known, 1)
        except (UsageError, TypeError, ValueError, RuntimeError):
            wrong = "its pretrained_cfg has to say input_size (channels, height, width), mean and std, as timm's do"
    if wrong is not None:
        raise UsageError(f"{name} cannot be timed: {wrong}")
    return Subject(name, module, inserted=twin and has_insertion(module))


def _fault(module: nn.Module) -> str | None:
    import torch

    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.device.type == "meta":
            return "it is on the meta device and has no weights"
        if tensor.is_floating_point() and tensor.dtype is not torch.float32:
            return f"the benchmark is in float32, and {name} is {tensor.dtype}; call .float() on it"
    for part in module.modules():  # neither a copy nor an export would be what was compiled
        if hasattr(part, "_orig_mod") or getattr(part, "_compiled_call_impl", None) is not None:
            return "it is compiled, and the backends take modules as they are; hand it over before torch.compile"
    return None


def _told_apart(subjects: Sequence[Subject]) -> list[Subject]:
    """Modules of a name that is taken are numbered: the second "vit" is "vit (2)"."""
    taken = {subject.name for subject in subjects if subject.module is None}
    taken |= {subject.twin for subject in subjects if subject.twin is not None}
    found = []
    for subject in subjects:
        name, count = subject.name, 1
        while subject.module is not None and name in taken:
            count += 1
            name = f"{subject.name} ({count})"
        taken.add(name)
        found.append(replace(subject, name=name))
    return found


def _no_twin(name: str) -> str:
    return f"{name} has no twin, and the protocol paper compares with one; leave out --protocol to time it alone"
