"""Batches of async commands. While a batch is in flight, new commands are queued for the next."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any, NamedTuple

from redis import exceptions as errors

from ..protocol.steps import Answer, Failure, Run
from .clients import buffered_replies, handle_push
from .loops import END, LATE, LoopTimeout, end_tasks, start_task
from .wire import REDIS_ERRORS, answered, clock, pack, pack_step, why, words_of

#: Exceptions that end an await without a reply: the time limit passed, or the ending event loop
#: cancelled the task.
_ENDS = (asyncio.TimeoutError, asyncio.CancelledError)

#: Max commands in a batch.
MAX_BATCH = 512
#: At least this many commands are sent as two batches. This is faster, because the server works on
#: the second batch while this process reads the replies of the first one.
SPLIT_FROM = 32
#: Types of a script's reply.
_REPLIES = frozenset({bytes, str, list})


class Command(NamedTuple):
    """A step and the future of its answer. `whole`: True to send the source of the script."""

    step: Run
    whole: bool
    done: asyncio.Future[Answer]


class Batch(NamedTuple):
    """Commands that were sent together at `sent`, and the time limit for their replies."""

    commands: list[Command]
    sent: float
    limit: LoopTimeout


class Batcher:
    """Sends steps in the order of submission, on one event loop, over one connection at a time.

    It costs half as much as redis-py's pipeline, which packs every word again and sets a timer for
    every reply.
    """

    # The flusher is the task that sends batches. Invariants: between two runs of the flusher, there
    # is no connection, and nothing is queued or in flight. Every queued command is sent, or fails.
    def __init__(self, client: Any) -> None:
        self._pool = client.connection_pool
        self._patience = self._pool.connection_kwargs.get("socket_timeout") or math.inf
        self._connection: Any = None
        self._queue: list[Command] = []
        self._in_flight: list[Batch] = []
        self._flusher: asyncio.Task[None] | None = None

    def submit(self, step: Run) -> asyncio.Future[Answer]:
        """Return a future of the answer. The step is sent even if the future is cancelled."""
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._queue.append(Command(step, False, done))
        if self._flusher is None:
            self._flusher = start_task(self._flush())
        return done

    async def aclose(self) -> None:
        """Wait until nothing is queued or in flight. After END seconds, fail the commands that are
        left."""
        if self._flusher is not None:
            await asyncio.wait([self._flusher], timeout=END)
        if self._flusher is not None:
            self._fail_all("the event loop is ending")
            await end_tasks(self._flusher)

    async def _flush(self) -> None:
        reason = "the event loop is ending"
        try:
            while self._queue:
                await self._run_batches()
                await self._give_back()
        except Exception as error:
            reason = repr(error)
            # Close the connection. Otherwise an unread reply would be taken for that of the next
            # command.
            await self._give_back(broken=True)
            raise
        finally:
            # No await follows, so no step can be submitted before this task ends. The next step
            # starts a new task, because `_flusher` is None.
            self._flusher = None
            self._fail_all(reason)

    async def _run_batches(self) -> None:
        batch: Batch | None = None
        while self._queue or batch is not None:
            if batch is None:
                batch = await self._send(self._take(split=True))
                continue
            replies, received = await self._read(batch), clock()
            # First send the next batch. The server works on it while these replies wake tasks.
            ahead = await self._send(self._take()) if self._queue else None
            self._deliver(batch, replies, received)
            batch = ahead

    def _fail_all(self, reason: str) -> None:
        """Fail the commands that still wait for an answer, because the flusher has ended."""
        for commands in (*(batch.commands for batch in self._in_flight), self._queue):
            _fail(commands, Failure(errors.ConnectionError(reason), clock(), "unanswered"))
        self._in_flight, self._queue = [], []

    def _take(self, split: bool = False) -> list[Command]:
        count = min(MAX_BATCH, len(self._queue))
        if split and count >= SPLIT_FROM:
            count //= 2
        taken, self._queue = self._queue[:count], self._queue[count:]
        return taken

    async def _send(self, commands: list[Command]) -> Batch | None:
        """Send commands and return their batch. On an error, fail each command and return None."""
        limit = LoopTimeout(min(self._patience, *(step.timeout for step, _, _ in commands)))
        batch, connected = Batch(commands, clock(), limit), False
        self._in_flight.append(batch)
        try:
            packed = [
                pack(words_of(step, whole=True)) if whole else pack_step(step)
                for step, whole, _ in commands
            ]
            with limit:
                await self._connect(limit)
                connected = True
                await self._connection.send_packed_command([b"".join(packed)])
        except (*REDIS_ERRORS, *_ENDS) as error:
            await self._failed(batch, error, sent=connected)
            return None
        return batch

    async def _connect(self, limit: LoopTimeout) -> None:
        while self._connection is None:
            late = limit.late
            try:
                self._connection = await self._pool.get_connection()
            except errors.TimeoutError:
                if limit.late - late < LATE:  # else the loop was busy: connect again
                    raise

    async def _read(self, batch: Batch) -> list[Any]:
        """Return a list with a reply for each command. If the server answered a command with an
        error, the list has the exception. If reading fails, fail each command and return an empty
        list."""
        replies: list[Any] = []
        try:
            with batch.limit:
                buffered = buffered_replies(self._connection)
                for _ in batch.commands:
                    reply = buffered()
                    if type(reply) not in _REPLIES:
                        reply = await self._other(reply)
                    replies.append(reply)
        except (*REDIS_ERRORS, *_ENDS) as error:
            await self._failed(batch, error, sent=True)
            return []
        batch.limit.stop()
        return replies

    async def _other(self, buffered: Any) -> Any:
        """Return the next reply, or an exception for an error of the server. `buffered`: a result
        of `buffered_replies` that is not a reply. It is an exception, a push, or another value if
        the connection has read nothing yet."""
        if isinstance(buffered, errors.ConnectionError):
            raise buffered
        if isinstance(buffered, errors.ResponseError):
            return buffered
        if isinstance(buffered, list):  # a push about the connection, which redis-py handles
            await handle_push(self._connection, buffered)
        try:
            return await self._connection.read_response(timeout=math.inf)
        except errors.ResponseError as error:
            return error

    def _deliver(self, batch: Batch, replies: list[Any], received: float) -> None:
        again = []
        for (step, whole, done), reply in zip(batch.commands, replies, strict=False):
            if isinstance(reply, errors.NoScriptError) and not whole:
                again.append(Command(step, True, done))
            elif isinstance(reply, Exception):
                if not done.done():
                    done.set_exception(Failure(reply, received, why(reply, True)))
            elif not done.done():
                done.set_result(Answer(answered(reply), batch.sent, received))
        self._queue[:0] = again
        self._forget(batch)

    def _forget(self, batch: Batch) -> None:
        self._in_flight = [one for one in self._in_flight if one is not batch]

    async def _failed(self, batch: Batch, error: BaseException, sent: bool) -> None:
        batch.limit.stop()
        _drop_tracebacks(error)
        cause = error if str(error) else errors.TimeoutError("no reply in time")
        _fail(batch.commands, Failure(cause, clock(), why(cause, sent)))
        self._forget(batch)
        await self._give_back(broken=True)

    async def _give_back(self, broken: bool = False) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(*REDIS_ERRORS):
                if broken:
                    await connection.disconnect(nowait=True)
                await self._pool.release(connection)


def _fail(commands: list[Command], failure: Failure) -> None:
    for _, _, done in commands:
        if not done.done():
            done.set_exception(failure)


def _drop_tracebacks(error: BaseException | None) -> None:
    """Drop the tracebacks of an error and of its chained errors.

    The frames of a traceback form a reference cycle with the commands, and refer to the frames of
    the callers. Only the garbage collector would free the leases in those frames.
    """
    while error is not None and error.__traceback__ is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
