"""The Lua scripts, and their composer, which joins a script and the functions that it calls.

Each script is a file in `lua`. Each function is a file in `lua/functions` with the function's name,
and uses no variables of the script. A run of a script creates its functions, and each takes a tenth
of the time of a command. So the composer inserts a function in front of the statement that calls
it. A run that skips the statement doesn't create the function. If several statements of a block
call the same functions, a line like this inserts the functions once, for the rest of the block:

    -- the composer inserts here: count, grant

The composer reads lines, not Lua syntax. `devtools/lua_lint.py` rejects what the composer would
misread. The rules are:

- Each statement begins on a line of its own, two spaces deeper than the line that opens its block.
- A line that ends with `then`, `do` or `else` opens a block. An `if` may be a single line if no
  function is called after its `then`. Such a function would be created even if the condition is
  false.
- Further lines of a statement are indented more than its first line.
- `for` is the only loop. A function is never stored in a variable, passed, or defined in another.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ..values import MOST_PERMITS as MOST_PERMITS
from .keys import share_of_terms
from .times import TIMES

LUA = Path(__file__).parent / "lua"
INSERT, _OPENS = "-- the composer inserts here: ", ("then", "do", "else")

#: Constants of the scripts, which Python uses too: the times of `times.py`, sizes, and formats.
CONSTANTS: Mapping[str, int] = MappingProxyType(
    {
        **TIMES,
        "NEAR": 32,  # number of waiters with interval HEARTBEAT; each later waiter has 10 ms more
        "BOUND": 100,  # max leases or waiters that a script handles in one round
        "CHUNK": 500,  # max dead waiters that a script removes from the queue in one step
        "ROUNDS": 20,  # max rounds in which a script removes expired leases
        "TOP_KEYS": 200,  # max names or keys for which the statistics of an hour count rejections
        "TOP_SHARES": 20,  # max shares that the status of a name shows
        "EXCLUSIVE": 2**40,  # permits that a lease of the whole name takes: more than any limit
        "FORMAT": 1,  # version of the compact state; change it if the packed fields change
        "FINE": 120,  # number of minutes for which the history of each minute is stored
        "QUARTER": 15,  # minutes in each period of the older history
        "SLOTS": 100,  # entries of the log of a rate from which on grants share an entry
        "LOG_HEAD": 16,  # bytes in front of the entries of this log
        "LOG_ENTRY": 12,  # bytes of an entry
        "ANY": 10**9,  # the value of `max_waiters` for no limit: more than any number of waiters
        "PAIR": 2**40,  # a counter of events with durations is (number of events) * PAIR + total ms
    }
)

#: Patterns and formats of the scripts.
#:
#: - RECORD: the record of a token. Its parts are the state, the number of the newest renewal (if
#:   any), the fence, the lease duration, and the terms. The state is w (waiting), g (granted by a
#:   handoff), h (held), k (retained by `min_hold` after a release), or x (tombstone).
#: - TERMS: permits, limit, wake-up channel, share (if any), and label.
PATTERNS = MappingProxyType(
    {
        "RECORD": "'^(%a)(%d*) (%d+) (%S+) (.*)$'",
        "TERMS": "'^(%d+) (%d+) (%S+) '",
        "EVENTS": "'gwrntkcslbumvp'",  # the letters of all counters; p is the max permits in use
        "COMPACT": "'<Bdddsss'",
        "PACKED": "'<Bdddsssc0'",
        "RECORDED": "'<Bdddsssc0c0c0c0c0c0'",
    }
)


class Script(NamedTuple):
    """A script. It has a name, a source, its SHA1, and the KEYS and ARGV that its head declares."""

    verb: str
    source: str
    sha: str
    keys: tuple[str, ...]
    argv: tuple[str, ...]


def compose(verb: str, constants: Mapping[str, int] = CONSTANTS) -> str:
    """Return the source of a script as the server runs it."""
    return with_numbers(verb, with_functions(read(verb)), {**PATTERNS, **constants})


@cache
def script(verb: str) -> Script:
    """Return a script by its name. It is composed once per process."""
    text, source = read(verb), compose(verb)
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(verb, source, sha, header(text, "KEYS"), header(text, "ARGV"))


#: The value of `max_waiters` for no limit.
ANY = CONSTANTS["ANY"]

#: The defaults of the script arguments that a caller can leave out.
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {"overrides": "-", "max_waiters": ANY, "fair": 1, "compact": 1}
    | {"how": "release", "tombstone": 0, "hold": 0, "id": "", "job": ""}
)


def arguments_of(verb: str, argv: Sequence[Any]) -> dict[str, Any]:
    """Return a dict of the values in ARGV, by the names of the arguments. Also include the defaults
    of arguments that were not sent, and the parts of `terms` and `wants`."""
    names = script(verb).argv
    given = {name: DEFAULTS[name] for name in names[len(argv) :]}
    given.update(zip(names, argv, strict=False))
    if "terms" in given:
        words = str(given["terms"]).split(" ", 3)
        given.update(zip(("permits", "limit", "channel", "label"), words, strict=True))
        given["kind"], _, given["rate"] = f"{given['wants']} ".split(" ", 2)
        given["rate"] = given["rate"].rstrip()
        given["share"], given["share_limit"], given["label"] = share_of_terms(given["label"])
    return given


#: The scripts that work on a single name, and the other scripts.
NAME_SCRIPTS = ("acquire", "release", "renew", "clear", "operate", "inspect", "job")
OTHER_SCRIPTS = ("overrides", "register", "statistics")


# The composer


def read(name: str) -> str:
    """Return the text of a Lua file. `name`: the name of a script, or "functions/NAME"."""
    return (LUA / f"{name}.lua").read_text(encoding="utf-8")


def header(text: str, word: str) -> tuple[str, ...]:
    """Return the words of the comment lines in `text` that begin with `word`. For example, the
    `word` "KEYS" returns the KEYS of a script."""
    return tuple(" ".join(re.findall(rf"^-- {word} (.*)$", text, re.MULTILINE)).split())


def with_functions(text: str) -> str:
    """Return the script `text` together with all functions that it needs, directly or
    indirectly."""
    return "\n".join([*_placed(_code(text), set()), ""])


def with_numbers(verb: str, text: str, values: Mapping[str, int | str]) -> str:
    """Remove the indentation of the script `text`, replace these words in it, and return it:

    - the name of a constant, with its value in `values`
    - the name of a Redis key, in capitals, with `KEYS[n]`
    - `name.FIELD`, a field of a name, and `log.FIELD`, with `name[n]` and `log[n]`

    If the constants and keys were local variables instead, each function would have to capture
    them, which takes time. Raise KeyError for an unknown field.
    """
    places = {name: place for place, name in enumerate(fields(), 1)}
    text = re.sub(r"\bname\.(\w+)", lambda field: f"name[{places[field[1]]}]", text)
    logged = {name: place for place, name in enumerate(fields("log"), 1)}
    text = re.sub(r"\blog\.(\w+)", lambda field: f"log[{logged[field[1]]}]", text)
    keys = {key.upper(): f"KEYS[{n}]" for n, key in enumerate(script_keys(verb), 1)}
    texts = {**keys, **values, "FIELDS": ", ".join(places)}
    text = re.sub(rf"\b({'|'.join(texts)})\b", lambda word: str(texts[word[0]]), text)
    return re.sub(r"^ +", "", text, flags=re.MULTILINE)


def script_keys(verb: str) -> tuple[str, ...]:
    """Return the KEYS of a script. If it works on one name, they include those that
    `set_key_names.lua` derives from the name."""
    declared = header(read(verb), "KEYS")
    derived = header(read("functions/set_key_names"), "KEYS")
    return declared + derived if "leases" in declared else declared


def fields(table: str = "name") -> tuple[str, ...]:
    """Return the names of the fields in a table: "name", which the Lua function `open` returns, or
    "log", which `rate_log` returns."""
    if table == "log":
        return header(read("functions/rate_log"), "LOG")
    return header(read("functions/open"), "FIELDS")


@cache
def functions() -> dict[str, list[str]]:
    """Return a dict from the name of each Lua function to its lines."""
    return {path.stem: _code(path.read_text("utf-8")) for path in LUA.glob("functions/*.lua")}


def called(code: str) -> list[str]:
    """Return the names of the functions that `code` calls, in order. Leave out members of tables,
    such as `string.sub`."""
    return re.findall(r"(?<![.:\w])([a-z_]+)\(", code)


def _code(text: str) -> list[str]:
    """Return the lines of `text`. Leave out empty lines, and all comments but INSERT lines."""
    lines = (re.sub(rf"\s*--(?!{INSERT[2:]}).*", "", line) for line in text.splitlines())
    return [line for line in lines if line]


class _Statement(NamedTuple):
    """A statement of Lua. `lines`: its lines, without its block. `block`: the lines of its block,
    if any. `calls`: the names of the functions to insert in front of the statement."""

    lines: list[str]
    block: list[str]
    calls: list[str]


def _placed(lines: list[str], made: set[str]) -> list[str]:
    """Return `lines`, and the functions that they call, each in front of its first call. Leave out
    the functions in `made`, because the script already has them."""
    made, placed = set(made), []
    for statement in _statements(tuple(lines)):
        for name in statement.calls:
            placed += _defined(name, made)
        placed += [*statement.lines, *_placed(statement.block, made)]
    return placed


def _defined(name: str, made: set[str]) -> list[str]:
    """Return the lines of the function `name`. In front of them are the functions that it calls in
    every run. Inside its body are those that it calls only in some runs. Return no lines if `name`
    is in `made`, because the script already has this function."""
    if name in made or name not in functions():
        return []
    made.add(name)
    head, *block, end = functions()[name]
    always = [other for statement in _statements(tuple(block)) for other in statement.calls]
    before = [line for other in always for line in _defined(other, made)]
    return [*before, head, *_placed(block, made), end]


@cache
def _statements(lines: tuple[str, ...]) -> list[_Statement]:
    """Return the statements of a block of code. Many scripts insert the same functions, so the
    results are cached."""
    indent = min((_indent(line) for line in lines), default=0)
    starts = [number for number, line in enumerate(lines) if _indent(line) == indent]
    found: list[_Statement] = []
    for start, stop in zip(starts, [*starts[1:], len(lines)], strict=False):
        first, *rest = lines[start:stop]
        word = first.split()[0]
        if first.lstrip().startswith(INSERT):
            found.append(_Statement([], [], first.partition(INSERT)[2].split(", ")))
        elif not first.endswith(_OPENS):
            found.append(_Statement([first, *rest], [], called("\n".join([first, *rest]))))
        elif word == "elseif":  # functions for an `elseif` have to be inserted before the `if`
            ifs = [one for one in found if one.lines and one.lines[0].split()[0] == "if"]
            ifs[-1].calls.extend(called(first))
            found.append(_Statement([first], rest, []))
        else:
            every_turn = _statements(tuple(rest)) if word == "for" else []
            calls = [*called(first), *(name for one in every_turn for name in one.calls)]
            found.append(_Statement([first], rest, calls))
    return found


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
