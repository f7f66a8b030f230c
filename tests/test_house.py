"""The rules of CONTRIBUTING.md that a program can hold."""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# The one place where each of these may be used.
GATEWAYS = {
    **dict.fromkeys(
        [
            "huggingface_hub",
            "requests",
            "httpx",
            "aiohttp",
            "urllib3",
            "urllib.request",
            "http.client",
            "socket",
            "torch.hub",
        ],
        "zoo/hub/",
    ),
    "PIL.Image.open": "zoo/data/images.py",
    "onnxruntime.InferenceSession": "zoo/export/session.py",
}


@functools.cache
def files() -> list[Path]:
    """What git tracks or would track, relative to the root."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [path for path in map(Path, sorted(set(filter(None, listed)))) if (ROOT / path).is_file()]


@functools.cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name, those in `export/` under their imported name."""
    found = {}
    for path in sorted([*(ROOT / "zoo").glob("**/*.py"), *(ROOT / "zoo" / "export").glob("**/*.py")]):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@functools.cache
def arrows() -> dict[str, set[str]]:
    """What each part of the package may import, by the table in CONTRIBUTING.md; `cli` may import everything."""
    found: dict[str, set[str]] = {}
    for row in re.findall(r"^\|(.+)\|$", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE):
        parts, may = (set(re.findall(r"`(\w+)`", cell)) for cell in row.split("|"))
        found |= {name: {*may, "errors", "files", "modes"} - {name} for name in parts if name not in ("zoo", "cli")}
    return found | {"errors": set(), "files": {"errors"}, "modes": {"errors"}}


def part(module: str) -> str:
    """`zoo.data.images` belongs to `data`; the package's own face is `zoo`."""
    return [*module.split("."), "zoo"][1]


def imported(syntax: ast.Module, package: str) -> Iterator[tuple[str, int]]:
    """The dotted name and line of all that a module imports, in functions and for type checkers too."""
    for node in ast.walk(syntax):
        match node:
            case ast.Import():
                yield from ((name.name, node.lineno) for name in node.names)
            case ast.ImportFrom():
                base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                prefix = ".".join([*base, *filter(None, [node.module])])
                yield from ((f"{prefix}.{name.name}", node.lineno) for name in node.names)
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name, node.lineno


def used(syntax: ast.Module, package: str = "") -> Iterator[tuple[str, int]]:
    """All that is imported, and every attribute reached from there: `Image.open(f)` is `PIL.Image.open`."""
    known = {}
    for node in ast.walk(syntax):
        match node:
            case ast.Import():
                for name in node.names:
                    known[name.asname or name.name.split(".")[0]] = (
                        name.name if name.asname else name.name.split(".")[0]
                    )
            case ast.ImportFrom(level=0, module=str(module)):
                known.update({name.asname or name.name: f"{module}.{name.name}" for name in node.names})
    yield from imported(syntax, package)
    for node in ast.walk(syntax):
        chain, inner = [], node
        while isinstance(inner, ast.Attribute):
            chain.append(inner.attr)
            inner = inner.value
        if chain and isinstance(inner, ast.Name) and inner.id in known:
            yield ".".join([known[inner.id], *reversed(chain)]), node.lineno


def owner(name: str) -> str:
    """The module that a dotted name of the package belongs to: itself, or the one that defines it."""
    while name not in modules():
        name = name.rpartition(".")[0]
    return name


def edges() -> Iterator[tuple[str, str, int, str]]:
    """(importer, imported module, line, the name as written), within the package."""
    for module, path in modules().items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for name, line in used(tree(path), package):
            if name.startswith("zoo."):
                yield module, owner(name), line, name


def test_arrows_run_one_way() -> None:
    wrong = []
    for module, target, line, name in edges():
        source, aim = part(module), part(target)
        if source in (aim, "cli", "zoo", "__main__") or name == "zoo.__version__":
            continue
        if aim not in arrows()[source]:
            wrong.append(f"{modules()[module].relative_to(ROOT)}:{line}: {source} may not import {aim} ({name})")
    assert not wrong, "\n".join(wrong)


def test_every_part_has_its_place() -> None:
    parts = {part(module) for module in modules()} - {"zoo", "cli", "__main__"}
    assert not parts - arrows().keys(), "a new part of the package needs its arrows in CONTRIBUTING.md"


def test_no_circles() -> None:
    """Neither between the parts nor between modules; the lazy face stands outside, nobody may import it."""
    list(TopologicalSorter(arrows()).static_order())
    graph: dict[str, set[str]] = {}
    for module, target, _, _ in edges():
        if module != target and "zoo" not in (module, target):
            graph.setdefault(module, set()).add(target)
    list(TopologicalSorter(graph).static_order())  # CycleError names the circle


def test_gateways() -> None:
    wrong = []
    for path in [*modules().values(), *(ROOT / "scripts").glob("*.py")]:
        place = path.relative_to(ROOT).as_posix()
        wrong += [
            f"{place}:{line}: {name} belongs in {home}"
            for name, line in used(tree(path))
            for banned, home in GATEWAYS.items()
            if (name == banned or name.startswith(banned + ".")) and not place.startswith(home)
        ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("from PIL import Image\nImage.open('x')", "PIL.Image.open"),
        ("import PIL.Image as I\nI.open('x')", "PIL.Image.open"),
        ("import PIL.Image\nwith PIL.Image.open('x'): pass", "PIL.Image.open"),
        ("from PIL.Image import open", "PIL.Image.open"),
        ("def f():\n import onnxruntime as ort\n ort.InferenceSession('x')", "onnxruntime.InferenceSession"),
        ("from huggingface_hub import HfApi", "huggingface_hub.HfApi"),
        ("import importlib\nimportlib.import_module('socket')", "socket"),
    ],
)
def test_the_gateway_test_sees(source: str, name: str) -> None:
    assert name in {found for found, _ in used(ast.parse(source))}


def test_models_never_ask_a_tensor_for_a_number() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: .{node.attr}()"
        for module, path in modules().items()
        if part(module) in ("models", "layers")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and node.attr in ("item", "tolist", "numpy", "nonzero")
    ]
    assert not wrong, "\n".join(wrong)


def swallows(handler: ast.ExceptHandler) -> bool:
    """Whether it catches everything and then neither raises nor looks at what it caught."""
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    broad = any(
        kind is None or (isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException")) for kind in caught
    )
    inside = [node for statement in handler.body for node in ast.walk(statement)]
    told = any(isinstance(n, ast.Raise) or (isinstance(n, ast.Name) and n.id == handler.name) for n in inside)
    return broad and not told


def test_no_error_is_swallowed() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: catches everything and says nothing"
        for path in [*modules().values(), *(ROOT / "scripts").glob("*.py")]
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ExceptHandler) and swallows(node)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_import_is_declared() -> None:
    """A package that happens to be there because another needs it is gone on the day that the other drops it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    of_module = {"PIL": "pillow", "yaml": "pyyaml", "huggingface_hub": "huggingface-hub"}
    extras = project["optional-dependencies"]

    def named(requirements: list[str]) -> set[str]:
        return {re.split(r"[^\w-]", line)[0].lower() for line in requirements} | {"zoo"}

    def missing(paths: Iterable[Path], declared: set[str]) -> set[str]:
        tops = {name.split(".")[0] for path in paths for name, _ in imported(tree(path), "zoo")}
        return {of_module.get(top, top) for top in tops - sys.stdlib_module_names} - declared

    ours = named(project["dependencies"]) | {"onnxruntime"}
    assert not missing(modules().values(), ours)
    own = {path.stem for path in (ROOT / "scripts").glob("*.py")}
    assert not missing((ROOT / "scripts").glob("*.py"), ours | named(extras["figures"]) | own)
    assert not missing((ROOT / "tests").rglob("*.py"), ours | named(extras["test"]))


def test_files_are_small() -> None:
    long = {
        str(path): count
        for path in files()
        if path.suffix == ".py" and (count := len((ROOT / path).read_text(encoding="utf-8").splitlines())) > 400
    }
    assert not long, f"one idea a file, 400 lines at most: {long}"


def test_weights_stay_small() -> None:
    sizes = {path: (ROOT / path).stat().st_size for path in files()}
    assert not {str(path): size for path, size in sizes.items() if size > 50e6}
    assert sum(size for path, size in sizes.items() if path.parts[0] == "weights") < 110e6


def test_nothing_of_one_machine_is_in_the_files() -> None:
    """No absolute path of somebody's machine, no host of a package registry, in text or in binary files."""
    folder = rb"(?<![\w.~-])/(?:home/\w+|root|work|Users/\w+)/|[A-Z]:\\+Users\\"
    host = rb"(?:pypi|python" + rb"hosted|npm" + rb"js|debian)\.org|/" + rb"simple/"
    wrong = [
        f"{path}: {found.group().decode()}"
        for path in files()
        for found in re.finditer(folder + b"|" + host, (ROOT / path).read_bytes())
        if path != Path("tests/test_house.py")
    ]
    assert not wrong, "\n".join(wrong)


def test_importing_changes_nothing_global() -> None:
    """What is set when the packages that ours builds on are in is still set when all our modules are."""
    script = f"""
import json, logging, os, random, signal, sys, warnings
import accelerate, huggingface_hub, numpy, onnx, onnxruntime, onnxscript, PIL.Image, pyarrow.parquet
import safetensors.torch, timm, torch
import torch.export, torch.onnx, torchvision, transformers, transformers.modeling_utils
import timm.data, timm.layers, timm.models, torch._dynamo

def state():
    names = (None, "torch", "timm", "transformers", "onnxruntime", "huggingface_hub", "PIL")
    loggers = [logging.getLogger(name) for name in names]
    return {{
        "TF32 matmul": torch.backends.cuda.matmul.allow_tf32,
        "TF32 cudnn": torch.backends.cudnn.allow_tf32,
        "matmul precision": torch.get_float32_matmul_precision(),
        "cudnn benchmark": torch.backends.cudnn.benchmark,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "dtype": str(torch.get_default_dtype()),
        "device": str(torch.get_default_device()),
        "grad": torch.is_grad_enabled(),
        "torch seed": torch.random.get_rng_state().tolist(),
        "numpy seed": repr(numpy.random.get_state()),
        "seed": repr(random.getstate()),
        "handlers": [repr(logger.handlers) for logger in loggers],
        "levels": [logger.level for logger in loggers],
        "warning filters": repr(warnings.filters),
        "showwarning": repr(warnings.showwarning),
        "environment": dict(os.environ),
        "signals": [repr(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM)],
        "hooks": [repr(sys.excepthook), repr(sys.displayhook), repr(sys.meta_path), repr(sys.path)],
        "recursion": sys.getrecursionlimit(),
    }}

import importlib
before = state()
for name in {sorted(modules())!r}:
    if not name.endswith("__main__"):
        importlib.import_module(name)
after = state()
print(json.dumps([key for key in before if before[key] != after[key]]))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []
