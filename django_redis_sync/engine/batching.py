"""Batches of async commands. While a batch is in flight, new commands wait for the next
batch."""

from __future__ import annotations

import asyncio
import contextlib
import math
from functools import partial
from typing import Any, NamedTuple

from redis import exceptions as errors

from ..protocol.steps import Answer, Failure, Run
from .clients import buffered_replies, drop_idle, handle_push
from .loops import END, LATE, LoopTimeout, end_tasks, start_task
from .wire import REDIS_ERRORS, answered, clock, pack, pack_step, why, words_of

#: The exceptions that end an await without a reply: TimeoutError if the time limit has passed,
#: CancelledError if the event loop is ending.
_ENDS = (asyncio.TimeoutError, asyncio.CancelledError)

#: Max commands in a batch.
MAX_BATCH = 512
#: If at least this many commands are queued, they are sent as two batches. This is faster, because
#: the server works on the second batch while this process reads the replies to the first one.
SPLIT_FROM = 32
NO_REPLY = "no reply in time"
#: Min seconds without a further reply to a batch, after which its connection may be given up.
SILENCE = 0.5
#: The possible types of a script's reply. A push message has another type: a subclass of list.
_REPLIES = frozenset({bytes, str, list})


class PendingStep(NamedTuple):
    """A step and the future of its answer. `unknown`: how often the server replied that it doesn't
    know the script. `asked`: the time of the submission, by the clock `Batcher._passed`."""

    step: Run
    unknown: int
    done: asyncio.Future[Answer]
    asked: float


class Batch:
    """Commands that are sent together, at the time `sent`, and their `replies` so far. `limit`: the
    time limit for all replies. `connected`: True if the server may have received a command.

    Without the delays of a busy event loop, `age` is the seconds since `sent`, and `silent` the
    seconds since the last reply. `read`: number of replies when `silent` was last computed."""

    __slots__ = ("age", "commands", "connected", "limit", "read", "replies", "sent", "silent")
    limit: LoopTimeout

    def __init__(self, commands: list[PendingStep]) -> None:
        self.commands, self.sent, self.connected = commands, clock(), False
        self.replies: list[Any] = []
        self.age, self.silent, self.read = 0.0, 0.0, 0


class Batcher:
    """Sends steps in the order of submission, on one event loop, over one connection at a time.

    redis-py's pipeline would take twice as long, because it packs every word of every command, and
    sets a timer for every reply.
    """

    # The flusher is the task that sends batches. Invariants: If no flusher runs, there is no
    # connection, and no command is queued or in flight. Before a flusher ends, it sends or fails
    # every queued command.
    def __init__(self, client: Any) -> None:
        self._pool = client.connection_pool
        self._patience = self._pool.connection_kwargs.get("socket_timeout") or math.inf
        self._connection: Any = None
        self._queue: list[PendingStep] = []
        self._in_flight: list[Batch] = []
        self._flusher: asyncio.Task[None] | None = None
        #: Seconds in which commands were in flight so far, without the delays of a busy event loop.
        self._passed = 0.0

    def submit(self, step: Run) -> asyncio.Future[Answer]:
        """Queue a step and return a future of its answer. The step is sent even if the future is
        cancelled."""
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._queue.append(PendingStep(step, 0, done, self._passed))
        if self._flusher is None:
            self._flusher = start_task(self._flush())
        return done

    async def aclose(self) -> None:
        """Wait until all commands are answered. After END seconds, fail the remaining commands."""
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
            # Close the connection. If it were used again, an unread reply would be taken for the
            # reply to the next command.
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
            # Send the next batch before delivering these replies. While the replies wake tasks, the
            # server then works on the next batch.
            ahead = await self._send(self._take()) if self._queue else None
            self._deliver(batch, replies, received)
            batch = ahead

    def _fail_all(self, reason: str) -> None:
        """Fail all commands that are queued or in flight. `reason`: the text of the error."""
        if not (self._in_flight or self._queue):
            return
        for commands in (*(batch.commands for batch in self._in_flight), self._queue):
            _fail(commands, Failure(errors.ConnectionError(reason), clock(), "unanswered"))
        self._in_flight, self._queue = [], []

    def _take(self, split: bool = False) -> list[PendingStep]:
        count = min(MAX_BATCH, len(self._queue))
        if split and count >= SPLIT_FROM:
            count //= 2
        taken, self._queue = self._queue[:count], self._queue[count:]
        return taken

    async def _send(self, commands: list[PendingStep]) -> Batch | None:
        """Send commands and return their batch. On an error, fail each command and return None."""
        batch = Batch(commands)
        longest = min(self._patience, max(one.step.timeout for one in commands))
        batch.limit = LoopTimeout(longest, partial(self._waited, batch))
        self._in_flight.append(batch)
        try:
            with batch.limit:
                await self._connect(batch.limit)
                batch.connected = True
                words = _packed(batch.commands)
                await self._connection.send_packed_command([b"".join(words)])
        except (*REDIS_ERRORS, *_ENDS) as error:
            await self._failed(batch, error)
            return None
        except Exception as error:
            # For example, the project's credential provider failed. As in sync code, the callers
            # get its exception. Drop this frame from its traceback: see `_drop_tracebacks`.
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
            await self._give_up(batch, error)
            for one in commands:  # asyncio logs exceptions that are never retrieved
                one.done.cancelled() or one.done.exception()
            return None
        return batch

    def _waited(self, batch: Batch, seconds: float) -> bool:
        """Fail the commands whose time limits have passed, now that `batch` has been in flight for
        `seconds` more. Return True to give up the connection for all commands.

        If the server only is slow, further replies arrive. The impatience of some commands then
        must not end the others, because the server would execute these twice."""
        self._passed += seconds
        batch.age += seconds
        batch.silent = batch.silent + seconds if len(batch.replies) == batch.read else 0.0
        batch.read = len(batch.replies)
        late = [one for one in batch.commands if one.step.timeout <= batch.age]
        _fail(late, _failure(errors.TimeoutError(NO_REPLY), batch.connected))
        if not batch.connected and late:  # a command that has failed as not sent must not be sent
            batch.commands = [one for one in batch.commands if one.step.timeout > batch.age]
        # A queued command can be sent over a new connection.
        return batch.silent >= SILENCE and (
            bool(late) or any(one.asked + one.step.timeout <= self._passed for one in self._queue)
        )

    async def _connect(self, limit: LoopTimeout) -> None:
        while self._connection is None:
            late = limit.late
            try:
                self._connection = await self._pool.get_connection()
            except errors.TimeoutError:
                # If the event loop was busy, this may have caused the timeout, so connect again.
                # Otherwise, raise the error.
                if limit.late - late < LATE:
                    raise
            except REDIS_ERRORS:
                raise
            except Exception:
                await drop_idle(self._pool)
                raise

    async def _read(self, batch: Batch) -> list[Any]:
        """Return the reply to each command of `batch`, in order. An error reply is returned as an
        exception. If reading fails, fail all commands of the batch and return an empty list."""
        replies = batch.replies
        try:
            with batch.limit:
                buffered = buffered_replies(self._connection)
                for _ in batch.commands:
                    reply = buffered()
                    if type(reply) not in _REPLIES:
                        reply = await self._other(reply)
                    replies.append(reply)
        except (*REDIS_ERRORS, *_ENDS) as error:
            await self._failed(batch, error)
            return []
        batch.limit.stop()
        return replies

    async def _other(self, buffered: Any) -> Any:
        """Return the next reply. An error reply is returned as an exception. Raise ConnectionError
        if the connection is lost.

        `buffered`: the next item that the connection has read: an exception or a push message. Any
        other value means that the connection has not read a further item yet.
        """
        if isinstance(buffered, errors.ConnectionError):
            raise buffered
        if isinstance(buffered, errors.ResponseError):
            return buffered
        if isinstance(buffered, list):  # a push message, which redis-py handles
            await handle_push(self._connection, buffered)
        try:
            return await self._connection.read_response(timeout=math.inf)
        except errors.ResponseError as error:
            return error

    def _deliver(self, batch: Batch, replies: list[Any], received: float) -> None:
        again = []
        for pending, reply in zip(batch.commands, replies, strict=False):
            done = pending.done
            if isinstance(reply, errors.NoScriptError) and pending.unknown < 2:
                again.append(pending._replace(unknown=pending.unknown + 1))
            elif isinstance(reply, Exception):
                if not done.done():
                    done.set_exception(Failure(reply, received, why(reply, True)))
            elif not done.done():
                done.set_result(Answer(answered(reply), batch.sent, received))
        self._queue[:0] = again
        self._forget(batch)

    def _forget(self, batch: Batch) -> None:
        self._in_flight = [one for one in self._in_flight if one is not batch]

    async def _failed(self, batch: Batch, error: BaseException) -> None:
        _drop_tracebacks(error)
        cause = error if str(error) else errors.TimeoutError(NO_REPLY)
        await self._give_up(batch, _failure(cause, batch.connected))

    async def _give_up(self, batch: Batch, error: Exception) -> None:
        """Let each command of the batch raise `error`, and close the connection."""
        batch.limit.stop()
        _fail(batch.commands, error)
        self._forget(batch)
        await self._give_back(broken=True)

    async def _give_back(self, broken: bool = False) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(*REDIS_ERRORS):
                if broken:
                    await connection.disconnect(nowait=True)
                await self._pool.release(connection)


def _packed(commands: list[PendingStep]) -> list[bytes]:
    """Return commands that are sent together, each in Redis's wire format.

    Scripts are long. If the server does not know a script, only the first command contains its
    source: the server knows the script when it executes the others. If it has forgotten the script
    meanwhile, each command contains the source.
    """
    packed, sourced = [], set[str]()
    for step, unknown, _, _ in commands:
        if unknown > 1 or (unknown and step.verb not in sourced):
            sourced.add(step.verb)
            packed.append(pack(words_of(step, whole=True)))
        else:
            packed.append(pack_step(step))
    return packed


def _failure(cause: BaseException, sent: bool) -> Failure:
    return Failure(cause, clock(), why(cause, sent))


def _fail(commands: list[PendingStep], error: Exception) -> None:
    for one in commands:
        if not one.done.done():
            one.done.set_exception(error)


def _drop_tracebacks(error: BaseException | None) -> None:
    """Drop the tracebacks of an error and of its chained errors.

    The commands refer to the error, and the frames of its traceback refer to the commands. Such a
    reference cycle keeps leases in the callers' frames alive until the garbage collector runs.
    """
    while error is not None and error.__traceback__ is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
