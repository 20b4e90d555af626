"""More faces of the one primitive: reentrant, read/write, several at once."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from . import conf
from .engine.wire import clock
from .exceptions import NotAcquired, UpgradeRefused
from .lease import Lease
from .primitives import Lock, PerCaller, Semaphore
from .protocol.plans import Refusal
from .protocol.scripts import MOST_PERMITS


class RLock(Lock):
    """A lock that the thread or task that has it may take again, through any object of its name.

    One lease, counted here: given back when as many releases came as acquires. Taking it again
    after the lease was lost raises LeaseLost rather than start a new one. Arguments as Lock's.
    """

    _owners: weakref.WeakValueDictionary[Any, PerCaller] = weakref.WeakValueDictionary()

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        alias = self._alias()
        owner = (alias, conf.current().prefix(alias), self.name, self.key)
        self._held = self._owners.setdefault(owner, self._held)

    def take(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        permits: int = 1,
    ) -> Lease | Refusal:
        """As Semaphore's; the lease of this thread or task again, when there is one."""
        return self._again() or super().take(blocking, blocking_timeout, permits)

    async def atake(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        permits: int = 1,
    ) -> Lease | Refusal:
        """As take."""
        return self._again() or await super().atake(blocking, blocking_timeout, permits)

    def _again(self) -> Lease | None:
        lease = self._held.newest()
        if lease is not None:
            lease.check()
        return lease

    def release(self) -> None:
        """Undo one acquire; the last one gives the lease back. Errors as Semaphore's."""
        lease = self._newest()
        if not self._held.has(lease):
            self._held.add(lease)
            super().release()

    async def arelease(self) -> None:
        """As release."""
        lease = self._newest()
        if not self._held.has(lease):
            self._held.add(lease)
            await super().arelease()

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        lease = self._leave()
        if not self._held.has(lease):
            self._exit(lease, kind, error, trace)

    async def __aexit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        lease = self._leave()
        if not self._held.has(lease):
            await self._aexit(lease, kind, error, trace)


class _Side(Semaphore):
    """The readers' or the writers' side of a ReadWriteLock."""

    _kind = "w"
    _permits = 1
    _other: weakref.ref[_Side] | None = None

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, MOST_PERMITS, **options)

    def _limit(self, named: dict[str, Any], permits: int) -> tuple[int, int]:
        if permits != 1:
            raise ValueError("a read/write lock has no permits to count")
        return MOST_PERMITS, self._permits


class _Readers(_Side):
    """Many readers at a time, none while there is a writer."""


class _Writers(_Side):
    """One writer, and no readers."""

    _permits = 0

    def _before(self) -> None:
        readers = self._other() if self._other is not None else None
        if readers is not None and readers._held.newest() is not None:
            raise UpgradeRefused(
                f"{self.name!r}: this thread or task reads; it must release before it can write"
            )


class ReadWriteLock:
    """Many readers or one writer, first come, first served, so that neither starves.

    `read` and `write` each have a semaphore's methods. A reader can't become the writer
    (UpgradeRefused); a writer can become a reader with `downgrade`. Arguments as Lock's.
    """

    def __init__(self, name: str, **options: Any) -> None:
        self.name = name
        self.read: Semaphore = _Readers(name, **options)
        self.write: Semaphore = _Writers(name, **options)
        self.write._other = weakref.ref(self.read)

    def __repr__(self) -> str:
        return f"ReadWriteLock({self.name!r})"

    def downgrade(self) -> Lease:
        """The newest write lease of this thread or task becomes a read lease, without a gap.

        NotAcquired when it does not write, LeaseLost when the lease is over.
        """
        lease = self.write._newest(keep=True)
        lease.downgrade()
        return self._move(lease)

    async def adowngrade(self) -> Lease:
        """As downgrade."""
        lease = self.write._newest(keep=True)
        await lease.adowngrade()
        return self._move(lease)

    def _move(self, lease: Lease) -> Lease:
        self.write._held.discard(lease)
        return self.read._keep(lease)


class acquire_all:
    """Several names at once, all or nothing, in one order, so that no two callers deadlock.

    `semaphores`: Semaphores or Locks, or (semaphore, permits); no name twice. Use as `with` or
    `async with` (NotAcquired when it could not), or acquire and release. The leases come in the
    order given. `blocking_timeout`: seconds for all together.
    """

    def __init__(
        self,
        semaphores: Iterable[Semaphore | tuple[Semaphore, int]],
        *,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
    ) -> None:
        given = [item if isinstance(item, tuple) else (item, 1) for item in semaphores]
        if not given or not all(isinstance(semaphore, Semaphore) for semaphore, _ in given):
            raise TypeError("acquire_all takes semaphores and locks, at least one")
        places = [(s._alias(), s.name, s.key or "") for s, _ in given]
        if len(set(places)) < len(places):
            raise ValueError("acquire_all takes each name once: ask for more permits instead")
        if blocking_timeout is not None:
            blocking_timeout = conf.not_negative("blocking_timeout", blocking_timeout)
        self._given, self._blocking, self._seconds = given, blocking, blocking_timeout
        self._order = sorted(range(len(given)), key=lambda i: places[i])
        self._held = PerCaller()

    def acquire(self) -> tuple[Lease, ...] | None:
        """The leases, or None when one of them did not come in time."""
        got = self._take()
        return None if isinstance(got, NotAcquired) else got

    async def aacquire(self) -> tuple[Lease, ...] | None:
        """As acquire."""
        got = await self._atake()
        return None if isinstance(got, NotAcquired) else got

    def release(self) -> None:
        """Give back what this thread or task took last. LeaseLost when one of them is over."""
        self._pop().close()

    async def arelease(self) -> None:
        """As release."""
        await self._pop().aclose()

    def __enter__(self) -> tuple[Lease, ...]:
        return _or_raise(self._take())

    def __exit__(self, *error: Any) -> bool | None:
        done: bool | None = self._pop().__exit__(*error)
        return done

    async def __aenter__(self) -> tuple[Lease, ...]:
        return _or_raise(await self._atake())

    async def __aexit__(self, *error: Any) -> bool | None:
        done: bool | None = await self._pop().__aexit__(*error)
        return done

    def _take(self) -> tuple[Lease, ...] | NotAcquired:
        leases: dict[int, Lease] = {}
        deadline = self._deadline()
        with ExitStack() as stack:
            for i in self._order:
                semaphore, permits = self._given[i]
                got = semaphore.take(self._blocking, self._left(deadline), permits)
                if isinstance(got, Refusal):
                    return semaphore._refused(got)
                leases[i] = stack.enter_context(got)
            return self._keep(leases, stack.pop_all())

    async def _atake(self) -> tuple[Lease, ...] | NotAcquired:
        leases: dict[int, Lease] = {}
        deadline = self._deadline()
        async with AsyncExitStack() as stack:
            for i in self._order:
                semaphore, permits = self._given[i]
                got = await semaphore.atake(self._blocking, self._left(deadline), permits)
                if isinstance(got, Refusal):
                    return semaphore._refused(got)
                leases[i] = await stack.enter_async_context(got)
            return self._keep(leases, stack.pop_all())

    def _deadline(self) -> float | None:
        return None if self._seconds is None else clock() + self._seconds

    @staticmethod
    def _left(deadline: float | None) -> float | None:
        return None if deadline is None else max(0.0, deadline - clock())

    def _keep(self, leases: dict[int, Lease], stack: Any) -> tuple[Lease, ...]:
        self._held.entered().append(stack)
        return tuple(leases[i] for i in range(len(leases)))

    def _pop(self) -> Any:
        stacks = self._held.entered()
        if not stacks:
            raise NotAcquired("this thread or task holds nothing through this object")
        return stacks.pop()


def _or_raise(got: tuple[Lease, ...] | NotAcquired) -> tuple[Lease, ...]:
    if isinstance(got, NotAcquired):
        raise got
    return got
