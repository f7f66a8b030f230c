"""Learning from text: the model and its tokenizer, packed sequences, loss and perplexity."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo import registry
from zoo.data.augment import to_device
from zoo.data.text import TEXT_FILE
from zoo.data.tokenizers import open_tokenizer
from zoo.errors import UsageError
from zoo.files import staged
from zoo.loading import facts
from zoo.training.corpus import corpus
from zoo.training.job import Job
from zoo.training.language import LanguageTask, language_model
from zoo.training.perplexity import perplexity


class TextTask(LanguageTask):
    """A text as one row of tokens, cut into sequences; cross-entropy of the next token, and perplexity."""

    def __init__(self, job: Job, *, resumed: bool = False) -> None:
        super().__init__(job)
        entry = registry.get(job.name)
        if entry.tokenizer is None:
            raise UsageError(f"{job.name} has no tokenizer in the registry")
        self.context = self.recipe.context
        self.tokenizer = open_tokenizer(entry.tokenizer, job.data_dir)
        model = language_model(job, self.recipe, self.tokenizer, resumed=resumed)
        if len(self.tokenizer) > model.config.vocab_size:
            raise UsageError(
                f"the tokenizer {entry.tokenizer} has {len(self.tokenizer)} entries, the model"
                f" {model.config.vocab_size}"
            )
        wanted = None if self.recipe.samples is None else self.recipe.samples * self.context + 1
        found = {
            split: corpus(job.dataset, split, self.tokenizer, job.data_dir, wanted if split == "train" else None)
            for split in ("train", "validation", "test")
        }
        self.ids = {split: ids for split, (ids, _) in found.items()}
        self.words = {split: words for split, (_, words) in found.items()}
        for split, words in self.words.items():
            if words < 1:
                raise UsageError(f"the {split} part of {job.dataset} has no word; every part needs some")
        self.tokens = len(self.ids["train"]) - 1
        whole = self.tokens // self.context
        self.size = min(self.recipe.samples or whole, whole)
        digests = {split: hashlib.sha256(ids.numpy().data).hexdigest() for split, ids in self.ids.items()}
        self.data_facts = {"tokens": self.tokens, "sha256": digests}
        for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
            setattr(model.config, key, getattr(self.tokenizer, key))
            setattr(model.generation_config, key, getattr(self.tokenizer, key))
        facts(model).update(context=self.context, tokenizer=entry.tokenizer)
        if job.data is not None:
            facts(model)["dataset"] = None if job.data.startswith(TEXT_FILE) else job.data  # a path says nothing later
        self.model = model

    def to(self, device: torch.device) -> None:
        """Move the tokens to learn from."""
        self.ids["train"] = self.ids["train"].to(device)

    def describe(self) -> str:
        """Such as "wikitext-2: 2500000 training tokens, sequences of 256"."""
        return f"{self.job.dataset}: {self.tokens} training tokens, {self.size} sequences of {self.context}"

    def difference(self, found: Mapping[str, Any]) -> str:
        """The number of tokens, or the tokens themselves."""
        if found["tokens"] != self.tokens:
            return f"it had {found['tokens']} training tokens, now {self.tokens}"
        changed = [split for split, digest in self.data_facts["sha256"].items() if found["sha256"][split] != digest]
        return f"its {changed[0]} tokens were others"

    def loss(self, model: nn.Module, index: Tensor, generator: torch.Generator) -> Tensor:
        """Cross-entropy in nats of the next token, over all tokens of the sequences `index`."""
        ids = self.ids["train"]
        starts = to_device(index, ids.device) * self.context
        rows = ids[starts[:, None] + torch.arange(self.context + 1, device=ids.device)].long()
        logits = model(input_ids=rows[:, :-1], use_cache=False).logits
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())

    def figures(self) -> dict[str, Any]:
        """Perplexity on the validation split, windows side by side."""
        return self._perplexity(self.model, "validation", self.context)

    def headline(self, figures: Mapping[str, Any]) -> str:
        """The perplexities that there are, and the loss."""
        known = {"token": figures["perplexity"], "word": figures["word_perplexity"]}
        told = [f"perplexity {value:.2f} a {what}" for what, value in known.items() if value is not None]
        return ", ".join((*told, f"loss {figures['loss']:.4f}"))

    def save(self, folder: Path) -> None:
        """Weights, configuration, generation defaults and tokenizer, as transformers reads them."""
        super().save(folder)
        with staged(folder / "tokenizer.json") as path:
            self.tokenizer.save_pretrained(path.parent)

    def results(self, folder: Path) -> dict[str, Any]:
        """Perplexity on the test split, a window that moves by half; that on the validation split beside it."""
        model = self.read_back(folder)
        return {
            "split": "test",
            **self._perplexity(model, "test", None),
            "validation": self._perplexity(model, "validation", None),
        }

    def _perplexity(self, model: nn.Module, split: str, stride: int | None) -> dict[str, Any]:
        return perplexity(model, self.ids[split], self.words[split], context=self.context, stride=stride).to_dict()
