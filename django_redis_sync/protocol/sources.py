"""Compose the source of a script: its file, the functions that it calls, and numbers for names.

A function is a file of its name in `lua/functions`, and works on its arguments alone. The server
makes the functions of a script anew in each run, and each costs a tenth of a command. So a function
is made in front of the statement that calls it, and a run that doesn't come there does without it.
A line of its own makes functions for the rest of a block, where several statements call them:

    -- make count grant

The composer reads lines, not Lua. `devtools/lua_lint.py` rejects what it would read wrongly:

- A statement begins on a line of its own, two spaces deeper than the line that opens its block.
- A line that ends with `then`, `do` or `else` opens a block. An `if` may also stand on one line,
  without calls of functions after its `then`: they would be made in any case.
- If a statement needs more lines, they are deeper than its first.
- The only loop is `for`. A function is called by its name, and never stored, passed or nested.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

LUA = Path(__file__).parent / "lua"
_MAKE, _OPENS = "-- make ", ("then", "do", "else")


def read(name: str) -> str:
    """Return the file of a script, or of "functions/NAME"."""
    return (LUA / f"{name}.lua").read_text(encoding="utf-8")


def header(text: str, word: str) -> tuple[str, ...]:
    """Return the names after `-- WORD`, for example the KEYS at a script's head."""
    return tuple(" ".join(re.findall(rf"^-- {word} (.*)$", text, re.MULTILINE)).split())


def with_functions(text: str) -> str:
    """Return `text` with the functions that it calls, and those that they call, as local ones."""
    return "\n".join([*_placed(_code(text), set()), ""])


def with_numbers(verb: str, text: str, values: Mapping[str, int | str]) -> str:
    """Return `text` with numbers for `values`, the script's KEYS in capitals, and fields of a name.

    As local variables, each function would have to capture them. The indentation goes: it is for
    readers. Raise KeyError for an unknown field.
    """
    places = {name: place for place, name in enumerate(fields(), 1)}
    text = re.sub(r"\bname\.(\w+)", lambda field: f"name[{places[field[1]]}]", text)
    keys = {key.upper(): f"KEYS[{n}]" for n, key in enumerate(keys_of(verb), 1)}
    said = {**keys, **values, "FIELDS": ", ".join(places)}
    text = re.sub(rf"\b({'|'.join(said)})\b", lambda word: str(said[word[0]]), text)
    return re.sub(r"^ +", "", text, flags=re.MULTILINE)


def keys_of(verb: str) -> tuple[str, ...]:
    """Return the KEYS of a script, and for a script on a name those that `set_key_names` adds."""
    declared = header(read(verb), "KEYS")
    laid = header(read("functions/set_key_names"), "KEYS")
    return declared + laid if "leases" in declared else declared


def fields() -> tuple[str, ...]:
    """Return the fields of a name, in the order of the list that `open` returns."""
    return header(read("functions/open"), "FIELDS")


@cache
def functions() -> dict[str, list[str]]:
    """Return the lines of each function."""
    return {path.stem: _code(path.read_text("utf-8")) for path in LUA.glob("functions/*.lua")}


def called(code: str) -> list[str]:
    """Return the functions that are called, in their order, except those of tables."""
    return re.findall(r"(?<![.:\w])([a-z_]+)\(", code)


def _code(text: str) -> list[str]:
    """Return the lines without empty ones and comments, except those that make functions."""
    lines = (re.sub(rf"\s*--(?!{_MAKE[2:]}).*", "", line) for line in text.splitlines())
    return [line for line in lines if line]


class _Statement(NamedTuple):
    """`lines`: its own, as far as they open no block; `block`: the block below them; `calls`: the
    functions to make in front of it."""

    lines: list[str]
    block: list[str]
    calls: list[str]


def _placed(lines: list[str], made: set[str]) -> list[str]:
    """Return `lines` with the functions that they call, except those that are already `made`."""
    made, placed = set(made), []
    for statement in _statements(tuple(lines)):
        for name in statement.calls:
            placed += _defined(name, made)
        placed += [*statement.lines, *_placed(statement.block, made)]
    return placed


def _defined(name: str, made: set[str]) -> list[str]:
    """Return the function, after those that it always calls. Return nothing if it is `made`."""
    if name in made or name not in functions():
        return []
    made.add(name)
    head, *block, end = functions()[name]
    always = [other for statement in _statements(tuple(block)) for other in statement.calls]
    before = [line for other in always for line in _defined(other, made)]
    return [*before, head, *_placed(block, made), end]


@cache
def _statements(lines: tuple[str, ...]) -> list[_Statement]:
    """Return the statements of a block. Cached: a function is read wherever it may be made."""
    indent = min((_indent(line) for line in lines), default=0)
    starts = [number for number, line in enumerate(lines) if _indent(line) == indent]
    found: list[_Statement] = []
    for start, stop in zip(starts, [*starts[1:], len(lines)], strict=False):
        first, *rest = lines[start:stop]
        word = first.split()[0]
        if first.lstrip().startswith(_MAKE):
            found.append(_Statement([], [], first.split()[2:]))
        elif not first.endswith(_OPENS):
            found.append(_Statement([first, *rest], [], called("\n".join([first, *rest]))))
        elif word == "elseif":  # nothing can stand before it but the `if`
            found[_if_of(found)].calls.extend(called(first))
            found.append(_Statement([first], rest, []))
        else:
            every_turn = _statements(tuple(rest)) if word == "for" else []
            calls = [*called(first), *(name for one in every_turn for name in one.calls)]
            found.append(_Statement([first], rest, calls))
    return found


def _if_of(statements: list[_Statement]) -> int:
    """Return where the `if` is to which an `elseif` belongs that comes next."""
    number = len(statements) - 1
    while statements[number].lines[0].split()[0] != "if":
        number -= 1
    return number


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
