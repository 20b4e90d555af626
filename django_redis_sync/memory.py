"""A replacement for Redis in tests: counters of permits in this process.

Limits, the order of waiters, and growing fences work for the threads and event loops of the
process. Other features are missing:

- A lease lasts until it is released: `timeout` and `min_hold` have no effect.
- Waiters poll every POLL_INTERVAL seconds, and `fair=False` has no effect.
- The handle of a detached lease can be adopted twice.
- Shares don't take turns, but `share_limit` applies. A waiter overtakes waiters of shares that have
  reached this limit.
- Operators can't pause, resize, or clear. Statistics and lists of names are missing.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from .engine.hub import NoHub
from .engine.mutex import Mutex
from .engine.wire import clock
from .protocol.reasons import FULL, SHARE, TIMEOUT
from .protocol.scripts import CONSTANTS, arguments_of
from .protocol.steps import Answer, Run, Step, Wait

POLL_INTERVAL = 0.01
#: Commands that are ignored. They probe Redis, or write the registry of names.
_IGNORED = ("PING", "ZADD", "ZSCORE", "ZREMRANGEBYSCORE", "ZREMRANGEBYRANK", "PEXPIRE")


class _Holder(NamedTuple):
    fence: str
    permits: int
    share: str
    lease: str
    record: str


class _Counter:
    """The holders of a name by token, and the waiting tokens in order of arrival.

    Each script is a method. It gets the script's arguments, and returns the script's reply.
    """

    def __init__(self) -> None:
        self.holders: dict[str, _Holder] = {}
        #: For each waiting token: the share, its limit (0: none), and the permits to acquire.
        self.waiting: dict[str, tuple[str, int, int]] = {}
        self.seen, self.fence = "", 0

    @property
    def used(self) -> int:
        return sum(one.permits or CONSTANTS["EXCLUSIVE"] for one in self.holders.values())

    def within(self, share: str, share_limit: int, permits: int) -> bool:
        """Return True if the share may have `permits` more permits. `share_limit`: the max permits
        of the share, or 0 for no limit."""
        held = sum(one.permits for one in self.holders.values() if one.share == share)
        return not share_limit or held + permits <= share_limit

    def rejection(self, reason: str, limit: Any) -> list[Any]:
        return ["no", reason, str(len(self.waiting)), "", str(limit)]

    def acquire(self, given: dict[str, Any]) -> list[Any]:
        token, how, limit = given["token"], given["how"], int(given["limit"])
        asked = given["share"], int(given["share_limit"]), int(given["permits"])
        permits, kind = asked[2], self.seen[:1]
        if (held := self.holders.get(token)) is not None:
            return ["ok", held.fence, held.lease]
        if permits > limit:
            return ["large", str(limit)]
        if (self.holders or self.waiting) and kind not in ("", given["kind"]):
            return ["kind", kind]
        first = next((one for one, its in self.waiting.items() if self.within(*its)), token)
        reason = FULL if self.within(*asked) else SHARE
        room = self.used + permits <= limit if permits else not self.holders
        free = room and reason == FULL and first == token
        if not (free or how == "shadow"):
            full = token not in self.waiting and len(self.waiting) >= int(given["max_waiters"])
            if how == "try" or full:
                return self.rejection(reason, limit)
            self.waiting[token] = asked
            return ["wait", str(time.time_ns() // 10**6), str(int(POLL_INTERVAL * 1000)), "0"]
        self.waiting.pop(token, None)
        self.fence, self.seen = max(self.fence + 1, time.time_ns() // 1000), given["wants"]
        fence, lease = str(self.fence), str(given["lease"])
        record = f"h {fence} {lease} {given['terms']}"
        self.holders[token] = _Holder(fence, permits, asked[0], lease, record)
        return ["ok", fence, lease, str(len(self.holders)), *([] if free else [reason])]

    def release(self, given: dict[str, Any]) -> list[Any]:
        token, how = given["token"], given["how"]
        held = self.holders.get(token)
        if how == "lost":
            return ["ok"]
        if how in ("release", "downgrade") and (held is None or held.fence != str(given["fence"])):
            return ["lost"]
        if held is not None and how == "giveup":
            return ["ok", held.fence, held.lease]
        if held is not None and how == "downgrade":
            self.holders[token] = held._replace(permits=1)
            return ["ok"]
        asked = self.waiting.pop(token, None)
        if how == "giveup":
            reason = TIMEOUT if asked is None or self.within(*asked) else SHARE
            return self.rejection(reason, self.seen.partition(" ")[2] or "1")
        return ["ok" if self.holders.pop(token, None) else "gone"]

    def renew(self, given: dict[str, Any]) -> list[Any]:
        held = self.holders.get(given["token"])
        if held is None or held.fence != str(given["fence"]):
            return ["lost"]
        return ["ok", held.lease if given["how"] == "confirm" else str(given["ms"])]

    def inspect(self, given: dict[str, Any]) -> list[Any]:
        held = [*self.holders.items()][: int(given["max_rows"])]
        rows = [text for token, one in held for text in (token, "inf", one.record)]
        counts = [str(self.used), len(self.holders), len(self.waiting)]
        now = str(time.time_ns() // 10**6)
        return [now, str(self.fence), "", "", self.seen, "", *counts, rows, []]


class MemoryServer:
    """A replacement for a Server. `asynchronous`: the replacement for an AsyncServer."""

    def __init__(self, alias: str = "default") -> None:
        self.alias, self.asynchronous = alias, _AsyncMemoryServer(self)
        self._counters, self._counting = defaultdict[str, _Counter](_Counter), Mutex()

    def perform(self, step: Step) -> Answer:
        """Carry out a step and return the answer."""
        if isinstance(step, Run):
            return self.run(step)
        sent = clock()
        time.sleep(_pause(step))
        return Answer(None, sent, clock())

    def run(self, step: Run) -> Answer:
        sent, reply = clock(), list[Any]()  # the reply of scripts not named below is empty
        if step.verb in ("acquire", "release", "renew", "inspect"):
            given = arguments_of(step.verb, step.argv)

            def count() -> list[Any]:
                reply: list[Any] = getattr(self._counters[step.keys[0]], step.verb)(given)
                return reply

            reply = self._counting.run(count)
        elif step.verb in ("clear", "operate"):
            raise NotImplementedError("operator actions need a Redis server")
        return Answer(reply, sent, clock())

    def node_of(self, step: Run) -> None:
        """Return None, which means that there is only one node."""

    def many(self, steps: Sequence[Run]) -> list[Answer]:
        return [self.run(step) for step in steps]

    def command(self, *args: Any, timeout: float = 0.0) -> Any:
        """Answer a command of the engine. Raise NotImplementedError if the command needs a real
        server."""
        if args == ("TIME",):
            return [str(part) for part in divmod(time.time_ns() // 1000, 10**6)]
        if args[0] in _IGNORED:
            return None
        raise NotImplementedError(f"{args[0]} needs a Redis server")

    def commands(self, several: Sequence[Sequence[Any]], timeout: float = 0.0) -> list[Any]:
        return [self.command(*args) for args in several]


class _AsyncMemoryServer:
    """A replacement for an AsyncServer."""

    plans = 0

    def __init__(self, server: MemoryServer) -> None:
        self._server, self.hub = server, NoHub()

    def left(self) -> None:
        """Do nothing, because there is nothing to close."""

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
