"""Groups of names: a policy with its keys, or a single name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .. import conf
from ..protocol.keys import unquote
from .facts import Status, Unread
from .names import (
    Pair,
    count_keys,
    held_since,
    newest_keys,
    quorums,
    split_registry,
    with_override,
)
from .statistics import Statistics, counted
from .status import idle, readable


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
