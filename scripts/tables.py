"""Tables in Markdown pages, each between `<!-- NAME -->` and `<!-- end -->`, and the command that writes a page."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from zoo.files import atomic, copy, write_json, write_text

NOT_YET = "not run yet"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """A Markdown table; the columns in `left` are flush left, the others right."""
    rule = ["---" if place in left else "---:" for place in range(len(head))]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *rows))


def with_tables(page: Path, tables: Mapping[str, str]) -> str:
    """The text of `page` with its tables written anew; SystemExit where one has no place in it."""
    text = page.read_text(encoding="utf-8")
    for name, rows in tables.items():
        place = rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)"
        text, found = re.subn(place, lambda match, rows=rows: match[1] + rows + match[2], text, flags=re.DOTALL)
        if found != 1:
            raise SystemExit(f"{page} has no place for the table {name!r}")
    return text


def take_over(runs: Path, name: str, target: Path) -> dict[str, Any]:
    """Copy log and results of the training `runs`/`name` to `target`/`name`; returns what the results say."""
    results = json.loads((runs / name / "results.json").read_text(encoding="utf-8"))
    results["command"] = f"zoo eval runs/{name}"
    copy(runs / name / "log.jsonl", target / name / "log.jsonl")
    write_json(target / name / "results.json", results)
    return results


def stored(folder: Path, file: str) -> Any:
    """What the JSON `file` of the training in `folder` says; None where it has not been run."""
    path = folder / file
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def write_or_check(page: Path, text: str, check: bool) -> None:
    """Write `text` as `page`; with `check` end with exit code 1 where the page is another."""
    if not check:
        write_text(page, text)
    elif text != page.read_text(encoding="utf-8"):
        print(f"{page} is not what its files say; run python {sys.argv[0]}", file=sys.stderr)
        sys.exit(1)


def save_picture(figure: Any, path: Path) -> None:
    """Write a figure of matplotlib as SVG, whole or not at all, and the same for the same content."""
    with atomic(path) as temporary:
        figure.savefig(temporary, format="svg", metadata={"Date": None})


def command(
    doc: str, page: Path, text: Callable[[], str], collect: Callable[[Path], None], picture: Callable[[], None]
) -> click.Command:
    """The command of a script that writes `page`: `text` gives it with its tables, `collect` takes over a folder of
    trainings, `picture` draws. `--check` fails where the page is not `text`."""

    @click.command(help=doc.split("\n", maxsplit=1)[0])
    @click.option("--runs", type=click.Path(exists=True, file_okay=False, path_type=Path))
    @click.option("--check", is_flag=True)
    def main(runs: Path | None, check: bool) -> None:
        if runs is not None and not check:
            collect(runs)
        write_or_check(page, text(), check)
        if not check:
            picture()

    return main
