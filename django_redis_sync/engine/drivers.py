"""Carries plans out: `drive` in sync code, `adrive` in async code."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from ..exceptions import ForeignValue, SyncError, Unavailable
from ..protocol.plans import Failure, Plan, Run, Step
from .wire import FORBIDDEN, clock

if TYPE_CHECKING:
    from .server import AsyncServer, Server


def error_of(failure: Failure, step: Step | None = None) -> SyncError:
    """What the caller of the library sees of a failure of `step`."""
    text = str(failure.cause) or type(failure.cause).__name__
    if isinstance(failure.cause, ResponseError) and "WRONGTYPE" in text:
        keys = ", ".join(step.keys) if isinstance(step, Run) else "a name"
        return ForeignValue(f"another program's value is in one of {keys}: {text}")
    if any(words in text for words in FORBIDDEN):
        text += " (docs: the least ACL that this app needs)"
    return Unavailable(f"Redis: {text}", maybe_executed=failure.why == "unanswered")


def drive(plan: Plan, server: Server) -> Any:
    """The plan's result. Unavailable or ForeignValue when Redis gave no useful answer."""
    try:
        step = plan.send(None)  # type: ignore[arg-type]
        while True:
            try:
                answer = server.perform(step)
            except BaseException as error:
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as stop:
        return stop.value
    except Failure as failure:
        raise error_of(failure, step) from failure.cause


async def adrive(plan: Plan, server: AsyncServer, *, to_the_end: bool = False) -> Any:
    """As `drive`. Cancelled: the plan undoes what it sent before the cancellation goes on.

    `to_the_end`: a cancellation waits until the plan has ended.
    """
    cancelled: asyncio.CancelledError | None = None
    try:
        step = plan.send(None)  # type: ignore[arg-type]
        while True:
            doing = server.perform(step)
            try:
                while True:
                    try:
                        answer = await (asyncio.shield(doing) if to_the_end else doing)
                        break
                    except asyncio.CancelledError as error:
                        if not to_the_end:
                            raise
                        if doing.cancelled():  # the loop is ending: ask once more
                            raise Failure(error, clock(), "unanswered") from error
                        cancelled = error
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError):
                    to_the_end = True
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as stop:
        if cancelled is not None:
            raise cancelled from None
        return stop.value
    except Failure as failure:
        if cancelled is not None:
            raise cancelled from None
        raise error_of(failure, step) from failure.cause
