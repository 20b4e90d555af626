"""Text on a terminal: width of characters, tables, and a screen that is redrawn."""

from __future__ import annotations

import re
import shutil
import signal
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.utils.translation import ngettext

from ..logs import printable as printable

GAP = "  "
#: Min width of a column. A table that is still too wide is cut at the end of each line.
NARROWEST = 8

_ENTER = "\x1b[?1049h\x1b[?25l"  # the alternate screen, no cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"


def encodable(text: str, stream: Any) -> str:
    """Return `text` with escapes for characters that the stream can't encode."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def wide(text: str) -> int:
    """Return the width of a text: 2 per East Asian wide character, 0 per combining accent."""
    if text.isascii():
        return len(text)
    return sum(_wide(c) for c in text)


def _wide(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def fit(text: str, width: int) -> str:
    """Return `text` cut to `width` columns, with a mark at the cut."""
    if wide(text) <= width:
        return text
    kept, used = "", 0
    for char in text:
        if used + _wide(char) > width - 1:
            break
        kept, used = kept + char, used + _wide(char)
    return kept + "…" if width > 0 else ""


def clip(line: str, width: int) -> str:
    """Return a line cut to `width` columns. Escape codes of colors take no columns."""
    if "\x1b" not in line:
        return fit(line, width)
    out, left = [], width
    for i, part in enumerate(_COLOUR.split(line)):
        shown = part if i % 2 else fit(part, left)
        left -= 0 if i % 2 else wide(shown)
        out.append(shown)
    return "".join(out)


def wrap(text: str, width: int | None) -> list[str]:
    """Return `text` in lines of whole words, if they fit. If `width` is None, in one line."""
    if width is None:
        return [text] if text else []
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if wide(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return [line for line in lines if line]


@dataclass(frozen=True, slots=True)
class Cell:
    """A text and its color, for terminals with colors."""

    text: str
    style: Callable[[str], str] | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column, omitted if all its rows are empty. `flexible`: narrower on a narrow terminal."""

    title: str
    right: bool = False
    flexible: bool = False


def texts(*titles: str) -> list[Column]:
    """Return flexible columns."""
    return [Column(title, flexible=True) for title in titles]


def numbers(*titles: str) -> list[Column]:
    """Return right-aligned columns."""
    return [Column(title, right=True) for title in titles]


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str | Cell]], width: int | None
) -> list[str]:
    """Return aligned lines under a heading, at most `width` wide. None: no limit."""
    cells = [[_cell(value) for value in row] for row in rows]
    used = [i for i, _column in enumerate(columns) if any(row[i].text for row in cells)]
    columns = [columns[i] for i in used]
    cells = [[row[i] for i in used] for row in cells]
    widths = [
        max(wide(column.title), *(wide(row[i].text) for row in cells))
        for i, column in enumerate(columns)
    ]
    if width is not None:
        _shrink(columns, widths, width)
    head = [Cell(column.title) for column in columns]
    return [_line(columns, widths, row) for row in (head, *cells)]


def _cell(value: str | Cell) -> Cell:
    cell = value if isinstance(value, Cell) else Cell(value)
    return Cell(printable(cell.text), cell.style)


def _shrink(columns: Sequence[Column], widths: list[int], width: int) -> None:
    """Narrow the widest flexible column until the table fits."""
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - width
    while excess > 0:
        flexible = [i for i, c in enumerate(columns) if c.flexible and widths[i] > NARROWEST]
        if not flexible:
            return
        widest = max(flexible, key=lambda i: widths[i])
        widths[widest] -= 1
        excess -= 1


def _line(columns: Sequence[Column], widths: list[int], row: Sequence[Cell]) -> str:
    parts = []
    for column, width, cell in zip(columns, widths, row, strict=True):
        text = fit(cell.text, width)
        space = " " * (width - wide(text))
        shown = cell.style(text) if cell.style and text else text
        parts.append(space + shown if column.right else shown + space)
    return GAP.join(parts).rstrip()


def size(stream: Any) -> tuple[int, int] | None:
    """Return columns and lines of the terminal, or None if the stream is not a terminal."""
    if not (hasattr(stream, "isatty") and stream.isatty()):
        return None
    return shutil.get_terminal_size()


class Screen:
    """A terminal that is redrawn in place, without blank lines in between that would flicker."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def draw(self, lines: Sequence[str]) -> None:
        width, height = shutil.get_terminal_size()
        if len(lines) > height:
            more = len(lines) - height + 1
            text = ngettext(
                "… %d more line: make the terminal higher",
                "… %d more lines: make the terminal higher",
                more,
            )
            lines = [*lines[: height - 1], text % more]
        body = "\n".join(clip(line, width) + _CLEAR_LINE for line in lines)
        self._stream.write(_HOME + encodable(body, self._stream) + _CLEAR_REST)
        self._stream.flush()


@contextmanager
def screen(stream: Any) -> Iterator[Screen]:
    """Show the alternate screen during the block, and restore the terminal at its end."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    stream.write(_ENTER)
    stream.flush()
    try:
        yield Screen(stream)
    finally:
        stream.write(_LEAVE)
        stream.flush()
        signal.signal(signal.SIGTERM, before)


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt
