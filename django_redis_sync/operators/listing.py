"""The page that a list shows: of names or of a policy's keys, in an order, read as far as shown.

By name, or with a search, the registry's entries are gone through, in chunks; the state is read
for the page alone. By a figure no more than MOST_COMPARED entries are compared, as
`Selection.compared` says: the busiest by the sums that processes keep, then the most recently used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Any

from ..protocol.keys import split, unquote
from .history import Counters, History, add, histories_of
from .names import Group, Pair, Recent, count_keys, groups_of, is_listed, natural
from .status import Status, Unread, readable
from .sums import SITE, sums_of

#: Entries that are compared by a figure, and names and keys that are read for a page, at most.
MOST_COMPARED, MOST_READ = 100, 180
#: Entries up to which a list is in order of names unless another is asked for.
MOST_BY_NAME = 1000

Past = Mapping[Pair, History]


def since(statuses: Iterable[Status]) -> datetime | None:
    """When the oldest of the holders got in."""
    return min((h.since for status in statuses for h in status.holders), default=None)


def hour(group: Group, past: Past) -> Counters | None:
    """Its events in the time of `past`, summed; None where they are not known."""
    if group.sums is not None:
        return group.sums.history.total
    found = [past[s.name, s.key].total for s in group.all if (s.name, s.key) in past]
    return add(found) if group.whole and len(found) == len(group.all) else None


def _refused(group: Group, past: Past) -> int:
    if group.sums is not None:
        return group.sums.history.total.turned_away
    return sum(past[s.name, s.key].total.turned_away for s in group.all)


def _fullness(group: Group, past: Past) -> tuple[float, int]:
    return max((s.in_use / s.limit for s in group.all if s.limit), default=0.0), group.in_use


def _age(group: Group, past: Past) -> float:
    oldest = since(group.all)
    return -oldest.timestamp() if oldest else -math.inf


#: The figures that a list can be sorted by: the largest first.
FIGURES: dict[str, Callable[[Group, Past], Any]] = {
    "use": _fullness,
    "waiting": lambda group, past: group.waiting,
    "refused": _refused,
    "oldest": _age,
}


def keys_like(keys: Sequence[str], *, using: str | None = None) -> list[Pair]:
    """The policies, of those used last, that have any of these keys."""
    names = Recent(using=using)[:MOST_COMPARED]
    counts = count_keys(names, using=using)
    pairs = [(name, key) for name in names if counts[name] for key in keys]
    listed = is_listed(pairs, using=using)
    return [pair for pair, here in zip(pairs, listed, strict=True) if here]


def heaviest(policy: str | None = None, *, using: str | None = None) -> list[str]:
    """The names, or the keys of a policy, that the sums know for the most permits in use, waiters
    and refusals, in turn."""
    (sums,) = sums_of([SITE if policy is None else policy], using=using)
    pairs = zip_longest(sums.busiest, sums.refused)
    found = [busy.key for pair in pairs for busy in pair if busy is not None]
    if policy is not None:
        return list(dict.fromkeys(map(unquote, found)))
    return list(dict.fromkeys(split(quoted)[0] for quoted in found))


class Selection:
    """The names, or the keys of `policy`, that hold `query` or are in `alike`, in `order`:
    "name", "recent" or a figure of FIGURES, turned round by a "-" before it. Unavailable when Redis
    can't be reached."""

    def __init__(
        self,
        order: str = "",
        *,
        query: str = "",
        alike: Sequence[str] = (),
        policy: str | None = None,
        using: str | None = None,
    ) -> None:
        self._policy, self._using = policy, using
        recent = Recent(policy, using=using)
        field = order.lstrip("-")
        if field not in ("name", "recent", *FIGURES):
            field = "name" if len(recent) <= MOST_BY_NAME else "recent"
            order = field
        self.order, turned = order, order.startswith("-")
        self._query = query.casefold()
        units: Sequence[str] = recent
        if query or field == "name" or turned:
            units = [one for one in recent.every() if self._sought(one) or one in alike]
        if field == "name":
            units = sorted(units, key=natural, reverse=turned)
        elif field == "recent" and turned:
            units = units[::-1]
        self._units, self.found = units, len(units)
        #: Of how many entries a figure was compared; None where that is all of them, or no matter.
        self.compared: int | None = None
        self._sorted: list[Group] | None = None
        self._unread: list[Unread] = []
        self.past: dict[Pair, History] = {}
        if field in FIGURES:
            self._compare(field, turned)

    @property
    def readable(self) -> int:
        """How many entries there are to be shown."""
        return self.found if self._sorted is None else len(self._sorted)

    def read(self, start: int, stop: int) -> tuple[list[Group], list[Unread]]:
        """A group for each entry from `start` to `stop`, and those that could not be read. Their
        late events are in `past` then."""
        if self._sorted is not None:
            groups, unread = self._sorted[start:stop], self._unread
        else:
            groups, unread = self._groups(self._units[start:stop])
        self._remember(groups)
        return groups, unread

    def _sought(self, unit: str) -> bool:
        return self._query in unit.casefold()

    def _compare(self, field: str, turned: bool) -> None:
        units = self._units[:MOST_COMPARED]
        if self.found > MOST_COMPARED:
            self.compared = MOST_COMPARED
            heavy = [one for one in heaviest(self._policy, using=self._using) if self._sought(one)]
            units = list(dict.fromkeys([*heavy, *units]))[:MOST_COMPARED]
        self._sorted, self._unread = self._groups(units)
        if field == "refused":
            self._remember(self._sorted)
        figure = FIGURES[field]
        self._sorted.sort(key=lambda group: figure(group, self.past), reverse=not turned)

    def _groups(self, units: Sequence[str]) -> tuple[list[Group], list[Unread]]:
        if self._policy is None:
            return groups_of(units, MOST_READ - len(units), using=self._using)
        found, unread = readable([(self._policy, key) for key in units], using=self._using)
        return [Group(one.name, None, (one,), 1) for one in found], unread

    def _remember(self, groups: Sequence[Group]) -> None:
        wanted = [s for group in groups for s in group.all if (s.name, s.key) not in self.past]
        for one in histories_of(wanted, using=self._using):
            self.past[one.name, one.key] = one
