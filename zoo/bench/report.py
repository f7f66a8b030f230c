"""What a benchmark found: a table for people, one JSON document for programs."""

from __future__ import annotations

import io
import sys
from dataclasses import asdict, dataclass
from typing import Any

from zoo.bench.protocol import Summary


@dataclass(frozen=True)
class Row:
    """One model on one backend. `ratio` is its time over its twin's, (p50, p25, p75); None without a twin."""

    model: str
    backend: str
    weights: str
    parameters: int
    batch_size: int
    latency: Summary
    images_per_second: float
    twin: str | None = None
    ratio: tuple[float, float, float] | None = None


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
                facts["ratio"] = dict(zip(("p50", "p25", "p75"), row.ratio, strict=True))
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
        head = ("model", "backend", "batch", "p50 ms", "p90 ms", "p99 ms", "images/s", "vs twin")
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
    latency, ratio = row.latency, "-"
    if row.ratio is not None:
        ratio = "{:.2f} ({:.2f}-{:.2f})".format(*row.ratio)
    times = (f"{value:.3f}" for value in (latency.p50_ms, latency.p90_ms, latency.p99_ms))
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
