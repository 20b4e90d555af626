"""Wake-up messages for async waiters. One Pub/Sub connection per event loop receives the messages
for all waiters of the loop."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from typing import Any

from ..protocol.scripts import CONSTANTS
from ..protocol.steps import Answer
from .clients import buffered_replies, handle_push
from .loops import end_tasks, start_task
from .schedule import Schedule
from .wire import clock

#: Max messages that are stored. A message is stored if it arrives before its waiter begins to wait.
_MAX_EARLY = 10_000
#: Seconds until the next try to subscribe, by the number of failed tries.
_BACKOFF = (0.05, 0.1, 0.2, 0.5, 1.0)
#: The kind of a push, by its first word as str or bytes. redis-py handles pushes of other kinds.
_KINDS = {word: kind for kind in ("message", "subscribe") for word in (kind, kind.encode())}
#: Max seconds between two requests for a name from the waiters of an event loop. A request of one
#: waiter is the heartbeat of all waiters of the name in this loop.
HEARTBEAT_INTERVAL = CONSTANTS["ALIVE"] / 3000


class _NameWaiters:
    """The waiters of a name. `tokens`: their tokens; the waiter with the most recent request is
    last. `asked`: the time of the most recent request."""

    def __init__(self) -> None:
        self.tokens, self.asked = dict[str, None](), 0.0


class Hub:
    """The waiters of an event loop, and the channel on which their handoffs are published.

    The waiters share one timer, which fires when the first waiter is due. A timer per waiter would
    take more time than the rest of the wait. `subscriptions`: number of Pub/Sub connections.
    """

    # Invariants: the timer fires at _fires_at, which is not later than the time at which any waiter
    # is due. Each name in _by_name has a timer for its next heartbeat.
    def __init__(self, client: Any, prefix: str, subscriptions: int = 1) -> None:
        self._client, self._subscriptions = client, subscriptions
        self.channel = f"{prefix}:wake:{secrets.token_hex(8)}"
        self._waiters: dict[str, asyncio.Future[Answer]] = {}
        self._schedule, self._fires_at = Schedule(), math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._early: dict[str, str] = {}
        self._by_name: dict[str, _NameWaiters] = {}
        self._readers: list[asyncio.Task[None]] = []
        self._tried: asyncio.Future[None] | None = None

    async def ready(self, timeout: float) -> str:
        """Subscribe to the channel, and return the channel's name. If the subscription fails or
        takes longer than `timeout` seconds, return the name all the same. A waiter may then miss
        its message, but sends its request again later."""
        if not self._readers or self._readers[0].done():
            self._tried = asyncio.get_running_loop().create_future()
            self._readers = [start_task(self._read()) for _ in range(self._subscriptions)]
        assert self._tried is not None
        if not self._tried.done():
            # Don't use wait_for(). It would cancel the future, and before Python 3.12 it may
            # swallow a cancellation of the caller.
            await asyncio.wait([self._tried], timeout=timeout)
        return self.channel

    def wait(self, token: str, seconds: float, name: str) -> asyncio.Future[Answer]:
        """Return a future of an Answer with the message for `token`. The Answer has the reply None
        if no message arrives within `seconds`.

        The reply may also be None earlier, so that the waiter sends its request again. If no waiter
        of `name` has sent a request for HEARTBEAT_INTERVAL seconds, one of them gets this reply.
        """
        loop, sent = asyncio.get_running_loop(), clock()
        done: asyncio.Future[Answer] = loop.create_future()
        early = self._early.pop(token, None)
        if early is not None:
            done.set_result(Answer(early, sent, clock()))
            return done
        self._waiters[token] = done
        at = sent + seconds
        self._schedule.put(token, at, at)
        self._expect(at, sent)
        waiters = self._by_name.get(name)
        if waiters is None:
            waiters = self._by_name[name] = _NameWaiters()
            loop.call_later(HEARTBEAT_INTERVAL, self._heartbeat, name)
        waiters.tokens[token], waiters.asked = None, sent

        def forget(_: Any) -> None:
            if self._waiters.get(token) is done:
                del self._waiters[token]
                self._schedule.drop(token)
                waiters.tokens.pop(token, None)

        done.add_done_callback(forget)
        return done

    def _expect(self, at: float, now: float) -> None:
        """Set the timer to the time `at`, unless it fires earlier. `now`: the current time."""
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
        """If no waiter of a name has sent a request for HEARTBEAT_INTERVAL seconds, wake one
        waiter, so that it sends its request again."""
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
            # Store the message for a waiter that has yet to call wait(). If too many messages are
            # stored, remove the oldest one. A waiter that gets an outdated message ignores it.
            self._early.pop(token, None)
            self._early[token] = element
            if len(self._early) > _MAX_EARLY:
                del self._early[next(iter(self._early))]

    async def aclose(self) -> None:
        """Unsubscribe and close the connections. The next call of `ready` subscribes again."""
        await end_tasks(*self._readers)

    async def _read(self) -> None:
        tries = 0
        while True:
            pubsub = self._client.pubsub(ignore_subscribe_messages=False)
            try:
                await pubsub.subscribe(self.channel)
                # Don't use listen(). It is an asynchronous generator. An event loop that ends
                # closes its asynchronous generators while this task still runs.
                while pubsub.subscribed:
                    for kind, data in await _received(pubsub):
                        if kind == "message":
                            self._deliver(data)
                        elif kind == "subscribe":
                            tries = 0
                            self._subscribed()
            except asyncio.CancelledError:
                await _closed(pubsub)
                raise
            except Exception:
                pass
            # This is not in a `finally` block. The block would also run if the loop is closed, but
            # then nothing can be awaited.
            await _closed(pubsub)
            self._end_try()
            await asyncio.sleep(_BACKOFF[min(tries, len(_BACKOFF) - 1)])
            tries += 1

    def _end_try(self) -> None:
        if self._tried is not None and not self._tried.done():
            self._tried.set_result(None)

    def _subscribed(self) -> None:
        """After a subscription, wake all waiters, so that each sends its request again. The
        messages that were published before the subscription are lost."""
        self._end_try()
        for token in list(self._waiters):
            self._wake(token, None, clock())


class NoHub:
    """Used instead of a Hub by a server that sends no wake-up messages: a quorum, and the server in
    memory for tests."""

    async def ready(self, timeout: float) -> str:
        """Return "-", which means that there is no channel."""
        return "-"


async def _closed(pubsub: Any) -> None:
    with contextlib.suppress(Exception):
        await pubsub.aclose()


async def _received(pubsub: Any) -> list[tuple[str, Any]]:
    """Wait for the next message. Return pairs of kind and data: for this message, and for further
    messages that the connection has already read."""
    message = await pubsub.get_message(timeout=None)
    received = [] if message is None else [(message["type"], message.get("data"))]
    buffered = buffered_replies(pubsub.connection)
    while isinstance(push := buffered(), list):
        if push[0] in _KINDS:
            received.append((_KINDS[push[0]], push[2]))
        else:
            await handle_push(pubsub.connection, push)
    if isinstance(push, Exception):
        raise push  # Hub subscribes again, and then all waiters send their requests again
    return received
