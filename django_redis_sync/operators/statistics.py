"""Statistics of many names: of a policy, of the names from a template, or of the whole site.

Each process counts events and writes them every two seconds; see `engine/statistics.py`. The cost
of reading doesn't depend on the number of names.

The permits in use and the waiters of a process are at most AGAIN seconds old; those of a killed
process count for LIFE seconds. Events that a killed process had not written are missing. Counts of
single keys may be too low, by the bound that is returned with them.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import zip_longest

from .. import conf
from ..engine.drivers import command, pipelined
from ..engine.statistics import AGAIN, LIFE, SITE
from ..engine.wire import whole
from ..protocol.keys import group_keys, groups_key, quote, split, unquote
from .history import Counters, History, histories_of, history_of
from .names import read_each
from .status import statuses

__all__ = ["AGAIN", "LIFE", "SITE", "Busy", "Quantiles", "Statistics", "groups", "statistics_of"]

_BATCH = 100


@dataclass(frozen=True, slots=True)
class Busy:
    """The counts of one key or name of a group."""

    key: str
    in_use: int = 0
    waiting: int = 0
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The median and the 95th percentile of durations in the last one to two hours, in seconds.

    None if there were no durations. They are upper bounds, up to twice the true value.
    """

    p50: float | None
    p95: float | None


@dataclass(frozen=True, slots=True)
class Statistics:
    """The statistics of a group: `name` is a policy, a template or SITE.

    `in_use` and `waiting` are permits and waiters of `processes` processes. `history`: the last
    minutes; each `peak` is the highest use of a single key. `busiest`: keys by permits in use, then
    by waiters. `rejected`: keys by rejections in the last one to two hours. `use_off`,
    `waiting_off`, `rejected_off`: the error of the counts per key, 0 if they are exact. The count
    of a key may be too low by the error, and a missing key has at most that count.
    """

    name: str
    in_use: int
    waiting: int
    processes: int
    busiest: tuple[Busy, ...]
    use_off: int
    waiting_off: int
    rejected: tuple[Busy, ...]
    rejected_off: int
    waited: Quantiles
    held: Quantiles
    history: History
    at: datetime


def groups(*, using: str | None = None, limit: int = 200) -> list[str]:
    """Return the policies and templates used within the last day, latest first.

    Raise Unavailable if Redis can't be reached.
    """
    config = conf.current()
    alias = using or config.cache
    found = command(alias, "ZREVRANGE", groups_key(quote(config.prefix(alias))), 0, limit - 1)
    return [unquote(group) for group in found]


def statistics_of(
    names: Iterable[str], *, minutes: int = 60, using: str | None = None, sketch: bool = True
) -> list[Statistics]:
    """Return the statistics of several groups, with three commands per group in few round trips.

    Without `sketch`, use two commands, and omit durations and the keys with rejections. The
    statistics of an unknown group are zeros. Raise Unavailable if Redis can't be reached.
    """
    config = conf.current()
    alias = using or config.cache
    prefix, wanted = quote(config.prefix(alias)), list(names)
    seconds, micros = command(alias, "TIME")
    now = int(seconds) + int(micros) / 1e6
    found = []
    for start in range(0, len(wanted), _BATCH):
        batch = wanted[start : start + _BATCH]
        keys = [group_keys(prefix, quote(name)) for name in batch]
        shares = pipelined(alias, [("HGETALL", key) for key, _, _ in keys])
        sketches = read_each(alias, [("HGETALL", key) for _, key, _ in keys if sketch])
        sums = read_each(alias, [("HGETALL", key) for _, _, key in keys])
        for i, name in enumerate(batch):
            own = sketches[i] if sketch else {}
            found.append(_sums(name, now, minutes, shares[i], own, sums[i]))
    return found


def counted(
    policies: Sequence[str], *, using: str | None = None, sketch: bool = True
) -> dict[str, Statistics]:
    """Return the statistics of those policies that have any, by name."""
    found = statistics_of(policies, using=using, sketch=sketch) if policies else []
    return {one.name: one for one in found if one.processes or one.history.ever != Counters()}


def past_of(
    name: str, key: str | None = None, *, minutes: int, using: str | None = None
) -> History:
    """Return the history of a name, of a `key` of a policy, or of all keys of a policy if `key` is
    None. For all keys, each peak is the highest use of a single key.

    Raise Unavailable if Redis can't be reached.
    """
    if key is None and (statistics := counted([name], using=using)):
        found = statistics_of([name], minutes=minutes, using=using)[0].history
        if statistics[name].history.ever != Counters():
            return replace(found, suggested_limit=None)
    own = statuses([(name, key)], using=using)
    return histories_of(own, minutes=minutes, using=using)[0]


def heaviest(policy: str | None = None, *, using: str | None = None) -> list[str]:
    """Return the busiest names, or keys of a policy, alternating with the most often rejected."""
    (statistics,) = statistics_of([SITE if policy is None else policy], using=using)
    pairs = zip_longest(statistics.busiest, statistics.rejected)
    found = [busy.key for pair in pairs for busy in pair if busy is not None]
    if policy is not None:
        return list(dict.fromkeys(map(unquote, found)))
    return list(dict.fromkeys(split(quoted)[0] for quoted in found))


def _sums(
    name: str,
    now: float,
    minutes: int,
    shares: Mapping[str, str],
    sketch: Mapping[str, str],
    counts: Mapping[str, str],
) -> Statistics:
    in_use, waiting, off, by_key, living = _in_use(shares, now * 1000)
    rejected, unnamed = _rejected(sketch)
    return Statistics(
        name=name,
        in_use=in_use,
        waiting=waiting,
        processes=living,
        busiest=tuple(
            Busy(key, counts[0], counts[1], rejected[key])
            for key, counts in sorted(by_key.items(), key=lambda item: item[1], reverse=True)
        ),
        use_off=off[0],
        waiting_off=off[1],
        rejected=tuple(Busy(key, *_two(by_key.get(key)), n) for key, n in rejected.most_common()),
        rejected_off=unnamed,
        waited=_quantiles(sketch, "w"),
        held=_quantiles(sketch, "r"),
        history=history_of(name, None, counts, int(now) // 60, minutes),
        at=datetime.fromtimestamp(now, tz=timezone.utc),
    )


def _two(counts: Sequence[int] | None) -> tuple[int, int]:
    return (counts[0], counts[1]) if counts else (0, 0)


def _in_use(
    shares: Mapping[str, str], now: float
) -> tuple[int, int, list[int], dict[str, list[int]], int]:
    """Return permits, waiters, the error bounds of both, counts by key, and the live processes."""
    total, off, by_key, living = [0, 0], [0, 0], dict[str, list[int]](), 0
    for text in shares.values():
        deadline, _, entry = text.partition(" ")
        if whole(deadline) <= now:
            continue
        try:
            in_use, waiting, own_off, named = json.loads(entry)
            for mine, value in ((total, (in_use, waiting)), (off, own_off)):
                mine[0] += int(value[0])
                mine[1] += int(value[1])
            for key, counts in named.items():
                mine = by_key.setdefault(str(key), [0, 0])
                mine[0] += int(counts[0])
                mine[1] += int(counts[1])
        except (ValueError, TypeError, AttributeError, IndexError):
            continue  # a foreign value
        living += 1
    return total[0], total[1], off, by_key, living


def _rejected(sketch: Mapping[str, str]) -> tuple[Counter[str], int]:
    """Return rejections by key, and how many more each key may have had."""
    found: Counter[str] = Counter()
    off = 0
    for label, value in sketch.items():
        _, kind, key = _label(label)
        if kind == "k":
            found[key] += whole(value)
        elif kind == "off":
            off += whole(value)
    return found, off


def _quantiles(sketch: Mapping[str, str], what: str) -> Quantiles:
    by_bucket: Counter[int] = Counter()
    for label, value in sketch.items():
        _, kind, bucket = _label(label)
        if kind == "d" and bucket[:1] == what:
            by_bucket[whole(bucket[1:])] += whole(value)
    return Quantiles(_quantile(by_bucket, 0.5), _quantile(by_bucket, 0.95))


def _quantile(by_bucket: Mapping[int, int], part: float) -> float | None:
    left = math.ceil(sum(by_bucket.values()) * part)
    for bucket in sorted(by_bucket):
        left -= by_bucket[bucket]
        if left <= 0:
            return float(2**bucket) / 1000
    return None


def _label(label: str) -> tuple[str, str, str]:
    """Return hour, kind (k: rejections of a key, off: of unnamed keys, d: durations), and rest."""
    hour, _, rest = label.partition(":")
    kind, _, rest = rest.partition(":")
    return hour, kind, rest
