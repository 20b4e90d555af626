"""Async waiters: one Pub/Sub connection per event loop receives their wake-up messages."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from collections import OrderedDict
from typing import Any

from ..protocol.plans import CLAIM
from ..protocol.scripts import CONSTANTS
from ..protocol.steps import Answer
from .clients import buffered_replies, handle_push
from .loops import end_tasks, start_task
from .schedule import Schedule
from .wire import clock

#: Max messages that are stored because they arrived before their waiter waits.
_MAX_EARLY = 10_000
#: Seconds for which such a message is stored. After that, the lease has expired.
_EARLY = CLAIM
#: Seconds between two tries to subscribe.
_BACKOFF = (0.05, 0.1, 0.2, 0.5, 1.0)
#: Kinds of messages, by their first word.
_KINDS = {word: kind for kind in ("message", "subscribe") for word in (kind, kind.encode())}
#: Max seconds between two requests of the waiters of a name. One request counts for all of them.
HEARTBEAT_INTERVAL = CONSTANTS["ALIVE"] / 3000


class _NameWaiters:
    """The waiters of a name, in the order of their last request."""

    __slots__ = ("asked", "beats", "tokens")

    def __init__(self) -> None:
        self.tokens: dict[str, None] = {}
        self.asked, self.beats = 0.0, False


class Hub:
    """The waiters of an event loop, and the channel on which their handoffs are published.

    The waiters share one timer, which fires when the next of them is due. A timer per waiter would
    cost more than the rest of a wait.
    """

    # Invariant: the timer fires at _fires_at, which is at most the time when a waiter is due.
    def __init__(self, client: Any, prefix: str) -> None:
        self._client = client
        self.channel = f"{prefix}:wake:{secrets.token_hex(8)}"
        self._waiters: dict[str, asyncio.Future[Answer]] = {}
        self._schedule, self._fires_at = Schedule(), math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._early: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._expiring = False
        self._by_name: dict[str, _NameWaiters] = {}
        self._reader: asyncio.Task[None] | None = None
        self._tried: asyncio.Event | None = None

    async def ready(self, timeout: float) -> str:
        """Subscribe and return the channel. Return it also if that fails or takes longer than
        `timeout` seconds: a waiter that misses its message asks again anyway."""
        if self._reader is None or self._reader.done():
            self._tried = asyncio.Event()
            self._reader = start_task(self._read(self._tried))
        assert self._tried is not None
        if not self._tried.is_set():
            # Not wait_for(): before Python 3.12 it may swallow a cancellation.
            tried = start_task(self._tried.wait())
            try:
                await asyncio.wait([tried], timeout=timeout)
            finally:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    tried.cancel()
        return self.channel

    def wait(self, token: str, seconds: float, name: str) -> asyncio.Future[Answer]:
        """Return a future of the message for `token`, or of None after `seconds`.

        None can also be sooner: one waiter of the `name` has to send a request if none has done so
        for HEARTBEAT_INTERVAL seconds.
        """
        loop, sent = asyncio.get_running_loop(), clock()
        done: asyncio.Future[Answer] = loop.create_future()
        early = self._early.pop(token, None)
        if early is not None:
            done.set_result(Answer(early[0], sent, clock()))
            return done
        self._waiters[token] = done
        at = sent + seconds
        self._schedule.put(token, at, at)
        self._expect(at, sent)
        waiters = self._by_name.setdefault(name, _NameWaiters())
        waiters.tokens[token], waiters.asked = None, sent
        if not waiters.beats:
            waiters.beats = True
            loop.call_later(HEARTBEAT_INTERVAL, self._heartbeat, name)

        def forget(_: Any) -> None:
            if self._waiters.get(token) is done:
                del self._waiters[token]
                self._schedule.drop(token)
                waiters.tokens.pop(token, None)

        done.add_done_callback(forget)
        return done

    def _expect(self, at: float, now: float) -> None:
        """Let the timer fire at `at` or earlier."""
        if at < self._fires_at:
            if self._timer is not None:
                self._timer.cancel()
            self._fires_at = at
            self._timer = asyncio.get_running_loop().call_later(at - now, self._fire)

    def _fire(self) -> None:
        """Wake the waiters that are due."""
        now, self._fires_at, self._timer = clock(), math.inf, None
        for token in self._schedule.take(now):
            self._schedule.drop(token)
            self._wake(token, None, now)
        self._expect(self._schedule.earliest(), now)

    def _heartbeat(self, name: str) -> None:
        """Let one waiter of a name send a request, unless one has done so lately."""
        waiters, loop = self._by_name[name], asyncio.get_running_loop()
        if not waiters.tokens:
            del self._by_name[name]
            return
        left = waiters.asked + HEARTBEAT_INTERVAL - clock()
        if left <= 0:
            self._wake(next(reversed(waiters.tokens)), None, waiters.asked)
        loop.call_later(left if left > 0 else HEARTBEAT_INTERVAL, self._heartbeat, name)

    def _wake(self, token: str, element: str | None, sent: float) -> None:
        done = self._waiters.get(token)
        if done is not None and not done.done():
            done.set_result(Answer(element, sent, clock()))

    def _deliver(self, data: Any) -> None:
        token, _, element = (data.decode() if isinstance(data, bytes) else data).partition(" ")
        if token in self._waiters:
            self._wake(token, element, clock())
        else:
            self._early[token] = element, clock() + _EARLY
            self._early.move_to_end(token)
            if len(self._early) > _MAX_EARLY:
                self._early.popitem(last=False)
            if not self._expiring:
                self._expire()

    def _expire(self) -> None:
        """Discard the messages that no waiter has fetched."""
        while self._early and next(iter(self._early.values()))[1] <= clock():
            self._early.popitem(last=False)
        self._expiring = bool(self._early)
        if self._expiring:
            asyncio.get_running_loop().call_later(_EARLY, self._expire)

    async def aclose(self) -> None:
        """Stop listening until the next wait."""
        await end_tasks(self._reader)

    async def _read(self, tried: asyncio.Event) -> None:
        tries = 0
        while True:
            tried.clear()
            pubsub = self._client.pubsub(ignore_subscribe_messages=False)
            try:
                await pubsub.subscribe(self.channel)
                # Not listen(): the loop closes asynchronous generators while this runs.
                while pubsub.subscribed:
                    for kind, data in await _received(pubsub):
                        if kind == "message":
                            self._deliver(data)
                        elif kind == "subscribe":
                            tries = 0
                            self._subscribed(tried)
            except asyncio.CancelledError:
                await _closed(pubsub)
                raise
            except Exception:
                pass
            # Not in a finally: nothing can be awaited on a closed loop.
            await _closed(pubsub)
            tried.set()
            await asyncio.sleep(_BACKOFF[min(tries, len(_BACKOFF) - 1)])
            tries += 1

    def _subscribed(self, tried: asyncio.Event) -> None:
        """Let all waiters ask again, because messages are lost while the connection is down."""
        tried.set()
        for token in list(self._waiters):
            self._wake(token, None, clock())


async def _closed(pubsub: Any) -> None:
    with contextlib.suppress(Exception):
        await pubsub.aclose()


async def _received(pubsub: Any) -> list[tuple[str, Any]]:
    """Return the kind and data of the next message, and of those that were read along with it."""
    message = await pubsub.get_message(timeout=None)
    received = [] if message is None else [(message["type"], message.get("data"))]
    buffered = buffered_replies(pubsub.connection)
    while isinstance(push := buffered(), list):
        if push[0] in _KINDS:
            received.append((_KINDS[push[0]], push[2]))
        else:
            await handle_push(pubsub.connection, push)
    if isinstance(push, Exception):
        raise push  # after the next subscription all waiters ask again
    return received
