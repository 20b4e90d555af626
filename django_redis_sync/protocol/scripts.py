"""The Lua verbs: one file each, composed with their includes and the constants below."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from ..values import MOST_PERMITS as MOST_PERMITS

LUA = Path(__file__).parent / "lua"

#: Milliseconds unless said otherwise. One table for Lua and Python, so that they can't disagree.
CONSTANTS = MappingProxyType(
    {
        "FIRST": 5000,  # the longest lease a hand-over grants before its winner was heard of
        "CLAIM": 3000,  # a winner that has not woken by then loses its lease
        "BEAT": 1000,  # a waiter near the head asks again this often
        "PATIENCE": 2000,  # and counts as dead this long after it should have asked
        "ASLEEP": 5000,  # the furthest a waiter's deadline can be, deep in the queue
        "NEAR": 32,  # ranks that ask every BEAT; 10 ms are added for each one behind them
        "GRACE": 5000,  # keys outlive the last lease or waiter by one to two of these
        "BURIAL": 120_000,  # how long a late copy of an ended acquire is refused
        "BOUND": 100,  # entries that one script sweeps or hands over at the most,
        "ROUNDS": 20,  # but so many times as many leases that are over: they must not look taken
        "EXCLUSIVE": 2**40,  # permits that the whole name weighs: more than any limit
        "PAIR": 2**40,  # a counter and the sum of its ms share one number: count * PAIR + ms
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


def read(verb: str) -> str:
    return (LUA / f"{verb}.lua").read_text(encoding="utf-8")


def header(text: str, word: str) -> tuple[str, ...]:
    """The names after `-- WORD`, e.g. the KEYS in a verb's header."""
    return tuple(" ".join(re.findall(rf"^-- {word} (.*)$", text, re.MULTILINE)).split())


def compose(verb: str, constants: MappingProxyType[str, int] = CONSTANTS) -> str:
    """The source that the server runs: constants, then the verb with its includes.

    Each stands where it is named, in line: a function would be made anew in every run.
    """
    names, values = ", ".join(constants), ", ".join(str(v) for v in constants.values())
    return f"local {names} = {values}\n{with_includes(read(verb))}"


def with_includes(text: str) -> str:
    """`text` with what its lines `-- @include NAME …` name, and what that includes."""

    def include(line: re.Match[str]) -> str:
        return "\n".join(with_includes(read(f"include/{name}")) for name in line[1].split())

    return re.sub(r"^-- @include (.*)$", include, text, flags=re.MULTILINE)


@cache
def script(verb: str) -> Script:
    """The verb's script, composed once per process."""
    text, source = read(verb), compose(verb)
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(verb, source, sha, header(text, "KEYS"), header(text, "ARGV"))


VERBS = ("acquire", "release", "renew", "clear", "operate", "inspect")
