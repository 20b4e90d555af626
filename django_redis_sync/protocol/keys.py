"""The names of keys: `PREFIX:{NAME}:part`. Each name has one Cluster slot, and keys of its own.

The characters `%`, `{`, `}` and `@` of a name are percent-quoted in its keys. A key of a policy is
`{NAME@KEY}`, with the only unquoted `@`.
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

# Control characters, surrogates, separators of lines, and marks that change the text direction.
_REFUSED = frozenset({"Cc", "Cs", "Zl", "Zp"})
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_QUOTED = str.maketrans({c: f"%{ord(c):02X}" for c in "%{}@"})
_SHARE = str.maketrans({c: f"%{ord(c):02X}" for c in "% "})


_PARTS = ("leases", "queue", "parked", "waiters", "info", "wake:", "stats")


class Token(str):
    """A token, or a key that ends with one. Its `repr` is shortened: an error page or mail must not
    contain the secret of a lease."""

    __slots__ = ()

    def __repr__(self) -> str:
        head, colon, token = self.rpartition(":")
        return repr(f"{head}{colon}{token[:SHOWN]}…")


class Policy:
    """A keyed policy as this process knows it: one object for all of its keys.

    `mark`: the operator's pause and limit, "-" or "PAUSED LIMIT" (see `pause_of`; 0: no limit).
    Each key sends it to the server, because it may be on another node. `exempt`: the marks of keys
    that an operator exempted, by quoted name. `due`: when to read these again; `used`: when they
    were last used, both in seconds of the monotonic clock. `stirred`: True if a mark has changed
    and waiters of this process don't know yet.
    """

    __slots__ = ("__weakref__", "due", "exempt", "mark", "quoted", "registry", "stirred", "used")

    def __init__(self, registry: str, quoted: str) -> None:
        self.registry, self.quoted = registry, quoted
        self.mark, self.exempt, self.stirred = "-", dict[str, str](), False
        self.due = self.used = -math.inf


#: Policies by the key of the marks and the policy's quoted name.
policies: WeakValueDictionary[tuple[str, str], Policy] = WeakValueDictionary()


class Keys(NamedTuple):
    """The keys of a name. `display`: the name for people; `quoted`: the name in keys.

    `declared`: the KEYS of every script, from which it derives the others. The last one never
    exists. So a server of a Cluster that is moving the slot rejects the script before it runs,
    instead of stopping it halfway. `keep`: minutes of history to write; 0: none. `policy`: the
    policy that the name is a key of.
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
        """The quoted prefix of all keys."""
        return self.leases.removesuffix(f":{{{self.quoted}}}:leases")

    @property
    def mark(self) -> str:
        """The mark of the policy, as scripts take it."""
        policy = self.policy
        if policy is None:
            return "-"
        return policy.exempt.get(self.quoted, policy.mark) if policy.exempt else policy.mark

    def marked(self, paused: str, limit: int, now: int) -> tuple[int, float, int]:
        """Return pause (see `pause_of`) and limit in force at `now`, in server ms; 0 for none.

        `paused` and `limit` are the name's own, which win over those of its policy.
        """
        policy_paused, _, policy_limit = ("0 0" if self.mark == "-" else self.mark).rpartition(" ")
        since, until = pause_of(paused or policy_paused)
        if until <= now:
            since, until = 0, 0
        return since, until, limit or int(policy_limit)


def touched(declared: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys that a script with these KEYS uses, and the prefix of its wake-up lists."""
    base = declared[0].removesuffix("leases")
    return declared if base == declared[0] else tuple(base + part for part in _PARTS)


def check_text(what: str, value: object, most: int = MOST_BYTES) -> str:
    """Return `value`. Raise TypeError or ValueError if a key or a terminal can't have it."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    if not value:
        raise ValueError(f"{what} must not be empty")
    plain = value.isascii() and value.isprintable()  # the fast check, which nearly all names pass
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
    """Return a share as it precedes the label in a record: "/LIMIT/SHARE". The common share is "".
    Limit 0: no limit."""
    return f"/{share_limit}/{share.translate(_SHARE)}"


def share_of_terms(text: str) -> tuple[str, int, str]:
    """Return share, limit, and label from the part of a record behind the channel. Without a share,
    the first two are "" and 0."""
    if not text.startswith("/"):
        return "", 0, text
    said, _, label = text.partition(" ")
    limit, _, share = said[1:].partition("/")
    return unquote_share(share), int(limit or 0), label


def unquote_share(text: str) -> str:
    """Return the share of a quoted one, as records and fields have it."""
    return text.replace("%20", " ").replace("%25", "%")


@lru_cache(maxsize=8192)
def keys_of(prefix: str, name: str, key: str | None = None, keep: int = 0) -> Keys:
    """Return the keys of `name`, or of its key `key`. Raise what `check_text` raises."""
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
    """Return the key of the operators' overrides: a hash of pauses ("p:NAME", see `pause_of`),
    limits ("l:NAME"), and keys that are exempt from them ("xp:NAME", "xl:NAME"). NAME is quoted."""
    return f"{quote(prefix)}:marks"


def pause_of(text: str) -> tuple[int, float]:
    """Return the start and the end of a pause in server ms, from "SINCE" or "SINCE UNTIL". Without
    UNTIL, the end is inf. For "0", not paused, it is 0."""
    since, _, until = text.partition(" ")
    if not since.isdecimal() or since == "0":
        return 0, 0
    return int(since), int(until) if until.isdecimal() else math.inf


def group_keys(prefix: str, group: str) -> tuple[str, ...]:
    """Return the keys of a group's statistics: gauges per process, the busiest keys, and counts.

    `prefix`: quoted. `group`: a quoted policy or template, or "" for all names.
    """
    base = f"{prefix}:{{{group or '%'}}}:"  # no name is quoted so
    return base + "shares", base + "sketch", base + "sums"


def groups_key(prefix: str) -> str:
    """Return the key of the sorted set of groups, by last use in server ms. `prefix`: quoted."""
    return f"{prefix}:groups"


def _policy(registry: str, quoted: str) -> Policy:
    found = policies.get((registry, quoted))
    return found or policies.setdefault((registry, quoted), Policy(registry, quoted))


def split(quoted: str) -> tuple[str, str | None]:
    """Return the name, and the key or None, from the text between the braces."""
    name, at, key = quoted.partition("@")
    return unquote(name), unquote(key) if at else None


def display(name: str, key: str | None) -> str:
    """Return a name, or a key of a policy, as people see it."""
    return name if key is None else f"{name}@{key}"
