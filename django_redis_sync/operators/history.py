"""The history of names: the counters per minute that the scripts write."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
from itertools import accumulate
from typing import Any

from ..engine.shares import samples_key
from ..engine.wire import whole
from ..protocol.keys import keys_of, unquote_share
from ..protocol.scripts import CONSTANTS
from .facts import FactsOfName, Status
from .reads import read_each, server_time, where

#: Redis has counters per minute for the last FINE minutes. Older counters are per STEP minutes.
FINE, STEP = CONSTANTS["FINE"], CONSTANTS["QUARTER"]


def _count(letter: str) -> Any:
    """Return a dataclass field for the counter that the scripts store under `letter`."""
    return field(default=0, metadata={"letter": letter})


@dataclass(frozen=True, slots=True)
class Counters:
    """The numbers of events in a period, and the seconds waited and held.

    `granted`: grants without a wait. `waited`: grants after a wait. `reclaimed`: leases that
    expired. `skipped`: acquires without a permit whose callers did not want to wait, such as those
    with blocking=False. `share_rejected`: rejections because of `share_limit`, also in shadow mode.
    `pause_rejected`, `max_waiters_rejected`, and `rate_rejected`: rejections because of an
    operator's pause, because the queue was full, and because of a rate or a cool-down. `peak`: the
    highest number of permits in use at a time.
    """

    granted: int = _count("g")
    waited: int = _count("w")
    wait_seconds: float = 0.0
    released: int = _count("r")
    held_seconds: float = 0.0
    rejected: int = _count("n")
    shadow_rejected: int = _count("s")
    timed_out: int = _count("t")
    reclaimed: int = _count("c")
    lost: int = _count("l")
    skipped: int = _count("k")
    share_rejected: int = _count("b")
    pause_rejected: int = _count("u")
    max_waiters_rejected: int = _count("m")
    rate_rejected: int = _count("v")
    peak: int = _count("p")

    @property
    def rejected_or_timed_out(self) -> int:
        """The number of acquires without a permit: rejected at once, or timed out after a wait."""
        return self.rejected + self.timed_out

    @property
    def bound_rejected(self) -> int:
        """The number of rejections that a larger limit would not have avoided."""
        return self.share_rejected + self.pause_rejected + self.rate_rejected


_LETTERS = {one.metadata["letter"]: one.name for one in fields(Counters) if one.metadata}
_SECONDS = {"w": "wait_seconds", "r": "held_seconds"}
# The counters of a period without events. Most periods have none, so `add` skips this object to
# save time.
_NOTHING = Counters()


@dataclass(frozen=True, slots=True)
class History(FactsOfName):
    """The history of a name: a row per `step` minutes, oldest first. The period of the last row has
    not ended yet.

    `total`: the sum of the rows; `ever`: the sum of all counters of the name in Redis.
    `suggested_limit` and `is_estimate`: see `suggest`.
    """

    rows: tuple[tuple[datetime, Counters], ...]
    total: Counters
    ever: Counters
    suggested_limit: int | None
    is_estimate: bool = False
    step: int = 1


def histories(
    names: Iterable[tuple[str, str | None]], *, minutes: int = 60, using: str | None = None
) -> list[History]:
    """Return the history of each name for the last `minutes`.

    If more than FINE minutes are requested, a row has STEP minutes. The counters of a row are 0 if
    it has no events, or if REDIS_SYNC["STATS"] is off. Raise Unavailable if Redis can't be reached.
    """
    alias, prefix = where(using)
    wanted, last = list(names), int(server_time(alias)) // 60
    stats = [("HGETALL", keys_of(prefix, *pair).stats) for pair in wanted]
    replies = zip(wanted, read_each(alias, stats), strict=True)
    return [history_of(*pair, reply, last, minutes) for pair, reply in replies]


def heaviest_shares(
    name: str, key: str | None = None, *, minutes: int, using: str | None = None
) -> list[tuple[datetime, list[tuple[str, float]]]]:
    """Return the heaviest shares of a name for each quarter of an hour of the last `minutes`, the
    oldest quarter first. For each share: its text, and its part of the permits of all listed
    shares, from 0 to 1, the largest first. At most MOST_SHARES shares are listed. Quarters without
    shares are left out. Raise Unavailable if Redis can't be reached."""
    alias, prefix = where(using)
    first = int(server_time(alias)) // 60 - minutes
    (reply,) = read_each(alias, [("HGETALL", samples_key(keys_of(prefix, name, key)))])
    quarters: dict[int, list[tuple[str, int]]] = {}
    for field_name, value in reply.items():
        start, _, share = field_name.partition(":")
        if whole(start) + STEP > first:
            quarters.setdefault(whole(start), []).append((unquote_share(share), whole(value)))
    found = []
    for start, shares in sorted(quarters.items()):
        total = sum(count for _, count in shares) or 1
        parts = [(share, count / total) for share, count in shares]
        at = datetime.fromtimestamp(start * 60, tz=timezone.utc)
        found.append((at, sorted(parts, key=lambda part: (-part[1], part[0]))))
    return found


def carried(found: History, holders: Iterable[tuple[datetime, int]]) -> History:
    """Return the history with corrected peaks: the peak of a row also counts leases granted before
    that row. Without this, a peak is 0 in minutes without a grant, because Redis stores none.

    `holders`: for each current lease, the time of its grant and its number of permits. For ended
    leases, only the numbers of grants and releases are known, so each of them counts as one permit.
    A lease that expired or was cleared counts only in the minute of its grant. So a peak may be too
    low, but is never too high.
    """
    living = sorted(holders)
    if not living and found.ever == _NOTHING:
        return found
    since = [moment for moment, _ in living]
    held = [0, *accumulate(permits for _, permits in living)]
    # For each row: the number of current leases that were granted before the start of the row.
    before = [bisect_left(since, start) for start, _ in found.rows]
    # For each row: an upper bound of the number of leases that were held at the start of the row,
    # but have ended by now.
    came = _came(found.ever) - _came(found.total)
    left = _left(found.ever) - _left(found.total)
    most = []
    for (_, row), older in zip(found.rows, before, strict=True):
        most.append(max(0, came - left - older))
        came, left = came + _came(row), left + _left(row)
    # Go from the last row to the first. `ended` estimates how many leases were held at the start of
    # the row and have ended by now. Add the leases released in a row: they may have been held at
    # its start. Subtract those granted in the row that have ended by now: they were not.
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
    """Return (limit, is_estimate). `limit`: the limit that would have been large enough, or None.
    `is_estimate`: True if this limit may be too low. `rows`: the counters of each period. `step`:
    minutes of a period.

    - If only shadow mode counted rejections, every request was admitted. The limit is then the
      highest use, which is not an estimate.
    - If requests waited or were rejected, the limit kept the use low. The estimate is then the
      largest of three numbers. The first is the highest use. The second is one more than the
      highest use in a row with a wait or a rejection. The third is by Little's law: the acquires
      per second of the busiest row, times the mean seconds of a hold, plus one standard deviation
      of a Poisson process.
    - The limit is None if less than 1% of the acquires waited or were rejected, or if no lease was
      released. It is also None if the name never had two holders, as is usual for a lock.

    Rejections because of `share_limit`, a pause, or a rate don't count, because a larger limit
    would not avoid them.
    """
    total = add(rows)
    # Rejections because of another bound don't mean that the limit is too low.
    capped = max(0, total.waited + total.rejected_or_timed_out - total.bound_rejected)
    asked = total.waited + total.rejected_or_timed_out + total.shadow_rejected
    short = max(capped, asked - total.bound_rejected)
    if total.peak < 2 or not total.released or short == 0 or short * 100 < _asked(total):
        return None, False
    if not capped:
        return total.peak, False
    mean = total.held_seconds / total.released
    wanted = max(_asked(row) for row in rows) / (60 * step) * mean
    beyond = max(
        row.peak + 1 for row in rows if row.waited + row.rejected_or_timed_out > row.bound_rejected
    )
    return max(total.peak, beyond, math.ceil(wanted + math.sqrt(wanted))), True


def add(counters: Iterable[Counters]) -> Counters:
    """Return the sum of several counters. Its `peak` is the highest of their peaks."""
    found = [c for c in counters if c is not _NOTHING]
    sums = {one.name: sum(getattr(c, one.name) for c in found) for one in fields(Counters)}
    return Counters(**{**sums, "peak": max((c.peak for c in found), default=0)})


def _asked(c: Counters) -> int:
    return _came(c) + c.rejected_or_timed_out


def history_of(
    name: str, key: str | None, reply: Mapping[str, str], last: int, minutes: int
) -> History:
    """Return the history of a name. `reply`: the hash with the counters of the name. `last`: the
    current minute, counted from 1970. `minutes`: the number of minutes that the rows cover."""
    by_start: dict[str, dict[str, int]] = {}
    for label, value in reply.items():
        start, _, what = label.partition(":")
        by_start.setdefault(start, {})[what] = whole(value)
    parsed: dict[int, list[Counters]] = {}
    step = 1 if minutes <= FINE else STEP
    for start, values in by_start.items():
        minute = start.removesuffix("q")
        if minute.isascii() and minute.isdigit():
            one = _counters(values, are_pairs=minute == start)
            parsed.setdefault(whole(minute) // step, []).append(one)
    rows = [
        (row, add(parsed[row]) if row in parsed else _NOTHING)
        for row in range((last - minutes) // step + 1, last // step + 1)
    ]
    counters = [row for _, row in rows]
    every = [one for some in parsed.values() for one in some]
    ever = add([*every, _counters(by_start.get("total", {}), are_pairs=False)])
    dated = tuple((datetime.fromtimestamp(m * step * 60, tz=timezone.utc), c) for m, c in rows)
    return History(name, key, dated, add(counters), ever, *suggest(counters, step), step=step)


def _counters(values: Mapping[str, int], are_pairs: bool) -> Counters:
    """Return the counters of a period. `are_pairs`: True if the period is a minute. Then one number
    stores a count and its milliseconds. For other periods, the milliseconds are in separate
    fields."""
    found: dict[str, Any] = {name: values.get(letter, 0) for letter, name in _LETTERS.items()}
    for letter, name in _SECONDS.items():
        ms = values.get(f"{letter}:ms", 0)
        if are_pairs:
            found[_LETTERS[letter]], ms = divmod(found[_LETTERS[letter]], CONSTANTS["PAIR"])
        found[name] = ms / 1000
    return Counters(**found)


def histories_of(
    statuses: Sequence[Status], *, minutes: int = 60, using: str | None = None
) -> list[History]:
    """Return a history for each status. The peak of a row also counts leases that were granted
    before that row: see `carried`."""
    found = histories([(s.name, s.key) for s in statuses], minutes=minutes, using=using)
    # Omit leases that min_hold retains, because the counters count them as released.
    return [
        _unless_paced(
            carried(history, [(h.since, h.permits or 1) for h in s.holders if h.state != "kept"]), s
        )
        for history, s in zip(found, statuses, strict=True)
    ]


def _unless_paced(found: History, status: Status) -> History:
    """Return the history without a suggested limit if callers waited for the rate of the name, and
    not for its limit: the limit was never reached."""
    if status.rate is None or (status.limit is not None and found.total.peak >= status.limit):
        return found
    return replace(found, suggested_limit=None, is_estimate=False)
