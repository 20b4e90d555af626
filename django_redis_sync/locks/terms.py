"""The terms on which a primitive asks: its arguments, and the settings as they are now."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured

from .. import conf
from ..defaults import NAMED
from ..engine import labels
from ..engine.keeper import keeper
from ..engine.wire import ATTEMPT, clock
from ..protocol.keys import Keys, Policy, Token, check_text, keys_of
from ..protocol.plans import Ask, Plan, worded
from ..protocol.scripts import ANY, MOST_PERMITS
from .lease_state import Terms
from .waiting import warn_of_own_hold


def _source() -> Callable[[int], bytes]:
    """Of random bytes. urandom lets go of the interpreter for its half microsecond, and other
    threads take it for as long as they compute; getrandom keeps it."""
    with contextlib.suppress(AttributeError, OSError):  # no Linux, or forbidden there
        os.getrandom(1)
        return os.getrandom
    return os.urandom


_random = _source()


def _token() -> str:
    return Token(_random(16).hex())


def _learning(alias: str, policy: Policy) -> Callable[[], Plan]:
    """How to know an operator's marks on the policy of a child."""
    return lambda: keeper(alias).clerk.heed(policy)


#: In the place of those of a name.
_NO_KEYS = keys_of("", "-")


def _waits(terms: Terms, lock_for_ever: bool) -> Callable[[str, bool], None]:
    """What is to be done when a wait begins, and when it is over."""

    def waits(token: str, so: bool) -> None:
        keeper(terms.alias).clerk.waits(token, terms if so else None)
        if so and lock_for_ever:
            warn_of_own_hold(terms.keys, terms.alias)

    return waits


class Options:
    """The arguments of a primitive but those that differ from object to object: its name and key,
    its label, its `on_lost`. `checked`: as attributes. `patterns`: of what it asks for."""

    __slots__ = ("checked", "patterns")

    def __init__(self, checked: dict[str, Any]) -> None:
        self.checked = checked
        self.patterns: dict[Hashable, Pattern] = {}

    def __reduce__(self) -> Any:
        raise TypeError(
            "locks can't be pickled or copied deeply: pass the name, or a lease's handle"
        )


def _checked(
    limit: int | None,
    timeout: float | None,
    blocking: bool,
    blocking_timeout: float | None,
    renew: bool | None,
    fair: bool,
    max_hold: float | None,
    min_hold: float | None,
    raise_on_release_error: bool,
    release_on_commit: bool | str,
) -> Options:
    """TypeError and ValueError for wrong ones."""
    if limit is not None:
        conf.whole("limit", limit, MOST_PERMITS)
    if timeout is not None:
        timeout = conf.positive("timeout", timeout, infinite=True)
    if blocking_timeout is not None:
        blocking_timeout = conf.not_negative("blocking_timeout", blocking_timeout)
    if max_hold is not None:
        max_hold = conf.positive("max_hold", max_hold)
    if min_hold is not None:
        min_hold = conf.positive("min_hold", min_hold)
    if not isinstance(release_on_commit, (bool, str)):
        said = type(release_on_commit).__name__
        raise TypeError(f"release_on_commit must be a bool or a database's alias, not {said}")
    return Options(
        {
            "limit": limit,
            "timeout": timeout,
            "blocking": bool(blocking),
            "blocking_timeout": blocking_timeout,
            "renew": renew,
            "fair": fair,
            "max_hold": max_hold,
            "min_hold": min_hold,
            "raise_on_release_error": raise_on_release_error,
            "release_on_commit": release_on_commit,
        }
    )


#: Objects are made anew at each use, with the same options mostly. Typed: True is no limit of 1.
_remembered = lru_cache(maxsize=512, typed=True)(_checked)


def options_of(*given: Any) -> Options:
    """As _checked; those of the last objects are remembered."""
    try:
        return _remembered(*given)
    except TypeError:  # wrong, or nothing to look up by
        return _checked(*given)


@lru_cache(maxsize=512, typed=True)
def attributes_of(
    face: type,
    name: str,
    key: str | None,
    label: str | None,
    using: Any,
    *given: Any,
) -> dict[str, Any]:
    """The attributes of an object with these arguments, which are `options_of`'s from the limit on;
    TypeError and ValueError for wrong ones. Objects of equal ones share what they ask for."""
    check_text("a name", name)
    if key is not None:
        check_text("a key", key)
    if label is not None and not isinstance(label, str):
        raise TypeError(f"label must be a str, not {type(label).__name__}")
    known = options_of(*given)
    own = {"name": name, "key": key, "label": label, "using": using, "on_lost": None}
    return {**known.checked, **own, "_given": known, "_usual": {}}


class Pattern(NamedTuple):
    """What objects of equal options ask for, but for the name, while the settings stay."""

    config: conf.Config
    prefix: str
    terms: Terms
    ask: Ask
    #: Seconds to wait.
    seconds: float

    def terms_of(self, keys: Keys, on_lost: Callable[[Any], Any] | None) -> Terms:
        terms = Terms._make((keys, *self.terms[1:]))
        return terms if on_lost is None else terms._replace(on_lost=on_lost)

    def ask_of(
        self,
        keys: Keys,
        label: str,
        learn: Callable[[], Plan] | None,
        waits: Callable[[str, bool], None] | None,
    ) -> Ask:
        # _replace takes three times as long.
        return Ask._make((keys, *self.ask[1:_LABEL], label, False, learn, waits, None))


#: Where in an Ask the label, `shadow`, `learn`, `waits` and `words` stand: at its end.
_LABEL = Ask._fields.index("label")


#: Labels by object, of which it remembers what it asks for, at the most.
_MOST_USUAL = 64
#: Patterns by options at the most: names in SEMAPHORES and templates have their own.
_MOST_PATTERNS = 256


def _within(ask: Ask, seconds: float) -> Ask:
    return ask._replace(give_up_at=clock() + seconds)


class Asking:
    """The arguments of a primitive, resolved. Precedence: the argument, then
    REDIS_SYNC["SEMAPHORES"], then the defaults."""

    _kind = "p"
    #: How many may wait at the most, and seconds that an answer of the server may take.
    _max_waiters = ANY
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
    using: Any  # an alias, or a quorum of them
    label: str | None
    on_lost: Callable[[Any], Any] | None
    #: The template of the name, where that is known: names of one template are summed up.
    template = ""
    _given: Options
    _on_channel: tuple[Ask, Ask] | None = None
    # The terms and the Ask of a single permit, by `blocking` and label, for as long as the settings
    # stay: a thread's label is its own, and requests of many threads share an object. Objects of
    # equal arguments share it, until one is changed.
    _usual: dict[tuple[bool | None, str], tuple[conf.Config, Terms, Ask, float]]

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None:
            """A subclass or a caller may change what the arguments said."""
            super().__setattr__(name, value)
            if not name.startswith("_"):
                self.__dict__["_usual"] = {}

    def alias(self) -> str:
        """The cache alias that it goes by now."""
        return self.using or conf.current().cache

    def _options(self, config: conf.Config) -> dict[str, Any]:
        """This name's entry in REDIS_SYNC["SEMAPHORES"]."""
        named = dict(config.named(self.name))
        try:
            for option in named.keys() & NAMED.keys():
                named[option] = NAMED[option].checked(named[option])
        except (TypeError, ValueError) as error:
            where = f"{conf.SETTING}['SEMAPHORES'][{self.name!r}]"
            raise ImproperlyConfigured(f"{where}: {error}.") from error
        return named

    def check_permits(self, permits: int) -> None:
        """Raises as an acquire of so many permits would, before it asks."""
        self._limit(self._options(conf.current()), permits)

    def _terms_and_ask(
        self,
        blocking: bool | None,
        blocking_timeout: float | None,
        permits: int,
    ) -> tuple[Terms, Ask]:
        """The lease's Terms and the Ask, as the settings are now."""
        label = labels.write(self.label or "")
        if blocking is not None:
            blocking = bool(blocking)
        if blocking_timeout is None and type(permits) is int and permits == 1:
            return self._asked(blocking, label)
        config = conf.current()
        terms, ask, seconds = self._build(config, label, blocking, blocking_timeout, permits)
        return terms, _within(ask, seconds)

    def _asked(self, blocking: bool | None, label: str) -> tuple[Terms, Ask]:
        """What is asked for mostly, remembered: a single permit, with no time of its own."""
        config = conf.current()
        found = self._usual.get((blocking, label))
        if found is None or found[0] is not config:
            terms, ask, seconds = self._build(config, label, blocking, None, 1)
            if len(self._usual) >= _MOST_USUAL:
                self._usual.clear()
            found = self._usual[blocking, label] = config, terms, worded(ask), seconds
        _, terms, ask, seconds = found
        return terms, ask if seconds == math.inf else _within(ask, seconds)

    def _waiting_on(self, channel: str, ask: Ask) -> Ask:
        """The same, told on a channel; remembered, for on a loop the next is told there, too."""
        last = self._on_channel
        if last is None or last[0] is not ask or last[1].channel != channel:
            last = self._on_channel = ask, worded(ask._replace(channel=channel))
        return last[1]

    def _build(
        self,
        config: conf.Config,
        label: str,
        blocking: bool | None,
        blocking_timeout: float | None,
        permits: int,
    ) -> tuple[Terms, Ask, float]:
        usual = blocking_timeout is None and permits == 1 and self._is_as_given()
        find = self._usual_pattern if usual else self._pattern
        pattern = find(config, blocking, blocking_timeout, permits)
        history, short = self._history(config), config.short_state
        keys = keys_of(pattern.prefix, self.name, self.key, history, short)
        terms = pattern.terms_of(keys, self.on_lost)
        waits, learn = None, None
        if pattern.ask.wait:
            waits = _waits(terms, pattern.seconds == math.inf and self._lockable())
        if keys.policy is not None:
            learn = _learning(terms.alias, keys.policy)
        return terms, pattern.ask_of(keys, label, learn, waits), pattern.seconds

    def _is_as_given(self) -> bool:
        """Whether no subclass or caller has changed what its arguments said."""
        return self._given.checked.items() <= self.__dict__.items()

    def _usual_pattern(self, config: conf.Config, blocking: bool | None, *usual: Any) -> Pattern:
        """As _pattern, which is remembered."""
        patterns = self._given.patterns
        place = (
            *(type(self), self._kind, self.alias(), blocking, self.template),
            *(self._attempt, self._max_waiters),
            self.name if self.name in config.semaphores else None,
        )
        found = patterns.get(place)
        if found is None or found.config is not config:
            if len(patterns) >= _MOST_PATTERNS:
                patterns.clear()
            found = patterns[place] = self._pattern(config, blocking, *usual)
        return found

    def _pattern(
        self,
        config: conf.Config,
        blocking: bool | None,
        blocking_timeout: float | None,
        permits: int,
    ) -> Pattern:
        named, alias = self._options(config), self.alias()
        limit, permits = self._limit(named, permits)
        wait, seconds = self._waiting(config, named, blocking, blocking_timeout)
        terms = self._terms(config, named, alias)
        hurried = wait and seconds < terms.budget
        ask = Ask(
            keys=terms.keys,
            lease=terms.timeout,
            permits=permits,
            limit=limit,
            wait=wait,
            give_up_at=math.inf,
            budget=max(1.0, seconds) if hurried else terms.budget,
            attempt=min(terms.attempt, max(0.5, seconds / 2)) if wait else terms.attempt,
            tokens=_token,
            later=lambda step: keeper(alias).later(step),
            kind=self._kind,
            fair=self.fair,
            max_waiters=self._max_waiters,
        )
        return Pattern(config, config.prefix(alias), terms, ask, seconds)

    def _lockable(self) -> bool:
        """Whether an RLock could be meant: it has one permit."""
        return self.limit == 1

    def _limit(self, named: dict[str, Any], permits: int) -> tuple[int, int]:
        """The limit in force for this caller, and the permits to ask for."""
        limit = self.limit if self.limit is not None else named.get("limit")
        if limit is None:
            raise ImproperlyConfigured(
                f"{self!r} has no limit: give one, or REDIS_SYNC['SEMAPHORES'][{self.name!r}]."
            )
        try:
            conf.whole("limit", limit, MOST_PERMITS)
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(f"REDIS_SYNC['SEMAPHORES']: {error}.") from error
        conf.whole("permits", permits, MOST_PERMITS)
        if permits > limit:
            raise ValueError(f"{permits} permits can never fit a limit of {limit}")
        return int(limit), permits

    def _waiting(
        self,
        config: conf.Config,
        named: dict[str, Any],
        blocking: bool | None,
        blocking_timeout: float | None,
    ) -> tuple[bool, float]:
        """Whether to wait, and how many seconds at the most."""
        wait = self.blocking if blocking is None else blocking
        if blocking_timeout is not None:
            blocking_timeout = conf.not_negative("blocking_timeout", blocking_timeout)
        said = blocking_timeout, self.blocking_timeout, named.get("blocking_timeout")
        given = (float(v) for v in (*said, config.blocking_timeout) if v is not None)
        seconds = next(given, math.inf)
        wait = wait and seconds > 0
        return wait, seconds if wait else math.inf

    def _terms(self, config: conf.Config, named: dict[str, Any], alias: str) -> Terms:
        timeout = self.timeout if self.timeout is not None else named.get("timeout")
        max_hold = self.max_hold if self.max_hold is not None else named.get("max_hold")
        max_hold = config.max_hold if max_hold is None else max_hold
        cap = math.inf if max_hold is None else float(max_hold)
        renew = timeout is None if self.renew is None else self.renew
        lease = config.timeout if timeout is None else timeout
        return Terms(
            keys=_NO_KEYS,
            alias=alias,
            timeout=min(lease, cap),
            renew=renew and lease < math.inf,
            max_hold=cap,
            min_hold=self.min_hold or named.get("min_hold") or 0.0,
            attempt=self._attempt,
            template=self.template,
        )

    def _history(self, config: conf.Config) -> int:
        """Minutes of statistics that its scripts write."""
        return config.keep(self.key)
