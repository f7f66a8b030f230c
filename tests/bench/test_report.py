from __future__ import annotations

import io
import json
import re
import sys

import pytest

from zoo.bench import Report
from zoo.bench.protocol import Summary
from zoo.bench.report import Row


@pytest.fixture
def report() -> Report:
    latency = Summary(50, 1.25, 1.5, 2.75, 1.3, 0.05)
    rows = (
        Row("osa-vit", "eager", "trained", 1000, 8, latency, 6153.8, "vit", (0.98, 0.95, 1.02)),
        Row("vit", "eager", "own initialisation", 1010, 8, latency, 6153.8),
    )
    return Report(rows, ("vit has no weights here",), {"device": "cpu"}, {"repeats": 50}, {"zoo": "0.1"})


def test_one_json_document(report: Report) -> None:
    document = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert document.keys() == {"results", "warnings", "settings", "protocol", "environment"}
    first, second = document["results"]
    assert first["ratio"] == {"p50": 0.98, "p25": 0.95, "p75": 1.02}
    assert first["twin"] == "vit"
    assert second["ratio"] is None
    assert {"p50_ms", "p90_ms", "p99_ms", "n", "images_per_second", "batch_size", "weights"} <= first.keys()


def test_plain_table(report: Report) -> None:
    head, first, second = report.table(terminal=False).splitlines()
    assert head.split() == [
        "model", "backend", "batch", "p50", "ms", "p90", "ms", "p99", "ms", "images/s", "time/twin",
    ]  # fmt: skip
    assert first.split() == ["osa-vit", "eager", "8", "1.250", "1.500", "2.750", "6154", "0.98", "(0.95-1.02)"]
    assert second.split()[-1] == "-"
    assert report.table(terminal=False).isascii()
    assert report.table() == report.table(terminal=False)  # here stdout is no terminal


@pytest.mark.parametrize("columns", ["40", "200"])
def test_drawn_table(columns: str, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", columns)
    drawn = report.table(terminal=True)
    assert "\x1b[" in drawn
    text = re.sub(r"\x1b\[[\d;]*m", "", drawn)
    for word in ("osa-vit", "1.250", "2.750", "0.98 (0.95-1.02)", "images/s"):
        assert word in text
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[3\d", report.table(terminal=True))


def test_a_terminal_without_unicode(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert report.table(terminal=True).isascii()
