"""Wake-up messages for async waiters. One Pub/Sub connection per event loop receives the messages
for all waiters of the loop."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from typing import Any

from ..protocol.scripts import CONSTANTS
from ..protocol.steps import Answer, backoff
from .clients import buffered_replies, drop_idle, handle_push
from .loops import end_tasks, start_task
from .schedule import Schedule
from .wire import REDIS_ERRORS, clock, text

#: Max stored messages. A message is stored if it arrives before its waiter begins to wait.
_MAX_EARLY = 10_000
#: The kinds of push messages that Hub handles, which are the first words of these messages.
#: redis-py handles messages of other kinds.
_KINDS = ("message", "subscribe")
#: Max seconds between two heartbeats of an event loop for a name. Without heartbeats, Redis counts
#: the waiters of the name in this loop as dead. Each request of such a waiter is a heartbeat.
HEARTBEAT_INTERVAL = CONSTANTS["ALIVE"] / 3000


class _NameWaiters:
    """The waiters of a name in this event loop. `tokens`: the tokens of the waiters, with the most
    recent request last. `asked`: the time of the most recent request."""

    def __init__(self) -> None:
        self.tokens, self.asked = dict[str, None](), 0.0


class Hub:
    """Wakes the waiters of an event loop. Their wake-up messages are published on one channel.

    The waiters share one timer, which fires when the first wait reaches its time limit. A timer per
    waiter would slow down `wait()`. `subscriptions`: number of Pub/Sub connections.
    """

    # Invariants: The hub's timer fires at _fires_at, and no wait reaches its time limit earlier.
    # Each name in _by_name has another timer, for its next heartbeat.
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
        """Subscribe to the channel, and return the channel's name. Also return the name if the
        subscription fails or takes longer than `timeout` seconds. A waiter may then miss its
        message, but it sends its request again later."""
        if not self._readers or self._readers[0].done():
            self._tried = asyncio.get_running_loop().create_future()
            self._readers = [start_task(self._read()) for _ in range(self._subscriptions)]
            for reader in self._readers:
                # A project may close its event loop without `asyncio.run()`. No code can then end a
                # reader, so asyncio must not log that it was pending.
                reader._log_destroy_pending = False  # type: ignore[attr-defined]
        assert self._tried is not None
        if not self._tried.done():
            # Don't use wait_for(). After a timeout, it would cancel the future. Before Python 3.12,
            # it may swallow a cancellation of the caller.
            await asyncio.wait([self._tried], timeout=timeout)
        return self.channel

    def wait(self, token: str, seconds: float, name: str) -> asyncio.Future[Answer]:
        """Return a future of an Answer. Its reply is the message for `token`, or None if no message
        arrives within `seconds`.

        A waiter that gets None sends its request again. If no waiter of `name` has sent a request
        for HEARTBEAT_INTERVAL seconds, one of the waiters gets None early.
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
        """Let the timer fire at the time `at` or earlier. `now`: the current time."""
        if at < self._fires_at:
            if self._timer is not None:
                self._timer.cancel()
            self._fires_at = at
            self._timer = asyncio.get_running_loop().call_later(at - now, self._fire)

    def _fire(self) -> None:
        """End the waits that have reached their time limit."""
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
            # The waiter has not called wait() yet, so store the message as the newest one. If too
            # many messages are stored, remove the oldest. Waiters ignore outdated messages.
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
                # Don't use listen(), because it is an asynchronous generator. When an event loop
                # ends, it closes its asynchronous generators while this task still runs.
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
            except REDIS_ERRORS:
                pass
            except Exception:
                await drop_idle(self._client.connection_pool)
            # Don't use a `finally` block. It would also run after the event loop was closed, when
            # nothing can be awaited.
            await _closed(pubsub)
            self._end_try()
            tries += 1
            await asyncio.sleep(backoff(tries))

    def _end_try(self) -> None:
        if self._tried is not None and not self._tried.done():
            self._tried.set_result(None)

    def _subscribed(self) -> None:
        """Wake all waiters, so that each sends its request again. Messages that were published
        before this subscription are lost."""
        self._end_try()
        for token in list(self._waiters):
            self._wake(token, None, clock())


class NoHub:
    """Replaces Hub for servers that send no wake-up messages, namely for a quorum, and for the
    in-memory server of tests."""

    async def ready(self, timeout: float) -> str:
        """Return "-" instead of a channel's name, because there are no wake-up messages."""
        return "-"


async def _closed(pubsub: Any) -> None:
    with contextlib.suppress(Exception):
        await pubsub.aclose()


async def _received(pubsub: Any) -> list[tuple[str, Any]]:
    """Wait for a message. Return this message, and all further messages that the connection has
    already read. Each message is returned as a pair of its kind and its data."""
    message = await pubsub.get_message(timeout=None)
    received = [] if message is None else [(message["type"], message.get("data"))]
    buffered = buffered_replies(pubsub.connection)
    while isinstance(push := buffered(), list):
        if (kind := text(push[0])) in _KINDS:
            received.append((kind, push[2]))
        else:
            await handle_push(pubsub.connection, push)
    if isinstance(push, Exception):
        raise push  # Hub then subscribes again, and all waiters send their requests again
    return received
