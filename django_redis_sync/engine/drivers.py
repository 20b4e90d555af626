"""Carries plans out: `drive` in sync code, `adrive` in async code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from redis import exceptions as errors

from ..exceptions import ForeignValue, SyncError, Unavailable
from ..protocol.keys import touched
from ..protocol.plans import UNDO_BUDGET, Answer, Failure, Plan, Run, Step
from .loops import Outlasting
from .wire import FORBIDDEN, clock

if TYPE_CHECKING:
    from .server import AsyncServer, Server


def error_of(failure: Failure, step: Step | None = None) -> SyncError:
    """The error that the caller of the library sees for a failure of `step`."""
    text = str(failure.cause) or type(failure.cause).__name__
    if isinstance(failure.cause, errors.ResponseError) and "WRONGTYPE" in text:
        keys = ", ".join(touched(step.keys)) if isinstance(step, Run) else "a name"
        return ForeignValue(f"another program's value is in one of {keys}: {text}")
    if any(words in text for words in FORBIDDEN):
        text += " (docs: the least ACL that this app needs)"
    return Unavailable(f"Redis: {text}", maybe_executed=failure.why == "unanswered")


def attempt(
    server: Server,
    step: Run,
    known: Callable[..., Any],
    plan: Callable[..., Plan],
    *of: Any,
) -> Any:
    """The result of `plan(*of)`, which begins with `step`. Mostly the first answer is all that it
    asks for: `known(answer, *of)` is the result then, or None, and there is no plan."""
    try:
        answer = server.run(step)
        result = known(answer, *of)
        if result is not None:
            return result
    except BaseException as error:
        return drive(plan(*of), server, error)
    return drive(plan(*of), server, answer)


def drive(plan: Plan, server: Server, first: Answer | BaseException | None = None) -> Any:
    """The plan's result. Unavailable or ForeignValue when Redis gave no useful answer.

    `first`: what its first step came to, where that was made already.
    """
    try:
        step = plan.send(None)  # type: ignore[arg-type]
        if first is not None:
            step = plan.throw(first) if isinstance(first, BaseException) else plan.send(first)
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

    `to_the_end`: a cancellation waits until the plan has ended. Either takes UNDO_BUDGET seconds at
    the most.
    """
    cancelled: tuple[Any, ...] | None = None
    until: float | None = None
    server.plans += 1
    doing: asyncio.Future[Answer] | None = None
    try:
        step = plan.send(None)  # type: ignore[arg-type]
        while True:
            doing = server.perform(step)
            if to_the_end:
                doing = Outlasting(doing, until, _left_alone)
            try:
                answer = await doing
            except asyncio.CancelledError as error:
                if isinstance(doing, Outlasting):
                    cancelled, until = error.args, doing.until
                    step = _resumed(plan, doing)
                else:
                    to_the_end, until = True, doing.get_loop().time() + UNDO_BUDGET
                    step = plan.throw(error)
            except BaseException as error:
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as stop:
        if cancelled is not None:
            raise asyncio.CancelledError(*cancelled) from None
        return stop.value
    except Failure as failure:
        if cancelled is not None:
            raise asyncio.CancelledError(*cancelled) from None
        raise error_of(failure, step) from failure.cause
    finally:
        # Exceptions refer to this frame. Its references must not lead back to them, or a lease
        # in a frame above would be held until the garbage collector comes.
        del doing
        server.left()


def _resumed(plan: Plan, done: asyncio.Future[Answer]) -> Step:
    try:
        answer = done.result()
    except Failure as failure:
        return plan.throw(failure)
    return plan.send(answer)


def _left_alone() -> Failure:
    """Takes the answer that a cancelled task can't wait for any longer."""
    return Failure(errors.TimeoutError("cancelled, and no answer in time"), clock(), "final")
