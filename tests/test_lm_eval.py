"""lm-eval's adapter for Hugging Face models reads a checkpoint of the zoo, and finds what the model says itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import zoo
from zoo import training

pytest.importorskip("lm_eval", reason='lm-eval is not installed: pip install -e ".[lm-eval]"')

TASK = Path(__file__).parent / "assets" / "lm-eval"
PROGRAM = """
import json, sys
import zoo.models
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

model = HFLM(pretrained=sys.argv[1], dtype="float32", device="cpu", batch_size=4)
found = simple_evaluate(model=model, tasks=["zoo_cloze"], task_manager=TaskManager(include_path=sys.argv[2]))
rows = [[choice[0] for choice in sample["filtered_resps"]] for sample in found["samples"]["zoo_cloze"]]
print(json.dumps({"acc": found["results"]["zoo_cloze"]["acc,none"], "rows": rows}))
"""


def test_a_local_task_gives_what_the_model_says(small_text: Path, tmp_path: Path) -> None:
    training.train("test-mgt-lm", output=tmp_path / "run", data_dir=small_text)
    task = tmp_path / "task"
    shutil.copytree(TASK, task)
    path = task / "zoo_cloze.yaml"
    path.write_text(path.read_text().replace("zoo_cloze.jsonl", str(task / "zoo_cloze.jsonl")))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub"), "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "run"), str(task)],
        capture_output=True,
        text=True,
        timeout=280,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    model = zoo.load(tmp_path / "run")
    tokenizer = zoo.tokenizer(model)
    right = 0
    rows = [json.loads(line) for line in (TASK / "zoo_cloze.jsonl").read_text().splitlines()]
    for row, scores in zip(rows, found["rows"], strict=True):
        ours = []
        for word in row["words"]:
            start, ids = tokenizer(row["line"]).input_ids, tokenizer(f"{row['line']} {word}").input_ids
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[0].log_softmax(-1)
            ours.append(sum(float(logits[place - 1, ids[place]]) for place in range(len(start), len(ids))))
        assert scores == pytest.approx(ours, abs=1e-3)
        right += ours.index(max(ours)) == row["answer"]
    assert found["acc"] == pytest.approx(right / len(rows))
