"""Tasks and time limits on event loops, and the cleanup when an event loop ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextvars import Context
from typing import Any, TypeVar

from ..protocol.plans import UNDO_BUDGET

#: Seconds between two checks of the clock while an answer is awaited.
TICK = 0.05
#: Max delay of a timer in seconds. If a timer fires later, the event loop counts as busy.
LATE = 0.01
#: Extra seconds after a time limit, in which the event loop can still read the answer.
LAST_LOOK = 0.002
#: Max times that the event loop gets LAST_LOOK extra seconds. It gets them again if it was busy.
MAX_LOOKS = 20
#: Max seconds by which a time limit is extended because the event loop was busy.
MAX_LATE = 10.0
#: Max seconds to wait for the answers to steps when an event loop ends.
END = UNDO_BUDGET

T = TypeVar("T")


def start_task(body: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Run `body` in a task that `asyncio.run()` does not cancel when the main coroutine is done.

    When `asyncio.run()` cancels the project's tasks, these tasks undo their steps. For this, the
    tasks of this package must still run.

    The new task has an empty context, so that it doesn't keep the caller's context alive. It is not
    made by `create_task()`, because a task factory of the project might run `body` immediately.
    """
    loop = asyncio.get_running_loop()
    task = Context().run(lambda: asyncio.Task(body, loop=loop, name="redis-sync"))
    # Python documents this function ("Extending asyncio"), though its name begins with "_".
    asyncio._unregister_task(task)
    return task


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks, repeatedly, until they are done. One cancellation may not be enough: while
    redis-py connects, it may swallow a cancellation.

    If the calling task is cancelled meanwhile, raise CancelledError after all tasks are done.
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
    `stop` ends it. If the limit is exceeded, a `with` block on this object raises
    asyncio.TimeoutError.

    `each`: called at least every TICK, with the seconds that have passed since the last call. If it
    returns True, the limit ends now.

    If a timer fires late, the event loop was busy, and may not have read an answer that arrived
    meanwhile. So the delays of timers don't count, up to MAX_LATE seconds in total. When the limit
    is reached, the loop gets LAST_LOOK extra seconds to read the answer. If it was busy in this
    time, it gets the extra seconds again.
    """

    __slots__ = ("_due", "_each", "_end", "_left", "_looks", "_over", "_task", "_timer", "late")

    def __init__(self, seconds: float, each: Callable[[float], bool] | None = None) -> None:
        self._left, self._each = seconds, each
        self._end = time.monotonic() + seconds + MAX_LATE
        #: Sum of the delays of this object's timers so far, in seconds.
        self.late = 0.0
        self._looks, self._over = 0, False
        self._task: asyncio.Task[Any] | None = None
        self._arm(min(TICK, max(0.0, seconds)))

    def stop(self) -> None:
        self._timer.cancel()
        self._each = None  # it may refer to the object that has this limit

    def __enter__(self) -> LoopTimeout:
        self._task = asyncio.current_task()
        if self._over:  # the limit was reached before this block, so allow LAST_LOOK seconds
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
        if self._each is not None and self._each(seconds):
            self._left = 0.0
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

    When all tasks are done, `asyncio.run()` closes the loop's asynchronous generators, as other
    runners do. This object has such a generator, which then closes the servers. If a runner doesn't
    close the generators, the garbage collector closes the connections later.
    """

    def __init__(self) -> None:
        self.by_alias: dict[str, Any] = {}
        self._background = BackgroundTasks()
        self._closing: AsyncGenerator[None, None] | None = _closing(weakref.ref(self))
        with contextlib.suppress(StopIteration):
            self._closing.asend(None).send(None)  # the event loop only knows started generators

    def retire(self, servers: Iterable[Any]) -> None:
        """Close each server as soon as no plan uses it."""
        for one in servers:
            one.retired = True
            if not one.plans:
                self._background.start(one.aclose())

    async def aclose(self) -> None:
        """Wait until no plan uses the servers, but at most END seconds. Then close all servers."""
        until, servers = time.monotonic() + END, list(self.by_alias.values())
        await asyncio.sleep(0)  # let the loop's other generators end: they may release leases
        while any(one.plans for one in servers) and time.monotonic() < until:
            await asyncio.sleep(0.005)
        self.retire(servers)
        await self._background.aclose()
        for one in servers:
            await one.aclose()
        self.by_alias.clear()
        self._closing = None  # otherwise, the generator would keep the loop alive


async def _closing(of: weakref.ref[LoopResources]) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        resources = of()
        if resources is not None:
            await resources.aclose()


_by_loop = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopResources]()


def resources_of(loop: asyncio.AbstractEventLoop) -> LoopResources:
    """Return the LoopResources of `loop`, the running loop. The caller must not store them, so that
    they are freed together with the loop."""
    found = _by_loop.get(loop)
    if found is None:
        # Remove the entries of closed loops. The weak dict doesn't remove such an entry, because
        # the connections in the entry refer to the loop.
        for other, _ in resources_of_all_loops():
            if other.is_closed():
                _by_loop.pop(other, None)
        found = _by_loop[loop] = LoopResources()
    return found


def resources_of_all_loops() -> list[tuple[asyncio.AbstractEventLoop, LoopResources]]:
    """Return all event loops that have LoopResources, each with its LoopResources."""
    while True:
        with contextlib.suppress(RuntimeError):  # raised if another thread adds an entry meanwhile
            return list(_by_loop.items())
