"""A name, a folder or a Hub id -> a model; everything that can be wrong on the way has its line."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch

import zoo
from zoo import hub, loading, registry
from zoo.errors import DamagedError, DeviceError, NotFoundError, UsageError
from zoo.training import result

ROOT = Path(__file__).resolve().parents[1]
IMAGE = registry.names(hidden=True, task="image-classification")
TRAINED = [name for name in IMAGE if hub.at_hand(registry.get(name))]


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder as a training leaves it, of the test-sized model."""
    torch.manual_seed(0)
    model = zoo.load("test-osa-vit", pretrained=False)
    result.save_weights(model, tmp_path / "mine" / "model.safetensors")
    result.save_config(model, tmp_path / "mine" / "config.json")
    return tmp_path / "mine"


def images(model, count=2):
    return torch.randn(count, *model.pretrained_cfg["input_size"], generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", TRAINED)
def test_weights_of_the_registry(name):
    model = zoo.load(name)
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    stored = safetensors.torch.load_file(ROOT / "weights" / name / "model.safetensors")
    assert all(torch.equal(stored[key], value) for key, value in model.state_dict().items())
    assert model.pretrained_cfg["zoo_name"] == name
    assert "file" not in model.pretrained_cfg


@pytest.mark.parametrize("name", TRAINED)
def test_timm_gets_the_same_weights(name):
    architecture = registry.get(name).architecture
    model = timm.create_model(architecture, pretrained=True).eval()
    own = zoo.load(name)
    x = images(own)
    assert torch.equal(model(x), own(x))
    assert model.pretrained_cfg == own.pretrained_cfg


@pytest.mark.parametrize("name", TRAINED)
def test_published_folder_opens_everywhere(name):
    from transformers import AutoModelForImageClassification

    folder = ROOT / "weights" / name
    own = zoo.load(name)
    x = images(own)
    by_zoo, by_timm = zoo.load(folder), timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    by_transformers = AutoModelForImageClassification.from_pretrained(folder, dtype=torch.float32).eval()
    assert torch.equal(by_zoo(x), own(x))
    assert torch.equal(by_timm(x), own(x))
    torch.testing.assert_close(by_transformers(x).logits, own(x))
    assert by_transformers.config.id2label[7] == own.pretrained_cfg["label_names"][7]
    for key in ("framing", "zoo_name", "dataset"):
        assert by_zoo.pretrained_cfg[key] == own.pretrained_cfg[key]
    assert zoo.transform(by_zoo) == zoo.transform(own)


@pytest.mark.parametrize("name", IMAGE)
def test_without_weights(name):
    model = zoo.load(name, pretrained=False)
    assert model(images(model)).shape == (2, model.num_classes)
    named = model.pretrained_cfg.get("label_names")
    assert model.num_classes == (len(named) if named else registry.get(name).classes)


def test_a_folder(folder):
    model = zoo.load(str(folder))
    stored = safetensors.torch.load_file(folder / "model.safetensors")
    assert all(torch.equal(stored[key], value) for key, value in model.state_dict().items())
    assert model.pretrained_cfg["framing"] == "digit"
    assert model.pretrained_cfg["label_names"][3] == "3"


def test_a_registry_name_means_the_registry_even_beside_a_folder(folder, monkeypatch):
    shutil.move(folder, folder.with_name("test-osa-vit"))
    monkeypatch.chdir(folder.parent)
    with pytest.raises(NotFoundError, match="no weights"):
        zoo.load("test-osa-vit")
    assert zoo.load("./test-osa-vit")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_stored_and_wanted_precision(folder, dtype):
    half = {key: value.half() for key, value in safetensors.torch.load_file(folder / "model.safetensors").items()}
    safetensors.torch.save_file(half, folder / "model.safetensors", metadata={"format": "pt"})
    model = zoo.load(folder)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    low = zoo.load(folder, dtype=dtype)
    assert {parameter.dtype for parameter in low.parameters()} == {dtype}
    x = images(model)
    torch.testing.assert_close(low(x.to(dtype)).float(), model(x), atol=0.02, rtol=0.05)


def test_dtype_has_to_be_one():
    for wrong in (torch.int8, "float32", None):
        with pytest.raises(UsageError, match=r"torch\.float32"):
            zoo.load("test-osa-vit", pretrained=False, dtype=wrong)


def test_another_number_of_classes(folder):
    with pytest.warns(UserWarning, match="the head of test-osa-vit was replaced: 3 classes instead of 10, not trained"):
        model = zoo.load(folder, num_classes=3)
    assert model.num_classes == 3
    assert "label_names" not in model.pretrained_cfg


def test_another_image_size(folder):
    model = zoo.load(folder, img_size=42)
    assert model(torch.randn(1, 1, 42, 42)).shape == (1, 10)


def test_an_unknown_argument():
    with pytest.raises(UsageError, match="colour"):
        zoo.load("test-osa-vit", pretrained=False, colour="red")


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_heads": 3},
        {"basis": "magic"},
        {"max_norm": -1.0},
        {"init_values": 1e-3},
        {"qk_norm": True},
        {"attn_drop_rate": 0.5},
    ],
)
def test_an_argument_out_of_range(arguments):
    with pytest.raises(UsageError):
        zoo.load("test-osa-vit", pretrained=False, **arguments)(torch.randn(1, 1, 28, 28))


def test_no_weights_says_what_to_do():
    with pytest.raises(NotFoundError, match=r"pretrained=False.*zoo train test-osa-vit"):
        zoo.load("test-osa-vit")


@pytest.mark.parametrize("name", ["osa-vit-mnits", "OSA-VIT-MNIST"])
def test_unknown_names(name):
    with pytest.raises(NotFoundError, match="osa-vit-mnist"):
        zoo.load(name)


def test_a_strange_name_in_a_folder_cannot_leave_it(folder):
    config = json.loads((folder / "config.json").read_text())
    for name in ("../../escaped", "/escaped", "", None, 3):
        (folder / "config.json").write_text(json.dumps({**config, "zoo": {**config["zoo"], "zoo_name": name}}))
        assert zoo.load(folder).pretrained_cfg["zoo_name"] == "mine"


def test_a_name_too_long_for_a_file():
    with pytest.raises(NotFoundError, match="unknown model"):
        zoo.load("x" * 5000)


def test_a_folder_has_no_revisions(folder):
    with pytest.raises(UsageError, match="revision"):
        zoo.load(folder, revision="main")


@pytest.mark.parametrize("arguments", [{"img_size": 42}, {"in_chans": 3}])
def test_a_framing_for_another_size_is_refused_not_dropped(folder, arguments):
    for model in (zoo.load(folder, **arguments), zoo.load("test-osa-vit", pretrained=False, **arguments)):
        assert model(images(model)).shape == (2, 10)
        with pytest.raises(UsageError, match="framing 'digit'"):
            zoo.transform(model)


def test_an_input_size_that_contradicts_the_model_changes_nothing(folder):
    config = json.loads((folder / "config.json").read_text())
    config["pretrained_cfg"]["input_size"] = [1, 1000, 1000]
    (folder / "config.json").write_text(json.dumps(config))
    assert zoo.transform(zoo.load(folder)).input_size == (1, 28, 28)


def test_missing_folder(tmp_path):
    with pytest.raises(NotFoundError, match="no folder"):
        zoo.load(tmp_path / "none")


def test_empty_folder(tmp_path):
    with pytest.raises(NotFoundError, match=r"config\.json"):
        zoo.load(tmp_path)


def test_a_bare_weights_file_is_refused(folder):
    with pytest.raises(UsageError, match="preprocessing"):
        zoo.load(folder / "model.safetensors")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"architecture": 3}',
        '{"pretrained_cfg": {}}',
        '{"architecture": "test_osa_vit", "pretrained_cfg": {}, "model_args": null}',
    ],
)
def test_damaged_config(folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(DamagedError, match=r"config\.json"):
        zoo.load(folder)


def test_quantised_weights_in_a_folder(folder):
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    key = next(key for key in tensors if key.endswith("weight"))
    safetensors.torch.save_file({**tensors, key: tensors[key].to(torch.int8)}, path)
    with pytest.raises(DamagedError, match=f"{re.escape(key)} as I8"):
        zoo.load(folder)


def test_missing_weights_in_a_folder(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(NotFoundError, match=r"model\.safetensors"):
        zoo.load(folder)
    assert zoo.load(folder, pretrained=False)


def test_a_foreign_architecture_in_a_folder(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architecture": "no_such_net"}))
    with pytest.raises(DamagedError, match="no_such_net"):
        zoo.load(folder)


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("pretrained_cfg", "std", [0]),
        ("pretrained_cfg", "mean", "grey"),
        ("pretrained_cfg", "crop_pct", "x"),
        ("pretrained_cfg", "interpolation", 7),
        ("pretrained_cfg", "input_size", [1, 0, 28]),
        ("pretrained_cfg", "label_names", ["a", "b"]),
        ("model_args", "act_layer", "foo"),
        ("model_args", "alpha", "x"),
    ],
)
def test_a_config_that_makes_no_sense_is_damaged_and_named(part, key, value, folder):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.setdefault(part, {})[key] = value
    path.write_text(json.dumps(config))
    with pytest.raises(DamagedError, match=r"config\.json"):
        zoo.load(folder)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_classes": -1}, "num_classes"),
        ({"num_classes": 2.5}, "num_classes"),
        ({"act_layer": "foo"}, "foo"),
        ({"checkpoint_path": "/nowhere"}, "checkpoint_path"),
    ],
)
def test_an_argument_that_makes_no_sense_is_the_callers(arguments, words, folder):
    for name in (folder, "test-osa-vit"):
        with pytest.raises(UsageError, match=words):
            zoo.load(name, pretrained=False, **arguments)


def test_weights_of_another_model(folder):
    safetensors.torch.save_file({"a": torch.ones(2)}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DamagedError, match="do not fit") as caught:
        zoo.load(folder)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.fixture
def entry_with_weights(folder, tmp_path, monkeypatch):
    """A registry entry of a user whose file lies where the checkout's weights lie."""
    path = tmp_path / "weights" / "mine" / "model.safetensors"
    path.parent.mkdir(parents=True)
    shutil.copy(folder / "model.safetensors", path)
    monkeypatch.setattr("zoo.hub.weights._in_checkout", lambda name: path if name == "mine" else None)
    (tmp_path / "more.yaml").write_text(
        "mine:\n  summary: mine\n  architecture: test_osa_vit\n  mechanism: orthogonal\n  task: image-classification\n"
        "  preprocessing: {input_size: [1, 28, 28], mean: [0.5], std: [0.5]}\n"
        "  labels: [a, b, c, d, e, f, g, h, i, j]\n"
        f"  weights: {{sha256: {hub.sha256_of(path)}, bytes: {path.stat().st_size}}}\n"
    )
    monkeypatch.setenv("ZOO_REGISTRY", str(tmp_path / "more.yaml"))
    return path


def test_facts_of_the_entry_win_over_those_of_the_architecture(entry_with_weights):
    model = zoo.load("mine")
    assert model.pretrained_cfg["mean"] == (0.5,)
    assert model.pretrained_cfg["label_names"][0] == "a"
    assert model.pretrained_cfg["framing"] is None


def test_one_flipped_bit_is_found(entry_with_weights):
    content = bytearray(entry_with_weights.read_bytes())
    content[-7] ^= 1
    entry_with_weights.write_bytes(content)
    with pytest.raises(DamagedError, match="sha256") as caught:
        zoo.load("mine")
    message = str(caught.value)
    assert hub.sha256_of(entry_with_weights) in message
    assert registry.get("mine").weights.sha256 in message
    assert zoo.load("mine", verify=False)


def test_the_hub_is_asked_with_the_pinned_commit(entry_with_weights, monkeypatch):
    asked = {}

    def fetch(repository, filename, **options):
        asked.update(options, repository=repository, filename=filename)
        return entry_with_weights

    monkeypatch.setattr("zoo.hub.weights._in_checkout", lambda name: None)
    monkeypatch.setattr("zoo.hub.weights.fetch", fetch)
    more = Path(entry_with_weights.parents[2] / "more.yaml")
    more.write_text(more.read_text().replace("{sha256", f"{{repository: org/mine, revision: {'a' * 40}, sha256"))
    zoo.load("mine", local_files_only=True)
    assert asked["repository"] == "org/mine"
    assert asked["revision"] == "a" * 40
    assert asked["local_files_only"] is True
    zoo.load("mine", revision="main")
    assert asked["revision"] == "main"


def test_a_hub_id(folder, monkeypatch):
    asked = []

    def fetch(repository, filename, *, revision=None, **options):
        asked.append((repository, filename, revision))
        return folder / filename

    monkeypatch.setattr(hub, "fetch", fetch)
    model = zoo.load("hf-hub:org/name@abc")
    assert model.pretrained_cfg["framing"] == "digit"
    assert asked == [("org/name", "config.json", "abc"), ("org/name", "model.safetensors", "abc")]


@pytest.mark.parametrize(
    "device", ["tpu", "cuda:-1", "", "gpu", "meta", "xla", None, 3.5, *([] if torch.cuda.is_available() else ["cuda"])]
)
def test_devices_that_are_not_there(device):
    with pytest.raises(DeviceError) as caught:
        loading.resolve_device(device)
    assert "\n" not in str(caught.value)


def test_cuda_devices_are_counted(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert loading.resolve_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(DeviceError, match="cuda:0 to cuda:1"):
        loading.resolve_device("cuda:7")


def test_none_is_refused_where_timm_would_drop_it():
    for name in ("test-osa-vit", "test-vit"):
        with pytest.raises(UsageError, match="num_heads cannot be None"):
            zoo.load(name, pretrained=False, num_heads=None)
