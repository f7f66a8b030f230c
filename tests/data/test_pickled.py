"""CIFAR's batches as torchvision keeps them: read as Python 2 and all after it write them, and no pickle runs."""

from __future__ import annotations

import os
import pickle
import struct

import numpy as np
import pytest

from zoo import data
from zoo.data.cifar import CIFAR10, CIFAR100
from zoo.errors import DamagedError, NotFoundError

SETS = {"cifar10": CIFAR10, "cifar100": CIFAR100}


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (10, 3, 32, 32), dtype=np.uint8)


def old(value) -> bytes:
    """The opcodes of protocol 2 by which Python 2 wrote text, numbers, lists, mappings and numpy arrays of bytes."""
    match value:
        case bytes():
            return b"T" + struct.pack("<i", len(value)) + value
        case int():
            return b"J" + struct.pack("<i", value)
        case list():
            return b"](" + b"".join(map(old, value)) + b"e"
        case dict():
            return b"}(" + b"".join(old(key) + old(content) for key, content in value.items()) + b"u"
        case np.ndarray():
            made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
            kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN" + old(-1) + old(-1) + b"K\x00tb"
            shape = b"(" + b"".join(map(old, value.shape)) + b"t"
            return made + b"(K\x01" + shape + kind + b"\x89" + old(value.tobytes()) + b"tb"
    raise TypeError(value)


WRITERS = {
    "python 2": lambda value: b"\x80\x02" + old(value) + b".",
    **{f"protocol {number}": lambda value, number=number: pickle.dumps(value, number) for number in range(6)},
}


def batches(root, name, images, write=WRITERS["python 2"], targets=None):
    """torchvision's folder of the set under `root`: `images` in each file, class `row` for each row."""
    one = SETS[name]
    folder = root / one.batches
    folder.mkdir(parents=True)
    (folder / one.meta).write_bytes(write({one.names.encode(): [word.encode() for word in one.layout.labels]}))
    for file in (*one.files["train"], *one.files["test"]):
        content = {
            b"batch_label": b"batch",
            one.targets.encode(): list(range(len(images))) if targets is None else targets,
        }
        (folder / file).write_bytes(
            write(content | {b"data": images.reshape(len(images), -1), b"filenames": [b"a.png"]})
        )
    return folder


def refused(error, name, split, place, match):
    with pytest.raises(error, match=match) as caught:
        data.open_dataset(name, split, place)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("writer", WRITERS)
def test_batches(tmp_path, images, name, writer):
    """As Python 2 wrote them, and as any protocol of today does; the five of CIFAR-10 come one after another."""
    folder = batches(tmp_path / "a", name, images, WRITERS[writer])
    times = len(SETS[name].files["train"])
    for root in (tmp_path / "a", folder):
        arrays = data.open_dataset(name, "train", root)
        assert np.array_equal(arrays.images.numpy(), np.concatenate([images] * times))
        assert arrays.targets.tolist() == list(range(10)) * times
        assert arrays.labels == SETS[name].layout.labels
        assert arrays.images.is_contiguous()
    assert len(data.open_dataset(name, "test", folder)) == 10
    (tmp_path / "b").mkdir()
    folder.rename(tmp_path / "b" / name)
    assert len(data.open_dataset(name, "test", tmp_path / "b")) == 10


def test_targets_as_an_array_and_keys_as_text(tmp_path, images):
    def write(content):
        return pickle.dumps({key.decode(): value for key, value in content.items()}, 4)

    batches(tmp_path, "cifar10", np.asfortranarray(images), write, targets=np.arange(10))
    arrays = data.open_dataset("cifar10", "test", tmp_path)
    assert np.array_equal(arrays.images.numpy(), images)
    assert arrays.targets.tolist() == list(range(10))


class Runs:
    """An object whose pickle calls `function`."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("where", ["data", "labels", "key", "whole"])
@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_runs_nothing(tmp_path, images, where, protocol):
    folder = batches(tmp_path, "cifar10", images)
    evil = Runs(os.mkdir, str(tmp_path / "ran"))
    whole = {b"data": images.reshape(10, -1), b"labels": list(range(10))}
    content = {
        "data": whole | {b"data": evil},
        "labels": whole | {b"labels": [evil] * 10},
        "key": whole | {b"x": evil},
        "whole": evil,
    }[where]
    (folder / "test_batch").write_bytes(pickle.dumps(content, protocol))
    refused(DamagedError, "cifar10", "test", tmp_path, r"test_batch cannot be read.*asks to run '.*mkdir'")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "program",
    [
        b"cos\nsystem\n(U\x09touch ranU\x00tR.",
        b"cbuiltins\neval\n(U\x011tR.",
        b"c__builtin__\neval\n(U\x011tR.",
        b"cnumpy\nload\nU\x01a\x85R.",
        b"cnumpy.core.multiarray\nfromfile\n)R.",
        b"cnumpy\nndarray.tofile\n)R.",
        b"\x80\x04\x8c\x0bnumpy.dtype\x8c\x08__init__\x93.",
        b"\x80\x04\x8c\x05numpy\x8c\x0dndarray.tofile\x93)R.",
        b"(ios\nsystem\n.",
        b"\x80\x02\x82\x01.",
        b"Pname\n.",
        b"\x80\x05\x97.",
    ],
)
def test_programs_by_hand(tmp_path, images, program):
    """Every opcode that calls, builds or looks up, with what an array never needs."""
    folder = batches(tmp_path, "cifar10", images)
    (folder / "test_batch").write_bytes(program)
    refused(DamagedError, "cifar10", "test", tmp_path, "test_batch cannot be read")


@pytest.mark.parametrize(
    "program",
    [
        b"cnumpy\ndtype\n(NU\x04name}K\x01K\x02stb.",
        b"cnumpy\ndtype\n}U\x0c__setstate__K\x00sb.",
        b"cnumpy\nndarray\n)\x81.",
        b"cnumpy.core.multiarray\n_reconstruct\n)RU\x01ab.",
    ],
)
def test_the_stand_ins_do_not_change(tmp_path, images, program):
    """A file cannot spoil, for those read after it, what stands for numpy's names."""
    folder = batches(tmp_path, "cifar10", images)
    (folder / "test_batch").write_bytes(program)
    refused(DamagedError, "cifar10", "test", tmp_path, "test_batch cannot be read")
    assert len(data.open_dataset("cifar10", "train", tmp_path)) == 50


@pytest.mark.parametrize("cut", [0, 1, 2, 50, 400, -1, -40])
def test_cut_batches(tmp_path, images, cut):
    folder = batches(tmp_path, "cifar10", images)
    path = folder / "data_batch_4"
    path.write_bytes(path.read_bytes()[:cut])
    refused(DamagedError, "cifar10", "train", tmp_path, r"data_batch_4 cannot be read.*fetch it again")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, "no data of"),
        ([], "no mapping"),
        ({b"data": [1]}, "no data of"),
        ({b"data": np.zeros((2, 3000), np.uint8), b"labels": [0, 1]}, r"no data of \(N, 3072\) bytes"),
        ({b"data": np.zeros((2, 3072), np.int64), b"labels": [0, 1]}, "no data of"),
        ({b"data": np.zeros((2, 3072), np.float32), b"labels": [0, 1]}, "whole numbers"),
        ({b"data": np.array([None]), b"labels": [0, 1]}, "no array|without its bytes|whole numbers"),
        ({b"data": np.zeros((2, 3072), np.uint8)}, "as many labels as its 2 pictures"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]}, "as many labels"),
        ({b"data": np.zeros((0, 3072), np.uint8), b"labels": []}, "as many labels"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 10]}, "no numbers from 0 to 9"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, -1]}, "no numbers from 0 to 9"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, "frog"]}, "no numbers from 0 to 9"),
        ({7: 1}, "where a name belongs"),
    ],
)
def test_batches_that_do_not_fit(tmp_path, images, content, said):
    folder = batches(tmp_path, "cifar10", images)
    (folder / "test_batch").write_bytes(pickle.dumps(content, 4))
    refused(DamagedError, "cifar10", "test", tmp_path, rf"test_batch.*{said}.*fetch it again")


def test_an_array_that_promises_more(tmp_path, images):
    folder = batches(tmp_path, "cifar10", images)
    path = folder / "test_batch"
    path.write_bytes(path.read_bytes().replace(old(10) + old(3072), old(11) + old(3072)))
    refused(DamagedError, "cifar10", "test", tmp_path, r"30720 values where it promises \(11, 3072\)")


def test_missing_batches(tmp_path, images):
    folder = batches(tmp_path, "cifar10", images)
    (folder / "data_batch_3").unlink()
    refused(NotFoundError, "cifar10", "train", tmp_path, "lacks data_batch_3")
    assert len(data.open_dataset("cifar10", "test", tmp_path)) == 10
    (folder / "batches.meta").unlink()
    refused(NotFoundError, "cifar10", "test", tmp_path, r"lacks batches\.meta")


@pytest.mark.parametrize(
    "content",
    [{}, {b"label_names": 7}, {b"label_names": [7]}, {b"label_names": [b"cat"] * 10}, {b"label_names": [b"\xff"]}],
)
def test_other_class_names(tmp_path, images, content):
    folder = batches(tmp_path, "cifar10", images)
    (folder / "batches.meta").write_bytes(pickle.dumps(content, 2))
    refused(DamagedError, "cifar10", "test", tmp_path, r"batches\.meta.*fetch it again")
