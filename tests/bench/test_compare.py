from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import zoo.bench.compare as module
from zoo import registry
from zoo.bench import run
from zoo.bench.backends import BACKENDS
from zoo.errors import DeviceError, NotFoundError, UsageError, ValidationError, ZooError

HIDDEN = [name for name in registry.names(hidden=True, task="image-classification") if registry.get(name).hidden]
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="what happens where there is no GPU")


class Tiny(nn.Module):
    """(batch, 1, 8, 8) -> (batch, 3). `work`: how many times its costly layer runs."""

    def __init__(self, work: int = 1) -> None:
        super().__init__()
        self.head = nn.Linear(64, 3)
        self.layer = nn.Linear(64, 64)
        self.work = work
        self.pretrained_cfg = {"input_size": (1, 8, 8), "mean": (0.5,), "std": (0.5,), "zoo_name": "tiny"}

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for _ in range(self.work):
            x = self.layer(x).tanh()
        return self.head(x)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Tiny:
    """A module in the place of whatever is loaded."""
    model = Tiny().eval()
    monkeypatch.setattr(module, "_load", lambda name, place: (model, "trained"))
    return model


def test_everything_is_timed_without_tf32(tiny: Tiny) -> None:
    before, seen = torch.backends.cudnn.allow_tf32, set()
    tiny.register_forward_hook(lambda *_: seen.add(torch.backends.cudnn.allow_tf32))
    report = run("test-osa-vit", repeats=2, warmup=0, threads=1, backends="eager", twin=False)
    assert seen == {False}
    assert torch.backends.cudnn.allow_tf32 == before
    assert "TF32 off" in report.to_dict()["protocol"]["precision"]


@pytest.mark.parametrize("name", [name for name in HIDDEN if registry.get(name).twin])
def test_every_family_beside_its_twin(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = torch.get_num_threads()
    twin = registry.get(name).twin
    report = run([name, twin], repeats=4, warmup=1, threads=1, batch_size=2)  # named twice, timed once
    assert torch.get_num_threads() == before
    assert [(row.model, row.backend) for row in report.rows] == [
        (each, backend) for each in (name, twin) for backend in BACKENDS
    ]
    for row in report.rows:
        assert row.latency.n == 4
        assert 0 < row.latency.p50_ms <= row.latency.p90_ms <= row.latency.p99_ms
        assert row.images_per_second == pytest.approx(2e3 / row.latency.mean_ms)
        assert row.weights == "own initialisation"
    for row in report.rows[:2]:
        assert row.twin == twin
        assert row.ratio is not None
        assert 0 < row.ratio[1] <= row.ratio[0] <= row.ratio[2]
    assert any(f"{name} has no weights here" in line for line in report.warnings)
    document = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert document["settings"]["threads"] == 1
    assert document["environment"]["packages"]["torch"]
    assert not list(tmp_path.glob("zoo-bench-*"))  # the exported files were temporary


def test_a_twin_can_stay_out(tiny: Tiny) -> None:
    report = run("osa-vit-mnist", twin=False, repeats=2, warmup=0, backends="eager")
    assert [row.model for row in report.rows] == ["osa-vit-mnist"]
    assert report.rows[0].ratio is None
    assert report.warnings == () or "spreads" in report.warnings[0]


def test_weights_that_cannot_be_had_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Published weights that cannot be fetched do not turn into random ones; a name nobody knows does not
    either."""
    with pytest.raises(NotFoundError, match="did you mean"):
        run("osa-vit-mnits", backends="eager")

    def offline(name: str, **kwargs: object) -> nn.Module:
        raise NotFoundError("offline")

    entry = registry.get("test-osa-vit")
    weights = registry.Weights(repository="a/b", revision="0" * 40, sha256="0" * 64, bytes=1)
    published = registry.msgspec.structs.replace(entry, weights=weights)
    monkeypatch.setattr("zoo.loading.load", offline)
    monkeypatch.setattr(registry, "entries", lambda: {"test-osa-vit": published, "test-vit": entry})
    with pytest.raises(NotFoundError, match="offline"):
        run("test-osa-vit", backends="eager", twin=False)


@no_gpu
@pytest.mark.parametrize("device", ["cuda", "cuda:7"])
def test_no_gpu_is_an_error(device: str) -> None:
    with pytest.raises(DeviceError) as caught:
        run("test-vit", device=device)
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("device", ["cuda:-1", "tpu", "cuda:99", ""])
def test_devices_that_never_are(device: str) -> None:
    with pytest.raises(DeviceError):
        run("test-vit", device=device, backends="eager")


def test_onnxruntime_has_no_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.loading.resolve_device", torch.device)
    with pytest.raises(DeviceError, match="backend eager alone"):
        run("test-vit", device="mps")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"batch_size": 0}, "batch_size has to be a whole number from 1"),
        ({"batch_size": -4}, "batch_size"),
        ({"batch_size": 10**30}, "batch_size"),
        ({"batch_size": 1.5}, "batch_size"),
        ({"backends": "eagre"}, "eager, onnxruntime"),
        ({"backends": ()}, "eager, onnxruntime"),
        ({"backends": ("eager", "eager")}, "each once"),
        ({"backends": None}, "eager, onnxruntime"),
        ({"repeats": 0}, "repeats"),
        ({"warmup": -1}, "warmup"),
        ({"threads": 0}, "threads"),
        ({"names": []}, "no model to time"),
    ],
)
def test_settings_that_make_no_sense(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        run(**{"names": "test-vit", **wrong})


def test_a_batch_that_does_not_fit_is_known_before_it_is_made(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_free_memory", lambda place: 100_000)
    run("test-vit", batch_size=64, backends="eager", repeats=1, warmup=0, twin=False)
    with pytest.raises(ZooError, match=r"a batch of 1000 needs about .* choose a smaller one") as caught:
        run("test-vit", batch_size=1000, backends="eager", twin=False)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_running_out_of_memory(error: Exception, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Tiny.forward

    def forward(self: Tiny, x: Tensor) -> Tensor:
        if len(x) > 4:
            raise error
        return right(self, x)

    monkeypatch.setattr(Tiny, "forward", forward)
    with pytest.raises(ZooError, match="batch of 5 does not fit in memory; choose a smaller one"):
        run("test-vit", batch_size=5, backends="eager", twin=False)
    run("test-vit", batch_size=4, backends="eager", twin=False, repeats=1)


def test_no_speed_while_the_numbers_are_wrong(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "measure", lambda *args, **kwargs: pytest.fail("timed a wrong model"))
    with torch.no_grad():
        tiny.head.bias[0] = torch.nan
    with pytest.raises(ValidationError, match="test-vit on eager: torch gives no finite numbers"):
        run("test-vit", backends="eager", twin=False)


def test_no_speed_while_the_backend_is_wrong(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that goes wrong only at the batch that is timed, where the export's own check does not
    look."""
    from zoo.export.session import OnnxModel

    right = OnnxModel.bind

    def bind(self: OnnxModel, images: Tensor) -> object:
        call, logits = right(self, images)

        def wrong() -> None:
            call()
            logits.add_(0.1)

        return wrong, logits

    monkeypatch.setattr(OnnxModel, "bind", bind)
    monkeypatch.setattr(module, "measure", lambda *args, **kwargs: pytest.fail("timed a wrong model"))
    with pytest.raises(ValidationError, match=r"test-vit on onnxruntime: .* differ by 0\.1 at batch 5 on cpu"):
        run("test-vit", batch_size=5, backends="onnxruntime", twin=False)


def test_a_larger_batch_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is timed is the work, not the launch of it: eight times the images cost far more."""
    model = Tiny(work=40).eval()
    monkeypatch.setattr(module, "_load", lambda name, place: (model, "trained"))
    settings = {"backends": "eager", "twin": False, "threads": 1, "repeats": 9, "warmup": 2}
    times = {batch: run("test-vit", batch_size=batch, **settings).rows[0].latency.p50_ms for batch in (1024, 8192)}
    assert 2.5 < times[8192] / times[1024] < 30.0  # wide, for machines that others use too
