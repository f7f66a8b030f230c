"""The model card: metadata for the Hub, what the model is, how it was made, what was measured and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from zoo import registry
from zoo.data import DATASETS
from zoo.data.text import TEXTS
from zoo.training import recipes

_LIBRARY = {"image-classification": "timm", "text-generation": "transformers"}
_USE = {
    "image-classification": 'zoo.predict(model, "picture.png")  # [(label, probability), ...]',
    "text-generation": 'print(zoo.generate(model, "The city of"))',
}


def card(results: dict[str, Any]) -> str:
    """The card of a training whose `results.json` says `results`; every figure in it comes from there."""
    entry = registry.get(results["name"])
    name, environment = results["name"], results["environment"]
    settings = ", ".join(f"{key} {value}" for key, value in results["recipe"].items())
    metadata = yaml.safe_dump(_metadata(entry, results), sort_keys=False)
    own = results["dataset"] == entry.dataset
    what_it_is = f"{entry.summary[0].upper()}{entry.summary[1:]}" if own else _elsewhere(name, results)
    published = results["command"] == f"zoo eval {name}"  # else the name stands for other weights, or for none
    loaded = name if published else "this/folder"
    library = _LIBRARY[entry.task]
    return f"""---
{metadata}---
# {name}

{what_it_is}.

| what | figure | measured by |
| --- | --- | --- |
{_figures(results)}
| parameters | {results["parameters"]:,} | counted when the file was written |

{_paper(entry, results) if own else ""}## Use

```python
import zoo

model = zoo.load("{loaded}")
{_use(entry, results, loaded)}
```

## Training

`{results["trained_by"]}`: recipe `{results["recipe_name"]}` ({settings}).
{results["steps"]} steps in {results["training_seconds"]:.0f} s, with torch {environment["torch"]},
{library} {environment[library]}, on {environment["device"]} ({environment["threads"]} CPU threads).
The log is in `log.jsonl`, all figures in `results.json`.
"""


def _use(entry: registry.Entry, results: dict[str, Any], loaded: str) -> str:
    """The line after a model was loaded."""
    if "accuracy" in results:
        return f'zoo.training.evaluate_named("{loaded}")  # it has no tokenizer'
    return _USE[entry.task]


def _figures(results: dict[str, Any]) -> str:
    """The rows of the table: what, figure, command."""
    what, command = f"{results['dataset']} {results['split']}", f"`{results['command']}`"
    if "top1" in results:
        share = f"{results['top1']:.2f} % ({results['correct']} of {results['total']})"
        rows = [(f"top-1 on {what}", share), (f"cross-entropy on {what}", f"{results['loss']:.4f} nats")]
    elif "accuracy" in results:
        share = f"{results['accuracy']:.2f} % ({results['correct']} of {results['total']} tokens)"
        rows = [(f"copied right, {what}", share), (f"cross-entropy of a token, {what}", f"{results['loss']:.4f} nats")]
    else:
        window = f"{results['context']} tokens moved by {results['stride']}"
        rows = [
            (f"perplexity of a token on {what}, {window}", results["perplexity"]),
            (f"perplexity of a word on {what}, {results['words']} words", results["word_perplexity"]),
        ]
        rows = [(name, f"{value:.2f}") for name, value in rows if value is not None]
        rows.append((f"cross-entropy on {what}, {results['tokens']} tokens", f"{results['loss']:.4f} nats"))
    return "\n".join(f"| {name} | {figure} | {command} |" for name, figure in rows)


def _elsewhere(name: str, results: dict[str, Any]) -> str:
    """What a model is that learned from other data than its entry's."""
    labels = results.get("labels")
    if labels is None:
        return f"The architecture of `{name}`, trained on {results['dataset']}"
    shown = ", ".join(labels[:10]) + (", ..." if len(labels) > 10 else "")
    return f"The architecture of `{name}`, trained on {results['dataset']}: {len(labels)} classes ({shown})"


def _paper(entry: registry.Entry, results: dict[str, Any]) -> str:
    """The source's figure, and plainly whether its recipe is the one that was run."""
    if entry.paper is None:
        return ""
    figure = f"The source's figure: {entry.paper.figure} ({entry.paper.source})."
    theirs = entry.paper.recipe
    if theirs is None:
        return f"{figure}\n\n"
    if _same_recipe(results["recipe"], msgspec.to_builtins(recipes.recipe(theirs))):
        return f"{figure}\nThis training followed its recipe.\n\n"
    command = f"zoo train {entry.name} --recipe {theirs}"
    return f"{figure}\nIts recipe, `{command}`, has not been run for these weights: the two figures do not compare.\n\n"


def _same_recipe(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """But for the seed and for how, not what, is computed and written."""
    ways = (
        "accumulate",
        "checkpointing",
        "precision",
        "compile",
        "fused_attention",
        "seed",
        "storage",
        "log_every",
        "save_every",
        "test_every",
    )
    return {**one, **dict.fromkeys(ways)} == {**other, **dict.fromkeys(ways)}


def _metadata(entry: registry.Entry, results: dict[str, Any]) -> dict[str, Any]:
    """What the Hub reads at the head of a card, in its own schema."""
    known = DATASETS.get(results["dataset"]) or TEXTS.get(results["dataset"])
    text = entry.task == "text-generation"
    kind = known.repository if known is not None else "text" if text else "imagefolder"
    if "correct" in results:
        metric = {"type": "accuracy", "value": results["correct"] / results["total"]}
    elif results["perplexity"] is not None:
        metric = {"type": "perplexity", "value": results["perplexity"]}
    else:
        metric = {"type": "loss", "value": results["loss"]}
    dataset = {"name": results["dataset"], "type": kind, "split": results["split"]}
    return {
        **({"license": entry.license} if entry.license else {}),
        "library_name": _LIBRARY[entry.task],
        "pipeline_tag": entry.task,
        "tags": ["attention-zoo", entry.mechanism],
        **({"datasets": [kind]} if known is not None else {}),
        "metrics": [metric["type"]],
        "model-index": [
            {
                "name": results["name"],
                "results": [
                    {
                        "task": {"type": entry.task},
                        "dataset": dataset,
                        "metrics": [metric],
                    }
                ],
            }
        ],
    }
