"""Resolve the arguments of a semaphore and the settings into an acquire request.

Precedence: the argument, then REDIS_SYNC["SEMAPHORES"], then the defaults. The result is cached
until the settings change, and objects with equal arguments share it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured

from .. import conf, values
from ..defaults import ENTRY, NAMED, SEMAPHORE
from ..engine.quorum import Quorum
from ..engine.renewal import renewer
from ..engine.wire import ATTEMPT, clock, write_label
from ..logs import logger
from ..protocol.keys import Keys, Token, check_text, keys_of
from ..protocol.plans import AcquireRequest, worded
from ..protocol.scripts import ANY
from .callers import own_hold
from .lease_state import LeaseSettings

#: Max acquire requests that are cached per set of arguments. The label of each thread differs.
_MAX_RESOLVED = 64

_ARGUMENTS = ("blocking", "blocking_timeout", "permits", "sleep")


#: The source of random bytes. os.urandom releases the GIL, and then another thread may keep the GIL
#: for long. os.getrandom does not, where it exists.
_random: Callable[[int], bytes] = getattr(os, "getrandom", os.urandom)


def _token() -> str:
    return Token(_random(16).hex())


def _waits(settings: LeaseSettings, may_be_own: bool) -> Callable[[str, bool], None]:
    """Return a function to call when a wait begins, and when it ends. `may_be_own`: warn if the
    caller waits for its own lease."""

    def waits(token: str, begins: bool) -> None:
        renewer(settings.alias).housekeeper.waits(token, settings if begins else None)
        if begins and may_be_own and (hint := own_hold(settings.keys, settings.alias)):
            logger.warning("%r waits for itself: %s", settings.keys.display, hint)

    return waits


#: The arguments of `attributes_of`, in order.
_GIVEN = (
    *("using", "name", "key", "label", "limit", "timeout", "blocking", "blocking_timeout", "renew"),
    *("fair", "max_hold", "min_hold", "raise_on_release_error", "release_on_commit", "share_limit"),
)
#: The checks of the arguments that are not None. A flag may be any value, as in redis-py.
_CHECKS: dict[str, values.Check] = {
    "limit": values.whole,
    **{name: SEMAPHORE[name].check for name in _GIVEN if name in SEMAPHORE},
    **dict.fromkeys(("blocking", "renew", "fair", "raise_on_release_error"), values.anything),
    "key": lambda _, key: check_text("a key", key),
}
#: The options of an entry of SEMAPHORES that apply to code.
_NAMED = {**NAMED, "limit": ENTRY["limit"], "share_limit": ENTRY["share_limit"]}


@lru_cache(maxsize=512, typed=True)
def attributes_of(kind: type, *given: Any) -> dict[str, Any]:
    """Return the attributes of a `kind` with these arguments, checked.

    Raise TypeError or ValueError if an argument is wrong. The cache is typed: True is not a limit
    of 1.
    """
    arguments = dict(zip(_GIVEN, given, strict=True))
    name = arguments["name"]
    if not isinstance(name, str):
        raise TypeError(
            f"{_public_name(kind)}() takes a name first, a str, not {type(name).__name__}, and no "
            "client. The connection is that of a cache alias, using='...'"
        )
    check_text("a name", name)
    for option, check in _CHECKS.items():
        if (value := arguments[option]) is not None:
            arguments[option] = check(option, value)
    blocking = bool(arguments["blocking"])
    return arguments | {"blocking": blocking, "share": None, "on_lost": None, "_usual": {}}


def wrong_call(of: Any, method: str, more: tuple[Any, ...], options: Iterable[str]) -> TypeError:
    """Return the TypeError for arguments that a public class or its method `acquire` doesn't take.

    `method`: empty for the class. `more`: surplus positional arguments. `options`: the keywords.
    """
    call = f"{_public_name(type(of))}.{method}()" if method else f"{_public_name(type(of))}()"
    if more:
        return TypeError(
            f"{call} takes a name and options by keyword, not {more[0]!r}: it takes no client. "
            "The connection is that of a cache alias, using='...'"
        )
    options = [option for option in options if method or option not in SEMAPHORE]
    wrong = values.unknown(options, _ARGUMENTS if method else SEMAPHORE)
    if "token" in options:
        wrong += ": each acquire makes its own; Lease.detach() passes a lease on"
    return TypeError(f"{call} has no such argument: {wrong}")


def _public_name(kind: type) -> str:
    return getattr(kind, "_public_name", "") or kind.__name__


class AcquireOptions:
    """The base of the public classes: it resolves their arguments and the settings."""

    _kind = "p"
    _max_waiters = ANY
    #: Max seconds to wait for an answer of the server.
    _attempt = ATTEMPT

    name: str
    key: str | None
    limit: int | None
    timeout: float | None
    renew: bool | None
    fair: bool
    blocking: bool
    blocking_timeout: float | None
    max_hold: float | None
    min_hold: float | None
    raise_on_release_error: bool
    release_on_commit: bool | str
    using: Any  # an alias, or a quorum
    label: str | None
    on_lost: Callable[[Any], Any] | None
    share: str | None  # its text
    share_limit: int | None
    #: The template of the name, for statistics; "" if it is unknown.
    _template = ""
    # Cached requests for one permit with the object's own blocking_timeout, by `blocking`, label,
    # and template. Objects with equal arguments share the cache, until an attribute is set.
    _usual: dict[
        tuple[bool | None, str, str], tuple[conf.Config, LeaseSettings, AcquireRequest, float]
    ]

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None:
            """Set an attribute, for a subclass or a caller, and clear the cache of requests."""
            super().__setattr__(name, value)
            if not name.startswith("_"):
                self.__dict__["_usual"] = {}

    def __reduce__(self) -> Any:
        raise TypeError(
            "locks can't be pickled or copied deeply: pass the name, or a lease's handle"
        )

    def alias(self) -> Any:
        """Return the cache alias that this object uses now, or its quorum."""
        return self.using or conf.current().cache

    def _keys(self) -> Keys:
        """Return the keys of the name that this object uses now."""
        return keys_of(conf.current().prefix(self.alias()), self.name, self.key)

    def _check_permits(self, permits: int) -> None:
        """Raise what an acquire of `permits` would raise before it sends a request."""
        self._limit(self._options(conf.current()), permits)

    def _terms_and_ask(
        self, blocking: bool | None, blocking_timeout: float | None, permits: int
    ) -> tuple[LeaseSettings, AcquireRequest]:
        """Return the settings of the lease and the acquire request, with the current settings."""
        label = write_label(self.label or "")
        if blocking is not None:
            blocking = bool(blocking)
        if blocking_timeout is None and type(permits) is int and permits == 1:
            return self._asked(blocking, label)
        return self._completed(
            *self._build(conf.current(), label, blocking, blocking_timeout, permits)
        )

    def _asked(self, blocking: bool | None, label: str) -> tuple[LeaseSettings, AcquireRequest]:
        """Return the same as `_terms_and_ask` for one permit with the object's own
        blocking_timeout, from the cache."""
        config, place = conf.current(), (blocking, label, self._template)
        found = self._usual.get(place)
        if found is None or found[0] is not config:
            terms, ask, seconds = self._build(config, label, blocking, None, 1)
            if len(self._usual) >= _MAX_RESOLVED:
                self._usual.clear()
            found = self._usual[place] = config, terms, worded(ask), seconds
        return self._completed(*found[1:])

    def _completed(
        self, terms: LeaseSettings, ask: AcquireRequest, seconds: float
    ) -> tuple[LeaseSettings, AcquireRequest]:
        """Return a request with what differs each time: the share, and when its wait ends."""
        if self.share:  # not cached: there may be many shares
            ask = ask._replace(share=self.share, words=None)
        return terms, ask if seconds == math.inf else ask._replace(give_up_at=clock() + seconds)

    def _build(
        self,
        config: conf.Config,
        label: str,
        blocking: bool | None,
        blocking_timeout: float | None,
        permits: int,
    ) -> tuple[LeaseSettings, AcquireRequest, float]:
        """Resolve the arguments and settings. Return the settings of the lease, the acquire
        request, and the seconds to wait."""
        named, alias = self._options(config), self.alias()
        limit, permits = self._limit(named, permits)
        wait, seconds = self._waiting(config, named, blocking, blocking_timeout)
        terms = self._lease_settings(config, named, alias)
        policy, short = terms.keys.policy, wait and seconds < terms.budget
        ask = AcquireRequest(
            keys=terms.keys,
            lease=terms.timeout,
            permits=permits,
            limit=limit,
            wait=wait,
            give_up_at=math.inf,
            budget=max(1.0, seconds) if short else terms.budget,
            attempt=min(terms.attempt, max(0.5, seconds / 2)) if wait else terms.attempt,
            tokens=_token,
            later=lambda step: renewer(alias).later(step),
            kind=self._kind,
            fair=self.fair,
            max_waiters=self._max_waiters,
            label=label,
            learn=None if policy is None else lambda: renewer(alias).housekeeper.heed(policy),
            waits=_waits(terms, seconds == math.inf and self.limit == 1) if wait else None,
            share_limit=self._share_limit(named),
        )
        return terms, ask, seconds

    def _options(self, config: conf.Config) -> dict[str, Any]:
        """Return the name's entry in REDIS_SYNC["SEMAPHORES"], checked."""
        named = dict(config.named(self.name))
        try:
            for option in named.keys() & _NAMED.keys():
                named[option] = _NAMED[option].checked(named[option])
        except (TypeError, ValueError) as error:
            where = f"{conf.SETTING}['SEMAPHORES'][{self.name!r}]"
            raise ImproperlyConfigured(f"{where}: {error}.") from error
        return named

    def _limit(self, named: dict[str, Any], permits: int) -> tuple[int, int]:
        """Return the limit for this caller, and the permits to request. Raise ValueError if the
        permits don't fit, and ImproperlyConfigured if there is no limit."""
        limit = self.limit if self.limit is not None else named.get("limit")
        if limit is None or callable(limit):  # a callable in the settings is for requests
            raise ImproperlyConfigured(
                f"{self!r} has no limit. Write {type(self).__name__}({self.name!r}, limit), or set "
                f"{conf.SETTING}['SEMAPHORES'][{self.name!r}] = {{'limit': ...}}."
            )
        values.whole("permits", permits)
        if permits > limit:
            raise ValueError(f"{permits} permits can never fit a limit of {limit}")
        if permits > (share_limit := self._share_limit(named) or permits):
            raise ValueError(f"{permits} permits can never fit a share_limit of {share_limit}")
        return limit, permits

    def _check_share(self) -> None:
        """Raise ValueError or ImproperlyConfigured if this semaphore can't have shares."""
        if not self.fair:
            raise ValueError(f"{self.name!r}: shares take turns, which needs fair=True")
        if self._kind != "p":
            raise ValueError("a read/write lock can't have shares: a writer takes the whole name")
        if isinstance(self.using, Quorum):
            raise ImproperlyConfigured(
                "A lock on several servers can't have shares: each server would have its own queue."
            )

    def _share_limit(self, named: dict[str, Any]) -> int:
        """Return the max permits of its share, 0 for no limit. A callable in the settings applies
        only to requests."""
        limit = self.share_limit if self.share_limit is not None else named.get("share_limit")
        if limit is None or callable(limit):
            return 0
        self._check_share()
        return limit

    def _waiting(
        self, config: conf.Config, named: dict[str, Any], blocking: bool | None, own: float | None
    ) -> tuple[bool, float]:
        """Return True if the caller waits, and the max seconds to wait. `own`: of this call."""
        if own is not None:
            own = values.not_negative("blocking_timeout", own)
        layers = own, self.blocking_timeout, named.get("blocking_timeout"), config.blocking_timeout
        seconds = next((float(given) for given in layers if given is not None), math.inf)
        wait = (self.blocking if blocking is None else blocking) and seconds > 0
        return wait, seconds if wait else math.inf

    def _lease_settings(
        self, config: conf.Config, named: dict[str, Any], alias: Any
    ) -> LeaseSettings:
        timeout = self.timeout if self.timeout is not None else named.get("timeout")
        max_hold = self.max_hold if self.max_hold is not None else named.get("max_hold")
        max_hold = config.max_hold if max_hold is None else max_hold
        cap = math.inf if max_hold is None else float(max_hold)
        renew = timeout is None if self.renew is None else self.renew
        lease = config.timeout if timeout is None else timeout
        history = self._history(config)
        return LeaseSettings(
            keys=keys_of(config.prefix(alias), self.name, self.key, history),
            alias=alias,
            timeout=min(lease, cap),
            renew=renew and lease < math.inf,
            max_hold=cap,
            min_hold=self.min_hold or named.get("min_hold") or 0.0,
            attempt=self._attempt,
            on_lost=self.on_lost,
            template=self._template,
        )

    def _history(self, config: conf.Config) -> int:
        """Return the minutes of history that its scripts write."""
        return config.keep(self.key)
