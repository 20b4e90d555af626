"""Run one test body both as sync code and as async code.

A test body is a coroutine function with the argument `io`. It calls the library through `io`, for
example with `await io.do(sem, "acquire")`. In the sync run, this calls `sem.acquire()`. In the
async run, it awaits `sem.aacquire()`.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import functools
import inspect
import math
import textwrap
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
    """Return a pytest test that runs the coroutine function `test` twice: as sync and as async
    code."""
    takes_io = "io" in inspect.signature(test).parameters
    assert takes_io and inspect.iscoroutinefunction(test), test

    @functools.wraps(test)
    def run(io: Any, **fixtures: Any) -> None:
        io.run(test(io=io, **fixtures))

    return pytest.mark.parametrize("io", [Sync(), Async()], ids=repr)(run)


class Sync:
    def __repr__(self) -> str:
        return "sync"

    def run(self, body: Coroutine[Any, Any, Any]) -> Any:
        try:
            body.send(None)
        except StopIteration as stop:
            return stop.value
        raise AssertionError("a test may await only `io` and coroutines that use it")

    async def do(self, thing: Any, method: str, *args: Any, **options: Any) -> Any:
        return getattr(thing, method)(*args, **options)

    @contextlib.asynccontextmanager
    async def entered(self, thing: Any) -> AsyncIterator[Any]:
        with thing as lease:
            yield lease

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def gather(self, *bodies: Coroutine[Any, Any, Any]) -> list[Any]:
        """Run the coroutines at the same time, and return their results. Sync code uses threads,
        and async code uses tasks."""
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


async def until(io: Any, met: Callable[[], Any], seconds: float = MAX_WAIT) -> Any:
    """Call `met` until it returns a true value, and return that value. Raise AssertionError after
    `seconds`."""
    end = time.monotonic() + seconds
    while not (value := met()):
        assert time.monotonic() < end, f"after {seconds} s, still {value!r}: {_what_was_seen(met)}"
        await io.sleep(0.01)
    return value


def _what_was_seen(met: Callable[[], Any]) -> str:
    """Return the source of the condition `met`, and what each side of its comparisons is now."""
    source = textwrap.dedent(inspect.getsource(met)).strip()
    try:
        nodes = [*ast.walk(ast.parse(source))]
    except SyntaxError:  # a part of a statement
        return source
    known = {**met.__globals__, **inspect.getclosurevars(met).nonlocals}
    for name, parameter in inspect.signature(met).parameters.items():
        known[name] = parameter.default
    seen = [source]
    for compared in (node for node in nodes if isinstance(node, ast.Compare)):
        for side in (compared.left, *compared.comparators):
            with contextlib.suppress(Exception):  # for example, an inner variable is unknown
                found = eval(compile(ast.Expression(side), "", "eval"), known)
                if not isinstance(side, ast.Constant):
                    seen.append(f"{ast.unparse(side)} is {found!r}")
    return "\n".join(seen)


def eventually(met: Callable[[], Any], seconds: float = MAX_WAIT) -> Any:
    """Sync version of `until()`."""
    return Sync().run(until(Sync(), met, seconds))


async def queued(io: Any, thing: Any, view: Any, place: int = 1, **options: Any) -> Any:
    """Start `thing.acquire(**options)`. Return its future or task as soon as `place` callers wait
    in the queue. `view`: a View of the name of `thing`."""
    started = io.start(io.do(thing, "acquire", **options))
    await until(io, lambda: view.waiting == place)
    return started


async def answered(io: Any, thing: Any, method: str, *args: Any) -> Any:
    """Call the method named `method` until it no longer raises Unavailable. Return its result."""
    end = time.monotonic() + MAX_WAIT
    while True:
        try:
            return await io.do(thing, method, *args)
        except Unavailable as error:
            assert time.monotonic() < end, f"unavailable for {MAX_WAIT} s: {error}"
            await io.sleep(0.02)


class within:
    """Measures the time of a block, and fails if the block takes `limit` seconds or longer."""

    def __init__(self, limit: float = math.inf) -> None:
        self.limit, self.start = limit, time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start

    def __enter__(self) -> within:
        return self

    def __exit__(self, *error: object) -> None:
        took = self.seconds
        assert took < self.limit, f"it took {took:.2f} s, not less than {self.limit} s"
