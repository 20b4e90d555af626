"""Tasks and time limits on event loops, and the resources that close when an event loop ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import AsyncGenerator, Coroutine, Iterable
from contextvars import Context
from typing import Any, TypeVar

from ..protocol.plans import UNDO_BUDGET

#: Seconds between two checks of the clock while an answer is awaited.
TICK = 0.05
#: If a timer fires later than planned by more seconds than this, the loop counts as busy.
LATE = 0.01
#: After a time limit is reached, seconds until the last check whether the answer has arrived.
LAST_LOOK = 0.002
#: Max times that the last check is repeated because the loop was busy.
MAX_LOOKS = 20
#: Max seconds by which a time limit is extended because the loop was busy.
MAX_LATE = 10.0
#: Max seconds to wait for the answers to steps when an event loop ends.
END = UNDO_BUDGET

T = TypeVar("T")


def start_task(body: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Run `body` in a task that `asyncio.run()` does not cancel when the main coroutine is done.

    When `asyncio.run()` cancels the project's tasks, these tasks undo their steps. This works only
    while the tasks of this package still run. The new task has an empty context, because otherwise
    the caller's context would live as long as the task. The task is not made by `create_task()`,
    because a task factory of the project might run `body` at once.
    """
    loop = asyncio.get_running_loop()
    task = Context().run(lambda: asyncio.Task(body, loop=loop, name="redis-sync"))
    # Python documents this function ("Extending asyncio"), though its name begins with "_".
    asyncio._unregister_task(task)
    return task


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks, repeatedly, until they are done. One cancellation may not be enough, because
    redis-py may swallow it while it connects.

    If the calling task is cancelled meanwhile, its cancellation takes effect afterward.
    """
    cancelled: asyncio.CancelledError | None = None
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        try:
            await asyncio.wait(pending, timeout=0.1)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


class LoopTimeout:
    """A time limit of `seconds` for an answer. The time starts when this object is created, and
    `stop` ends it. A `with` block on this object raises asyncio.TimeoutError if the limit is
    exceeded.

    Delays of a busy event loop don't count, up to MAX_LATE seconds in total. If a timer fires late,
    the loop was busy. It may not yet have read an answer that arrived meanwhile. So each timer
    counts as the time for which it was set, without its delay. When the limit is reached, a last
    timer gives the loop LAST_LOOK seconds to read the answer. If this timer is late, it is set
    again.
    """

    __slots__ = ("_due", "_end", "_left", "_looks", "_over", "_task", "_timer", "late")

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._end = time.monotonic() + seconds + MAX_LATE
        #: Total delay of the timers so far, in seconds.
        self.late = 0.0
        self._looks, self._over = 0, False
        self._task: asyncio.Task[Any] | None = None
        self._arm(min(TICK, max(0.0, seconds)))

    def stop(self) -> None:
        self._timer.cancel()

    def __enter__(self) -> LoopTimeout:
        self._task = asyncio.current_task()
        if self._over:  # the limit was reached before this block: set the last timer again
            self._over = False
            self._arm(LAST_LOOK)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        task, self._task = self._task, None
        if self._over and kind is asyncio.CancelledError:
            if hasattr(task, "uncancel"):  # Python 3.11
                task.uncancel()  # type: ignore[union-attr]
            raise asyncio.TimeoutError from None

    def _arm(self, seconds: float) -> None:
        self._due = time.monotonic() + seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self._tick, seconds)

    def _tick(self, seconds: float) -> None:
        now = time.monotonic()
        late, self._left = now - self._due, self._left - seconds
        self.late += max(0.0, late)
        if now < self._end and self._left > 0:
            self._arm(min(TICK, self._left))
        elif now < self._end and (not self._looks or late > LATE) and self._looks < MAX_LOOKS:
            self._looks += 1
            self._arm(LAST_LOOK)
        else:
            self._over = True
            if self._task is not None:
                self._task.cancel()


class BackgroundTasks:
    """Tasks that continue even if the task that started them is cancelled."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, body: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Run `body` in a task. Return a future of its result. If the future is cancelled, the task
        continues."""
        task = start_task(body)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return asyncio.shield(task)

    async def aclose(self) -> None:
        """Wait up to END seconds for the tasks. Then cancel the tasks that still run."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END)
        await end_tasks(*self._tasks)


class LoopResources:
    """The async servers of one event loop, by alias. They close when the loop ends.

    `asyncio.run()` closes the loop's asynchronous generators after all tasks are done, and other
    runners do the same. This object has such a generator, which then closes the servers. If a loop
    closes without closing its generators, the garbage collector closes the connections later.
    """

    def __init__(self) -> None:
        self.by_alias: dict[str, Any] = {}
        self._background = BackgroundTasks()
        self._closing: AsyncGenerator[None, None] | None = _closing(weakref.ref(self))
        with contextlib.suppress(StopIteration):
            self._closing.asend(None).send(None)  # starts it, which registers it in the loop

    def retire(self, servers: Iterable[Any]) -> None:
        """Close each server as soon as no plan uses it."""
        for one in servers:
            one.retired = True
            if not one.plans:
                self._background.start(one.aclose())

    async def aclose(self) -> None:
        """Close all servers when no plan uses any of them, but after END seconds at the latest."""
        until, servers = time.monotonic() + END, list(self.by_alias.values())
        await asyncio.sleep(0)  # let the loop's other generators run, which may release leases
        while any(one.plans for one in servers) and time.monotonic() < until:
            await asyncio.sleep(0.005)
        self.retire(servers)
        await self._background.aclose()
        for one in servers:
            await one.aclose()
        self.by_alias.clear()
        self._closing = None  # the generator would keep the loop alive


async def _closing(of: weakref.ref[LoopResources]) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        resources = of()
        if resources is not None:
            await resources.aclose()


_by_loop = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopResources]()


def resources_of(loop: asyncio.AbstractEventLoop) -> LoopResources:
    """Return the resources of the running loop. The caller must not store the resources, because
    they must end with the loop."""
    found = _by_loop.get(loop)
    if found is None:
        # The weak dict keeps the entries of closed loops, because the connections in an entry refer
        # to its loop. So remove these entries here.
        for other, _ in resources_of_all_loops():
            if other.is_closed():
                _by_loop.pop(other, None)
        found = _by_loop[loop] = LoopResources()
    return found


def resources_of_all_loops() -> list[tuple[asyncio.AbstractEventLoop, LoopResources]]:
    """Return all event loops that have LoopResources, each with its LoopResources."""
    while True:
        with contextlib.suppress(RuntimeError):  # another thread added an entry meanwhile
            return list(_by_loop.items())
