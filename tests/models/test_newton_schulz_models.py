"""The networks of arXiv 2609.27735: sizes, tokens, windows and drop path of the source; twins; other sizes."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
from timm.layers import DropPath
from timm.models.swin_transformer import SwinTransformer

import zoo
from zoo import registry
from zoo.errors import DamagedError, UsageError
from zoo.layers import insert_newton_schulz
from zoo.training import result

NAMES = [name for name in registry.names(hidden=True) if registry.get(name).mechanism == "newton-schulz"]
SMALL = [name for name in NAMES if registry.get(name).hidden]


def built(name, **arguments):
    torch.manual_seed(0)
    return zoo.load(name, pretrained=False, **arguments)


def pictures(model, count=2):
    return torch.randn(count, *model.pretrained_cfg["input_size"], generator=torch.Generator().manual_seed(1))


def blocks_of(model):
    return [module for module in model.modules() if hasattr(module, "attn")]


@pytest.fixture(params=SMALL)
def folder(request, tmp_path):
    """A folder as a training leaves it."""
    model = built(request.param)
    result.save_weights(model, tmp_path / "mine" / "model.safetensors")
    result.save_config(model, tmp_path / "mine" / "config.json")
    return tmp_path / "mine"


def test_numbers_of_parameters():
    """The ViT's are those of the source's code, the Swin's those of timm, which adds no positions to the patches."""
    for name, count in {
        "ns-vit-cifar10": 2_692_426,
        "ns-vit-cifar100": 2_709_796,
        "ns-swin-cifar10": 7_048_612,
        "ns-swin-cifar100": 7_083_262,
    }.items():
        for each in (name, registry.get(name).twin):
            assert sum(parameter.numel() for parameter in built(each).parameters()) == count, each


@pytest.mark.parametrize("name", ["ns-vit-cifar10", "vit-cifar100"])
def test_the_source_s_vit(name):
    model = built(name)
    assert model.pos_embed.shape == (1, 65, 192)
    assert model.cls_token.shape == (1, 1, 192)
    assert model.global_pool == "token"
    assert (len(model.blocks), model.blocks[0].attn.num_heads, model.blocks[0].attn.head_dim) == (9, 12, 16)
    assert model.blocks[0].mlp.fc1.out_features == 2 * 192
    for block in model.blocks:
        assert block.attn.qkv.bias is None
        assert block.attn.proj.bias is not None
    seen = []
    model.blocks[-1].register_forward_hook(lambda module, inputs, output: seen.append(output))
    logits = model(pictures(model))
    assert seen[0].shape == (2, 65, 192)
    torch.testing.assert_close(model.head(model.norm(seen[0])[:, 0]), logits)
    assert 0.8 < model.pos_embed.std() < 1.2  # standard normal, as are Xavier's matrices of their sizes
    assert model.head.weight.std().item() == pytest.approx((2 / (192 + model.num_classes)) ** 0.5, rel=0.1)
    assert not model.head.bias.any()


@pytest.mark.parametrize("name", ["ns-swin-cifar10", "swin-cifar100"])
def test_the_source_s_swin(name):
    model = built(name)
    assert [len(stage.blocks) for stage in model.layers] == [2, 6, 4]
    assert model.patch_embed.patch_size == (2, 2)
    maps, widths = (16, 8, 4), (96, 192, 384)
    for stage, side, width in zip(model.layers, maps, widths, strict=True):
        for index, block in enumerate(stage.blocks):
            assert block.input_resolution == (side, side)
            assert block.window_size == (4, 4)
            shift = 2 if index % 2 and side > 4 else 0
            assert tuple(block.shift_size) == (shift, shift)
            assert (block.attn_mask is not None) == bool(shift)
            assert (block.attn.dim, width // block.attn.num_heads) == (width, 32)
            assert block.attn.qkv.bias is not None
            assert block.attn.relative_position_bias_table.shape == (49, block.attn.num_heads)
            assert block.mlp.fc1.out_features == 2 * width
            assert block.attn.qkv.weight.std().item() == pytest.approx(
                (3 * width) ** -0.5, rel=0.1
            )  # torch's own start
    assert model.head.fc.weight.std().item() == pytest.approx((3 * 384) ** -0.5, rel=0.1)


@pytest.mark.parametrize("name", ["ns-vit-cifar100", "ns-swin-cifar100"])
def test_a_model_and_its_twin_start_from_the_same_weights(name):
    states = []
    for each in (name, registry.get(name).twin):
        torch.manual_seed(3)
        states.append(zoo.load(each, pretrained=False).state_dict())
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def rates(model):
    return [
        [path.drop_prob if isinstance(path, DropPath) else 0.0 for path in (block.drop_path1, block.drop_path2)]
        for block in blocks_of(model)
    ]


def test_drop_path_is_the_same_everywhere_in_the_vit_and_grows_in_the_swin():
    for name in ("ns-vit-cifar10", "vit-cifar10"):
        assert rates(built(name)) == [[0.0, 0.0]] * 9
        assert rates(built(name, drop_path_rate=0.1)) == [[0.1, 0.1]] * 9
    for name in ("ns-swin-cifar10", "swin-cifar10"):
        assert rates(built(name)) == [[0.0, 0.0]] * 12
        found = rates(built(name, drop_path_rate=0.1))
        for index, pair in enumerate(found):
            assert pair == pytest.approx([0.1 * index / 11] * 2)


@pytest.mark.parametrize("name", NAMES)
def test_state_dicts_of_twins_fit_both_ways(name):
    ours, twin = built(name), built(registry.get(name).twin)
    twin.load_state_dict(ours.state_dict())
    ours.load_state_dict(twin.state_dict())
    images = pictures(ours)
    with torch.no_grad():
        answers = [model(images) for model in (ours, twin)]
    assert not torch.allclose(*answers, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "theirs"),
    [("ns-vit-small-224", "vit_small_patch16_224"), ("ns-swin-tiny-224", "swin_tiny_patch4_window7_224")],
)
def test_weights_of_timm_fit_what_has_its_sizes(name, theirs):
    torch.manual_seed(0)
    plain = timm.create_model(theirs).eval()
    for each in (name, registry.get(name).twin):
        built(each).load_state_dict(plain.state_dict())
    twin, ours = built(registry.get(name).twin), built(name)
    for model in (twin, ours):
        model.load_state_dict(plain.state_dict())
    images = pictures(ours, 1)
    with torch.no_grad():
        torch.testing.assert_close(twin(images), plain(images))
        insert_newton_schulz(plain)
        torch.testing.assert_close(ours(images), plain(images), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", SMALL)
def test_more_steps(name):
    """The same weights with two steps are another function; which one is tested where steps are inserted."""
    once, twice = built(name), built(name, ns_steps=2)
    twice.load_state_dict(once.state_dict())
    images = pictures(once)
    assert not torch.allclose(once(images), twice(images), atol=1e-5)
    for steps in (0, True, "2", 1.5):
        with pytest.raises(UsageError, match="steps must be a whole number"):
            built(name, ns_steps=steps)


@pytest.mark.parametrize("name", NAMES)
def test_timm_knows_them(name):
    for each in (name, registry.get(name).twin):
        architecture = registry.get(each).architecture
        assert architecture in timm.list_models("*ns_*" if each == name else f"{architecture}*")
        assert architecture not in timm.list_models(pretrained=True)  # nothing that timm would fetch by itself


@pytest.mark.parametrize("name", SMALL)
def test_a_pyramid_of_features(name):
    pyramid = timm.create_model(registry.get(name).architecture, features_only=True, out_indices=(0, 1), ns_steps=2)
    assert {block.attn.ns_steps for block in blocks_of(pyramid)} == {2}
    maps = pyramid(torch.randn(2, 3, 32, 32))
    for each, channels, reduction in zip(
        maps, pyramid.feature_info.channels(), pyramid.feature_info.reduction(), strict=True
    ):
        assert each.shape == (2, channels, 32 // reduction, 32 // reduction)


def test_another_number_of_classes_is_said(folder):
    with pytest.warns(UserWarning, match=r"the head of test-ns-\w+ was replaced: 3 classes instead of 10, not trained"):
        model = zoo.load(folder, num_classes=3)
    assert model(pictures(model)).shape == (2, 3)
    plain = zoo.load(folder).state_dict()
    head = model.pretrained_cfg["classifier"]
    for key, value in model.state_dict().items():
        assert torch.equal(value, plain[key]) != key.startswith(head), key


@pytest.mark.parametrize("arguments", [{}, {"num_classes": 10}, {"num_classes": 0}, {"pretrained": False}])
def test_nothing_is_said_where_no_head_is_replaced(folder, arguments, recwarn):
    zoo.load(folder, **arguments)
    zoo.load(folder, pretrained=False, num_classes=3)
    assert not [each for each in recwarn if "head" in str(each.message)]


@pytest.mark.parametrize("size", [64, 48, 40, (32, 48), 16])
def test_another_image_size(folder, size):
    """Positions are resampled, and windows where the map is smaller than one; the rest is what was trained."""
    plain, model = zoo.load(folder), zoo.load(folder, img_size=size)
    high, wide = size if isinstance(size, tuple) else (size, size)
    assert zoo.transform(model).input_size == (3, high, wide)
    logits = model(torch.randn(2, 3, high, wide))
    assert torch.isfinite(logits).all()
    moved = ("pos_embed", "relative_position_bias_table")
    for key, value in model.state_dict().items():
        if value.shape == plain.state_dict()[key].shape:
            assert torch.equal(value, plain.state_dict()[key]), key
        else:
            assert key.endswith(moved), key
    if not isinstance(model, SwinTransformer):
        rows, columns = model.patch_embed.grid_size
        assert model.pos_embed.shape[1] == 1 + rows * columns
        assert torch.equal(model.pos_embed[:, 0], plain.pos_embed[:, 0])
    with pytest.raises(AssertionError, match="doesn't match model"):
        model(torch.randn(1, 3, high + 8, wide))


@pytest.mark.parametrize("size", [30, 33, (32, 30), 0, -32, (32,), (32, 32, 32), "a", 4])
@pytest.mark.parametrize("name", SMALL)
def test_an_image_size_that_does_not_fit_is_refused(name, size):
    if (name, size) == ("test-ns-swin", 4):
        assert built(name, img_size=4)(torch.randn(1, 3, 4, 4)).shape == (1, 10)
        return
    with pytest.raises(UsageError) as caught:
        built(name, img_size=size)
    assert "\n" not in str(caught.value)


def test_an_odd_map_is_padded_to_whole_windows():
    model = built("ns-swin-cifar10", img_size=30)
    assert torch.isfinite(model(torch.randn(2, 3, 30, 30))).all()
    with pytest.raises(UsageError, match=r"img_size \(30, 30\) is no multiple of the patch \(4, 4\)"):
        built("ns-vit-cifar10", img_size=30)
    assert built("ns-vit-cifar10", img_size=30, dynamic_img_size=True, dynamic_img_pad=True)


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_vit_of_any_size(dynamic):
    model = built("test-ns-vit", dynamic_img_size=dynamic)
    if dynamic:
        assert model(torch.randn(1, 3, 48, 40)).shape == (1, 10)
    else:
        with pytest.raises(AssertionError):
            model(torch.randn(1, 3, 48, 40))


def test_grey_pictures(folder):
    model = zoo.load(folder, in_chans=1)
    assert model(torch.randn(2, 1, 32, 32)).shape == (2, 10)
    assert zoo.transform(model).input_size == (1, 32, 32)
    summed = zoo.load(folder).patch_embed.proj.weight.sum(1, keepdim=True)
    torch.testing.assert_close(model.patch_embed.proj.weight, summed)


def test_windows_of_another_size():
    model = built("ns-swin-cifar10", window_size=8)
    assert [block.window_size for block in blocks_of(model)][::6] == [(8, 8), (8, 8)]
    model = copy.deepcopy(built("ns-swin-cifar10"))
    model.set_input_size(img_size=(64, 64), window_size=(8, 8))
    assert model(torch.randn(1, 3, 64, 64)).shape == (1, 10)


@pytest.mark.parametrize("name", SMALL)
def test_weights_that_do_not_fit(name, tmp_path):
    model = built(name)
    result.save_weights(model, tmp_path / "model.safetensors")
    result.save_config(model, tmp_path / "config.json")
    with pytest.raises(DamagedError, match="do not fit"):
        zoo.load(tmp_path, mlp_ratio=3.0)
