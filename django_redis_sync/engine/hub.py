"""Async wake-ups: one Pub/Sub connection per event loop feeds the futures of its waiters."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import OrderedDict
from typing import Any

from ..protocol.plans import Answer
from .wire import clock

#: Messages kept for waiters that have not come to wait yet.
_MOST_EARLY = 10_000
_BACKOFF = (0.05, 0.1, 0.2, 0.5, 1.0)


class Hub:
    """Waiters of one event loop and the channel that hand-overs are published on."""

    def __init__(self, client: Any, prefix: str) -> None:
        self._client = client
        self.channel = f"{prefix}:wake:{secrets.token_hex(8)}"
        self._waiters: dict[str, asyncio.Future[Answer]] = {}
        self._early: OrderedDict[str, str] = OrderedDict()
        self._reader: asyncio.Task[None] | None = None
        self._tried: asyncio.Event | None = None

    async def ready(self, timeout: float) -> str:
        """The channel. Waits until subscribing went well or failed, but no longer than `timeout`
        seconds: a waiter that misses its message asks again anyway."""
        if self._reader is None or self._reader.done():
            self._tried = asyncio.Event()
            self._reader = asyncio.get_running_loop().create_task(self._read(self._tried))
        assert self._tried is not None
        if not self._tried.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._tried.wait(), timeout)
        return self.channel

    def wait(self, token: str, seconds: float) -> asyncio.Future[Answer]:
        """A future of the element for `token`, or of None after `seconds`."""
        loop, sent = asyncio.get_running_loop(), clock()
        done: asyncio.Future[Answer] = loop.create_future()
        early = self._early.pop(token, None)
        if early is not None:
            done.set_result(Answer(early, sent, clock()))
            return done
        self._waiters[token] = done
        timer = loop.call_later(seconds, self._wake, token, None, sent)

        def forget(_: Any) -> None:
            timer.cancel()
            if self._waiters.get(token) is done:
                del self._waiters[token]

        done.add_done_callback(forget)
        return done

    def _wake(self, token: str, element: str | None, sent: float) -> None:
        done = self._waiters.get(token)
        if done is not None and not done.done():
            done.set_result(Answer(element, sent, clock()))

    def _deliver(self, data: Any) -> None:
        token, _, element = (data.decode() if isinstance(data, bytes) else data).partition(" ")
        if token in self._waiters:
            self._wake(token, element, clock())
        else:
            self._early[token] = element
            if len(self._early) > _MOST_EARLY:
                self._early.popitem(last=False)

    async def aclose(self) -> None:
        """Cancel the reader until it is done: redis-py may swallow a cancellation while it
        connects, and then the loop would never end."""
        while self._reader is not None and not self._reader.done():
            self._reader.cancel()
            await asyncio.wait([self._reader], timeout=0.1)

    async def _read(self, tried: asyncio.Event) -> None:
        tries = 0
        while True:
            tried.clear()
            pubsub = self._client.pubsub(ignore_subscribe_messages=False)
            try:
                await pubsub.subscribe(self.channel)
                async for message in pubsub.listen():
                    if message["type"] == "message":
                        self._deliver(message["data"])
                    elif message["type"] == "subscribe":
                        tries = 0
                        tried.set()
                        # What was published while nobody listened is lost: all ask again.
                        for token in list(self._waiters):
                            self._wake(token, None, clock())
            except asyncio.CancelledError:
                raise
            except Exception:
                pass
            finally:
                with contextlib.suppress(Exception):
                    await pubsub.aclose()
            tried.set()
            await asyncio.sleep(_BACKOFF[min(tries, len(_BACKOFF) - 1)])
            tries += 1
