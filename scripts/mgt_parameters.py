"""Write the table of parameters in docs/manifold.md, counted on the models; `--check` fails where it is another."""

from __future__ import annotations

from pathlib import Path

import click
import torch
from tables import table, with_tables, write_or_check
from transformers import AutoConfig, AutoModelForCausalLM

import zoo.models  # noqa: F401 -- registers with transformers
from zoo import registry

PAGE = Path(__file__).resolve().parent.parent / "docs/manifold.md"
NAMES = [f"mgt-lm-{size}" for size in ("12L", "24L", "48L", "100L", "wikitext103")]


def count(name: str, **arm: bool) -> int:
    """Parameters of an entry, a tied weight once, with some of its arguments changed."""
    entry = registry.get(name)
    with torch.device("meta"):
        config = AutoConfig.for_model(entry.architecture, **{**entry.arguments, **arm})
        model = AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


def rows() -> str:
    """One line a model: the standard one, and what each half adds to it."""
    lines = []
    for name in NAMES:
        plain = count(name, gate=False, delta=False)
        more = [count(name, delta=False) - plain, count(name, gate=False) - plain, count(name) - plain]
        lines.append([f"`{name}`", f"{plain:,}", *(f"{each:,} ({each / plain:.1%})" for each in more)])
    return table(["Model", "standard, pre-norm", "soft projection", "delta update", "both"], lines)


@click.command(help=__doc__)
@click.option("--check", is_flag=True)
def main(check: bool) -> None:
    """Write or check."""
    write_or_check(PAGE, with_tables(PAGE, {"parameters": rows()}), check)


if __name__ == "__main__":
    main()
