"""Recipe -> trainer -> a folder as `weights/NAME/` holds it; and evaluation."""

from __future__ import annotations

from zoo.training.evaluate import Evaluation, evaluate, evaluate_named
from zoo.training.recipes import RECIPES, Recipe, override, recipe
from zoo.training.trainer import train

__all__ = ["RECIPES", "Evaluation", "Recipe", "evaluate", "evaluate_named", "override", "recipe", "train"]
