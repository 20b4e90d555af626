"""Semaphore and Lock: one primitive, thin faces. Every method that talks to Redis has an a-twin."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from . import conf, inspection, labels, transactions
from .engine import connections, drivers
from .engine.keeper import keeper
from .engine.quorum import Quorum, quorum_of
from .engine.wire import clock
from .exceptions import LeaseLost, NotAcquired, WrongKind
from .handles import Terms
from .lease import Lease
from .protocol import plans
from .protocol.keys import keys_of
from .protocol.plans import Ask, Grant, Refusal
from .protocol.scripts import MOST_PERMITS

logger = logging.getLogger("django_redis_sync")

#: What an entry of SEMAPHORES may say in seconds.
_SECONDS: dict[str, Callable[[str, object], float]] = {
    "timeout": partial(conf.positive, infinite=True),
    "blocking_timeout": conf.not_negative,
    "max_hold": conf.positive,
    "min_hold": conf.positive,
}

_WHY_NOT = {
    "full": "all permits are taken",
    "paused": "an operator paused it",
    "timeout": "no permit came free in time",
    "cleared": "an operator cleared this waiter",
    "large": "an operator's limit of {detail} is below the permits asked for",
}


def _token() -> str:
    return os.urandom(16).hex()


class Semaphore:
    """At most `limit` permits of `name` are held at any time, by all processes together.

    `timeout`: seconds of a lease; None: REDIS_SYNC["TIMEOUT"], renewed in the background while the
    holder lives; math.inf: permanent. `renew`: renew a lease of a given timeout too, or not.
    `blocking`, `blocking_timeout`: whether, and how many seconds, to wait (None: for ever).
    `fair`: first come, first served. `max_hold`: seconds after which it is renewed no more.
    `min_hold`: seconds for which the permits stay taken, however early they are released.
    `release_on_commit`: inside a transaction, what `release` and leaving the `with` give back is
    given back when the transaction ends. `using`: a cache alias; of a Lock also a list of them, a
    quorum: a majority of those servers grants, first come is not first served. `label`: shown to
    operators.
    `on_lost(lease)` runs when a lease is lost, on a thread of its own. `thread_local`,
    `raise_on_release_error`: as in redis-py. `sleep` is accepted for redis-py's sake: waiting takes
    no polling.

    Use as `with`, `async with`, or acquire and release. Settings are read at each acquire; its own
    attributes are for reading. Raises TypeError and ValueError for wrong arguments,
    ImproperlyConfigured for wrong settings, WrongKind for a name that is a read/write lock,
    Unavailable when Redis can't be reached.
    """

    _kind = "p"
    #: How many may wait at the most, and seconds that one answer of the server may take.
    _max_waiters = 10**9
    _attempt = connections.ATTEMPT

    def __init__(
        self,
        name: str,
        limit: int | None = None,
        *,
        timeout: float | None = None,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        renew: bool | None = None,
        fair: bool = True,
        max_hold: float | None = None,
        min_hold: float | None = None,
        using: str | Sequence[str] | None = None,
        label: str | None = None,
        on_lost: Callable[[Lease], Any] | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
        release_on_commit: bool = False,
        sleep: float | None = None,
        key: str | None = None,
    ) -> None:
        keys_of("", name, key)  # wrong names are refused here, before anything is sent
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
        if label is not None and not isinstance(label, str):
            raise TypeError(f"label must be a str, not {type(label).__name__}")
        if not isinstance(using, (str, type(None))):
            using = self._quorum(name, using, limit, timeout)
        self.name, self.key, self.limit = name, key, limit
        self.timeout, self.renew, self.fair = timeout, renew, fair
        self.blocking, self.blocking_timeout = bool(blocking), blocking_timeout
        self.max_hold, self.min_hold = max_hold, min_hold
        self.using, self.label, self.on_lost = using, label, on_lost
        self.raise_on_release_error = raise_on_release_error
        self.release_on_commit = release_on_commit
        self._held: PerCaller = PerCaller() if thread_local else _Shared()
        # What acquire() without arguments asks for, for as long as the settings stay.
        self._usual: tuple[conf.Config, Terms, Ask, float] | None = None

    def __repr__(self) -> str:
        limit = "" if self.limit is None else f", {self.limit}"
        return f"{type(self).__name__}({self.name!r}{limit})"

    # Taking

    def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        permits: int = 1,
    ) -> Lease | None:
        """A lease, or None when none came in time."""
        got = self.take(blocking, blocking_timeout, permits)
        return self._keep(got) if isinstance(got, Lease) else None

    async def aacquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        permits: int = 1,
    ) -> Lease | None:
        """As acquire."""
        got = await self.atake(blocking, blocking_timeout, permits)
        return self._keep(got) if isinstance(got, Lease) else None

    def release(self) -> None:
        """Give back the newest lease that this thread or task took through this object.

        NotAcquired when there is none, LeaseLost when it is over.
        """
        lease = self._newest()
        if not self._deferred(lease):
            lease.release()

    async def arelease(self) -> None:
        """As release."""
        await self._newest().arelease()

    def __enter__(self) -> Lease:
        return self._enter(self.take())

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        self._exit(self._leave(), kind, error, trace)

    async def __aenter__(self) -> Lease:
        return self._enter(await self.atake())

    async def __aexit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        await self._aexit(self._leave(), kind, error, trace)

    def atomic(self, using: str | None = None) -> AbstractContextManager[Lease]:
        """Acquire, then `transaction.atomic(using, durable=True)`: given back when that is over.

        RuntimeError inside another transaction; else as `with`.
        """
        return transactions.locked_atomic(self, using)

    # The newest lease of this thread or task, as redis-py's Lock has it

    def extend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        """Extend the newest lease. NotAcquired when there is none, LeaseLost when it is over."""
        return self._newest(keep=True).extend(additional_time, replace_ttl)

    async def aextend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        """As extend."""
        return await self._newest(keep=True).aextend(additional_time, replace_ttl)

    def reacquire(self) -> bool:
        """Make the newest lease last its whole timeout again. Errors as for release."""
        return self._newest(keep=True).reacquire()

    async def areacquire(self) -> bool:
        """As reacquire."""
        return await self._newest(keep=True).areacquire()

    def owned(self) -> bool:
        """Whether the server says that the newest lease of this thread or task is still ours."""
        lease = self._held.newest()
        return lease is not None and lease.owned()

    async def aowned(self) -> bool:
        """As owned."""
        lease = self._held.newest()
        return lease is not None and await lease.aowned()

    def status(self) -> inspection.Status:
        """Who holds and who waits."""
        return inspection.status(self.name, self.key, using=self._alias())

    async def astatus(self) -> inspection.Status:
        """As status."""
        return await inspection.astatus(self.name, self.key, using=self._alias())

    def locked(self) -> bool:
        """Whether anybody holds the name now."""
        return bool(drivers.drive(self._looking(), connections.server(self._alias()))[7])

    async def alocked(self) -> bool:
        """As locked."""
        plan = self._looking()
        return bool((await drivers.adrive(plan, connections.async_server(self._alias())))[7])

    # Inside

    def take(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        permits: int = 1,
    ) -> Lease | Refusal:
        """A lease that `release` here does not know of, or why there is none."""
        self._before()
        terms, ask = self._terms_and_ask(blocking, blocking_timeout, permits)
        got = drivers.drive(plans.acquire(ask, clock()), connections.server(terms.alias))
        return self._settle(terms, ask, got)

    async def atake(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        permits: int = 1,
    ) -> Lease | Refusal:
        """As take."""
        self._before()
        terms, ask = self._terms_and_ask(blocking, blocking_timeout, permits)
        server = connections.async_server(terms.alias)
        if ask.wait:
            ask = ask._replace(channel=await server.hub.ready(ask.attempt))
        got = await drivers.adrive(plans.acquire(ask, clock()), server)
        return self._settle(terms, ask, got)

    def _quorum(self, name: str, using: Any, limit: int | None, timeout: float | None) -> Quorum:
        """What several aliases are. ImproperlyConfigured where a majority would not be safe."""
        if self._kind != "p" or limit != 1:
            raise ImproperlyConfigured(
                f"{name!r} can't have several servers in using, only a Lock can: by majorities of "
                "three servers, 3 holders would share a limit of 2, and readers pass a writer."
            )
        if timeout == math.inf:
            raise ImproperlyConfigured(
                "A permanent lease can't have several servers in using: one that lost it would "
                "never get it back, until no majority has it."
            )
        return quorum_of(using)

    def _before(self) -> None:
        """Called before anything is asked for; a face refuses here what it can't allow."""

    def _alias(self) -> str:
        return self.using or conf.current().cache

    def _options(self, config: conf.Config) -> dict[str, Any]:
        """What REDIS_SYNC["SEMAPHORES"] says of this name."""
        named = dict(config.semaphores.get(self.name, {}))
        try:
            for option, check in _SECONDS.items():
                if named.get(option) is not None:
                    named[option] = check(option, named[option])
        except (TypeError, ValueError) as error:
            where = f"{conf.SETTING}['SEMAPHORES'][{self.name!r}]"
            raise ImproperlyConfigured(f"{where}: {error}.") from error
        return named

    def _terms_and_ask(
        self, blocking: bool | None, blocking_timeout: float | None, permits: int
    ) -> tuple[Terms, Ask]:
        """What to keep and what to ask for, as the settings are now."""
        config, label = conf.current(), self._write_label()
        if blocking is None and blocking_timeout is None and type(permits) is int and permits == 1:
            if self._usual is None or self._usual[0] is not config:
                self._usual = (config, *self._build(config, None, None, 1))
            _, terms, ask, seconds = self._usual
            if seconds == math.inf and ask.label == label:
                return terms, ask
            ask = ask._replace(give_up_at=clock() + seconds, label=label)
            self._usual = config, terms, ask, seconds
            return terms, ask
        terms, ask, seconds = self._build(config, blocking, blocking_timeout, permits)
        return terms, ask._replace(give_up_at=clock() + seconds, label=label)

    def _build(
        self,
        config: conf.Config,
        blocking: bool | None,
        blocking_timeout: float | None,
        permits: int,
    ) -> tuple[Terms, Ask, float]:
        named = self._options(config)
        limit, permits = self._limit(named, permits)
        wait, seconds = self._waiting(config, named, blocking, blocking_timeout)
        terms = self._terms(config, named, self._alias())
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
            later=lambda step: keeper(terms.alias).later(step),
            kind=self._kind,
            fair=self.fair,
            max_waiters=self._max_waiters,
        )
        return terms, ask, seconds

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
        wait = self.blocking if blocking is None else bool(blocking)
        if blocking_timeout is not None:
            blocking_timeout = conf.not_negative("blocking_timeout", blocking_timeout)
        for value in (
            blocking_timeout,
            self.blocking_timeout,
            named.get("blocking_timeout"),
            config.blocking_timeout,
        ):
            if value is not None:
                return wait and value > 0, float(value)
        return wait, math.inf

    def _terms(self, config: conf.Config, named: dict[str, Any], alias: str) -> Terms:
        timeout = self.timeout if self.timeout is not None else named.get("timeout")
        max_hold = self.max_hold if self.max_hold is not None else named.get("max_hold")
        max_hold = config.max_hold if max_hold is None else max_hold
        cap = math.inf if max_hold is None else float(max_hold)
        renew = timeout is None if self.renew is None else self.renew
        lease = config.timeout if timeout is None else timeout
        return Terms(
            keys=keys_of(config.prefix(alias), self.name, self.key, config.keep(self.key)),
            alias=alias,
            timeout=min(lease, cap),
            renew=renew and lease < math.inf,
            max_hold=cap,
            min_hold=self.min_hold or named.get("min_hold") or 0.0,
            attempt=self._attempt,
            on_lost=self.on_lost,
        )

    def _write_label(self) -> str:
        return labels.write(self.label or "")

    def _settle(self, terms: Terms, ask: Ask, got: Grant | Refusal) -> Lease | Refusal:
        if isinstance(got, Grant):
            return Lease(terms, got)
        if got.reason == "kind":
            other = "a read/write lock" if got.detail == "w" else "a plain lock or semaphore"
            raise WrongKind(f"{terms.keys.display!r} is in use as {other}")
        return got

    def _keep(self, lease: Lease) -> Lease:
        self._held.add(lease)
        return lease

    def _enter(self, got: Lease | Refusal) -> Lease:
        if isinstance(got, Refusal):
            raise self._refused(got)
        self._held.entered().append(got)
        return self._keep(got)

    def _refused(self, refusal: Refusal) -> NotAcquired:
        said = _WHY_NOT[refusal.reason].format(detail=refusal.detail)
        return NotAcquired(f"{self.name!r}: {said}", refusal.reason, self.name)

    def _leave(self) -> Lease:
        lease: Lease = self._held.entered().pop()
        self._held.discard(lease)
        return lease

    def _newest(self, keep: bool = False) -> Lease:
        lease = self._held.newest(take=not keep)
        if lease is None:
            raise NotAcquired(
                f"{self.name!r}: this thread or task holds nothing through this object",
                name=self.name,
            )
        return lease

    def _exit(self, lease: Lease, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        if lease.held and self._deferred(lease):
            return
        try:
            lease.__exit__(kind, error, trace)
        except LeaseLost as lost:
            self._left_without(lost)

    async def _aexit(
        self, lease: Lease, kind: type[BaseException] | None, error: Any, trace: Any
    ) -> None:
        try:
            await lease.__aexit__(kind, error, trace)
        except LeaseLost as lost:
            self._left_without(lost)

    def _deferred(self, lease: Lease) -> bool:
        """Whether the open transaction gives it back when it ends. Warns where it should."""
        if not self.release_on_commit:
            remedy = "Use its atomic(), or release_on_commit=True."
            transactions.warn_if_racing(f"The lease of {self.name!r}", remedy, stacklevel=4)
            return False
        if not transactions.in_transaction():
            return False
        transactions.release_when_over(lease)
        return True

    def _left_without(self, lost: LeaseLost) -> None:
        if self.raise_on_release_error:
            raise lost
        logger.warning("leaving %r: %s", self.name, lost)

    def _looking(self) -> plans.Plan:
        keys = keys_of(conf.current().prefix(self._alias()), self.name, self.key)
        return plans.run_once("inspect", keys, ("", 1), connections.ATTEMPT, clock())


class Lock(Semaphore):
    """A semaphore of one permit. Arguments as Semaphore's, without the limit."""

    def __init__(self, name: str, **options: Any) -> None:
        if options.get("fair") and isinstance(options.get("using"), (list, tuple)):
            raise ImproperlyConfigured(
                "A lock on several servers can't be fair: their queues would disagree for ever."
            )
        super().__init__(name, 1, **options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class PerCaller:
    """The leases taken through one object, by thread, or by task where one runs."""

    def __init__(self) -> None:
        self._threads = threading.local()
        self._tasks: weakref.WeakKeyDictionary[Any, tuple[list[Lease], list[Any]]] = (
            weakref.WeakKeyDictionary()
        )

    def _lists(self) -> tuple[list[Lease], list[Any]]:
        loop = asyncio._get_running_loop()  # current_task() would raise where there is none
        task = None if loop is None else asyncio.current_task(loop)
        if task is not None:
            return self._tasks.setdefault(task, ([], []))
        try:
            lists: tuple[list[Lease], list[Any]] = self._threads.lists
        except AttributeError:
            lists = self._threads.lists = ([], [])
        return lists

    def add(self, lease: Lease) -> None:
        taken = self._lists()[0]
        while taken and taken[-1].ended:  # by the lease's own release: else they would pile up
            taken.pop()
        taken.append(lease)

    def has(self, lease: Lease) -> bool:
        return lease in self._lists()[0]

    def discard(self, lease: Lease) -> None:
        taken = self._lists()[0]
        for i in reversed(range(len(taken))):
            if taken[i] is lease:
                del taken[i]
                return

    def newest(self, take: bool = False) -> Lease | None:
        """The newest that was neither released nor detached."""
        taken = self._lists()[0]
        while taken and taken[-1].ended:
            taken.pop()
        if not taken:
            return None
        return taken.pop() if take else taken[-1]

    def entered(self) -> list[Any]:
        """What the open `with` blocks entered, innermost last."""
        return self._lists()[1]


class _Shared(PerCaller):
    """One list for all threads and tasks (thread_local=False)."""

    def __init__(self) -> None:
        super().__init__()
        self._all: tuple[list[Lease], list[Any]] = ([], [])

    def _lists(self) -> tuple[list[Lease], list[Any]]:
        return self._all
