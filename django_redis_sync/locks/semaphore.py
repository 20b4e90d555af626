"""Semaphore and Lock, thin faces. Every method that talks to Redis has an a-twin."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured

from .. import conf
from ..engine import drivers
from ..engine.keeper import keeper
from ..engine.quorum import Quorum, quorum_of
from ..engine.server import async_server_of, server_of
from ..engine.wire import ATTEMPT, clock
from ..exceptions import LeaseLost, NotAcquired, WrongKind
from ..operators.status import Status, astatus_of, status_of
from ..protocol import plans
from ..protocol.keys import keys_of
from ..protocol.plans import Ask, Grant, Refusal
from ..protocol.reasons import FULL, TIMEOUT
from . import counting, transactions
from .callers import Block, Leaving, PerCaller, Shared
from .lease import Lease
from .lease_state import Terms
from .terms import Asking, attributes_of
from .waiting import may_wait, own_hold, waits_here

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..defaults import SemaphoreOptions

logger = logging.getLogger("django_redis_sync")


class Semaphore(Asking):
    """At most `limit` permits of `name` are held at any time, by all processes together.

    `timeout`: seconds of a lease; None: REDIS_SYNC["TIMEOUT"], renewed in the background while the
    holder lives; math.inf: permanent. `renew`: renew a lease of a given timeout too, or not.
    `blocking`, `blocking_timeout`: whether, and how many seconds, to wait (None: for ever).
    `fair`: first come, first served. `max_hold`: seconds after which it is renewed no more.
    `min_hold`: seconds for which the permits stay taken, however early they are released.
    `release_on_commit`: inside a transaction, `release` and leaving the `with` take effect when
    the transaction ends, on all databases that have it open; the alias of a database limits this
    to that database. `using`: a cache alias; of a Lock also a list of them, a quorum: a majority of
    those servers grants, first come is not first served. `label`: shown to operators.
    `on_lost(lease)` runs when a lease is lost, on a thread of its own. `thread_local`,
    `raise_on_release_error`: as in redis-py. `sleep` is accepted for redis-py's sake: waiting takes
    no polling.

    Use as `with`, `async with`, or acquire and release. Settings are read at each acquire; its own
    attributes are for reading. Raises TypeError and ValueError for wrong arguments,
    ImproperlyConfigured for wrong settings, WrongKind for a name that is a read/write lock,
    Unavailable when Redis can't be reached.
    """

    _held: PerCaller

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
        release_on_commit: bool | str = False,
        sleep: float | None = None,
        key: str | None = None,
    ) -> None:
        given = (
            *(limit, timeout, blocking, blocking_timeout, renew, fair, max_hold, min_hold),
            *(raise_on_release_error, release_on_commit),
        )
        alias = using if isinstance(using, str) else None
        face: Any = type(self)
        try:
            known = attributes_of(face, name, key, label, alias, *given)
        except TypeError:  # wrong, or nothing to look up by
            known = attributes_of.__wrapped__(face, name, key, label, alias, *given)
        self.__dict__.update(known, _held=PerCaller() if thread_local else Shared())
        if on_lost is not None:
            self.on_lost = on_lost
        if using is not alias:
            self.using = self._quorum(name, using, limit, self.timeout)

    def __repr__(self) -> str:
        limit = "" if self.limit is None else f", {self.limit}"
        return f"{type(self).__name__}({self.name!r}{limit})"

    # Taking

    def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        permits: int = 1,
        *,
        sleep: float | None = None,
    ) -> Lease | None:
        """A lease, or None when none came in time."""
        before, got = self.depths(), None
        try:
            got = self.take(blocking, blocking_timeout, permits)
            return self.keep(got) if isinstance(got, Lease) else None
        except BaseException:
            self.unwind(before, got)
            raise

    async def aacquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        permits: int = 1,
        *,
        sleep: float | None = None,
    ) -> Lease | None:
        """As acquire."""
        before, got = self.depths(), None
        try:
            got = await self.atake(blocking, blocking_timeout, permits)
            return self.keep(got) if isinstance(got, Lease) else None
        except BaseException:
            self.unwind(before, got)
            raise

    def release(self) -> None:
        """Give back the newest lease that this thread or task took through this object.

        NotAcquired when there is none, LeaseLost when it is over.
        """
        lease = self.newest()
        if not self._deferred(lease):
            lease.release()

    async def arelease(self) -> None:
        """As release."""
        await self.newest().arelease()

    def __enter__(self) -> Lease:
        block, before, got = self._held.begin(self), self.depths(), None
        try:
            got = self.take()
            return self._enter(block, got)
        except BaseException:
            self._held.drop(block)
            self.unwind(before, got)
            raise

    def __aenter__(self) -> Coroutine[Any, Any, Lease]:
        return self._aenter(self._held.begin(self))  # now: a coroutine begins when it is awaited

    # Each is new for each block, so that it gives back its block's lease, wherever that ends.
    __exit__ = Leaving("_leave")
    __aexit__ = Leaving("_aleave")

    def atomic(self, using: str | None = None) -> AbstractContextManager[Lease]:
        """Acquire, then `transaction.atomic(using, durable=True)`: given back when that is over.

        `using`: the alias of a database. RuntimeError inside another transaction of it, before
        Redis is asked; else as `with`.
        """
        return transactions.locked_atomic(self, using)

    # The newest lease of this thread or task, as redis-py's Lock has it

    def extend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        """Extend the newest lease. NotAcquired when there is none, LeaseLost when it is over."""
        return self.newest(keep=True).extend(additional_time, replace_ttl)

    async def aextend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        """As extend."""
        return await self.newest(keep=True).aextend(additional_time, replace_ttl)

    def reacquire(self) -> bool:
        """Make the newest lease last its whole timeout again. Errors as for release."""
        return self.newest(keep=True).reacquire()

    async def areacquire(self) -> bool:
        """As reacquire."""
        return await self.newest(keep=True).areacquire()

    def owned(self) -> bool:
        """Whether the server says that the newest lease of this thread or task is still ours."""
        lease = self._held.newest()
        return lease is not None and lease.owned()

    async def aowned(self) -> bool:
        """As owned."""
        lease = self._held.newest()
        return lease is not None and await lease.aowned()

    def status(self) -> Status:
        """The name's holders, waiters and limit, read now. Unavailable when Redis is down."""
        self._check_may_wait("status")
        return status_of(self.name, self.key, using=self.alias())

    async def astatus(self) -> Status:
        """As status."""
        return await astatus_of(self.name, self.key, using=self.alias())

    def locked(self) -> bool:
        """Whether the name is held now, by any holder."""
        self._check_may_wait("locked")
        return bool(drivers.drive(self._looking(), server_of(self.alias()))[7])

    async def alocked(self) -> bool:
        """As locked."""
        plan = self._looking()
        return bool((await drivers.adrive(plan, async_server_of(self.alias())))[7])

    # Inside

    def take(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        permits: int = 1,
    ) -> Lease | Refusal:
        """A lease that `release` here does not know of, or why there is none."""
        if not may_wait():
            self._check_may_wait("acquire")
        self._before()
        terms, ask = self._terms_and_ask(blocking, blocking_timeout, permits)
        if self.release_on_commit and ask.wait and ask.limit == 1:
            transactions.refuse_twice(terms)
        return self._got(terms, ask)

    def _got(self, terms: Terms, ask: Ask) -> Lease | Refusal:
        """What comes of asking."""
        server, start = server_of(terms.alias), clock()
        got: Grant | Refusal
        if ask.learn is None:
            token = ask.tokens()
            step = plans.asking(ask, token)
            got = drivers.attempt(server, step, plans.granted, plans.acquire, ask, start, token)
        else:
            got = drivers.drive(plans.acquire(ask, start), server)
        return self._settle(terms, ask, got)

    async def atake(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        permits: int = 1,
    ) -> Lease | Refusal:
        """As take."""
        self._before()
        return await self._agot(*self._terms_and_ask(blocking, blocking_timeout, permits))

    async def _agot(self, terms: Terms, ask: Ask) -> Lease | Refusal:
        server = async_server_of(terms.alias)
        if ask.wait:
            ask = self._waiting_on(await server.hub.ready(ask.attempt), ask)
        got = await drivers.adrive(plans.acquire(ask, clock()), server)
        return self._settle(terms, ask, got)

    def _quorum(self, name: str, using: Any, limit: int | None, timeout: float | None) -> Quorum:
        """The quorum of several aliases. ImproperlyConfigured if a majority would not be safe."""
        if limit != 1:
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

    def _check_may_wait(self, method: str) -> None:
        """Release, detach and leaving a block are never refused: they let others go on."""
        if not may_wait():
            block = f"`async with {self!r}` or " if method == "acquire" else ""
            raise waits_here(f"{self!r} in sync code", f"{block}`await ….a{method}()`")

    def _before(self) -> None:
        """Called before anything is asked for; a face raises here to refuse."""

    def _settle(self, terms: Terms, ask: Ask, got: Grant | Refusal) -> Lease | Refusal:
        if type(got) is Grant:
            lease = self._lease(terms, got)
            counting.granted(lease.keeper.clerk, terms, got)
            return lease
        assert isinstance(got, Refusal)
        counting.refused(keeper(terms.alias).clerk, terms, got)
        if got.reason == "kind":
            other = "a read/write lock" if got.detail == "w" else "a plain lock or semaphore"
            raise WrongKind(f"{terms.keys.display!r} is in use as {other}")
        return got

    _lease: type[Lease] = Lease

    def keep(self, lease: Lease) -> Lease:
        """Have `release` of this thread or task know of it."""
        self._held.add(lease)
        return lease

    def forget(self, lease: Lease) -> None:
        """Undo keep."""
        self._held.discard(lease)

    async def _aenter(self, block: Block) -> Lease:
        before, got = self.depths(), None
        try:
            got = await self.atake()
            return self._enter(block, got)
        except BaseException:
            self._held.drop(block)
            self.unwind(before, got)
            raise

    def _enter(self, block: Block, got: Lease | Refusal) -> Lease:
        if isinstance(got, Refusal):
            raise self.error_of(got)
        self._held.hold(block, got)
        return got

    def error_of(self, refusal: Refusal) -> NotAcquired:
        """The error that a refused `with` raises."""
        said = f"{self.name!r}: {refusal}"
        if refusal.reason in (FULL, TIMEOUT) and self._lockable():
            alias = self.alias()
            own = own_hold(keys_of(conf.current().prefix(alias), self.name, self.key), alias)
            said += f" ({own})" if own else ""
        return NotAcquired(said, refusal.reason, self.name)

    # What this object refers to is renewed for as long as it lives. So whoever is interrupted while
    # something is taken, as by an exception out of a signal handler, gives it back.

    def depths(self) -> Any:
        """What `unwind` has to know of the time before something was taken."""

    def unwind(self, before: Any, got: Any) -> None:
        """Give back, as soon as the server answers, what an interrupted caller took."""
        if isinstance(got, Lease):
            self.forget(got)
            if not got.ended:
                got.release_later()

    def undo(self, lease: Lease, *error: Any) -> None:
        """Give back the lease from `take` and raise nothing: an exception is on its way out."""
        lease.__exit__(*error)

    async def aundo(self, lease: Lease, *error: Any) -> None:
        """As undo."""
        await lease.__aexit__(*error)

    def _leave(
        self, block: Block, kind: type[BaseException] | None, error: Any, trace: Any
    ) -> None:
        self.leave(self._held.end(block), kind, error, trace)

    async def _aleave(
        self, block: Block, kind: type[BaseException] | None, error: Any, trace: Any
    ) -> None:
        await self.aleave(self._held.end(block), kind, error, trace)

    def newest(self, keep: bool = False) -> Lease:
        """The lease `release` gives back; taken out without `keep`. NotAcquired: there is none."""
        lease = self._held.newest(take=not keep)
        if lease is None:
            raise NotAcquired(
                f"{self.name!r}: this thread or task holds nothing through this object",
                name=self.name,
            )
        return lease

    def leave(self, lease: Lease, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        """Give a lease back as leaving a `with` does."""
        if lease.held and self._deferred(lease):
            return
        try:
            lease.__exit__(kind, error, trace)
        except LeaseLost as lost:
            self._left_without(lost)

    async def aleave(
        self, lease: Lease, kind: type[BaseException] | None, error: Any, trace: Any
    ) -> None:
        """As leave."""
        try:
            await lease.__aexit__(kind, error, trace)
        except LeaseLost as lost:
            self._left_without(lost)

    def _deferred(self, lease: Lease) -> bool:
        """Whether the open transaction gives it back when it ends. Warns where it should."""
        if not self.release_on_commit:
            remedy = (
                "Use release_on_commit=True; or its atomic(), on a view that ATOMIC_REQUESTS wraps "
                "with @transaction.non_atomic_requests."
            )
            transactions.warn_if_racing(f"The lease of {self.name!r}", remedy)
            return False
        if not transactions.transactions_of(self.release_on_commit):
            return False
        transactions.release_when_over(lease, self.release_on_commit)
        return True

    def _left_without(self, lost: LeaseLost) -> None:
        if self.raise_on_release_error:
            raise lost
        logger.warning("leaving %r: %s", self.name, lost)

    def _looking(self) -> plans.Plan:
        keys = keys_of(conf.current().prefix(self.alias()), self.name, self.key)
        return plans.run_once("inspect", keys, ("", 1), ATTEMPT, clock())


class Lock(Semaphore):
    """A semaphore of a single permit. Arguments as Semaphore's, without the limit."""

    def __init__(self, name: str, **options: Unpack[SemaphoreOptions]) -> None:
        if options.get("fair") and isinstance(options.get("using"), (list, tuple)):
            raise ImproperlyConfigured(
                "A lock on several servers can't be fair: their queues would disagree for ever."
            )
        super().__init__(name, 1, **options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"
