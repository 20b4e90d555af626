"""Calls of this process that wait for an equal call of the same process, its leader.

Only the leader asks Redis. Its followers wait in this process, and wake up together when the leader
ends. So a process sends few commands, however many threads and tasks it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from asgiref.sync import sync_to_async

from ..engine.threads import Bell
from ..engine.wire import clock

#: Max seconds that a follower waits. Then it leads the other followers, and asks Redis, because the
#: leader may be a task whose event loop never continues.
MAX_FOLLOW = 10.0
#: Max threads that read a result at the same time. More threads would only take turns on the
#: interpreter, which costs three times as much, and exhaust the connection pool of the cache.
AT_ONCE = 4


class Leader:
    """A call that other calls can follow. `end()` must be called when it ends. `outage`: the
    exception that its followers have to raise, because Redis is unavailable."""

    __slots__ = ("__weakref__", "_bells", "_key", "_wakers", "ended", "outage")

    def __init__(self, key: Any) -> None:
        self._key, self.ended = key, False
        self.outage: Exception | None = None
        # What wakes each thread, and each task.
        self._bells: list[Bell] = []
        self._wakers: list[Callable[[], Any]] = []

    def end(self) -> None:
        """Wake up the followers: all tasks, and the first threads."""
        self.ended = True
        if (found := _leaders.get(self._key)) is not None and found() is self:
            _leaders.pop(self._key, None)
        with contextlib.suppress(IndexError):
            while True:
                self._wakers.pop()()
        for _ in range(AT_ONCE):
            self.wake_next()

    def wake_next(self) -> None:
        """Wake up a thread that waits. Each thread that `follow()` has woken up has to call this
        when it has read the result."""
        with contextlib.suppress(IndexError):
            self._bells.pop().ring()

    def follow(self, seconds: float) -> bool:
        """Wait until the leader has ended, but at most `seconds`, or MAX_FOLLOW if that is less.
        Return True if it has ended."""
        bell = Bell()
        self._bells.append(bell)
        try:
            if not self.ended:
                bell.wait(min(seconds, MAX_FOLLOW))
        except BaseException:
            if self.ended:
                self.wake_next()
            raise
        finally:
            with contextlib.suppress(ValueError):  # raised if the bell has rung
                self._bells.remove(bell)
        return self.ended

    async def afollow(self, seconds: float) -> bool:
        """Async version of `follow()`."""
        loop = asyncio.get_running_loop()
        woken = loop.create_future()
        waker = partial(_wake, loop, woken)
        self._wakers.append(waker)
        try:
            if not self.ended:
                await asyncio.wait((woken,), timeout=min(seconds, MAX_FOLLOW))
        finally:
            with contextlib.suppress(ValueError):  # raised if `end` has called the waker
                self._wakers.remove(waker)
        return self.ended


#: The leaders of this process, by process ID and name. A forked child has none of its parent's. The
#: references are weak, because an exception of a signal handler can end a call before it could
#: call `end()`.
_leaders: dict[Any, weakref.ref[Leader]] = {}


def leader_of(identity: tuple[str, str], former: Leader | None = None) -> tuple[Leader, bool]:
    """Return the leader of the calls that have this identity. If there is none, or if it is
    `former`, make one. Also return True if the caller is the new leader."""
    key = os.getpid(), *identity
    mine = Leader(key)
    found = _leaders.setdefault(key, weakref.ref(mine))()
    if found is None or found is former:
        _leaders[key], found = weakref.ref(mine), mine
    return found, found is mine


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Future[None]) -> None:
    with contextlib.suppress(RuntimeError):  # raised if the loop is closed
        loop.call_soon_threadsafe(_resolve, woken)


def _resolve(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


class Trips:
    """Sync functions that tasks of an event loop call at the same time. They run on a thread one
    after the other, because a trip to a thread takes longer than a look into a cache.

    A trip has the context of its first call, so it runs on the thread of that call's request. After
    a function that takes longer than SLOW, the others continue as two trips, on other threads if
    they are of other requests. So a cache that doesn't answer does not delay all of them in turn.
    """

    __slots__ = ("_calls", "_trips")

    #: Seconds.
    SLOW = 0.1

    def __init__(self) -> None:
        self._calls: list[_Call] = []  # those that wait for the next trip
        self._trips: set[asyncio.Task[None]] = set()

    async def call(self, function: Callable[[], Any]) -> Any:
        """Return `function()`, or raise its exception."""
        loop = asyncio.get_running_loop()
        call = _Call(function, contextvars.copy_context(), loop.create_future())
        if not self._calls:
            loop.call_soon(self._begin, loop)
        self._calls.append(call)
        value, error = await call.future
        if error is not None:
            raise error
        return value

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        calls, self._calls = self._calls, []
        self._start(loop, calls)

    def _start(self, loop: asyncio.AbstractEventLoop, calls: list[_Call]) -> None:
        trip = calls[0].context.run(loop.create_task, self._made(loop, calls))
        self._trips.add(trip)
        trip.add_done_callback(partial(self._ended, calls))

    async def _made(self, loop: asyncio.AbstractEventLoop, calls: list[_Call]) -> None:
        results = await _on_thread([call.function for call in calls])
        for call, result in zip(calls, results, strict=False):
            if not call.future.done():
                call.future.set_result(result)
        late = calls[len(results) :]
        for part in (late[::2], late[1::2]):
            if part:
                self._start(loop, part)

    def _ended(self, calls: list[_Call], trip: asyncio.Task[None]) -> None:
        """Let no call of a failed trip wait for ever."""
        self._trips.discard(trip)
        error = asyncio.CancelledError() if trip.cancelled() else trip.exception()
        for call in calls if error is not None else ():
            if not call.future.done():
                call.future.set_result((None, error))


class _Call(NamedTuple):
    function: Callable[[], Any]
    context: contextvars.Context
    future: asyncio.Future[tuple[Any, BaseException | None]]


def _results(functions: list[Callable[[], Any]]) -> list[tuple[Any, Exception | None]]:
    """Call the functions, up to the first that takes longer than SLOW. Return the result and the
    exception of each."""
    results: list[tuple[Any, Exception | None]] = []
    for function in functions:
        began = clock()
        try:
            results.append((function(), None))
        except Exception as error:
            results.append((None, error))
        if clock() - began > Trips.SLOW:
            break
    return results


#: Made once, because making it takes longer than a call of it.
_on_thread = sync_to_async(_results)
_trips = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Trips]()


async def on_thread(function: Callable[[], Any]) -> Any:
    """Call a sync function on a thread, together with those of other tasks (see Trips)."""
    return await _trips.setdefault(asyncio.get_running_loop(), Trips()).call(function)
