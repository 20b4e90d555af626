"""The Lua verbs: a file each, composed with the functions that they call and these constants."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from ..values import MOST_PERMITS as MOST_PERMITS
from .keys import share_of_terms
from .sources import header, read, with_functions, with_numbers

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
        "AWAY": 200,  # what sending a job again takes: the shorter holds are, the more may pass
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
