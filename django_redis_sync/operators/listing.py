"""Sorted lists of names, or of a policy's keys, read page by page.

An entry is a name, a policy, or a key of a policy. To sort by name or to search, a list reads all
entries of the registry, in chunks. Then it reads only the state of the entries on the page. To sort
by a figure, such as the number of waiters, a list compares at most MAX_COMPARED entries: the
busiest ones by the statistics, then those used last.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from typing import Any

from .. import conf
from ..engine.names import HOLDERS_INTERVAL
from ..protocol.keys import split, unquote
from .facts import Status, Unread
from .history import Counters, History, add, histories, histories_of, history_of
from .names import (
    Pair,
    Recent,
    count_keys,
    held_since,
    is_listed,
    listed_of,
    newest_keys,
    quorums,
    split_registry,
    with_override,
)
from .reads import cached
from .statistics import SITE, Statistics, counted, statistics_of
from .status import idle, readable

#: Max entries that are compared to sort by a figure, such as the number of waiters.
MAX_COMPARED = 100
#: Max entries that are searched to find trouble: waiters, rejections, lost leases, and long holds.
MAX_SEARCHED = 40
#: Max age of the index of holders in seconds.
INDEX_AGE = round(2 * HOLDERS_INTERVAL)
#: In the order "trouble", the entries without trouble come last: by name in a list of at most this
#: number of entries, and by last use in a longer list.
MAX_BY_NAME = 1000


@dataclass(frozen=True, slots=True)
class Group:
    """A policy with its keys, or a single name.

    - `own`: the status of the name without a key, or None if it was never used without one.
    - `children`: the status of some keys. `keys`: the number of known keys.
    - `statistics`: the sums over all keys, some seconds old, or None.
    - `in_use` and `waiting`: the larger of two numbers: the count in `statistics`, and the sum over
      `own` and `children`.
    - `limit`: the largest limit of a single key, so `in_use` of all keys may be above it.
    """

    name: str
    own: Status | None
    children: tuple[Status, ...]
    keys: int = 0
    statistics: Statistics | None = None

    @classmethod
    def alone(cls, status: Status) -> Group:
        """Return a group of one name, or of one key of a policy."""
        return cls(status.display, status, ())

    @property
    def all(self) -> tuple[Status, ...]:
        return self.children if self.own is None else (self.own, *self.children)

    @property
    def whole(self) -> bool:
        """True if the counts cover all keys. Otherwise they are lower bounds."""
        return self.statistics is not None or self.keys <= len(self.children)

    @property
    def limit(self) -> int | None:
        limits = [s.limit for s in self.all if s.limit is not None]
        return max(limits, default=None)

    @property
    def in_use(self) -> int:
        counted = self.statistics.in_use if self.statistics else 0
        return max(counted, sum(s.in_use for s in self.all))

    @property
    def waiting(self) -> int:
        counted = self.statistics.waiting if self.statistics else 0
        return max(counted, sum(s.waiting for s in self.all))

    @property
    def shares_waiting(self) -> int:
        return sum(s.shares_waiting for s in self.all)

    @property
    def paused(self) -> bool:
        """True if the name without a key is paused, which pauses all keys. If `own` is None, True
        if all `children` are paused."""
        return self.own.paused if self.own is not None else all(s.paused for s in self.children)


#: Max keys that are read for all policies of a list together.
MAX_KEYS = 8


#: The groups of some entries, and the names that could not be read.
Groups = tuple[list[Group], list[Unread]]


def groups_of(names: Sequence[str], *, using: str | None = None) -> Groups:
    """Return two lists: a group for each name, and the names that could not be read.

    The counts of a policy are from the statistics. Only a few of its keys are read: the key with
    the oldest holder, and the busiest keys. Without statistics, the keys used last are read.
    """
    held = held_since(using=using)
    oldest = {name: key for name, key in reversed(held) if key is not None}
    plain, policies = split_registry(names, using=using)
    others = {name for name, key in with_override(using=using) if key is not None} | oldest.keys()
    counts = count_keys(sorted(policies | (others & {*names})), using=using)
    counts = {name: n or int(name in others) for name, n in counts.items() if n or name in others}
    statistics = counted(list(counts), using=using, sketch=False)
    keys = _keys_to_read(counts, statistics, oldest, using)
    bare = counts.keys() - plain - quorums(using).keys()
    pairs: list[Pair] = []
    for name in names:
        pairs += [] if name in bare else [(name, None)]
        pairs += [(name, key) for key in keys.get(name, ())]
    found, unread = readable(pairs, using=using) if pairs else ([], [])
    groups = []
    for name in names:
        children = tuple(one for one in found if one.name == name and one.key is not None)
        own = next((one for one in found if one.name == name and one.key is None), None)
        if name in bare:
            own = idle(name, using or conf.current().cache)
        # Omit a policy's own name if it was never used without a key and has no override.
        if own is not None and not own.used and name in counts and (children or name not in bare):
            own = None
        if own is not None or children:
            keys_known = max(counts.get(name, 0), len(children))
            groups.append(Group(name, own, children, keys_known, statistics.get(name)))
    return groups, unread


def _keys_to_read(
    counts: Mapping[str, int],
    statistics: Mapping[str, Statistics],
    oldest: Mapping[str, str],
    using: str | None,
) -> dict[str, list[str]]:
    most = max(1, MAX_KEYS // max(1, len(counts)))
    chosen = sorted(counts, key=lambda name: name not in oldest)[:MAX_KEYS]
    without = [name for name in chosen if name not in statistics]
    found = newest_keys(dict.fromkeys(without, most), using=using)
    found |= {
        name: [unquote(busy.key) for busy in statistics[name].busiest]
        for name in chosen
        if name in statistics
    }
    for name in found.keys() & oldest.keys():
        found[name] = [oldest[name], *found[name]]
    return {name: [*dict.fromkeys(keys)][:most] for name, keys in found.items()}


Past = Mapping[Pair, History]

_DIGITS = re.compile(r"(\d+)")


def natural(text: str) -> tuple[list[str | int], str]:
    """Return a sort key that orders numbers by value, so that `job 2` comes before `job 10`."""
    parts: list[str | int] = list(_DIGITS.split(text.casefold()))
    parts[1::2] = [int(digits) for digits in parts[1::2]]
    return parts, text


def since(statuses: Iterable[Status]) -> datetime | None:
    """Return the time of the oldest grant among the holders, or None if there is no holder."""
    return min((h.since for status in statuses for h in status.holders), default=None)


def _events(group: Group, past: Past) -> Counters:
    """Return the sum of a group's events in the period of `past`. Leave out names that `past` does
    not have."""
    if group.statistics is not None:
        return group.statistics.history.total
    return add(past[s.name, s.key].total for s in group.all if (s.name, s.key) in past)


def hour(group: Group, past: Past) -> Counters | None:
    """Return the sum of a group's events in the period of `past`, or None if the events of some of
    its names are unknown."""
    known = group.whole and all((s.name, s.key) in past for s in group.all)
    return _events(group, past) if known else None


def rejected(group: Group, past: Past) -> int:
    """Return the number of acquires that were rejected or timed out in the period of `past`."""
    return _events(group, past).rejected_or_timed_out


def _fullness(group: Group, past: Past) -> tuple[float, int]:
    return max((s.in_use / s.limit for s in group.all if s.limit), default=0.0), group.in_use


def _age(group: Group, past: Past) -> float:
    oldest = since(group.all)
    return -oldest.timestamp() if oldest else -math.inf


def _heaviest_share(group: Group, past: Past) -> int:
    return max((h.in_use + h.waiting for s in group.all for h in s.shares), default=0)


#: The numbers by which a list can be sorted. The entry with the largest number comes first.
FIGURES: dict[str, Callable[[Group, Past], Any]] = {
    "use": _fullness,
    "waiting": lambda group, past: group.waiting,
    "rejected": rejected,
    "oldest": _age,
    "share": _heaviest_share,
}


def keys_like(keys: Sequence[str], *, using: str | None = None) -> list[Pair]:
    """Return each pair (policy, key) that exists for one of `keys`. Search only the MAX_COMPARED
    names used last."""
    names = Recent(using=using)[:MAX_COMPARED]
    _, policies = split_registry(names, using=using)
    pairs = [(name, key) for name in names if name in policies for key in keys]
    listed = is_listed(pairs, using=using)
    return [pair for pair, here in zip(pairs, listed, strict=True) if here]


class Selection:
    """A sorted list of the names, or of the keys of `policy`.

    `query`: list only entries that contain this text, and the entries in `alike`. `order`: "name",
    "recent", or a figure of FIGURES, with a prefix "-" to reverse the order. Any other value means
    "trouble": entries with trouble first. `limit`: max entries that are compared by a figure. The
    constructor and `read` raise Unavailable if Redis can't be reached."""

    def __init__(
        self,
        order: str = "trouble",
        *,
        query: str = "",
        alike: Sequence[str] = (),
        policy: str | None = None,
        using: str | None = None,
        limit: int = MAX_COMPARED,
    ) -> None:
        self._policy, self._using = policy, using
        self._query = query.casefold()
        recent = Recent(policy, using=using)
        field, reverse = order.lstrip("-"), order.startswith("-")
        if field not in ("name", "recent", *FIGURES):
            order, field = "trouble", "name" if len(recent) <= MAX_BY_NAME else "recent"
        units: Recent | list[str] = recent
        if query or field == "name" or reverse:
            units = [one for one in recent.every() if self._is_sought(one) or one in alike]
            if field == "name":
                units.sort(key=natural, reverse=reverse)
            elif field == "recent" and reverse:
                units.reverse()
        self.order, self._figure, self._reverse = order, FIGURES.get(field), reverse
        self._first, self._units, self.found = list[str](), units, len(units)
        self.past: dict[Pair, History] = {}
        is_partial = self._figure is not None and self.found > limit
        #: True if the index of holders gave the order. The index is up to INDEX_AGE seconds old.
        self.indexed = is_partial and field == "oldest"
        #: Number of entries that were compared by a figure. None if all were compared, if the index
        #: of holders gave the order, or if the list is not sorted by a figure.
        self.compared = limit if is_partial and not self.indexed else None
        #: The groups that `_by_figure` has read to sort the list. `read` uses them. None if the
        #: list is not sorted by a figure, or if the order came from the cache.
        self._read: Groups | None = None
        place = ("order", using, policy, order, query)
        if self._figure is not None:
            self._units = cached(place, lambda: self._by_figure(field, is_partial, limit))
        elif order == "trouble":
            self._first = cached(place, lambda: self._troubled(recent.others))
            if isinstance(units, list):
                self._units = [one for one in units if one not in self._first]

    @property
    def readable(self) -> int:
        """The number of rows on all pages. If a list in the order "trouble" is long, an entry with
        trouble can have two rows: one at the top, and one at its position by last use."""
        return len(self._first) + len(self._units)

    def read(self, start: int, stop: int) -> Groups:
        """Return two lists: a group for each entry from `start` to `stop`, and the names that could
        not be read. Store the histories of these entries in `past`."""
        if self._read is not None:
            groups, unread = self._read[0][start:stop], self._read[1]
        else:
            first = len(self._first)
            units = self._units[max(0, start - first) : max(0, stop - first)]
            groups, unread = self._groups([*dict.fromkeys([*self._first[start:stop], *units])])
        self._remember(groups)
        return self._in_order(groups), unread

    def _in_order(self, groups: list[Group]) -> list[Group]:
        if (figure := self._figure) is None:
            return groups
        return sorted(groups, key=lambda one: figure(one, self.past), reverse=not self._reverse)

    def _is_sought(self, unit: str) -> bool:
        return self._query in unit.casefold()

    def _by_figure(self, field: str, is_partial: bool, limit: int) -> list[str]:
        """Return the entries in the order of a figure. Entries that could not be read come last."""
        units = list(self._units[:limit])
        if is_partial:
            heavy = self._held() if field == "oldest" else []
            # Take alternately one of the busiest entries and one of those with the most rejections.
            known = self._statistics()
            pairs = zip_longest(known.busiest, known.rejected)
            heavy += [self._entry(busy.key) for pair in pairs for busy in pair if busy is not None]
            wanted = [one for one in heavy if self._is_sought(one)]
            units = list(dict.fromkeys([*wanted, *units]))[:limit]
        groups, unread = self._groups(units)
        if field == "rejected":
            self._remember(groups)
        self._read = self._in_order(groups), unread
        found: list[Status | Unread] = [group.all[0] for group in self._read[0]]
        found += unread
        names = [one.name if self._policy is None else one.key for one in found]
        return list(dict.fromkeys(name for name in names if name is not None))

    def _troubled(self, others: Sequence[str]) -> list[str]:
        """Return the entries with trouble: first those with waiters, then those with recent
        rejections or lost leases, and then those held for long.

        Only MAX_SEARCHED entries are searched: the busiest by the statistics, those held for long,
        and those used last."""
        known = self._statistics()
        waiting, bad = Counter[str](), Counter[str]()
        for busy in known.busiest:
            waiting[self._entry(busy.key)] += busy.waiting
        for busy in known.rejected:
            bad[self._entry(busy.key)] += busy.rejected
        held = {name: -rank for rank, name in enumerate(dict.fromkeys(self._held()))}
        heavy = dict.fromkeys([*+waiting, *+bad, *held, *self._units[:MAX_SEARCHED]])
        entries = [one for one in heavy if self._is_sought(one)][:MAX_SEARCHED]
        # Skip names that are in the statistics, but no longer in the registry.
        listed = listed_of(self._policy, entries, using=self._using)
        entries = [one for one in entries if one in listed or one in others]
        # A policy may have any number of keys, so the history of keys is not read.
        pairs = [(one, None) for one in entries if self._policy is None]
        for past in histories(pairs, using=self._using):
            total = past.total
            lately = total.rejected_or_timed_out + total.lost + total.reclaimed
            bad[past.name] = max(bad[past.name], lately)
        # Compare the number of bits of each count, so that refreshes seldom change the order.
        figures = {
            one: (waiting[one].bit_length(), bad[one].bit_length(), held.get(one, -math.inf))
            for one in entries
        }
        found = [one for one in entries if figures[one] > (0, 0, -math.inf)]
        return sorted(found, key=figures.__getitem__, reverse=True)

    def _statistics(self) -> Statistics:
        group = SITE if self._policy is None else self._policy
        return statistics_of([group], using=self._using)[0]

    def _entry(self, quoted: str) -> str:
        return split(quoted)[0] if self._policy is None else unquote(quoted)

    def _held(self) -> list[str]:
        """Return the entries of the index of holders, those with the oldest holders first."""
        pairs = held_since(using=self._using)
        if self._policy is None:
            return [name for name, _ in pairs]
        return [key for name, key in pairs if name == self._policy and key is not None]

    def _groups(self, units: Sequence[str]) -> Groups:
        if self._policy is None:
            return groups_of(units, using=self._using)
        found, unread = readable([(self._policy, key) for key in units], using=self._using)
        return [Group(one.name, None, (one,), 1) for one in found], unread

    def _remember(self, groups: Sequence[Group]) -> None:
        for group in groups:
            if group.statistics is not None:
                self.past[group.name, None] = group.statistics.history
            elif group.keys and group.own is not None and not group.own.fence:
                self.past[group.name, None] = history_of(group.name, None, {}, 0, 1)
        wanted = [s for group in groups for s in group.all if (s.name, s.key) not in self.past]
        for one in histories_of(wanted, using=self._using):
            self.past[one.name, one.key] = one
