"""Orthogonal attention as a drop-in in timm's ViT and in that of transformers: by argument, assignment and function."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
from timm.layers import Attention
from timm.models.vision_transformer import Block, ResPostBlock, VisionTransformer
from torch import nn
from transformers import BertConfig, BertModel, Dinov2Config, Dinov2Model, ViTConfig, ViTForImageClassification

import zoo.export
from zoo.errors import UsageError
from zoo.layers import OrthogonalSelfAttention, replace_attention

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}
CONFIG = {"image_size": 16, "patch_size": 4, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


class OrthogonalViT(ViTForImageClassification):
    """How a replaced model is saved and loaded."""

    def __init__(self, config):
        super().__init__(config)
        replace_attention(self)


def timm_vit(**arguments):
    torch.manual_seed(0)
    return VisionTransformer(**{**SIZES, **arguments})


def transformers_vit(implementation="sdpa", **arguments):
    torch.manual_seed(0)
    config = ViTConfig(**CONFIG, intermediate_size=48, num_labels=5, **arguments)
    return ViTForImageClassification._from_config(config, attn_implementation=implementation)


def logits_of(model, images, **arguments):
    out = model(images, **arguments)
    return out if isinstance(out, torch.Tensor) else out.logits


def images(count=2):
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def keep(batch=2, tokens=17, kept=9):
    """The last tokens of the last sample are hidden."""
    mask = torch.ones(batch, tokens, dtype=torch.bool)
    mask[-1, kept:] = False
    return mask


def by_argument():
    return timm_vit(attn_layer=OrthogonalSelfAttention)


def by_function():
    model = timm_vit()
    assert replace_attention(model) == ["blocks.0.attn", "blocks.1.attn"]
    return model


def by_function_in_transformers():
    model = transformers_vit()
    assert replace_attention(model) == ["vit.layers.0.attention", "vit.layers.1.attention"]
    return model


@pytest.fixture(params=[by_argument, by_function, by_function_in_transformers])
def model(request):
    return request.param()


def attentions(model):
    return [module for module in model.modules() if isinstance(module, OrthogonalSelfAttention)]


def test_they_answer_and_every_parameter_learns(model):
    assert len(attentions(model)) == 2
    before = copy.deepcopy(dict(model.named_parameters()))
    logits = logits_of(model.train(), images())
    assert logits.shape == (2, 5)
    nn.functional.cross_entropy(logits, torch.tensor([0, 1])).backward()
    torch.optim.AdamW(model.parameters(), lr=1e-2).step()
    assert not [name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])]
    assert torch.isfinite(logits_of(model, images())).all()


def test_the_weights_are_drawn_by_the_layer(model):
    """timm draws over every `nn.Linear`; the layer has the last word."""
    for layer in attentions(model):
        torch.testing.assert_close(layer.proj.weight @ layer.proj.weight.T, torch.eye(32), atol=1e-5, rtol=0)
        assert torch.equal(layer.alpha, torch.full((4,), 0.01))
        assert not layer.qkv.bias.any()
        assert not layer.proj.bias.any()


def test_the_state_has_the_keys_of_the_layer(model):
    name = next(name for name, module in model.named_modules() if isinstance(module, OrthogonalSelfAttention))
    keys = {key.removeprefix(f"{name}.") for key in model.state_dict() if key.startswith(f"{name}.")}
    assert keys == {"qkv.weight", "qkv.bias", "alpha", "proj.weight", "proj.bias"}
    other = copy.deepcopy(model)
    for layer in attentions(other):
        layer.reset_parameters()
    other.load_state_dict(model.state_dict())
    assert torch.equal(logits_of(other.eval(), images()), logits_of(model.eval(), images()))


def test_compile(model):
    compiled = torch.compile(model.eval(), fullgraph=True, backend="eager")
    torch.testing.assert_close(logits_of(compiled, images()), logits_of(model, images()))


def test_bfloat16(model):
    truth = logits_of(model.eval(), images())
    low = logits_of(model.bfloat16(), images().bfloat16())
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), truth, atol=0.1, rtol=0.05)


def test_gradient_checkpointing_changes_nothing(model):
    gradients = []
    for enable in (False, True):
        trained = copy.deepcopy(model).train()
        if enable:
            names = ("set_grad_checkpointing", "activation_checkpointing_enable", "gradient_checkpointing_enable")
            getattr(trained, next(name for name in names if hasattr(trained, name)))()
        logits_of(trained, images()).square().sum().backward()
        gradients.append([parameter.grad for parameter in trained.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", [Block, ResPostBlock])
def test_by_assignment_in_a_block(kind):
    torch.manual_seed(0)
    block, x = kind(32, 4), torch.randn(2, 9, 32)
    block.attn = OrthogonalSelfAttention(32, 4)
    assert block(x).shape == x.shape
    order = torch.randperm(9)
    torch.testing.assert_close(block(x)[:, order], block(x[:, order]))
    mask = keep(tokens=9, kept=6)
    hidden = block(x, attn_mask=mask[:, None, None])
    torch.testing.assert_close(hidden[:1], block(x[:1]))
    torch.testing.assert_close(hidden[1:, :6], block(x[1:, :6]))


def test_what_is_kept():
    model = timm_vit(qkv_bias=False, proj_drop_rate=0.25, dtype=torch.float64).eval()
    model.blocks[1].attn.train()
    replace_attention(model, alpha=0.5, max_norm=3.0)
    first, second = attentions(model)
    assert (first.training, second.training) == (False, True)
    assert first.qkv.bias is None
    assert first.proj.bias is not None
    assert first.alpha.dtype == torch.float64
    assert (first.num_heads, first.proj_drop.p, first.max_norm) == (4, 0.25, 3.0)
    assert torch.equal(first.alpha, torch.full((4,), 0.5, dtype=torch.float64))


def test_dropout_after_the_projection():
    torch.manual_seed(0)
    layer = OrthogonalSelfAttention(32, 4, proj_drop=0.5)
    x = torch.randn(2, 9, 32)
    assert 0.3 < (layer(x) == 0).double().mean() < 0.7
    assert not (layer.eval()(x) == 0).any()


def test_one_module_in_two_places_stays_one():
    model = nn.Sequential(Block(32, 4), Block(32, 4))
    model[1].attn = model[0].attn
    assert replace_attention(model) == ["0.attn", "1.attn"]
    assert model[0].attn is model[1].attn


def test_features_only_and_another_family():
    torch.manual_seed(0)
    sizes = {"img_size": 32, "embed_dim": 32, "num_heads": 4, "depth": 2}
    pyramid = timm.create_model("vit_tiny_patch16_224", features_only=True, out_indices=(0, 1), **sizes)
    assert len(replace_attention(pyramid)) == 2
    assert [each.shape for each in pyramid(torch.randn(1, 3, 32, 32))] == [(1, 32, 2, 2)] * 2
    distilled = timm.create_model("deit_tiny_distilled_patch16_224", **sizes)
    assert len(replace_attention(distilled)) == 2
    assert distilled.eval()(torch.randn(1, 3, 32, 32)).shape == (1, 1000)


def test_to_onnx(tmp_path):
    report = zoo.export.to_onnx(by_function().eval(), tmp_path / "model.onnx", samples=images(6))
    assert report.validation is not None
    assert report.validation.agreed == report.validation.compared


def test_torch_export():
    model, batch = by_function_in_transformers().eval(), torch.export.Dim("batch", min=1)
    program = torch.export.export(model, (images(3),), dynamic_shapes=({0: batch},))
    torch.testing.assert_close(program.module()(images(5)).logits, model(images(5)).logits)


def test_masks_of_timm():
    model = by_function().eval()
    mask = keep()
    for each in (mask[:, None, None], mask[1:, None, None], mask[1], mask[1:]):
        hidden = model(images(), attn_mask=each)
        assert torch.isfinite(hidden).all()
        assert not torch.allclose(hidden[1], model(images())[1], atol=1e-6)
    torch.testing.assert_close(model(images(), attn_mask=mask[:, None, None])[0], model(images())[0])


def test_masks_of_transformers():
    model = by_function_in_transformers().eval()
    mask, plain = keep().long(), model(images()).logits
    hidden = model(images(), attention_mask=mask).logits
    torch.testing.assert_close(hidden[0], plain[0])
    assert not torch.allclose(hidden[1], plain[1], atol=1e-6)
    layer, x = model.vit.layers[0].attention, torch.randn(2, 17, 32)
    (out, weights), small = layer(x, keep()[:, None, None].expand(2, 1, 17, 17)), layer(x[1:, :9])[0]
    assert weights is None
    torch.testing.assert_close(out[1:, :9], small)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(images(), attention_mask=mask).logits, hidden)


def test_queries_with_masks_of_their_own_are_nan_never_wrong():
    model = by_function_in_transformers().eval()
    mask = keep()[:, None, None].repeat(1, 1, 17, 1)
    mask[1, 0, 3, 4] = False
    logits = model(images(), attention_mask=mask).logits
    assert torch.isfinite(logits[0]).all()
    assert logits[1].isnan().all()


def test_saving_and_loading_in_transformers(tmp_path):
    torch.manual_seed(0)
    model = OrthogonalViT(transformers_vit().config).eval()
    model.save_pretrained(tmp_path)
    again = OrthogonalViT.from_pretrained(tmp_path)
    assert torch.equal(again(images()).logits, model(images()).logits)


def test_hidden_states_in_transformers():
    model = by_function_in_transformers().eval()
    assert len(model(images(), output_hidden_states=True).hidden_states) == 3


def test_no_weights_are_promised_in_transformers():
    model = by_function_in_transformers()
    with pytest.raises(UsageError, match="no use for output_attentions"):
        model(images(), output_attentions=True)
    model = transformers_vit("eager", output_attentions=True)
    replace_attention(model)
    with pytest.raises(UsageError, match="no use for output_attentions"):
        model(images())
    assert model(images(), output_attentions=False).attentions is None


def test_another_family_of_transformers():
    config = Dinov2Config(**CONFIG, mlp_ratio=2)
    model = Dinov2Model(config)
    assert len(replace_attention(model)) == 2
    assert model(images()).last_hidden_state.shape == (2, 17, 32)


@pytest.mark.parametrize(("argument", "value"), [("qk_norm", True), ("scale_attn_norm", True), ("attn_drop", 0.1)])
def test_blocks_that_ask_for_what_has_no_meaning(argument, value):
    with pytest.raises(UsageError, match=r"^orthogonal attention has no use for \w+$"):
        Block(32, 4, attn_layer=OrthogonalSelfAttention, **{argument: value})
    model = nn.Sequential(Block(32, 4), Block(32, 4, **{argument: value}))
    with pytest.raises(UsageError, match=r"^1\.attn: orthogonal attention has no use for \w+$"):
        replace_attention(model)
    assert isinstance(model[0].attn, Attention), "nothing is changed where an error is raised"


@pytest.mark.parametrize(
    "mask",
    [
        torch.zeros(2, 1, 1, 17),
        torch.ones(2, 1, 17, 17, dtype=torch.bool),
        torch.ones(17, 17, dtype=torch.bool),
        torch.ones(3, 1, 1, 17, dtype=torch.bool),
        torch.ones(2, 1, 1, 9, dtype=torch.bool),
        torch.ones(1, 2, 1, 1, 17, dtype=torch.bool),
    ],
    ids=["float", "a query", "a pair", "batch", "tokens", "five"],
)
def test_masks_that_do_not_only_hide_tokens(mask):
    with pytest.raises(UsageError, match="can hide tokens, not single pairs"):
        by_argument()(images(), attn_mask=mask)


def test_calls_that_do_not_fit():
    layer, x = OrthogonalSelfAttention(32, 4), torch.randn(2, 17, 32)
    with pytest.raises(UsageError, match="not causal"):
        by_argument()(images(), is_causal=True)
    with pytest.raises(UsageError, match="two names of one mask"):
        layer(x, keep(), attn_mask=keep()[:, None, None])
    eager = transformers_vit("eager")
    replace_attention(eager)
    with pytest.raises(UsageError, match=r"not torch\.float32.*set_attn_implementation"):
        eager(images(), attention_mask=keep())
    with pytest.raises(UsageError, match="of 4 dimensions"):
        eager.vit.layers[0].attention(x, keep())
    with pytest.raises(UsageError, match="no use for cu_seq_lens_q"):
        eager(images(), cu_seq_lens_q=torch.tensor([0, 17, 34]))


def test_models_that_do_not_fit():
    bert = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48, vocab_size=9)
    sizes = {"img_size": 32, "embed_dim": 32, "num_heads": 4, "depth": 1}
    beit = timm.create_model("beit_base_patch16_224", **sizes)
    for model in (beit, BertModel(bert), nn.Linear(2, 2), Attention(32, 4), by_argument()):
        with pytest.raises(UsageError, match="holds no attention that can be replaced"):
            replace_attention(model)
    with pytest.raises(UsageError, match=r"0: takes 32 features, attends with 16 and gives 32"):
        replace_attention(nn.Sequential(Attention(32, 4, attn_head_dim=4)))
    with pytest.raises(UsageError, match=r"0: orthogonal attention has no use for gated"):
        replace_attention(nn.Sequential(Attention(32, 4, gated=True)))
    with pytest.raises(UsageError, match="no use for attention_dropout"):
        replace_attention(transformers_vit(attention_probs_dropout_prob=0.1))
    with pytest.raises(UsageError, match="basis 'none' is not known"):
        replace_attention(timm_vit(), basis="none")


def test_a_block_that_is_used_twice_is_replaced_in_both_places():
    block = Block(32, 4)
    model = nn.Sequential(block, block)
    assert replace_attention(model) == ["0.attn", "1.attn"]
    assert model[0].attn is model[1].attn
    assert isinstance(model[0].attn, OrthogonalSelfAttention)
