"""Plans of calls, and their runners: requests and single_flight functions have such plans.

A plan of calls is a generator that yields the calls which differ in sync and async code, such as
the project's callables and the acquires. `run` carries out the calls in sync code, and `arun` in
async code. The plans of `protocol/` are others: their steps are Redis scripts, and `drivers` runs
them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from contextlib import closing
from functools import partial
from inspect import isawaitable
from typing import Any, NamedTuple

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async

#: A generator of steps. Each step has two methods: `do` for sync code, and `ado` for async code.
CallPlan = Generator[Any, Any, Any]


def run(plan: CallPlan) -> Any:
    """Run the steps of a plan in sync code, and return the result of the plan."""
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
        # If the plan raised this error, the plan has ended, and throw() raises the error again. If
        # the error interrupted this function between two steps, throw() raises the error inside the
        # plan. Then the plan yields its last step, which releases what it has acquired. Close the
        # plan, because the error and the plan refer to each other.
        with closing(plan):
            plan.throw(error).do()
        raise


async def arun(plan: CallPlan) -> Any:
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
        with closing(plan):
            await plan.throw(error).ado()
        raise


class Call(NamedTuple):
    """The step that calls a callable of the project. In async code, a sync callable runs in a
    thread, because it may query the database."""

    function: Any
    argument: Any

    def do(self) -> Any:
        value = self.function(self.argument)
        return async_to_sync(_awaited)(value) if isawaitable(value) else value

    async def ado(self) -> Any:
        if iscoroutinefunction(self.function):
            return await self.function(self.argument)
        value = await sync_to_async(partial(self.function, self.argument))()
        return await value if isawaitable(value) else value


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


class Either(NamedTuple):
    """The step that calls `do` in sync code, and `ado` in async code."""

    do: Any
    ado: Any
