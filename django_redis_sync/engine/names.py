"""The registry of names in use, for those who list them, and what fresh names inherit."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from typing import Any

from ..protocol.keys import Keys, quote
from ..protocol.plans import Failure, Run
from .server import Server
from .wire import ATTEMPT, RETRY, ROUND, clock

logger = logging.getLogger("django_redis_sync")

#: Seconds after which a name in use is written to the registry again, and between two writes of new
#: ones; days without use after which a name is dropped; names, and keys of one policy, at the
#: most, newest first.
NOTED_EVERY, NOTED_AFTER, NOTED_DAYS, MOST_NOTED = 60.0, 0.3, 1, 100_000


def names_key(prefix: str) -> str:
    """The registry: a sorted set of names as between braces, by last use in server ms. A policy
    whose keys are in use stands there as `policy@`, and its keys in a registry of their own."""
    return f"{quote(prefix)}:names"


def policy_key(prefix: str, name: str) -> str:
    """As names_key: the keys of one policy. Keys are made by anybody who asks: however many they
    are, they push no other name out."""
    return f"{quote(prefix)}:{{{quote(name)}}}:keys"


def marked_key(prefix: str) -> str:
    """As names_key: the names that an operator paused or resized, by when, until taken back."""
    return f"{quote(prefix)}:marked"


def operating(keys: Keys, how: str, value: str | int = "") -> Run:
    """The step of an operator's mark: pause, resume, resize to `value`, or reset."""
    return Run("operate", keys.of(""), ("", how, value, keys.keep), ATTEMPT)


class Names:
    """The names that this process used within the minute, and which are still to be written, those
    in `fresh`.

    A fresh child of a policy that an operator paused or resized is treated as the policy is.
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
        """Have what is fresh written without a pause after the last time."""
        self._not_before = 0.0
        if self.fresh:
            self.due = 0.0

    @property
    def unwritten(self) -> bool:
        return bool(self.fresh)

    def tend(self, server: Server, now: float) -> None:
        """Write what is fresh, when it is time; note anew once a minute."""
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
            # Nobody's work depends on it: it is tried again with whatever is fresh by then.
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
            by_prefix.setdefault(_prefix(keys), []).append(keys)
        for prefix, some in by_prefix.items():
            seconds, _ = server.command("TIME", timeout=ROUND)
            ms = int(seconds) * 1000
            for registry, members in _by_registry(prefix, some).items():
                self._enter(server, registry, members, ms, now)
            self._inherit(server, f"{prefix}:marked", [k for k in some if "@" in k.quoted])

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

    def _inherit(self, server: Server, marked: str, children: list[Keys]) -> None:
        """Have fresh children of marked policies paused and resized as these are."""
        by_policy: dict[str, list[Keys]] = {}
        for keys in children:
            by_policy.setdefault(keys.quoted.partition("@")[0], []).append(keys)
        for policy, some in by_policy.items():
            if server.command("ZSCORE", marked, policy, timeout=ROUND) is None:
                continue
            for keys in some:
                info = keys.info.replace(f"{{{keys.quoted}}}", f"{{{policy}}}")
                self._follow(server, marked, info, keys)

    def _follow(self, server: Server, marked: str, policy: str, child: Keys) -> None:
        def marks(info: str) -> Any:
            return server.command("HMGET", info, "#paused", "#limit", timeout=ROUND)

        wanted, has = marks(policy), marks(child.info)
        for mark, of_policy, own in zip(("pause", "resize"), wanted, has, strict=True):
            if of_policy and not own:
                server.command("ZADD", marked, of_policy, child.quoted, timeout=ROUND)
                server.run(operating(child, mark, of_policy))
        # Taken back meanwhile: whoever did that may not have seen the child yet.
        for undo, before, after in zip(("resume", "reset"), wanted, marks(policy), strict=True):
            if before and not after:
                server.run(operating(child, undo))


def _by_registry(prefix: str, some: list[Keys]) -> dict[str, list[str]]:
    """What is to be entered where; `prefix` as it stands in keys."""
    found: dict[str, dict[str, None]] = {}
    for keys in some:
        policy, at, key = keys.quoted.partition("@")
        found.setdefault(f"{prefix}:names", {})[policy + at] = None
        if at:
            found.setdefault(f"{prefix}:{{{policy}}}:keys", {})[key] = None
    return {registry: list(members) for registry, members in found.items()}


def _prefix(keys: Keys) -> str:
    """The prefix, quoted, of the keys of a name."""
    return keys.leases.removesuffix(f":{{{keys.quoted}}}:leases")
