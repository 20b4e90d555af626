"""Drivers of plans, `drive` in sync code and `adrive` in async code, and plain Redis commands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from redis import exceptions as errors

from ..exceptions import ForeignValue, SyncError, Unavailable
from ..protocol.keys import touched
from ..protocol.plans import UNDO_BUDGET
from ..protocol.steps import Answer, Failure, Plan, Run, Step
from .server import AsyncServer, Server, server_of
from .wire import FORBIDDEN, clock, decoded, why


def error_of(failure: Failure, step: Step | None = None, key: str = "") -> SyncError:
    """Return the error that the caller of the library sees for a failure of `step`, or of another
    command on `key`."""
    text = str(failure.cause) or type(failure.cause).__name__
    if isinstance(failure.cause, errors.ResponseError) and "WRONGTYPE" in text:
        where = f"one of {', '.join(touched(step.keys))}" if isinstance(step, Run) else key
        return ForeignValue(f"another program's value is in {where or 'a key'}: {text}")
    if any(words in text for words in FORBIDDEN):
        text += " (docs: the least ACL that this app needs)"
    return Unavailable(f"Redis: {text}", maybe_executed=failure.why == "unanswered")


def attempt(
    server: Server, step: Run, known: Callable[..., Any], plan: Callable[..., Plan], *of: Any
) -> Any:
    """Return the result of `plan(*of)`, which begins with `step`.

    `known(answer, *of)` returns the result if the first answer is enough, else None. In most cases,
    the first answer is enough, and no plan has to be made.
    """
    try:
        answer = server.run(step)
        result = known(answer, *of)
        if result is not None:
            return result
    except BaseException as error:
        return drive(plan(*of), server, error)
    return drive(plan(*of), server, answer)


def drive(plan: Plan, server: Server, first: Answer | BaseException | None = None) -> Any:
    """Return the plan's result. Raise Unavailable or ForeignValue if Redis gave no usable answer.

    `first`: the outcome of the plan's first step, if the step was carried out before.
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
    """Async version of `drive`. If it is cancelled, the plan first undoes what it has sent.

    With `to_the_end`, the plan first continues to its end instead. In both cases the cancellation
    takes effect after at most UNDO_BUDGET seconds.
    """
    cancellation = _Cancellation()
    server.plans += 1
    doing: asyncio.Future[Answer] | None = None
    try:
        step = plan.send(None)  # type: ignore[arg-type]
        while True:
            doing = server.perform(step)
            try:
                answer = await (cancellation.outlasted_by(doing) if to_the_end else doing)
            except asyncio.CancelledError as error:
                to_the_end, cancellation.until = True, doing.get_loop().time() + UNDO_BUDGET
                step = plan.throw(error)
            except BaseException as error:
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except (StopIteration, Failure) as end:
        if cancellation.args is not None:
            raise asyncio.CancelledError(*cancellation.args) from None
        if isinstance(end, StopIteration):
            return end.value
        raise error_of(end, step) from end.cause
    finally:
        # Exceptions refer to this frame. If this frame referred to an exception, they would form a
        # cycle, and only the garbage collector would free a lease in a frame above.
        del doing
        server.left()


@dataclass(slots=True)
class _Cancellation:
    """A delayed cancellation of a task. `args`: the arguments of the cancellation, or None if there
    was none. `until`: when it takes effect, by the loop's clock."""

    args: tuple[Any, ...] | None = None
    until: float | None = None

    async def outlasted_by(self, doing: asyncio.Future[Answer]) -> Answer:
        """Return the outcome of `doing`, even if this task is cancelled meanwhile."""
        now = doing.get_loop().time
        try:
            while not doing.done() and (self.until is None or now() < self.until):
                left = None if self.until is None else self.until - now()
                try:
                    await asyncio.wait((doing,), timeout=left)
                except asyncio.CancelledError as error:
                    self.args = error.args
                    self.until = self.until or now() + UNDO_BUDGET
            if doing.cancelled():  # at the end of the loop, this package cancels its tasks
                raise Failure(errors.ConnectionError("cancelled"), clock(), "unanswered")
            if not doing.done():
                # Retrieve the exception that no task waits for. Otherwise asyncio logs it.
                doing.add_done_callback(lambda done: done.cancelled() or done.exception())
                late = errors.TimeoutError("cancelled, and no answer in time")
                raise Failure(late, clock(), "final")
            return doing.result()
        finally:
            del doing  # as in `adrive`


def command(alias: str, *args: Any) -> Any:
    """Send a Redis command, which may be sent twice, and return the reply. Raise Unavailable or
    ForeignValue if Redis gave no usable answer."""
    try:
        return decoded(server_of(alias).command(*args))
    except Failure as failure:
        raise error_of(failure, key=_key(args)) from failure.cause


def pipelined(alias: str, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Send several commands that only read, in one round trip, and return the replies. Raise
    Unavailable or ForeignValue if Redis gave no usable answer to one of them."""
    try:
        replies = server_of(alias).commands(commands)
    except Failure as failure:
        raise error_of(failure) from failure.cause
    for words, reply in zip(commands, replies, strict=True):
        if isinstance(reply, errors.ResponseError):
            wrong = Failure(reply, clock(), why(reply, True))
            raise error_of(wrong, key=_key(words)) from reply
    return [_shaped(*pair) for pair in zip(commands, replies, strict=True)]


def _key(words: Sequence[Any]) -> str:
    """Return the key of a command, or "" if the command has no arguments."""
    return str(words[1]) if len(words) > 1 else ""


def _shaped(words: Sequence[Any], reply: Any) -> Any:
    """Return a decoded reply. For HGETALL, return a dict, even if the protocol RESP2 sent a flat
    list."""
    found = decoded(reply)
    if words[0] == "HGETALL" and isinstance(found, list):
        return dict(zip(found[::2], found[1::2], strict=True))
    return found
