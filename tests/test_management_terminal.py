"""`management.terminal`: texts and tables that fit a terminal."""

from __future__ import annotations

from io import StringIO
from types import SimpleNamespace

import pytest

from django_redis_sync.logs import printable
from django_redis_sync.management import terminal
from django_redis_sync.management.terminal import Cell, Column

TEXT = "Callers disagree on the limit: 报表导出 and, a-very-long-word-of-many-letters, 3."


@pytest.mark.parametrize(
    ("text", "columns"), [("e\u0301", 1), ("a\u20dd", 1), ("漢A", 3), ("Ａ", 2), ("abc", 3)]
)
def test_wide_counts_the_columns_on_screen(text: str, columns: int) -> None:
    assert columns == terminal.wide(text)


@pytest.mark.parametrize("width", range(1, 90))
def test_wrap_breaks_only_between_words(width: int) -> None:
    lines = terminal.wrap(TEXT, width)
    assert TEXT == " ".join(lines)
    assert all(terminal.wide(line) <= width or " " not in line for line in lines)


def test_clip_counts_visible_columns_of_a_colored_line() -> None:
    assert "\x1b[31mabc…\x1b[0m" == terminal.clip("\x1b[31mabcdef\x1b[0m gh", 4)
    assert "\x1b[31mab\x1b[0m" == terminal.clip("\x1b[31mab\x1b[0m", 4)
    assert "报表…" == terminal.clip("报表导出", 5)


def test_encodable_escapes_characters_that_the_stream_cannot_encode() -> None:
    for encoding, text in (("ascii", "\\xe9\\u2192x"), ("latin-1", "é\\u2192x"), ("utf-8", "é→x")):
        assert text == terminal.encodable("é→x", SimpleNamespace(encoding=encoding))


@pytest.mark.promise(28)
@pytest.mark.parametrize("text", ["a b", "é→x", "汉字"])
@pytest.mark.parametrize(
    ("control", "escaped"), [("", ""), ("\x1b[2J", "\\x1b[2J"), ("\r\n", "\\r\\n")]
)
def test_printable_escapes_control_characters(text: str, control: str, escaped: str) -> None:
    assert text + escaped + text == printable(text + control + text)


@pytest.mark.parametrize("width", range(34, 64))
def test_table_shrinks_flexible_columns_on_a_narrow_terminal(width: int) -> None:
    columns = [Column("A", flexible=True), Column("B"), Column("C", flexible=True)]
    (_, line) = terminal.table(columns, [["a" * 30, "b" * 10, "c" * 20]], width)
    assert width == len(line) and "b" * 10 in line
    assert ("c" * 20 in line) == (width >= 53)  # the widest column shrinks first


def test_table_aligns_wide_letters_and_omits_empty_columns() -> None:
    columns = [Column("NAME"), Column("EMPTY"), Column("N", right=True), Column("END")]
    rows = [["报表", "", Cell("1", lambda text: f"<{text}>"), "x"], ["abcdef", "", "22", "x"]]
    assert ["NAME     N  END", "报表     <1>  x", "abcdef  22  x"] == terminal.table(
        columns, rows, None
    )


def test_screen_fills_the_terminal_and_counts_hidden_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("LINES", "4")
    for lines, hidden in ((4, ""), (5, "… 2 more lines:"), (9, "… 6 more lines:")):
        terminal.Screen(out := StringIO()).draw([f"line{n}" for n in range(lines)])
        shown = out.getvalue().split("\n")
        assert 4 == len(shown) and (hidden in shown[-1] if hidden else "line3" in shown[-1])
