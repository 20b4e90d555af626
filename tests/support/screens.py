"""Read what `manage.py locks` writes: tables, and lines on a terminal."""

from __future__ import annotations

import re
import unicodedata
from io import StringIO
from typing import Any

from tests.support.operators import locks


def rows(text: str) -> list[dict[str, str]]:
    """Return the rows of all tables in a text. A row is a dict of its cells by column title."""
    found, head = list[dict[str, str]](), list[Any]()
    for line in text.splitlines():
        cells = [(one[0], *one.span()) for one in re.finditer(r"\S+( \S+)*", line)]
        if all(re.fullmatch("[A-Z# ]+", text) for text, *_ in cells):
            head = cells  # column titles, or [] for an empty line
        elif head:  # each cell begins or ends at the same place as its title
            below = [[t for t, a, b in cells if a == start or b == end] for _, start, end in head]
            row = zip(head, below, strict=True)
            found.append({title: (text or [""])[0] for (title, *_), text in row})
    return found


def by_name(text: str) -> dict[str, dict[str, str]]:
    return {row["NAME"]: row for row in rows(text)}


class Terminal(StringIO):
    """A text stream that claims to be a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def on_terminal(*words: str, **options: Any) -> str:
    """Return what `manage.py locks` writes to a terminal."""
    return locks(*words, stdout=Terminal(), **options)


def columns(text: str) -> int:
    """Return the number of columns that a text takes on a terminal."""
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    shown = [c for c in text if not unicodedata.combining(c)]
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in shown)
