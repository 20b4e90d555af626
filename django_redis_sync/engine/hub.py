"""Async wake-ups: a Pub/Sub connection per event loop feeds the futures of its waiters."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from collections import OrderedDict
from typing import Any

from ..protocol.plans import CLAIM, Answer
from ..protocol.scripts import CONSTANTS
from .clients import arrived, heed
from .loops import apart, dropped, ended
from .schedule import Schedule
from .wire import clock

#: Messages kept for waiters that have not come to wait yet, and seconds for which each is of use:
#: then the server has taken the lease back.
_MOST_EARLY, _EARLY = 10_000, CLAIM
_BACKOFF = (0.05, 0.1, 0.2, 0.5, 1.0)
#: What is heard, by its first word.
_KINDS = {word: kind for kind in ("message", "subscribe") for word in (kind, kind.encode())}
#: Seconds after which a waiter of each name asks again: a sign of life of all the others.
PULSE = CONSTANTS["ALIVE"] / 3000


class _Room:
    """The waiters of a name, in the order of their last ask."""

    __slots__ = ("asked", "beats", "tokens")

    def __init__(self) -> None:
        self.tokens: dict[str, None] = {}
        self.asked, self.beats = 0.0, False


class Hub:
    """Waiters of an event loop and the channel that hand-overs are published on.

    Their times are in a schedule, and one timer rings for the next of them: a timer of the loop for
    each costs more than all else of a wait.
    """

    # Invariant: the timer rings at _rings_at, no later than the first of those who wait is due.
    def __init__(self, client: Any, prefix: str) -> None:
        self._client = client
        self.channel = f"{prefix}:wake:{secrets.token_hex(8)}"
        self._waiters: dict[str, asyncio.Future[Answer]] = {}
        self._schedule, self._rings_at = Schedule(), math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._early: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._sweeping = False
        self._rooms: dict[str, _Room] = {}
        self._reader: asyncio.Task[None] | None = None
        self._tried: asyncio.Event | None = None

    async def ready(self, timeout: float) -> str:
        """The channel. Waits until subscribing went well or failed, but no longer than `timeout`
        seconds: a waiter that misses its message asks again anyway."""
        if self._reader is None or self._reader.done():
            self._tried = asyncio.Event()
            self._reader = apart(self._read(self._tried))
        assert self._tried is not None
        if not self._tried.is_set():
            # Not wait_for(): before Python 3.12 it may swallow a cancellation.
            told = apart(self._tried.wait())
            try:
                await asyncio.wait([told], timeout=timeout)
            finally:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    told.cancel()
        return self.channel

    def wait(self, token: str, seconds: float, name: str) -> asyncio.Future[Answer]:
        """A future of the element for `token`, or of None after `seconds`; sooner, when no other
        waiter of the `name` gave a sign of life."""
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
        room = self._rooms.setdefault(name, _Room())
        room.tokens[token], room.asked = None, sent
        if not room.beats:
            room.beats = True
            loop.call_later(PULSE, self._beat, name)

        def forget(_: Any) -> None:
            if self._waiters.get(token) is done:
                del self._waiters[token]
                self._schedule.drop(token)
                room.tokens.pop(token, None)

        done.add_done_callback(forget)
        return done

    def _expect(self, at: float, now: float) -> None:
        """Have the timer ring at `at` at the latest."""
        if at < self._rings_at:
            if self._timer is not None:
                self._timer.cancel()
            self._rings_at = at
            self._timer = asyncio.get_running_loop().call_later(at - now, self._ring)

    def _ring(self) -> None:
        """Wake those whose time is over."""
        now, self._rings_at, self._timer = clock(), math.inf, None
        for token in self._schedule.take(now):
            self._schedule.drop(token)
            self._wake(token, None, now)
        self._expect(self._schedule.earliest(), now)

    def _beat(self, name: str) -> None:
        """Have a waiter ask again, unless any did lately."""
        room, loop = self._rooms[name], asyncio.get_running_loop()
        if not room.tokens:
            del self._rooms[name]
            return
        left = room.asked + PULSE - clock()
        if left <= 0:
            self._wake(next(reversed(room.tokens)), None, room.asked)
        loop.call_later(left if left > 0 else PULSE, self._beat, name)

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
            if len(self._early) > _MOST_EARLY:
                self._early.popitem(last=False)
            if not self._sweeping:
                self._sweep()

    def _sweep(self) -> None:
        """Forget unclaimed hand-overs: their waiters have left."""
        while self._early and next(iter(self._early.values()))[1] <= clock():
            self._early.popitem(last=False)
        self._sweeping = bool(self._early)
        if self._sweeping:
            asyncio.get_running_loop().call_later(_EARLY, self._sweep)

    async def aclose(self) -> None:
        """Listen no longer, until there is a waiter again."""
        await ended(self._reader)

    def drop(self) -> None:
        """As aclose, of a loop that is closed."""
        dropped(self._reader)
        self._waiters.clear()
        self._schedule.clear()

    async def _read(self, tried: asyncio.Event) -> None:
        tries = 0
        while True:
            tried.clear()
            pubsub = self._client.pubsub(ignore_subscribe_messages=False)
            try:
                await pubsub.subscribe(self.channel)
                # Not listen(): the loop closes asynchronous generators while this runs.
                while pubsub.subscribed:
                    for kind, data in await _heard(pubsub):
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
            # Not in a finally: a loop that was closed under it leaves nothing to await.
            await _closed(pubsub)
            tried.set()
            await asyncio.sleep(_BACKOFF[min(tries, len(_BACKOFF) - 1)])
            tries += 1

    def _subscribed(self, tried: asyncio.Event) -> None:
        """Messages published while the connection was down are lost: all ask again."""
        tried.set()
        for token in list(self._waiters):
            self._wake(token, None, clock())


async def _closed(pubsub: Any) -> None:
    with contextlib.suppress(Exception):
        await pubsub.aclose()


async def _heard(pubsub: Any) -> list[tuple[str, Any]]:
    """What was said next, and what was read along with it: kinds and data."""
    message = await pubsub.get_message(timeout=None)
    heard = [] if message is None else [(message["type"], message.get("data"))]
    came = arrived(pubsub.connection)
    while isinstance(push := came(), list):
        if push[0] in _KINDS:
            heard.append((_KINDS[push[0]], push[2]))
        else:
            await heed(pubsub.connection, push)
    if isinstance(push, Exception):
        raise push  # after the next subscription all ask again
    return heard
