"""Async commands that are issued while others are in flight leave together when these are back."""

from __future__ import annotations

import asyncio
import math
import sys
from typing import Any, NamedTuple

from redis import exceptions as errors

from ..protocol.plans import Answer, Failure, Run
from .wire import REDIS_ERRORS, clock, command, pack, pack_step, text, why

if sys.version_info >= (3, 11, 3):
    from asyncio import timeout as time_limit  # type: ignore[attr-defined]
else:
    from async_timeout import timeout as time_limit  # redis-py brings it

#: Commands in one batch at the most.
MOST = 512
#: So many are worth two batches: the server works on one while this process reads the other.
MANY = 32


class Order(NamedTuple):
    """A step to run, with the script's whole source or not, and the future of its answer."""

    step: Run
    whole: bool
    done: asyncio.Future[Answer]


class Batch(NamedTuple):
    """Orders that left together at `sent`. All replies have to come within `timeout` seconds."""

    orders: list[Order]
    sent: float
    timeout: float


class Batcher:
    """Sends in the order of submission, on one event loop, over one connection at a time.

    What a pipeline of redis-py's would do, at half its price: that packs every word anew, and sets
    a timer for every reply.
    """

    # Invariant: between two runs of the flusher there is no connection, and nothing is in flight.
    def __init__(self, client: Any) -> None:
        self._pool = client.connection_pool
        self._connection: Any = None
        self._queue: list[Order] = []
        self._flying: set[asyncio.Future[Answer]] = set()
        self._flusher: asyncio.Task[None] | None = None

    def submit(self, step: Run, whole: bool = False) -> asyncio.Future[Answer]:
        """A future of the answer; it is sent even when the future is cancelled meanwhile."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Answer] = loop.create_future()
        self._queue.append(Order(step, whole, done))
        if self._flusher is None or self._flusher.done():
            self._flusher = loop.create_task(self._flush())
        return done

    async def idle(self) -> None:
        """Wait until nothing is queued or in flight."""
        while self._flusher is not None and not self._flusher.done():
            await asyncio.wait([self._flusher])

    async def _flush(self) -> None:
        batch: Batch | None = None
        try:
            while self._queue or batch is not None:
                if batch is None:
                    batch = await self._send(self._take(split=True))
                    continue
                replies, received = await self._read(batch), clock()
                # The next ones leave before these replies wake anybody.
                ahead = await self._send(self._take()) if self._queue else None
                self._deliver(batch, replies, received)
                batch = ahead
        finally:
            for done in [*self._flying, *(order.done for order in self._queue)]:
                done.cancel()
            await self._hang_up()

    def _take(self, split: bool = False) -> list[Order]:
        count = min(MOST, len(self._queue))
        if split and count >= MANY:
            count //= 2
        taken, self._queue = self._queue[:count], self._queue[count:]
        self._flying.update(order.done for order in taken)
        return taken

    async def _send(self, orders: list[Order]) -> Batch | None:
        """None when it failed: then all who ordered were told."""
        batch = Batch(orders, clock(), min(order.step.timeout for order in orders))
        packed = [
            pack(command(step, whole=True)) if whole else pack_step(step)
            for step, whole, _ in orders
        ]
        connected = False
        try:
            async with time_limit(batch.timeout):
                if self._connection is None:
                    self._connection = await self._pool.get_connection()
                connected = True
                await self._connection.send_packed_command([b"".join(packed)])
        except (*REDIS_ERRORS, asyncio.TimeoutError) as error:
            await self._failed(orders, error, sent=connected)
            return None
        return batch

    async def _read(self, batch: Batch) -> list[Any]:
        """One reply for each order, exceptions where the server answered with an error; or none at
        all: then all who ordered were told."""
        replies: list[Any] = []
        own = self._connection.socket_timeout
        most = batch.timeout if own is None else min(batch.timeout, own)
        try:
            async with time_limit(max(0.0, batch.sent + most - clock())):
                for _ in batch.orders:
                    try:
                        replies.append(await self._connection.read_response(timeout=math.inf))
                    except errors.ResponseError as error:
                        replies.append(error)
        except (*REDIS_ERRORS, asyncio.TimeoutError) as error:
            await self._failed(batch.orders, error, sent=True)
            return []
        return replies

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
                done.set_result(Answer(text(reply), batch.sent, received))
        # First in line: what was submitted meanwhile may undo these.
        self._queue[:0] = again

    async def _failed(self, orders: list[Order], error: BaseException, sent: bool) -> None:
        await self._hang_up(broken=True)
        cause = error if str(error) else errors.TimeoutError("no reply in time")
        for _, _, done in orders:
            self._flying.discard(done)
            if not done.done():
                done.set_exception(Failure(cause, clock(), why(cause, sent)))

    async def _hang_up(self, broken: bool = False) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            if broken:
                await connection.disconnect(nowait=True)
            await self._pool.release(connection)
