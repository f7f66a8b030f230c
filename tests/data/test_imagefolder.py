"""Folders of class folders: layouts, what is held out, and every fault by the name of the file or folder."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from zoo import data
from zoo.data.images import open_image
from zoo.data.preprocessing import Preprocessing
from zoo.errors import DamagedError, NotFoundError, UsageError

PREPROCESSING = Preprocessing(input_size=(3, 8, 8), mean=(0.5,) * 3, std=(0.5,) * 3)


def picture(path, value=0, size=(8, 8)):
    """A picture of one grey value, which tells it from others after any resizing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value,) * 3).save(path)
    return path


def fill(folder, **counts):
    """`counts` pictures in each class folder; the n-th picture of the c-th class has the value 50 c + n."""
    for index, (name, count) in enumerate(counts.items()):
        for number in range(count):
            picture(folder / name / f"{number:03}.png", 50 * index + number)
    return folder


def read(root, split="train", pixels=PREPROCESSING.pixels):
    return data.open_dataset(f"imagefolder:{root}", split, pixels=pixels)


def values(arrays):
    return arrays.images[:, 0, 0, 0].tolist()


def refused(error, root, match, split="train", **options):
    with pytest.raises(error, match=match) as caught:
        read(root, split, **options)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("test", ["test", "val", "valid", "validation", "Test", "testing"])
def test_two_splits(tmp_path, test):
    fill(tmp_path / "train", cat=3, dog=4)
    fill(tmp_path / test, cat=2, dog=1)
    picture(tmp_path / "annotations" / "beside.png")
    train, held = read(tmp_path), read(tmp_path, "test")
    assert train.images.shape == (7, 3, 8, 8) and train.images.dtype == torch.uint8
    assert train.targets.dtype == torch.int64
    assert train.labels == held.labels == ("cat", "dog")
    assert sorted(values(train)) == [0, 1, 2, 50, 51, 52, 53]
    assert sorted(values(held)) == [0, 1, 50]
    for arrays in (train, held):
        assert arrays.targets.tolist() == [value // 50 for value in values(arrays)]


def test_test_comes_before_val(tmp_path):
    fill(tmp_path / "train", a=2, b=2)
    fill(tmp_path / "val", a=2, b=2)
    fill(tmp_path / "test", a=1, b=1)
    assert len(read(tmp_path, "test")) == 2


@pytest.mark.parametrize("below", [".", "train"])
def test_a_tenth_is_held_out(tmp_path, below):
    """Of every class, at least one picture, never in both splits, the same wherever the folder is."""
    for root in (tmp_path / "a", tmp_path / "b"):
        fill(root / below, cat=40, dog=19, eel=2)
        train, held = read(root), read(root, "test")
        assert held.targets.bincount().tolist() == [4, 1, 1]
        assert train.targets.bincount().tolist() == [36, 18, 1]
        assert sorted(values(train) + values(held)) == [*range(40), *range(50, 69), 100, 101]
    assert values(train) == values(read(tmp_path / "a"))
    assert values(held) == values(read(tmp_path / "a", "test"))
    assert sorted(value for value in values(held) if value < 50) != [0, 1, 2, 3]  # the first are often of one source


def test_the_first_pictures_are_of_mixed_classes(tmp_path):
    """A recipe may train on the first so many pictures."""
    fill(tmp_path, a=40, b=40, c=40)
    assert set(read(tmp_path).first(20).targets.tolist()) == {0, 1, 2}


def test_one_more_picture_moves_few(tmp_path):
    fill(tmp_path, a=40, b=40)
    before = set(values(read(tmp_path, "test")))
    picture(tmp_path / "a" / "new.png", 200)
    assert len(before - set(values(read(tmp_path, "test")))) <= 1


def test_prepared_as_the_model_takes_them(tmp_path):
    """Any size, mode, depth and turn; the pixels are those of a prediction from the same file."""
    root = fill(tmp_path, a=2, b=2)
    noise = np.random.default_rng(0).integers(0, 256, (31, 17, 4), dtype=np.uint8)
    Image.fromarray(noise).save(root / "a" / "alpha.webp", lossless=True)
    Image.fromarray(noise[:, :, 0]).save(root / "a" / "grey.PNG")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(noise[:, :, :3]).save(root / "b" / "turned.jpg", exif=exif)
    expected = {PREPROCESSING.pixels(open_image(path)).numpy().tobytes() for path in root.rglob("*") if path.suffix}
    found = {image.numpy().tobytes() for split in ("train", "test") for image in read(root, split).images}
    assert found == expected
    grey = Preprocessing(input_size=(1, 5, 6), mean=(0.5,), std=(0.5,))
    assert read(root, pixels=grey.pixels).images.shape[1:] == (1, 5, 6)


def test_what_is_left_out(tmp_path):
    root = fill(tmp_path, b=3, a=3)
    for name in (".DS_Store", "._000.png", "notes.txt", "Thumbs.db", "data.csv", "film.mpg"):
        (root / "a" / name).write_bytes(b"no picture")
    picture(root / ".hidden" / "x.png")
    picture(root / "a" / ".cache" / "x.png")
    (root / "labels.csv").write_text("a,b")
    picture(root / "preview.png")
    arrays = [read(root, split) for split in ("train", "test")]
    assert [arrays.labels for arrays in arrays] == [("a", "b")] * 2
    assert sum(map(len, arrays)) == 6


def test_pictures_below_the_class_folder(tmp_path):
    """As Tiny ImageNet keeps them."""
    for name in ("a", "b"):
        for number in range(3):
            picture(tmp_path / "train" / name / "images" / f"{number}.png")
    assert len(read(tmp_path)) == 4


def test_a_class_called_train(tmp_path):
    """CIFAR-100 has one."""
    assert read(fill(tmp_path, train=2, boat=2)).labels == ("boat", "train")
    picture(tmp_path / "train" / "more" / "x.png")
    refused(DamagedError, tmp_path, "train holds pictures as well as folders")


def test_names_as_people_give_them(tmp_path, monkeypatch):
    fill(tmp_path / "Bilder größe [x]", **{"große Katze": 2, "dog, small": 2})
    arrays = read(tmp_path / "Bilder größe [x]")
    assert arrays.labels == ("dog, small", "große Katze")
    monkeypatch.chdir(tmp_path)
    assert len(read("Bilder größe [x]")) == 2
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert len(read("~/Bilder größe [x]")) == 2


def test_usage(tmp_path):
    fill(tmp_path, a=2, b=2)
    with pytest.raises(UsageError, match="pixels=Preprocessing"):
        data.open_dataset(f"imagefolder:{tmp_path}", "train")
    with pytest.raises(UsageError, match="names no folder; imagefolder:DIR"):
        data.open_dataset("imagefolder:", "train", pixels=PREPROCESSING.pixels)
    with pytest.raises(UsageError, match="train and test"):
        data.open_dataset(f"imagefolder:{tmp_path}", "val", pixels=PREPROCESSING.pixels)
    with pytest.raises(NotFoundError, match="imagefolder:DIR"):
        data.open_dataset(str(tmp_path), "train", pixels=PREPROCESSING.pixels)


def test_more_than_memory_holds(tmp_path, monkeypatch):
    def full(*shape, **options):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    fill(tmp_path, a=2, b=2)
    monkeypatch.setattr(torch, "empty", full)
    refused(UsageError, tmp_path, "2 pictures .* GiB of memory; use fewer")


def test_no_such_folder(tmp_path):
    refused(NotFoundError, tmp_path / "none", "there is no folder")
    (tmp_path / "file").write_text("")
    refused(NotFoundError, tmp_path / "file", "there is no folder")


def test_no_classes(tmp_path):
    refused(NotFoundError, tmp_path, "holds no class folders")
    picture(tmp_path / "a.png")
    refused(NotFoundError, tmp_path, "holds no class folders")


def test_one_class(tmp_path):
    fill(tmp_path / "pictures", a=3, b=3)
    refused(DamagedError, tmp_path, "one class folder, 'pictures'.*name the folder whose folders are the classes")


@pytest.mark.parametrize("split", ["train", "test"])
def test_an_empty_class(tmp_path, split):
    fill(tmp_path, a=3, b=3)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "notes.txt").write_text("none yet")
    refused(DamagedError, tmp_path, "c holds no picture", split)


def test_a_class_of_one(tmp_path):
    fill(tmp_path / "train", a=3, b=1)
    refused(DamagedError, tmp_path, "b holds one picture.*needs two")
    fill(tmp_path / "test", a=1, b=1)
    assert len(read(tmp_path)) == 4


@pytest.mark.parametrize("split", ["train", "test"])
def test_splits_of_different_classes(tmp_path, split):
    fill(tmp_path / "train", a=2, b=2, eel=2)
    fill(tmp_path / "val", a=2, b=2)
    refused(DamagedError, tmp_path, "'eel' is in .*train and not in .*val", split)
    fill(tmp_path / "val", eel=1, fox=1)
    refused(DamagedError, tmp_path, "'fox' is in .*val and not in .*train", split)


def test_test_pictures_alone(tmp_path):
    fill(tmp_path / "test", a=2, b=3)
    assert len(read(tmp_path, "test")) == 5
    refused(NotFoundError, tmp_path, "no folder train")


def test_two_folders_for_a_split(tmp_path):
    fill(tmp_path / "train", a=2, b=2)
    fill(tmp_path / "TRAIN", a=2, b=2)
    if len(list(tmp_path.iterdir())) == 1:
        pytest.skip("this file system takes both names for one")
    refused(DamagedError, tmp_path, "both TRAIN and train")


@pytest.mark.parametrize("content", [b"", b"<html>", b"\x89PNG\r\n\x1a\n", None])
def test_a_broken_picture(tmp_path, content):
    path = picture(fill(tmp_path, a=3, b=3) / "a" / "broken.png", size=(64, 64))
    path.write_bytes(path.read_bytes()[:-30] if content is None else content)
    picture(tmp_path / "a" / "whole.png")
    with pytest.raises(DamagedError, match=r"broken\.png: .*; mend or remove that file") as caught:
        for split in ("train", "test"):
            read(tmp_path, split)
    assert "\n" not in str(caught.value)


def test_a_picture_that_the_model_refuses(tmp_path):
    """The preprocessing knows no file names; the message has one none the less."""
    root = fill(tmp_path, a=2, b=2)

    def blank(image):
        raise DamagedError("the picture shows nothing")

    refused(DamagedError, root, r"[ab]/00\d\.png: the picture shows nothing; mend or remove", pixels=blank)


def test_links_are_followed(tmp_path):
    fill(tmp_path / "store", cats=3, dogs=3)
    extra = picture(tmp_path / "store" / "extra" / "x.png", 7)
    root = tmp_path / "root"
    root.mkdir()
    (root / "a").symlink_to(tmp_path / "store" / "cats")
    (root / "b").symlink_to("../store/dogs")
    (tmp_path / "store" / "cats" / "linked.png").symlink_to(extra)
    arrays = [read(root, split) for split in ("train", "test")]
    assert [one.labels for one in arrays] == [("a", "b")] * 2
    assert sorted(values(arrays[0]) + values(arrays[1])) == [0, 1, 2, 7, 50, 51, 52]
    (tmp_path / "link").symlink_to(root)
    assert len(read(tmp_path / "link")) == 5


@pytest.mark.parametrize("target", ["..", ".", "../b", "../../root"])
def test_links_to_what_is_read_already(tmp_path, target):
    """Neither without end, nor the pictures of one class under another."""
    root = fill(tmp_path / "root", a=3, b=3)
    (root / "a" / "link").symlink_to(target)
    refused(DamagedError, root, "same folder, by a link")


def test_a_split_that_is_a_link_to_the_other(tmp_path):
    fill(tmp_path / "train", a=3, b=3)
    (tmp_path / "val").symlink_to("train")
    refused(DamagedError, tmp_path, "same folder, by a link", "test")


@pytest.mark.parametrize("place", ["c", "c.v2", "a/x.png", "a/more"])
def test_links_that_lead_nowhere(tmp_path, place):
    fill(tmp_path, a=3, b=3)
    for target in ("none", place.split("/")[-1]):  # the second is a link to itself
        (tmp_path / place).symlink_to(target)
        refused(DamagedError, tmp_path, f"{place} is a link that leads nowhere")
        (tmp_path / place).unlink()


@pytest.mark.skipif(sys.platform == "win32", reason="pipes have no place in folders there")
def test_a_pipe_is_not_waited_for(tmp_path):
    fill(tmp_path, a=3, b=3)
    os.mkfifo(tmp_path / "a" / "x.png")
    refused(DamagedError, tmp_path, r"x\.png is no file")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such a name themselves")
@pytest.mark.parametrize("name", [b"\xff\xfe", b"a\nb"])
def test_a_class_name_that_cannot_be_printed(tmp_path, name):
    fill(tmp_path, a=3, b=3)
    folder = os.path.join(os.fsencode(tmp_path), name)
    os.mkdir(folder)
    Image.new("L", (8, 8)).save(os.fsdecode(os.path.join(folder, b"x.png")))
    refused(DamagedError, tmp_path, "cannot be printed; rename it")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read(tmp_path):
    fill(tmp_path, a=3, b=3)
    for mode in (0o000, 0o400):
        (tmp_path / "a").chmod(mode)
        refused(DamagedError, tmp_path, "cannot be read.*permissions")
    (tmp_path / "a").chmod(0o700)


def test_the_gateway_decides_what_is_a_picture(tmp_path):
    fill(tmp_path, a=2, b=2)
    Image.new("L", (8, 8), 9).save(tmp_path / "a" / "x.TIFF")
    assert sum(len(read(tmp_path, split)) for split in ("train", "test")) == 5
