"""A replacement for Redis in development and tests: counters of permits in this process.

Limits, the order of waiters, the ends of leases, and growing fences work for the threads and event
loops of the process. Other features are missing:

- Waiters poll every POLL_INTERVAL seconds, and `fair=False` has no effect.
- The handle of a detached lease can be adopted twice.
- Shares don't take turns, but `share_limit` applies. A waiter overtakes waiters of shares that have
  reached this limit.
- A waiter that a rate stops also stops the waiters behind it. An undone grant counts for the rate.
- Operators can't pause, resize, or clear. Statistics and lists of names are missing.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured

from ..protocol.reasons import FULL, RATE, SHARE, TIMEOUT
from ..protocol.scripts import CONSTANTS, arguments_of
from ..protocol.steps import Answer, Run, Step, Wait
from .hub import NoHub
from .mutex import Mutex
from .rates import Rate, RateLog
from .wire import clock

POLL_INTERVAL = 0.01
#: A waiter that has not asked for this number of seconds is removed: its thread has ended.
_WAITER_LIVES = 10.0
#: Max names whose counters are kept. Above that, the counters of unused names are removed.
_MAX_NAMES = 10_000
#: Commands that are ignored. They probe Redis, or write the registry of names.
_IGNORED = ("PING", "ZADD", "ZSCORE", "ZREMRANGEBYSCORE", "ZREMRANGEBYRANK", "PEXPIRE")


#: The share of a lease whose request had neither a share nor a share_limit. No share has this text.
_NO_SHARE = "\0"


class _Holder(NamedTuple):
    """A lease. `since`, `ends`: the times of its grant and of its end, by `clock()`. `kept`: True
    if the lease was released, and `min_hold` keeps its permits in use."""

    fence: str
    permits: int
    share: str
    record: str
    since: float
    ends: float
    kept: bool = False

    @property
    def left(self) -> str:
        """The ms until the lease ends, or "inf"."""
        left = self.ends - clock()
        return "inf" if left == math.inf else str(max(0, round(left * 1000)))


class _Waiter(NamedTuple):
    """A waiting token. `asked`: its share, the limit of the share (0: none), and the permits to
    acquire. `at`: the time of its last request, by `clock()`."""

    asked: tuple[str, int, int]
    at: float


class _Counter:
    """The holders of a name by token, and the waiting tokens in order of arrival.

    Each script is a method. It gets the script's arguments, and returns the script's reply.
    """

    def __init__(self) -> None:
        self.holders: dict[str, _Holder] = {}
        self.waiting: dict[str, _Waiter] = {}
        self.seen, self.fence = "", 0
        self.rate: Rate | None = None  # that of the last caller that gave one
        self.granted, self.cools_until = RateLog(), -math.inf
        self.cool = ""  # the cool-down, as in the reply of the script `inspect`

    def tidy(self) -> None:
        """Remove leases that have ended, and waiters that no longer ask."""
        now = clock()
        for token in [token for token, one in self.holders.items() if one.ends <= now]:
            del self.holders[token]
        for token in [token for token, one in self.waiting.items() if one.at + _WAITER_LIVES < now]:
            del self.waiting[token]

    @property
    def used(self) -> int:
        return sum(one.permits or CONSTANTS["EXCLUSIVE"] for one in self.holders.values())

    def within(self, share: str, share_limit: int, permits: int) -> bool:
        """Return True if the share may have `permits` more permits. `share_limit`: the max permits
        of the share, or 0 for no limit."""
        held = sum(one.permits for one in self.holders.values() if one.share == share)
        return not share_limit or held + permits <= share_limit

    def opens(self, permits: int) -> float:
        """Return the seconds until the rate and the cool-down allow `permits`."""
        now = clock()
        opens = 0.0 if self.rate is None else self.granted.opens(self.rate, max(1, permits), now)
        return max(opens, self.cools_until - now, 0.0)

    @property
    def unused(self) -> bool:
        """True if nothing would be lost without this object."""
        now = clock()
        fresh = self.rate is None or self.granted.tidy(self.rate, now)
        return not (self.holders or self.waiting) and fresh and self.cools_until <= now

    def rejection(self, reason: str, limit: Any, opens: float = 0.0) -> list[Any]:
        reply = ["no", reason, str(len(self.waiting)), "", str(limit)]
        if opens and reason != SHARE:
            reply[1] = RATE
            reply.append(str(math.ceil(opens * 1000)))
        return reply

    def acquire(self, given: dict[str, Any]) -> list[Any]:
        token, how, limit = given["token"], given["how"], int(given["limit"])
        asked = given["share"], int(given["share_limit"]), int(given["permits"])
        permits, kind = asked[2], self.seen[:1]
        if (held := self.holders.get(token)) is not None:
            return ["ok", held.fence, held.left]
        if given["rate"]:
            most, ms = map(int, given["rate"].split("/"))
            self.rate = most, ms / 1000
        if permits > limit:
            return ["large", str(limit)]
        if (self.holders or self.waiting) and kind not in ("", given["kind"]):
            return ["kind", kind]
        first = next((one for one, its in self.waiting.items() if self.within(*its.asked)), token)
        reason = FULL if self.within(*asked) else SHARE
        room = self.used + permits <= limit if permits else not self.holders
        opens = self.opens(permits) if room else 0.0
        free = room and reason == FULL and first == token and not opens
        if not (free or how == "shadow"):
            full = token not in self.waiting and len(self.waiting) >= int(given["max_waiters"])
            if how in ("try", "skip") or full:
                return self.rejection(reason, limit, opens)
            self.waiting[token] = _Waiter(asked, clock())
            return ["wait", str(time.time_ns() // 10**6), str(int(POLL_INTERVAL * 1000)), "0"]
        self.waiting.pop(token, None)
        self.fence, self.seen = max(self.fence + 1, time.time_ns() // 1000), given["wants"]
        fence, lease, now = str(self.fence), str(given["lease"]), clock()
        record, ends = f"h {fence} {lease} {given['terms']}", now + float(lease) / 1000
        share = asked[0] if asked[0] or asked[1] else _NO_SHARE
        self.holders[token] = _Holder(fence, permits, share, record, now, ends)
        if self.rate is not None:
            self.granted.spend(self.rate, max(1, permits), now)
        reason = RATE if opens and reason == FULL else reason
        return ["ok", fence, lease, str(len(self.holders)), *([] if free else [reason])]

    def release(self, given: dict[str, Any]) -> list[Any]:
        token, how = given["token"], given["how"]
        held = self.holders.get(token)
        held = None if held is None or held.kept else held
        if how == "lost":
            return ["ok"]
        if how in ("release", "downgrade") and (held is None or held.fence != str(given["fence"])):
            return ["lost"]
        if held is not None and how in ("giveup", "withdraw"):
            return ["ok", held.fence, held.left]
        if held is not None and how == "downgrade":
            self.holders[token] = held._replace(permits=1)
            return ["ok"]
        waiter = self.waiting.pop(token, None)
        if how in ("giveup", "withdraw"):
            reason = TIMEOUT if how == "giveup" else FULL
            reason = reason if waiter is None or self.within(*waiter.asked) else SHARE
            limit, permits = int([*self.seen.split(" "), "1"][1]), waiter.asked[2] if waiter else 1
            room = self.used + permits <= limit if permits else not self.holders
            return self.rejection(reason, limit, self.opens(permits) if room else 0.0)
        if held is None:
            return ["gone"]
        ends = held.since + float(given["hold"]) / 1000
        self.holders[token] = held._replace(ends=ends, kept=True)
        self.tidy()
        return ["ok"]

    def renew(self, given: dict[str, Any]) -> list[Any]:
        held = self.holders.get(given["token"])
        if held is None or held.kept or held.fence != str(given["fence"]):
            return ["lost"]
        if given["how"] != "confirm":
            held = held._replace(ends=clock() + float(given["ms"]) / 1000)
            self.holders[given["token"]] = held
        return ["ok", held.left]

    def operate(self, given: dict[str, Any]) -> list[Any]:
        if given["how"] != "cool":
            raise _needs_redis("an operator action")
        ms, _, label = given["value"].partition(" ")
        until, now = clock() + int(ms) / 1000, time.time_ns() // 10**6
        if until > self.cools_until:
            self.cools_until, self.cool = until, f"{now} {now + int(ms)} {label}"
        return ["ok"]

    def inspect(self, given: dict[str, Any]) -> list[Any]:
        held = [*self.holders.items()][: int(given["max_rows"])]
        counts = [str(self.used), len(self.holders), len(self.waiting)]
        now, rows = time.time_ns() // 10**6, list[str]()
        for token, one in held:
            left = one.left
            rows += (token, left if left == "inf" else str(now + int(left)), one.record)
        reply = [str(now), str(self.fence), "", "", self.seen, "", *counts, rows, [], []]
        cool = self.cool if self.cools_until > clock() else ""
        if self.rate is not None:
            opens = math.ceil(self.opens(len(self.waiting) + 1) * 1000)
            rate = f"{self.rate[0]}/{self.rate[1] * 1000:.0f} {now}"
            used = str(self.granted.used(self.rate, clock()))
            reply += ["", "", "", rate, used, str(opens), cool]
        elif cool:
            reply += ["", "", "", "", "", "", cool]
        return reply


class MemoryServer:
    """A replacement for a Server."""

    #: False, because operators' lists read from Redis.
    lists_names = False

    def __init__(self, alias: str = "default") -> None:
        self.alias, self._pid = alias, os.getpid()
        self._counters, self._counting = defaultdict[str, _Counter](_Counter), Mutex()

    def close_idle(self) -> None:
        """Do nothing, because there are no connections."""

    def perform(self, step: Step) -> Answer:
        """Carry out a step and return the answer."""
        if isinstance(step, Run):
            return self.run(step)
        sent = clock()
        time.sleep(_pause(step))
        return Answer(None, sent, clock())

    def run(self, step: Run) -> Answer:
        sent, reply = clock(), list[Any]()  # the reply of scripts not named below is empty
        if step.verb in ("acquire", "release", "renew", "inspect", "operate"):
            given = arguments_of(step.verb, step.argv)
            reply = self._counting.run(partial(self._count, step.keys[0], step.verb, given))
        elif step.verb == "job":  # no task queue delivers jobs to this process only
            reply = ["ok"]
        elif step.verb == "clear":
            raise _needs_redis("an operator action")
        return Answer(reply, sent, clock())

    def _count(self, key: str, verb: str, given: dict[str, Any]) -> list[Any]:
        if self._pid != os.getpid():  # a forked child has none of its parent's leases
            self._counters.clear()
            self._pid = os.getpid()
        if len(self._counters) > _MAX_NAMES:
            for name, one in [*self._counters.items()]:
                one.tidy()
                if one.unused:
                    del self._counters[name]
        counter = self._counters[key]
        counter.tidy()
        reply: list[Any] = getattr(counter, verb)(given)
        return reply

    def node_of(self, step: Run) -> None:
        """Return None, which means that there is only one node."""

    def many(self, steps: Sequence[Run]) -> list[Answer]:
        return [self.run(step) for step in steps]

    def command(self, *args: Any, timeout: float = 0.0) -> Any:
        """Answer a command of the engine. Raise ImproperlyConfigured if the command needs a real
        server."""
        if args == ("TIME",):
            return [str(part) for part in divmod(time.time_ns() // 1000, 10**6)]
        if args[0] in _IGNORED:
            return None
        raise _needs_redis(str(args[0]))

    def commands(self, several: Sequence[Sequence[Any]], timeout: float = 0.0) -> list[Any]:
        return [self.command(*args) for args in several]


def _needs_redis(what: str) -> ImproperlyConfigured:
    """Return the error for something that works only with Redis."""
    return ImproperlyConfigured(
        f"Without Redis, permits are counted in each process: {what} needs a Redis server."
    )


class AsyncMemoryServer:
    """A replacement for an AsyncServer on one event loop. `server`: the MemoryServer of the alias,
    for all threads and event loops."""

    plans, retired = 0, False

    def __init__(self, server: MemoryServer) -> None:
        self._server, self.hub = server, NoHub()

    def left(self) -> None:
        """Record that a plan has ended."""
        self.plans -= 1

    async def aclose(self) -> None:
        """Do nothing, because there are no connections."""

    def perform(self, step: Step) -> asyncio.Task[Answer]:
        return asyncio.ensure_future(self._perform(step))

    async def _perform(self, step: Step) -> Answer:
        if not isinstance(step, Run):
            sent = clock()
            await asyncio.sleep(_pause(step))
            return Answer(None, sent, clock())
        return self._server.run(step)


def _pause(step: Step) -> float:
    """Return how many seconds to sleep for a step. A waiter sleeps at most POLL_INTERVAL, because
    no message wakes it up."""
    seconds: float = step.seconds  # type: ignore[union-attr]
    return min(seconds, POLL_INTERVAL) if isinstance(step, Wait) else seconds


@cache
def sync_server(alias: str) -> MemoryServer:
    """Return the process's MemoryServer of an alias, for REDIS_SYNC["WITHOUT_REDIS"]."""
    return MemoryServer(alias)


def async_server(alias: str) -> AsyncMemoryServer:
    """Return the object with which an event loop uses the process's MemoryServer of an alias."""
    return AsyncMemoryServer(sync_server(alias))
