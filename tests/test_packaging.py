"""The wheel and the source distribution: what is in them, and what works where only they are."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

resource = pytest.importorskip("resource", reason="the environments here are laid out as on POSIX")

ROOT = Path(__file__).resolve().parent.parent
LISTING = ("click", "msgspec", "PyYAML")  # all that `zoo list` needs, beside Python; in a terminal also
TERMINAL = ("rich", "markdown-it-py", "mdurl", "Pygments")
HEAVY = (
    "torch",
    "torchvision",
    "timm",
    "transformers",
    "onnx",
    "onnxruntime",
    "accelerate",
    "huggingface_hub",
    "numpy",
    "PIL",
)


def run(
    command: Sequence[str | Path], cwd: str | Path = "/", check: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A command in an environment that says nothing of this checkout or of the interpreter of the tests."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV", "ZOO"))}
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env={**kept, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert not check or done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that git tracks or would track, links as links, and nothing that a build left behind."""
    target = tmp_path_factory.mktemp("checkout")
    listed = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists() and Path(name).parts[0] != "weights":
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    return target


@pytest.fixture(scope="module")
def built(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The source distribution, the wheel made from it, and the wheel made from the checkout."""
    first, second = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--no-isolation"]
    run([*build, "--outdir", first, checkout])
    run([*build, "--wheel", "--outdir", second, checkout])
    (sdist,), (wheel,), (direct,) = first.glob("*.tar.gz"), first.glob("*.whl"), second.glob("*.whl")
    return {"sdist": sdist, "wheel": wheel, "direct": direct}


def environment(folder: Path, wheel: Path) -> Path:
    """A new virtual environment with the wheel alone in it; the path of its site-packages."""
    venv.create(folder, with_pip=False, symlinks=os.name != "nt")
    python = folder / "bin" / "python"
    run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            wheel,
        ]
    )
    return Path(run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).stdout.strip())


@pytest.fixture(scope="module")
def small(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of the wheel and the few packages that listing needs, linked from where they are."""
    folder = tmp_path_factory.mktemp("small")
    site = environment(folder, built["wheel"])
    for name in (*LISTING, *TERMINAL):
        for top in {file.parts[0] for file in importlib.metadata.files(name) or []} - {"..", "__pycache__"}:
            source = Path(str(importlib.metadata.distribution(name).locate_file(top)))
            (site / top).symlink_to(source)
    return folder


@pytest.fixture(scope="module")
def full(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of the wheel in front of all packages installed here; an editable zoo is not seen."""
    folder = tmp_path_factory.mktemp("full")
    site = environment(folder, built["wheel"])
    here = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site / "installed-here.pth").write_text("\n".join(here) + "\n")  # a .pth file within `here` is not followed
    return folder


def package_files(root: Path) -> set[str]:
    """All files of the package in a checkout, as the wheel should name them."""
    found = [*(root / "zoo").rglob("*"), *(root / "zoo" / "export").rglob("*")]
    return {path.relative_to(root).as_posix() for path in found if path.is_file() and "__pycache__" not in path.parts}


def test_the_wheel_holds_the_package_and_nothing_else(built: dict[str, Path], checkout: Path) -> None:
    with zipfile.ZipFile(built["wheel"]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        assert names == package_files(checkout)
        assert {"zoo/export/__init__.py", "zoo/registry.yaml", "zoo/py.typed", "zoo/cli.py"} <= names
        assert not [info.filename for info in wheel.infolist() if stat.S_ISLNK(info.external_attr >> 16)]
        assert wheel.read("zoo/registry.yaml") == (checkout / "registry.yaml").read_bytes()
        assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.namelist())


def test_the_source_distribution_builds_the_same_wheel(built: dict[str, Path], checkout: Path) -> None:
    with zipfile.ZipFile(built["wheel"]) as ours, zipfile.ZipFile(built["direct"]) as direct:
        assert built["wheel"].name == built["direct"].name
        same = [name for name in ours.namelist() if not name.endswith(".dist-info/RECORD")]
        assert sorted(ours.namelist()) == sorted(direct.namelist())
        assert not [name for name in same if ours.read(name) != direct.read(name)]
    with tarfile.open(built["sdist"]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
        assert package_files(checkout) | {"pyproject.toml", "README.md", "LICENSE"} <= names
        assert not [name for name in names if name.split("/")[0] in ("tests", "weights", "export", "shared")]
        assert not [member.name for member in sdist.getmembers() if member.issym() or member.islnk()]


def test_the_metadata(built: dict[str, Path]) -> None:
    with zipfile.ZipFile(built["wheel"]) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        facts = importlib.metadata.PathDistribution(zipfile.Path(wheel, name.rpartition("/")[0] + "/")).metadata
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (facts["Name"], facts["Version"]) == ("attention-zoo", project["version"])
    assert (facts["License-Expression"], facts["Requires-Python"]) == ("Apache-2.0", ">=3.11")
    needed = facts.get_all("Requires-Dist") or []
    assert not [line for line in needed if "==" in line.partition(";")[0]], "no exact pins"
    assert not [line for line in needed if ">=" not in line], "every dependency has a lower bound that was run"


def test_one_onnx_runtime_on_every_machine() -> None:
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    runtimes = [r for r in map(Requirement, project["dependencies"]) if r.name.startswith("onnxruntime")]
    machines = {
        ("linux", "x86_64"): "onnxruntime-gpu",
        ("win32", "AMD64"): "onnxruntime-gpu",
        ("linux", "aarch64"): "onnxruntime",
        ("win32", "ARM64"): "onnxruntime",
        ("darwin", "arm64"): "onnxruntime",
        ("darwin", "x86_64"): "onnxruntime",
    }
    for (platform, machine), name in machines.items():
        here = {"sys_platform": platform, "platform_machine": machine}
        assert [r.name for r in runtimes if r.marker and r.marker.evaluate(here)] == [name], here


def test_listing_needs_few_packages(small: Path) -> None:
    listed = run([small / "bin" / "zoo", "list"]).stdout.split()
    assert listed == run([sys.executable, "-c", "from zoo.cli import main; main()", "list"], cwd=ROOT).stdout.split()
    assert "osa-vit-mnist" in listed
    assert json.loads(run([small / "bin" / "zoo", "info", "osa-vit-mnist", "--json"]).stdout)["name"] == "osa-vit-mnist"
    assert run([small / "bin" / "zoo", "--version"]).stdout.split()[-1] == importlib.metadata.version("attention-zoo")
    origin = run([small / "bin" / "python", "-c", "import zoo; print(zoo.__file__)"]).stdout
    assert Path(origin).is_relative_to(small)


def test_listing_in_a_terminal(small: Path) -> None:
    """A table, drawn by a package that plain listing does not need."""
    script = f"import pty; raise SystemExit(pty.spawn([{str(small / 'bin' / 'zoo')!r}, 'list']))"
    assert "osa-vit-mnist" in run([sys.executable, "-c", script], TERM="dumb", COLUMNS="120").stdout


def test_the_wheel_imports_without_the_checkout(full: Path) -> None:
    script = "import zoo.export, zoo.models, zoo.inference; print(zoo.__file__, zoo.export.__file__, sep='\\n')"
    for origin in run([full / "bin" / "python", "-c", script]).stdout.splitlines():
        assert Path(origin).is_relative_to(full)
    assert run([full / "bin" / "python", "-c", "import export"], check=False).returncode == 1


def test_a_wheel_without_weights_says_what_to_do(full: Path) -> None:
    """The weights lie in the checkout, not in the wheel; no network is asked for what is not published."""
    done = run([full / "bin" / "zoo", "predict", "test-osa-vit", ROOT / "tests" / "assets" / "digits"], check=False)
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "weights" in done.stderr


@pytest.mark.parametrize("place", ["wheel", "checkout"])
def test_type_checkers_see_the_export(place: str, full: Path, checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "snippet.py").write_text(
        "import torch\nimport zoo.export\n\nmodel = torch.nn.Identity()\n"
        "zoo.export.to_onnx(model, 'model.onnx', opset=20)\n"
        "zoo.export.to_onnx(model, 'model.onnx', opset='twenty')\n"
        "zoo.export.to_onx(model, 'model.onnx')\n"
        "zoo.load(5j)\n"
        "zoo.laod('osa-vit-mnist')\n"
    )
    others = "torch.*,onnx.*,onnxruntime.*,onnxscript.*,numpy.*,timm.*,torchvision.*,PIL.*"
    lines = ["[mypy]", f"cache_dir = {tmp_path / 'cache'}", "follow_imports = silent"]
    (tmp_path / "mypy.ini").write_text("\n".join([*lines, f"[mypy-{others}]", "follow_imports = skip", ""]))
    mypy = [sys.executable, "-m", "mypy", "--config-file", tmp_path / "mypy.ini"]
    if place == "wheel":
        mypy += ["--python-executable", full / "bin" / "python"]
    where = {"MYPYPATH": str(checkout)} if place == "checkout" else {}
    told = run([*mypy, tmp_path / "snippet.py"], cwd=tmp_path, check=False, **where).stdout
    found = {int(line.split(":")[1]): line.rpartition("[")[2] for line in told.splitlines() if ": error:" in line}
    assert found == {6: "arg-type]", 7: "attr-defined]", 8: "arg-type]", 9: "attr-defined]"}, told


@pytest.mark.parametrize("arguments", [[], ["--help"], ["list"], ["info", "osa-vit-mnist"], ["--version"]])
def test_nothing_heavy_and_no_network_for_what_is_known(arguments: list[str]) -> None:
    """`import zoo` and the commands that only tell what is known, with every socket refused."""
    script = f"""
import socket, sys
def refuse(*_, **__): raise AssertionError("a socket was asked for")
socket.socket = socket.create_connection = socket.getaddrinfo = refuse
import zoo
if {arguments!r}:
    from zoo.cli import main
    sys.argv = ["zoo", *{arguments!r}]
    try: main()
    except SystemExit as end: assert not end.code, end.code
print(*sorted({HEAVY!r} & sys.modules.keys()), file=sys.stderr)
"""
    assert run([sys.executable, "-c", script.replace(repr(HEAVY), repr(set(HEAVY)))], cwd=ROOT).stderr.strip() == ""


@pytest.mark.parametrize("arguments", [["--help"], ["list"]])
def test_the_command_line_starts_quickly(arguments: list[str]) -> None:
    """Under 0.3 s of processor time, the best of seven: what else the machine does changes that little."""
    command = [sys.executable, "-c", "from zoo.cli import main; main()", *arguments]
    times = []
    for _ in range(7):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run(command, cwd=ROOT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.3, [f"{taken:.2f} s" for taken in times]
