"""CIFAR-10 and CIFAR-100 from Parquet files, of a folder or of the Hub; damage is named."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from zoo import data, hub, registry
from zoo.data.cifar import CIFAR10, CIFAR100
from zoo.errors import DamagedError, NotFoundError

SETS = {"cifar10": CIFAR10, "cifar100": CIFAR100}

# Of the arrays (N, 32, 32, 3), in the README of the data folder.
SHA256 = {
    "cifar10": (
        "c7c6557433f8d7c52900e0fc5549bd21bf6f33fefee1f478f5adbc5499bb11c7",
        "25a508aee148b4ccf689df271258bb61c79db1edd6c7bdc2d32e0f748c0bf68c",
    ),
    "cifar100": (
        "4e457917601a66aed021f5fa37957b56c6319557c0a8ed5484de3c390af45430",
        "4cb8e5d9309da489bf6b19cc10cd96c3ae6f8daf225380b605aaee4c0d6aee19",
    ),
}


@pytest.fixture(scope="session", params=SETS)
def real(request, data_of):
    """The name of a set and its two splits, read once."""
    name = request.param
    return name, *(data.open_dataset(name, split, data_of(name)) for split in ("train", "test"))


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (10, 3, 32, 32), dtype=np.uint8)


def png(image: np.ndarray) -> bytes:
    """`image`: (3, height, width)"""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0))).save(buffer, "PNG")
    return buffer.getvalue()


def write_parquet(path, images, targets, label="label", names=None, replaced=None):
    import pyarrow as pa
    import pyarrow.parquet

    rows = [{"bytes": png(image), "path": f"{row}.png"} for row, image in enumerate(images)]
    table = pa.table({"img": rows, label: list(targets)} | (replaced or {}))
    if names is not None:
        note = {"info": {"features": {label: {"names": list(names), "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(note)})
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, path)


def refused(error, name, split, place, match):
    with pytest.raises(error, match=match) as caught:
        data.open_dataset(name, split, place)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_the_real_sets(real):
    """Every pixel, in order, is the one that the data folder's README gives the checksum of."""
    name, *splits = real
    for arrays, count, expected in zip(splits, (50_000, 10_000), SHA256[name], strict=True):
        assert arrays.images.shape == (count, 3, 32, 32) and arrays.images.is_contiguous()
        assert hashlib.sha256(arrays.images.permute(0, 2, 3, 1).contiguous().numpy()).hexdigest() == expected
        assert arrays.labels == SETS[name].layout.labels
        assert set(arrays.targets.bincount().tolist()) == {count // len(arrays.labels)}


def test_the_first_picture(real):
    """The order is the original one."""
    name, train, test = real
    first = {"cifar10": ("frog", "cat"), "cifar100": ("cattle", "mountain")}[name]
    assert tuple(arrays.labels[arrays.targets[0]] for arrays in (train, test)) == first


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("place", ["{}", "{}/data", "{}/FOLDER", "."])
def test_parquet_layouts(tmp_path, images, name, place):
    """Shards are joined by their numbers, wherever the folder is, and a set's own folder may be named itself."""
    one = SETS[name]
    folder = tmp_path / place.format(name).replace("FOLDER", one.folder)
    for shard, rows in enumerate((slice(0, 4), slice(4, 10))):
        path = folder / f"train-{shard:05}-of-00002.parquet"
        write_parquet(path, images[rows], range(10)[rows], one.layout.label, one.layout.labels)
    for root in (tmp_path, folder):
        arrays = data.open_dataset(name, "train", root)
        assert np.array_equal(arrays.images.numpy(), images)
        assert arrays.targets.tolist() == list(range(10))
        assert arrays.labels == one.layout.labels
    assert len(data.open_dataset(name, "train", root).first(3)) == 3


def test_one_set_beside_the_other(tmp_path, images):
    for name, one in SETS.items():
        write_parquet(tmp_path / name / "test-00000-of-00001.parquet", images, range(10), one.layout.label)
        assert data.open_dataset(name, "test", tmp_path).labels == one.layout.labels
    refused(DamagedError, "cifar100", "test", tmp_path / "cifar10", "is not CIFAR-100's Parquet file.*fine_label")


@pytest.mark.parametrize("name", SETS)
def test_from_the_hub(tmp_path, monkeypatch, images, name):
    one = SETS[name]
    write_parquet(tmp_path / "a.parquet", images, range(10), one.layout.label)
    asked = []
    monkeypatch.setattr(
        hub, "fetch", lambda *words, **options: asked.append((words, options)) or tmp_path / "a.parquet"
    )
    monkeypatch.delenv("ZOO_DATA", raising=False)
    assert np.array_equal(data.open_dataset(name, "test").images.numpy(), images)
    folder = {"cifar10": "plain_text", "cifar100": "cifar100"}[name]
    assert asked[0][0] == (f"uoft-cs/{name}", f"{folder}/test-00000-of-00001.parquet")
    assert asked[0][1] == {"repo_type": "dataset", "local_files_only": False}


@pytest.mark.parametrize("name", SETS)
def test_missing_names_the_three_ways(tmp_path, monkeypatch, name):
    batch = SETS[name].batches
    (tmp_path / "train").mkdir()  # a folder, as image sets have it, is no file of CIFAR-100
    refused(NotFoundError, name, "train", tmp_path, rf"parquet.*{batch}.*--data-dir or ZOO_DATA.*Hub")
    monkeypatch.delenv("ZOO_DATA", raising=False)

    def fail(*args, **kwargs):
        raise NotFoundError("the Hub was not reached")

    monkeypatch.setattr(hub, "fetch", fail)
    refused(NotFoundError, name, "test", None, rf"the Hub was not reached.*Parquet.*{batch}.*--data-dir or ZOO_DATA")


@pytest.mark.parametrize("name", ["mnist", *SETS])
def test_a_folder_that_may_not_be_read(tmp_path, monkeypatch, name):
    """Root may read everything, so the system's answer is imitated."""

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    refused(DamagedError, name, "test", tmp_path, r"cannot be read \(Permission denied\); see its permissions")


def test_a_missing_shard(tmp_path, images):
    for shard in (0, 2):
        write_parquet(tmp_path / f"train-{shard:05}-of-00003.parquet", images, range(10))
    refused(NotFoundError, "cifar10", "train", tmp_path, "train-00001-of-00003.parquet")
    write_parquet(tmp_path / "train-00000-of-00001.parquet", images, range(10))
    refused(DamagedError, "cifar10", "train", tmp_path, "sets of 1 and of 3")


def test_damaged_parquet(tmp_path, images):
    path = tmp_path / "test-00000-of-00001.parquet"
    write_parquet(path, images, range(10))
    whole = path.read_bytes()
    for content in (whole[:-9], whole[: len(whole) // 2], b"", b"<html>", b"PAR1" + bytes(40) + b"PAR1"):
        path.write_bytes(content)
        refused(
            DamagedError, "cifar10", "test", tmp_path, r"test-00000-of-00001\.parquet is not CIFAR-10's Parquet file"
        )


def broken_row(content):
    return lambda images: {"img": [{"bytes": png(image), "path": None} for image in images[:9]] + [content]}


@pytest.mark.parametrize(
    ("replaced", "said"),
    [
        (lambda images: {"label": [*range(9), 10]}, "row 9: label is 10, a number from 0 to 9"),
        (lambda images: {"label": [-1, *range(9)]}, "row 0: label is -1"),
        (lambda images: {"label": [None, *range(9)]}, "row 0: label is None"),
        (lambda images: {"label": ["frog"] * 10}, "row 0: label is frog"),
        (lambda images: {"label": [0.0] * 10}, r"row 0: label is 0\.0"),
        (lambda images: {"label": [True] * 10}, "row 0: label is True"),
        (broken_row({"bytes": b"<html>", "path": None}), "row 9: .*no picture"),
        (broken_row({"bytes": b"", "path": None}), "row 9: .*empty"),
        (broken_row({"bytes": None, "path": "a.png"}), "row 9: img has no bytes"),
        (broken_row(None), "row 9: img has no bytes"),
        (broken_row({"bytes": png(np.zeros((3, 32, 28), np.uint8)), "path": None}), "28x32 pixels, 32x32 would"),
        (broken_row({"bytes": png(np.zeros((3, 32, 32), np.uint8))[:-30], "path": None}), "row 9: "),
        (lambda images: {"img": [png(image) for image in images]}, "img"),
        (lambda images: {"img": ["a.png"] * 10}, "img"),
        (lambda images: {"img": [], "label": []}, "no rows|img"),
    ],
)
def test_rows_that_do_not_fit(tmp_path, images, replaced, said):
    write_parquet(tmp_path / "test-00000-of-00001.parquet", images, range(10), replaced=replaced(images))
    refused(DamagedError, "cifar10", "test", tmp_path, rf"test-00000-of-00001\.parquet.*{said}")


def test_other_classes_under_the_same_columns(tmp_path, images):
    names = ("T-shirt", *CIFAR10.layout.labels[1:])
    write_parquet(tmp_path / "test-00000-of-00001.parquet", images, range(10), names=names)
    refused(DamagedError, "cifar10", "test", tmp_path, "its labels are T-shirt")


def test_a_grey_picture_is_a_picture(tmp_path, images):
    """A program that makes files smaller stores a picture without colours as grey."""
    buffer = io.BytesIO()
    Image.fromarray(images[0, 0]).save(buffer, "PNG")
    row = {"img": [{"bytes": buffer.getvalue(), "path": None}]}
    write_parquet(tmp_path / "test-00000-of-00001.parquet", images[:1], [3], replaced=row)
    arrays = data.open_dataset("cifar10", "test", tmp_path)
    assert np.array_equal(arrays.images[0].numpy(), np.stack([images[0, 0]] * 3))


@pytest.mark.parametrize("one", [CIFAR10, CIFAR100], ids=lambda one: one.name)
def test_the_registry_has_the_names_of_the_classes(one):
    stated = {registry.get(name).labels for name in registry.names() if registry.get(name).dataset == one.name}
    assert stated == {one.layout.labels}
