"""Metrics as JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from zoo.errors import UsageError
from zoo.files import write_text

FILE = "log.jsonl"


class Log:
    """Appends one JSON object a line to `folder/log.jsonl`, once lines of steps after `keep_until` are dropped.

    So a resumed training continues the log where its checkpoint stands, and no step appears twice.
    """

    def __init__(self, folder: Path, keep_until: int) -> None:
        self.path = folder / FILE
        kept = [row for row in read(self.path) if row.get("step", 0) <= keep_until]
        write_text(self.path, "".join(_line(row) for row in kept))

    def write(self, **row: Any) -> None:
        """Append one line and hand it to the system at once."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(_line(row))
        except OSError as error:
            raise UsageError(f"cannot write {self.path}: {error.strerror}") from None


def read(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a log; a last line cut by a kill is left out."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row) + "\n"
