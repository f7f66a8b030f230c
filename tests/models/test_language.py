"""What every causal language model of the registry has to do as a model of transformers."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedModel, StaticCache

import zoo
from zoo.errors import UsageError

# One small model of each architecture and arm, by what is set in the registry's test-sized entries.
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "mgt": ("test-mgt-lm", {}),
    "mgt-ddl-preset": ("test-mgt-lm", {"delta_preset": "ddl", "gate_input": "norm", "gate_scale": 2.0}),
    "mgt-mhc": ("test-mgt-lm", {"delta": False}),
    "mgt-ddl": ("test-mgt-lm", {"gate": False}),
    "std": ("test-std-lm", {}),
    "std-post": ("test-std-lm", {"norm_order": "post"}),
}
every_arm = pytest.mark.parametrize("arm", ARMS)
every_kernel = pytest.mark.parametrize("kernel", ["eager", "sdpa"])


def build(arm: str, **arguments: Any) -> PreTrainedModel:
    """The arm with weights so large that a wrong mask or position shows in the logits."""
    name, chosen = ARMS[arm]
    torch.manual_seed(0)
    model = zoo.load(name, pretrained=False, **{**chosen, **arguments})
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.mul_(8.0 if parameter.dim() == 2 else 1.0)
            if key.endswith("scores.weight"):
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def tokens(batch: int = 2, length: int = 12, seed: int = 0) -> Tensor:
    return torch.randint(3, 500, (batch, length), generator=torch.Generator().manual_seed(seed))


def close(one: Tensor, other: Tensor, within: float = 1e-4) -> None:
    assert torch.isfinite(one).all()
    torch.testing.assert_close(one, other, rtol=0, atol=within)


# --- the forward pass ------------------------------------------------------------------------------------------------


@every_arm
def test_the_weights_are_large_enough_to_see_by(arm: str) -> None:
    model, ids = build(arm), tokens()
    with torch.no_grad():
        before = model(ids).logits
        after = model(torch.cat((tokens(2, 1, seed=9), ids[:, 1:]), 1)).logits
    assert before.std() > 0.3
    assert ((before - after).abs().amax(-1) > 1e-2).all(), "the first token changes every answer"


@every_arm
def test_no_answer_depends_on_what_comes_later(arm: str) -> None:
    model, ids = build(arm), tokens()
    other = torch.cat((ids[:, :7], tokens(seed=1)[:, 7:]), 1)
    with torch.no_grad():
        close(model(ids).logits[:, :7], model(other).logits[:, :7], 1e-5)


@every_arm
def test_the_two_kernels_agree(arm: str) -> None:
    ids, mask = tokens(), torch.ones(2, 12, dtype=torch.long)
    mask[0, :5] = 0
    with torch.no_grad():
        one, other = (build(arm, attn_implementation=kernel)(ids, attention_mask=mask) for kernel in ("eager", "sdpa"))
    close(one.logits[0, 5:], other.logits[0, 5:])
    close(one.logits[1], other.logits[1])


@every_arm
def test_loss_is_the_next_tokens_and_leaves_out_what_is_marked(arm: str) -> None:
    model, ids = build(arm), tokens()
    labels = ids.clone()
    labels[0, 4:] = -100
    with torch.no_grad():
        out = model(ids, labels=labels)
    true = cross_entropy(out.logits[:, :-1].reshape(-1, model.config.vocab_size), labels[:, 1:].reshape(-1))
    torch.testing.assert_close(out.loss, true)


@every_arm
def test_hidden_states_attentions_and_few_logits(arm: str) -> None:
    model, ids = build(arm, attn_implementation="eager"), tokens()
    with torch.no_grad():
        out = model(ids, output_hidden_states=True, output_attentions=True)
        last = model(ids, logits_to_keep=2).logits
        embedded = model(inputs_embeds=model.get_input_embeddings()(ids)).logits
    layers = model.config.num_hidden_layers
    assert len(out.hidden_states) == layers + 1 and len(out.attentions) == layers
    assert all(weights.shape == (2, 2, 12, 12) for weights in out.attentions)
    for weights in out.attentions:
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 12))
        assert weights.triu(1).abs().max() == 0
    close(model.lm_head(out.hidden_states[-1]), out.logits, 1e-5)
    close(last, out.logits[:, -2:], 1e-5)
    close(embedded, out.logits, 1e-5)
    with pytest.raises(ValueError, match="exactly one"):
        model()


# --- cache and padding -----------------------------------------------------------------------------------------------


@every_kernel
@every_arm
def test_with_a_cache_the_logits_are_those_of_the_whole(arm: str, kernel: str) -> None:
    model, ids = build(arm, attn_implementation=kernel), tokens()
    with torch.no_grad():
        whole = model(ids, use_cache=False)
        assert whole.past_key_values is None
        for cuts in ([1] * 12, [5, 1, 1, 5], [12], [3, 9]):
            cache, found = None, []
            for part in ids.split(cuts, 1):  # neither mask nor positions are handed over
                out = model(part, past_key_values=cache, use_cache=True)
                cache = out.past_key_values
                found.append(out.logits)
            close(torch.cat(found, 1), whole.logits)
            assert cache.get_seq_length() == 12


@every_kernel
@every_arm
def test_left_padding_changes_nothing(arm: str, kernel: str) -> None:
    model, ids = build(arm, attn_implementation=kernel), tokens(1)
    with torch.no_grad():
        alone = model(ids).logits
        for width, filler in ((1, 0), (7, 3), (30, 499)):
            padded = torch.cat((torch.full((1, width), filler), ids), 1)
            mask = torch.ones_like(padded)
            mask[:, :width] = 0
            close(model(padded, attention_mask=mask).logits[:, width:], alone)
            positions = (mask.cumsum(-1) - 1).clamp_min(0)
            close(model(padded, attention_mask=mask, position_ids=positions).logits[:, width:], alone)
            first = model(padded[:, : width + 4], attention_mask=mask[:, : width + 4], use_cache=True)
            rest = model(padded[:, width + 4 :], attention_mask=mask, past_key_values=first.past_key_values)
            close(rest.logits, alone[:, 4:])


@every_kernel
@every_arm
def test_garbage_in_padding_and_unused_slots_has_no_influence(arm: str, kernel: str) -> None:
    model, ids = build(arm, attn_implementation=kernel), tokens(1)
    embedded = model.get_input_embeddings()(ids).detach()
    with torch.no_grad():
        alone = model(ids).logits
        for filler in (float("nan"), float("inf"), 1e30):
            padded = torch.cat((torch.full((1, 5, embedded.shape[-1]), filler), embedded), 1)
            mask = torch.ones(1, 17, dtype=torch.long)
            mask[:, :5] = 0
            close(model(inputs_embeds=padded, attention_mask=mask).logits[:, 5:], alone)
            cache = StaticCache(config=model.config, max_cache_len=40)
            sizes = {"num_heads": 2, "head_dim": 16, "dtype": torch.float32, "device": torch.device("cpu")}
            cache.early_initialization(batch_size=1, **sizes)
            for layer in cache.layers:
                layer.keys.fill_(filler)
                layer.values.fill_(filler)
            first = model(ids[:, :6], past_key_values=cache).logits
            rest = [model(ids[:, at : at + 1], past_key_values=cache).logits for at in range(6, 12)]
            close(torch.cat((first, *rest), 1), alone)


# --- generation ------------------------------------------------------------------------------------------------------


@every_kernel
@every_arm
def test_greedy_is_the_argmax_of_whole_passes(arm: str, kernel: str) -> None:
    model, ids = build(arm, attn_implementation=kernel), tokens(1, 5)
    true = ids
    with torch.no_grad():
        for _ in range(10):
            true = torch.cat((true, model(true).logits[:, -1:].argmax(-1)), 1)
    how = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(model.generate(ids, **how), true)
    assert torch.equal(model.generate(ids, use_cache=False, **how), true)
    assert torch.equal(model.generate(ids, cache_implementation="static", disable_compile=True, **how), true)
    padded = torch.cat((torch.zeros(1, 4, dtype=torch.long), ids), 1)
    batch = torch.cat((padded, tokens(1, 9, seed=3)))
    mask = torch.ones_like(batch)
    mask[0, :4] = 0
    assert torch.equal(model.generate(batch, attention_mask=mask, **how)[0, 4:], true[0])


@every_arm
def test_as_many_beams_as_tokens_find_the_likeliest_pair_of_all(arm: str) -> None:
    model, ids = build(arm), tokens(1, 5)
    size = model.config.vocab_size
    with torch.no_grad():
        first = model(ids).logits[0, -1].log_softmax(-1)
        pairs = torch.cat((ids.expand(size, -1), torch.arange(size)[:, None]), 1)
        both = first[:, None] + model(pairs).logits[:, -1].log_softmax(-1)
    best = both.flatten().argmax()
    found = model.generate(
        ids,
        do_sample=False,
        num_beams=size,
        length_penalty=0.0,
        max_new_tokens=2,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    assert found.sequences[0, 5:].tolist() == [best // size, best % size]
    torch.testing.assert_close(found.sequences_scores[0], both.max(), rtol=0, atol=1e-4)


@every_arm
def test_sampling_follows_the_seed(arm: str) -> None:
    model, ids = build(arm), tokens(2, 5)
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(model.generate(ids, do_sample=True, top_k=50, max_new_tokens=6, pad_token_id=0))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


# --- saving, tying, training -----------------------------------------------------------------------------------------


@every_arm
def test_saved_and_read_back_it_is_the_same_and_still_tied(arm: str, tmp_path: Path) -> None:
    model, ids = build(arm), tokens()
    model.save_pretrained(tmp_path)
    stored = sum(parameter.numel() for parameter in model.parameters()) * 4
    assert stored < (tmp_path / "model.safetensors").stat().st_size < 1.05 * stored + 20_000
    for other in (AutoModelForCausalLM.from_pretrained(tmp_path), zoo.load(tmp_path)):
        assert type(other) is type(model) and other.lm_head.weight is other.model.embed_tokens.weight
        with torch.no_grad():
            assert torch.equal(other.eval()(ids).logits, model(ids).logits)
        loss = other.train()(ids, labels=ids).loss
        loss.backward()
        torch.optim.SGD(other.parameters(), 0.1).step()
        assert torch.equal(other.lm_head.weight, other.model.embed_tokens.weight)
    body = AutoModel.from_pretrained(tmp_path)
    with torch.no_grad():
        close(body(ids).last_hidden_state @ model.lm_head.weight.mT, model(ids).logits, 1e-5)
    assert AutoConfig.from_pretrained(tmp_path).to_diff_dict() == model.config.to_diff_dict()


def test_half_of_a_checkpoint_leaves_the_rest_at_its_start(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = build("mgt")
    model.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    missing = "model.layers.0.attn_connection.update.bias"
    del state[missing]
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    other = AutoModelForCausalLM.from_pretrained(tmp_path)
    for key, value in other.state_dict().items():
        if key == missing:
            torch.testing.assert_close(value, torch.full_like(value, 0.5).atanh())
        else:
            assert torch.equal(value, model.state_dict()[key]), key
    with pytest.raises(zoo.ZooError, match="do not fit"):
        zoo.load(tmp_path)


def test_untied_it_has_a_head_of_its_own(tmp_path: Path) -> None:
    model = build("mgt", tie_word_embeddings=False)
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(zoo.load(tmp_path)(tokens()).logits, model(tokens()).logits)


@every_arm
def test_the_vocabulary_can_grow_and_shrink(arm: str) -> None:
    model, ids = build(arm), tokens()
    with torch.no_grad():
        before = model(ids).logits
        for size in (520, 505):
            model.resize_token_embeddings(size)
            assert model.lm_head.weight is model.model.embed_tokens.weight
            close(model(ids).logits[..., :500], before[..., :500], 1e-5)
            assert model(ids).logits.shape[-1] == model.config.vocab_size == size


@every_arm
def test_every_parameter_gets_a_gradient_with_and_without_checkpointing(arm: str) -> None:
    model, ids = build(arm).train(), tokens()
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.activation_checkpointing_enable()
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    assert all(gradient.abs().sum() > 0 for gradient in gradients[0].values())
    torch.testing.assert_close(gradients[0], gradients[1])


@every_arm
def test_compiled_whole_it_answers_the_same(arm: str) -> None:
    torch._dynamo.reset()
    model, ids = build(arm), tokens()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        close(compiled(ids).logits, model(ids).logits, 1e-5)


@every_arm
def test_bfloat16_is_near_float32_and_positions_keep_their_precision(arm: str) -> None:
    model, ids = build(arm), tokens(2, 40)
    low = copy.deepcopy(model).bfloat16()
    assert low.model.rotary_emb.inv_freq.dtype == torch.float32
    with torch.no_grad():
        true, found = model(ids).logits, low(ids).logits.float()
        with torch.autocast("cpu", torch.bfloat16):
            mixed = model(ids).logits.float()
    for other in (found, mixed):
        assert torch.isfinite(other).all()
        assert (other - true).norm() < 0.08 * true.norm()


@pytest.mark.parametrize(
    "name",
    [
        "mgt-lm-48L",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("mgt-lm-100L", "std-lm-48L", "std-lm-48L-post")),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_deep_model_starts_with_finite_loss_and_gradients_at_2048_tokens(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = zoo.load(name, pretrained=False, dtype=dtype, vocab_size=512).train()
    model.activation_checkpointing_enable()
    ids = tokens(1, 2048)
    loss = model(ids, labels=ids).loss
    loss.backward()
    assert abs(loss.item() - torch.tensor(512.0).log()) < 1.0
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), key


# --- what is no model, and who finds it -----------------------------------------------------------------------------


def test_what_makes_no_model_is_refused_in_one_line() -> None:
    for arguments, words in (
        ({"foo": 1}, "has no 'foo'"),
        ({"num_attention_heads": 3}, "even multiple"),
        ({"hidden_size": 2, "num_attention_heads": 2}, "even multiple"),
        ({"norm_order": "post"}, "standard arm"),
        ({"norm_order": "sandwich"}, "pre, post"),
        ({"delta_init": 2.0}, "beta cannot start"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"attn_implementation": "magic"}, "magic"),
        ({"hidden_act": "nothing"}, "nothing"),
    ):
        with pytest.raises(UsageError, match=words):
            zoo.load("test-mgt-lm", pretrained=False, **arguments)


def test_importing_the_models_is_enough_for_transformers(tmp_path: Path) -> None:
    build("mgt").save_pretrained(tmp_path / "saved")
    program = (
        "import zoo.models\nfrom transformers import AutoModelForCausalLM\n"
        "model = AutoModelForCausalLM.from_pretrained('saved')\nprint(type(model).__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert done.stdout.split() == ["MgtForCausalLM"], done.stderr
