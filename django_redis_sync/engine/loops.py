"""Living on an event loop: tasks beside its own, time limits that know a busy loop, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context
from typing import Any, Protocol

from ..protocol.plans import UNDO_BUDGET

#: Seconds between two looks at the clock while an answer is awaited, and that a look may be late
#: before the loop was busy; seconds of one more look before the answer is called late.
SLICE, LATE, LOOK = 0.05, 0.01, 0.002
#: Looks that find the loop busy at the most, and seconds beyond its time that an answer is awaited
#: on a loop that is never on time.
MOST_LOOKS, MOST_LATE = 20, 10.0
#: Seconds that a loop's end may wait for steps under way.
END = UNDO_BUDGET
_FOREVER = 1e9


def apart(body: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Run `body` in a task that asyncio.run doesn't cancel when its main coroutine is done.

    Then the other tasks still have to undo their steps, and that goes through tasks such as this.
    Its starter ends it. It inherits no context: that of the first caller would live as long.
    """
    task = Context().run(_task, body)
    asyncio._unregister_task(task)
    # A loop may be closed under it: OnLoop sees to the rest.
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    return task


def _task(body: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.Task(body, loop=asyncio.get_running_loop())


async def ended(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks of ours until they are done: redis-py may swallow a cancellation while it
    connects."""
    while pending := [task for task in tasks if task is not None and not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=0.1)


def dropped(*tasks: asyncio.Task[Any] | None) -> None:
    """End tasks of a closed loop: nothing can be awaited there any more."""
    for task in tasks:
        if task is None or task.done():
            continue
        with contextlib.suppress(RuntimeError):  # the loop is closed; its awaitable lets go
            task.cancel()
        with contextlib.suppress(BaseException):
            task.get_coro().close()


class Patience:
    """How long this process waits for an answer: `seconds` in which its loop was awake.

    A timer that fires late says that the loop was busy, not that the server is slow; meanwhile the
    answer may have come. So time counts by SLICEs, each as long as it was meant to be, and before
    the answer is called late there is a last look that is on time. Begins when it is made, ends
    with `stop`. In its `with`, asyncio.TimeoutError is raised when it is over.
    """

    __slots__ = ("_due", "_end", "_left", "_looks", "_over", "_seconds", "_task", "_timer", "late")

    def __init__(self, seconds: float) -> None:
        self._left = self._seconds = seconds
        self._end = time.monotonic() + seconds + MOST_LATE
        #: Seconds by which the loop was late.
        self.late = 0.0
        self._looks, self._over = 0, False
        self._task: asyncio.Task[Any] | None = None
        self._arm(min(SLICE, max(0.0, seconds)))

    def stop(self) -> None:
        self._timer.cancel()

    def limit(self, seconds: float) -> None:
        """At most so many from the beginning."""
        self._left = min(self._left, self._left - self._seconds + seconds)

    def __enter__(self) -> Patience:
        self._task = asyncio.current_task()
        if self._over:  # while nothing waited
            self._over = False
            self._arm(LOOK)
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
            self._arm(min(SLICE, self._left))
        elif now < self._end and (not self._looks or late > LATE) and self._looks < MOST_LOOKS:
            self._looks += 1
            self._arm(LOOK)
        else:
            self._over = True
            if self._task is not None:
                self._task.cancel()


class Outlasting(asyncio.Future[Any]):
    """The outcome of another future, for a task that must not be cancelled yet.

    A cancelled task waits on, and gets its CancelledError when this is done: at `until`, on the
    loop's clock, at the latest, or UNDO_BUDGET seconds after the first cancellation. Then it ends
    with the exception that `late` makes.
    """

    def __init__(
        self,
        of: asyncio.Future[Any],
        until: float | None,
        late: Callable[[], Exception],
    ) -> None:
        super().__init__(loop=of.get_loop())
        self._late, self.until = late, until
        self._timer: asyncio.TimerHandle | None = None
        if until is not None:
            self._timer = self.get_loop().call_at(until, self._give_up)
        of.add_done_callback(self._take)

    def cancel(self, msg: Any = None) -> bool:
        """Not now: False, and so the task is cancelled when it goes on."""
        if not self.done() and self.until is None:
            self.until = self.get_loop().time() + UNDO_BUDGET
            self._timer = self.get_loop().call_at(self.until, self._give_up)
        return False

    def _give_up(self) -> None:
        if not self.done():
            self.set_exception(self._late())

    def _take(self, of: asyncio.Future[Any]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        error = self._late() if of.cancelled() else of.exception()
        if self.done():
            return
        if error is None:
            self.set_result(of.result())
        else:
            self.set_exception(error)


class Errands:
    """Tasks of ours; the result or exception of each goes to a future."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, body: Coroutine[Any, Any, Any], done: asyncio.Future[Any] | None) -> None:
        task = apart(body)
        self._tasks.add(task)

        def over(task: asyncio.Task[Any]) -> None:
            self._tasks.discard(task)
            error = None if task.cancelled() else task.exception()
            if done is None or done.done():
                return
            if task.cancelled():
                done.cancel()
            elif error is not None:
                done.set_exception(error)
            else:
                done.set_result(task.result())

        task.add_done_callback(over)

    async def aclose(self) -> None:
        """Give them END seconds, then cancel them."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END)
        await ended(*self._tasks)

    def drop(self) -> None:
        dropped(*list(self._tasks))
        self._tasks.clear()


class Resident(Protocol):
    """A thing that lives on a loop. `plans`: how many use it; `retired`: closed at 0 plans."""

    plans: int
    retired: bool

    async def aclose(self) -> None: ...
    def drop(self) -> None: ...


class OnLoop:
    """The library's things on an event loop, by alias; none of them outlives the loop.

    A loop that ends as asyncio.run has it closes its asynchronous generators when all its tasks are
    done: a generator of ours closes the connections. A loop that is just closed drops its timers: a
    timer of ours holds the object that then cuts the connections. Nothing else holds any of this,
    so that a loop that is forgotten takes it along.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.residents: dict[str, Any] = {}
        self._former: set[Any] = set()
        self._errands = Errands()
        self._closing = _closing(weakref.ref(self))
        with contextlib.suppress(StopIteration):
            self._closing.asend(None).send(None)  # up to its yield: now the loop knows it
        loop.call_later(_FOREVER, _Anchor(self), context=Context())

    def retire(self, residents: list[Any]) -> None:
        """Close these when nothing uses them any more."""
        for one in residents:
            one.retired = True
            self._former.add(one)
            if not one.plans:
                self.left(one)

    def left(self, one: Any) -> None:
        """No plan uses it, and it is retired."""
        self._errands.start(self._close(one), None)

    async def _close(self, one: Any) -> None:
        await one.aclose()
        if not one.plans:
            self._former.discard(one)

    async def aclose(self) -> None:
        """Close all, when nothing uses them, or END seconds have gone by."""
        until = time.monotonic() + END
        await asyncio.sleep(0)  # the loop's other generators may have to give something back
        everything = [*self.residents.values(), *self._former]
        for one in everything:
            one.retired = True
            while one.plans and time.monotonic() < until:
                await asyncio.sleep(0.005)
        await self._errands.aclose()
        for one in everything:
            await one.aclose()
        self._former.clear()

    def drop(self) -> None:
        """As aclose, where nothing can be awaited: the loop is closed."""
        self._errands.drop()
        for one in [*self.residents.values(), *self._former]:
            one.drop()
        self.residents.clear()
        self._former.clear()


class _Anchor:
    """Held by a timer of the loop, and by nothing else. Never called."""

    def __init__(self, held: OnLoop) -> None:
        self._held = held

    def __call__(self) -> None:
        """The timer is due in thirty years."""

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # also at the end of the interpreter
            self._held.drop()


async def _closing(of: weakref.ref[OnLoop]) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        held = of()
        if held is not None:
            await held.aclose()


_on_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[OnLoop]] = (
    weakref.WeakKeyDictionary()
)


def on_loop(loop: asyncio.AbstractEventLoop) -> OnLoop:
    """The things on the running loop. Not to be kept."""
    ref = _on_loops.get(loop)
    found = None if ref is None else ref()
    if found is None:
        found = OnLoop(loop)
        _on_loops[loop] = weakref.ref(found)
    return found


def on_all_loops() -> list[tuple[asyncio.AbstractEventLoop, OnLoop]]:
    """Every loop that has something of ours."""
    while True:
        with contextlib.suppress(RuntimeError):  # another thread added an entry meanwhile
            found = [(loop, ref()) for loop, ref in list(_on_loops.items())]
            return [(loop, held) for loop, held in found if held is not None]
