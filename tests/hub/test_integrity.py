"""Damaged and foreign files are named for what they are."""

from __future__ import annotations

import struct

import pytest
import safetensors.torch
import torch

from zoo import hub
from zoo.errors import DamagedError, NotFoundError


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"a": torch.arange(100.0), "b": torch.ones(3, 2)}, path, metadata={"format": "pt"})
    return path


def test_a_whole_file_passes(weights):
    hub.check_safetensors(weights)


def test_no_tensors_at_all(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({}, path)
    hub.check_safetensors(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>sign in</html>", "web page"),
        (b"\n  <html>404</html>", "web page"),
        (b"PK\x03\x04" + b"0" * 90, "pickle"),
        (b"\x80\x02}q\x00." + b"0" * 90, "pickle"),
        (b"abc", "3 bytes only"),
        (b"a" * 200, "header claims"),
        (struct.pack("<Q", 20) + b"x" * 40, "no safetensors header"),
        (struct.pack("<Q", 2) + b"[]", "no safetensors header"),
        (struct.pack("<Q", 9) + b'{"a": {}}', "no safetensors header"),
    ],
)
def test_an_impostor_is_named(tmp_path, content, words):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(DamagedError, match=words) as caught:
        hub.check_safetensors(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kept", [8, 30, 200, -50, -1])
def test_a_cut_file(weights, kept):
    weights.write_bytes(weights.read_bytes()[:kept])
    with pytest.raises(DamagedError):
        hub.check_safetensors(weights)


def test_something_appended(weights):
    weights.write_bytes(weights.read_bytes() + b"more")
    with pytest.raises(DamagedError, match="bytes of tensors"):
        hub.check_safetensors(weights)


def test_missing(tmp_path):
    with pytest.raises(NotFoundError):
        hub.check_safetensors(tmp_path / "none")
