"""Redis keys: `PREFIX:{NAME}:part`. Because of the braces, all keys of a name are in one slot.

`%`, `{`, `}` and `@` are percent-quoted in NAME. For a key of a policy, NAME is `POLICY@KEY`. The
`@` between policy and key is not quoted.
"""

from __future__ import annotations

import math
import unicodedata
from functools import lru_cache
from typing import NamedTuple
from weakref import WeakValueDictionary

MOST_BYTES = 200
#: Number of characters to which a token is shortened before people see it.
SHOWN = 8

# A name may not contain control characters, surrogates, separators of lines, or marks that change
# the text direction.
_REFUSED = frozenset({"Cc", "Cs", "Zl", "Zp"})
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_QUOTED = str.maketrans({c: f"%{ord(c):02X}" for c in "%{}@"})
_SHARE = str.maketrans({c: f"%{ord(c):02X}" for c in "% "})


_PARTS = ("leases", "queue", "parked", "waiters", "info", "wake:", "stats")


class Token(str):
    """A token, or a Redis key that ends with a token. A token is a secret, so `repr` shortens it,
    for example in error pages and mails."""

    __slots__ = ()

    def __repr__(self) -> str:
        head, colon, token = self.rpartition(":")
        return repr(f"{head}{colon}{token[:SHOWN]}…")


class Policy:
    """The operators' overrides of a policy, as this process last read them.

    - `mark`: the overrides as text. It is "PAUSED LIMIT", or "-" if there are none. For PAUSED, see
      `pause_of`. LIMIT is 0 if the limit is not overridden. Each request for a key sends `mark` to
      the server, because the policy and the key may be on different nodes.
    - `exempt`: for each exempt key, by its quoted name, the text that applies instead of `mark`.
    - `due`: when to read the overrides again, in seconds of the monotonic clock.
    - `used`: when the policy was last used, by the same clock.
    - `stirred`: True if the overrides have changed, but the change was not yet sent to the keys for
      which this process waits.
    """

    def __init__(self, registry: str, quoted: str) -> None:
        self.registry, self.quoted = registry, quoted
        self.mark, self.exempt, self.stirred = "-", dict[str, str](), False
        self.due = self.used = -math.inf


#: The policies of this process, by (Redis key of the overrides, quoted name of the policy).
policies: WeakValueDictionary[tuple[str, str], Policy] = WeakValueDictionary()


class Keys(NamedTuple):
    """The Redis keys of a name.

    - `display`: the name as people see it. `quoted`: the name as it is in Redis keys.
    - `declared`: the two KEYS of every script. The script derives the other keys from the first
      one. The second one never exists. Because of it, a Cluster node that is moving the slot
      rejects the script before the script runs, instead of stopping it halfway.
    - `keep`: minutes of history to write, or 0 for no history.
    - `policy`: the policy, if the name is a key of a policy.
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
        """The overrides of the policy that apply to this key, as scripts expect them in ARGV. It is
        "-" if there are none."""
        policy = self.policy
        if policy is None:
            return "-"
        return policy.exempt.get(self.quoted, policy.mark) if policy.exempt else policy.mark

    def marked(self, paused: str, limit: int, now: int) -> tuple[int, float, int]:
        """Return the overrides that are in force at `now`, as three numbers: the start and the end
        of the pause, and the limit. Each is 0 if there is no such override. Times are server ms.
        `paused` (see `pause_of`) and `limit`: overrides of the name itself, which take precedence
        over those of its policy."""
        policy_paused, _, policy_limit = ("0 0" if self.mark == "-" else self.mark).rpartition(" ")
        since, until = pause_of(paused or policy_paused)
        if until <= now:
            since, until = 0, 0
        return since, until, limit or int(policy_limit)


def touched(declared: tuple[str, ...]) -> tuple[str, ...]:
    """Return the Redis keys that a script with the KEYS `declared` uses. A script on a name also
    uses wake-up lists, one for each token. The result has only the common prefix of their keys."""
    base = declared[0].removesuffix("leases")
    return declared if base == declared[0] else tuple(base + part for part in _PARTS)


def check_text(what: str, value: object, most: int = MOST_BYTES) -> str:
    """Return `value`. Raise TypeError if it is not a str. Raise ValueError if it is empty, has a
    control character, or is longer than `most` bytes in UTF-8. `what`: the first words of the error
    message, which name the value."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    if not value:
        raise ValueError(f"{what} must not be empty")
    # Nearly all names pass the first, fast check.
    for char in "" if value.isascii() and value.isprintable() else value:
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
    """Return "/LIMIT/SHARE", the text that stands for a share in a record, before the label. SHARE
    is empty for the common share. LIMIT is 0 if the share has no limit."""
    return f"/{share_limit}/{share.translate(_SHARE)}"


def share_of_terms(text: str) -> tuple[str, int, str]:
    """Return the share, its limit, and the label. `text`: the part of a record after the channel.
    If the record has no share, return "" as share and 0 as limit."""
    if not text.startswith("/"):
        return "", 0, text
    head, _, label = text.partition(" ")
    limit, _, share = head[1:].partition("/")
    return unquote_share(share), int(limit or 0), label


def unquote_share(text: str) -> str:
    """Return a share from its quoted form in records and fields."""
    return text.replace("%20", " ").replace("%25", "%")


@lru_cache(maxsize=8192)
def keys_of(prefix: str, name: str, key: str | None = None, keep: int = 0) -> Keys:
    """Return the Redis keys of `name`. If `key` is given, `name` is a policy, and the Redis keys
    are those of its key `key`. Raise TypeError or ValueError for an invalid name or key (see
    `check_text`)."""
    check_text("a name", name)
    quoted, policy = quote(name), None
    if key is not None:
        check_text("a key", key)
        at = marks_key(prefix), quoted
        policy = policies.get(at) or policies.setdefault(at, Policy(*at))
        quoted = f"{quoted}@{quote(key)}"
    base = f"{quote(prefix)}:{{{quoted}}}:"
    leases, queue, parked, waiters, info, wake, stats = (base + part for part in _PARTS)
    own = leases, queue, parked, waiters, info, wake, stats
    return Keys(display(name, key), quoted, *own, keep, policy, (leases, base + "never"))


def marks_key(prefix: str) -> str:
    """Return the Redis key of the hash with the operators' overrides. Its fields are pauses
    ("p:NAME", see `pause_of`) and limits ("l:NAME"). If NAME is a key of a policy, a field
    "xp:NAME" or "xl:NAME" exempts it from the pause or the limit of the policy. NAME is quoted."""
    return f"{quote(prefix)}:marks"


def pause_of(text: str) -> tuple[int, float]:
    """Return the start and the end of a pause, in server ms. `text`: "SINCE UNTIL" or, for a pause
    without an end, "SINCE". In the second case, the end is inf. For "0" (not paused), return 0 and
    0."""
    since, _, until = text.partition(" ")
    if not since.isdecimal() or since == "0":
        return 0, 0
    return int(since), int(until) if until.isdecimal() else math.inf


def group_keys(prefix: str, group: str) -> tuple[str, ...]:
    """Return three Redis keys with the statistics of a group of names: the permits that each
    process holds, hourly details (durations, and rejections by key), and counts per minute.

    `prefix`: the quoted prefix. `group`: a quoted policy or template, or "" for all names.
    """
    base = f"{prefix}:{{{group or '%'}}}:"  # no quoted name is "%"
    return base + "shares", base + "sketch", base + "sums"


def split(quoted: str) -> tuple[str, str | None]:
    """Return the name and the key from `quoted`, the text between the braces of a Redis key. The
    key is None if the name is not a key of a policy."""
    name, at, key = quoted.partition("@")
    return unquote(name), unquote(key) if at else None


def display(name: str, key: str | None) -> str:
    """Return the text that people see for a name, or for a key of a policy."""
    return name if key is None else f"{name}@{key}"
