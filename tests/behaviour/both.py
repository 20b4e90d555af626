"""One test body for sync and for async code.

A test is a coroutine function that takes `io` and says `await io.do(sem, "acquire")`. The sync `io`
calls the method in this thread and never suspends. The async `io` awaits the async version.
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

#: Seconds after which a test gives up waiting for something that must happen.
MAX_WAIT = 30.0


def both(test: Callable[..., Any]) -> Any:
    """Run a coroutine function as a test, once in sync and once in async code."""
    takes_io = "io" in inspect.signature(test).parameters
    assert takes_io and inspect.iscoroutinefunction(test), test

    @functools.wraps(test)
    def run(io: Any, **fixtures: Any) -> None:
        io.run(test(io=io, **fixtures))

    return pytest.mark.parametrize("io", [Sync(), Async()], ids=repr)(run)


def side_by_side(test: Callable[..., Any]) -> Any:
    """Run a coroutine function in sync and in async code at the same time.

    Use it instead of `both` for a test that mostly waits. `io.name("x")` returns a different name
    in sync and in async code."""
    signature = inspect.signature(test)
    assert "io" in signature.parameters and inspect.iscoroutinefunction(test), test

    def run_as(io: Any, fixtures: dict[str, Any]) -> None:
        try:
            io.run(test(io=io, **fixtures))
        except BaseException:
            print(f"failed in {io!r} code")
            raise

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        with ThreadPoolExecutor(1) as thread:
            asynchronous = thread.submit(run_as, Async(), fixtures)
            run_as(Sync(), fixtures)
            asynchronous.result()

    fixtures = [value for name, value in signature.parameters.items() if name != "io"]
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
        """Run the coroutines at the same time: in threads, or in tasks."""
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
        return started.result(MAX_WAIT)


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
        return await asyncio.wait_for(started, MAX_WAIT)


async def refused(io: Any, words: str, thing: Any, method: str, *args: Any) -> Unavailable:
    """Call `method` until it raises Unavailable with a text that matches `words`. Return the error.

    Call again if the error is a timeout: near the end of its time limit, a call has little time
    left for a reply, which a busy machine may then read too late."""
    for _ in range(10):
        with pytest.raises(Unavailable) as caught:
            await io.do(thing, method, *args)
        if re.search(words, str(caught.value)):
            return caught.value
        assert "Timeout" in str(caught.value) and caught.value.maybe_executed
    return pytest.fail(f"raised ten times: {caught.value}")


async def until(io: Any, met: Callable[[], Any], seconds: float = MAX_WAIT) -> Any:
    """Call `met` until it returns a true value, and return the value.

    Raise AssertionError after `seconds`."""
    end = time.monotonic() + seconds
    while not (value := met()):
        assert time.monotonic() < end, f"not met within {seconds} s: {inspect.getsource(met)}"
        await io.sleep(0.01)
    return value


def eventually(met: Callable[[], Any], seconds: float = MAX_WAIT) -> Any:
    """Sync version of `until()`."""
    return Sync().run(until(Sync(), met, seconds))
