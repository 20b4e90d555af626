"""The Lua verbs: a file each, composed with the functions that they call and these constants.

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

import hashlib
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ..values import MOST_PERMITS as MOST_PERMITS
from .keys import share_of_terms

LUA = Path(__file__).parent / "lua"
_MAKE, _OPENS = "-- make ", ("then", "do", "else")

#: Milliseconds unless said otherwise. One table for Lua and Python, so that they can't disagree.
CONSTANTS = MappingProxyType(
    {
        "FIRST": 5000,  # the longest lease a hand-over grants before its winner was heard of
        "CLAIM": 2500,  # a winner that has not woken by then loses its lease
        "HEARTBEAT": 1000,  # a waiter near the head asks again this often
        "PATIENCE": 2000,  # and counts as dead this long after it should have asked
        "ASLEEP": 5000,  # the furthest a waiter's deadline can be, deep in the queue
        "ALIVE": 2500,  # a sign of life of a waiter counts so long for all of its event loop
        "NEAR": 32,  # ranks that ask every HEARTBEAT; 10 ms are added for each rank behind them
        "GRACE": 5000,  # keys outlive the last lease or waiter by once to twice this
        "TOMBSTONE_TTL": 120_000,  # how long a late copy of an ended acquire is refused
        "BOUND": 100,  # entries that a script sweeps or hands over at the most,
        "CHUNK": 500,  # dead waiters at the head of the queue are dropped by so many at once
        "ROUNDS": 20,  # but so many times as many leases that are over: they must not look taken
        "TOP_KEYS": 200,  # keys of a group whose refusals are counted
        "TOP_SHARES": 20,  # shares of a name that its status shows, the heaviest
        "EXCLUSIVE": 2**40,  # permits that the whole name weighs: more than any limit
        "FORMAT": 1,  # of the short state: another number for each change of what is packed
        "FINE": 120,  # minutes of history by the minute; before, by the quarter of an hour
        "QUARTER": 15,  # minutes
        "PLACE_LIFE": 90_000,  # how long a job that is away keeps its place beyond its time
        "SOONEST": 50,  # ms until a job comes back: no sooner
        "LATEST": 60_000,  # and no later
        "AWAY": 100,  # what sending a job again takes: the shorter holds are, the more may pass
        "STARVED": 3,  # visits in vain after which a permit is kept for a job
        "TURN": 2000,  # how long that holds up others; how long a later sending is waited for
        "REST": 30_000,  # no permit is kept until then, after a job did not come for one
        "PAIR": 2**40,  # a counter and the sum of its ms share one number: count * PAIR + ms
    }
)

#: The scripts' pattern of a record: its state and the number of its newest renewal, if any; its
#: fence, its lease, and the terms, which stay: permits, limit, wake channel, label. The states: w
#: waiting, g granted by a hand-over, h held, k kept after its release (min_hold), x buried.
PATTERNS = MappingProxyType(
    {
        "RECORD": "'^(%a)(%d*) (%d+) (%S+) (.*)$'",
        "TERMS": "'^(%d+) (%d+) (%S+) '",
        "PLACE": "'^(%a) (%d+) (%S+) (%d+) (%d+) (%d) (%S*) (.*)$'",
        "EVENTS": "'gwrntcslbvdxp'",  # what is counted, a letter each; p is the highest use
        "COMPACT": "'<Bdddsss'",
        "PACKED": "'<Bdddsssc0'",
        "RECORDED": "'<Bdddsssc0c0c0c0c0c0'",
    }
)


@dataclass(frozen=True, slots=True)
class Script:
    """A verb: its whole source, its SHA1 and the contract that its header states."""

    verb: str
    source: str
    sha: str
    keys: tuple[str, ...]
    argv: tuple[str, ...]


def compose(verb: str, constants: Mapping[str, int] = CONSTANTS) -> str:
    """The source that the server runs."""
    return with_numbers(verb, with_functions(read(verb)), {**PATTERNS, **constants})


#: Taken by the thread that composes. Others wait so many seconds: a fork may find it taken.
_composing, _PATIENCE = threading.Lock(), 1.0


@cache
def script(verb: str) -> Script:
    """The verb's script, composed once per process."""
    # Threads of a new process come at once, and each would do all of the work among the others.
    first = _composing.acquire(timeout=_PATIENCE)
    try:
        return _composed(verb, compose)
    finally:
        if first:
            _composing.release()


@cache
def _composed(verb: str, compose: Callable[[str], str]) -> Script:
    text, source = read(verb), compose(verb)
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(verb, source, sha, header(text, "KEYS"), header(text, "ARGV"))


#: More than can ever wait.
ANY = 10**9

#: The arguments that may be left out, and what they are then.
LEFT_OUT: Mapping[str, Any] = MappingProxyType(
    {
        "mark": "-",
        "max_waiters": ANY,
        "fair": 1,
        "compact": 1,
        "how": "release",
        "tombstone": 0,
        "hold": 0,
        "place": "",
    }
)


def said(verb: str, argv: Sequence[Any]) -> dict[str, Any]:
    """ARGV by name, with what was left out, and with the parts of `terms` and `wants`."""
    names = script(verb).argv
    given = {name: LEFT_OUT[name] for name in names[len(argv) :]}
    given.update(zip(names, argv, strict=False))
    if "terms" in given:
        words = str(given["terms"]).split(" ", 3)
        given.update(zip(("permits", "limit", "channel", "label"), words, strict=True))
        given["kind"] = str(given["wants"])[0]
        given["share"], given["share_limit"], given["label"] = share_of_terms(given["label"])
    return given


#: The verbs on a name; and the scripts that are on none.
VERBS = ("acquire", "visit", "release", "renew", "clear", "operate", "inspect")
ASIDE = ("marks", "tally")


# The composer


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
