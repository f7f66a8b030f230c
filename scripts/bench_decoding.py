"""Tokens a second of a language model of the zoo beside transformers' GPT-2 of equal sizes: decoding and prefill.

Both decode greedily with their cache at batch 1 in float32, by transformers' own `generate`; both have random weights,
equal layers, width, heads and vocabulary, and both are measured as they are loaded and with
`zoo.layers.store_column_major`, as `zoo generate` has them on a CPU. All take turns in one process, see
`zoo.bench.protocol`. Prints one JSON document; `of_gpt2` is GPT-2's time as loaded over the arm's, round by round,
median and quartiles, and gigabytes a second are those of all weights, which each token reads once.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from tables import table, with_tables, write_or_check
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

import zoo
from zoo.bench import environment
from zoo.bench.protocol import measure, paired_ratio, summarize, synchronizer
from zoo.files import write_json
from zoo.layers import store_column_major
from zoo.loading import resolve_device

ROOT = Path(__file__).resolve().parent.parent
PAGE, DATA = ROOT / "docs/manifold.md", ROOT / "docs/results/decoding.json"
GPT2, LAID = "gpt2", ", column-major"


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
    return lambda: model.generate(prompt, attention_mask=mask, **how)


def prefill(model: PreTrainedModel, prompt: torch.Tensor) -> Callable[[], object]:
    """One call reads the prompt into a cache and gives the last logits."""

    @torch.inference_mode()
    def run() -> object:
        return model(prompt, use_cache=True, logits_to_keep=1).logits

    return run


def timed(arms: dict[str, Callable[[], object]], tokens: int, repeats: int, device: torch.device) -> dict[str, Any]:
    """Of each arm tokens a second, its spread, and its ratio to GPT-2 as loaded."""
    times = measure(arms, repeats=repeats, warmup=1, synchronize=synchronizer(device))
    found = {}
    for name, taken in times.items():
        summary = summarize(taken)
        ratio = dict(zip(("p50", "p25", "p75"), paired_ratio(times[GPT2], taken), strict=True))
        found[name] = {"tokens_per_second": 1e3 * tokens / summary.p50_ms, "spread": summary.spread, "of_gpt2": ratio}
    return found


def page() -> str:
    """The page with its table of what was measured last."""
    found = json.loads(DATA.read_text(encoding="utf-8"))
    rows = []
    for name, decoding in found["decoding"].items():
        reading = found["prefill"][name]
        cells = [f"{found['parameters'][name]:,}"]
        for one, more in ((decoding, [f"{decoding['gigabytes_per_second']:.1f}"]), (reading, [])):
            low, middle, high = (f"{one['of_gpt2'][key]:.2f}" for key in ("p25", "p50", "p75"))
            cells += [f"{one['tokens_per_second']:,.0f}", f"{middle} ({low} to {high})", *more]
        rows.append([f"`{name}`", *cells])
    head = ["Model", "parameters", "decoding, tokens/s", "of GPT-2's", "GB/s of weights"]
    return with_tables(PAGE, {"decoding": table([*head, "prefill, tokens/s", "of GPT-2's"], rows)})


@click.command(help=__doc__)
@click.argument("name", default="mgt-lm-12L")
@click.option("--tokens", default=64, show_default=True)
@click.option("--prompt", default=512, show_default=True, help="Tokens to prefill.")
@click.option("--repeats", default=21, show_default=True, help="Rounds of decoding; twice as many of prefill.")
@click.option("--device", default="cpu", show_default=True)
@click.option("--save", is_flag=True, help=f"Keep it in {DATA.relative_to(ROOT)}, and write the table.")
@click.option("--check", is_flag=True, help="Measure nothing; fail where the table is not what was kept.")
def main(name: str, tokens: int, prompt: int, repeats: int, device: str, save: bool, check: bool) -> None:
    """Measure and print."""
    if check:
        write_or_check(PAGE, page(), check)
        return
    place = resolve_device(device)
    torch.manual_seed(0)
    ours = zoo.load(name, pretrained=False)
    models = {name: ours, GPT2: gpt2_like(ours)}
    for each in (name, GPT2):
        models[each + LAID] = copy.deepcopy(models[each])
        store_column_major(models[each + LAID])
    for model in models.values():
        model.to(place)
    count = {each: sum(parameter.numel() for parameter in model.parameters()) for each, model in models.items()}
    most = ours.config.vocab_size
    short, long = (torch.randint(1, most, (1, length), device=place) for length in (16, prompt))
    decoding = {each: decode(model, short, tokens) for each, model in models.items()}
    reading = {each: prefill(model, long) for each, model in models.items()}
    machine = environment()
    document = {
        "parameters": count,
        "decoding": timed(decoding, tokens, repeats, place),
        "prefill": timed(reading, prompt, 2 * repeats, place),
        "settings": {"tokens": tokens, "prompt": prompt, "repeats": repeats, "device": str(place)},
        "environment": {**machine["torch"], "cpu": machine["cpu"]["model"]},
    }
    for each, found in document["decoding"].items():
        found["gigabytes_per_second"] = 4 * count[each] * found["tokens_per_second"] / 1e9
    click.echo(json.dumps(document, indent=2))
    if save:
        write_json(DATA, document)
        write_or_check(PAGE, page(), check=False)


if __name__ == "__main__":
    main()
