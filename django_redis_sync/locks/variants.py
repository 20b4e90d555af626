"""More faces of the same primitive: reentrant, read/write."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from .. import conf
from ..exceptions import NotAcquired, UpgradeRefused
from ..protocol.keys import keys_of
from ..protocol.plans import Ask, Grant, Refusal
from ..protocol.scripts import MOST_PERMITS
from .callers import ByCaller
from .lease import Lease
from .lease_state import Terms
from .semaphore import Lock, Semaphore

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..defaults import SemaphoreOptions

#: By lease, an entry for each time that it was taken: 0, 1, 2 ...
Taken = weakref.WeakKeyDictionary[Lease, list[int]]


class _Callers(ByCaller[Taken]):
    """How often each thread or task took a lease, through whichever object. Leases are held weakly:
    a lease that no code can release any more is not renewed."""

    def __init__(self) -> None:
        super().__init__(weakref.WeakKeyDictionary)

    def of(self, semaphore: Semaphore) -> list[Lease]:
        """Those of the semaphore's name that this process neither released nor detached."""
        config, alias = conf.current(), semaphore.alias()
        keys = keys_of(config.prefix(alias), semaphore.name, semaphore.key)
        return [
            lease for lease in list(self.mine()) if not lease.ended and lease.is_of(keys, alias)
        ]


class RLock(Lock):
    """A lock that the thread or task that has it may take again, through any object of its name.

    A single lease, counted here: given back when as many releases came as acquires; the lease's own
    `release` ends it at once. Taking it again after it was lost raises LeaseLost rather than start
    a new lease, until it was released as often as it was taken. Arguments as Lock's, but for
    thread_local.
    """

    # Invariant: the entry of a lease that goes with the open transaction (release_on_commit) is
    # empty until it is taken again.
    _taken = _Callers()
    #: The thread or task of a lease: a block may end in another thread or task.
    _owners: weakref.WeakKeyDictionary[Lease, Taken] = weakref.WeakKeyDictionary()

    def __init__(self, name: str, **options: Unpack[SemaphoreOptions]) -> None:
        if not options.get("thread_local", True):
            raise ValueError("an RLock belongs to a thread or task: thread_local can't be False")
        super().__init__(name, **options)

    def take(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        permits: int = 1,
    ) -> Lease | Refusal:
        """As Semaphore's; the lease of this thread or task again, when there is one."""
        again = self._again(permits)
        return self._count(again or super().take(blocking, blocking_timeout, permits))

    async def atake(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        permits: int = 1,
    ) -> Lease | Refusal:
        """As take."""
        again = self._again(permits)
        return self._count(again or await super().atake(blocking, blocking_timeout, permits))

    def release(self) -> None:
        """Undo an acquire; the last release gives the lease back. Errors as Semaphore's."""
        lease = self.newest()
        if self._last(lease) and not self._deferred(lease):
            lease.release()

    async def arelease(self) -> None:
        """As release."""
        lease = self.newest()
        if self._last(lease):
            await lease.arelease()

    def owned(self) -> bool:
        """Whether the server says that this thread or task has it, through whichever object."""
        lease = self._mine()
        return lease is not None and lease.owned()

    async def aowned(self) -> bool:
        """As owned."""
        lease = self._mine()
        return lease is not None and await lease.aowned()

    def _mine(self, deferred: bool = False) -> Lease | None:
        taken, mine = self._taken.mine(), self._taken.of(self)
        return next((lease for lease in mine if deferred or taken[lease]), None)

    def _again(self, permits: int) -> Lease | None:
        lease = self._mine(deferred=True) if permits == 1 else None
        if lease is not None:
            lease.check()
        return lease

    def _count(self, got: Lease | Refusal) -> Lease | Refusal:
        if isinstance(got, Lease):
            self._owners[got] = mine = self._taken.mine()
            times = mine.setdefault(got, [])
            times.append(len(times))
        return got

    def depths(self) -> dict[Lease, int]:
        """How often this thread or task has taken what."""
        return {lease: len(times) for lease, times in list(self._taken.mine().items())}

    def unwind(self, before: dict[Lease, int], got: Any) -> None:
        """As Semaphore's; what was taken before stays so."""
        for lease, times in list(self._taken.mine().items()):
            if lease in before:
                del times[before[lease] :]
        if isinstance(got, Lease) and got not in before:
            self._taken.mine().pop(got, None)
            super().unwind(None, got)

    def _last(self, lease: Lease) -> bool:
        """Count an acquire back; whether it was the last."""
        times = self._owners[lease].get(lease)
        return not times or times.pop() == 0

    def newest(self, keep: bool = False) -> Lease:
        lease = self._mine()
        if lease is None:
            text = f"{self.name!r}: this thread or task holds nothing"
            raise NotAcquired(text, name=self.name)
        if not keep and len(self._taken.mine()[lease]) == 1:
            self._held.discard(lease)  # until then this keeps the lease from being dropped
        return lease

    def _deferred(self, lease: Lease) -> bool:
        later = _Later(lease, self._owners[lease])
        if lease not in _LATER and not super()._deferred(later):  # type: ignore[arg-type]
            return False
        _LATER.add(lease)
        return True

    def undo(self, lease: Lease, *error: Any) -> None:
        """As Semaphore's."""
        if self._last(lease):
            super().undo(lease, *error)

    async def aundo(self, lease: Lease, *error: Any) -> None:
        """As undo."""
        if self._last(lease):
            await super().aundo(lease, *error)

    def leave(self, lease: Lease, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        if self._last(lease):
            super().leave(lease, kind, error, trace)
        else:
            self.keep(lease)  # the block that ended may have been all that referred to it

    async def aleave(
        self, lease: Lease, kind: type[BaseException] | None, error: Any, trace: Any
    ) -> None:
        if self._last(lease):
            await super().aleave(lease, kind, error, trace)
        else:
            self.keep(lease)


#: Leases that an open transaction gives back when it ends.
_LATER: weakref.WeakSet[Lease] = weakref.WeakSet()


class _Later:
    """Releases a lease when a transaction ends, unless it was taken again and is in use."""

    def __init__(self, lease: Lease, taken: Taken) -> None:
        self.name, self._lease, self._taken = lease.name, lease, taken
        self.is_of = lease.is_of

    @property
    def held(self) -> bool:
        return self._lease.held

    def release(self) -> None:
        _LATER.discard(self._lease)
        if not self._taken.get(self._lease):
            self._lease.release()


class _Side(Semaphore):
    """The readers' or the writers' side of a ReadWriteLock."""

    _kind = "w"
    _permits: int
    _word: str
    _taken = _Callers()

    def __init__(self, name: str, **options: Unpack[SemaphoreOptions]) -> None:
        super().__init__(name, MOST_PERMITS, **options)

    def __repr__(self) -> str:
        return f"ReadWriteLock({self.name!r}).{self._word}"

    def _limit(self, named: dict[str, Any], permits: int) -> tuple[int, int]:
        if permits != 1:
            raise ValueError("a read/write lock has no permits to count")
        return MOST_PERMITS, self._permits

    def _settle(self, terms: Terms, ask: Ask, got: Grant | Refusal) -> Lease | Refusal:
        lease = super()._settle(terms, ask, got)
        if isinstance(lease, Lease):
            self._taken.mine()[lease] = [0]
        return lease

    def _has(self, permits: int) -> bool:
        """Whether this thread or task reads (1) or writes (0), through whichever object."""
        return any(lease.held and lease.permits == permits for lease in self._taken.of(self))


class _Readers(_Side):
    """Many readers at a time, none while there is a writer."""

    _permits, _word = 1, "read"

    def _before(self) -> None:
        if self._has(_Writers._permits):
            raise UpgradeRefused(
                f"{self.name!r}: this thread or task writes; downgrade() makes it a reader"
            )


class _Writers(_Side):
    """A single writer, and no readers."""

    _permits, _word = 0, "write"

    def _before(self) -> None:
        if self._has(_Readers._permits):
            raise UpgradeRefused(
                f"{self.name!r}: this thread or task reads; it must release before it can write"
            )


class ReadWriteLock:
    """Many readers or a single writer, first come, first served, so that neither starves.

    `read` and `write` each have a semaphore's methods. A reader can't become the writer
    (UpgradeRefused, also for a writer that asks to read); a writer becomes a reader with
    `downgrade`. Not reentrant: a second read may wait behind a writer that waits for the first.
    Arguments as Lock's.
    """

    def __init__(self, name: str, **options: Unpack[SemaphoreOptions]) -> None:
        self.name = name
        self.read: Semaphore = _Readers(name, **options)
        self.write: Semaphore = _Writers(name, **options)

    def __repr__(self) -> str:
        return f"ReadWriteLock({self.name!r})"

    def downgrade(self) -> Lease:
        """The newest write lease of this thread or task becomes a read lease, without a gap.

        NotAcquired when it does not write, LeaseLost when the lease is over.
        """
        lease = self.write.newest(keep=True)
        lease.downgrade()
        return self._move(lease)

    async def adowngrade(self) -> Lease:
        """As downgrade."""
        lease = self.write.newest(keep=True)
        await lease.adowngrade()
        return self._move(lease)

    def _move(self, lease: Lease) -> Lease:
        self.write.forget(lease)
        return self.read.keep(lease)
