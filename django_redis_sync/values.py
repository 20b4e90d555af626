"""Checks of the values of options, one function per kind of value.

A check takes the option's name and its value, and returns the value in the form that is stored. It
raises TypeError for a wrong type and ValueError for a value out of bounds. Both name the option.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from threading import TIMEOUT_MAX
from types import MappingProxyType
from typing import Any

Check = Callable[[str, Any], Any]

#: Max permits of a name.
MOST_PERMITS = 2**31 - 1
#: Words that a policy's key can be, instead of a callable.
KEYS = ("user", "ip")


# Seconds


def positive(what: str, value: object, *, infinite: bool = False) -> float:
    """Return `value` as seconds: above 0 and below 1e9, or inf."""
    number = _seconds(what, value)
    if not (0 < number < 1e9 or (infinite and number == math.inf)):
        raise ValueError(f"{what} must be above 0 and below 1e9 seconds, not {value!r}")
    return float(number)


def not_negative(what: str, value: object) -> float:
    """Return `value` as seconds to wait: 0 doesn't wait, inf has no limit."""
    number = _seconds(what, value)
    if not number >= 0:  # NaN, too
        raise ValueError(f"{what} must be 0 or more seconds, or math.inf, not {value!r}")
    # 292 years: the longest time that Python's timers and locks accept.
    return float(number if number == math.inf else min(number, TIMEOUT_MAX))


def _seconds(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what} must be a number of seconds, not {type(value).__name__}")
    return value


def lease(what: str, value: object) -> float:
    """Return `value` as a lease duration in seconds; inf is permanent."""
    return positive(what, value, infinite=True)


def hours(what: str, value: object) -> float:
    """Return `value` as a number of hours, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e6:
        raise ValueError(f"{what} must be a number of hours, 0 or more, not {value!r}")
    return float(value)


def ending(what: str, value: object) -> float:
    """Return `value` as seconds that a request waits. It must end, because it occupies a worker."""
    seconds = 0.0 if value is None else not_negative(what, value)
    if seconds == math.inf:
        raise ValueError(f"{what} of a request must be finite, because it occupies a worker")
    return seconds


# Numbers


def whole(what: str, value: object, most: int = MOST_PERMITS) -> int:
    """Return `value` as an int from 1 to `most`."""
    number = _int(what, value)
    if not 1 <= number <= most:
        raise ValueError(f"{what} must be from 1 to {most}, not {value}")
    return number


def count(what: str, value: object) -> int:
    """Return `value` as an int, 0 or more."""
    return 0 if value == 0 and type(value) is int else whole(what, value)


def waiting(what: str, value: object) -> int | str:
    """Return `value` as `count` does, or "auto"."""
    return "auto" if value == "auto" else count(what, value)


def prefix(what: str, value: object) -> int:
    """Return `value` as a number of bits of an IPv6 address."""
    return whole(what, value, 128)


def limit(what: str, value: Any) -> Any:
    """Return `value`: an int from 1, or a callable that returns one."""
    return value if callable(value) else whole(what, value)


def status(what: str, value: object) -> int:
    """Return `value`: an HTTP status from 400 to 599."""
    number = _int(what, value)
    if not 400 <= number <= 599:
        raise ValueError(f"{what} must be an HTTP status from 400 to 599, not {value}")
    return number


def _int(what: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}")
    return value


# Words


def anything(what: str, value: Any) -> Any:
    return value


def _of(kind: type, words: str) -> Check:
    """Return a check for the type of a value."""

    def check(what: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"{what} must be {words}, not {value!r}")
        return value

    return check


flag, text = _of(bool, "True or False"), _of(str, "a str")
alias, mapping = _of(str, "one cache alias"), _of(Mapping, "a dict")


def flag_or_alias(what: str, value: object) -> bool | str:
    """Return `value`: True, False, or the alias of a database."""
    if not isinstance(value, (bool, str)):
        given = type(value).__name__
        raise TypeError(f"{what} must be a bool or a database's alias, not {given}")
    return value


def methods(what: str, value: object) -> frozenset[str]:
    """Return HTTP methods in upper case. GET includes HEAD: the same view answers both."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"{what} must be a list of HTTP methods, not {value!r}")
    given = list(value)
    if not given or not all(isinstance(method, str) and method.isalpha() for method in given):
        raise ValueError(f"{what} must be HTTP methods, not {value!r}")
    upper = frozenset(method.upper() for method in given)
    return upper | {"HEAD"} if "GET" in upper else upper


def one_of(*words: str) -> Check:
    """Return a check that the value is one of some words."""

    def check(what: str, value: Any) -> str:
        if value not in words:
            raise ValueError(f"{what} must be one of {', '.join(words)}, not {value!r}")
        return str(value)

    return check


# Callables


def key(what: str, value: Any) -> Any:
    """Return `value`: a word of KEYS, a callable, or a callable's dotted path."""
    if callable(value):
        return value
    if not isinstance(value, str):
        raise TypeError(f"{what} must be None, a str or callable, not {type(value).__name__}")
    if value not in KEYS and "." not in value:
        raise ValueError(
            f"{what} must be None, 'user', 'ip', a callable or its path, not {value!r}"
        )
    return value


def function(what: str, value: Any) -> Any:
    """Return `value`: a callable, or its dotted path."""
    if callable(value) or (isinstance(value, str) and "." in value):
        return value
    raise TypeError(f"{what} must be a callable or its path, not {value!r}")


# Names of options

#: Options by the names that other libraries give them. At most one of each is known here.
ALSO_CALLED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("expire", "ttl", "lease_time", "lock_timeout", "ex"), ("timeout",)),
        **dict.fromkeys(("auto_renewal", "auto_renew"), ("renew",)),
        **dict.fromkeys(("wait", "wait_timeout", "timeout"), ("blocking_timeout",)),
        **dict.fromkeys(("client", "redis", "redis_client", "connection", "alias"), ("using",)),
        **dict.fromkeys(("count", "value", "max_concurrency"), ("limit", "permits")),
        "block": ("blocking",),
    }
)

NOWHERE: Mapping[str, str] = MappingProxyType({})


def unknown(given: Iterable[Any], known: Iterable[str], places: Mapping[str, str] = NOWHERE) -> str:
    """Return which of `given` are not options, with likely spellings, or "" if all are options.

    `places`: the options of other places, with their places.
    """
    words = {word.lower(): word for word in known}
    said = []
    for name in sorted(str(one) for one in given if one not in words.values()):
        close = get_close_matches(name.lower(), words, n=1)
        other_words = [option for option in ALSO_CALLED.get(name, ()) if option in words]
        if name in places and name.lower() not in words:
            said.append(f"{name} (it belongs into {places[name]})")
        elif other_words and name.lower() not in words:
            said.append(f"{name} (write {words[other_words[0]]})")
        else:
            said.append(f"{name} (did you mean {words[close[0]]}?)" if close else name)
    return ", ".join(said)
