"""Text from a prompt: what is drawn, where it ends, what comes out as it comes, and what is refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import zoo
from zoo import training
from zoo.errors import DamagedError, UsageError
from zoo.generation import continuation, generate


@pytest.fixture(scope="module")
def folder(small_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generation") / "run"
    training.train("test-mgt-lm", output=folder, data_dir=small_text, settings={"samples": None, "epochs": 2})
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> nn.Module:
    return zoo.load(folder)


def test_greedy_is_the_argmax_each_time(model) -> None:
    tokenizer = zoo.tokenizer(model)
    ids = tokenizer("The city of").input_ids
    start = len(ids)
    with torch.no_grad():
        for _ in range(12):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    answer = continuation(model, "The city of", max_new_tokens=12, temperature=0)
    assert answer.text == tokenizer.decode(ids[start:]) and answer.tokens == 12 and answer.stopped == "length"
    assert generate(model, "The city of", max_new_tokens=12, temperature=0) == answer.text
    assert generate(model, "The city of", max_new_tokens=12, top_k=1, seed=5) == answer.text


def test_draws_follow_the_seed_and_leave_torchs_own_alone(model) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    texts = [generate(model, "The", max_new_tokens=20, seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(torch.rand(3), expected)
    assert texts[0] == texts[1] != texts[2]


def test_a_top_k_beyond_the_vocabulary_is_all_of_it(model) -> None:
    wide, none = (generate(model, "The", max_new_tokens=20, top_k=top_k) for top_k in (10**6, None))
    assert generate(model, "The", max_new_tokens=20, top_k=0) == none
    assert wide == none
    assert generate(model, "The", max_new_tokens=20, top_p=1.0) == generate(model, "The", max_new_tokens=20)
    assert generate(model, "The", max_new_tokens=20, top_p=1e-9) == generate(
        model, "The", max_new_tokens=20, temperature=0
    )


def test_an_empty_prompt_starts_a_text(model) -> None:
    tokenizer = zoo.tokenizer(model)
    answer = continuation(model, "", max_new_tokens=3, temperature=0)
    with torch.no_grad():
        first = int(model(torch.tensor([[tokenizer.eos_token_id]])).logits[0, -1].argmax())
    assert answer.tokens == 3 and tokenizer(answer.text).input_ids[0] == first


def test_a_prompt_that_fills_the_context_is_refused_and_a_full_context_ends_the_text(model) -> None:
    prompt = " the" * 64
    tokens = len(zoo.tokenizer(model)(prompt).input_ids)
    with pytest.raises(UsageError, match=rf"has {tokens} tokens.*context is 64; shorten it to 63"):
        generate(model, prompt)
    with_end_off = zoo.load(model.zoo_folder)
    with_end_off.lm_head.weight.data[zoo.tokenizer(model).eos_token_id] = 0  # so that no text ends
    answer = continuation(with_end_off, "The", max_new_tokens=500, temperature=0)
    assert answer.stopped == "context" and answer.tokens == 64 - len(zoo.tokenizer(model)("The").input_ids)
    assert answer.beyond == 64 - 32
    few = continuation(with_end_off, "The", max_new_tokens=10)
    assert few.beyond == 0 and few.tokens == 10


def test_a_stop_ends_the_text_before_it_and_need_not_be_a_token(model) -> None:
    whole = generate(model, "The", max_new_tokens=40)
    for stop in (whole[5:8], whole[11], whole[3:20]):
        answer = continuation(model, "The", max_new_tokens=40, stop=["never in it 🙂", stop])
        assert answer.text == whole[: whole.index(stop)] and answer.stopped == "stop"
    assert continuation(model, "The", max_new_tokens=40, stop=["never in it 🙂"]).text == whole


def test_pieces_that_come_early_are_the_text(model) -> None:
    whole = generate(model, "The", max_new_tokens=40)
    stops = ([], [whole[-3:]], [whole[5:8]], [whole[10:12] + "✗"])
    for stop in stops:
        pieces: list[str] = []
        answer = continuation(model, "The", max_new_tokens=40, stop=stop, stream=pieces.append)
        assert "".join(pieces) == answer.text == whole[: len(answer.text)] and all(pieces)
        assert len(pieces) > 1 or stop


@pytest.mark.parametrize(
    ("stop", "text", "expected"),
    [((), " 🙂ö!", [" ", "🙂", "ö", "!"]), (("b🙂",), "ab🙂", ["a"]), (("b🙂",), "abc🙂", ["a", "bc", "🙂"])],
)
def test_a_character_of_several_tokens_comes_whole_and_no_part_of_a_stop(
    stop, text, expected, model, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = zoo.tokenizer(model)(text).input_ids
    assert len(wanted) > len(text)

    def forward(self: object, input_ids: torch.Tensor, cache: object = None, **_: object) -> object:
        from transformers.modeling_outputs import CausalLMOutputWithPast

        logits = torch.zeros(1, 1, 512)
        logits[0, 0, wanted[forward.step]] = 9.0
        forward.step += 1
        return CausalLMOutputWithPast(logits=logits, cache=cache)

    forward.step = 0
    monkeypatch.setattr(type(model), "forward", forward)
    pieces: list[str] = []
    answer = continuation(model, "The", max_new_tokens=len(wanted), temperature=0, stop=stop, stream=pieces.append)
    assert answer.text == "".join(expected) == "".join(pieces)
    assert "".join(pieces) == "".join(expected) and "\ufffd" not in "".join(pieces)
    assert stop or pieces == expected


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"max_new_tokens": 0}, "new tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": -1}, "top-k has to be 1 or more, or 0 to draw from all"),
        ({"top_p": 0.0}, "top-p"),
        ({"top_p": 1.1}, "top-p"),
        ({"stop": [""]}, "not empty"),
        ({"stop": "word"}, "stop"),
        ({"prompt": "a\udcff b"}, "no UTF-8"),
    ],
)
def test_what_makes_no_sense_is_refused(how, words, model) -> None:
    with pytest.raises(UsageError, match=words):
        generate(model, **{"prompt": "The", **how})


def test_hardly_any_temperature_is_none(model) -> None:
    coldest = generate(model, "The", max_new_tokens=10, temperature=0)
    for temperature in (1e-6, 1e-7, 1e-45, 1e-310):
        assert generate(model, "The", max_new_tokens=10, temperature=temperature, top_k=None) == coldest


def test_a_model_of_a_relative_folder_keeps_its_tokenizer(folder: Path, monkeypatch: pytest.MonkeyPatch, model) -> None:
    monkeypatch.chdir(folder.parent)
    other = zoo.load(folder.name)
    monkeypatch.chdir("/")
    assert generate(other, "The", max_new_tokens=3) == generate(model, "The", max_new_tokens=3)


def test_other_models_and_damaged_ones(folder: Path) -> None:
    with pytest.raises(UsageError, match="does not generate"):
        generate(zoo.load("test-osa-vit", pretrained=False), "The")
    broken = zoo.load(folder)
    for value in (torch.nan, torch.inf):
        broken.model.norm.weight.data.fill_(value)
        for temperature in (0.0, 1.0):
            with pytest.raises(DamagedError, match="NaN"):
                generate(broken, "The", temperature=temperature)


def test_the_command(folder: Path, run_zoo: Callable[..., subprocess.CompletedProcess[str]], model) -> None:
    done = run_zoo("generate", folder, "The city", "--max-new-tokens", "10")
    assert done.returncode == 0 and done.stdout == f"The city{generate(model, 'The city', max_new_tokens=10)}\n"
    done = run_zoo("generate", folder, "The", "--max-new-tokens", "10", "--temperature", "0", "--json", "--stop", "zz")
    facts = json.loads(done.stdout)
    assert facts["prompt"] == "The" and facts["tokens"] == 10 and facts["stopped"] == "length"
    for words, code in (
        (["generate", folder, "x" * 500], 2),
        (["generate", folder, "x", "--temperature", "-1"], 2),
        (["generate", "osa-vit-mnist", "x"], 2),
        (["generate", "mgt-lm-12L-mhc", "x"], 3),
        (["predict", folder, folder / "README.md"], 2),
        (["export", "--onnx", folder], 2),
        (["bench", "test-mgt-lm"], 2),
        (["bench", folder], 2),
        (["generate", folder, "a\udcffb"], 2),
    ):
        done = run_zoo(*words)
        assert done.returncode == code and not done.stdout and done.stderr.count("\n") == 1, (words, done.stderr)
    assert "only image models are exported" in run_zoo("export", "--onnx", folder).stderr
