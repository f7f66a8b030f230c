"""Text that goes on from a prompt, by a language model: in one piece, or as it comes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from zoo.data.tokenizers import end_of_text, tokenizer_of
from zoo.errors import NO_NUMBERS, DamagedError, UsageError
from zoo.loading import facts
from zoo.modes import context_of, evaluating, takes_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


_GREEDY = 1e-6  # below this temperature float32 draws the likeliest or overflows


@dataclass(frozen=True)
class Generation:
    """What came after a prompt.

    text : the new text, without the prompt and without the stop that ended it.
    tokens : how many were generated; `beyond` so many of them lie beyond the length that the model learned from.
    stopped : why it ended: "length" as many as asked, "end" the end of a text, "stop" one of the stops, "context" the
        model's context is full.
    """

    prompt: str
    text: str
    tokens: int
    beyond: int
    stopped: Literal["length", "end", "stop", "context"]

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)


def generate(
    model: nn.Module,
    prompt: str = "",
    *,
    max_new_tokens: int = 100,
    temperature: float = 0.8,
    top_k: int | None = 50,
    top_p: float | None = None,
    stop: Sequence[str] = (),
    seed: int = 0,
    stream: Callable[[str], Any] | None = None,
) -> str:
    """The text with which `model` goes on after `prompt`; see `continuation` for all parameters and errors."""
    return continuation(
        model,
        prompt,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        stop=stop,
        seed=seed,
        stream=stream,
    ).text


def continuation(
    model: nn.Module,
    prompt: str = "",
    *,
    max_new_tokens: int = 100,
    temperature: float = 0.8,
    top_k: int | None = 50,
    top_p: float | None = None,
    stop: Sequence[str] = (),
    seed: int = 0,
    stream: Callable[[str], Any] | None = None,
) -> Generation:
    """What `model`, a language model of `zoo.load`, says after `prompt`, and why it ended.

    Parameters
    ----------
    prompt : an empty one starts a text.
    max_new_tokens : at most so many; fewer where the model's context is full.
    temperature : 0 takes the likeliest token each time, and so does anything below a millionth, where nothing else is
        ever drawn; else tokens are drawn from the softmax of logits / temperature.
    top_k : draw from the so many likeliest alone; None, 0, or more than there are, from all.
    top_p : draw from the fewest tokens that have this share of the probability together; None from all.
    stop : texts at which to end; they need not be tokens, and are not part of the answer.
    seed : of the draws; torch's random state on the CPU and on CUDA is as before afterwards.
    stream : is handed each new piece of text as soon as it is certain.

    Raises
    ------
    UsageError
        A parameter out of its range, a prompt that is no Unicode text or fills the context, or a model that is no
        language model.
    DamagedError
        The model answers with NaN or infinity.
    """
    if not isinstance(model, PreTrainedModel) or not takes_text(model):
        raise UsageError("this model does not generate text; `zoo list` shows which do")
    _check(max_new_tokens, temperature, top_k, top_p, stop)
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError("the prompt is no UTF-8 text") from None
    tokenizer = tokenizer_of(model)
    start = [] if prompt else [end_of_text(tokenizer)]
    ids = start + tokenizer(prompt, add_special_tokens=False)["input_ids"]
    context = context_of(model)
    if context is not None and len(ids) >= context:
        raise UsageError(
            f"the prompt has {len(ids)} tokens, and the model's context is {context}; shorten it to {context - 1}"
        )
    most = max_new_tokens if context is None else min(max_new_tokens, context - len(ids))
    drawn = temperature >= _GREEDY
    how: dict[str, Any] = {"do_sample": drawn}
    if drawn:
        how |= {"temperature": temperature, "top_k": top_k or 0, "top_p": 1.0 if top_p is None else top_p}
    text = _Text(tokenizer, len(ids), stop, stream)
    inputs = torch.tensor([ids], device=model.device)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())), evaluating(model):
        torch.manual_seed(seed)
        out = model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=most,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.eos_token_id,
            logits_processor=LogitsProcessorList([_Finite()]),
            stopping_criteria=StoppingCriteriaList([text]),
            **how,
        )
    text.end()
    new = out[0, len(ids) :].tolist()
    ended = bool(new) and new[-1] == tokenizer.eos_token_id
    reason = "stop" if text.found else "end" if ended else "length" if most == max_new_tokens else "context"
    learned = facts(model).get("context") or context or out.shape[1]
    beyond = max(min(out.shape[1] - learned, len(new)), 0)
    return Generation(prompt, text.all, len(new), beyond, cast(Any, reason))


class _Text(StoppingCriteria):
    """The new tokens as text, handed on as soon as no later token can change it or make a stop of it.

    transformers asks it after every token whether to stop. `all` is the text so far, `found` whether a stop is in it.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        prompt_tokens: int,
        stop: Sequence[str],
        stream: Callable[[str], Any] | None,
    ) -> None:
        self._tokenizer, self._prompt_tokens, self._stop, self._stream = tokenizer, prompt_tokens, tuple(stop), stream
        self._sent = 0
        self.all, self.found = "", False

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        whole = self._tokenizer.decode(input_ids[0, self._prompt_tokens :].tolist(), skip_special_tokens=True)
        places = [place for place in map(whole.find, self._stop) if place >= 0]
        self.found = bool(places)
        self.all = whole[: min(places)] if places else whole
        self._send(len(self.all) if places else len(self.all) - self._uncertain())
        return torch.full((input_ids.shape[0],), self.found, device=input_ids.device)

    def end(self) -> None:
        """Hand on what was held back."""
        self._send(len(self.all))

    def _uncertain(self) -> int:
        """How many characters at the end may still become part of a stop, or of a character cut in the middle."""
        settled = self.all.rstrip("\ufffd")
        begun = (length for stop in self._stop for length in range(1, len(stop)) if settled.endswith(stop[:length]))
        return len(self.all) - len(settled) + max(begun, default=0)

    def _send(self, until: int) -> None:
        if self._stream is not None and until > self._sent:
            self._stream(self.all[self._sent : until])
            self._sent = until


class _Finite(LogitsProcessor):
    """Raises where the model's answer is no number, which sampling would hide or garble."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if torch.isnan(scores).any() or torch.isposinf(scores).any():
            raise DamagedError(NO_NUMBERS)
        return scores


def _check(
    max_new_tokens: int, temperature: float, top_k: int | None, top_p: float | None, stop: Sequence[str]
) -> None:
    if max_new_tokens < 1:
        raise UsageError(f"the number of new tokens has to be 1 or more, got {max_new_tokens}")
    if not (math.isfinite(temperature) and temperature >= 0):
        raise UsageError(f"the temperature has to be 0 (the likeliest token) or more, got {temperature}")
    if top_k is not None and top_k < 0:
        raise UsageError(f"top-k has to be 1 or more, or 0 to draw from all, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise UsageError(f"top-p has to be above 0 and at most 1, got {top_p}")
    if isinstance(stop, str) or not all(stop):
        raise UsageError("a stop has to be a text that is not empty")
