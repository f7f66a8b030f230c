"""Modules that somebody has in hand, under the clock beside names."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import zoo.bench.compare as module
from zoo.bench import run
from zoo.bench.arms import has_insertion, without_insertion
from zoo.bench.backends import BACKENDS
from zoo.errors import UsageError
from zoo.layers import insert_newton_schulz
from zoo.loading import load

VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
TURNS = {"backends": "eager", "repeats": 2, "warmup": 0, "threads": 1}
PAPER = {**TURNS, "protocol": "paper", "rounds": 2, "batch_size": 2}
NAME = "vit_tiny_patch16_224"


def vit(**overlay: object) -> VisionTransformer:
    return timm.create_model(NAME, **VIT, pretrained_cfg_overlay={"input_size": (3, 32, 32), **overlay})


class Returns(nn.Module):
    """A module that answers with what `answer` makes of its images."""

    def __init__(self, answer: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.answer = answer
        self.weight = nn.Parameter(torch.zeros(1))
        self.pretrained_cfg = {"input_size": (1, 4, 4), "mean": (0.5,), "std": (0.5,)}

    def forward(self, x: Tensor) -> object:
        return self.answer(x)


def test_a_model_with_the_insertion_beside_itself_without_it() -> None:
    model = vit().train()
    images = torch.randn(2, 3, 32, 32)
    inserted = insert_newton_schulz(model)
    expected = model(images)
    report = run(model, **{**TURNS, "backends": tuple(BACKENDS)})
    twin = f"{NAME} (without insertion)"
    assert [(row.model, row.arm, row.backend) for row in report.rows] == [
        (name, arm, backend) for name, arm in ((NAME, "model"), (twin, "twin")) for backend in BACKENDS
    ]
    assert [row.twin for row in report.rows] == [twin, twin, None, None]
    assert all(row.ratio is not None for row in report.rows[:2])
    assert {row.weights for row in report.rows} == {"given"}
    assert len({row.state_sha256 for row in report.rows}) == 1
    assert not [line for line in report.warnings if "initialised" in line]
    assert all(part.training for part in model.modules())  # timed was a copy in eval mode
    assert torch.equal(model(images), expected)
    inserted.remove()
    assert not torch.equal(model(images), expected)


@pytest.mark.parametrize("settings", [TURNS, PAPER], ids=["turns", "paper"])
def test_what_is_timed_has_the_insertion_and_its_twin_has_not(
    settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[nn.Module] = []
    monkeypatch.setitem(BACKENDS, "eager", lambda model, *rest: seen.append(model) or (lambda: None))
    model = vit().eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        plain = model(images)
        insert_newton_schulz(model)
        transformed = model(images)
        run(model, **settings)
        assert [torch.equal(each(images), transformed) for each in seen] == [True, False]
        assert torch.equal(seen[1](images), plain)
    assert not any(each.training for each in seen)
    run(model, **TURNS, twin=False)
    assert len(seen) == 3


def test_only_what_was_inserted_is_taken_out_and_from_a_copy() -> None:
    model = vit()
    assert not has_insertion(model)
    model.blocks[0].register_forward_pre_hook(lambda *_: None)
    projection = model.blocks[0].attn.norm
    theirs = projection.register_forward_pre_hook(lambda *_: None)
    assert not has_insertion(model)
    insert_newton_schulz(model, skip="blocks.1.*")
    other = without_insertion(model)
    assert has_insertion(model)
    assert not has_insertion(other)
    assert list(other.blocks[0].attn.norm._forward_pre_hooks) == [theirs.id]
    assert len(other.blocks[0]._forward_pre_hooks) == 1


def test_a_transformation_goes_from_the_module_that_it_is_told() -> None:
    model = vit()
    insert_newton_schulz(model)
    first, second = (block.attn.norm for block in model.blocks)
    (hook,) = first._forward_pre_hooks.values()
    hook.remove_from(second)  # which has one of its own
    assert len(second._forward_pre_hooks) == 1
    hook.remove_from(first)
    hook.remove_from(first)
    assert not first._forward_pre_hooks


def test_names_and_modules_together_and_modules_of_one_name_apart() -> None:
    ours, one, two = load("test-vit", pretrained=False), vit(), vit()
    report = run(["test-vit", ours, one, two, one], **TURNS)
    assert [row.model for row in report.rows] == ["test-vit", "test-vit (2)", NAME, f"{NAME} (2)"]
    assert [row.weights for row in report.rows] == ["own initialisation", "given", "given", "given"]
    assert all(row.ratio is None for row in report.rows)


def test_a_module_of_ours_has_the_twin_that_its_facts_name_under_paper() -> None:
    report = run(load("test-ns-vit", pretrained=False), **PAPER)
    assert [row.arm for row in report.rows] == ["model", "twin", "literal"]
    assert len({row.state_sha256 for row in report.rows}) == 1
    with pytest.raises(UsageError, match="the weights of test-ns-vit do not fit the twin"):
        run(load("test-ns-vit", pretrained=False, depth=3), **PAPER)


def half() -> nn.Module:
    return vit().to(torch.bfloat16)


def compiled_in_place() -> nn.Module:
    model = vit()
    model.compile()
    return model


def uncopyable() -> nn.Module:
    model = vit()
    model.kept = model.head.weight * 2  # a tensor with a history
    return model


NO_CFG = r"its pretrained_cfg has to say input_size \(channels, height, width\), mean and std"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: VisionTransformer(**VIT), f"^VisionTransformer cannot be timed: {NO_CFG}"),
        (lambda: vit(input_size=None), f"^{NAME} cannot be timed: {NO_CFG}"),
        (lambda: vit(mean=(0.5, 0.5)), NO_CFG),
        (lambda: nn.ModuleList([vit()]), f"^ModuleList cannot be timed: {NO_CFG}"),
        (lambda: timm.create_model(NAME, **VIT), r"it does not take images of \(3, 224, 224\), the input_size"),
        (half, r"float32, and .* is torch.bfloat16; call \.float\(\)"),
        (lambda: vit().to("meta"), "meta device"),
        (lambda: torch.compile(vit()), "before torch.compile"),
        (compiled_in_place, "before torch.compile"),
        (uncopyable, "it cannot be copied"),
        (lambda: Returns(lambda x: {"logits": x}), "^Returns cannot be timed: it returns dict, a tensor"),
        (lambda: Returns(lambda x: 1 / 0), r"does not take images of \(1, 4, 4\).*division by zero"),
    ],
)
def test_a_module_that_cannot_be_timed_is_one_line(
    make: Callable[[], nn.Module], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "measure", lambda *args, **kwargs: pytest.fail("timed what cannot be timed"))
    with pytest.raises(UsageError, match=said) as caught:
        run(make(), **TURNS)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("wrong", [3, None, [3], [["test-vit"]], vit])
def test_what_is_neither_a_name_nor_a_module(wrong: object) -> None:
    with pytest.raises(UsageError, match="models to time are names, folders and torch modules, got"):
        run(wrong, **TURNS)


def test_a_module_without_a_twin_under_paper_is_told_before_anything_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "measure", lambda *args, **kwargs: pytest.fail("timed nonsense"))
    with pytest.raises(UsageError, match=f"{NAME} has no twin, and the protocol paper compares"):
        run(["test-ns-vit", vit()], **PAPER)
