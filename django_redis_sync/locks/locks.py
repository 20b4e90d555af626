"""Three kinds of locks: `Lock` with one holder, the reentrant `RLock`, and `ReadWriteLock`."""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from django.core.exceptions import ImproperlyConfigured

from ..engine.wire import clock
from ..exceptions import NotAcquired, UpgradeRefused
from ..protocol.plans import AcquireRequest
from ..protocol.reasons import FULL, TIMEOUT, Rejection
from ..protocol.renewals import Grant
from ..protocol.scripts import MOST_PERMITS
from .arguments import wrong_call
from .callers import ByCaller, Caller, by_caller, this_caller
from .lease import Lease
from .lease_state import LeaseSettings
from .nesting import warn_of_endless_wait
from .semaphore import Semaphore
from .transactions import release_if_over

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..defaults import SemaphoreOptions
    from ..operators.facts import Status


class _Leases(ByCaller[weakref.WeakSet[Lease]]):
    """The leases that each thread or task has taken, through any object.

    The references are weak. So if no code can release a lease any more, the lease is not renewed.
    """

    def add(self, lease: Lease) -> None:
        self.at(lease._caller, weakref.WeakSet).add(lease)

    def of_name(self, semaphore: Semaphore, caller: Caller | None) -> list[Lease]:
        """Return the leases of the semaphore's name that a thread or task has taken and that were
        neither released nor detached. `caller`: None for the current thread or task."""
        keys, alias = semaphore._keys(), semaphore.alias()
        mine = list(self.get(caller or this_caller(), ()))
        return [lease for lease in mine if not lease.ended and lease._is_of_name(keys, alias)]


class Lock(Semaphore):
    """A semaphore with one permit: one holder at a time, in all processes together.

    Its options are those of `Semaphore`, without `limit`. `Lock("x")` and `Semaphore("x", 1)` are
    the same lock::

        with Lock("nightly-report", timeout=600) as lease:
            report()
            lease.check()
    """

    def __init__(self, name: str, *more: NoReturn, **options: Unpack[SemaphoreOptions]) -> None:
        if options.get("fair") is True and isinstance(options.get("using"), (list, tuple)):
            raise ImproperlyConfigured(
                "A lock on several servers can't be fair: each server would have its own queue."
            )
        if "limit" in options:
            raise wrong_call(self, "", more, options)
        super().__init__(name, 1, *more, **options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class _ReentrantLease(Lease):
    """The lease of an RLock.

    `times`: a list [0, 1, 2, …] with a number for each acquire that was not released yet.
    `deferred`: True if the open transaction releases the lease when the transaction ends.
    """

    __slots__ = ("deferred", "times")

    def __init__(self, *arguments: Any) -> None:
        self.times, self.deferred = list[int](), False
        super().__init__(*arguments)

    def _transaction_ended(self) -> None:
        """Release the lease, unless it was taken again and is in use."""
        self.deferred = False
        if not self.times:
            self.release()


class _Call:
    """An async acquire of an RLock that has not ended yet."""

    def __init__(self, notify: Callable[..., Any] | None) -> None:
        """`notify`: see `AcquireRequest.on_wait`."""
        loop = asyncio.get_running_loop()
        self._notify, self._loop = notify, loop
        self._answered, self._ended = loop.create_future(), loop.create_future()

    def on_wait(self, token: str, begins: bool, **of: Any) -> Any:
        """Record that the wait for a permit begins or ends."""
        _resolve(self._answered)
        return None if self._notify is None else self._notify(token, begins, **of)

    def ended(self) -> None:
        """Record that the call has ended."""
        _resolve(self._answered)
        _resolve(self._ended)

    async def end(self, ask: AcquireRequest) -> bool:
        """Wait until this call has ended, but only as long as `ask` may wait. Return True if the
        call has ended. If `ask` may not wait, return False as soon as this call waits for a permit.

        Raise RuntimeError if this call runs on another event loop.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                f"{ask.keys.display!r}: another call of this thread or task acquires the RLock on "
                "another event loop, so this call can't wait for it"
            )
        wanted = self._ended if ask.wait else self._answered
        left = None if ask.give_up_at == math.inf else max(0.0, ask.give_up_at - clock())
        await asyncio.wait((wanted,), timeout=left)
        return self._ended.done()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class RLock(Lock):
    """A lock that the thread or task that holds it may take again, through any RLock of that name.

    All acquires share one lease. The lease is released after as many releases as acquires, or
    immediately by `lease.release()`. If the lease was lost, acquires raise LeaseLost until the
    caller has released as often as it acquired. The options are those of `Lock`, without
    `thread_local`::

        def transfer():
            with RLock("accounts"):
                audit()

        def audit():
            with RLock("accounts"):  # also when transfer() calls it
                ...
    """

    _lease = _ReentrantLease
    _leases = _Leases()
    #: The async calls that have not ended, by caller and name. A caller makes several calls at the
    #: same time if it calls `aacquire()` in `asyncio.gather()`, for example.
    _calls: ByCaller[dict[tuple[str, Any], _Call]] = ByCaller()

    def __init__(self, name: str, *more: NoReturn, **options: Unpack[SemaphoreOptions]) -> None:
        if options.get("thread_local") is False:
            raise ValueError("an RLock belongs to a thread or task: thread_local can't be False")
        super().__init__(name, *more, **options)

    def _take(
        self, blocking: bool | None = None, blocking_timeout: float | None = None, permits: int = 1
    ) -> Lease | Rejection:
        """Return the lease that this thread or task has, or else acquire one."""
        again = self._again(permits)
        return self._count(again or super()._take(blocking, blocking_timeout, permits))

    async def _atake(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        permits: int = 1,
        *,
        caller: Caller | None = None,
    ) -> Lease | Rejection:
        """Async version of `_take()`."""
        if again := self._again(permits, caller):
            return self._count(again)
        return await super()._atake(blocking, blocking_timeout, permits, caller=caller)

    async def _agot(
        self, settings: LeaseSettings, ask: AcquireRequest, caller: Caller | None = None
    ) -> Lease | Rejection:
        """Request the permit. If an earlier call of the same caller has requested it, first wait
        for the outcome of that call. If that call gets a lease, return its lease."""
        calls = self._calls.at(caller or this_caller(), dict)
        name = settings.keys.leases, settings.alias
        while earlier := calls.get(name):
            if not await earlier.end(ask):
                return self._settle(settings, Rejection(TIMEOUT if ask.wait else FULL), ask)
            if again := self._again(ask.permits, caller):
                return self._count(again)
        call = calls[name] = _Call(ask.on_wait)
        try:
            got = await super()._agot(settings, ask._replace(on_wait=call.on_wait), caller)
            return self._count(got)
        finally:
            del calls[name]
            call.ended()

    @staticmethod
    def _endless(lease: Lease, hint: str) -> None:
        if isinstance(lease, _ReentrantLease):
            raise RuntimeError(f"the wait for {lease.name!r} would never end: {hint}")
        warn_of_endless_wait(lease, hint)

    def _mine(self, caller: Caller | None = None, deferred: bool = False) -> _ReentrantLease | None:
        """Return the lease that a thread or task holds on the name, taken through this or another
        RLock, or None. `deferred`: True to accept a lease that has been released as often as
        acquired, and will be released at the end of the open transaction."""
        mine: list[Any] = self._leases.of_name(self, caller)
        return next((lease for lease in mine if deferred or lease.times), None)

    def _has_room(self, state: Status, permits: int, caller: Caller | None = None) -> bool:
        return self._mine(caller) is not None or super()._has_room(state, permits)

    def _again(self, permits: int, caller: Caller | None = None) -> Lease | None:
        lease = self._mine(caller, deferred=True) if permits == 1 else None
        if lease is not None:
            lease.check()
        return lease

    def _count(self, got: Lease | Rejection) -> Lease | Rejection:
        if isinstance(got, _ReentrantLease):
            self._leases.add(got)
            got.times.append(len(got.times))
        return got

    def _last(self, lease: Any) -> bool:
        if not lease.times or lease.times.pop() == 0:
            return True
        # Keep a reference to the lease. The block that ends may have had the only reference.
        self._held.add(lease)
        return False

    def _newest(self, caller: Caller | None = None, keep: bool = False) -> Lease:
        lease = self._mine(caller)
        if lease is None:
            text = f"{self.name!r}: this thread or task holds nothing"
            raise NotAcquired(text, name=self.name)
        if not keep and len(lease.times) == 1:
            self._held.discard(lease)  # the last release: no reference to the lease is needed
        return lease

    def _deferred(self, lease: Any) -> bool:
        lease.deferred = lease.deferred or super()._deferred(lease)
        return bool(lease.deferred)

    async def _adeferred(self, lease: Any) -> bool:
        lease.deferred = lease.deferred or await super()._adeferred(lease)
        return bool(lease.deferred)


class Readers(Semaphore):
    """The read side of a ReadWriteLock: many readers at the same time, but not beside a writer."""

    _kind, _public_name = "w", "ReadWriteLock"
    _leases = _Leases()
    #: The name of this side, the permits of a lease, and the error for a holder of the other side.
    _word, _permits = "read", 1
    _conflict = "has a write lease; downgrade() turns the write lease into a read lease"

    def __init__(self, name: str, *more: NoReturn, **options: Unpack[SemaphoreOptions]) -> None:
        if "limit" in options:
            raise wrong_call(self, "", more, options)
        super().__init__(name, MOST_PERMITS, *more, **options)

    def __repr__(self) -> str:
        return f"ReadWriteLock({self.name!r}).{self._word}"

    def _limit(self, named: dict[str, Any], permits: int) -> tuple[int, int]:
        if permits != 1:
            raise ValueError("the argument permits of a read/write lock must be 1")
        return MOST_PERMITS, self._permits

    def _settle(
        self,
        settings: LeaseSettings,
        got: Grant | Rejection,
        ask: AcquireRequest,
        caller: Caller | None = None,
    ) -> Lease | Rejection:
        lease = super()._settle(settings, got, ask, caller)
        if isinstance(lease, Lease):
            self._leases.add(lease)
        return lease

    def _take(
        self, blocking: bool | None = None, blocking_timeout: float | None = None, permits: int = 1
    ) -> Lease | Rejection:
        refused = self._refused(blocking, blocking_timeout)
        return refused or super()._take(blocking, blocking_timeout, permits)

    async def _atake(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        permits: int = 1,
        *,
        caller: Caller | None = None,
    ) -> Lease | Rejection:
        if refused := self._refused(blocking, blocking_timeout, caller):
            return refused
        return await super()._atake(blocking, blocking_timeout, permits, caller=caller)

    def _refused(
        self, blocking: bool | None, seconds: float | None, caller: Caller | None = None
    ) -> Rejection | None:
        """Return None unless the caller holds the other side of this lock. If the caller would not
        wait, return a Rejection. Raise UpgradeRefused if the caller would wait, for itself."""
        mine = self._leases.of_name(self, caller)
        if not any(lease.held and lease.permits != self._permits for lease in mine):
            return None
        settings, ask = self._settings_and_ask(blocking, seconds, 1)
        if not ask.wait:
            return Rejection(FULL)
        if release_if_over(settings):
            return None
        raise UpgradeRefused(f"{self.name!r}: this thread or task {self._conflict}")


class Writers(Readers):
    """The write side of a ReadWriteLock: one writer at a time, and no readers beside the writer."""

    _word, _permits = "write", 0
    _conflict = "has a read lease, and must release it before it can write"


class ReadWriteLock:
    """A lock with many readers or one writer at a time, served in order of arrival.

    `read` and `write` each have the methods of a `Semaphore`. A writer becomes a reader with
    `downgrade()`. A reader can't become a writer: if a caller holds one side, acquiring the other
    raises UpgradeRefused, or returns None if the caller does not wait. The lock is not reentrant: a
    second read may wait behind a writer that waits for the first read. The options are those of
    `Lock`::

        prices = ReadWriteLock("prices")

        with prices.read:
            ...
        with prices.write:
            ...
    """

    def __init__(self, name: str, *more: NoReturn, **options: Unpack[SemaphoreOptions]) -> None:
        self.name = name
        self.read: Semaphore = Readers(name, *more, **options)
        self.write: Semaphore = Writers(name, *more, **options)

    def __repr__(self) -> str:
        return f"ReadWriteLock({self.name!r})"

    def downgrade(self) -> Lease:
        """Turn the newest write lease of this thread or task into a read lease, and return it.

        No writer can get in between. Raise NotAcquired if this thread or task has no write lease,
        and LeaseLost if the lease was lost.
        """
        lease = self.write._newest(keep=True)
        lease.downgrade()
        return self._move(lease)

    @by_caller
    async def adowngrade(self, caller: Caller) -> Lease:
        """Async version of `downgrade()`."""
        lease = self.write._newest(caller, keep=True)
        await lease.adowngrade()
        return self._move(lease)

    def _move(self, lease: Lease) -> Lease:
        self.write._held.discard(lease)
        self.read._held.add(lease)
        return lease
