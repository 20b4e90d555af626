"""Async commands that are issued while one pipeline is in flight leave together in the next."""

from __future__ import annotations

import asyncio
from typing import Any

from redis import exceptions as errors

from ..protocol.plans import Answer, Failure, Run
from .wire import REDIS_ERRORS, clock, command, text, why

#: Commands in one pipeline at the most.
MOST = 512


class Batcher:
    """One pipeline at a time, in the order of submission, on one event loop."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._queue: list[tuple[Run, bool, asyncio.Future[Answer]]] = []
        self._flusher: asyncio.Task[None] | None = None

    def submit(self, step: Run, whole: bool = False) -> asyncio.Future[Answer]:
        """A future of the answer; it is sent even when the future is cancelled meanwhile."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Answer] = loop.create_future()
        self._queue.append((step, whole, done))
        if self._flusher is None or self._flusher.done():
            self._flusher = loop.create_task(self._flush())
        return done

    async def idle(self) -> None:
        """Wait until nothing is queued or in flight."""
        while self._flusher is not None and not self._flusher.done():
            await asyncio.wait([self._flusher])

    async def _flush(self) -> None:
        batch: list[tuple[Run, bool, asyncio.Future[Answer]]] = []
        try:
            while self._queue:
                batch, self._queue = self._queue[:MOST], self._queue[MOST:]
                await self._send(batch)
        finally:
            for _, _, done in [*batch, *self._queue]:
                done.cancel()

    async def _send(self, batch: list[tuple[Run, bool, asyncio.Future[Answer]]]) -> None:
        sent = clock()
        pipeline = self._client.pipeline(transaction=False)
        for step, whole, _ in batch:
            pipeline.execute_command(*command(step, whole))
        timeout = min(step.timeout for step, _, _ in batch)
        try:
            replies = await asyncio.wait_for(pipeline.execute(raise_on_error=False), timeout)
        except (*REDIS_ERRORS, asyncio.TimeoutError) as error:
            unsent = isinstance(error, errors.ConnectionError) and "connecting" in str(error)
            for _, _, done in batch:
                _fail(done, error, not unsent)
            return
        received = clock()
        again = []
        for (step, whole, done), reply in zip(batch, replies, strict=True):
            if isinstance(reply, errors.NoScriptError) and not whole:
                again.append((step, True, done))
            elif isinstance(reply, Exception):
                if not done.done():
                    done.set_exception(Failure(reply, received, why(reply, True)))
            elif not done.done():
                done.set_result(Answer(text(reply), sent, received))
        # Still first in line: what was submitted meanwhile may undo these.
        self._queue[:0] = again


def _fail(done: asyncio.Future[Answer], error: BaseException, sent: bool) -> None:
    if not done.done():
        cause = error if str(error) else errors.TimeoutError("no reply in time")
        done.set_exception(Failure(cause, clock(), why(cause, sent)))
