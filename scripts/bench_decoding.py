"""Tokens a second of a language model of the zoo beside transformers' GPT-2 of equal sizes: decoding and prefill.

    python scripts/bench_decoding.py [NAME] [--tokens 64] [--prompt 512] [--rounds 5] [--device cpu]

Both decode greedily with their cache at batch 1 in float32, by transformers' own `generate`; both have random weights,
equal layers, width, heads and vocabulary. GPT-2 has its weights column by column in memory; ours is measured as it is
loaded, and with `zoo.layers.store_column_major`, as `zoo generate` has it. All take turns, and the order is turned
round from round to round; the ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

import zoo
from zoo.layers import store_column_major


def gpt2_like(model: PreTrainedModel) -> PreTrainedModel:
    """GPT-2 with the sizes of `model`, in eval mode."""
    config = model.config
    sizes = {"n_layer": config.num_hidden_layers, "n_embd": config.hidden_size, "n_head": config.num_attention_heads}
    context = {"vocab_size": config.vocab_size, "n_positions": config.max_position_embeddings}
    return GPT2LMHeadModel(GPT2Config(**sizes, **context, bos_token_id=0, eos_token_id=0)).eval()


def decode(model: PreTrainedModel, prompt: torch.Tensor, tokens: int) -> Callable[[], object]:
    """One call generates so many tokens after the prompt."""
    how = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    mask = torch.ones_like(prompt)
    return lambda: model.generate(prompt, attention_mask=mask, **how).cpu()  # which waits for the device


def prefill(model: PreTrainedModel, prompt: torch.Tensor) -> Callable[[], object]:
    """One call reads the prompt into a cache and gives the last logits."""

    @torch.inference_mode()
    def run() -> object:
        return model(prompt, use_cache=True, logits_to_keep=1).logits.cpu()

    return run


def seconds(arms: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median of one call of each, in turns, after one warm-up call."""
    for arm in arms.values():
        arm()
    times: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(rounds):
        for name in list(arms) if number % 2 == 0 else reversed(list(arms)):
            start = time.perf_counter()
            arms[name]()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in times.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", default="mgt-lm-12L")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.manual_seed(0)
    ours = zoo.load(given.name, pretrained=False)
    laid = copy.deepcopy(ours)
    store_column_major(laid)
    models = {given.name: ours, f"{given.name} column-major": laid, "gpt2": gpt2_like(ours)}
    for model in models.values():
        model.to(given.device)
    for name in (given.name, "gpt2"):
        print(f"{name}: {sum(parameter.numel() for parameter in models[name].parameters()):,} parameters")
    print(f"torch {torch.__version__}, {given.device}, {torch.get_num_threads()} threads, float32, batch 1")
    most = ours.config.vocab_size
    short, long = (torch.randint(1, most, (1, length), device=given.device) for length in (16, given.prompt))
    decoding = seconds({name: decode(model, short, given.tokens) for name, model in models.items()}, given.rounds)
    reading = seconds({name: prefill(model, long) for name, model in models.items()}, 4 * given.rounds)
    for what, times, count in (("decoding", decoding, given.tokens), ("prefill", reading, given.prompt)):
        for name, value in times.items():
            print(f"{what}: {name} {count / value:.0f} tokens/s, {times['gpt2'] / value:.2f} of gpt2")


if __name__ == "__main__":
    main()
