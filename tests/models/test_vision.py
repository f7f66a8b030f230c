"""Every image architecture speaks timm, compiles, exports and trains; the OSA model has neither skip nor norm."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
from timm.layers import Attention
from timm.models.swin_transformer import SwinTransformer
from torch import nn

import zoo
import zoo.models
from zoo import registry

NAMES = registry.names(hidden=True, task="image-classification")
OSA = [name for name in NAMES if registry.get(name).mechanism == "orthogonal"]
SMALL = [name for name in NAMES if registry.get(name).hidden]


def images_for(model):
    """Two images as `model` takes them, always the same."""
    return torch.randn(2, *model.pretrained_cfg["input_size"], generator=torch.Generator().manual_seed(0))


def blocks_of(model):
    """Its blocks in order, whether it has stages or not."""
    return [module for module in model.modules() if hasattr(module, "attn")]


@pytest.fixture(scope="module", params=NAMES)
def model(request):
    torch.manual_seed(0)
    return zoo.load(request.param, pretrained=False)


@pytest.fixture(scope="module")
def images(model):
    return images_for(model)


def test_registered_with_timm(model):
    architecture = model.pretrained_cfg["architecture"]
    assert timm.is_model(architecture)
    assert architecture in timm.list_models(architecture)
    assert type(timm.create_model(architecture)) is type(model)


def test_features_and_head(model, images):
    features = model.forward_features(images)
    assert features.shape[-1] == model.num_features  # of tokens, or of a map in a Swin
    assert torch.equal(model.forward_head(features), model(images))
    assert model.forward_head(features, pre_logits=True).shape == (2, model.num_features)


def test_classifier_can_be_replaced(model, images):
    swapped = copy.deepcopy(model)
    assert swapped.get_classifier() is swapped.get_submodule(model.default_cfg["classifier"])
    swapped.reset_classifier(3)
    assert swapped(images).shape == (2, 3)
    assert swapped.num_classes == 3
    swapped.reset_classifier(0)
    assert swapped(images).shape == (2, model.num_features)


def test_intermediates(model, images):
    final, intermediates = model.forward_intermediates(images, indices=2)
    assert len(intermediates) == 2
    assert torch.equal(final, model.forward_features(images))
    assert all(torch.isfinite(each).all() for each in intermediates)


def test_features_only(model, images):
    architecture = model.pretrained_cfg["architecture"]
    pyramid = timm.create_model(architecture, features_only=True, out_indices=(0, 1))
    assert [each.shape[:2] for each in pyramid(images)] == [
        (2, channels) for channels in pyramid.feature_info.channels()
    ]


def test_configuration(model):
    assert model.default_cfg is model.pretrained_cfg
    assert timm.data.resolve_model_data_config(model)["input_size"] == model.pretrained_cfg["input_size"]
    assert model.default_cfg["first_conv"] == "patch_embed.proj"
    assert model.get_submodule(model.default_cfg["classifier"]) is model.get_classifier()


def test_groups_for_layer_decay(model):
    from timm.models import group_parameters

    groups = group_parameters(model, model.group_matcher())
    assert sorted(name for group in groups.values() for name in group) == sorted(
        name for name, _ in model.named_parameters()
    )
    assert len(groups) > len(blocks_of(model))


def test_no_weight_decay(model):
    """Of positions and of what is one number a head."""
    kinds = ("pos_embed", "cls_token", "relative_position_bias_table", "alpha")
    kept = {name for name, _ in model.named_parameters() if name.endswith(kinds)}
    assert kept
    assert kept <= set(model.no_weight_decay())


def test_gradient_checkpointing_changes_nothing(model, images):
    gradients = []
    for enable in (False, True):
        trained = copy.deepcopy(model).train()
        trained.set_grad_checkpointing(enable)
        trained(images).square().sum().backward()
        gradients.append([parameter.grad for parameter in trained.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_batches(model, count):
    if count == 0 and isinstance(model, SwinTransformer):
        pytest.skip("the blocks of timm's Swin take no empty batch")
    shape = model.pretrained_cfg["input_size"]
    assert model(torch.randn(count, *shape)).shape == (count, model.num_classes)


def test_an_answer_does_not_depend_on_its_neighbours(model):
    x = torch.randn(5, *model.pretrained_cfg["input_size"])
    torch.testing.assert_close(model(x)[3:4], model(x[3:4]), atol=1e-5, rtol=1e-4)


def test_nan_in_nan_out(model, images):
    spoiled = images.clone()
    spoiled[1, :, 10, 10] = torch.nan
    logits = model(spoiled)
    assert logits[1].isnan().all()
    assert torch.isfinite(logits[0]).all()


def test_double_initialisation_differs_and_seeds_agree(model):
    architecture = model.pretrained_cfg["architecture"]
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(blocks_of(timm.create_model(architecture))[0].attn.qkv.weight)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("name", NAMES)
def test_compiled_whole(name):
    model = zoo.load(name, pretrained=False)
    images = images_for(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(images), model(images), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", SMALL)
def test_compiled_training_step(name):
    torch._dynamo.reset()
    model = zoo.load(name, pretrained=False).train()
    images = images_for(model)
    other = copy.deepcopy(model)
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    compiled(images).square().sum().backward()
    model(images).square().sum().backward()
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_exported_program(name):
    model = zoo.load(name, pretrained=False)
    images = images_for(model)
    batch = torch.export.Dim("batch", min=1, max=1024)
    program = torch.export.export(model, (images,), dynamic_shapes=({0: batch},)).module()
    for count in (1, 2, 5):
        x = torch.randn(count, *images.shape[1:])
        torch.testing.assert_close(program(x), model(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_low_precision_stays_finite_and_close(name, dtype):
    torch.manual_seed(0)
    model = zoo.load(name, pretrained=False)
    images = images_for(model)
    truth = model(images)
    low = copy.deepcopy(model).to(dtype)(images.to(dtype))
    assert low.dtype == dtype
    torch.testing.assert_close(low.float(), truth, atol=0.05, rtol=0.1)
    if dtype == torch.bfloat16:
        with torch.autocast("cpu", dtype):
            torch.testing.assert_close(model(images).float(), truth, atol=0.05, rtol=0.1)


@pytest.mark.parametrize("name", OSA)
def test_neither_skip_nor_norm(name):
    model = zoo.load(name, pretrained=False)
    norms = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm, nn.RMSNorm)
    assert not [key for key, module in model.named_modules() if isinstance(module, norms)]
    # Without a skip, a block whose last weight is zero gives zero.
    block = copy.deepcopy(model.blocks[0])
    nn.init.zeros_(block.mlp.fc2.weight)
    assert not block(torch.randn(2, 5, model.embed_dim)).any()


@pytest.mark.parametrize("name", OSA)
def test_the_scale_survives_the_depth_at_the_start(name):
    """q, the mean square of the features, stays in [0.5, 2] through all blocks."""
    torch.manual_seed(0)
    model = zoo.load(name, pretrained=False)
    x = torch.randn(16, model.patch_embed.num_patches, model.embed_dim)
    for block in model.blocks:
        x = block(x)
        assert 0.5 < x.square().mean() < 2


@pytest.mark.parametrize("name", OSA)
def test_twin_differs_in_attention_skips_and_norms_alone(name):
    model, twin = zoo.load(name, pretrained=False), zoo.load(registry.get(name).twin, pretrained=False)
    assert isinstance(twin.blocks[0].attn, Attention)
    shapes = {key: value.shape for key, value in model.state_dict().items() if "alpha" not in key}
    other = {key: value.shape for key, value in twin.state_dict().items() if "norm" not in key}
    for key in ("blocks.0.attn.proj.bias",):
        other.pop(key, None)
    extra = {key for key in other if key not in shapes}
    assert all(key.endswith("attn.proj.bias") for key in extra)
    assert all(other[key] == shape for key, shape in shapes.items())


def test_sizes():
    count = {name: sum(p.numel() for p in zoo.load(name, pretrained=False).parameters()) for name in NAMES}
    assert count["osa-vit-mnist"] == 202_658
    assert count["vit-mnist"] == count["vit-mnist-noskip"] == 204_682
    assert count["vit-mnist-noskip-nonorm"] == 203_018  # 13 LayerNorms of 2 x 64 fewer
    assert count["osa-vit-small-224"] == count["vit-small-224"] - 25 * 2 * 384 - 12 * 384 + 12 * 6


def test_the_shape_of_timm_s_small_vit():
    """What differs from `vit_small_patch16_224` is its class token, and the bias of queries, keys and values."""
    ours = zoo.load("vit-small-224", pretrained=False).state_dict()
    theirs = timm.create_model("vit_small_patch16_224").state_dict()
    assert set(theirs) - {"cls_token"} - {f"blocks.{i}.attn.qkv.bias" for i in range(12)} == {
        key.replace("fc_norm", "norm") for key in ours
    }
    assert ours["blocks.0.attn.qkv.weight"].shape == theirs["blocks.0.attn.qkv.weight"].shape
    assert ours["patch_embed.proj.weight"].shape == theirs["patch_embed.proj.weight"].shape


@pytest.mark.parametrize("name", ["vit-mnist-noskip", "vit-mnist-noskip-nonorm"])
def test_controls_have_no_skip(name):
    model = zoo.load(name, pretrained=False)
    block = copy.deepcopy(model.blocks[0])
    for parameter in (block.mlp.fc2.weight, block.mlp.fc2.bias):
        nn.init.zeros_(parameter)
    assert not block(torch.randn(2, 5, model.embed_dim)).any()
    norms = [key for key, module in model.named_modules() if isinstance(module, nn.LayerNorm)]
    assert bool(norms) == (name == "vit-mnist-noskip")


def test_a_control_may_start_with_the_weights_of_the_other_kind():
    """Without skips and norms timm's own weights give features of no size at all."""
    size = {}
    for orthogonal in (False, True):
        torch.manual_seed(0)
        model = zoo.load("vit-mnist-noskip-nonorm", pretrained=False, orthogonal_init=orthogonal)
        size[orthogonal] = model.forward_features(torch.randn(4, 1, 28, 28)).std()
    assert size[False] < 1e-15
    assert size[True] > 1e-3
