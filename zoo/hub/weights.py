"""Where the weights of a registry entry are, and the proof that they are the right ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zoo.errors import DamagedError, NotFoundError
from zoo.hub.gateway import fetch
from zoo.hub.integrity import check_safetensors, sha256_of
from zoo.registry import Entry

FILE = "model.safetensors"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def find_weights(
    entry: Entry,
    *,
    revision: str | None = None,
    verify: bool = True,
    local_files_only: bool = False,
    cache_dir: str | Path | None = None,
    beside: Sequence[str] = (),
) -> Path:
    """Path of the entry's `model.safetensors`: from the checkout's `weights/NAME/`, else from the Hub.

    With a `revision` the Hub's repository is asked at once. The file is compared with the sha256 of the registry,
    unless `verify` is off or another revision than the registry's was asked for. The files `beside`, a tokenizer's,
    lie in the same folder then.

    Raises
    ------
    NotFoundError
        There are no weights, neither in a checkout nor published; or what `zoo.hub.fetch` says.
    DamagedError
        The file is no safetensors file, or not the one that the registry means.
    """
    facts = entry.weights
    path = _in_checkout(entry.name) if revision is None else None
    if path is None and facts.repository is None:
        trains = f", `zoo train {entry.name}` trains it" if entry.dataset is not None else ""
        raise NotFoundError(
            f"{entry.name} has no weights yet; zoo.load({entry.name!r}, pretrained=False) gives the architecture with"
            f" its own initialisation{trains}"
        )
    if path is None:
        path, *_ = [
            fetch(
                facts.repository or "",
                file,
                revision=revision or facts.revision,
                local_files_only=local_files_only,
                cache_dir=cache_dir,
            )
            for file in (FILE, *beside)
        ]
    check_safetensors(path)
    if verify and revision in (None, facts.revision):
        _verify(path, entry)
    return path


def at_hand(entry: Entry) -> bool:
    """Whether `find_weights` has something to give: weights of a known sha256, in the checkout or published."""
    facts = entry.weights
    return facts.sha256 is not None and (facts.repository is not None or _in_checkout(entry.name) is not None)


def _in_checkout(name: str) -> Path | None:
    """The committed weights, when the package runs from a checkout (bare or an editable install)."""
    root = Path(__file__).resolve().parents[2]
    path = root / "weights" / name / FILE
    return path if (root / "registry.yaml").is_file() and path.is_file() else None


def _verify(path: Path, entry: Entry) -> None:
    facts = entry.weights
    if facts.sha256 is None:
        raise DamagedError(
            f"{path} cannot be verified: the registry has no sha256 for {entry.name}; verify=False skips"
        )
    size = path.stat().st_size
    found = sha256_of(path)
    if found != facts.sha256:
        raise DamagedError(
            f"{path} is not the file that the registry means: sha256 {found}, {size} bytes, where"
            f" {facts.sha256}, {facts.bytes} bytes is right; fetch it again, or pass verify=False if you changed it"
        )
