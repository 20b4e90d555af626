"""The registry of names in use, for lists of names."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable

from ..protocol.keys import Keys, quote
from ..protocol.plans import Failure
from .server import Server
from .wire import RETRY, ROUND, clock

logger = logging.getLogger("django_redis_sync")

#: Seconds after which a name in use is written to the registry again, and between two writes of new
#: ones; days without use after which a name is dropped; names, and keys of one policy, at the
#: most, newest first.
NOTED_EVERY, NOTED_AFTER, NOTED_DAYS, MOST_NOTED = 60.0, 0.3, 1, 100_000


def names_key(prefix: str) -> str:
    """The registry: a sorted set of names as between braces, by last use in server ms. A policy
    with keys in use stands there as `policy@`, and its keys in a registry of their own."""
    return f"{quote(prefix)}:names"


def policy_key(prefix: str, name: str) -> str:
    """As names_key: the keys of a policy. Any request may make a key: however many they are, they
    push no other name out."""
    return f"{quote(prefix)}:{{{quote(name)}}}:keys"


class Names:
    """The names that this process used within the minute, and which are still to be written, those
    in `fresh`.
    """

    # Invariant: due is no later than the end of the minute while anything is noted.
    def __init__(self, in_use: Callable[[], list[Keys]]) -> None:
        self._in_use = in_use
        self.noted: set[str] = set()
        self.due = self._minute_ends = math.inf
        self.fresh: deque[Keys] = deque()
        self._not_before = 0.0
        self._trim_at: dict[str, float] = {}  # of each registry

    def add(self, keys: Keys) -> None:
        if len(self.noted) < MOST_NOTED:
            now = clock()
            self.noted.add(keys.leases)
            self.fresh.append(keys)
            self._minute_ends = min(self._minute_ends, now + NOTED_EVERY)
            self.due = min(self.due, max(now, self._not_before))

    def hurry(self) -> None:
        """Have fresh names written without a pause after the last time."""
        self._not_before = 0.0
        if self.fresh:
            self.due = 0.0

    @property
    def unwritten(self) -> bool:
        return bool(self.fresh)

    def tend(self, server: Server, now: float) -> None:
        """Write fresh names, when it is time; note anew once a minute."""
        if now < self.due:
            return
        if now >= self._minute_ends:
            self._minute_ends = math.inf
            self.noted.clear()
            for keys in self._in_use():
                if keys.leases not in self.noted:
                    self.add(keys)
        self._not_before = now + NOTED_AFTER
        fresh = [self.fresh.popleft() for _ in range(len(self.fresh))]
        try:
            self._write(server, fresh, now)
        except Failure as failure:
            # No lock depends on it: it is tried again with all names that are fresh by then.
            logger.log(
                logging.WARNING if failure.why == "final" else logging.DEBUG,
                "could not list names in use: %s",
                failure,
            )
            self.fresh.extend(fresh[: MOST_NOTED - len(self.fresh)])
            again = now + (NOTED_EVERY if failure.why == "final" else RETRY)
            self.due = min(self._minute_ends, again)
            return
        self.due = self._minute_ends
        if self.fresh:
            self.due = min(self.due, self._not_before)

    def _write(self, server: Server, fresh: list[Keys], now: float) -> None:
        by_prefix: dict[str, list[Keys]] = {}
        for keys in fresh:
            by_prefix.setdefault(keys.prefix, []).append(keys)
        for prefix, some in by_prefix.items():
            seconds, _ = server.command("TIME", timeout=ROUND)
            ms = int(seconds) * 1000
            for registry, members in _by_registry(prefix, some).items():
                self._enter(server, registry, members, ms, now)

    def _enter(
        self, server: Server, registry: str, members: list[str], ms: int, now: float
    ) -> None:
        for start in range(0, len(members), 1000):
            pairs = [(ms, member) for member in members[start : start + 1000]]
            flat = [word for pair in pairs for word in pair]
            server.command("ZADD", registry, *flat, timeout=ROUND)
        if now >= self._trim_at.get(registry, 0.0):
            if len(self._trim_at) >= MOST_NOTED:
                self._trim_at.clear()
            self._trim_at[registry] = now + NOTED_EVERY
            old = ms - NOTED_DAYS * 86_400_000
            server.command("ZREMRANGEBYSCORE", registry, "-inf", old, timeout=ROUND)
            server.command("ZREMRANGEBYRANK", registry, 0, -1 - MOST_NOTED, timeout=ROUND)
            server.command("PEXPIRE", registry, 2 * NOTED_DAYS * 86_400_000, timeout=ROUND)


def _by_registry(prefix: str, some: list[Keys]) -> dict[str, list[str]]:
    """The names to enter by registry; `prefix` as it stands in keys."""
    found: dict[str, dict[str, None]] = {}
    for keys in some:
        policy, at, key = keys.quoted.partition("@")
        found.setdefault(f"{prefix}:names", {})[policy + at] = None
        if at:
            found.setdefault(f"{prefix}:{{{policy}}}:keys", {})[key] = None
    return {registry: list(members) for registry, members in found.items()}
