"""MNIST from IDX files of every usual layout, and from the Hub's Parquet file; damage is named."""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil

import numpy as np
import pytest
from PIL import Image

from zoo import data, hub
from zoo.errors import DamagedError, NotFoundError, UsageError

FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()


@pytest.fixture
def small(tmp_path):
    """A set of five pictures, packed, as `root/mnist/`."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (5, 28, 28)), np.arange(5)
    (tmp_path / "mnist").mkdir()
    for pictures, targets in FILES.values():
        (tmp_path / "mnist" / f"{pictures}.gz").write_bytes(gzip.compress(idx(images)))
        (tmp_path / "mnist" / f"{targets}.gz").write_bytes(gzip.compress(idx(labels)))
    return tmp_path, images, labels


def test_the_real_set(data_dir):
    """The content has the checksums of the files that everybody has."""
    train, test = (data.open_dataset("mnist", split, data_dir) for split in ("train", "test"))
    assert (len(train), len(test)) == (60_000, 10_000)
    assert train.images.shape == (60_000, 1, 28, 28)
    assert hashlib.md5(idx(test.images[:, 0].numpy())).hexdigest() == "2646ac647ad5339dbf082846283269ea"
    assert hashlib.md5(idx(train.targets.numpy())).hexdigest() == "a25bea736e30d166cdddb491f175f624"


def test_layouts(small, tmp_path):
    root, images, labels = small
    raw = tmp_path / "torchvision" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for pictures, targets in FILES.values():
        (raw / pictures).write_bytes(idx(images))
        (raw / targets).write_bytes(idx(labels))
    for place in (root, root / "mnist", tmp_path / "torchvision", raw, str(raw)):
        arrays = data.open_dataset("mnist", "test", place)
        assert np.array_equal(arrays.images[:, 0].numpy(), images)
        assert arrays.targets.tolist() == labels.tolist()
        assert arrays.labels == tuple("0123456789")


def test_the_variable_names_the_folder(small, monkeypatch, tmp_path):
    root, _, _ = small
    monkeypatch.setenv("ZOO_DATA", str(root))
    assert len(data.open_dataset("mnist", "train")) == 5
    monkeypatch.setenv("ZOO_DATA", str(tmp_path / "none"))
    assert len(data.open_dataset("mnist", "train", root)) == 5


def test_missing_names_both_ways(tmp_path, monkeypatch):
    for place in (tmp_path / "none", tmp_path):
        with pytest.raises(NotFoundError, match=r"--data-dir.*ZOO_DATA.*Hub") as caught:
            data.open_dataset("mnist", "test", place)
        assert "\n" not in str(caught.value)
    monkeypatch.delenv("ZOO_DATA", raising=False)

    def fail(*args, **kwargs):
        raise NotFoundError("the Hub was not reached")

    monkeypatch.setattr(hub, "fetch", fail)
    with pytest.raises(NotFoundError, match=r"the Hub was not reached.*--data-dir or ZOO_DATA"):
        data.open_dataset("mnist", "test")


def test_from_the_hub(tmp_path, monkeypatch):
    import pyarrow as pa
    import pyarrow.parquet

    images = np.random.default_rng(0).integers(0, 256, (4, 28, 28), dtype=np.uint8)
    rows = []
    for image in images:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG")
        rows.append({"bytes": buffer.getvalue(), "path": None})
    path = tmp_path / "test.parquet"
    pyarrow.parquet.write_table(pa.table({"image": rows, "label": [3, 1, 4, 1]}), path)
    asked = []
    monkeypatch.setattr(hub, "fetch", lambda *words, **options: asked.append((words, options)) or path)
    monkeypatch.delenv("ZOO_DATA", raising=False)
    arrays = data.open_dataset("mnist", "test")
    assert np.array_equal(arrays.images[:, 0].numpy(), images)
    assert arrays.targets.tolist() == [3, 1, 4, 1]
    assert asked[0][1]["repo_type"] == "dataset"


def test_a_damaged_file_of_the_hub(tmp_path, monkeypatch):
    import pyarrow as pa
    import pyarrow.parquet

    path = tmp_path / "test.parquet"
    monkeypatch.setattr(hub, "fetch", lambda *words, **options: path)
    monkeypatch.delenv("ZOO_DATA", raising=False)
    pyarrow.parquet.write_table(pa.table({"picture": [b"a"]}), path)
    for content in (path.read_bytes(), path.read_bytes()[:-9], b"", b"<html>"):
        path.write_bytes(content)
        with pytest.raises(DamagedError, match=r"test\.parquet is not MNIST's Parquet file") as caught:
            data.open_dataset("mnist", "test")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-10],
        lambda content: b"",
        lambda content: b"\x1f\x8b" + content[2:40],
        lambda content: gzip.compress(gzip.decompress(content)[:-1]),
        lambda content: gzip.compress(gzip.decompress(content) + b"x"),
        lambda content: gzip.compress(b"\0\0\x0d\x03" + gzip.decompress(content)[4:]),
        lambda content: b"<html>",
        lambda content: gzip.compress(b"\0\0\x08\x03\0"),
    ],
)
def test_damage_is_named(small, damage):
    root, _, _ = small
    path = root / "mnist" / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DamagedError, match=r"t10k-images-idx3-ubyte\.gz"):
        data.open_dataset("mnist", "test", root)


@pytest.mark.parametrize("labels", [np.arange(4), np.array([0, 1, 2, 3, 77])])
def test_labels_that_do_not_fit(small, labels):
    root, _, _ = small
    (root / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    with pytest.raises(DamagedError, match="labels"):
        data.open_dataset("mnist", "test", root)


def test_half_of_a_set(small):
    root, _, _ = small
    (root / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(NotFoundError, match="t10k-labels"):
        data.open_dataset("mnist", "test", root)


def test_unknown_words(tmp_path):
    with pytest.raises(NotFoundError, match="mnist"):
        data.open_dataset("imagenet", "test", tmp_path)
    with pytest.raises(UsageError, match="train and test"):
        data.open_dataset("mnist", "validation", tmp_path)


def test_reading_leaves_the_source_alone(small, tmp_path):
    root, _, _ = small
    shutil.copytree(root / "mnist", tmp_path / "copy")
    data.open_dataset("mnist", "train", root).images.zero_()
    for path in (tmp_path / "copy").iterdir():
        assert path.read_bytes() == (root / "mnist" / path.name).read_bytes()
