"""Statistics of this process: by policy, by template, and over the whole site.

A page can't read ten thousand names, so each process counts events. An acquire only appends an
event to a deque. Every two seconds, the housekeeping thread adds the events up and writes one small
entry per group, whose size doesn't depend on the number of names.

Permits in use and waiters are written as a gauge of this process, which is valid for LIFE seconds
and replaced by the next one. So if a process dies, or if a lease is cleared or adopted, the gauge
is wrong for at most LIFE seconds. Only the busiest keys are listed, with a bound for the error.
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

#: Seconds between two writes.
EVERY = 2.0
#: Seconds between two writes of an unchanged gauge.
AGAIN = 10.0
#: Seconds for which a gauge is valid.
LIFE = 30.0
#: Max events until the next write. Further events replace the oldest.
MOST_EVENTS = 200_000
#: Max groups of a process, and in the index, which lists the last used ones.
MOST_GROUPS = 500
#: Max keys of a group whose rejections are written: the most rejected.
MOST_KEYS = 200
#: Max keys of a group in its gauge: by permits in use, and as many by waiters.
NAMED = 20
#: Days without an event after which a group leaves the index.
LISTED_DAYS = 1
#: The group of all names.
SITE = ""

#: g: granted at once; w: granted after a wait (ms); n: rejected; t: timed out; s: would have been
#: rejected, in shadow mode; r: released after a hold (ms); l: lost; b: rejected because of its
#: share, and also counted as n or s.
Kind = str


#: The keys of a name and its template, the kind of event, its duration in ms, and the permits of
#: the name in use at that time.
Event = tuple[Keys, str, Kind, int, int]


class Named(Protocol):
    """The name of an acquire or a lease. `template`: the template of the name, if known."""

    @property
    def keys(self) -> Keys: ...
    @property
    def template(self) -> str: ...


class _Counted(NamedTuple):
    """The name of events."""

    keys: Keys
    template: str


class _Outcomes(NamedTuple):
    """The events of a name. `counts`: the number of events by kind and ms; `peak`: the most permits
    that were in use."""

    of: _Counted
    counts: Counter[tuple[Kind, int]]
    peak: int


class Gauge(NamedTuple):
    """The permits of a name that this process holds, and its waiters."""

    of: Named
    in_use: int
    waiting: int


@dataclass(slots=True)
class _Sum:
    """The events of a group since the last write, and its current gauge."""

    counts: Counter[str] = field(default_factory=Counter)
    durations: Counter[str] = field(default_factory=Counter)
    rejections: Counter[str] = field(default_factory=Counter)
    in_use: int = 0
    waiting: int = 0
    by_key: dict[str, list[int]] = field(default_factory=dict)
    peak: int = 0  # the most permits of one key that were in use

    def add(self, outcomes: _Outcomes, key: str) -> None:
        """Add the events of a key."""
        self.peak = max(self.peak, outcomes.peak)
        for (kind, ms), many in outcomes.counts.items():
            timed = kind in "wr"
            self.counts[kind] += many * (CONSTANTS["PAIR"] + ms) if timed else many
            if timed:
                self.durations[f"{kind}{bucket(ms)}"] += many
            elif kind in "nt":
                self.rejections[key] += many

    def share(self, share: Gauge, key: str) -> None:
        self.in_use += share.in_use
        self.waiting += share.waiting
        mine = self.by_key.setdefault(key, [0, 0])
        mine[0] += share.in_use
        mine[1] += share.waiting
        self.peak = max(self.peak, mine[0])

    def forget_share(self) -> None:
        """Keep the counts, but only those of the busiest keys. Reset the gauge."""
        self.in_use = self.waiting = 0
        self.by_key = {}
        self.rejections = Counter(dict(self.rejections.most_common(10 * MOST_KEYS)))

    @property
    def entry(self) -> str:
        """The gauge as JSON: permits, waiters, `off`, and permits and waiters of the busiest keys.
        `off`: the most permits and waiters of any other key."""
        ranked = sorted(self.by_key.items(), key=lambda item: item[1], reverse=True)
        waiting = sorted(ranked, key=lambda item: item[1][1], reverse=True)
        named = dict([*ranked[:NAMED], *waiting[:NAMED]])
        rest = [counts for key, counts in ranked if key not in named]
        off = [max((counts[i] for counts in rest), default=0) for i in (0, 1)]
        return json.dumps([self.in_use, self.waiting, off, named], separators=(",", ":"))


def bucket(ms: int) -> int:
    """Return the bucket of a duration: 0 for 0 ms, n for less than 2**n ms."""
    return ms.bit_length()


class StatisticsBuffer:
    """The housekeeping job for statistics of an alias. `shares`: returns gauges of this process."""

    def __init__(self, shares: Callable[[], Iterable[Gauge]]) -> None:
        self.due = math.inf
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._shares, self._process = shares, os.urandom(6).hex()
        #: The last written gauge of each group, and when to write it again.
        self._said: dict[tuple[str, str], tuple[str, float]] = {}
        #: Groups that could not be written, which are added to the next write.
        self._unwritten: dict[tuple[str, str], _Sum] = {}
        self._leaving = False

    def rouse(self) -> None:
        """Schedule a write, because of the first event after an idle time."""
        self.due = clock() + EVERY

    @property
    def unwritten(self) -> bool:
        return bool(self.events or self._unwritten or (self._leaving and self._said))

    def hurry(self) -> None:
        """Schedule a write at once, because the process exits. Its gauges are removed."""
        self._leaving = True
        if self.events or self._said:
            self.due = 0.0

    def tend(self, server: Server, now: float) -> None:
        """Write the events since the last write."""
        written = {}
        for place, one in self._add_up().items():
            entry = one.entry if one.in_use or one.waiting else ""
            said, again = self._said.get(place, ("", math.inf))
            if one.counts or entry != said or now >= again:
                written[place] = one, _writing(*place, self._process, entry, one)
                self._said[place] = entry, now + AGAIN
            if not entry:
                self._said.pop(place, None)
        self.due = math.inf  # first, so that an event that arrives now sees it
        if self._said or self.events:
            self.due = now + EVERY
        answers = server.many([step for _, step in written.values()]) if written else []
        failures = []
        for (place, (one, _)), answer in zip(written.items(), answers, strict=True):
            if isinstance(answer, Failure):
                failures.append(answer)
                self._said.pop(place, None)  # its gauge is written again
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
        """Return the events since the last call, by name and template.

        There are many events, and other threads wait for the GIL meanwhile. So names are compared
        by identity, which is fast. A name with two objects appears twice, and both are added.
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
        """Write the groups to the index, by the time of their last event."""
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
        # As text, because a number in Lua has 53 bits.
        return json.dumps({what: str(n) for what, n in counts}, separators=(",", ":"))

    *named, rest = *one.rejections.most_common(MOST_KEYS + 1), ("", 0)
    if len(named) > MOST_KEYS:
        rest = named.pop()
    events = (words(one.counts.items()), words(one.durations.items()), words(named), rest[1])
    argv = (process, entry, int(LIFE * 1000), *events, conf.current().keep(), one.peak)
    return Run("statistics", group_keys(prefix, group), argv, ROUND)
