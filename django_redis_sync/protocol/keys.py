"""The key grammar: `PREFIX:{NAME}:part`, one Cluster slot per name, no two names alike.

In a key a name is percent-quoted where it holds `%`, `{`, `}` or `@`. A keyed child is
`{NAME@KEY}`: the only unquoted `@` there can be.
"""

from __future__ import annotations

import math
import unicodedata
from functools import lru_cache
from typing import NamedTuple
from weakref import WeakValueDictionary

MOST_BYTES = 200
#: Characters of a token that people see.
SHOWN = 8

# Control, surrogate, line and paragraph separators; and marks that turn the direction of writing.
_REFUSED = frozenset({"Cc", "Cs", "Zl", "Zp"})
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_QUOTED = str.maketrans({c: f"%{ord(c):02X}" for c in "%{}@"})
_SHARE = str.maketrans({c: f"%{ord(c):02X}" for c in "% "})


_PARTS = ("leases", "queue", "parked", "waiters", "info", "wake:", "stats")


class Token(str):
    """A token, or a key that ends with one. Its `repr` is shortened, so that no page or mail about
    an error has the secret that owns a lease."""

    __slots__ = ()

    def __repr__(self) -> str:
        head, colon, token = self.rpartition(":")
        return repr(f"{head}{colon}{token[:SHOWN]}…")


class Policy:
    """A keyed policy as this process knows it: one object for all keys of its children.

    `mark`: an operator's pause and limit, as its children carry them to the server, since they may
    live on other nodes: "-", or "PAUSED LIMIT" (see `pause_of`; permits, or 0). `exempt`: the
    marks of children that an operator took out of it, by quoted name. `due`: when that has to be
    read again, in seconds of the monotonic clock; `used`: when it was last needed; `stirred`: a
    mark changed, and waiters of this process have not been told.
    """

    __slots__ = ("__weakref__", "due", "exempt", "mark", "quoted", "registry", "stirred", "used")

    def __init__(self, registry: str, quoted: str) -> None:
        self.registry, self.quoted = registry, quoted
        self.mark, self.exempt, self.stirred = "-", dict[str, str](), False
        self.due = self.used = -math.inf


#: By the key of the marks and the quoted name of the policy.
policies: WeakValueDictionary[tuple[str, str], Policy] = WeakValueDictionary()


class Keys(NamedTuple):
    """The keys of a name. `display` is for people, `quoted` stands in the keys.

    `declared`: KEYS of every verb, from which the scripts know the others. The last one never
    exists: while its slot is on the way to another node of a Cluster, the server refuses a script
    of which a key is missing there, and would stop any other halfway.
    `keep`: minutes of history that its verbs write; 0: none. `policy`: the parent's.
    """

    display: str
    quoted: str
    leases: str
    queue: str
    parked: str
    waiters: str
    info: str
    wake: str
    stats: str
    keep: int
    policy: Policy | None
    declared: tuple[str, str]

    @property
    def prefix(self) -> str:
        """The prefix of all keys, quoted."""
        return self.leases.removesuffix(f":{{{self.quoted}}}:leases")

    @property
    def mark(self) -> str:
        """The policy's mark, as the granting verbs take it."""
        policy = self.policy
        if policy is None:
            return "-"
        return policy.exempt.get(self.quoted, policy.mark) if policy.exempt else policy.mark

    def marked(self, paused: str, limit: int, now: int) -> tuple[int, float, int]:
        """Return the marks in force at `now` (server ms), where its own are `paused` and `limit`:
        since when and until when it is paused (as `pause_of`), and the limit; 0 for none. Its own
        come before its policy's."""
        policy_paused, _, policy_limit = ("0 0" if self.mark == "-" else self.mark).rpartition(" ")
        since, until = pause_of(paused or policy_paused)
        if until <= now:
            since, until = 0, 0
        return since, until, limit or int(policy_limit)


def touched(declared: tuple[str, ...]) -> tuple[str, ...]:
    """The keys that a script with these KEYS works on; of lists that wake, how they begin."""
    base = declared[0].removesuffix("leases")
    return declared if base == declared[0] else tuple(base + part for part in _PARTS)


def check_text(what: str, value: object, most: int = MOST_BYTES) -> str:
    """`value` if it can stand in a key and be shown on a terminal, else TypeError or ValueError."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    if not value:
        raise ValueError(f"{what} must not be empty")
    plain = value.isascii() and value.isprintable()  # as nearly all are, and told in one step
    for char in "" if plain else value:
        if unicodedata.category(char) in _REFUSED or char in _TURNING:
            raise ValueError(f"{what} must not hold the control character U+{ord(char):04X}")
    if len(value.encode()) > most:
        raise ValueError(f"{what} must not be longer than {most} bytes in UTF-8")
    return value


def quote(text: str) -> str:
    return text.translate(_QUOTED)


def unquote(text: str) -> str:
    for char in "{}@%":
        text = text.replace(f"%{ord(char):02X}", char)
    return text


def share_terms(share: str, share_limit: int) -> str:
    """A share in the terms of a record, in front of the label: "/LIMIT/SHARE" without a space. The
    common share is empty; limit 0: without a limit."""
    return f"/{share_limit}/{share.translate(_SHARE)}"


def share_of_terms(text: str) -> tuple[str, int, str]:
    """The share, its limit and the label in what follows the channel in a record's terms; without
    a share, the first two are empty and 0."""
    if not text.startswith("/"):
        return "", 0, text
    said, _, label = text.partition(" ")
    limit, _, share = said[1:].partition("/")
    return unquote_share(share), int(limit or 0), label


def unquote_share(text: str) -> str:
    """The share that is quoted in terms and in fields."""
    return text.replace("%20", " ").replace("%25", "%")


@lru_cache(maxsize=8192)
def keys_of(prefix: str, name: str, key: str | None = None, keep: int = 0) -> Keys:
    """The keys of `name` under `prefix`, or of its child for `key`. Raises as check_text does."""
    check_text("a name", name)
    quoted, policy = quote(name), None
    if key is not None:
        check_text("a key", key)
        policy = _policy(marks_key(prefix), quoted)
        quoted = f"{quoted}@{quote(key)}"
    base = f"{quote(prefix)}:{{{quoted}}}:"
    leases, queue, parked, waiters, info, wake, stats = (base + part for part in _PARTS)
    own = leases, queue, parked, waiters, info, wake, stats
    return Keys(display(name, key), quoted, *own, keep, policy, (leases, base + "never"))


def marks_key(prefix: str) -> str:
    """A hash of the names that operators paused ("p:NAME": as `pause_of` takes it) and resized
    ("l:NAME": the limit), and of the children that they took out of that again ("xp:NAME",
    "xl:NAME"); NAME as between braces."""
    return f"{quote(prefix)}:marks"


def pause_of(text: str) -> tuple[int, float]:
    """Return since when and until when a name is paused, in server ms, of "SINCE" or "SINCE UNTIL".
    Until inf without the second, until 0 for "0": not paused."""
    since, _, until = text.partition(" ")
    if not since.isdecimal() or since == "0":
        return 0, 0
    return int(since), int(until) if until.isdecimal() else math.inf


def group_keys(prefix: str, group: str) -> tuple[str, ...]:
    """Where sums of a group of names are kept: shares of processes, the busiest keys, counts.

    `prefix`: quoted; `group`: a policy or template as between braces, or "" for all names.
    """
    base = f"{prefix}:{{{group or '%'}}}:"  # no name is quoted so
    return base + "shares", base + "sketch", base + "sums"


def groups_key(prefix: str) -> str:
    """A sorted set of groups, by when something happened in them, server ms. `prefix`: quoted."""
    return f"{prefix}:groups"


def _policy(registry: str, quoted: str) -> Policy:
    found = policies.get((registry, quoted))
    return found or policies.setdefault((registry, quoted), Policy(registry, quoted))


def split(quoted: str) -> tuple[str, str | None]:
    """The name and the key (None: a plain name) in the text between the braces."""
    name, at, key = quoted.partition("@")
    return unquote(name), unquote(key) if at else None


def display(name: str, key: str | None) -> str:
    """Return a name, or a key of a policy, as people see it."""
    return name if key is None else f"{name}@{key}"
