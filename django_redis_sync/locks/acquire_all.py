"""`acquire_all`: acquire several names, or none of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, ExitStack, suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NoReturn

from ..engine.wire import clock
from ..exceptions import NotAcquired, SyncError
from ..protocol.reasons import Rejection
from .arguments import checked
from .callers import Caller, Holdings, by_caller, this_caller
from .lease import Lease
from .semaphore import Semaphore
from .state_of_name import opens_in

if TYPE_CHECKING:
    from ..operators.facts import Status


class acquire_all:
    """Acquire all of several semaphores and locks, or none of them.

    They are acquired in sorted order, so that two callers can't deadlock. Use `acquire_all` in
    `with` or `async with`, or with `acquire()` and `release()`::

        with acquire_all([Lock("a"), (Semaphore("exports", 5), 2)]) as (a, exports):
            ...

    - `semaphores`: semaphores and locks, each with a different name. To acquire several permits of
      a semaphore, give a pair of the semaphore and the number of permits. An empty list needs no
      permit: the block runs, and `acquire()` returns an empty tuple.
    - `blocking`: False to not wait. None: use the option of each object.
    - `blocking_timeout`: seconds to wait for all objects together. None: use the blocking_timeout
      of each object.

    The leases have the order of `semaphores`. A block raises NotAcquired if it can't acquire all
    semaphores. `lock_names` of this error are all names that are in the way. A block raises
    LeaseLost if one lease is lost during the wait for another. After an error, everything that was
    acquired is released. Raise TypeError or ValueError if an argument is wrong.
    """

    def __init__(
        self,
        semaphores: Iterable[Semaphore | tuple[Semaphore, int]],
        *more: NoReturn,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
    ) -> None:
        if more or isinstance(semaphores, Semaphore):
            wanted = ", ".join(map(repr, (semaphores, *more)))
            raise TypeError(f"acquire_all takes a list: acquire_all([{wanted}])")
        items = semaphores if _is_list(semaphores) else (semaphores,)
        given = [item if isinstance(item, tuple) else (item, 1) for item in items]
        if not all(len(i) == 2 and isinstance(i[0], Semaphore) for i in given):
            raise TypeError(
                "acquire_all takes a list of semaphores and locks, or of pairs "
                f"(semaphore, permits), not {semaphores!r}. Of a ReadWriteLock, give its read or "
                "its write side"
            )
        if blocking is not None:
            checked("blocking", blocking)
        self._given, self._blocking = given, blocking
        self._seconds = checked("blocking_timeout", blocking_timeout)
        self._held = Holdings()
        self._order()

    def __deepcopy__(self, memo: Any = None) -> acquire_all:
        """Return this object, because a copy could not release its leases."""
        return self

    __copy__ = __deepcopy__

    def acquire(self) -> tuple[Lease, ...] | None:
        """Return the leases in the order of `semaphores`, or None if not all could be acquired."""
        return self._hold(self._held.add, or_none=True)

    @by_caller
    async def aacquire(self, caller: Caller) -> tuple[Lease, ...] | None:
        """Async version of `acquire()`."""
        return await self._ahold(caller, self._held.add, or_none=True)

    def release(self) -> None:
        """Release all leases of the newest `acquire()` or `with` block of this thread or task.

        Raise NotAcquired if there are none, and LeaseLost if any of them was lost.
        """
        self._held.take().leave(None)

    @by_caller
    async def arelease(self, caller: Caller) -> None:
        """Async version of `release()`."""
        await self._held.take(caller).aleave(None)

    def __enter__(self) -> tuple[Lease, ...]:
        return self._hold(self._held.enter)  # type: ignore[return-value]

    @by_caller
    async def __aenter__(self, caller: Caller) -> tuple[Lease, ...]:
        return await self._ahold(caller, self._held.enter)  # type: ignore[return-value]

    def __exit__(self, *error: Any) -> None:
        if (group := self._held.leave()) is not None:
            group.leave(*error)

    @by_caller
    async def __aexit__(self, caller: Caller, *error: Any) -> None:
        if (group := self._held.leave(caller)) is not None:
            await group.aleave(*error)

    # Inside

    # `_hold` handles `or_none`, so that `acquire` needs no `try`. On Python 3.10, a signal handler
    # could interrupt a `try` of `acquire` after `_hold` has registered the leases.
    def _hold(
        self, register: Callable[[_Group], None], or_none: bool = False
    ) -> tuple[Lease, ...] | None:
        """Acquire all semaphores, call `register` with the group of leases, and return the leases.
        After any exception, release what was acquired. `or_none`: return None instead of raising
        NotAcquired."""
        group, left = _Group(), self._time_left()
        try:
            for i in self._order():
                semaphore, permits = self._given[i]
                group.add(i, semaphore, semaphore._take(self._blocking, left(), permits))
            group.check()
            register(group)
            return group.leases
        except BaseException as error:
            self._held.undo(group)
            group.leave(type(error), undo=True)
            if not (or_none and isinstance(error, NotAcquired)):
                if isinstance(error, NotAcquired):
                    self._name_others(error, group, self._states(group))
                raise
        return None

    async def _ahold(
        self, caller: Caller, register: Callable[[_Group], None], or_none: bool = False
    ) -> tuple[Lease, ...] | None:
        """Async version of `_hold()`."""
        group, left = _Group(caller), self._time_left()
        try:
            for i in self._order():
                semaphore, permits = self._given[i]
                got = await semaphore._atake(self._blocking, left(), permits, caller=caller)
                group.add(i, semaphore, got)
            group.check()
            register(group)
            return group.leases
        except BaseException as error:
            self._held.undo(group)
            await group.aleave(type(error), undo=True)
            if not (or_none and isinstance(error, NotAcquired)):
                if isinstance(error, NotAcquired):
                    self._name_others(error, group, await self._astates(group))
                raise
        return None

    # The semaphores after the one that failed were not requested. To name all that are in the way,
    # read their status. To request their permits would use up rates, and could reject others.

    def _untried(self, group: _Group) -> list[tuple[Semaphore, int]]:
        """Return the semaphores after the one that `group` failed to acquire, with the permits."""
        return [self._given[i] for i in self._order()[len(group.taken) + 1 :]]

    def _states(self, group: _Group) -> list[Status]:
        """Return the status of each semaphore that was not tried; [] if Redis can't be reached."""
        with suppress(SyncError):
            return [semaphore.status() for semaphore, _ in self._untried(group)]
        return []

    async def _astates(self, group: _Group) -> list[Status]:
        """Async version of `_states()`."""
        with suppress(SyncError):
            return await asyncio.gather(*(one.astatus() for one, _ in self._untried(group)))
        return []

    def _name_others(self, error: NotAcquired, group: _Group, states: list[Status]) -> None:
        """Add to `error` the names of `states` that have no room."""
        untried = zip(self._untried(group), states, strict=False)
        full = [
            state
            for (semaphore, permits), state in untried
            if not semaphore._has_room(state, permits, group._caller)
        ]
        error._add_names((state.display for state in full), map(opens_in, full))

    def _order(self) -> list[int]:
        """Return the indices of the semaphores in the order in which to acquire them. Raise
        ValueError if a name is given twice, or for a wrong number of permits."""
        places = [(s.alias(), s.name, s.key or "") for s, _ in self._given]
        if len(set(places)) < len(places):
            raise ValueError(
                "acquire_all takes each name once. For several permits of a name, give a pair: "
                "(semaphore, permits)"
            )
        for semaphore, permits in self._given:
            semaphore._check_permits(permits)
        return sorted(range(len(places)), key=places.__getitem__)

    def _time_left(self) -> Callable[[], float | None]:
        """Begin the wait. Return a function that returns the seconds left to wait. If this object
        has no blocking_timeout, that function returns None."""
        if self._seconds is None:
            return lambda: None
        deadline = clock() + self._seconds
        return lambda: max(0.0, deadline - clock())


def _is_list(given: object) -> bool:
    return isinstance(given, Iterable) and not isinstance(given, (str, bytes))


class _Group:
    """The leases of one call of `acquire`, in the order of the grants. Each lease is stored with
    its semaphore and the semaphore's index."""

    def __init__(self, caller: Caller | None = None) -> None:
        self.taken: list[tuple[int, Semaphore, Lease]] = []
        self._caller = caller or this_caller()

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The leases, in the order of `semaphores`."""
        return tuple(lease for _, _, lease in sorted(self.taken, key=itemgetter(0)))

    @property
    def held(self) -> bool:
        return any(lease.held for _, _, lease in self.taken)

    @property
    def ended(self) -> bool:
        # An empty group has nothing to release, but `release()` has to find it.
        return bool(self.taken) and all(lease.ended for _, _, lease in self.taken)

    def add(self, index: int, semaphore: Semaphore, got: Lease | Rejection) -> None:
        """Add the lease `got`. Raise NotAcquired if `got` is a Rejection."""
        if isinstance(got, Rejection):
            raise semaphore._error_of(got, self._caller)
        self.taken.append((index, semaphore, got))

    def check(self) -> None:
        """Raise LeaseLost if a lease was lost during the wait for another."""
        for _, _, lease in self.taken:
            lease.check()

    def leave(self, *error: Any, undo: bool = False) -> None:
        """Release all leases at the end of a block. If the release of a lease fails, still release
        the others. `error`: the arguments of `__exit__`. `undo`: True if the acquire failed
        or was interrupted."""
        with ExitStack() as stack:
            for _, semaphore, lease in self.taken:
                if undo:
                    semaphore._not_used(lease)
                stack.callback(semaphore._leave, lease, *error, undo=undo)

    async def aleave(self, *error: Any, undo: bool = False) -> None:
        """Async version of `leave()`."""
        async with AsyncExitStack() as stack:
            for _, semaphore, lease in self.taken:
                if undo:
                    semaphore._not_used(lease)
                stack.push_async_callback(semaphore._aleave, lease, *error, undo=undo)
