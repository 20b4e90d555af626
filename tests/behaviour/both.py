"""One test body for sync and for async code.

A test is a coroutine function that takes `io` and says `await io.do(sem, "acquire")`. The sync `io`
calls the method in this thread and never suspends; the async one awaits its a-twin.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from django_redis_sync import Unavailable

#: Seconds for what has to happen at all. Nothing waits so long unless it is broken.
PATIENCE = 30.0


def both(test: Callable[..., Any]) -> Any:
    """Run a coroutine function as a test, once in sync and once in async code."""
    takes_io = "io" in inspect.signature(test).parameters
    assert takes_io and inspect.iscoroutinefunction(test), test

    @functools.wraps(test)
    def run(io: Any, **fixtures: Any) -> None:
        io.run(test(io=io, **fixtures))

    return pytest.mark.parametrize("io", [Sync(), Async()], ids=repr)(run)


def side_by_side(test: Callable[..., Any]) -> Any:
    """As `both`, for a test that mostly waits: in sync and in async code at the same time. Each has
    names of its own by `io.name("x")`."""
    signature = inspect.signature(test)
    assert "io" in signature.parameters and inspect.iscoroutinefunction(test), test

    def as_told(io: Any, fixtures: dict[str, Any]) -> None:
        try:
            io.run(test(io=io, **fixtures))
        except BaseException:
            print(f"it failed in {io!r} code")
            raise

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        with ThreadPoolExecutor(1) as thread:
            asynchronous = thread.submit(as_told, Async(), fixtures)
            as_told(Sync(), fixtures)
            asynchronous.result()

    fixtures = [one for name, one in signature.parameters.items() if name != "io"]
    run.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
    return run


class Sync:
    def __repr__(self) -> str:
        return "sync"

    def name(self, name: str) -> str:
        return f"{name}-{self!r}"

    def run(self, body: Coroutine[Any, Any, Any]) -> Any:
        try:
            body.send(None)
        except StopIteration as stop:
            return stop.value
        raise AssertionError("sync code must not suspend")

    async def do(self, thing: Any, method: str, *args: Any, **options: Any) -> Any:
        return getattr(thing, method)(*args, **options)

    @contextlib.asynccontextmanager
    async def entered(self, thing: Any) -> AsyncIterator[Any]:
        with thing as lease:
            yield lease

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def gather(self, *bodies: Coroutine[Any, Any, Any]) -> list[Any]:
        """Run them side by side: in threads, or in tasks."""
        with ThreadPoolExecutor(len(bodies)) as threads:
            return list(threads.map(self.run, bodies))

    def start(self, body: Coroutine[Any, Any, Any]) -> Future[Any]:
        done: Future[Any] = Future()

        def work() -> None:
            try:
                done.set_result(self.run(body))
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return done

    async def result(self, started: Future[Any]) -> Any:
        return started.result(PATIENCE)


class Async(Sync):
    def __repr__(self) -> str:
        return "async"

    def run(self, body: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(body)

    async def do(self, thing: Any, method: str, *args: Any, **options: Any) -> Any:
        return await getattr(thing, "a" + method)(*args, **options)

    @contextlib.asynccontextmanager
    async def entered(self, thing: Any) -> AsyncIterator[Any]:
        async with thing as lease:
            yield lease

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def gather(self, *bodies: Coroutine[Any, Any, Any]) -> list[Any]:
        return list(await asyncio.gather(*bodies))

    def start(self, body: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return asyncio.create_task(body)

    async def result(self, started: asyncio.Task[Any]) -> Any:
        return await asyncio.wait_for(started, PATIENCE)


async def refused(io: Any, words: str, thing: Any, method: str, *args: Any) -> Unavailable:
    """Unavailable, in such words. What is asked again until its time is over has less and less left
    for an answer: one that only a machine's haste kept from coming is asked for anew."""
    for _ in range(10):
        with pytest.raises(Unavailable) as caught:
            await io.do(thing, method, *args)
        if re.search(words, str(caught.value)):
            return caught.value
        assert "Timeout" in str(caught.value) and caught.value.maybe_executed
    return pytest.fail(f"said ten times: {caught.value}")


async def until(io: Any, met: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """What `met()` says as soon as that is true; AssertionError after `seconds`."""
    end = time.monotonic() + seconds
    while not (said := met()):
        assert time.monotonic() < end, f"not met within {seconds} s: {inspect.getsource(met)}"
        await io.sleep(0.01)
    return said


def eventually(met: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """As `until`, in plain sync code."""
    return Sync().run(until(Sync(), met, seconds))
