"""`registry.yaml` as typed, validated entries; search and did-you-mean.

Reading the registry needs no torch and no network. `ZOO_REGISTRY` may name further files (separated as in `PATH`)
whose entries are added; a name that is already taken is an error, never a replacement.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml

from zoo.errors import DamagedError, NotFoundError, one_line

_OWN = Path(__file__).with_name("registry.yaml")
_LINK = "../registry.yaml"  # where the link at `_OWN` leads in a checkout
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

Fraction = Annotated[float, msgspec.Meta(gt=0, le=1)]
Size = Annotated[int, msgspec.Meta(ge=1)]
Above = Annotated[float, msgspec.Meta(gt=0)]
Hash256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Commit = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{40}$")]


class _Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Preprocess(_Facts, frozen=True):
    """What turns a picture into the tensor that the weights were trained on; timm's words and meanings.

    `framing` "digit" frames a picture of a handwritten digit as MNIST frames it; None resizes and crops.
    """

    input_size: tuple[Size, Size, Size]
    mean: tuple[float, ...]
    std: tuple[Above, ...]
    interpolation: Literal["nearest", "bilinear", "bicubic"] = "bilinear"
    crop_pct: Fraction = 1.0
    crop_mode: Literal["center", "squash", "border"] = "center"
    framing: Literal["digit"] | None = None


class Weights(_Facts, frozen=True):
    """Where weights are and how they are recognised. Unpublished: no repository. Not trained: no sha256."""

    repository: str | None = None
    revision: Commit | None = None
    sha256: Hash256 | None = None
    bytes: Size | None = None


class Claim(_Facts, frozen=True):
    """A figure of the source, where it stands there, and the recipe here that is the source's own."""

    source: str
    figure: str | float
    recipe: str | None = None


class Measured(_Facts, frozen=True):
    """A figure of ours, in the unit of `metric`, and the command that measured it."""

    metric: str
    value: float
    command: str


class Entry(_Facts, frozen=True):
    """One model: all facts about it, as `registry.yaml` states them."""

    name: str
    summary: str
    architecture: Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9_]*$")]
    mechanism: Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9-]*$")]
    task: Literal["image-classification", "text-generation"]
    dataset: str | None = None
    tokenizer: str | None = None  # of a language model, see zoo.data.tokenizers
    preprocessing: Preprocess | None = None
    labels: tuple[str, ...] = ()
    classes: Size | None = None  # how many there are, where they are not named
    recipe: str | None = None
    twin: str | None = None
    license: str | None = None  # of the weights, an SPDX id in lower case as the Hub writes it
    arguments: dict[str, Any] = {}
    weights: Weights = Weights()
    paper: Claim | None = None
    ours: Measured | None = None
    hidden: bool = False


class _RefuseDuplicates:
    """Makes a key that is given twice an error; YAML's own loaders keep the last, silently."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)  # type: ignore[misc]
        except ValueError as error:  # such as a date in a thirteenth month
            raise yaml.MarkedYAMLError(problem=str(error), problem_mark=node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key has to be plain text", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key.value!r} is given twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)  # type: ignore[misc]


class _Careful(_RefuseDuplicates, yaml.SafeLoader):
    """Names a fault well."""


class _Fast(_RefuseDuplicates, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Ten times as fast, where PyYAML has its C part; its words for a fault say less."""


def entries() -> dict[str, Entry]:
    """All entries by name, in the order of the files.

    Raises
    ------
    NotFoundError
        A file named by `ZOO_REGISTRY` is not there.
    DamagedError
        A file cannot be read, is no YAML, or an entry breaks the schema; the message names file and line.
    """
    extra = [Path(part) for part in os.environ.get("ZOO_REGISTRY", "").split(os.pathsep) if part]
    stamps = []
    for path in (_OWN, *extra):
        try:
            stamps.append((path, path.stat().st_mtime_ns))
        except OSError as error:
            hint = "correct ZOO_REGISTRY" if path in extra else "reinstall attention-zoo"
            raise NotFoundError(f"registry file {path} cannot be read ({error.strerror}); {hint}") from None
    return dict(_read_all(tuple(stamps)))


def is_name(text: object) -> bool:
    """Whether `text` may name a model: letters, digits, ".", "-" and "_", the first a letter or digit."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def get(name: str) -> Entry:
    """The entry called `name`; NotFoundError with the three nearest names if there is none."""
    known = entries()
    if isinstance(name, str) and name in known:
        return known[name]
    if not isinstance(name, str) or not name.strip():
        raise NotFoundError(f"a model name is needed, got {name!r}; `zoo list` shows them")
    near = nearest(name)
    raise NotFoundError(f"unknown model {name!r}; did you mean {_either(near)}? `zoo list` shows all")


def names(pattern: str | None = None, *, hidden: bool = False, task: str | None = None) -> list[str]:
    """Names of all models, or of those that a shell pattern such as `ns-*` matches. Case does not matter.

    `task` "image-classification" or "text-generation" gives the models of that task alone.
    """
    found = [one.name for one in entries().values() if (hidden or not one.hidden) and task in (None, one.task)]
    if pattern is None:
        return found
    return [name for name in found if fnmatch.fnmatchcase(name.lower(), pattern.lower())]


def nearest(name: str, count: int = 3) -> list[str]:
    """The `count` known names most like `name`; case, dashes and underscores do not matter."""
    plain = {_plain(known): known for known, entry in entries().items() if not entry.hidden}
    return [plain[key] for key in difflib.get_close_matches(_plain(name), plain, n=count, cutoff=0.0)]


def by_architecture(architecture: str) -> Entry:
    """The first entry built on `architecture` (timm's name of it) without arguments of its own."""
    for entry in entries().values():
        if entry.architecture == architecture and not entry.arguments:
            return entry
    raise NotFoundError(f"no registry entry is built on architecture {architecture!r}")


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "-")


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


@functools.lru_cache(maxsize=8)
def _read_all(stamps: tuple[tuple[Path, int], ...]) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    where: dict[str, str] = {}
    for path, _ in stamps:
        for name, (entry, line) in _read(path).items():
            if name in found:
                raise DamagedError(f"{path}, line {line}: {name!r} is already taken by {where[name]}; rename this one")
            found[name], where[name] = entry, f"{path}, line {line}"
    for entry in found.values():
        if entry.twin is not None and entry.twin not in found:
            raise DamagedError(f"{where[entry.name]}: {entry.name}: its twin {entry.twin!r} is no entry")
    return found


def _read(path: Path) -> dict[str, tuple[Entry, int]]:
    """Entries of one file, each with the line it starts on."""
    try:
        text = path.read_text(encoding="utf-8")
        try:
            root, raw = _parse(text, _Fast)
        except yaml.YAMLError:
            root, raw = _parse(text, _Careful)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = one_line(error.problem or error.context)
        raise DamagedError(f"{path}, line {line}: {problem}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedError(f"{path}: no YAML: {one_line(error)}") from None
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}; a registry is a YAML file") from None
    if raw == _LINK:
        raise DamagedError(
            f"{path}, line 1: it is the text of a symbolic link that git did not make; clone again with"
            " `git clone -c core.symlinks=true`, on Windows in developer mode"
        )
    if not isinstance(raw, dict):
        raise DamagedError(f"{path}, line 1: a registry maps names to entries, this is a {type(raw).__name__}")
    result = {}
    for name, facts in raw.items():
        line = _line(root, [name])
        if not is_name(name):
            raise DamagedError(
                f"{path}, line {line}: {name!r} is no model name; letters, digits, '.', '-' and '_' are allowed"
            )
        if not isinstance(facts, dict) or "name" in facts:
            raise DamagedError(f"{path}, line {line}: {name}: an entry is a mapping of facts, without `name`")
        try:
            entry = msgspec.convert({"name": name, **facts}, Entry)
        except msgspec.ValidationError as error:
            problem, _, place = str(error).partition(" - at ")
            steps = re.findall(r"[A-Za-z_]\w*|\d+", place)
            spot = _line(root, [name, *steps])
            unknown = re.search(r"unknown field `(\w+)`", problem)
            if unknown:
                spot = _line(root, [name, *steps, unknown[1]])
            raise DamagedError(f"{path}, line {spot}: {name}: {problem} {place.strip('`$')}".rstrip()) from None
        fault = _inconsistency(entry)
        if fault:
            raise DamagedError(f"{path}, line {line}: {name}: {fault}")
        result[name] = entry, line
    return result


def _parse(text: str, kind: type[Any]) -> tuple[yaml.Node | None, Any]:
    """The node tree, which knows the lines, and the plain data made of it."""
    loader = kind(text)
    try:
        root = loader.get_single_node()
        return root, loader.construct_document(root) if root is not None else {}
    finally:
        loader.dispose()


def _inconsistency(entry: Entry) -> str | None:
    """What no single field shows."""
    weights, pre = entry.weights, entry.preprocessing
    if (weights.sha256 is None) != (weights.bytes is None):
        return "weights need both sha256 and bytes, or neither"
    if weights.repository is not None and (weights.revision is None or weights.sha256 is None):
        return "a weights repository needs a revision (a full commit hash) and a sha256"
    if entry.task == "image-classification" and (pre is None or bool(entry.labels) == bool(entry.classes)):
        return "image classification needs preprocessing, and labels or else the number of classes"
    if (entry.task == "text-generation") != (entry.tokenizer is not None):
        return "text generation needs a tokenizer, and nothing else has one"
    if pre is not None and not len(pre.mean) == len(pre.std) == pre.input_size[0]:
        return "mean and std need one value for each channel of input_size"
    if len(set(entry.labels)) != len(entry.labels):
        return "labels must differ from each other"
    return None


def _line(root: yaml.Node | None, path: list[Any]) -> int:
    """Line (from 1) of the deepest node that `path`, a list of keys and positions, leads to."""
    node, line = root, 1
    for step in path:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(step):
                    node, line = value, key.start_mark.line + 1
                    break
            else:
                break
        elif isinstance(node, yaml.SequenceNode) and str(step).isdigit() and int(step) < len(node.value):
            node = node.value[int(step)]
            line = node.start_mark.line + 1
        else:
            break
    return line
