"""The outcomes of this process's asks, summed by policy, by template and over the whole site.

Names come by the ten thousand and a page can't read them all, so sums are kept as things happen.
An ask leaves an event in a deque, its only cost; every two seconds the clerk adds the events up
and writes a small entry per group, however many names there are.

Permits in use and waiters are written as an absolute share of this process, valid for LIFE and
replaced by the next: a process that dies, a lease that is cleared, adopted or taken back by the
server is counted wrong for no longer than that. Of the busiest keys only the top is kept: how far a
count may be off is kept beside it.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from .. import conf
from ..protocol.keys import Keys, group_keys, groups_key, quote
from ..protocol.scripts import CONSTANTS
from ..protocol.steps import Failure, Run
from .server import Server
from .wire import ROUND, clock

#: Seconds between two writes, between two of a share that did not change, and for which a share is
#: valid.
EVERY, AGAIN, LIFE = 2.0, 10.0, 30.0
#: Events that wait to be added up at the most: more drop the oldest of them. Groups
#: that a process sums up, and groups in the index, the latest.
MOST_EVENTS, MOST_GROUPS = 200_000, 500
#: The busiest keys that a write names: by refusals, and by permits in use and by waiters.
MOST_KEYS, NAMED = 200, 20
#: Days without an event after which a group leaves the index.
LISTED_DAYS = 1
#: The group of everything.
SITE = ""

#: g: granted at once; w: granted after so many ms; n: refused; t: waited in vain; s: would have
#: been refused, in shadow mode; r: released after so many ms; l: lost; b: refused because of its
#: share, which is also counted as n or s.
Kind = str


#: The keys of a name and its template, what became of an ask or a lease, how many ms it took, and
#: the permits of the name that were in use then.
Event = tuple[Keys, str, Kind, int, int]


class Named(Protocol):
    """The subject of an ask or a lease. `template`: that of the name, where it is known."""

    @property
    def keys(self) -> Keys: ...
    @property
    def template(self) -> str: ...


class _Counted(NamedTuple):
    """The subject of events."""

    keys: Keys
    template: str


class _Outcomes(NamedTuple):
    """The events of a name: how many of each kind and its ms; the most permits in use at once."""

    of: _Counted
    counts: Counter[tuple[Kind, int]]
    peak: int


class Gauge(NamedTuple):
    """This process's part of a name: permits in use, and the number of waiters."""

    of: Named
    in_use: int
    waiting: int


@dataclass(slots=True)
class _Sum:
    """A group since the last write, and now."""

    counts: Counter[str] = field(default_factory=Counter)
    durations: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    in_use: int = 0
    waiting: int = 0
    by_key: dict[str, list[int]] = field(default_factory=dict)
    peak: int = 0  # the most permits of a single key that were in use at once

    def add(self, outcomes: _Outcomes, key: str) -> None:
        """Add the events of a key."""
        self.peak = max(self.peak, outcomes.peak)
        for (kind, ms), many in outcomes.counts.items():
            timed = kind in "wr"
            self.counts[kind] += many * (CONSTANTS["PAIR"] + ms) if timed else many
            if timed:
                self.durations[f"{kind}{bucket(ms)}"] += many
            elif kind in "nt":
                self.refused[key] += many

    def share(self, share: Gauge, key: str) -> None:
        self.in_use += share.in_use
        self.waiting += share.waiting
        mine = self.by_key.setdefault(key, [0, 0])
        mine[0] += share.in_use
        mine[1] += share.waiting
        self.peak = max(self.peak, mine[0])

    def forget_share(self) -> None:
        """Keep the counts, of the keys the busiest only; the share is made anew."""
        self.in_use = self.waiting = 0
        self.by_key = {}
        self.refused = Counter(dict(self.refused.most_common(10 * MOST_KEYS)))

    @property
    def entry(self) -> str:
        """The share as it is written: permits, waiters, and the busiest keys with theirs; `off` is
        the most that a key that is not named may have."""
        ranked = sorted(self.by_key.items(), key=lambda item: item[1], reverse=True)
        waiting = sorted(ranked, key=lambda item: item[1][1], reverse=True)
        named = dict([*ranked[:NAMED], *waiting[:NAMED]])
        rest = [counts for key, counts in ranked if key not in named]
        off = [max((counts[i] for counts in rest), default=0) for i in (0, 1)]
        return json.dumps([self.in_use, self.waiting, off, named], separators=(",", ":"))


def bucket(ms: int) -> int:
    """Which of the durations that double: 0 for none, n for less than 2**n ms."""
    return ms.bit_length()


class StatisticsBuffer:
    """The clerk's book of sums, for an alias. `shares`: the names held and waited for here."""

    def __init__(self, shares: Callable[[], Iterable[Gauge]]) -> None:
        self.due = math.inf
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._shares, self._process = shares, os.urandom(6).hex()
        #: The last written share of each group, and when it has to be written again.
        self._said: dict[tuple[str, str], tuple[str, float]] = {}
        #: Groups that could not be written, and are added to the next.
        self._unwritten: dict[tuple[str, str], _Sum] = {}
        self._leaving = False

    def rouse(self) -> None:
        """Have the first event after idle times written soon."""
        self.due = clock() + EVERY

    @property
    def unwritten(self) -> bool:
        return bool(self.events or self._unwritten or (self._leaving and self._said))

    def hurry(self) -> None:
        """Have everything written now: the process ends, and nothing is in use by it any more."""
        self._leaving = True
        if self.events or self._said:
            self.due = 0.0

    def tend(self, server: Server, now: float) -> None:
        """Write the events since the last time."""
        written = {}
        for place, one in self._add_up().items():
            entry = one.entry if one.in_use or one.waiting else ""
            said, again = self._said.get(place, ("", math.inf))
            if one.counts or entry != said or now >= again:
                written[place] = one, _writing(*place, self._process, entry, one)
                self._said[place] = entry, now + AGAIN
            if not entry:
                self._said.pop(place, None)
        self.due = math.inf  # first: an event that comes now sees it
        if self._said or self.events:
            self.due = now + EVERY
        answers = server.many([step for _, step in written.values()]) if written else []
        failures = []
        for (place, (one, _)), answer in zip(written.items(), answers, strict=True):
            if isinstance(answer, Failure):
                failures.append(answer)
                self._said.pop(place, None)  # its share is said anew
                if answer.why != "final":
                    one.forget_share()
                    self._unwritten[place] = one
        if failures:
            self.due = now + EVERY
            raise failures[0]
        self._list(server, list(written))

    def _add_up(self) -> dict[tuple[str, str], _Sum]:
        statistics = {place: _Sum() for place in self._said} | self._unwritten
        self._unwritten = {}

        def of(named: Named) -> Iterable[tuple[_Sum, str]]:
            keys = named.keys
            if not keys.keep:
                return
            prefix, quoted = keys.prefix, keys.quoted
            yield statistics.setdefault((prefix, SITE), _Sum()), quoted
            group = keys.policy.quoted if keys.policy else quote(named.template)
            if group and ((prefix, group) in statistics or len(statistics) < MOST_GROUPS):
                key = quoted.partition("@")[2] if keys.policy else quoted
                yield statistics.setdefault((prefix, group), _Sum()), key

        for outcomes in self._by_name():
            for one, key in of(outcomes.of):
                one.add(outcomes, key)
        for share in () if self._leaving else self._shares():
            for one, key in of(share.of):
                one.share(share, key)
        return statistics

    def _by_name(self) -> list[_Outcomes]:
        """The events since the last time, by name and template.

        There are two for each cycle, and all threads wait meanwhile: names are told apart by
        identity, which is quick, and where one is there twice it is added twice.
        """
        found: dict[tuple[int, str], list[Event]] = {}
        for event in [self.events.popleft() for _ in range(len(self.events))]:
            found.setdefault((id(event[0]), event[1]), []).append(event)
        return [
            _Outcomes(
                _Counted(events[0][0], events[0][1]),
                Counter((kind, ms) for _, _, kind, ms, _ in events),
                max(used for *_, used in events),
            )
            for events in found.values()
        ]

    def _list(self, server: Server, places: list[tuple[str, str]]) -> None:
        """Have the groups listed by when something was last said of them."""
        for prefix in {prefix for prefix, group in places if group}:
            seconds, _ = server.command("TIME", timeout=ROUND)
            index, ms = groups_key(prefix), int(seconds) * 1000
            groups = [group for where, group in places if group and where == prefix]
            words = [word for group in groups for word in (ms, group)]
            server.command("ZADD", index, *words, timeout=ROUND)
            old = ms - LISTED_DAYS * 86_400_000
            server.command("ZREMRANGEBYSCORE", index, "-inf", old, timeout=ROUND)
            server.command("ZREMRANGEBYRANK", index, 0, -1 - MOST_GROUPS, timeout=ROUND)
            server.command("PEXPIRE", index, 2 * LISTED_DAYS * 86_400_000, timeout=ROUND)


def _writing(prefix: str, group: str, process: str, entry: str, one: _Sum) -> Run:
    def words(counts: Iterable[tuple[str, int]]) -> str:
        # As text: a number of Lua's has 53 bits.
        return json.dumps({what: str(n) for what, n in counts}, separators=(",", ":"))

    *named, rest = *one.refused.most_common(MOST_KEYS + 1), ("", 0)
    if len(named) > MOST_KEYS:
        rest = named.pop()
    said = (words(one.counts.items()), words(one.durations.items()), words(named), rest[1])
    argv = (process, entry, int(LIFE * 1000), *said, conf.current().keep(), one.peak)
    return Run("tally", group_keys(prefix, group), argv, ROUND)
