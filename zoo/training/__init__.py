"""Recipe -> trainer -> a folder as `weights/NAME/` holds it; and evaluation."""

from __future__ import annotations

from zoo.training.copying import CopyEvaluation
from zoo.training.evaluate import Evaluation, evaluate, evaluate_named
from zoo.training.perplexity import TextEvaluation
from zoo.training.recipes import RECIPES, Recipe, override, recipe
from zoo.training.trainer import train

__all__ = [
    "RECIPES",
    "CopyEvaluation",
    "Evaluation",
    "Recipe",
    "TextEvaluation",
    "evaluate",
    "evaluate_named",
    "override",
    "recipe",
    "train",
]
