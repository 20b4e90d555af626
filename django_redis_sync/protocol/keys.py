"""The key grammar: `PREFIX:{NAME}:part`, one Cluster slot per name, no two names alike.

In a key a name is percent-quoted where it holds `%`, `{`, `}` or `@`. A keyed child is
`{NAME@KEY}`: the only unquoted `@` there can be.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import NamedTuple

MOST_BYTES = 200
#: Characters of a token that people see.
SHOWN = 8

# Control, surrogate, line and paragraph separators; and what turns the direction of writing.
_REFUSED = frozenset({"Cc", "Cs", "Zl", "Zp"})
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_QUOTED = str.maketrans({c: f"%{ord(c):02X}" for c in "%{}@"})


_PARTS = ("leases", "queue", "waiters", "info", "wake:", "stats", "never")


class Token(str):
    """A token, or a key that ends with one. Its `repr` is shortened, so that no page or mail about
    an error has what makes a lease one's own."""

    __slots__ = ()

    def __repr__(self) -> str:
        head, colon, token = self.rpartition(":")
        return repr(f"{head}{colon}{token[:SHOWN]}…")


class Keys(NamedTuple):
    """The keys of one name. `display` is what people read, `quoted` stands in the keys.

    `keep`: minutes of history that its verbs write; 0: none.
    """

    display: str
    quoted: str
    leases: str
    queue: str
    waiters: str
    info: str
    wake: str
    stats: str
    never: str
    keep: int

    def of(self, token: str) -> tuple[str, ...]:
        """KEYS of every verb, for one token.

        The last one never exists: while its slot is on the way to another node of a Cluster, the
        server refuses a script of which a key is missing there, and would stop any other halfway.
        """
        wake = Token(self.wake + token)
        return self.leases, self.queue, self.waiters, self.info, wake, self.stats, self.never


def check_text(what: str, value: object, most: int = MOST_BYTES) -> str:
    """`value` if it can stand in a key and be shown on a terminal, else TypeError or ValueError."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    if not value:
        raise ValueError(f"{what} must not be empty")
    for char in value:
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


@lru_cache(maxsize=8192)
def keys_of(prefix: str, name: str, key: str | None = None, keep: int = 0) -> Keys:
    """The keys of `name` under `prefix`, or of its child for `key`. Raises as check_text does."""
    check_text("a name", name)
    quoted, display = quote(name), name
    if key is not None:
        check_text("a key", key)
        quoted, display = f"{quoted}@{quote(key)}", f"{name}@{key}"
    base = f"{quote(prefix)}:{{{quoted}}}:"
    leases, queue, waiters, info, wake, stats, never = (base + part for part in _PARTS)
    return Keys(display, quoted, leases, queue, waiters, info, wake, stats, never, keep)


def split(quoted: str) -> tuple[str, str | None]:
    """The name and the key (None: a plain name) of what stands between the braces."""
    name, at, key = quoted.partition("@")
    return unquote(name), unquote(key) if at else None
