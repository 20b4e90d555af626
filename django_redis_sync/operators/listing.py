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
from datetime import datetime
from itertools import zip_longest
from typing import Any

from ..engine.indexes import HOLDERS_INTERVAL
from ..protocol.keys import split, unquote
from .facts import Status, Unread
from .families import Pair, families, families_of, pair_of
from .groups import Group, Groups, groups_of
from .history import Counters, History, add, histories, histories_of, history_of
from .names import (
    Recent,
    held_since,
    is_listed,
    listed_of,
    queued,
    split_registry,
    waiting_since,
)
from .reads import cached
from .statistics import SITE, Statistics, statistics_of
from .status import readable

#: Max entries that are compared to sort by a figure, such as the number of waiters.
MAX_COMPARED = 100
#: Max entries that are searched to find other trouble than waiters: rejections, lost leases, and
#: long holds.
MAX_SEARCHED = 40
#: Max age of the index of holders in seconds.
INDEX_AGE = round(2 * HOLDERS_INTERVAL)
#: In the order "trouble", the entries without trouble come last: by name in a list of at most this
#: number of entries, and by last use in a longer list.
MAX_BY_NAME = 1000


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


def skipped(group: Group, past: Past) -> int:
    """Return the number of acquires that were skipped in the period of `past`."""
    return _events(group, past).skipped


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
        self._is_family = policy is not None and policy in families(using=using)
        self._query = query.casefold()
        recent = Recent(policy, using=using)
        field, reverse = order.lstrip("-"), order.startswith("-")
        if field not in ("name", "recent", *FIGURES):
            order, field = "trouble", "name" if len(recent) <= MAX_BY_NAME else "recent"
        units: Recent | list[str] = recent
        if query or field == "name" or reverse:
            units = self._sought(recent, alike)
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

    def _sought(self, recent: Recent, alike: Sequence[str]) -> list[str]:
        """Return all entries that match the query. A search also finds the names of families."""

        def matching(names: Iterable[str]) -> list[str]:
            return [one for one in names if self._is_sought(one) or one in alike]

        found = matching(recent.every())
        if self._query:  # families may have many names, so these are cached
            place = ("inside", self._using, self._policy, self._query)
            found += cached(place, lambda: matching(recent.inside()))
        return list(dict.fromkeys(found))

    def _is_sought(self, unit: str) -> bool:
        return self._query in unit.casefold()

    def _by_figure(self, field: str, is_partial: bool, limit: int) -> list[str]:
        """Return the entries in the order of a figure. Entries that could not be read come last."""
        units = list(self._units[:limit])
        if is_partial:
            heavy = self._held() if field == "oldest" else []
            heavy += self._waiting(()) if field == "waiting" else []
            # Take alternately one of the busiest entries and one of those with the most rejections.
            known = self._statistics()
            pairs = zip_longest(known.busiest, known.rejected)
            busiest = [busy.key for pair in pairs for busy in pair if busy is not None]
            heavy += self._entries(map(self._pair, busiest))
            wanted = [one for one in heavy if self._is_sought(one)]
            units = list(dict.fromkeys([*wanted, *units]))[:limit]
        groups, unread = self._groups(units)
        if field == "rejected":
            self._remember(groups)
        self._read = self._in_order(groups), unread
        found: list[Status | Unread] = [group.all[0] for group in self._read[0]]
        names = self._entries((one.name, one.key) for one in [*found, *unread])
        if self._policy is None:
            names[: len(found)] = [group.name for group in self._read[0]]
        return list(dict.fromkeys(names))

    def _troubled(self, others: Sequence[str]) -> list[str]:
        """Return the entries with trouble: first those with waiters, then those with recent
        rejections or lost leases, and then those held for long.

        The entries with waiters are those of the index of waiters, and the busiest ones by the
        statistics. Only MAX_SEARCHED other entries are searched: those with the most rejections by
        the statistics, those held for long, and those used last."""
        known = self._statistics()
        bad = Counter[str]()
        keys = [busy.key for busy in known.rejected]
        entries_of = dict(zip(keys, self._entries(map(self._pair, keys)), strict=True))
        for busy in known.rejected:
            bad[entries_of[busy.key]] += busy.rejected
        waiting = self._waiting([busy.key for busy in known.busiest if busy.waiting])
        held = {name: -rank for rank, name in enumerate(dict.fromkeys(self._held()))}
        heavy = dict.fromkeys([*+bad, *held, *self._units[:MAX_SEARCHED]])
        entries = [one for one in heavy if self._is_sought(one) and one not in waiting]
        entries = [*filter(self._is_sought, waiting), *entries[:MAX_SEARCHED]]
        # Skip names that are in the statistics, but no longer in the registry.
        listed = listed_of(self._policy, entries, using=self._using)
        entries = [one for one in entries if one in listed or one in others]
        # A policy may have any number of keys, so the history of keys is not read. Names with
        # waiters come first anyway.
        pairs = [(one, None) for one in entries if self._policy is None and one not in waiting]
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

    def _waiting(self, others: Iterable[str]) -> Counter[str]:
        """Return the number of waiters of each entry that somebody waits for, the longest wait
        first. `others`: quoted names, or quoted keys, that may have waiters but are not in the
        index of waiters yet. Only MAX_COMPARED queues are read. The other entries of the index
        count as one waiter."""
        pairs = [*self._inside(waiting_since(using=self._using)), *map(self._pair, others)]
        pairs = [*dict.fromkeys(pairs)]
        counts = queued(pairs[:MAX_COMPARED], using=self._using)
        found = Counter[str]()
        counts += [1] * (len(pairs) - len(counts))
        for entry, count in zip(self._entries(pairs), counts, strict=True):
            if count:
                found[entry] += count
        return found

    def _statistics(self) -> Statistics:
        group = SITE if self._policy is None else self._policy
        return statistics_of([group], using=self._using)[0]

    def _held(self) -> list[str]:
        """Return the entries of the index of holders, those with the oldest holders first."""
        return self._entries(self._inside(held_since(using=self._using)))

    def _pair(self, quoted: str) -> Pair:
        """Return the name, or the policy and key, that the statistics call `quoted`."""
        if self._policy is None:
            return split(quoted)
        return pair_of(self._policy, unquote(quoted), self._is_family)

    def _inside(self, pairs: Iterable[Pair]) -> list[Pair]:
        """Return those of `pairs` that belong to an entry of this list."""
        found = list(pairs)
        if self._is_family:
            made = families_of([name for name, key in found if key is None], using=self._using)
            return [pair for pair in found if pair[1] is None and made.get(pair[0]) == self._policy]
        if self._policy is None:
            return found
        return [pair for pair in found if pair[0] == self._policy and pair[1] is not None]

    def _entries(self, pairs: Iterable[Pair]) -> list[str]:
        """Return the entry of this list to which each pair belongs."""
        found = list(pairs)
        if self._policy is None:
            # A search also lists the names of families.
            names = [name for name, key in found if key is None and not self._query]
            made = families_of(list(dict.fromkeys(names)), using=self._using)
            return [made.get(name, name) if key is None else name for name, key in found]
        return [name if key is None else key for name, key in found]

    def _groups(self, units: Sequence[str]) -> Groups:
        if self._policy is None:
            return groups_of(units, using=self._using)
        pairs = [pair_of(self._policy, one, self._is_family) for one in units]
        found, unread = readable(pairs, using=self._using)
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
