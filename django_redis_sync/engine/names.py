"""Indexes for lists of names: the names in use, and since when they are held."""

from __future__ import annotations

import json
import math
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Protocol

from .. import conf
from ..logs import logger
from ..protocol.keys import Keys, quote
from ..protocol.steps import Failure, Run
from .server import Members, Server, server_of
from .statistics import Named
from .wire import RETRY, ROUND, clock, text, whole

#: Seconds after which a name in use is written to the registry again.
NOTED_EVERY = 60.0
#: Seconds between two writes of new names.
NOTED_AFTER = 0.3
#: Days without use after which a name is removed from the registry.
NOTED_DAYS = 1
#: Max entries of a registry. The least recently used ones are removed.
MOST_NOTED = 100_000

#: Seconds between two writes of the index of holders. A lease that is held for twice as long is in
#: the index.
HOLDERS_INTERVAL = 30.0
#: Entries that a write checks: as many of the oldest, and as many at a random position.
_CHECKED = 10
#: Max steps in a round trip.
_BATCH = 200


def names_key(prefix: str) -> str:
    """Return the key of the registry: a sorted set of quoted names by last use in server ms. A
    policy with keys in use is listed as `policy@`, and its keys have a registry of their own."""
    return f"{quote(prefix)}:names"


def policy_key(prefix: str, name: str) -> str:
    """Return the key of the registry of a policy's keys. It is separate because clients can make
    any number of keys, which must not push other names out."""
    return f"{quote(prefix)}:{{{quote(name)}}}:keys"


def quorums_key(prefix: str) -> str:
    """Return the key of a sorted set of the names that are locked on a quorum, by last use in
    server ms. Each entry is JSON: `[quoted name, [alias, ...]]`."""
    return f"{quote(prefix)}:quorums"


class Names:
    """The housekeeping job that registers names.

    `noted`: the names that this process used within the current minute. `fresh`: those of them that
    have yet to be written.
    """

    # Invariant: while `noted` is not empty, `due` is at most the end of the minute.
    def __init__(self, in_use: Callable[[], list[Keys]]) -> None:
        self._in_use = in_use
        self.noted: set[str] = set()
        self.due = self._minute_ends = math.inf
        self.fresh: deque[Keys] = deque()
        self._not_before = 0.0
        self._trim_at: dict[tuple[str, str], float] = {}  # of each alias and registry

    def add(self, keys: Keys) -> None:
        if len(self.noted) < MOST_NOTED:
            now = clock()
            self.noted.add(keys.leases)
            self.fresh.append(keys)
            self._minute_ends = min(self._minute_ends, now + NOTED_EVERY)
            self.due = min(self.due, max(now, self._not_before))

    def hurry(self) -> None:
        """Write fresh names at once."""
        self._not_before = 0.0
        if self.fresh:
            self.due = 0.0

    @property
    def unwritten(self) -> bool:
        return bool(self.fresh)

    def tend(self, server: Server, now: float) -> None:
        """Write fresh names if that is due. Once a minute, register all names in use again."""
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
            # No lock depends on the registry, so the names are written later.
            log = logger.warning if failure.why == "final" else logger.debug
            log("could not list names in use: %s", failure)
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
            self._enter_quorum(getattr(server, "quorum", None), some, ms, now)

    def _enter_quorum(self, quorum: Members | None, some: list[Keys], ms: int, now: float) -> None:
        """List names on a quorum in the default cache, where operators look, and on each server."""
        if quorum is None:
            return
        config = conf.current()
        members = [json.dumps([keys.quoted, quorum.aliases]) for keys in some]
        for alias in dict.fromkeys((config.cache, *quorum.aliases)):
            prefix = config.prefix(alias)
            try:
                self._enter(server_of(alias), quorums_key(prefix), members, ms, now)
                names = [keys.quoted for keys in some]
                self._enter(server_of(alias), names_key(prefix), names, ms, now)
            except Failure as failure:  # a quorum may lose servers; the others list the name
                logger.debug("could not list names of a quorum on %r: %s", alias, failure)

    def _enter(
        self, server: Server, registry: str, members: list[str], ms: int, now: float
    ) -> None:
        for start in range(0, len(members), 1000):
            pairs = [(ms, member) for member in members[start : start + 1000]]
            flat = [word for pair in pairs for word in pair]
            server.command("ZADD", registry, *flat, timeout=ROUND)
        if now >= self._trim_at.get((server.alias, registry), 0.0):
            if len(self._trim_at) >= MOST_NOTED:
                self._trim_at.clear()
            self._trim_at[server.alias, registry] = now + NOTED_EVERY
            old = ms - NOTED_DAYS * 86_400_000
            server.command("ZREMRANGEBYSCORE", registry, "-inf", old, timeout=ROUND)
            server.command("ZREMRANGEBYRANK", registry, 0, -1 - MOST_NOTED, timeout=ROUND)
            server.command("PEXPIRE", registry, 2 * NOTED_DAYS * 86_400_000, timeout=ROUND)


def _by_registry(prefix: str, some: list[Keys]) -> dict[str, list[str]]:
    """Return the entries to write, by registry. `prefix`: quoted."""
    found: dict[str, dict[str, None]] = {}
    for keys in some:
        policy, at, key = keys.quoted.partition("@")
        found.setdefault(f"{prefix}:names", {})[policy + at] = None
        if at:
            found.setdefault(f"{prefix}:{{{policy}}}:keys", {})[key] = None
    return {registry: list(members) for registry, members in found.items()}


class Held(Protocol):
    """The attributes of a lease that housekeeping reads. `remaining`: seconds; inf for a permanent
    lease. `permits`: 0 for the whole name."""

    @property
    def _settings(self) -> Named: ...
    @property
    def permits(self) -> int: ...
    @property
    def fence(self) -> int: ...
    @property
    def remaining(self) -> float: ...


#: The prefix of a name's keys, and the name, both quoted.
Place = tuple[str, str]


def holders_key(prefix: str) -> str:
    """Return the key of the index of holders: a sorted set of quoted names by the time when their
    oldest holder got its lease, in server ms. It never expires, because permanent leases don't."""
    return f"{quote(prefix)}:holders"


class HolderIndex:
    """The housekeeping job for the index of holders, with which lists begin with the names that are
    held longest. `held`: returns the leases of this process.

    An acquire or a release does not write it. Every HOLDERS_INTERVAL seconds, each process enters
    its permanent leases and those that it has held for a while, and corrects its entries for leases
    that ended. It also checks a few entries of other processes, because a killed process can't.
    """

    def __init__(self, held: Callable[[], Iterable[Held]]) -> None:
        self.due = math.inf
        self._held, self._leaving = held, False
        self._before: set[int] = set()  # fences of the leases at the last write
        self._entered: dict[Place, int] = {}  # start of the oldest lease in ms

    def expect(self) -> None:
        """Schedule the next write, because a lease was acquired."""
        if self.due == math.inf:
            self.due = clock() + HOLDERS_INTERVAL

    @property
    def unwritten(self) -> bool:
        return self._leaving and self.due == 0.0

    def hurry(self) -> None:
        """Write at once, because the process exits: only permanent leases are entered."""
        if self.due < math.inf:
            self._leaving, self.due = True, 0.0

    def tend(self, server: Server, now: float) -> None:
        """Enter leases that are held for a while, and correct other entries."""
        self.due = math.inf
        if getattr(server, "quorum", None) is not None:
            return  # lists always include the names on a quorum
        held, fences = dict[Place, int](), set[int]()
        for lease in self._held():
            fences.add(lease.fence)
            is_old = lease.fence in self._before and not self._leaving
            if is_old or lease.remaining == math.inf:
                keys = lease._settings.keys
                place, since = (keys.prefix, keys.quoted), lease.fence // 1000
                held[place] = min(held.get(place, since), since)
        if fences or self._entered:
            self.due = now + HOLDERS_INTERVAL
            self._write(server, held, held.items() - self._entered.items())
            self._correct(server, [*(self._entered.keys() - held.keys())])
            for prefix in {prefix for prefix, _ in (*held, *self._entered)}:
                self._correct(server, self._some(server, prefix))
        self._before, self._entered = fences, held

    def _write(self, server: Server, held: dict[Place, int], fresh: Set[tuple[Place, int]]) -> None:
        places = [place for place, since in held.items() if (place, since) in fresh]
        for prefix in {prefix for prefix, _ in places}:
            words = [(held[place], place[1]) for place in places if place[0] == prefix]
            flat = [word for pair in words for word in pair]
            server.command("ZADD", f"{prefix}:holders", "LT", *flat, timeout=ROUND)

    def _some(self, server: Server, prefix: str) -> list[Place]:
        """Return the oldest entries, and a few at a random position."""
        key = f"{prefix}:holders"
        count = int(server.command("ZCARD", key, timeout=ROUND))
        start = secrets.randbelow(max(1, count))
        ranks = [(0, _CHECKED - 1), (start, start + _CHECKED - 1)]
        found = [server.command("ZRANGE", key, *one, timeout=ROUND) for one in ranks]
        return [(prefix, quoted) for quoted in dict.fromkeys(text([*found[0], *found[1]]))]

    def _correct(self, server: Server, places: Sequence[Place]) -> None:
        """Set or remove the entries of these names according to their leases on the server."""
        for start in range(0, len(places), _BATCH):
            batch = places[start : start + _BATCH]
            answers = server.many([_inspecting(*place) for place in batch])
            for (prefix, quoted), answer in zip(batch, answers, strict=True):
                if isinstance(answer, Failure):
                    continue  # for example a foreign value, or a node that is down
                records = answer.reply[9][2::3]
                fences = [whole(part) for record in records for part in record.split(" ")[1:2]]
                since = min(fences, default=0) // 1000
                words = ("ZADD", since, quoted) if since else ("ZREM", quoted)
                server.command(words[0], f"{prefix}:holders", *words[1:], timeout=ROUND)


def _inspecting(prefix: str, quoted: str) -> Run:
    base = f"{prefix}:{{{quoted}}}:"
    return Run("inspect", (base + "leases", base + "never"), ("", 200), ROUND)
