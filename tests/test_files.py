"""What is written is whole or not there; what was there before survives every failure; nothing stays behind."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
import safetensors.torch
import torch

from zoo import files
from zoo.errors import DamagedError, UsageError, ZooError

WAYS = pytest.mark.parametrize("way", [files.atomic, files.staged])
OLD = b"the one before"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that is there already."""
    (tmp_path / "file.bin").write_bytes(OLD)
    return tmp_path / "file.bin"


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@WAYS
@pytest.mark.parametrize("name", ["a.bin", "a b/ü–模型.bin", "deep/er/.hidden", "no-suffix", "模" * 80])
def test_any_name(way, name, tmp_path):
    with way(tmp_path / name) as temporary:
        assert not (tmp_path / name).exists()
        temporary.write_bytes(b"new")
    assert (tmp_path / name).read_bytes() == b"new"
    assert [found for found in left(tmp_path) if (tmp_path / found).is_file()] == [name]


@WAYS
def test_the_old_stays_until_the_new_is_whole(way, path):
    with way(path) as temporary:
        temporary.write_bytes(b"new")
        assert path.read_bytes() == OLD
    assert path.read_bytes() == b"new"
    assert left(path.parent) == ["file.bin"]


@WAYS
def test_a_relative_path(way, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with way(Path("folder/file")) as temporary:
        temporary.write_bytes(b"new")
    assert left(tmp_path) == ["folder", "folder/file"]


@WAYS
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, DamagedError, SystemExit])
def test_a_failure_leaves_nothing_and_stays_what_it_is(way, error, path):
    with pytest.raises(error, match="mine"), way(path) as temporary:
        temporary.write_bytes(b"half")
        raise error("mine")
    with pytest.raises(error, match="mine"), way(path.parent / "new" / "er" / "file") as temporary:
        temporary.write_bytes(b"half")
        raise error("mine")
    assert path.read_bytes() == OLD
    assert left(path.parent) == ["file.bin"]


FULL = os.strerror(errno.ENOSPC)


@WAYS
@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (OSError(errno.ENOSPC, FULL), ZooError, f"{FULL}; make room"),
        (OSError(errno.EIO, "Input/output error"), ZooError, "Input/output error"),
        (PermissionError(errno.EACCES, "Permission denied"), UsageError, "Permission denied; choose"),
        (RuntimeError(f"Error while serializing: I/O error: {FULL} (os error 28)"), ZooError, f"{FULL}; make room"),
        (RuntimeError(f"something: {FULL}"), ZooError, f"{FULL}; make room"),
        (
            RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 640 vs 534"),
            ZooError,
            "disk is full",
        ),
    ],
)
def test_a_failing_disk_is_told_in_one_line(way, error, kind, said, path):
    with pytest.raises(kind, match=said) as caught, way(path) as temporary:
        temporary.write_bytes(b"half")
        raise error
    assert type(caught.value) is kind
    assert str(caught.value).startswith(f"cannot write {path}: ")
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == OLD
    assert left(path.parent) == ["file.bin"]


def test_a_disk_that_is_full_at_the_last_moment(path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, FULL)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ZooError, match="make room"):
        files.write_text(path, "new")
    assert path.read_bytes() == OLD
    assert left(path.parent) == ["file.bin"]


@pytest.mark.parametrize("writer", [torch.save, lambda tensors, path: safetensors.torch.save_file(tensors, path)])
def test_writers_that_hit_a_real_limit(writer, path):
    resource = pytest.importorskip("resource")
    signal = pytest.importorskip("signal")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(ZooError, match="cannot write"), files.atomic(path) as temporary:
            writer({"a": torch.zeros(100_000)}, temporary)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == OLD
    assert left(path.parent) == ["file.bin"]


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_permissions_follow_the_umask(mask, tmp_path, monkeypatch):
    before = os.umask(mask)
    try:
        monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask belongs to the whole process"))
        files.write_text(tmp_path / "text", "a")
        with files.atomic(tmp_path / "weights") as temporary:  # safetensors makes its files private
            safetensors.torch.save_file({"a": torch.ones(3)}, temporary)
    finally:
        monkeypatch.undo()
        os.umask(before)
    for name in ("text", "weights"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o666 & ~mask, name


@WAYS
def test_where_no_file_can_be(way, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for place in (tmp_path / "file" / "a", tmp_path / ("x" * 300) / "a", tmp_path / ("x" * 300), tmp_path / "folder"):
        with pytest.raises(UsageError, match="cannot write"), way(place) as temporary:
            temporary.write_bytes(b"new")
    assert left(tmp_path) == ["file", "folder"]


def test_text_and_documents(tmp_path):
    files.write_text(tmp_path / "text", "ü\n")
    files.write_json(tmp_path / "json", {"ü": [1]})
    assert (tmp_path / "text").read_bytes() == "ü\n".encode()
    assert (tmp_path / "json").read_text(encoding="utf-8") == '{\n  "ü": [\n    1\n  ]\n}\n'


def test_copies(path, tmp_path):
    files.copy(path, tmp_path / "new" / "copy")
    assert (tmp_path / "new" / "copy").read_bytes() == OLD
    with pytest.raises(FileNotFoundError):
        files.copy(tmp_path / "none", path)
    assert path.read_bytes() == OLD


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"\n <!DOCTYPE html>", "web page"),
        (b"<HTML>", "web page"),
    ],
)
def test_impostors(start, said):
    assert said in (files.impostor(start) or "")


@pytest.mark.parametrize("start", [b"\x08\x0a\x12\x07pytorch", b"<!\0\0\0\0\0\0{", b"<\0\0\0\0\0\0\0{", b"a: 1"])
def test_what_may_be_the_content(start):
    assert files.impostor(start) is None
