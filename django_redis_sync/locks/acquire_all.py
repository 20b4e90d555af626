"""Several names at once, all or nothing."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any

from .. import conf
from ..engine.wire import clock
from ..exceptions import NotAcquired
from ..protocol.plans import Refusal
from .callers import Block, Leaving, PerCaller
from .lease import Lease
from .semaphore import Semaphore


class acquire_all:
    """Several names at once, all or nothing, in sorted order, so that no two callers deadlock.

    `semaphores`: Semaphores or Locks, or (semaphore, permits); no name twice. Use as `with` or
    `async with` (NotAcquired when it could not), or acquire and release. The leases come in the
    order given. `blocking_timeout`: seconds for all together. LeaseLost when a lease was lost
    while the others were waited for. After any error all that was taken is given back.
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
        if blocking_timeout is not None:
            blocking_timeout = conf.not_negative("blocking_timeout", blocking_timeout)
        self._given, self._blocking, self._seconds = given, blocking, blocking_timeout
        self._held = PerCaller()
        self._places()

    def acquire(self) -> tuple[Lease, ...] | None:
        """The leases, or None when any of them did not come in time."""
        block = Block.by_call()
        try:
            return self._take(block)
        except NotAcquired:
            return None
        except BaseException:
            self._held.drop(block)
            raise

    async def aacquire(self) -> tuple[Lease, ...] | None:
        """As acquire."""
        block = Block.by_call()
        try:
            return await self._atake(block)
        except NotAcquired:
            return None
        except BaseException:
            self._held.drop(block)
            raise

    def release(self) -> None:
        """Give back the leases that this thread or task took last. LeaseLost when any is over."""
        self._held.end(Block.by_call()).close()

    async def arelease(self) -> None:
        """As release."""
        await self._held.end(Block.by_call()).aclose()

    def __enter__(self) -> tuple[Lease, ...]:
        block = self._held.begin(self)
        try:
            return self._take(block)
        except BaseException:
            self._held.drop(block)
            raise

    def __aenter__(self) -> Coroutine[Any, Any, tuple[Lease, ...]]:
        return self._atake(self._held.begin(self))

    __exit__ = Leaving("_leave")
    __aexit__ = Leaving("_aleave")

    def _take(self, block: Block) -> tuple[Lease, ...]:
        order, deadline, before = self._order(), self._deadline(), self._depths()
        leases: dict[int, Lease] = {}
        try:
            with ExitStack() as undo:
                for i in order:
                    semaphore, permits = self._given[i]
                    got = semaphore.take(self._blocking, self._left(deadline), permits)
                    leases[i] = self._check(semaphore, got)
                    undo.push(partial(semaphore.undo, leases[i]))
                found, taken = self._whole(leases), ExitStack()
                for i in order:
                    taken.push(partial(self._given[i][0].leave, leases[i]))
                undo.pop_all()
            self._held.hold(block, taken)
            return found
        except BaseException:
            self._unwind(block, before, leases)
            raise

    async def _atake(self, block: Block) -> tuple[Lease, ...]:
        order, deadline, before = self._order(), self._deadline(), self._depths()
        leases: dict[int, Lease] = {}
        try:
            async with AsyncExitStack() as undo:
                for i in order:
                    semaphore, permits = self._given[i]
                    got = await semaphore.atake(self._blocking, self._left(deadline), permits)
                    leases[i] = self._check(semaphore, got)
                    undo.push_async_exit(partial(semaphore.aundo, leases[i]))
                found, taken = self._whole(leases), AsyncExitStack()
                for i in order:
                    taken.push_async_exit(partial(self._given[i][0].aleave, leases[i]))
                undo.pop_all()
            self._held.hold(block, taken)
            return found
        except BaseException:
            self._unwind(block, before, leases)
            raise

    def _leave(self, block: Block, *error: Any) -> None:
        self._held.end(block).__exit__(*error)

    async def _aleave(self, block: Block, *error: Any) -> None:
        await self._held.end(block).__aexit__(*error)

    def _depths(self) -> list[Any]:
        return [semaphore.depths() for semaphore, _ in self._given]

    def _unwind(self, block: Block, before: list[Any], leases: dict[int, Lease]) -> None:
        """Give back what an interrupted caller took; nothing is left to do after an undo."""
        self._held.drop(block)
        for i, (semaphore, _) in enumerate(self._given):
            semaphore.unwind(before[i], leases.get(i))

    def _places(self) -> list[tuple[str, str, str]]:
        places = [(s.alias(), s.name, s.key or "") for s, _ in self._given]
        if len(set(places)) < len(places):
            raise ValueError("acquire_all takes each name once: ask for more permits instead")
        return places

    def _order(self) -> list[int]:
        """In which order to take them. Wrong permits raise here, before any is taken."""
        places = self._places()
        for semaphore, permits in self._given:
            semaphore.check_permits(permits)
        return sorted(range(len(places)), key=lambda i: places[i])

    def _deadline(self) -> float | None:
        return None if self._seconds is None else clock() + self._seconds

    @staticmethod
    def _left(deadline: float | None) -> float | None:
        return None if deadline is None else max(0.0, deadline - clock())

    @staticmethod
    def _check(semaphore: Semaphore, got: Lease | Refusal) -> Lease:
        if isinstance(got, Refusal):
            raise semaphore.error_of(got)
        return got

    @staticmethod
    def _whole(leases: dict[int, Lease]) -> tuple[Lease, ...]:
        for lease in leases.values():
            lease.check()
        return tuple(leases[i] for i in range(len(leases)))
