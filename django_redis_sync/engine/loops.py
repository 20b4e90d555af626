"""Event loops: tasks and time limits of this package, and the resources of each loop."""

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
#: Seconds from the end of a time limit to a last check. If no answer has arrived by then, the
#: answer is late.
LAST_LOOK = 0.002
#: Max times that the last check is repeated because the loop was busy.
MAX_LOOKS = 20
#: Max seconds by which a time limit is extended because the loop was busy.
MAX_LATE = 10.0
#: Max seconds for which the end of a loop waits for steps that were sent.
END = UNDO_BUDGET

T = TypeVar("T")


def start_task(body: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Run `body` in a task that `asyncio.run()` does not cancel when the main coroutine is done.

    `asyncio.run()` cancels the project's tasks. These tasks then undo their steps. For that, the
    tasks of this package must still run. The new task's context is empty, because otherwise the
    caller's context would live as long as the task. The task is not made by `create_task()`,
    because a task factory of the project might run it at once.
    """
    loop = asyncio.get_running_loop()
    task = Context().run(lambda: asyncio.Task(body, loop=loop, name="redis-sync"))
    # Python documents this function ("Extending asyncio"), though its name begins with "_".
    asyncio._unregister_task(task)
    return task


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks again and again until they are done. While redis-py connects, it may swallow a
    cancellation.

    If the caller is cancelled meanwhile, its cancellation takes effect afterward.
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
    """A time limit of `seconds` for an answer. Time in which the event loop is busy does not count,
    up to MAX_LATE seconds.

    If a timer fires late, the loop was busy, and the answer may have arrived meanwhile. So the
    delay of a timer does not count. Only the time for which the timer was set counts. At the end, a
    last timer gives the loop the time to read the answer. If the last timer fires late too, it is
    set again.

    The time starts when this object is created, and ends with `stop`. A `with` block on this
    object raises asyncio.TimeoutError if the limit is exceeded.
    """

    __slots__ = ("_due", "_end", "_left", "_looks", "_over", "_task", "_timer", "late")

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._end = time.monotonic() + seconds + MAX_LATE
        #: Seconds by which the loop was late.
        self.late = 0.0
        self._looks, self._over = 0, False
        self._task: asyncio.Task[Any] | None = None
        self._arm(min(TICK, max(0.0, seconds)))

    def stop(self) -> None:
        self._timer.cancel()

    def __enter__(self) -> LoopTimeout:
        self._task = asyncio.current_task()
        if self._over:  # the time ended before this block: let the loop do a last check
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
    """Tasks that go on if their caller is cancelled."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, body: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Run `body`. Return a future of its result. The task goes on if the future is
        cancelled."""
        task = start_task(body)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return asyncio.shield(task)

    async def aclose(self) -> None:
        """Give the tasks END seconds, then cancel them."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END)
        await end_tasks(*self._tasks)


class LoopResources:
    """The async servers of one event loop, by alias. They close when the loop ends.

    `asyncio.run()` closes the loop's asynchronous generators after all tasks are done, and other
    runners do the same. This class has such a generator, which then closes the connections. If a
    loop is closed without that, the garbage collector closes them, as it does for redis-py.
    """

    def __init__(self) -> None:
        self.by_alias: dict[str, Any] = {}
        self._background = BackgroundTasks()
        self._closing: AsyncGenerator[None, None] | None = _closing(weakref.ref(self))
        with contextlib.suppress(StopIteration):
            self._closing.asend(None).send(None)  # run to the yield: then the loop knows it

    def retire(self, servers: Iterable[Any]) -> None:
        """Close these servers now, or when the last plan that uses them has ended."""
        for one in servers:
            one.retired = True
            if not one.plans:
                self._background.start(one.aclose())

    async def aclose(self) -> None:
        """Close each server as soon as no plan uses it, and after END seconds in any case."""
        until, servers = time.monotonic() + END, list(self.by_alias.values())
        await asyncio.sleep(0)  # the loop's other generators may have to release something
        while any(one.plans for one in servers) and time.monotonic() < until:
            await asyncio.sleep(0.005)
        self.retire(servers)
        await self._background.aclose()
        for one in servers:
            await one.aclose()
        self.by_alias.clear()
        self._closing = None  # the generator refers to the loop, and would keep it alive


async def _closing(of: weakref.ref[LoopResources]) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        resources = of()
        if resources is not None:
            await resources.aclose()


_by_loop = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopResources]()


def resources_of(loop: asyncio.AbstractEventLoop) -> LoopResources:
    """Return the resources of the running loop. The caller must not store them, so that they end
    with the loop."""
    found = _by_loop.get(loop)
    if found is None:
        # The connections of a closed loop refer to the loop, so its entry must be removed here.
        for other, _ in resources_of_all_loops():
            if other.is_closed():
                _by_loop.pop(other, None)
        found = _by_loop[loop] = LoopResources()
    return found


def resources_of_all_loops() -> list[tuple[asyncio.AbstractEventLoop, LoopResources]]:
    """Return every event loop that has LoopResources, each with its LoopResources."""
    while True:
        with contextlib.suppress(RuntimeError):  # another thread added an entry meanwhile
            return list(_by_loop.items())
