"""Statistics of this process: for each policy, for each family, and for the whole site.

An operator's page can't read ten thousand names, so each process counts events. An acquire only
appends an event to a deque. Every two seconds, the housekeeping thread adds up the events, and
writes one small entry per group. A group is a policy, a family of names (see
`families_key`), or the site. The size of an entry doesn't depend on the number of names.

For each group, the process also writes a gauge: the numbers of its permits in use and its waiters.
A gauge is valid until the process writes the next one, but for at most LIFE seconds. So if the
process dies, its gauge is wrong for at most LIFE seconds. The same is true if a lease is cleared or
adopted. A gauge lists only the busiest keys.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from .. import conf
from ..protocol.keys import Keys, group_keys
from ..protocol.scripts import CONSTANTS
from ..protocol.steps import Failure, Run
from .server import Server
from .wire import ROUND, clock

#: Seconds between two writes of statistics.
EVERY = 2.0
#: Seconds between two writes of an unchanged gauge.
REWRITE_AFTER = 10.0
#: Seconds for which a gauge is valid.
LIFE = 30.0
#: Max events that are stored between two writes. Further events replace the oldest events.
MOST_EVENTS = 200_000
#: Max groups for which a process writes statistics.
MOST_GROUPS = 500
#: Max keys per group for which rejections are written. These keys have the most rejections.
MOST_KEYS = 200
#: A gauge lists this many keys with the most permits in use, and as many with the most waiters.
LISTED = 20
#: The name of the group that contains all names: the site.
SITE = ""

#: The kind of an event, as a letter.
#: Acquires: g (granted at once), w (granted after a wait), n (rejected), t (timed out), k (skipped:
#: not granted, and the caller did not want to wait), s (granted only because of shadow mode). The
#: cause, counted besides n, t, or s: b (share_limit), u (a pause), m (max_waiters), v (a rate).
#: Leases: r (released), l (lost).
#: Jobs: v (delivered), d (delivered twice, so this copy was dropped).
#: Two kinds have a duration: for w, that of the wait; for r, that of the lease.
Kind = str


#: An event: the keys of its name, the template of the name, the kind, the duration in ms, and the
#: permits of the name in use at that time.
Event = tuple[Keys, str, Kind, int, int]


class NameAndTemplate(Protocol):
    """The name of an acquire or a lease. `template`: the template from which the name was made, or
    "" if there is none."""

    @property
    def keys(self) -> Keys: ...
    @property
    def template(self) -> str: ...


#: A use of a name by this process: (name, permits, 0) for a lease, or (name, 0, 1) for a waiter.
Use = tuple[NameAndTemplate, int, int]


@dataclass(slots=True)
class _Sum:
    """The events of a group since the last write, and its gauge: permits in use, and waiters."""

    counts: Counter[str] = field(default_factory=Counter)
    durations: Counter[str] = field(default_factory=Counter)
    rejections: Counter[str] = field(default_factory=Counter)
    in_use: int = 0
    waiting: int = 0
    by_key: dict[str, list[int]] = field(default_factory=dict)
    peak: int = 0  # most permits of one key in use at the same time

    def add(self, key: str, counts: Counter[tuple[Kind, int]], peak: int) -> None:
        """Add events of a key. `counts`: the number of events, by kind and duration in ms. `peak`:
        the highest number of permits of the key that were in use at the same time."""
        self.peak = max(self.peak, peak)
        for (kind, ms), many in counts.items():
            timed = kind in "wr"
            self.counts[kind] += many * (CONSTANTS["PAIR"] + ms) if timed else many
            if timed:
                # Bucket 0 is for 0 ms. Bucket n is for durations from 2**(n-1) to 2**n - 1 ms.
                self.durations[f"{kind}{ms.bit_length()}"] += many
            elif kind in "nt":
                self.rejections[key] += many

    def gauge(self, key: str, in_use: int, waiting: int) -> None:
        self.in_use += in_use
        self.waiting += waiting
        mine = self.by_key.setdefault(key, [0, 0])
        mine[0] += in_use
        mine[1] += waiting
        self.peak = max(self.peak, mine[0])

    def forget_gauge(self) -> None:
        """Reset the gauge, and keep the counts of events. The counts of rejections are kept only
        for the keys with the most rejections."""
        self.in_use = self.waiting = 0
        self.by_key = {}
        self.rejections = Counter(dict(self.rejections.most_common(10 * MOST_KEYS)))

    @property
    def entry(self) -> str:
        """The gauge as JSON: permits in use, waiters, and the same two numbers for each of the
        busiest keys."""
        ranked = sorted(self.by_key.items(), key=lambda item: item[1], reverse=True)
        waiting = sorted(ranked, key=lambda item: item[1][1], reverse=True)
        named = dict([*ranked[:LISTED], *waiting[:LISTED]])
        return json.dumps([self.in_use, self.waiting, named], separators=(",", ":"))


class StatisticsBuffer:
    """The housekeeping chore for statistics of an alias. `uses`: a function that returns the leases
    and waiters of this process, for its gauges. `group(keys, template)`: a function that returns
    the quoted name of the group of a name, or "" if there is none."""

    def __init__(
        self, uses: Callable[[], Iterable[Use]], group: Callable[[Keys, str], str]
    ) -> None:
        self.due = math.inf
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._uses, self._group, self._process = uses, group, os.urandom(6).hex()
        #: The last written gauge of each group, and when to write the gauge again.
        self._last_entries: dict[tuple[str, str], tuple[str, float]] = {}
        #: For each group whose last write failed: the events to write again.
        self._unwritten: dict[tuple[str, str], _Sum] = {}

    def rouse(self) -> None:
        """Schedule a write. Call this if an event arrives while no write is scheduled."""
        self.due = clock() + EVERY

    def run(self, server: Server, now: float, leaving: bool) -> None:
        """Write the events since the last write. Also write each gauge that has changed, or that
        was not written for REWRITE_AFTER seconds. `leaving`: True if the process is exiting, so
        that its gauges must be removed."""
        written = {}
        for place, one in self._add_up(() if leaving else self._uses()).items():
            entry = one.entry if one.in_use or one.waiting else ""
            said, again = self._last_entries.get(place, ("", math.inf))
            if one.counts or entry != said or now >= again:
                written[place] = one, _writing(*place, self._process, entry, one)
                self._last_entries[place] = entry, now + REWRITE_AFTER
            if not entry:
                self._last_entries.pop(place, None)
        self.due = math.inf  # before `events` is read, so that a later event schedules a write
        if self._last_entries or self.events:
            self.due = now + EVERY
        answers = server.many([step for _, step in written.values()]) if written else []
        failures = []
        for (place, (one, _)), answer in zip(written.items(), answers, strict=True):
            if isinstance(answer, Failure):
                failures.append(answer)
                self._last_entries.pop(place, None)  # let the next call write the gauge again
                if answer.why != "final":
                    one.forget_gauge()
                    self._unwritten[place] = one
        if failures:
            raise failures[0]

    def _add_up(self, uses: Iterable[Use]) -> dict[tuple[str, str], _Sum]:
        statistics = {place: _Sum() for place in self._last_entries} | self._unwritten
        self._unwritten = {}

        def of(keys: Keys, template: str) -> Iterable[tuple[_Sum, str]]:
            if not keys.keep:
                return
            prefix, quoted = keys.prefix, keys.quoted
            yield statistics.setdefault((prefix, SITE), _Sum()), quoted
            group = self._group(keys, template)
            if group and ((prefix, group) in statistics or len(statistics) < MOST_GROUPS):
                key = quoted.partition("@")[2] if keys.policy else quoted
                yield statistics.setdefault((prefix, group), _Sum()), key

        for keys, template, counts, peak in self._by_name():
            for one, key in of(keys, template):
                one.add(key, counts, peak)
        for named, in_use, waiting in uses:
            for one, key in of(named.keys, named.template):
                one.gauge(key, in_use, waiting)
        return statistics

    def _by_name(self) -> Iterator[tuple[Keys, str, Counter[tuple[Kind, int]], int]]:
        """Remove all events from `events`, and count them by name and template. For each pair of a
        name and a template, yield the Keys of the name, the template, the number of events by kind
        and duration in ms, and the highest number of permits in use.

        Other threads wait for the GIL meanwhile. So Keys objects are compared by identity, which is
        fast. If two Keys objects have the same name, both are yielded, and the caller adds up their
        numbers.
        """
        found: dict[tuple[int, str], list[Event]] = {}
        for event in [self.events.popleft() for _ in range(len(self.events))]:
            found.setdefault((id(event[0]), event[1]), []).append(event)
        for events in found.values():
            counts = Counter((kind, ms) for _, _, kind, ms, _ in events)
            yield *events[0][:2], counts, max(used for *_, used in events)


def _writing(prefix: str, group: str, process: str, entry: str, one: _Sum) -> Run:
    def words(counts: Iterable[tuple[str, int]]) -> str:
        # Send numbers as text, because Lua's numbers hold integers of only 53 bits.
        return json.dumps({what: str(n) for what, n in counts}, separators=(",", ":"))

    *named, rest = *one.rejections.most_common(MOST_KEYS + 1), ("", 0)
    if len(named) > MOST_KEYS:
        rest = named.pop()
    events = (words(one.counts.items()), words(one.durations.items()), words(named), rest[1])
    argv = (process, entry, int(LIFE * 1000), *events, conf.current().keep(), one.peak)
    return Run("statistics", group_keys(prefix, group), argv, ROUND)
