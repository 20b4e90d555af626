"""Groups of names: a policy with its keys, a family with its names, or a single name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from .. import conf
from ..protocol.keys import unquote
from .facts import Status, Unread
from .families import Pair, families, families_of, pair_of
from .names import (
    count_keys,
    held_since,
    newest_keys,
    quorums,
    split_registry,
    waiting_since,
    with_override,
)
from .statistics import Statistics, counted
from .status import idle, readable


@dataclass(frozen=True, slots=True)
class Group:
    """A policy with its keys, a family with its names, or a single name.

    - `own`: the status of the name without a key, or None if it was never used without one.
    - `children`: the status of some keys. `keys`: the number of known keys.
      `is_family`: True for a family, whose `children` and `keys` are its names.
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
    is_family: bool = False

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
    def longest_waiting(self) -> Status | None:
        """The key, or the name of a family, with the longest wait. None if no wait is known."""
        some = [one for one in self.children if one.waiters]
        return min(some, key=lambda one: min(w.since for w in one.waiters), default=None)

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

    The counts of a policy are from the statistics. Only a few of its keys are read: the keys with
    the longest wait and with the oldest holder, and the busiest keys. Without statistics, the keys
    used last are read. The same applies to the names of a family.
    """
    made = {*names} & {*families(using=using)}
    longest = [_first_of(made, index(using=using), using) for index in (waiting_since, held_since)]
    plain, policies = split_registry(names, using=using)
    others = {name for name, key in with_override(using=using) if key is not None}
    others |= {name for keys in longest for name in keys if name not in made}
    counts = count_keys(sorted(policies | made | (others & {*names})), using=using)
    counts = {name: n or int(name in others) for name, n in counts.items() if n or name in others}
    statistics = counted(list(counts), using=using, sketch=False)
    keys = _keys_to_read(counts, statistics, longest, using)
    bare = counts.keys() - plain - quorums(using).keys()
    pairs_of: dict[str, list[Pair]] = {
        name: [
            *([] if name in bare else [(name, None)]),
            *(pair_of(name, key, name in made) for key in keys.get(name, ())),
        ]
        for name in names
    }
    pairs = [pair for some in pairs_of.values() for pair in some]
    found, unread = readable(pairs, using=using) if pairs else ([], [])
    status_of = {(one.name, one.key): one for one in found}
    groups = []
    for name in names:
        own = status_of.get((name, None)) if name not in bare else None
        some = [status_of[pair] for pair in pairs_of[name] if pair in status_of]
        children = tuple(one for one in some if one is not own)
        if name in bare:
            own = idle(name, using or conf.current().cache)
        # Omit a policy's own name if it was never used without a key and has no override.
        if own is not None and not own.used and name in counts and (children or name not in bare):
            own = None
        if own is not None or children:
            keys_known = max(counts.get(name, 0), len(children))
            family = name in made and name in counts
            group = Group(name, own, children, keys_known, statistics.get(name), family)
            groups.append(group)
    return groups, unread


def _first_of(made: Set[str], index: Iterable[Pair], using: str | None) -> dict[str, str]:
    """Return the first key of each policy in an index, and the first name of each of these
    families."""
    pairs = list(index)
    names = [name for name, key in pairs if key is None] if made else []
    of = families_of(names, using=using)
    first: dict[str, str] = {}
    for name, key in pairs:
        if key is not None:
            first.setdefault(name, key)
        elif of.get(name) in made:
            first.setdefault(of[name], name)
    return first


def _keys_to_read(
    counts: Mapping[str, int],
    statistics: Mapping[str, Statistics],
    longest: Sequence[Mapping[str, str]],
    using: str | None,
) -> dict[str, list[str]]:
    """Return the keys to read of each policy. `longest`: for some policies, the key with the
    longest wait; for some, the key with the oldest holder."""
    most = max(1, MAX_KEYS // max(1, len(counts)))
    first = {name: [one[name] for one in longest if name in one] for name in counts}
    chosen = sorted(counts, key=lambda name: not first[name])[:MAX_KEYS]
    without = [name for name in chosen if name not in statistics]
    found = newest_keys(dict.fromkeys(without, most), using=using)
    found |= {
        name: [unquote(busy.key) for busy in statistics[name].busiest]
        for name in chosen
        if name in statistics
    }
    return {
        name: [*dict.fromkeys([*first[name], *keys])][: max(most, len(first[name]))]
        for name, keys in found.items()
    }
