"""The text of a verb as the server gets it: its file, the functions that it calls, and numbers.

A function is a file of its name in `lua/functions`, and takes all it works on as arguments. The
server makes functions anew in every run, and each costs it a tenth of a command. So they are put in
front of the statement that calls them, and a run that does not come there does without.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

LUA = Path(__file__).parent / "lua"


def read(name: str) -> str:
    """The file of a verb, or of "functions/NAME"."""
    return (LUA / f"{name}.lua").read_text(encoding="utf-8")


def header(text: str, word: str) -> tuple[str, ...]:
    """The names after `-- WORD`, e.g. the KEYS in a verb's head."""
    return tuple(" ".join(re.findall(rf"^-- {word} (.*)$", text, re.MULTILINE)).split())


def with_functions(text: str) -> str:
    """`text` with the functions that it calls, and those that these call, as local ones."""
    return "\n".join([*_placed(_code(text), set()), ""])


def with_numbers(verb: str, text: str, values: Mapping[str, int | str]) -> str:
    """`text` with numbers for names: `values`, the verb's KEYS in capitals, the fields of a name.

    As locals, each function would have to capture them. A field that there isn't is a KeyError.
    """
    places = {name: place for place, name in enumerate(fields(), 1)}
    text = re.sub(r"\bname\.(\w+)", lambda field: f"name[{places[field[1]]}]", text)
    keys = {key.upper(): f"KEYS[{n}]" for n, key in enumerate(keys_of(verb), 1)}
    said = {**keys, **values, "FIELDS": ", ".join(places)}
    return re.sub(rf"\b({'|'.join(said)})\b", lambda word: str(said[word[0]]), text)


def keys_of(verb: str) -> tuple[str, ...]:
    """The KEYS of a verb, and on a name those that `lay_keys` puts behind them."""
    declared = header(read(verb), "KEYS")
    laid = header(read("functions/lay_keys"), "KEYS")
    return declared + laid if "leases" in declared else declared


def fields() -> tuple[str, ...]:
    """The fields `open` finds of a name, in the order of the list that it returns."""
    return header(read("functions/open"), "FIELDS")


@cache
def functions() -> dict[str, list[str]]:
    """The lines of each function."""
    return {path.stem: _code(path.read_text("utf-8")) for path in LUA.glob("functions/*.lua")}


def called(code: str) -> list[str]:
    """The functions that are called, in their order; not those in tables."""
    return re.findall(r"(?<![.:\w])([a-z_]+)\(", code)


def _code(text: str) -> list[str]:
    """The lines, without comments and empty ones."""
    lines = (re.sub(r"\s*--.*", "", line) for line in text.splitlines())
    return [line for line in lines if line]


def _placed(lines: list[str], made: set[str]) -> list[str]:
    """`lines` with the functions that they call; those that are `made` can be seen from there."""
    made, placed = set(made), []
    for head, body, asked in _statements(tuple(lines)):
        for name in asked:
            placed += _defined(name, made)
        placed += [head, *_placed(body, made)]
    return placed


def _defined(name: str, made: set[str]) -> list[str]:
    """The function below those that it calls in any case, unless it was `made`; then it is."""
    if name in made or name not in functions():
        return []
    made.add(name)
    head, *body, end = functions()[name]
    asked = [other for *_, others in _statements(tuple(body)) for other in others]
    below = [line for other in asked for line in _defined(other, made)]
    return [*below, head, *_placed(body, made), end]


@cache
def _statements(lines: tuple[str, ...]) -> list[tuple[str, list[str], list[str]]]:
    """Each line that is indented the least, the lines below it, and its calls.

    An `if` also has the calls of each of its `elseif`, and a loop those of every turn. Remembered:
    a function is looked at wherever it might be placed.
    """
    indent = min((_indent(line) for line in lines), default=0)
    starts = [number for number, line in enumerate(lines) if _indent(line) == indent]
    blocks = [lines[i:j] for i, j in zip(starts, [*starts[1:], len(lines)], strict=False)]
    return [
        (head, body, _asked(head, body, [other[0].lstrip() for other in blocks[number:]]))
        for number, (head, *body) in enumerate(blocks, 1)
    ]


def _asked(head: str, body: list[str], after: list[str]) -> list[str]:
    word, asked = head.split()[0], called(head)
    if word == "elseif":
        return []
    if word == "if":
        for other in after:
            if not other.startswith("else"):
                break
            asked += called(other)
    if word == "for":
        asked += [name for *_, names in _statements(tuple(body)) for name in names]
    return asked


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
