"""Tables in Markdown pages: each has its place between `<!-- NAME -->` and `<!-- end -->`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path


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
