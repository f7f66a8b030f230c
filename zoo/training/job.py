"""One training: what is trained, on what, how, and where to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from zoo import registry
from zoo.data import IMAGE_FOLDER
from zoo.data.text import TEXT_FILE
from zoo.errors import UsageError
from zoo.training import recipes
from zoo.training.recipes import ImageRecipe, TextRecipe


@dataclass(frozen=True)
class Job:
    """What is trained, on what, how, and where to.

    `data` is a data set's name, "imagefolder:DIR" or "textfile:FILE", None the entry's own; `init` whose weights
    it starts from, None the architecture's own initialisation.
    """

    name: str
    recipe: ImageRecipe | TextRecipe
    recipe_name: str
    model_args: dict[str, Any]
    folder: Path
    data_dir: str | Path | None = None
    data: str | None = None
    init: str | None = None

    @property
    def dataset(self) -> str:
        """The data set that is trained on; UsageError where neither the entry nor the caller names one."""
        own = f"{TEXT_FILE}FILE" if registry.get(self.name).task == "text-generation" else f"{IMAGE_FOLDER}DIR"
        if self.data == "":
            raise UsageError(f"--data is empty; name a data set, or {own}")
        dataset = self.data or registry.get(self.name).dataset
        if dataset is None:
            raise UsageError(f"{self.name} has no data set in the registry; name one with --data, such as {own}")
        return dataset

    @property
    def public_data(self) -> str | None:
        """`data` as a result may name it: of a path its last part, as the path says nothing to others."""
        for kind in (IMAGE_FOLDER, TEXT_FILE):
            if self.data is not None and self.data.startswith(kind):
                return kind + Path(self.data.removeprefix(kind)).name
        return self.data

    @property
    def public_init(self) -> str | None:
        """`init` as a result may name it: of a path that only this machine has its last part."""
        return Path(self.init).name if self.init is not None and Path(self.init).is_absolute() else self.init

    def command(self, **changes: Any) -> list[str]:
        """The words of the command that trains this: recipe, data and start where they are not the entry's, and every
        setting; `changes` replace fields of the recipe."""
        usual = msgspec.to_builtins(recipes.recipe(self.recipe_name))
        values = msgspec.to_builtins(self.recipe) | changes
        changed = {key: value for key, value in values.items() if value != usual[key]} | self.model_args
        other = self.recipe_name if self.recipe_name != registry.get(self.name).recipe else None
        options = {"--recipe": other, "--data": self.data, "--init": self.init}
        words = [word for key, value in options.items() if value is not None for word in (key, value)]
        return ["zoo", "train", self.name, *words, *(f"--set={key}={json.dumps(changed[key])}" for key in changed)]
