"""Statistics of groups of names. A group is a policy with all its keys, all names made from one
template such as "report-{id}", or all names of the site.

Each process counts events and writes them every two seconds; see `engine/statistics.py`. The cost
of reading doesn't depend on the number of names.

The numbers of permits in use and of waiters are at most REWRITE_AFTER seconds old. After a process
is killed, its permits and waiters still count for up to LIFE seconds. The events that it had not
written are missing. The counts of a single key may be too low, because a process writes only some
of its keys. For rejections, `rejected_off` is the max error.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from ..engine.statistics import LIFE, REWRITE_AFTER, SITE
from ..engine.wire import whole
from ..protocol.keys import group_keys, quote
from .history import Counters, History, histories_of, history_of
from .reads import read_each, server_time, where
from .status import statuses

__all__ = ["LIFE", "REWRITE_AFTER", "SITE", "Busy", "Quantiles", "Statistics", "statistics_of"]


@dataclass(frozen=True, slots=True)
class Busy:
    """The counts of one key or one name of a group."""

    key: str
    in_use: int = 0
    waiting: int = 0
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The median and the 95th percentile of durations in the last one to two hours, in seconds.

    They are None if there were no durations. They are upper bounds, up to twice the true value.
    """

    p50: float | None
    p95: float | None


@dataclass(frozen=True, slots=True)
class Statistics:
    """The statistics of a group. `name`: a policy, a template, or SITE.

    - `in_use` and `waiting`: the permits in use and the waiters, of all processes that are alive.
      `processes`: the number of these processes.
    - `history`: the counters of the last minutes. Each `peak` is the highest use of a single key.
    - `busiest`: the keys, sorted by permits in use, then by waiters, the largest number first.
    - `rejected`: the keys with rejections in the last one to two hours, the most rejections first.
      The count of a key may be too low by up to `rejected_off`. A missing key has at most
      `rejected_off` rejections.
    - `waited` and `held`: how long waits and holds lasted.
    """

    name: str
    in_use: int
    waiting: int
    processes: int
    busiest: tuple[Busy, ...]
    rejected: tuple[Busy, ...]
    rejected_off: int
    waited: Quantiles
    held: Quantiles
    history: History


def statistics_of(
    names: Iterable[str], *, minutes: int = 60, using: str | None = None, sketch: bool = True
) -> list[Statistics]:
    """Return the statistics of several groups. This takes three commands per group, in few round
    trips.

    `sketch`: False to send only two commands per group. Then the statistics have no durations and
    no keys with rejections. An unknown group has statistics of zeros. Raise Unavailable if Redis
    can't be reached.
    """
    (alias, prefix), wanted = where(using), list(names)
    now, keys = server_time(alias), [group_keys(quote(prefix), quote(name)) for name in wanted]
    gauges = read_each(alias, [("HGETALL", key) for key, _, _ in keys], fresh=True)
    sketches = read_each(alias, [("HGETALL", key) for _, key, _ in keys if sketch])
    sums = read_each(alias, [("HGETALL", key) for _, _, key in keys])
    rows: Iterable[Any] = zip_longest(wanted, gauges, sketches, sums, fillvalue={})
    return [_statistics(name, now, minutes, *row) for name, *row in rows]


def counted(
    names: Sequence[str], *, minutes: int = 60, using: str | None = None, sketch: bool = True
) -> dict[str, Statistics]:
    """Return the statistics of the policies in `names`, by name. Omit names without statistics."""
    found = statistics_of(names, minutes=minutes, using=using, sketch=sketch) if names else []
    return {one.name: one for one in found if one.processes or one.history.ever != Counters()}


def past_of(name: str, key: str | None, *, minutes: int, using: str | None = None) -> History:
    """Return the history of a name, or of the key `key` of a policy. Without `key`, a policy's
    history is the sum over all its keys, but each peak is the highest use of a single key.

    Raise Unavailable if Redis can't be reached.
    """
    if key is None:
        (found,) = statistics_of([name], minutes=minutes, using=using, sketch=False)
        if found.history.ever != Counters():
            return found.history
    own = statuses([(name, key)], using=using)
    return histories_of(own, minutes=minutes, using=using)[0]


def _statistics(name: str, now: float, minutes: int, *hashes: Mapping[str, str]) -> Statistics:
    gauges, sketch, counts = hashes
    (in_use, waiting), by_key, processes = _gauges(gauges, now * 1000)
    rejected, rejected_off = _rejected(sketch)
    history = history_of(name, None, counts, int(now) // 60, minutes)

    def busy(key: str) -> Busy:
        return Busy(key, by_key[0][key], by_key[1][key], rejected[key])

    keys = sorted(by_key[0].keys() | by_key[1].keys())
    return Statistics(
        name=name,
        in_use=in_use,
        waiting=waiting,
        processes=processes,
        busiest=tuple(sorted(map(busy, keys), key=lambda one: (-one.in_use, -one.waiting))),
        rejected=tuple(busy(key) for key, _ in rejected.most_common()),
        rejected_off=rejected_off,
        waited=_quantiles(sketch, "w"),
        held=_quantiles(sketch, "r"),
        # The limit applies to each key separately, so no limit can be suggested from the sums of
        # all keys.
        history=replace(history, suggested_limit=None),
    )


def _gauges(
    gauges: Mapping[str, str], now: float
) -> tuple[list[int], tuple[Counter[str], Counter[str]], int]:
    """Return three values: the total permits in use and waiters, the same two numbers for each key,
    and the number of live processes. `gauges`: a hash with the gauge that each process wrote.
    `now`: server time in ms."""
    total, by_key, living = [0, 0], (Counter[str](), Counter[str]()), 0
    for text in gauges.values():
        deadline, _, entry = text.partition(" ")
        if whole(deadline) <= now:
            continue
        try:
            *sums, named = json.loads(entry)
            own = [(int(sums[i]), {str(k): int(n[i]) for k, n in named.items()}) for i in (0, 1)]
        except (ValueError, TypeError, AttributeError, IndexError):
            continue  # another program wrote this value
        living += 1
        for i, (count, keys) in enumerate(own):
            total[i] += count
            by_key[i].update(keys)
    return total, by_key, living


def _rejected(sketch: Mapping[str, str]) -> tuple[Counter[str], int]:
    """Return the count of rejections per key, and by how much each count may be too low."""
    found, off = Counter[str](), 0
    for label, value in sketch.items():
        kind, rest = _label(label)
        if kind == "k":
            found[rest] += whole(value)
        elif kind == "off":
            off += whole(value)
    return found, off


def _quantiles(sketch: Mapping[str, str], what: str) -> Quantiles:
    by_bucket = Counter[int]()
    for label, value in sketch.items():
        kind, rest = _label(label)
        if kind == "d" and rest[:1] == what:
            by_bucket[whole(rest[1:])] += whole(value)
    return Quantiles(_quantile(by_bucket, 0.5), _quantile(by_bucket, 0.95))


def _quantile(by_bucket: Mapping[int, int], part: float) -> float | None:
    left = math.ceil(sum(by_bucket.values()) * part)
    for bucket in sorted(by_bucket):
        left -= by_bucket[bucket]
        if left <= 0:
            return float(2**bucket) / 1000
    return None


def _label(label: str) -> tuple[str, str]:
    """Return KIND and REST of `label`, a hash field HOUR:KIND:REST. KIND is k (rejections of the
    key REST), off (by how much each count of rejections may be too low), or d (durations)."""
    kind, _, rest = label.partition(":")[2].partition(":")
    return kind, rest
