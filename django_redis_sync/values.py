"""Checks of the values of options, one function per kind of value.

A check takes the name and the value of an option, and returns the value in the form that the
library uses. It raises TypeError for a wrong type, and ValueError for a value out of bounds. The
error message names the option.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from functools import partial
from threading import TIMEOUT_MAX
from types import MappingProxyType
from typing import Any

Check = Callable[[str, Any], Any]

#: Max permits of a name.
MOST_PERMITS = 2**31 - 1

#: Max characters of a wrong value in an error message.
_MAX_SHOWN = 60


# Seconds


def positive(what: str, value: object, *, infinite: bool = False) -> float:
    """Return `value` as seconds. It must be above 0 and below 1e9. With `infinite`, it can also be
    inf."""
    number = _seconds(what, value)
    if not (0 < number < 1e9 or (infinite and number == math.inf)):
        raise ValueError(f"{what} must be above 0 and below 1e9 seconds, not {value!r}")
    return float(number)


def not_negative(what: str, value: object) -> float:
    """Return `value` as seconds to wait. 0 means not to wait. inf means to wait without a limit."""
    number = _seconds(what, value)
    if not number >= 0:  # NaN, too
        raise ValueError(f"{what} must be 0 or more seconds, or math.inf, not {value!r}")
    # Python's timers and locks accept at most TIMEOUT_MAX, which is 292 years.
    return float(number if number == math.inf else min(number, TIMEOUT_MAX))


def finite(what: str, value: object) -> float:
    """Return `value` as seconds, from 0 on. It must be finite."""
    seconds = not_negative(what, value)
    if seconds == math.inf:
        raise ValueError(f"{what} must be finite")
    return seconds


def _seconds(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong_type(what, "a number of seconds", value)
    return value


def _wrong_type(what: str, wanted: str, value: object, hint: str = "") -> TypeError:
    """Return the TypeError for an option with a value of a wrong type. `wanted`: the valid types in
    words."""
    shown = repr(value)
    if len(shown) > _MAX_SHOWN:
        shown = shown[:_MAX_SHOWN] + "…"
    if isinstance(value, timedelta):
        hint = " (write its total_seconds())"
    return TypeError(f"{what} must be {wanted}, not {shown}{hint}")


#: A check of a lease duration in seconds. With inf, the lease is permanent.
lease = partial(positive, infinite=True)


def hours(what: str, value: object) -> float:
    """Return `value` as a number of hours, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e6:
        raise ValueError(f"{what} must be a number of hours, 0 or more, not {value!r}")
    return float(value)


def ending(what: str, value: object) -> float:
    """Return `value` as seconds that a request waits. It must be finite, because a request that
    waits occupies a worker."""
    seconds = 0.0 if value is None else not_negative(what, value)
    if seconds == math.inf:
        raise ValueError(f"{what} must be finite, because a waiting request occupies a worker")
    return seconds


# Numbers


def whole(what: str, value: object, most: int = MOST_PERMITS, least: int = 1) -> int:
    """Return `value`. It must be an int from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong_type(what, "an int", value)
    if not least <= value <= most:
        raise ValueError(f"{what} must be from {least} to {most}, not {value}")
    return value


count, status = partial(whole, least=0), partial(whole, least=400, most=599)
#: A check that a value is the length of an IPv6 prefix, 1 to 128 bits.
prefix = partial(whole, most=128)


def waiting(what: str, value: object) -> int | str:
    """Return `value`. It must be "auto", or an int of at least 0."""
    return "auto" if value == "auto" else count(what, value)


def limit(what: str, value: Any) -> Any:
    """Return `value`. It must be an int of at least 1, or a callable that returns such an int."""
    return value if callable(value) else whole(what, value)


# Words


def anything(what: str, value: Any) -> Any:
    return value


def _of(words: str, *kinds: type, hint: str = "") -> Check:
    """Return a check that a value has one of the types `kinds`. `words`: the types in words, for
    errors. `hint`: a text at the end of errors."""

    def check(what: str, value: Any) -> Any:
        if not isinstance(value, kinds):
            raise _wrong_type(what, words, value, hint)
        return value

    return check


flag, text = _of("True or False", bool), _of("a str", str)
#: A check of the option `blocking`. The error names the option that is often meant.
blocking = _of("True or False", bool, hint="; seconds to wait are the option blocking_timeout")
alias, mapping = _of("one cache alias", str), _of("a dict", Mapping)
flag_or_alias = _of("a bool or a database's alias", bool, str)


def paths(what: str, value: object) -> tuple[str, ...]:
    """Return a list of dotted paths as a tuple."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) for one in value):
        raise TypeError(f"{what} must be a list of dotted paths, not {value!r}")
    return tuple(value)


def names(what: str, value: object) -> tuple[str, ...]:
    """Return a name, or several names, as a tuple."""
    several = (value,) if isinstance(value, str) else value
    if not isinstance(several, Iterable) or not all(isinstance(one, str) for one in several):
        raise _wrong_type(what, "a str or several", value)
    return tuple(several)


def methods(what: str, value: object) -> frozenset[str]:
    """Return HTTP methods in upper case. If GET is given, add HEAD, because a view answers both in
    the same way."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"{what} must be a list of HTTP methods, not {value!r}")
    given = list(value)
    if not given or not all(isinstance(method, str) and method.isalpha() for method in given):
        raise ValueError(f"{what} must be HTTP methods, not {value!r}")
    upper = frozenset(method.upper() for method in given)
    return upper | {"HEAD"} if "GET" in upper else upper


def one_of(*words: str) -> Check:
    """Return a check that the value is one of `words`."""

    def check(what: str, value: Any) -> str:
        if value not in words:
            raise ValueError(f"{what} must be one of {', '.join(words)}, not {value!r}")
        return str(value)

    return check


#: The units of times in seconds, and the pattern of a rate.
UNITS = MappingProxyType({"s": 1, "m": 60, "h": 3600, "d": 86400})
_RATE = re.compile(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,6})?([smhd])")
#: Max seconds of the period of a rate.
_LONGEST_PERIOD = 31 * 86400


def rate(what: str, value: object) -> str:
    """Return `value`. It must be a rate, such as "500/m" or "10/30s". Its period is at most 31
    days."""
    if not isinstance(value, str):
        raise _wrong_type(what, "a str such as '500/m'", value)
    found = _RATE.fullmatch(value)
    if not found or rate_of(value)[1] > _LONGEST_PERIOD:
        raise ValueError(
            f"{what} must be permits/period, such as '500/m', '10/30s' or '1000/d' (at most 31 "
            f"days), not {value!r}"
        )
    return str.__str__(value)


def rate_of(rate: str) -> tuple[int, int]:
    """Return the permits and the seconds of a rate."""
    permits, _, period = rate.partition("/")
    return int(permits), int(period[:-1] or 1) * UNITS[period[-1]]


def rate_in_ms(rate: str) -> str:
    """Return a rate as the text "PERMITS/MS" of the scripts."""
    permits, seconds = rate_of(rate)
    return f"{permits}/{seconds * 1000}"


# Callables


def _callable(choices: str, words: tuple[str, ...] = ()) -> Check:
    """Return a check that the value is a callable, the dotted path of a callable, or one of
    `words`. `choices`: the valid values in words, for errors."""

    def check(what: str, value: Any) -> Any:
        if callable(value) or value in words or (isinstance(value, str) and "." in value):
            return value
        error = ValueError if words and isinstance(value, str) else TypeError
        raise error(f"{what} must be {choices}, not {value!r}")

    return check


#: Options for `inspect.signature()`, so that it doesn't evaluate annotations. Since Python 3.14,
#: these may contain names that are not defined yet, or that are defined for type checkers only.
_UNEVALUATED: dict[str, Any] = {}
if sys.version_info >= (3, 14):
    import annotationlib

    _UNEVALUATED["annotation_format"] = annotationlib.Format.FORWARDREF


def signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function or class of the project. Raise ValueError if it has
    none."""
    return inspect.signature(function, **_UNEVALUATED)


def callback(what: str, value: object) -> Any:
    """Return `value`. It must be a callable that can be called with a lease."""
    if not callable(value):
        raise _wrong_type(what, "a callable", value)
    try:
        signature(value).bind(None)
    except ValueError:  # some functions in C have no signature
        pass
    except TypeError:
        raise TypeError(
            f"{what} is called with the lease, but {value!r} does not take exactly one argument: "
            f"write, for example, {what}=lambda lease: stop.set()"
        ) from None
    return value


key = _callable(
    "None, 'user', 'ip', a callable that gets the request, or its dotted path", ("user", "ip")
)
function = _callable("a callable or its dotted path")


# Names of options

#: Maps names of options in other libraries to the options of this library. If a name stands for two
#: options, each call accepts at most one of the two.
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


def unknown(
    given: Iterable[Any], known: Iterable[str], places: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return a text that lists the names in `given` that are not in `known`, with likely
    corrections. Return "" if all are in `known`. `places`: maps options that belong elsewhere in
    the settings to a text that says where."""
    words = {word.lower(): word for word in known}
    said = []
    for name in sorted(str(one) for one in given if one not in words.values()):
        close = get_close_matches(name.lower(), words, n=1)
        other_words = [option for option in ALSO_CALLED.get(name, ()) if option in words]
        if name in places and name.lower() not in words:
            said.append(f"{name} (it belongs in {places[name]})")
        elif other_words and name.lower() not in words:
            said.append(f"{name} (write {words[other_words[0]]})")
        else:
            said.append(f"{name} (did you mean {words[close[0]]}?)" if close else name)
    return ", ".join(said)
