"""Check the arguments of the public classes, and raise errors that explain what is wrong."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import date, datetime, timezone
from enum import Enum
from functools import lru_cache
from typing import Any
from uuid import UUID

from django.core.exceptions import ImproperlyConfigured

from .. import values
from ..defaults import SEMAPHORE
from ..engine.quorum import Quorum, quorum_of
from ..protocol.keys import check_text, plain

#: Types of values that can be a share, or part of a name. The value's text is used.
ALLOWED = (str, int, UUID, date, Enum)
#: The arguments of `acquire`.
_ARGUMENTS = ("blocking", "blocking_timeout", "permits", "sleep")

#: The names of the arguments `given` of `attributes_of`, in order.
_GIVEN = (
    *("using", "name", "key", "label", "limit", "timeout", "blocking", "blocking_timeout", "renew"),
    *("fair", "max_hold", "min_hold", "thread_local", "raise_on_release_error"),
    *("release_on_commit", "share_limit", "sleep", "rate"),
)
#: The arguments in _GIVEN that are checked, but are not attributes of the object.
_NO_ATTRIBUTES = ("thread_local", "sleep")

#: Checks of arguments beside those of the table SEMAPHORE. None is valid.
_MORE_CHECKS: dict[str, values.Check] = {
    "limit": values.whole,
    "name": lambda _, name: check_text("a name", name),
    "key": lambda _, key: check_text("a key", key),
}

_NO_CLIENT = "Don't pass a client. To choose a connection, pass a cache alias as using='...'"


@lru_cache(maxsize=512, typed=True)
def attributes_of(kind: type, *given: Any) -> dict[str, Any]:
    """Check the arguments of a public class. Return the attributes of the class's object.

    `kind`: the class. `given`: the arguments named in _GIVEN, in the same order. Raise TypeError or
    ValueError if an argument is wrong. The cache of results distinguishes types, because True
    equals 1, but is not a valid limit.
    """
    arguments = dict(zip(_GIVEN, given, strict=True))
    name = arguments["name"]
    if not isinstance(name, str):
        raise TypeError(
            f"the first argument of {_public_name(kind)}() must be the name, as a str, but it is "
            f"of type {type(name).__name__}. {_NO_CLIENT}"
        )
    for option in _GIVEN:
        arguments[option] = checked(option, arguments[option])
    for option in _NO_ATTRIBUTES:
        del arguments[option]
    return arguments | {"share": None, "on_lost": None, "_resolved": {}}


def checked(option: str, value: Any) -> Any:
    """Return the value of an argument of a public class, in the form of the object's attribute.
    Raise TypeError or ValueError if it is wrong. An option without a check may have any value."""
    if option == "share":
        return text_of_share(value)
    if option in _MORE_CHECKS:
        return None if value is None else _MORE_CHECKS[option](option, value)
    return SEMAPHORE[option].checked(value) if option in SEMAPHORE else value


def own_value(value: Any) -> Any:
    """Return the value that counts in names and shares. A str or an int counts by its own value,
    whatever its class: `True` counts as 1. Another Enum counts by its name, or by its value if it
    has no name, as some combinations of flags."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, int):
        return value.real  # also of a lazy object, which int.__int__() refuses
    if isinstance(value, Enum):
        return value.value if value.name is None else value.name
    return value


def text_of(value: Any) -> str:
    """Return the text of a value in names and shares. A datetime with a time zone counts in UTC, so
    that equal times have equal texts."""
    own = own_value(value)
    if isinstance(own, (date, UUID)):
        return _text_of_its_type(own)
    return str(own)


def _text_of_its_type(value: Any) -> str:
    """Return the text of a datetime, date, or UUID, also if it has a subclass with a text of its
    own, as the datetimes of some packages."""
    if isinstance(value, UUID):
        return UUID.__str__(value)
    if isinstance(value, datetime):
        # `replace` and `astimezone` also get the value of a lazy object of Django.
        aware = value.tzinfo is not None
        return datetime.isoformat(value.astimezone(timezone.utc) if aware else value.replace(), " ")
    return date.isoformat(value.replace())


def text_of_share(value: Any) -> str | None:
    """Return the text that identifies a share. Return None for None, the common share.

    Raise TypeError or ValueError if `value` can't be a share.
    """
    return (
        None if value is None else check_text("a share", text_of_identity("share must be", value))
    )


def text_of_identity(what: str, value: Any) -> str:
    """Return the text of a value that identifies a share or a key. Raise TypeError if the value has
    another type than those of ALLOWED. `what`: the beginning of the error."""
    if isinstance(value, bool) or not isinstance(value, ALLOWED):
        raise TypeError(
            f"{what} a str, int, UUID, date or Enum, not {type(value).__name__}; for a model, use "
            "its pk"
        )
    return text_of(value)


def check_shares(name: str, fair: bool, kind: str, using: Any) -> None:
    """Raise ValueError or ImproperlyConfigured if a semaphore can't have shares."""
    if not fair:
        raise ValueError(f"{name!r}: shares take turns, which needs fair=True")
    if kind != "p":
        raise ValueError("a read/write lock can't have shares: a writer takes the whole name")
    if isinstance(using, Quorum):
        raise ImproperlyConfigured(
            "A lock on several servers can't have shares: each server would have its own queue."
        )


def checked_rate(rate: str | None, permits: int, kind: str, using: Any) -> str:
    """Return a rate as the text "PERMITS/MS" of the scripts; "" for None. Raise ValueError if the
    rate never allows `permits` at once, and ImproperlyConfigured if a semaphore of this `kind` or
    with this `using` can't have a rate."""
    if rate is None:
        return ""
    if kind != "p":
        raise ImproperlyConfigured(
            "a read/write lock can't have a rate: reads and writes would use it up together. Take "
            "a Semaphore with the rate inside of the lock."
        )
    if isinstance(using, Quorum):
        raise ImproperlyConfigured(
            "A lock on several servers can't have a rate: each server would count for itself."
        )
    if permits > values.rate_of(rate)[0]:
        raise ValueError(f"{permits} permits can never fit a rate of {rate}")
    return values.rate_in_ms(rate)


def wrong_call(of: Any, method: str, more: tuple[Any, ...], options: Iterable[str]) -> TypeError:
    """Return the TypeError for arguments that a public class or its method `acquire` doesn't take.

    `of`: the object. `method`: the method's name, or "" for the class. `more`: surplus positional
    arguments. `options`: the names of the keyword arguments.
    """
    call = f"{_public_name(type(of))}.{method}()" if method else f"{_public_name(type(of))}()"
    if more:
        return TypeError(
            f"{call} takes options only by keyword, but got the positional argument {more[0]!r}. "
            f"{_NO_CLIENT}"
        )
    options = [option for option in options if method or option not in SEMAPHORE]
    places = {} if method else {"limit": "Semaphore(name, limit)"}
    known = _ARGUMENTS if method else (*SEMAPHORE, *_own_arguments(of))
    wrong = values.unknown(options, known, places)
    if "token" in options:
        wrong += ". Each acquire makes its own token. Lease.detach() passes on a lease"
    return TypeError(f"{call} has no such argument: {wrong}")


def _own_arguments(of: Any) -> tuple[str, ...]:
    """Return "limit" if the class of an object has this argument."""
    return ("limit",) if "limit" in values.signature(type(of)).parameters else ()


def check_call(of: Any, method: str, sleep: Any, wrong: Iterable[str]) -> None:
    """Check the ignored arguments of a method `acquire`: `sleep`, and the `wrong` keywords. Raise
    TypeError or ValueError for a wrong one."""
    if wrong:
        raise wrong_call(of, method, (), wrong)
    checked("sleep", sleep)


def _public_name(kind: type) -> str:
    return getattr(kind, "_public_name", "") or kind.__name__


def checked_quorum(name: str, limit: int | None, timeout: float | None, using: Any) -> Quorum:
    """Return the quorum of several aliases. Raise ImproperlyConfigured if this semaphore is not
    a Lock, or if its lease is permanent."""
    if limit != 1:
        raise ImproperlyConfigured(
            f"{name!r} is not a Lock, so `using` must be one alias. A holder of several "
            "servers needs a majority of them: of three servers, a limit of 2 would admit 3 "
            "holders, and a read/write lock readers beside a writer."
        )
    if timeout == math.inf:
        raise ImproperlyConfigured(
            "A lease on several servers in `using` can't be permanent. It is not renewed, so "
            "a server that loses the lease would never get it back."
        )
    return quorum_of(using)
