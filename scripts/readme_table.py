"""Write the table of models in README.md from registry.yaml and weights/NAME/results.json.

    python scripts/readme_table.py [--check]

`--check` writes nothing and fails where the table is not what these files say.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import tables

from zoo import registry
from zoo.files import write_text

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- models: written by scripts/readme_table.py -->", "<!-- end of models -->"
HEAD = ["Model", "What it is", "Data", "Measured", "by", "Parameters", "File"]


def row(entry: registry.Entry) -> list[str]:
    """The cells of one model; a dash for what is not there yet."""
    folder = Path("weights") / entry.name
    name, measured, command, parameters, size = f"`{entry.name}`", "-", "-", "-", "-"
    if (ROOT / folder / "results.json").is_file():
        name = f"[{name}]({folder.as_posix()}/)"
        results = json.loads((ROOT / folder / "results.json").read_text(encoding="utf-8"))
        parameters = f"{results['parameters']:,}"
    if entry.ours:
        unit = " %" if entry.ours.metric.startswith("top") else ""
        measured, command = f"{entry.ours.metric} {entry.ours.value:.2f}{unit}", f"`{entry.ours.command}`"
    if entry.weights.bytes:
        size = f"{entry.weights.bytes / 1e6:.1f} MB"
    return [name, entry.summary, entry.dataset or "-", measured, command, parameters, size]


def table() -> str:
    """All models that are not test-sized, in the registry's order."""
    return tables.table(HEAD, [row(registry.get(name)) for name in registry.names()], left=range(len(HEAD)))


def main(arguments: list[str]) -> int:
    """Write or check; 1 where a check finds another table."""
    path = ROOT / "README.md"
    old = path.read_text(encoding="utf-8")
    new = re.sub(f"({BEGIN}\n).*({END})", lambda marks: marks[1] + table() + marks[2], old, flags=re.DOTALL)
    if "--check" in arguments:
        if new != old:
            print(
                "README.md: the table of models is out of date; run python scripts/readme_table.py",
                file=sys.stderr,
            )
        return int(new != old)
    write_text(path, new)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
