"""What lists of names are made of: the names in use, and since when they are held."""

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

#: Seconds after which a name in use is written to the registry again, and between two writes of new
#: ones; days without use after which a name is dropped; names, and keys of one policy, at the
#: most, newest first.
NOTED_EVERY, NOTED_AFTER, NOTED_DAYS, MOST_NOTED = 60.0, 0.3, 1, 100_000

#: Seconds between two writes: an entry is made at most twice as long after its lease was acquired.
HOLDERS_INTERVAL = 30.0
#: Entries that a write checks, as many of the oldest as of any; steps that are sent at a time.
_CHECKED, _BATCH = 10, 200


def names_key(prefix: str) -> str:
    """The registry: a sorted set of names as between braces, by last use in server ms. A policy
    with keys in use stands there as `policy@`, and its keys in a registry of their own."""
    return f"{quote(prefix)}:names"


def policy_key(prefix: str, name: str) -> str:
    """As names_key: the keys of a policy. Any request may make a key: however many they are, they
    push no other name out."""
    return f"{quote(prefix)}:{{{quote(name)}}}:keys"


def quorums_key(prefix: str) -> str:
    """A sorted set of the names that are locked on a quorum, by last use in server ms: each as
    JSON, `[name as between braces, [alias, ...]]`."""
    return f"{quote(prefix)}:quorums"


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
        self._trim_at: dict[tuple[str, str], float] = {}  # of each alias and registry

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
        """List names on a quorum where operators look: in the default cache, and on each server."""
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
            except Failure as failure:  # a quorum outlives servers; others list the name
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
    """The names to enter by registry; `prefix` as it stands in keys."""
    found: dict[str, dict[str, None]] = {}
    for keys in some:
        policy, at, key = keys.quoted.partition("@")
        found.setdefault(f"{prefix}:names", {})[policy + at] = None
        if at:
            found.setdefault(f"{prefix}:{{{policy}}}:keys", {})[key] = None
    return {registry: list(members) for registry, members in found.items()}


class Held(Protocol):
    """The parts of a lease that are read. `remaining`: inf of a permanent lease. `permits`: 0 for
    the whole name."""

    @property
    def _settings(self) -> Named: ...
    @property
    def permits(self) -> int: ...
    @property
    def fence(self) -> int: ...
    @property
    def remaining(self) -> float: ...


#: A name: the prefix of its keys, and its text between braces, both quoted.
Place = tuple[str, str]


def holders_key(prefix: str) -> str:
    """A sorted set of names as between braces, by the grant of their oldest holder, server ms. It
    has no expiry, as a permanent lease has none, and is gone with its last entry."""
    return f"{quote(prefix)}:holders"


class HolderIndex:
    """The index of holders of an alias: since when names are held, for lists that start with the
    oldest. `held`: the leases of this process.

    Acquiring and releasing send nothing for it. Each process enters what it has held for a while,
    and permanent leases, every HOLDERS_INTERVAL seconds. It corrects what it entered and no longer
    holds, and checks a few entries of others, because a killed process corrects nothing.
    """

    def __init__(self, held: Callable[[], Iterable[Held]]) -> None:
        self.due = math.inf
        self._held, self._leaving = held, False
        self._before: set[int] = set()  # the fences of the leases at the last write
        self._entered: dict[Place, int] = {}  # since when, ms

    def expect(self) -> None:
        """Enter in time what is held from now on."""
        if self.due == math.inf:
            self.due = clock() + HOLDERS_INTERVAL

    @property
    def unwritten(self) -> bool:
        return self._leaving and self.due == 0.0

    def hurry(self) -> None:
        """At exit: enter permanent leases, and correct the other entries."""
        if self.due < math.inf:
            self._leaving, self.due = True, 0.0

    def tend(self, server: Server, now: float) -> None:
        """Enter what is held for a while, correct what is not, check entries of others."""
        self.due = math.inf
        if getattr(server, "quorum", None) is not None:
            return  # lists always have the names on a quorum
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
        """The oldest entries, and a few of all."""
        key = f"{prefix}:holders"
        count = int(server.command("ZCARD", key, timeout=ROUND))
        start = secrets.randbelow(max(1, count))
        ranks = [(0, _CHECKED - 1), (start, start + _CHECKED - 1)]
        found = [server.command("ZRANGE", key, *one, timeout=ROUND) for one in ranks]
        return [(prefix, quoted) for quoted in dict.fromkeys(text([*found[0], *found[1]]))]

    def _correct(self, server: Server, places: Sequence[Place]) -> None:
        """Have the index say what the server knows of these."""
        for start in range(0, len(places), _BATCH):
            batch = places[start : start + _BATCH]
            answers = server.many([_inspecting(*place) for place in batch])
            for (prefix, quoted), answer in zip(batch, answers, strict=True):
                if isinstance(answer, Failure):
                    continue  # another program's value, or a node that is down
                records = answer.reply[9][2::3]
                fences = [whole(part) for record in records for part in record.split(" ")[1:2]]
                since = min(fences, default=0) // 1000
                words = ("ZADD", since, quoted) if since else ("ZREM", quoted)
                server.command(words[0], f"{prefix}:holders", *words[1:], timeout=ROUND)


def _inspecting(prefix: str, quoted: str) -> Run:
    base = f"{prefix}:{{{quoted}}}:"
    return Run("inspect", (base + "leases", base + "never"), ("", 200), ROUND)
