"""A stand-in for Redis in tests: the verbs, in this process's memory.

It answers the same plans as the scripts do, a method per verb; leases expire, queues are first
come, first served. It keeps no statistics and no tombstones.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .engine.wire import clock
from .protocol.plans import Answer, Run, Step, Wait
from .protocol.reasons import FULL, PAUSED
from .protocol.scripts import CONSTANTS, said

EXCLUSIVE = CONSTANTS["EXCLUSIVE"]
#: Commands that keep the list of names, which there is none of.
_REGISTRY = ("ZADD", "ZSCORE", "ZREMRANGEBYSCORE", "ZREMRANGEBYRANK", "PEXPIRE")
#: Seconds between two looks of a waiter, and after which a waiter that doesn't look is gone.
TICK, PATIENCE = 0.01, 2.0


@dataclass(slots=True)
class _Claim:
    """A holder, until `ends` (ms), or a waiter that looked last at `ends`."""

    token: str
    permits: int
    limit: int
    label: str
    lease: float
    fence: int = 0
    ends: float = 0.0
    ticket: int = 0
    nth: int = 0

    @property
    def weight(self) -> int:
        return self.permits or EXCLUSIVE

    def record(self, state: str) -> str:
        lease = "inf" if self.lease == math.inf else int(self.lease)
        return f"{state} {self.fence} {lease} {self.permits} {self.limit} - {self.label}"


@dataclass(slots=True)
class _Name:
    held: dict[str, _Claim] = field(default_factory=dict)
    queue: dict[str, _Claim] = field(default_factory=dict)
    fence: int = 0
    kind: str = ""
    limit: int = 0
    override: int = 0
    paused: int = 0

    @property
    def used(self) -> int:
        return sum(claim.weight for claim in self.held.values())

    def fits(self, claim: _Claim) -> bool:
        limit = self.override or claim.limit
        if self.paused:
            return False
        if claim.weight == EXCLUSIVE:
            return not self.held
        return self.used + claim.weight <= limit


class MemoryServer:
    """In the place of a Server and, with `asynchronous`, of an AsyncServer."""

    def __init__(self) -> None:
        self._names: dict[str, _Name] = {}
        self._lock = threading.Lock()

    @property
    def asynchronous(self) -> AsyncMemoryServer:
        return AsyncMemoryServer(self)

    def perform(self, step: Step) -> Answer:
        """Carry out a step."""
        if isinstance(step, Run):
            return self.run(step)
        sent = clock()
        time.sleep(pause(step))
        return Answer(None, sent, clock())

    def run(self, step: Run) -> Answer:
        sent = clock()
        given = said(step.verb, step.argv)
        now = time.time() * 1000
        with self._lock:
            name = self._names.setdefault(step.keys[0], _Name())
            _sweep(name, now)
            reply = _VERBS[step.verb](name, given, now)
        return Answer(reply, sent, clock())

    def place(self, step: Run) -> None:
        """All of it is here."""

    def many(self, steps: Sequence[Run]) -> list[Answer]:
        return [self.run(step) for step in steps]

    def command(self, *args: Any, timeout: float = 0.0) -> Any:
        """The commands that the engine sends by itself."""
        if args == ("PING",):
            return "PONG"
        if args == ("TIME",):
            seconds, rest = divmod(time.time_ns() // 1000, 10**6)
            return [str(seconds), str(rest)]
        if args[0] in _REGISTRY:
            return None
        raise NotImplementedError(f"there is no Redis here to run {args[0]}")

    def commands(self, several: Sequence[Sequence[Any]], timeout: float = 0.0) -> list[Any]:
        """As command, of several."""
        return [self.command(*args) for args in several]


class AsyncMemoryServer:
    """The same for async code."""

    plans = 0

    def __init__(self, server: MemoryServer) -> None:
        self._server, self.hub = server, _Hub()

    def left(self) -> None:
        """A plan has ended."""

    def perform(self, step: Step) -> asyncio.Future[Answer]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Answer] = loop.create_future()
        if isinstance(step, Run):
            done.set_result(self._server.run(step))
        else:
            loop.call_later(pause(step), _wake, done, clock())
        return done


class _Hub:
    async def ready(self, timeout: float) -> str:
        return "-"


def pause(step: Step) -> float:
    """How long a wait lasts: no waiter is woken, each looks again."""
    return min(step.seconds, TICK) if isinstance(step, Wait) else step.seconds  # type: ignore[union-attr]


def _wake(done: asyncio.Future[Answer], sent: float) -> None:
    if not done.done():
        done.set_result(Answer(None, sent, clock()))


def _sweep(name: _Name, now: float) -> None:
    name.held = {token: claim for token, claim in name.held.items() if claim.ends > now}
    alive = now - PATIENCE * 1000
    name.queue = {token: claim for token, claim in name.queue.items() if claim.ends > alive}
    # Too large for the limit by now, it would block the rest.
    while (head := next(iter(name.queue.values()), None)) and head.permits > (
        name.override or head.limit
    ):
        del name.queue[head.token]


def _acquire(name: _Name, given: dict[str, Any], now: float) -> list[str]:
    token, how = given["token"], given["how"]
    if token in name.held:
        return _granted(name.held[token], now)
    claim = name.queue.get(token)
    if claim is None and how == "again":
        return ["gone"]
    permits, limit, kind = int(given["permits"]), int(given["limit"]), given["kind"]
    seen, busy = (name.kind, name.limit), bool(name.held or name.queue)
    if claim is None:
        claim = _Claim(token, permits, limit, given["label"], float(given["lease"]))
        if permits > (name.override or limit):
            return ["large", str(name.override or limit)]
        if busy and name.kind not in ("", kind):
            return ["kind", name.kind]
        name.kind, name.limit = kind, limit
    # Only a newcomer passes the queue: who waits keeps its place.
    passes = token not in name.queue and not int(given["fair"])
    first = passes or next(iter(name.queue), token) == token
    if first and name.fits(claim):
        return _granted(_grant(name, claim, now), now)
    reason = PAUSED if name.paused else FULL
    if how == "shadow":
        return [*_granted(_grant(name, claim, now), now), reason]
    if token not in name.queue:
        if how == "try" or len(name.queue) >= int(given["max_waiters"]):
            if not busy:  # a refused call leaves nothing behind
                name.kind, name.limit = seen
            return ["no", reason, str(len(name.queue)), "", str(name.override or limit)]
        claim.ticket = int(now * 1000)
        name.queue[token] = claim
    claim.ends = now
    return ["wait", str(int(now)), str(int(TICK * 1000)), str(list(name.queue).index(token))]


def _grant(name: _Name, claim: _Claim, now: float) -> _Claim:
    name.queue.pop(claim.token, None)
    name.fence = claim.fence = max(name.fence + 1, int(now * 1000))
    claim.ends = now + claim.lease
    name.held[claim.token] = claim
    return claim


def _granted(claim: _Claim, now: float) -> list[Any]:
    return ["ok", str(claim.fence), _left(claim, now)]


def _left(claim: _Claim, now: float) -> str:
    return "inf" if claim.ends == math.inf else str(max(1, int(claim.ends - now)))


def _release(name: _Name, given: dict[str, Any], now: float) -> list[Any]:
    token, how = given["token"], given["how"]
    claim = name.held.get(token)
    if how in ("release", "share"):
        if claim is None or str(claim.fence) != str(given["fence"]):
            return ["lost"]
        kept = claim.fence / 1000 + int(given["hold"])
        if how == "share":
            claim.permits = 1
        elif kept > now:
            claim.token, claim.ends = f"{token}-kept", kept
            name.held[claim.token] = name.held.pop(token)
        else:
            del name.held[token]
        return ["ok"]
    if how == "giveup" and claim is not None:
        return _granted(claim, now)
    name.queue.pop(token, None)
    return ["ok" if name.held.pop(token, None) else "gone"]


def _renew(name: _Name, given: dict[str, Any], now: float) -> list[Any]:
    claim = name.held.get(given["token"])
    if claim is None or str(claim.fence) != str(given["fence"]):
        return ["lost"]
    nth, known = int(given["nth"]), int(given["known"])
    if given["how"] == "adopt" and claim.nth > known and claim.nth != nth:
        return ["adopted"]
    if given["how"] != "confirm" and nth >= claim.nth:
        claim.nth = nth
        claim.lease = float(given["ms"])
        claim.ends = now + claim.lease
    return ["ok", _left(claim, now)]


def _inspect(name: _Name, given: dict[str, Any], now: float) -> list[Any]:
    most = int(given["most"])
    holders = sorted(name.held.values(), key=lambda claim: claim.ends)
    held = [[c.token, str(c.ends), c.record("h")] for c in holders[:most]]
    waiters = list(name.queue.values())[:most]
    queued = [
        [c.token, str(c.ticket), str(c.ends + PATIENCE * 1000), c.record("w")] for c in waiters
    ]
    seen = f"{name.kind} {name.limit}" if name.kind else ""
    numbers = [str(int(now)), str(name.fence), str(name.override or ""), str(name.paused or "")]
    counts = [str(name.used), len(name.held), len(name.queue)]
    rows = [list(itertools.chain(*row)) for row in (held, queued)]
    return [*numbers, seen, "", *counts, *rows]


def _clear(name: _Name, given: dict[str, Any], now: float) -> list[Any]:
    token = given["token"]
    return ["ok" if name.held.pop(token, None) or name.queue.pop(token, None) else "gone"]


def _operate(name: _Name, given: dict[str, Any], now: float) -> list[Any]:
    how = given["how"]
    if how in ("pause", "resume"):
        name.paused = int(now) if how == "pause" else 0
    elif how in ("resize", "reset"):
        name.override = int(given["value"]) if how == "resize" else 0
    return ["ok"]


def _marks(name: _Name, given: dict[str, Any], now: float) -> list[Any]:
    return []  # no operator is here


def _tally(name: _Name, given: dict[str, Any], now: float) -> list[Any]:
    return ["ok"]  # no statistics are kept


_VERBS = {
    "acquire": _acquire,
    "release": _release,
    "renew": _renew,
    "inspect": _inspect,
    "clear": _clear,
    "operate": _operate,
    "marks": _marks,
    "tally": _tally,
}
