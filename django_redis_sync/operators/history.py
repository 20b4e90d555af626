"""The history of names: the counters per minute that the scripts write."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import accumulate
from typing import Any

from .. import conf
from ..engine.wire import whole
from ..protocol.keys import keys_of, split
from ..protocol.scripts import CONSTANTS
from .facts import Status
from .names import read, read_each

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
    "b": "share_rejected",
    "v": "job_delivered",
    "d": "job_copy_dropped",
    "x": "job_place_expired",
}
_SECONDS = {"w": "wait_seconds", "r": "held_seconds"}
#: The last FINE minutes have a row per minute; earlier history has a row per STEP minutes.
FINE, STEP = CONSTANTS["FINE"], CONSTANTS["QUARTER"]
_SUMMED = (*_COUNTERS.values(), *_SECONDS.values())


@dataclass(frozen=True, slots=True)
class Counters:
    """The numbers of events in a period, and the seconds waited and held.

    `granted`: at once; `waited`: granted after a wait. `reclaimed`: leases that expired.
    `share_rejected`: rejections because of `share_limit`, including those of shadow mode.
    `job_delivered`: deliveries of jobs with on_full="retry". `job_copy_dropped`: deliveries of
    copies. `job_place_expired`: jobs that did not come back. `peak`: the most permits in use.
    """

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
    share_rejected: int = 0
    job_delivered: int = 0
    job_copy_dropped: int = 0
    job_place_expired: int = 0
    peak: int = 0

    @property
    def rejected_or_timed_out(self) -> int:
        """Acquires that got no permit, at once or after waiting."""
        return self.rejected + self.timed_out


# The object for all empty periods, which `add` skips: most periods are empty.
_NOTHING = Counters()


@dataclass(frozen=True, slots=True)
class History:
    """The history of a name: a row per `step` minutes, oldest first. The last row is incomplete.

    `total`: the sum of the rows; `ever`: the sum of all counters of the name in Redis.
    `suggested_limit` and `is_estimate`: see `suggest`.
    """

    name: str
    key: str | None
    rows: tuple[tuple[datetime, Counters], ...]
    total: Counters
    ever: Counters
    suggested_limit: int | None
    is_estimate: bool = False
    step: int = 1


def histories(
    names: Iterable[tuple[str, str | None]], *, minutes: int = 60, using: str | None = None
) -> list[History]:
    """Return the last minutes of several names, with one round trip per _BATCH names.

    If more than FINE minutes are requested, a row has STEP minutes. Rows are empty if nothing
    happened or if REDIS_SYNC["STATS"] is off. Raise Unavailable if Redis can't be reached.
    """
    config = conf.current()
    alias = using or config.cache
    prefix, found = config.prefix(alias), []
    wanted = [keys_of(prefix, name, key) for name, key in names]
    seconds, _ = read(alias, "TIME")
    last = int(seconds) // 60
    for start in range(0, len(wanted), _BATCH):
        batch = wanted[start : start + _BATCH]
        replies = read_each(alias, [("HGETALL", keys.stats) for keys in batch])
        found += [
            history_of(*split(keys.quoted), reply, last, minutes)
            for keys, reply in zip(batch, replies, strict=True)
        ]
    return found


def carried(found: History, holders: Iterable[tuple[datetime, int]]) -> History:
    """Return the history with peaks that also count permits held since an earlier minute.

    Redis stores a peak only for minutes with a grant. `holders`: for each current lease, when it
    was granted and its number of permits. Leases that have ended are derived from the counts of
    grants and releases, and count as one permit each. A lease that expired or was cleared counts
    only in the minute of its grant. So a peak is never too high.
    """
    living = sorted(holders)
    if not living and found.ever == _NOTHING:
        return found
    since = [moment for moment, _ in living]
    held = [0, *accumulate(permits for _, permits in living)]
    # At the start of each row: the current leases that were granted before it.
    before = [bisect_left(since, start) for start, _ in found.rows]
    # An upper bound of the leases that were held at the start of a row and have ended since.
    came = _came(found.ever) - _came(found.total)
    left = _left(found.ever) - _left(found.total)
    most = []
    for (_, row), older in zip(found.rows, before, strict=True):
        most.append(max(0, came - left - older))
        came, left = came + _came(row), left + _left(row)
    # Backwards: ended leases that were held then, because more were released than granted since.
    ended, after, rows = 0, len(living), []
    for (start, row), older, limit in zip(*map(reversed, (found.rows, before, most)), strict=True):
        ended = max(0, ended + row.released - max(0, _came(row) - (after - older)))
        after = older
        peak = held[older] + min(ended, limit)
        rows.append((start, row if row.peak >= peak else replace(row, peak=peak)))
    counters = [row for _, row in rows]
    suggested, is_estimate = suggest(counters, found.step)
    return replace(
        found,
        rows=(*reversed(rows),),
        total=add(counters),
        suggested_limit=suggested,
        is_estimate=is_estimate,
    )


def _came(c: Counters) -> int:
    return c.granted + c.waited + c.shadow_rejected


def _left(c: Counters) -> int:
    return c.released + c.reclaimed


def suggest(rows: Sequence[Counters], step: int = 1) -> tuple[int | None, bool]:
    """Return the limit that would have been enough, and True if it is an estimate that may be too
    low. `step`: minutes of a row.

    In shadow mode, every request is admitted, so the highest use is that limit. An enforced limit
    also bounds the use, so the demand is estimated as the larger of two values. One is the use in a
    row with a rejection or a wait, plus one permit. The other follows from Little's law: the
    acquires per second of the busiest row, times the mean seconds of a hold, plus one standard
    deviation of a Poisson process for bursts.

    Return None as the limit if less than 1% of the acquires waited or were rejected, or if no lease
    was released. Return None too if the name never had two holders: it is probably a lock.
    """
    total = add(rows)
    # Rejections because of share_limit don't mean that the limit is too low.
    capped = max(0, total.waited + total.rejected_or_timed_out - total.share_rejected)
    asked = total.waited + total.rejected_or_timed_out + total.shadow_rejected
    short = max(capped, asked - total.share_rejected)
    if total.peak < 2 or not total.released or short == 0 or short * 100 < _asked(total):
        return None, False
    if not capped:
        return total.peak, False
    mean = total.held_seconds / total.released
    wanted = max(_asked(row) for row in rows) / (60 * step) * mean
    beyond = max(
        row.peak + 1 for row in rows if row.waited + row.rejected_or_timed_out > row.share_rejected
    )
    return max(total.peak, beyond, math.ceil(wanted + math.sqrt(wanted))), True


def add(counters: Iterable[Counters]) -> Counters:
    """Return the sums of the counters, and their highest peak."""
    found = [c for c in counters if c is not _NOTHING]
    statistics = {name: sum(getattr(c, name) for c in found) for name in _SUMMED}
    return Counters(**statistics, peak=max((c.peak for c in found), default=0))


def _asked(c: Counters) -> int:
    return _came(c) + c.rejected_or_timed_out


def history_of(
    name: str, key: str | None, reply: Mapping[str, str], last: int, minutes: int
) -> History:
    """Return the history from a hash of counters. `last`: the current minute, counted from 1970."""
    by_start: dict[str, dict[str, int]] = {}
    for label, value in reply.items():
        start, _, what = label.partition(":")
        by_start.setdefault(start, {})[what] = whole(value)
    parsed: dict[int, list[Counters]] = {}
    step = 1 if minutes <= FINE else STEP
    for start, values in by_start.items():
        minute = start.removesuffix("q")
        if minute.isascii() and minute.isdigit():
            one = _counters(values) if minute == start else _totals(values)
            parsed.setdefault(whole(minute) // step, []).append(one)
    rows = [
        (row, add(parsed[row]) if row in parsed else _NOTHING)
        for row in range((last - minutes) // step + 1, last // step + 1)
    ]
    counters = [row for _, row in rows]
    every = [one for some in parsed.values() for one in some]
    ever = add([*every, _totals(by_start.get("total", {}))])
    dated = tuple((datetime.fromtimestamp(m * step * 60, tz=timezone.utc), c) for m, c in rows)
    return History(name, key, dated, add(counters), ever, *suggest(counters, step), step=step)


def _counters(values: Mapping[str, int]) -> Counters:
    """Return the counters of a minute, where a count and its milliseconds share a number."""
    found: dict[str, Any] = {"peak": values.get("p", 0)}
    for what, name in _COUNTERS.items():
        n = values.get(what, 0)
        if what in _SECONDS:
            found[_SECONDS[what]] = n % CONSTANTS["PAIR"] / 1000
            n //= CONSTANTS["PAIR"]
        found[name] = n
    return Counters(**found)


def _totals(values: Mapping[str, int]) -> Counters:
    """Return the counters of STEP minutes or of all time, where milliseconds have fields of their
    own."""
    found: dict[str, Any] = {name: values.get(what, 0) for what, name in _COUNTERS.items()}
    found["peak"] = values.get("p", 0)
    found |= {name: values.get(f"{what}:ms", 0) / 1000 for what, name in _SECONDS.items()}
    return Counters(**found)


def histories_of(
    statuses: Sequence[Status],
    *,
    minutes: int = 60,
    using: str | None = None,
    known: Mapping[tuple[str, str | None], History] | None = None,
) -> list[History]:
    """Return the history of each status, with `carried` peaks. `known`: histories already read."""
    found = dict(known or {})
    pairs = [(s.name, s.key) for s in statuses]
    wanted = [pair for pair in pairs if pair not in found]
    found |= {(h.name, h.key): h for h in histories(wanted, minutes=minutes, using=using)}
    # A lease that is retained by min_hold counts as released.
    return [
        carried(found[pair], [(h.since, h.permits or 1) for h in s.holders if h.state != "kept"])
        for pair, s in zip(pairs, statuses, strict=True)
    ]
