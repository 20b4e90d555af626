"""The history of names: counters that the verbs write, by the minute."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import accumulate
from typing import Any

from .. import conf
from ..engine.commands import command, pipelined, whole
from ..protocol.keys import keys_of, split
from ..protocol.scripts import CONSTANTS
from .status import Status

_BATCH = 500
_COUNTERS = {
    "g": "granted",
    "w": "waited",
    "r": "released",
    "n": "rejected",
    "t": "timed_out",
    "c": "reclaimed",
    "s": "shadow_rejected",
    "l": "lost",
}
_SECONDS = {"w": "wait_seconds", "r": "held_seconds"}
_SUMMED = (*_COUNTERS.values(), *_SECONDS.values())


@dataclass(frozen=True, slots=True)
class Counters:
    """Events of some time: counts, and the seconds that belong to them."""

    granted: int = 0
    waited: int = 0
    wait_seconds: float = 0.0
    released: int = 0
    held_seconds: float = 0.0
    rejected: int = 0
    shadow_rejected: int = 0
    timed_out: int = 0
    reclaimed: int = 0
    lost: int = 0
    peak: int = 0

    @property
    def turned_away(self) -> int:
        """Asks that did not get in: at once, or after waiting in vain."""
        return self.rejected + self.timed_out


# Most minutes of most names: a shared object, which need not be added up.
_NOTHING = Counters()


@dataclass(frozen=True, slots=True)
class History:
    """A name's history: a row for each of the last minutes, oldest first, the last not over.

    `total`: the rows together; `ever`: all that is still counted. `suggested_limit`: see `suggest`.
    """

    name: str
    key: str | None
    rows: tuple[tuple[datetime, Counters], ...]
    total: Counters
    ever: Counters
    suggested_limit: int | None


def histories(
    names: Iterable[tuple[str, str | None]], *, minutes: int = 60, using: str | None = None
) -> list[History]:
    """The last minutes of several names, a round trip per _BATCH of them.

    Empty rows where nothing happened, or nothing was counted (REDIS_SYNC["STATS"]). Unavailable
    when Redis can't be reached.
    """
    config = conf.current()
    alias = using or config.cache
    prefix, found = config.prefix(alias), []
    wanted = [keys_of(prefix, name, key) for name, key in names]
    seconds, _ = command(alias, "TIME")
    last = int(seconds) // 60
    for start in range(0, len(wanted), _BATCH):
        batch = wanted[start : start + _BATCH]
        replies = pipelined(alias, [("HGETALL", keys.stats) for keys in batch])
        found += [
            history_of(*split(keys.quoted), reply, last, minutes)
            for keys, reply in zip(batch, replies, strict=True)
        ]
    return found


def carried(found: History, holders: Iterable[tuple[datetime, int]]) -> History:
    """With use carried on through the minutes without an arrival, in which the holders stayed.

    `holders`: of each lease that lives, since when it has how many permits. Of those that ended,
    grants and releases tell, but not their permits: each counts as 1. A lease that expired or was
    cleared counts in the minute of its grant only. So a peak is never above what really was.
    """
    living = sorted(holders)
    if not living and found.ever == _NOTHING:
        return found
    since = [moment for moment, _ in living]
    held = [0, *accumulate(permits for _, permits in living)]
    before = [bisect_left(since, start) for start, _ in found.rows]  # the living, at each start
    # Of those that ended, no more were in at the start of a minute than had come and not left.
    came = _came(found.ever) - _came(found.total)
    left = _left(found.ever) - _left(found.total)
    most = []
    for (_, row), older in zip(found.rows, before, strict=True):
        most.append(max(0, came - left - older))
        came, left = came + _came(row), left + _left(row)
    # And, from the end back: as many as were released from then on without having come since.
    ended, after, rows = 0, len(living), []
    for (start, row), older, limit in zip(*map(reversed, (found.rows, before, most)), strict=True):
        ended = max(0, ended + row.released - max(0, _came(row) - (after - older)))
        after = older
        peak = held[older] + min(ended, limit)
        rows.append((start, row if row.peak >= peak else replace(row, peak=peak)))
    counters = [row for _, row in rows]
    suggested = suggest(counters)
    return replace(found, rows=(*reversed(rows),), total=add(counters), suggested_limit=suggested)


def _came(c: Counters) -> int:
    return c.granted + c.waited


def _left(c: Counters) -> int:
    return c.released + c.reclaimed


def suggest(rows: Sequence[Counters]) -> int | None:
    """A limit that would have been large enough for these minutes, or None without evidence.

    Little's law: in the busiest minute, as many permits were wanted at a time as were asked for
    per second, times the seconds of a hold on average; a standard deviation of a Poisson
    stream is added for bursts. Never below the peak + 1. There is evidence when at least
    1 % of the asks had to wait or was refused, and held times are known. A name that never had
    two holders is taken for a lock, whose limit is no choice.
    """
    total = add(rows)
    if total == _NOTHING:
        return None
    short = total.waited + _refused(total)
    if total.peak < 2 or not total.released or short * 100 < _asked(total):
        return None
    mean = total.held_seconds / total.released
    wanted = max(_asked(row) for row in rows) / 60 * mean
    return max(total.peak + 1, math.ceil(wanted + math.sqrt(wanted)))


def add(counters: Iterable[Counters]) -> Counters:
    """Counters together: sums, and the highest peak."""
    found = [c for c in counters if c is not _NOTHING]
    sums = {name: sum(getattr(c, name) for c in found) for name in _SUMMED}
    return Counters(**sums, peak=max((c.peak for c in found), default=0))


def _refused(c: Counters) -> int:
    return c.turned_away + c.shadow_rejected


def _asked(c: Counters) -> int:
    # Asks that shadow mode would have refused were granted, and count there too.
    return _came(c) + c.turned_away


def history_of(
    name: str, key: str | None, reply: Mapping[str, str], last: int, minutes: int
) -> History:
    """The history that a hash of counters tells. `last`: this minute, since 1970."""
    by_minute: dict[int, dict[str, int]] = {}
    folded: dict[str, int] = {}
    for label, value in reply.items():
        when, _, what = label.partition(":")
        if when == "total":
            folded[what] = whole(value)
        elif when.isascii() and when.isdigit():
            by_minute.setdefault(whole(when), {})[what] = whole(value)
    parsed = {m: _counters(values) for m, values in by_minute.items()}
    rows = [(m, parsed.get(m, _NOTHING)) for m in range(last - minutes + 1, last + 1)]
    counters = [row for _, row in rows]
    ever = add([*parsed.values(), _totals(folded)])
    dated = tuple((datetime.fromtimestamp(m * 60, tz=timezone.utc), row) for m, row in rows)
    return History(name, key, dated, add(counters), ever, suggest(counters))


def _counters(values: Mapping[str, int]) -> Counters:
    """A minute; a count and its milliseconds share a number."""
    found: dict[str, Any] = {"peak": values.get("p", 0)}
    for what, name in _COUNTERS.items():
        n = values.get(what, 0)
        if what in _SECONDS:
            found[_SECONDS[what]] = n % CONSTANTS["PAIR"] / 1000
            n //= CONSTANTS["PAIR"]
        found[name] = n
    return Counters(**found)


def _totals(values: Mapping[str, int]) -> Counters:
    """A number taken apart: counts, and milliseconds beside them."""
    found: dict[str, Any] = {name: values.get(what, 0) for what, name in _COUNTERS.items()}
    found |= {name: values.get(f"{what}:ms", 0) / 1000 for what, name in _SECONDS.items()}
    return Counters(**found)


def histories_of(
    statuses: Sequence[Status], *, minutes: int = 60, using: str | None = None
) -> list[History]:
    """The history of each, with the use of the present holders carried on."""
    found = histories([(s.name, s.key) for s in statuses], minutes=minutes, using=using)
    # A lease that is kept (min_hold) was released, and counted so.
    return [
        carried(one, [(h.since, h.permits or 1) for h in s.holders if h.state != "kept"])
        for one, s in zip(found, statuses, strict=True)
    ]
