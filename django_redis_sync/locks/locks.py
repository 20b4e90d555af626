"""Three kinds of locks: `Lock` with one holder, the reentrant `RLock`, and `ReadWriteLock`."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NoReturn

from django.core.exceptions import ImproperlyConfigured

from ..exceptions import NotAcquired, UpgradeRefused
from ..protocol.plans import AcquireRequest, Grant
from ..protocol.reasons import Rejection
from ..protocol.scripts import MOST_PERMITS
from .callers import ByCaller, this_caller
from .lease import Lease
from .lease_state import LeaseSettings
from .semaphore import Semaphore

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..defaults import SemaphoreOptions


class _Leases(ByCaller[weakref.WeakSet[Lease]]):
    """The leases that each thread or task has taken, through any object.

    The references are weak. So if no code can release a lease any more, the lease is not renewed.
    """

    def add(self, lease: Lease) -> None:
        self.at(lease._caller, weakref.WeakSet).add(lease)

    def of_name(self, semaphore: Semaphore) -> list[Lease]:
        """Return the leases of the semaphore's name that the current thread or task has taken and
        that were neither released nor detached."""
        keys, alias = semaphore._keys(), semaphore.alias()
        mine = list(self.get(this_caller(), ()))
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
        if options.get("fair") and isinstance(options.get("using"), (list, tuple)):
            raise ImproperlyConfigured(
                "A lock on several servers can't be fair: each server would have its own queue."
            )
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

    def __init__(self, name: str, *more: NoReturn, **options: Unpack[SemaphoreOptions]) -> None:
        if not options.get("thread_local", True):
            raise ValueError("an RLock belongs to a thread or task: thread_local can't be False")
        super().__init__(name, *more, **options)

    def _take(
        self, blocking: bool | None = None, blocking_timeout: float | None = None, permits: int = 1
    ) -> Lease | Rejection:
        """Return the lease that this thread or task has, or else acquire one."""
        again = self._again(permits)
        return self._count(again or super()._take(blocking, blocking_timeout, permits))

    async def _atake(
        self, blocking: bool | None = None, blocking_timeout: float | None = None, permits: int = 1
    ) -> Lease | Rejection:
        """Async version of `_take()`."""
        again = self._again(permits)
        return self._count(again or await super()._atake(blocking, blocking_timeout, permits))

    def _mine(self, deferred: bool = False) -> _ReentrantLease | None:
        """Return the lease that this thread or task holds on the name, taken through this or
        another RLock, or None. `deferred`: True to accept a lease that has been released as
        often as acquired, and will be released at the end of the open transaction."""
        mine: list[Any] = self._leases.of_name(self)
        return next((lease for lease in mine if deferred or lease.times), None)

    def _again(self, permits: int) -> Lease | None:
        lease = self._mine(deferred=True) if permits == 1 else None
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

    def _newest(self, keep: bool = False) -> Lease:
        lease = self._mine()
        if lease is None:
            text = f"{self.name!r}: this thread or task holds nothing"
            raise NotAcquired(text, name=self.name)
        if not keep and len(lease.times) == 1:
            self._held.discard(lease)  # the last release: no reference to the lease is needed
        return lease

    def _deferred(self, lease: Any) -> bool:
        lease.deferred = lease.deferred or super()._deferred(lease)
        return bool(lease.deferred)


class _Readers(Semaphore):
    """The read side of a ReadWriteLock: many readers at the same time, but not beside a writer."""

    _kind, _public_name = "w", "ReadWriteLock"
    _leases = _Leases()
    #: The name of this side, the permits of a lease, and the error for a holder of the other side.
    _word, _permits = "read", 1
    _conflict = "has a write lease; downgrade() turns the write lease into a read lease"

    def __init__(self, name: str, *more: NoReturn, **options: Unpack[SemaphoreOptions]) -> None:
        super().__init__(name, MOST_PERMITS, *more, **options)

    def __repr__(self) -> str:
        return f"ReadWriteLock({self.name!r}).{self._word}"

    def _limit(self, named: dict[str, Any], permits: int) -> tuple[int, int]:
        if permits != 1:
            raise ValueError("the argument permits of a read/write lock must be 1")
        return MOST_PERMITS, self._permits

    def _settle(self, settings: LeaseSettings, got: Grant | Rejection) -> Lease | Rejection:
        lease = super()._settle(settings, got)
        if isinstance(lease, Lease):
            self._leases.add(lease)
        return lease

    def _settings_and_ask(self, *arguments: Any) -> tuple[LeaseSettings, AcquireRequest]:
        mine = self._leases.of_name(self)
        if any(lease.held and lease.permits != self._permits for lease in mine):
            raise UpgradeRefused(f"{self.name!r}: this thread or task {self._conflict}")
        return super()._settings_and_ask(*arguments)


class _Writers(_Readers):
    """The write side of a ReadWriteLock: one writer at a time, and no readers beside the writer."""

    _word, _permits = "write", 0
    _conflict = "has a read lease, and must release it before it can write"


class ReadWriteLock:
    """A lock with many readers or one writer at a time, served in order of arrival.

    `read` and `write` each have the methods of a `Semaphore`. A writer becomes a reader with
    `downgrade()`. A reader can't become a writer: if a caller holds one side, acquiring the other
    raises UpgradeRefused. The lock is not reentrant: a second read may wait behind a writer that
    waits for the first read. The options are those of `Lock`::

        prices = ReadWriteLock("prices")

        with prices.read:
            ...
        with prices.write:
            ...
    """

    def __init__(self, name: str, *more: NoReturn, **options: Unpack[SemaphoreOptions]) -> None:
        self.name = name
        self.read: Semaphore = _Readers(name, *more, **options)
        self.write: Semaphore = _Writers(name, *more, **options)

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

    async def adowngrade(self) -> Lease:
        """Async version of `downgrade()`."""
        lease = self.write._newest(keep=True)
        await lease.adowngrade()
        return self._move(lease)

    def _move(self, lease: Lease) -> Lease:
        self.write._held.discard(lease)
        self.read._held.add(lease)
        return lease
