"""Drivers: functions that carry out plans. `drive` is for sync code, `adrive` for async code. This
module also sends plain Redis commands."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from redis import exceptions as errors

from ..exceptions import ForeignValue, SyncError, Unavailable
from ..protocol.keys import touched
from ..protocol.plans import UNDO_BUDGET
from ..protocol.steps import Answer, Failure, Plan, Run, Step
from .server import AsyncServer, Server, server_of
from .wire import FORBIDDEN, IMITATION, clock, decoded, is_imitation, why


def error_of(
    failure: Failure, step: Step | None = None, key: str = ""
) -> SyncError | ImproperlyConfigured:
    """Return the exception to raise in the project's code for a failure. `step`: the step that
    failed. `key`: the key of the command, if a plain Redis command failed."""
    text = str(failure.cause) or type(failure.cause).__name__
    if isinstance(failure.cause, errors.ResponseError) and "WRONGTYPE" in text:
        where = f"one of {', '.join(touched(step.keys))}" if isinstance(step, Run) else key
        return ForeignValue(f"another program's value is in {where or 'a key'}: {text}")
    if is_imitation(failure.cause):
        return ImproperlyConfigured(IMITATION)
    if any(words in text for words in FORBIDDEN):
        text += " (the docs list the least ACL that this app needs)"
    return Unavailable(f"Redis: {text}", maybe_executed=failure.why == "unanswered")


def drive(plan: Plan, server: Server, first: Answer | BaseException | None = None) -> Any:
    """Carry out a plan and return its result. Raise Unavailable or ForeignValue if Redis gave no
    usable answer.

    `first`: the answer to the plan's first step, or the exception that the step raised, if the
    caller has already carried out this step. `Acquirer._acquire` and `Lease._give_back` do that,
    because the first answer is nearly always enough, and a plan that is not made takes no time.
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
    """Async version of `drive`. If the calling task is cancelled, the plan undoes its steps.

    `to_the_end`: True to let a cancelled plan continue to its end instead. In both cases, this
    function raises CancelledError when the plan has ended, but after at most UNDO_BUDGET seconds.
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
        # Prevent a reference cycle: if `doing` has an exception, its traceback refers to this
        # frame. If the frame referred to `doing`, leases in callers' frames would live until the
        # garbage collector runs.
        del doing
        server.left()


def _tell(ended: asyncio.Future[None], _: Any) -> None:
    if not ended.done():
        ended.set_result(None)


@dataclass(slots=True)
class _Cancellation:
    """Delays a cancellation of this task until the current step is done. `args`: the arguments of
    the delayed CancelledError, or None if none is delayed. `until`: the time, by the loop's clock,
    at which the task stops waiting for the step, or None for no limit."""

    args: tuple[Any, ...] | None = None
    until: float | None = None

    async def outlasted_by(self, doing: asyncio.Future[Answer]) -> Answer:
        """Return the result of `doing`. If this task is cancelled meanwhile, store the arguments of
        the CancelledError in `args`. Raise Failure if there is no result at the time `until`."""
        loop = doing.get_loop()
        now = loop.time
        try:
            while not doing.done() and (self.until is None or now() < self.until):
                try:
                    if self.until is None:
                        # A task that awaited `doing` itself would cancel it. asyncio.wait() would
                        # take 1 % of the instructions of an acquire and its release.
                        ended: asyncio.Future[None] = loop.create_future()
                        doing.add_done_callback(partial(_tell, ended))
                        await ended
                    else:
                        await asyncio.wait((doing,), timeout=self.until - now())
                except asyncio.CancelledError as error:
                    self.args = error.args
                    self.until = self.until or now() + UNDO_BUDGET
            if doing.cancelled():  # by this package, when the event loop ends
                raise Failure(errors.ConnectionError("cancelled"), clock(), "unanswered")
            if not doing.done():
                # No task waits for `doing` any more. Retrieve its exception, because asyncio logs
                # exceptions that are never retrieved.
                doing.add_done_callback(lambda done: done.cancelled() or done.exception())
                late = errors.TimeoutError("the task was cancelled, and no answer arrived in time")
                raise Failure(late, clock(), "final")
            return doing.result()
        finally:
            del doing  # prevents a reference cycle, as in `adrive`


def command(alias: str, *args: Any) -> Any:
    """Send a Redis command and return the reply. Raise Unavailable or ForeignValue if Redis gave no
    usable answer. The command may be sent twice."""
    try:
        return decoded(server_of(alias).command(*args))
    except Failure as failure:
        raise error_of(failure, key=_key(args)) from failure.cause


def pipelined(alias: str, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Send several read-only commands in one round trip, and return the replies. Raise Unavailable
    or ForeignValue if Redis gave no usable answer to one of the commands."""
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
    """Return the key of a command: its first argument, or "" if it has no arguments."""
    return str(words[1]) if len(words) > 1 else ""


def _shaped(words: Sequence[Any], reply: Any) -> Any:
    """Return a reply with bytes decoded to str. `words`: the command. The reply to HGETALL is
    returned as a dict, although over RESP2 the server sends a flat list."""
    found = decoded(reply)
    if words[0] == "HGETALL" and isinstance(found, list):
        return dict(zip(found[::2], found[1::2], strict=True))
    return found
