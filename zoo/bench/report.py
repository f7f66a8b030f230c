"""What a benchmark found: a table for people, one JSON document for programs."""

from __future__ import annotations

import io
import sys
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from zoo.bench.protocol import Summary

_HEAD = ("model", "backend", "batch", "p50 ms", "p90 ms", "p99 ms", "images/s", "time/twin")
_HEAD_OF_ROUNDS = ("model", "backend", "batch", "median ms", "of rounds", "images/s", "over twin")


@dataclass(frozen=True)
class Row:
    """One model on one backend.

    `ratio` is its time over its twin's, None without one: (p50, p25, p75), or, where the rounds are few and have many
    calls, `round_medians_ms`, (median, least, largest). `arm`: "model", "twin" or "literal". `state_sha256` is that
    of `zoo.export`'s files: the same for the same names and values of weights.
    """

    model: str
    backend: str
    weights: str
    parameters: int
    batch_size: int
    latency: Summary
    images_per_second: float
    twin: str | None = None
    ratio: tuple[float, float, float] | None = None
    arm: str = "model"
    state_sha256: str | None = None
    round_medians_ms: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Report:
    """All rows, in the order in which they were asked for, and everything needed to take them again."""

    rows: tuple[Row, ...]
    warnings: tuple[str, ...]
    settings: dict[str, Any]
    protocol: dict[str, Any]
    environment: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """One document for JSON: results, warnings, settings, protocol, environment."""
        rows = []
        for row in self.rows:
            facts = asdict(row)
            facts.update(facts.pop("latency"))
            if row.ratio is not None:
                words = ("p50", "p25", "p75") if row.round_medians_ms is None else ("median", "min", "max")
                facts["ratio"] = dict(zip(words, row.ratio, strict=True))
            if row.round_medians_ms is None:
                del facts["round_medians_ms"]
            rows.append(facts)
        return {
            "results": rows,
            "warnings": list(self.warnings),
            "settings": self.settings,
            "protocol": self.protocol,
            "environment": self.environment,
        }

    def table(self, terminal: bool | None = None) -> str:
        """The rows as text: drawn for a terminal, plain columns otherwise.

        terminal: None asks stdout. NO_COLOR is honoured.
        """
        drawn = sys.stdout.isatty() if terminal is None else terminal
        head = _HEAD if all(row.round_medians_ms is None for row in self.rows) else _HEAD_OF_ROUNDS
        lines = [_cells(row) for row in self.rows]
        if not drawn:
            widths = [max(len(line[column]) for line in (head, *lines)) for column in range(len(head))]
            return "\n".join(_plain(line, widths) for line in (head, *lines))
        from rich import box
        from rich.console import Console
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD if _draws_lines() else box.ASCII, pad_edge=False)
        for column, title in enumerate(head):
            table.add_column(title, justify="left" if column < 2 else "right", no_wrap=True)
        for line in lines:
            table.add_row(*line)
        out = io.StringIO()
        # As wide as it needs: a narrow terminal wraps a line, it does not cut a number.
        Console(file=out, force_terminal=True, width=500, highlight=False).print(table)
        return out.getvalue().rstrip("\n")


def _cells(row: Row) -> tuple[str, ...]:
    if row.round_medians_ms is not None:
        return _cells_of_rounds(row, row.round_medians_ms)
    latency, ratio = row.latency, "-"
    if row.ratio is not None:
        ratio = "{:.2f} ({:.2f}-{:.2f})".format(*row.ratio)
    times = (f"{value:.3f}" for value in (latency.p50_ms, latency.p90_ms, latency.p99_ms))
    return (row.model, row.backend, str(row.batch_size), *times, f"{row.images_per_second:.0f}", ratio)


def _cells_of_rounds(row: Row, medians: tuple[float, ...]) -> tuple[str, ...]:
    ratio = "-"
    if row.ratio is not None:
        ratio = "{:+.1f} % ({:+.1f} to {:+.1f})".format(*(100 * (value - 1) for value in row.ratio))
    times = f"{median(medians):.3f}", f"{min(medians):.3f}-{max(medians):.3f}"
    return (row.model, row.backend, str(row.batch_size), *times, f"{row.images_per_second:.0f}", ratio)


def _plain(line: tuple[str, ...], widths: list[int]) -> str:
    cells = [
        cell.ljust(width) if column < 2 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(line, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _draws_lines() -> bool:
    """Whether stdout's encoding has the characters that tables are drawn with."""
    try:
        "─".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
