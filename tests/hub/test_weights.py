"""What counts as at hand is what can be had."""

from __future__ import annotations

import msgspec
import pytest

from zoo import hub, registry
from zoo.errors import DamagedError, NotFoundError
from zoo.hub import weights

HASH = "0" * 64


def entry(**facts):
    return registry.Entry(
        name="mine",
        summary="mine",
        architecture="osa_vit_mnist",
        mechanism="orthogonal",
        task="image-classification",
        weights=registry.Weights(**facts),
    )


@pytest.mark.parametrize(
    ("facts", "there", "answer"),
    [
        ({}, False, False),
        ({}, True, False),  # what lies there cannot be verified
        ({"sha256": HASH, "bytes": 1}, False, False),
        ({"sha256": HASH, "bytes": 1}, True, True),
        ({"sha256": HASH, "bytes": 1, "repository": "org/mine", "revision": "0" * 40}, False, True),
    ],
)
def test_at_hand(monkeypatch, tmp_path, facts, there, answer):
    monkeypatch.setattr(weights, "_in_checkout", lambda name: tmp_path / "model.safetensors" if there else None)
    assert hub.at_hand(entry(**facts)) is answer


def test_what_is_not_at_hand_is_not_found(monkeypatch, tmp_path):
    import safetensors.torch
    import torch

    monkeypatch.setattr(weights, "_in_checkout", lambda name: None)
    with pytest.raises(NotFoundError, match="zoo train mine"):
        hub.find_weights(msgspec.structs.replace(entry(), dataset="mnist"))
    with pytest.raises(NotFoundError, match="pretrained=False") as caught:  # what has no data set cannot be trained
        hub.find_weights(entry())
    assert "zoo train" not in str(caught.value)
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"a": torch.ones(3)}, path)
    monkeypatch.setattr(weights, "_in_checkout", lambda name: path)
    with pytest.raises(DamagedError, match="no sha256 for mine"):
        hub.find_weights(entry())
    with pytest.raises(DamagedError, match="is not the file that the registry means"):
        hub.find_weights(entry(sha256=HASH, bytes=1))
    right = entry(sha256=hub.sha256_of(path), bytes=path.stat().st_size)
    assert hub.find_weights(right) == path
    assert hub.at_hand(right)
