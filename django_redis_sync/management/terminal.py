"""Text on a terminal: width of characters, tables, and a screen that is redrawn."""

from __future__ import annotations

import shutil
import signal
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

from django.core.management.color import Style
from django.utils.translation import ngettext

from ..logs import printable as printable

GAP = "  "
#: Min width to which a column is narrowed. If the table is still too wide, its lines exceed the
#: width of the terminal.
NARROWEST = 6
#: Width to which a column whose cells are wrapped is narrowed first.
COMFORTABLE = 16
#: Max lines of a cell that is wrapped. A longer text is cut.
MAX_LINES = 6

# Enter and leave the alternate screen. It has no cursor, and cuts long lines at the right.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"


def encodable(text: str, stream: Any) -> str:
    """Return `text` with escapes for characters that the stream can't encode."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def wide(text: str) -> int:
    """Return the width of a text in columns: 2 per East Asian wide character, 0 per combining
    accent, and 1 per other character."""
    if text.isascii():
        return len(text)
    return sum(_wide(c) for c in text)


def _wide(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def fit(text: str, width: int) -> str:
    """Return `text`. If it is wider than `width` columns, cut it, and end it with "…"."""
    if wide(text) <= width:
        return text
    while wide(text) > max(0, width - 1):
        text = text[:-1]
    return text + "…" if width > 0 else ""


def folded(text: str, width: int) -> list[str]:
    """Return `text` as lines of at most `width` columns, at most MAX_LINES. Break it between words,
    or inside a word that is too long for a line."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if wide(longer) <= width:
            lines[-1] = longer
            continue
        lines += [""] if lines[-1] else []
        for char in word:
            lines += [""] if wide(lines[-1] + char) > width else []
            lines[-1] += char
    if len(lines) > MAX_LINES:
        lines[MAX_LINES - 1 :] = [fit(" ".join(lines[MAX_LINES - 1 :]), width)]
    return lines


@dataclass(frozen=True, slots=True)
class Cell:
    """A text and its color, for terminals with colors."""

    text: str
    style: Callable[[str], str] | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `cell(row)`: returns the content for a row. A column is omitted if it is empty in
    all rows. `flexible`: True if it may be narrowed on a narrow terminal. `first`: True if it is
    then narrowed before the others. `own_line`: "above" or "below" if, on a narrow terminal, a cell
    has a line of its own above or below its row: "above" only a cell that does not fit."""

    title: str
    cell: Callable[[Any], str | int | Cell]
    right: bool = False
    flexible: bool = False
    first: bool = False
    own_line: str = ""


flexible = partial(Column, flexible=True)
number = partial(Column, right=True)


@dataclass(frozen=True, slots=True)
class Output:
    """The width and the style of a command's output. `width`: max columns of a line, or None for no
    limit. `folds`: whether a cell that is too wide for its column takes several lines; otherwise it
    is cut."""

    width: int | None
    style: Style
    folds: bool = True

    def wrap(self, text: str) -> list[str]:
        """Return `text` as lines. Break it between words only; a word that is too long for a line
        is a line of its own. Without a width, return one line."""
        if self.width is None:
            return [text] if text else []
        lines = [""]
        for word in text.split(" "):
            longer = f"{lines[-1]} {word}" if lines[-1] else word
            if wide(longer) <= self.width:
                lines[-1] = longer
            else:
                lines.append(word)
        return [line for line in lines if line]

    def explained(self, text: str) -> list[str]:
        """Return the lines of a text that explains words, after an empty line. A screen that is
        redrawn has no space for it."""
        return ["", *self.wrap(text)] if self.folds else []

    def warn(self, text: str) -> list[str]:
        """Return the lines of a warning."""
        return [self.style.WARNING(line) for line in self.wrap(printable(text))]

    def cell(self, text: object, trouble: object = True) -> Cell:
        """Return a cell with `text`. If `trouble` is true, the text has the color of a warning."""
        return Cell(str(text), self.style.WARNING if trouble else None)

    def table(self, columns: Sequence[Column], rows: Sequence[Any]) -> list[str]:
        """Return the lines of a table: a heading, and one or more lines for each row."""
        shown, widths = [], []
        for column in columns:
            cells = [_cell(column.cell(row)) for row in rows]
            if any(cell.text for cell in cells):
                cells.insert(0, Cell(column.title))
                shown.append((column, cells))
                widths.append(max(wide(cell.text) for cell in cells))
        below: list[tuple[Cell, ...]] = []
        if self.width is not None:
            if self.folds and _total(widths) > self.width:
                below = [*zip(*(cells for c, cells in shown if c.own_line == "below"), strict=True)]
                kept = [n for n, (column, _) in enumerate(shown) if column.own_line != "below"]
                shown, widths = [shown[n] for n in kept], [widths[n] for n in kept]
            flexible = [column for column, _ in shown]
            if self.folds:
                _shrink(flexible, widths, self.width, COMFORTABLE)
            _shrink(flexible, widths, self.width, NARROWEST)
        lines = list[str]()
        row: Sequence[Cell]
        for n, row in enumerate(zip(*(cells for _, cells in shown), strict=True)):
            if self.width and self.folds:
                row = self._above(row, widths, [column for column, _ in shown], lines)
            parts = [
                folded(cell.text, width) if self.folds and self.width else [fit(cell.text, width)]
                for cell, width in zip(row, widths, strict=True)
            ]
            for texts in zip_longest(*parts, fillvalue=""):
                places = zip(texts, row, widths, shown, strict=True)
                line = [
                    _aligned(text, cell.style, width, column.right)
                    for text, cell, width, (column, _) in places
                ]
                lines.append(GAP.join(line).rstrip())
            for cell in below[n] if n and below else ():
                noted = folded(cell.text, (self.width or 0) - len(GAP)) if cell.text else []
                lines += [GAP + (cell.style(text) if cell.style else text) for text in noted]
        return lines

    def _above(
        self,
        row: Sequence[Cell],
        widths: Sequence[int],
        columns: Sequence[Column],
        lines: list[str],
    ) -> Sequence[Cell]:
        """Add lines for the cells that don't fit and belong above the row. Return the row without
        these cells."""
        left = []
        for cell, width, column in zip(row, widths, columns, strict=True):
            if column.own_line == "above" and wide(cell.text) > width:
                lines += folded(cell.text, self.width or 0)
                cell = Cell("")
            left.append(cell)
        return left


def _cell(value: str | int | Cell) -> Cell:
    cell = value if isinstance(value, Cell) else Cell(str(value))
    return Cell(printable(cell.text), cell.style)


def _shrink(columns: Sequence[Column], widths: list[int], width: int, least: int) -> None:
    """Narrow the widest flexible column, until the table fits or no column can be narrowed. Narrow
    columns with `first` before the others, and no column below `least`."""
    while _total(widths) > width:
        flexible = [i for i, c in enumerate(columns) if c.flexible and widths[i] > least]
        if not flexible:
            return
        widths[max(flexible, key=lambda i: (columns[i].first, widths[i]))] -= 1


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _aligned(text: str, style: Callable[[str], str] | None, width: int, right: bool) -> str:
    space = " " * (width - wide(text))
    shown = style(text) if style and text else text
    return space + shown if right else shown + space


def width_of(stream: Any) -> int | None:
    """Return the number of columns of the terminal, or None if the stream is not a terminal."""
    if not (hasattr(stream, "isatty") and stream.isatty()):
        return None
    return shutil.get_terminal_size().columns


def draw(stream: Any, lines: Sequence[str]) -> None:
    """Redraw the screen in place. It is not cleared first, because that would flicker."""
    height = shutil.get_terminal_size().lines
    if len(lines) > height:
        more = len(lines) - height + 1
        text = ngettext(
            "… %d more line: make the terminal higher",
            "… %d more lines: make the terminal higher",
            more,
        )
        lines = [*lines[: height - 1], text % more]
    body = "\n".join(line + _CLEAR_LINE for line in lines)
    stream.write(_HOME + encodable(body, stream) + _CLEAR_REST)
    stream.flush()


@contextmanager
def screen(stream: Any) -> Iterator[None]:
    """Show the alternate screen during the block, and restore the terminal at its end."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    stream.write(_ENTER)
    stream.flush()
    try:
        yield
    finally:
        stream.write(_LEAVE)
        stream.flush()
        signal.signal(signal.SIGTERM, before)
