"""Steps of a plan that may have to wait, and how sync and async code carry them out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from inspect import isawaitable
from typing import Any, NamedTuple, Protocol

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async


class Step(Protocol):
    """Something to do that may have to wait: in sync and in async code."""

    @property
    def do(self) -> Callable[[], Any]: ...
    @property
    def ado(self) -> Callable[[], Awaitable[Any]]: ...


Plan = Generator[Step, Any, Any]


def run(plan: Plan) -> Any:
    """Carry a plan out in sync code, and return its result."""
    try:
        step = plan.send(None)
        while True:
            try:
                answer = step.do()
            except BaseException as error:
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as stop:
        return stop.value
    except BaseException as error:
        # Interrupted between two steps: the plan releases what it has. An ended plan raises.
        plan.throw(error).do()
        raise


async def arun(plan: Plan) -> Any:
    """Async version of `run()`."""
    try:
        step = plan.send(None)
        while True:
            try:
                answer = await step.ado()
            except BaseException as error:
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as stop:
        return stop.value
    except BaseException as error:
        await plan.throw(error).ado()
        raise


class Call(NamedTuple):
    """Call a project's own callable. It may query the database, so async code runs a sync one in
    a thread."""

    function: Any
    request: Any

    def do(self) -> Any:
        value = self.function(self.request)
        return async_to_sync(_awaited)(value) if isawaitable(value) else value

    async def ado(self) -> Any:
        if iscoroutinefunction(self.function):
            return await self.function(self.request)
        value = await sync_to_async(self.function)(self.request)
        return await value if isawaitable(value) else value


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


class Either(NamedTuple):
    """Call one function in sync code, and another in async code."""

    do: Callable[[], Any]
    ado: Callable[[], Awaitable[Any]]
