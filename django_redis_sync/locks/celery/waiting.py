"""Where the permits of all held tasks are waited for: one event loop in one thread. With gevent, an
event loop can't run beside the pool, so each wait has a greenlet of its own, which is cheap there.
When a job asks again, `..jobs` and Redis decide.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from ...engine import drivers
from ...engine.mutex import start_thread
from ...engine.server import async_server_of, server_of
from ...engine.wire import ATTEMPT
from ...logs import logger
from ...protocol.steps import Plan
from ..jobs import Job, await_handle, wait_for_handle
from ..semaphore import Semaphore

Done = Callable[[Any], None]


class Waiting:
    """The waits of a worker. `green`: True to use greenlets. A function that is given to a method
    is called in the thread of the event loop, or in a greenlet."""

    def __init__(self, green: bool) -> None:
        self._green = green
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._turns: dict[Any, asyncio.Lock] = {}

    def ask(
        self,
        semaphore: Semaphore,
        job: Job,
        since: float,
        begins: Callable[[], None],
        done: Done,
        again: bool = False,
    ) -> Callable[[], Any]:
        """Wait for a permit for a job, and call `done` with a Handle, a Refusal, or the exception
        that ended the wait. Call `begins` when Redis says that the job has to wait. Return a
        function that cancels the wait. It may call `done` even then. `again`: True if the job may
        have other deliveries."""
        if self._green:
            self._start(lambda: done(_result(wait_for_handle, semaphore, job, since, begins)))
            return lambda: None

        async def wait() -> None:
            try:
                alias = semaphore.alias()
                async with self._turns.setdefault(alias, asyncio.Lock()):  # keeps the order
                    await async_server_of(alias).hub.ready(ATTEMPT)
                granted = None if again else done
                result: Any = await await_handle(semaphore, job, since, begins, granted)
            except Exception as error:
                result = error
            if result is not None:
                done(result)

        return self._spawn(wait())

    def carry_out(self, alias: Any, plan: Plan, done: Done | None = None) -> None:
        """Carry out a plan, and call `done` with its result. If it fails, do nothing."""

        def told(result: Any) -> None:
            if isinstance(result, Exception):
                logger.debug("a worker could not tell Redis about its jobs: %s", result)
            elif done is not None:
                done(result)

        if self._green:
            self._start(lambda: told(_result(lambda: drivers.drive(plan, server_of(alias)))))
            return

        async def run() -> None:
            try:
                result: Any = await drivers.adrive(plan, async_server_of(alias))
            except Exception as error:
                result = error
            told(result)

        self._spawn(run())

    def stop(self, seconds: float) -> None:
        """Cancel all waits, and let them leave the queues. Give up after `seconds`."""
        if self._loop is None:
            return

        async def cancel() -> None:
            tasks = self._tasks - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=seconds)

        with suppress(concurrent.futures.TimeoutError):
            asyncio.run_coroutine_threadsafe(cancel(), self._loop).result(seconds)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> Callable[[], Any]:
        """Start a task on the event loop. Return a function that cancels it."""
        loop, tasks = self._running_loop(), list[asyncio.Task[None]]()

        def start() -> None:
            task = loop.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            tasks.append(task)

        def cancel() -> None:
            for task in tasks:
                task.cancel()

        loop.call_soon_threadsafe(start)
        return partial(loop.call_soon_threadsafe, cancel)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._start(self._loop.run_forever)
        return self._loop

    def _start(self, work: Callable[[], Any]) -> None:
        start_thread(work, "redis-sync-held-tasks")


def _result(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return error
