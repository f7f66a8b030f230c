"""The Newton-Schulz transformation put into models of timm and transformers, and taken out again."""

from __future__ import annotations

import copy
import io

import pytest
import timm
import torch
import transformers
from timm.layers import Attention
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import Block, VisionTransformer
from torch import nn

import zoo
import zoo.export
from zoo import hub, registry
from zoo.data import open_dataset
from zoo.data.preprocessing import Preprocessing
from zoo.errors import UsageError
from zoo.layers import OrthogonalSelfAttention, insert_newton_schulz
from zoo.ops import naive
from zoo.training.pictures import unfuse_attention

VIT = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}
SWIN = {"img_size": 32, "patch_size": 2, "embed_dim": 12, "depths": (2, 2), "num_heads": (2, 4), "num_classes": 5}
THEIRS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


def timm_vit(**arguments):
    return VisionTransformer(**{**VIT, **arguments})


def timm_swin(**arguments):
    return SwinTransformer(**{**SWIN, "window_size": 4, **arguments})


def transformers_vit(kind="ViT", implementation="sdpa", **arguments):
    config = getattr(transformers, f"{kind}Config")(
        **{"image_size": 16, "patch_size": 4, **THEIRS, "num_labels": 5, **arguments}
    )
    model = getattr(transformers, f"{kind}ForImageClassification")
    return model._from_config(config, attn_implementation=implementation)


def transformers_swin():
    sizes = {"embed_dim": 12, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
    config = transformers.SwinConfig(image_size=32, patch_size=2, num_labels=5, **sizes)
    return transformers.SwinForImageClassification(config)


def other(name, size=32, **arguments):
    """A model of timm, shrunk to two blocks."""
    small = {"img_size": size, "embed_dim": 48, "depth": 2, "num_heads": 4, "num_classes": 5}
    return timm.create_model(name, **{**small, **arguments})


MODELS = {
    "timm vit": (timm_vit, 16),
    "timm swin": (timm_swin, 32),
    "transformers vit": (transformers_vit, 16),
    "transformers swin": (transformers_swin, 32),
}
MORE = {
    "deit, distilled": (lambda: other("deit_tiny_distilled_patch16_224"), 32),
    "deit 3": (lambda: other("deit3_small_patch16_224"), 32),
    "registers": (lambda: other("vit_small_patch14_reg4_dinov2", 28), 28),
    "dynamic image size": (lambda: timm_vit(dynamic_img_size=True), 24),
    "parallel": (lambda: other("vit_small_patch16_18x2_224"), 32),
    "no fused attention": (lambda: unfused(timm_vit()), 16),
    "gate, norms": (lambda: timm_vit(qk_norm=True, scale_attn_norm=True), 16),
    "beit": (lambda: other("beit_base_patch16_224"), 32),
    "eva 02": (lambda: other("eva02_tiny_patch14_224", 28), 28),
    "dino 3": (lambda: other("vit_small_patch16_dinov3"), 32),
    "relative positions": (lambda: other("vit_relpos_small_patch16_224"), 32),
    "swin v2": (lambda: timm.create_model("swinv2_tiny_window8_256", **SWIN, window_size=4), 32),
    "eager": (lambda: transformers_vit(implementation="eager"), 16),
    "DeiT": (lambda: transformers_vit("DeiT"), 16),
    "DINOv2": (lambda: transformers_vit("Dinov2"), 16),
    "BEiT": (lambda: transformers_vit("Beit"), 16),
}


def unfused(model):
    unfuse_attention(model)
    return model


@torch.no_grad()
def built(build):
    """In eval mode; scales of whole branches and heads, which some start at next to nothing, are of a usual size."""
    torch.manual_seed(0)
    model = build().eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 and "bias" not in name:
            nn.init.ones_(parameter)
        elif name in ("head.weight", "head.fc.weight"):
            nn.init.normal_(parameter, std=0.1)
    return model


@pytest.fixture(params=MODELS)
def case(request):
    """A model and two pictures."""
    build, size = MODELS[request.param]
    return built(build), pictures(size)


def pictures(size, count=2):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def logits_of(model, images):
    out = model(images)
    return out if isinstance(out, torch.Tensor) else out.logits


def literal(model, images, names, steps=1):
    """What `model` answers when the heads of each named attention are transformed by the definition."""

    def hook(attention):
        heads = getattr(attention, "num_heads", None) or attention.num_attention_heads

        def transform(module, arguments):
            parts = arguments[0].unflatten(-1, (heads, -1)).transpose(1, 2)
            return (naive.newton_schulz(parts, steps=steps).transpose(1, 2).flatten(2),)

        inner = getattr(attention, "norm", None) or getattr(attention, "proj", None) or attention.o_proj
        return inner.register_forward_pre_hook(transform)

    handles = [hook(model.get_submodule(name)) for name in names]
    answer = logits_of(model, images)
    for handle in handles:
        handle.remove()
    return answer


@pytest.mark.parametrize("name", [*MODELS, *MORE])
def test_every_attention_is_transformed_and_given_back(name):
    build, size = {**MODELS, **MORE}[name]
    model, images = built(build), pictures(size)
    before, keys = logits_of(model, images), list(model.state_dict())
    with insert_newton_schulz(model, steps=2) as inserted:
        after = logits_of(model, images)
        assert list(model.state_dict()) == keys
        truth = literal_without(inserted, model, images)
    assert not torch.allclose(after, before, atol=1e-4)
    torch.testing.assert_close(after, truth, atol=2e-5, rtol=1e-4)
    assert torch.equal(logits_of(model, images), before)
    assert len(inserted.names) == (4 if "swin" in name or name == "parallel" else 2)


def literal_without(inserted, model, images):
    """The literal answer of a copy in which nothing is inserted."""
    plain, own = copy.deepcopy((model, inserted))
    own.remove()
    return literal(plain, images, inserted.names, inserted.steps)


@pytest.mark.parametrize("name", ["test-ns-vit", "test-ns-swin"])
@pytest.mark.parametrize("steps", [1, 2])
def test_a_twin_with_it_is_our_model(name, steps):
    torch.manual_seed(0)
    ours = zoo.load(name, pretrained=False, ns_steps=steps)
    twin = zoo.load(zoo.info(name).twin, pretrained=False)
    twin.load_state_dict(ours.state_dict())
    insert_newton_schulz(twin, steps)
    x = pictures(32, 3)
    for mode in (False, True):
        one, two = ours.train(mode)(x), twin.train(mode)(x)
        torch.testing.assert_close(one, two)
    one.square().sum().backward()
    two.square().sum().backward()
    for (key, left), right in zip(ours.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(left.grad, right.grad, msg=lambda text, key=key: f"{key}: {text}")


def test_remove_twice_and_only_its_own(case):
    model, images = case
    before = logits_of(model, images)
    seen = []
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(lambda module, arguments: seen.append(module))
    inserted = insert_newton_schulz(model)
    assert not repr(inserted).endswith("removed=True)")
    inserted.remove()
    inserted.remove()
    assert repr(inserted).endswith("removed=True)")
    assert torch.equal(logits_of(model, images), before)
    assert seen
    with pytest.raises(KeyError), insert_newton_schulz(model):  # also when something goes wrong inside
        raise KeyError
    assert torch.equal(logits_of(model, images), before)


def test_copies_and_pickles_have_it_of_their_own(case):
    model, images = case
    before = logits_of(model, images)
    inserted = insert_newton_schulz(model)
    after = logits_of(model, images)
    buffer = io.BytesIO()
    torch.save((model, inserted), buffer)
    buffer.seek(0)
    for theirs, own in (copy.deepcopy((model, inserted)), torch.load(buffer, weights_only=False)):
        assert torch.equal(logits_of(theirs, images), after)
        own.remove()
        assert torch.equal(logits_of(theirs, images), before)
    assert torch.equal(logits_of(model, images), after)


def test_it_learns_as_before(case):
    """Gradients of every parameter, the same with gradient checkpointing, and with dropout of the weights too."""
    model, images = case
    insert_newton_schulz(model)
    gradients = []
    for enable in (False, True):
        trained = copy.deepcopy(model).train()
        for module in trained.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        if enable:
            names = ("set_grad_checkpointing", "activation_checkpointing_enable", "gradient_checkpointing_enable")
            getattr(trained, next(name for name in names if hasattr(trained, name)))()
        torch.manual_seed(0)
        logits_of(trained, images).square().sum().backward()
        gradients.append([parameter.grad for parameter in trained.parameters()])
    for one, two in zip(*gradients, strict=True):
        assert torch.isfinite(one).all()
        torch.testing.assert_close(one, two)


def test_dropout_of_attention_weights():
    model = built(lambda: timm_vit(attn_drop_rate=0.5)).train()
    insert_newton_schulz(model)
    assert not torch.equal(model(pictures(16)), model(pictures(16)))
    assert torch.equal(model.eval()(pictures(16)), model(pictures(16)))


def test_bfloat16(case):
    model, images = case
    insert_newton_schulz(model)
    truth = logits_of(model, images)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(logits_of(model, images).float(), truth, atol=0.05, rtol=0.1)
    low = logits_of(copy.deepcopy(model).bfloat16(), images.bfloat16())
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), truth, atol=0.05, rtol=0.1)


def test_compiled_before_and_after(case):
    """A compiled model has no guard on hooks that come later: insertion has to be seen all the same, and removal."""
    model, images = case
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        before = logits_of(compiled, images)
        for steps in (1, 2):
            with insert_newton_schulz(model, steps):
                torch.testing.assert_close(logits_of(compiled, images), logits_of(model, images))
                assert not torch.allclose(logits_of(compiled, images), before, atol=1e-4)
            torch.testing.assert_close(logits_of(compiled, images), before)
    assert insert_newton_schulz(compiled).names[0].startswith("_orig_mod.")


def test_exported_program(case):
    model, images = case
    insert_newton_schulz(model)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (images,), dynamic_shapes=({0: batch},)).module()
    more = pictures(images.shape[-1], 5)
    torch.testing.assert_close(logits_of(program, more), logits_of(model, more), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("build", [timm_vit, timm_swin])
def test_traced_and_to_onnx(build, tmp_path):
    model, size = built(build), 16 if build is timm_vit else 32
    insert_newton_schulz(model)
    traced = torch.jit.trace(model, pictures(size))
    torch.testing.assert_close(traced(pictures(size)), model(pictures(size)))
    report = zoo.export.to_onnx(model, tmp_path / "model.onnx", samples=pictures(size, 6))
    assert report.validation is not None
    assert report.validation.agreed == report.validation.compared


def test_one_module_in_two_places_is_transformed_once():
    block = built(lambda: Block(32, 4))
    model, x = nn.Sequential(block, block), torch.randn(2, 5, 32)
    inserted = insert_newton_schulz(model)
    assert inserted.names == ["0.attn", "1.attn"]
    assert len(block.attn.norm._forward_pre_hooks) == 1
    inserted.remove()
    assert not block.attn.norm._forward_pre_hooks
    alone = built(lambda: Attention(32, 4))
    assert insert_newton_schulz(alone).names == [""]
    assert torch.isfinite(alone(x)).all()


def test_features_only():
    pyramid = timm.create_model("vit_tiny_patch16_224", features_only=True, out_indices=(0, 1), img_size=32, depth=2)
    assert len(insert_newton_schulz(pyramid).names) == 2
    assert len(pyramid(pictures(32))) == 2


def test_no_pictures():
    """timm's ViT is the one that takes an empty batch by itself."""
    model = built(timm_vit)
    insert_newton_schulz(model)
    assert model(pictures(16, 0)).shape == (0, 5)


def test_coefficients_and_eps_reach_the_operation():
    model = built(timm_vit)
    before = model(pictures(16))
    with insert_newton_schulz(model, coefficients=(1.0, 0.0, 0.0)):
        torch.testing.assert_close(model(pictures(16)), before)
    with insert_newton_schulz(model, eps=1e6):
        assert not torch.allclose(model(pictures(16)), before, atol=1e-4)


def test_what_is_left_as_it_is():
    siglip = other("vit_base_patch16_siglip_224")
    with pytest.raises(UsageError, match=r"attn_pool \(timm.*AttentionPoolLatent\).*skip=\['attn_pool'\]"):
        insert_newton_schulz(siglip)
    assert not [module for module in siglip.modules() if module._forward_pre_hooks]
    assert insert_newton_schulz(siglip, skip=["attn_pool"]).names == ["blocks.0.attn", "blocks.1.attn"]
    assert insert_newton_schulz(timm_vit(), skip="blocks.[1-9].attn").names == ["blocks.0.attn"]
    with pytest.raises(UsageError, match=r"skip: 'blocks\.9\.attn' is the name of no attention"):
        insert_newton_schulz(timm_vit(), skip=["blocks.9.attn"])
    for skip in (None, [1], 7):
        with pytest.raises(UsageError, match="skip: names of attentions"):
            insert_newton_schulz(timm_vit(), skip=skip)


class Strange(Attention):
    def forward(self, x, attn_mask=None, is_causal=False):
        return self.proj(self.qkv(x).chunk(3, -1)[2])


class Same(Attention):
    """A subclass that leaves the forward pass alone."""


def test_what_is_refused_is_named_and_left_alone():
    insert_newton_schulz(timm_vit(attn_layer=Same))
    patched = timm_vit()
    patched.blocks[1].attn.forward = patched.blocks[1].attn.proj.forward
    mixed = timm_vit()
    mixed.blocks[1].attn = nn.MultiheadAttention(32, 4)
    rotated = timm_vit(attn_layer=OrthogonalSelfAttention)
    bert = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    text = transformers.BertModel(transformers.BertConfig(**bert, vocab_size=9))
    llama = transformers.LlamaModel(transformers.LlamaConfig(**bert, vocab_size=9))
    for model, name in (
        (timm_vit(attn_layer=Strange), r"blocks\.0\.attn \(.*Strange\)"),
        (patched, r"blocks\.1\.attn \(timm\.layers\.attention\.Attention\)"),
        (mixed, r"blocks\.1\.attn \(torch.*MultiheadAttention\)"),
        (rotated, r"blocks\.0\.attn \(.*OrthogonalSelfAttention\)"),
        (other("vit_base_patch16_xp_224"), r"blocks\.0 \(.*ParallelScalingBlock\)"),
        (timm.create_model("xcit_nano_12_p16_224"), r"blocks\.0\.attn \(.*XCA\)"),
        (text, r"encoder\.layer\.0\.attention\.self \(.*BertSelfAttention\)"),
        (llama, r"layers\.0\.self_attn \(.*LlamaAttention\)"),
    ):
        with pytest.raises(UsageError, match=f"^{name} is an attention whose forward pass is not known here"):
            insert_newton_schulz(model)
        assert not [module for module in model.modules() if module._forward_pre_hooks]


def test_what_has_it_or_has_nothing():
    model = timm_vit()
    insert_newton_schulz(model)
    with pytest.raises(UsageError, match=r"blocks\.0\.attn .* already; remove\(\)"):
        insert_newton_schulz(model)
    for name in ("test-ns-vit", "test-ns-swin"):
        with pytest.raises(UsageError, match="has the Newton-Schulz transformation already, as a layer"):
            insert_newton_schulz(zoo.load(name, pretrained=False))
    with pytest.raises(UsageError, match="ResNet holds no attention"):
        insert_newton_schulz(timm.create_model("resnet18"))
    for steps in (0, -1, 1.5, True, "2", None):
        with pytest.raises(UsageError, match="steps"):
            insert_newton_schulz(timm_vit(), steps)


@pytest.mark.parametrize("name", [name for name in registry.names("ns-*cifar*") if hub.at_hand(registry.get(name))])
def test_trained_weights_in_the_twin_answer_as_the_model(name, data_of):
    model, dataset = zoo.load(name), registry.get(name).dataset
    twin = zoo.load(registry.get(name).twin, pretrained=False)
    twin.load_state_dict(model.state_dict())
    test = open_dataset(dataset, "test", data_of(dataset)).first(64)
    images = Preprocessing.of(model).normalize(test.images)
    plain, wanted = twin(images), model(images)
    assert (plain.argmax(1) != wanted.argmax(1)).any()  # without the transformation these weights see other things
    with insert_newton_schulz(twin):
        torch.testing.assert_close(twin(images), wanted, rtol=1e-4, atol=1e-4)
    assert torch.equal(twin(images), plain)
