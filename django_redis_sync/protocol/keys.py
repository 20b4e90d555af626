"""Redis keys: `PREFIX:{NAME}:part`. The braces put all keys of a name into one slot of a cluster.

In NAME, `%`, `{`, `}` and `@` are percent-quoted. A policy has a name of its own for each of its
keys (for example, each user): `POLICY@KEY`. The `@` between policy and key is not quoted.
"""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from functools import lru_cache
from typing import NamedTuple
from weakref import WeakValueDictionary

MOST_BYTES = 200
#: Max bytes of the beginning of a name that is shortened.
_BEGINNING = 100
#: Number of characters to which a token is shortened before people see it.
SHOWN = 8

# A name must not contain control characters, surrogates, line separators, or marks that change the
# text direction.
_REFUSED = frozenset({"Cc", "Cs", "Zl", "Zp"})
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_QUOTED = str.maketrans({c: f"%{ord(c):02X}" for c in "%{}@"})
_IN_VALUES = str.maketrans({c: f"%{ord(c):02X}" for c in "%:"})
_SHARE = str.maketrans({c: f"%{ord(c):02X}" for c in "% "})


_PARTS = ("leases", "queue", "parked", "waiters", "info", "wake:", "stats")


class Token(str):
    """A token, or a Redis key that ends with a token. A token is a secret, so `repr` shortens it,
    for example in error pages and mails."""

    __slots__ = ()

    def __repr__(self) -> str:
        head, colon, token = self.rpartition(":")
        return repr(f"{head}{colon}{token[:SHOWN]}…")


class PolicyOverrides:
    """The operators' overrides of a policy, as this process last read them.

    - `overrides`: the text "PAUSED LIMIT" or "PAUSED LIMIT/RATE", or "-" for none. PAUSED is a
      pause (see `pause_of`), or 0. LIMIT is a limit, or 0. RATE is "PERMITS/MS". Each request for
      a key sends this text to the server, because the policy and the key may be on different nodes.
    - `exemptions`: maps the quoted name of an exempt key to the text that replaces `overrides`.
    - `due`: when to read the overrides again, in seconds of the monotonic clock.
    - `used`: when the policy was last used, by the same clock.
    - `changed`: True if the overrides have changed, and this process has not yet sent the change to
      the server. It sends the change for each key that has a waiter in this process.
    """

    def __init__(self, registry: str, quoted: str) -> None:
        self.registry, self.quoted = registry, quoted
        self.overrides, self.exemptions, self.changed = "-", dict[str, str](), False
        self.due = self.used = -math.inf


#: Maps (Redis key of the overrides, quoted name of the policy) to a policy of this process.
policies: WeakValueDictionary[tuple[str, str], PolicyOverrides] = WeakValueDictionary()


class Keys(NamedTuple):
    """The Redis keys of a name.

    - `display`: the name as people see it. `quoted`: the name as it is in Redis keys.
    - `declared`: the two KEYS of every script. The first is `leases`, from which the script derives
      the other keys. The second never exists: if a Cluster node is moving the slot, a missing key
      makes the node reject the script at once, instead of stopping it halfway.
    - `keep`: minutes of history to write, or 0 for no history.
    - `policy`: the policy if the name belongs to a key of a policy, else None.
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
    policy: PolicyOverrides | None
    declared: tuple[str, str]

    @property
    def prefix(self) -> str:
        """The quoted prefix of all keys."""
        return self.leases.removesuffix(f":{{{self.quoted}}}:leases")

    @property
    def overrides(self) -> str:
        """The overrides that the policy has for this name, as text (see
        `PolicyOverrides.overrides`)."""
        policy = self.policy
        if policy is None:
            return "-"
        own = policy.exemptions
        return own.get(self.quoted, policy.overrides) if own else policy.overrides

    @property
    def rate_override(self) -> str:
        """The rate that the policy has for this name, as "PERMITS/MS"; "" for none."""
        return self.overrides.partition("/")[2]

    def overrides_in_force(self, paused: str, limit: int, now: int) -> tuple[int, float, int]:
        """Return three numbers: the start and the end of the pause in force (0 and 0 for none), and
        the limit that an operator set (0 for none). Times, also `now`, are in server ms. `paused`
        (see `pause_of`) and `limit` (0 for none): overrides of the name itself, which take
        precedence over the overrides of its policy."""
        text = self.overrides
        policy_paused, _, policy_limit = ("0 0" if text == "-" else text).rpartition(" ")
        since, until = pause_of(paused or policy_paused)
        if until <= now:
            since, until = 0, 0
        return since, until, limit or int(policy_limit.partition("/")[0])


def touched(declared: tuple[str, ...]) -> tuple[str, ...]:
    """Return the Redis keys that a script uses. `declared`: its KEYS. Each token has a wake-up list
    with a key of its own. For these lists, the result has only the common prefix of the keys."""
    base = declared[0].removesuffix("leases")
    return declared if base == declared[0] else tuple(base + part for part in _PARTS)


def plain(value: str) -> str:
    """Return the own value of a str, whatever its class, as an object of the class str. The text of
    an Enum member or of an own class may differ from it."""
    # A lazy object of Django has the class of its value, but its type is no subclass of str. A
    # slice of it is a slice of its value.
    return str.__str__(value if issubclass(type(value), str) else value[:])


def check_text(what: str, value: object, most: int = MOST_BYTES) -> str:
    """Return `value` as a plain str (see `plain`). Raise TypeError if it is not a str. Raise
    ValueError if it is empty, has a control character, or is longer than `most` bytes in UTF-8.
    `what`: what error messages call the value, such as "a name"."""
    if type(value) is not str:
        if not isinstance(value, str):
            raise TypeError(f"{what} must be a str, not {type(value).__name__}")
        value = plain(value)
    if not value:
        raise ValueError(f"{what} must not be empty")
    # Nearly all names are printable ASCII, and skip this loop.
    for char in "" if value.isascii() and value.isprintable() else value:
        if _is_refused(char):
            raise ValueError(f"{what} must not contain the control character U+{ord(char):04X}")
    if len(value.encode()) > most:
        raise ValueError(f"{what} must not be longer than {most} bytes in UTF-8")
    return value


def _is_refused(char: str) -> bool:
    return unicodedata.category(char) in _REFUSED or char in _TURNING


def shortened(text: str) -> str:
    """Return a name for any text that is not empty: the text itself if it can be a name. A text
    that is too long or has control characters becomes its beginning, `%-`, and a digest of all of
    it.

    The digest has no secret, so that all services make the same name. A template quotes `%` in
    values, so no other value makes such a name.
    """
    try:
        return check_text("a name", text)
    except ValueError:
        if not text:
            raise
    begin = "".join(char for char in text if not _is_refused(char))[:_BEGINNING]
    while len(begin.encode()) > _BEGINNING:
        begin = begin[:-1]
    begin = re.sub(r"%[0-9A-F]?$", "", begin)  # a quoted character that is cut
    sum = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16)
    return f"{begin}%-{sum.hexdigest()}"


def names_of(text: str) -> list[str]:
    """Return the names that an operator can mean by `text`: the text itself, and the names that a
    template with one value makes, if the value is a part of the text at its end."""
    quoted = [m.end() for m in re.finditer(":", text)]
    every = (text, *(text[:at] + text[at:].translate(_IN_VALUES) for at in quoted))
    return list(dict.fromkeys(map(shortened, every)))


def quote(text: str) -> str:
    return text.translate(_QUOTED)


def unquote(text: str) -> str:
    for char in "{}@%":
        text = text.replace(f"%{ord(char):02X}", char)
    return text


def share_terms(share: str, share_limit: int) -> str:
    """Return "/LIMIT/SHARE", the text of a share in records. SHARE is empty for the common share,
    that of callers without a share. LIMIT is 0 if the share has no limit."""
    return f"/{share_limit}/{share.translate(_SHARE)}"


def share_of_terms(text: str) -> tuple[str, int, str]:
    """Return three values: the share, its limit, and the label. `text`: "/LIMIT/SHARE LABEL" or,
    without a share, "LABEL". In the second case, return "" as share and 0 as limit."""
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
    """Return the Redis keys of a name or, if `key` is given, those of a key of the policy `name`.
    `keep`: minutes of history. Raise TypeError or ValueError if `name` or `key` is invalid (see
    `check_text`)."""
    name = check_text("a name", name)
    quoted, policy = quote(name), None
    if key is not None:
        key = check_text("a key", key)
        at = overrides_key(prefix), quoted
        policy = policies.get(at) or policies.setdefault(at, PolicyOverrides(*at))
        quoted = f"{quoted}@{quote(key)}"
    base = f"{quote(prefix)}:{{{quoted}}}:"
    leases, queue, parked, waiters, info, wake, stats = (base + part for part in _PARTS)
    own = leases, queue, parked, waiters, info, wake, stats
    return Keys(display(name, key), quoted, *own, keep, policy, (leases, base + "never"))


def overrides_key(prefix: str) -> str:
    """Return the Redis key of the hash with the operators' overrides. Its fields are "p:NAME" (a
    pause, see `pause_of`), "l:NAME" (a limit), and "r:NAME" (a rate). For a key of a policy, NAME
    is POLICY@KEY. Then "xp:NAME" exempts the key from the policy's pause, "xl:NAME" from its limit,
    and "xr:NAME" from its rate. All are quoted."""
    return f"{quote(prefix)}:marks"


def pause_of(text: str) -> tuple[int, float]:
    """Return the start and the end of a pause, in server ms. `text`: "SINCE UNTIL", "SINCE" for a
    pause without an end (the end is then inf), or "0" for no pause (both are then 0)."""
    since, _, until = text.partition(" ")
    if not since.isdecimal() or since == "0":
        return 0, 0
    return int(since), int(until) if until.isdecimal() else math.inf


def group_keys(prefix: str, group: str) -> tuple[str, ...]:
    """Return three Redis keys with statistics about the names of `group`. The first has the permits
    and waiters of each process. The second has, per hour, durations, and the rejections of each
    name or key. The third has counts per minute.

    `prefix`: the quoted prefix. `group`: a quoted policy or template, or "" for all names.
    """
    base = f"{prefix}:{{{group or '%'}}}:"  # "%": all names, because no quoted name is "%"
    return base + "shares", base + "sketch", base + "sums"


def split(quoted: str) -> tuple[str, str | None]:
    """Return the name and the key from `quoted`, the text between the braces of a Redis key. The
    key is None if the name is not a key of a policy."""
    name, at, key = quoted.partition("@")
    return unquote(name), unquote(key) if at else None


def display(name: str, key: str | None) -> str:
    """Return the text that people see for a name, or for a key of a policy."""
    return name if key is None else f"{name}@{key}"
