"""Async commands that are issued while others are in flight leave together when these are back."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any, NamedTuple

from redis import exceptions as errors

from ..protocol.plans import Answer, Failure, Run
from .clients import arrived, heed
from .loops import END, LATE, Patience, apart, dropped, ended
from .wire import REDIS_ERRORS, answered, clock, command, pack, pack_step, why

#: Other ends of an await: the time is over, or a task of redis-py's was cancelled at the end of
#: the loop.
_ENDS = (asyncio.TimeoutError, asyncio.CancelledError)

#: Commands in a batch at the most.
MOST = 512
#: So many are worth two batches: the server works on the first while this process reads the other.
MANY = 32
#: What verbs answer with, as redis-py has it.
_REPLIES = frozenset({bytes, str, list})


class Order(NamedTuple):
    """A step to run, with the script's whole source or not, and the future of its answer."""

    step: Run
    whole: bool
    done: asyncio.Future[Answer]


class Batch(NamedTuple):
    """Orders that left together at `sent`, and how long their replies are waited for."""

    orders: list[Order]
    sent: float
    patience: Patience


class Batcher:
    """Sends in the order of submission, on one event loop, over one connection at a time.

    The work of redis-py's pipeline at half its price: a pipeline packs every word anew, and sets a
    timer for every reply.
    """

    # Invariants: between two runs of the flusher there is no connection, and nothing is queued or
    # in flight; every queued order is sent, or its future ends with a Failure.
    def __init__(self, client: Any) -> None:
        self._pool = client.connection_pool
        self._connection: Any = None
        self._queue: list[Order] = []
        self._flying: set[asyncio.Future[Answer]] = set()
        self._flusher: asyncio.Task[None] | None = None

    def submit(self, step: Run, whole: bool = False) -> asyncio.Future[Answer]:
        """A future of the answer; it is sent even when the future is cancelled meanwhile."""
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._queue.append(Order(step, whole, done))
        if self._flusher is None:
            self._flusher = apart(self._flush())
        return done

    async def aclose(self) -> None:
        """Wait until nothing is queued or in flight; after END seconds the rest fails."""
        if self._flusher is not None:
            await asyncio.wait([self._flusher], timeout=END)
        if self._flusher is not None:
            self._abandon()
            await ended(self._flusher)

    def drop(self) -> None:
        """As aclose, of a loop that is closed."""
        dropped(self._flusher)
        self._queue.clear()
        self._flying.clear()

    async def _flush(self) -> None:
        try:
            while self._queue:
                await self._fly()
                await self._hang_up()
        except Exception as error:
            # Nobody reads what may still come of it: the next command would take it for its own.
            await self._hang_up(broken=True)
            self._abandon(repr(error))
            raise
        finally:
            # No await from here to the end of the task: the next step starts another flusher.
            self._flusher = None
            self._abandon()

    async def _fly(self) -> None:
        batch: Batch | None = None
        while self._queue or batch is not None:
            if batch is None:
                batch = await self._send(self._take(split=True))
                continue
            replies, received = await self._read(batch), clock()
            # The next orders leave before these replies wake any task.
            ahead = await self._send(self._take()) if self._queue else None
            self._deliver(batch, replies, received)
            batch = ahead

    def _abandon(self, why: str = "the event loop is ending") -> None:
        """Nothing is left here, unless this task was ended."""
        orders, self._queue = self._queue, []
        for done in [*self._flying, *(order.done for order in orders)]:
            if not done.done():
                ended = errors.ConnectionError(why)
                done.set_exception(Failure(ended, clock(), "unanswered"))
        self._flying.clear()

    def _take(self, split: bool = False) -> list[Order]:
        count = min(MOST, len(self._queue))
        if split and count >= MANY:
            count //= 2
        taken, self._queue = self._queue[:count], self._queue[count:]
        self._flying.update(order.done for order in taken)
        return taken

    async def _send(self, orders: list[Order]) -> Batch | None:
        """None when it failed: then all orders have their answer."""
        patience = Patience(min(order.step.timeout for order in orders))
        batch, connected = Batch(orders, clock(), patience), False
        try:
            packed = [
                pack(command(step, whole=True)) if whole else pack_step(step)
                for step, whole, _ in orders
            ]
            with patience:
                await self._connect(patience)
                connected = True
                await self._connection.send_packed_command([b"".join(packed)])
        except (*REDIS_ERRORS, *_ENDS) as error:
            await self._failed(batch, error, sent=connected)
            # What the driver's exceptions are chained to keeps this frame: the orders must not hang
            # on it, for theirs are the leases in the frames above.
            del orders, batch
            return None
        return batch

    async def _connect(self, patience: Patience) -> None:
        while self._connection is None:
            late = patience.late
            try:
                self._connection = await self._pool.get_connection()
            except errors.TimeoutError:
                if patience.late - late < LATE:  # else redis-py's timer says nothing of the server
                    raise

    async def _read(self, batch: Batch) -> list[Any]:
        """A reply for each order, exceptions where the server answered with an error; or none at
        all: then all orders have their answer."""
        replies: list[Any] = []
        own = self._connection.socket_timeout
        if own is not None:
            batch.patience.limit(own)
        try:
            with batch.patience:
                came = arrived(self._connection)
                for _ in batch.orders:
                    reply = came()
                    if type(reply) not in _REPLIES:
                        reply = await self._other(reply)
                    replies.append(reply)
        except (*REDIS_ERRORS, *_ENDS) as error:
            await self._failed(batch, error, sent=True)
            return []
        batch.patience.stop()
        return replies

    async def _other(self, came: Any) -> Any:
        """The next reply, where that is not what `came` already; an error of the server's."""
        if isinstance(came, errors.ConnectionError):
            raise came
        if isinstance(came, errors.ResponseError):
            return came
        if isinstance(came, list):  # it is about the connection, and redis-py's to heed
            await heed(self._connection, came)
        try:
            return await self._connection.read_response(timeout=math.inf)
        except errors.ResponseError as error:
            return error

    def _deliver(self, batch: Batch, replies: list[Any], received: float) -> None:
        again = []
        for (step, whole, done), reply in zip(batch.orders, replies, strict=False):
            self._flying.discard(done)
            if isinstance(reply, errors.NoScriptError) and not whole:
                again.append(Order(step, True, done))
            elif isinstance(reply, Exception):
                if not done.done():
                    done.set_exception(Failure(reply, received, why(reply, True)))
            elif not done.done():
                done.set_result(Answer(answered(reply), batch.sent, received))
        # First in line: orders submitted meanwhile may undo these.
        self._queue[:0] = again

    async def _failed(self, batch: Batch, error: BaseException, sent: bool) -> None:
        batch.patience.stop()
        # Its traceback leads to the batch and back: only the garbage collector would free either.
        error.__traceback__ = None
        cause = error if str(error) else errors.TimeoutError("no reply in time")
        for _, _, done in batch.orders:
            self._flying.discard(done)
            if not done.done():
                done.set_exception(Failure(cause, clock(), why(cause, sent)))
        await self._hang_up(broken=True)

    async def _hang_up(self, broken: bool = False) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(*REDIS_ERRORS):
                if broken:
                    await connection.disconnect(nowait=True)
                await self._pool.release(connection)
