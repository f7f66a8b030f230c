"""README.md keeps its word: its snippets run, its commands run, its paths and figures are there; and so do the docs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from zoo import registry

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
NEEDS_DATA = ("zoo train", "zoo eval")
DOCS = [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("docs/**/*.md"))]


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def pages_with_snippets() -> list[str]:
    return [page for page in ["README.md", *DOCS] if blocks("python", (ROOT / page).read_text(encoding="utf-8"))]


def commands() -> list[str]:
    return [line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines() if line[:2] == "$ "]


def run(command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A shell line with this interpreter's commands first on the path and no network."""
    bin_folder = Path(sys.executable).parent
    path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
    everything = {**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1", **environment}
    return subprocess.run(command, shell=True, cwd=cwd, env=everything, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is not the checkout, with the pictures that the README speaks of."""
    folder = tmp_path_factory.mktemp("readme")
    shutil.copytree(ROOT / "tests" / "assets", folder / "tests" / "assets")
    return folder


@pytest.mark.parametrize("page", pages_with_snippets())
def test_the_snippets_run(page: str, place: Path) -> None:
    """All Python blocks of a page, in order, as one program; a traceback names the line of the page."""
    inside, lines = False, []
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        lines.append(line if inside and line != "```" else "")
        inside = line == "```python" or (inside and line != "```")
    program = f"import sys; exec(compile(sys.stdin.read(), {page!r}, 'exec'), {{'__name__': 'page'}})"
    done = subprocess.run(
        [sys.executable, "-c", program],
        input="\n".join(lines),
        cwd=place,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if page == "README.md":
        assert len(blocks("python")) >= 3
        assert (place / "model.onnx").is_file()


@pytest.mark.parametrize("command", commands())
def test_the_commands_run(command: str, place: Path, request: pytest.FixtureRequest) -> None:
    """In order and in one folder: what one leaves behind the next may use."""
    data = {}
    if command.startswith(NEEDS_DATA):
        data["ZOO_DATA"] = str(request.getfixturevalue("data_dir"))
    done = run(command, place, **data)
    assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stderr}"
    assert done.stdout.strip()
    if "--json" in command:
        json.loads(done.stdout)


def test_the_digits_are_read_with_the_first_command() -> None:
    """What comes after its set-up is run in the checkout; the name of each file says what it shows."""
    (line,) = [block.strip() for block in blocks("sh") if "zoo predict" in block]
    assert "\n" not in line
    assert "install -e . " in line, "an editable install, so that the weights of the checkout are found"
    done = run(line.split(" && ")[-1].replace(".venv/bin/", ""), ROOT)
    assert done.returncode == 0, done.stderr
    answers = [row.split("\t") for row in done.stdout.splitlines()]
    assert len(answers) >= 10
    wrong = [file for file, label, *_ in answers if label != Path(file).name[0]]
    assert not wrong, done.stdout


def test_ci_runs_the_second_command() -> None:
    (line,) = [block.strip() for block in blocks("sh") if "scripts/check.py" in block]
    assert "\n" not in line
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    ran = re.sub(r'"\$scratch/venv([^"]*)"', r".venv\1", script).splitlines()
    assert ran[-3:] == line.split(" && "), "CI has to install and test as the README says"


def test_the_table_of_models_is_that_of_the_registry() -> None:
    done = run(f'"{sys.executable}" scripts/readme_table.py --check', ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("results", sorted(ROOT.glob("weights/*/results.json")), ids=lambda path: path.parent.name)
def test_the_figures_are_those_of_the_weights(results: Path) -> None:
    """What the registry says, and the table with it, is what was measured on the file that lies there."""
    measured, entry = json.loads(results.read_text(encoding="utf-8")), registry.get(results.parent.name)
    assert entry.ours is not None
    assert entry.ours.value == pytest.approx(measured[entry.ours.metric], abs=5e-3)
    assert entry.ours.command == measured["command"]
    weights = results.with_name("model.safetensors").read_bytes()
    assert entry.weights.sha256 == measured["sha256"] == hashlib.sha256(weights).hexdigest()
    assert entry.weights.bytes == measured["bytes"] == len(weights)


def test_the_tree_names_what_is_there() -> None:
    (tree,) = [block for block in blocks("text") if "registry.yaml" in block]
    named: list[Path] = []
    parents: dict[int, Path] = {}
    for line in tree.splitlines():
        depth, name = len(line) - len(line.lstrip()), line.split()[0]
        above = max((level for level in parents if level < depth), default=None)
        path = (parents[above] if above is not None else Path()) / name
        parents = {level: folder for level, folder in parents.items() if level < depth} | {depth: path}
        named.append(path)
        assert re.search(r"\S {2,}\S", line), f"{name} is not explained"
    assert not [str(path) for path in named if not (ROOT / path).exists()]
    top = {path.parts[0] for path in named}
    folders = {p.name for p in ROOT.iterdir() if p.is_dir() and not p.name.startswith(".") and list(p.rglob("*.py"))}
    ignored = {"build", "dist", "runs", "exports"}
    assert not {name for name in folders - ignored if not name.endswith(".egg-info")} - top
    parts = {path for path in (ROOT / "zoo").iterdir() if path.name not in ("__pycache__", "__main__.py", "py.typed")}
    assert not parts - {ROOT / path for path in named}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *DOCS])
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / page).read_text(encoding="utf-8"))
    assert not [link for link in links if "://" not in link and not (ROOT / page).parent.joinpath(link).exists()]
