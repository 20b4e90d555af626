"""The content of the admin pages, read from Redis, without HTTP and HTML."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.core.paginator import Page, Paginator

from .. import conf
from ..limits.identity import possible_keys
from ..models import Name
from ..operators import doctor
from ..operators.facts import Holder, Status, Unread, Waiter
from ..operators.formats import as_json, duration, handed_over, moment
from ..operators.history import Counters, History, histories_of
from ..operators.listing import Group, Past, Selection, hour, keys_like, since
from ..operators.names import Recent, count_keys, is_known
from ..operators.statistics import Quantiles, Statistics, statistics_of
from ..operators.status import MAX_ROWS, readable, statuses
from . import charts

#: Rows per page of names, and of a policy's keys. A refresh sends at most 60 commands.
PER_PAGE, KEYS_PER_PAGE = 25, 20
#: Max names that are compared to sort a list by a figure.
MAX_COMPARED = 60
#: Max keys, of all policies together, in the result of a search.
MAX_FOUND_KEYS = 20
#: Max rows that an action reads, so that it finds every holder.
ALL_ROWS = 100_000
#: Minutes of history on the page of a name, by default.
SHORT = 60
#: Seconds for which the findings of the doctor are cached.
HEALTH_LIFETIME = 60


@dataclass(frozen=True, slots=True)
class Moment:
    """A time and its age."""

    at: datetime
    age: str

    @classmethod
    def before(cls, at: datetime, now: datetime) -> Moment:
        return cls(at, duration((now - at).total_seconds()))

    @property
    def clock(self) -> str:
        return moment(self.at)


# The list


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the list: a name, a policy with the sums of its keys, or a key.

    `hour`: the events of the last hour, or None if there are too many keys to add them up.
    """

    id: str
    group: Group
    hour: Counters | None
    spark: str

    @property
    def limit(self) -> int | None:
        """The limit. None if it is unknown, or if each key of a policy has its own."""
        return None if self.group.keys else self.group.limit

    @property
    def oldest(self) -> Moment | None:
        oldest = since(self.group.all)
        return None if oldest is None else Moment.before(oldest, self.group.all[0].at)

    @property
    def resized(self) -> bool:
        return any(status.override is not None for status in self.group.all)

    @property
    def permanent(self) -> bool:
        return any(holder.permanent for status in self.group.all for holder in status.holders)

    @property
    def bar(self) -> charts.Bar:
        return charts.bar(self.group.in_use, self.limit, self.group.waiting, self.permanent)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A visitor's query of the list. `policy`: list only the keys of this name."""

    query: str = ""
    order: str = ""
    page: str = "1"
    policy: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of the list. `found`: number of matching names. `compared`: see `Selection`."""

    rows: tuple[Row, ...]
    page: Page[Any]
    found: int
    compared: int | None
    wanted: Wanted
    unread: tuple[Unread, ...] = ()

    @property
    def in_use(self) -> int:
        return sum(row.group.in_use for row in self.rows)

    @property
    def waiting(self) -> int:
        return sum(row.group.waiting for row in self.rows)


def listing(wanted: Wanted) -> Listing:
    """Return a page of the list. Raise Unavailable if Redis can't be reached."""
    selection, page, groups, unread = _select(wanted)
    flat = wanted.policy is not None
    rows = [_row(one, selection.past) for group in groups for one in _units(group, flat)]
    if wanted.query and not flat:
        rows = [*_rows_of_keys(wanted.query), *rows]
    wanted = replace(wanted, order=selection.order)
    return Listing(tuple(rows), page, selection.found, selection.compared, wanted, tuple(unread))


def _rows_of_keys(query: str) -> Iterable[Row]:
    """Yield a row for each policy of which the query is a key, for example a user or an address."""
    policy, at, key = query.partition("@")
    pairs = keys_like(possible_keys(key if at and policy else query))[:MAX_FOUND_KEYS]
    found, _ = readable(pairs)
    past = {(one.name, one.key): one for one in histories_of(found)}
    return [_row(Group.alone(one), past) for one in found if not at or one.name == policy]


def data(wanted: Wanted) -> dict[str, Any]:
    """Return a page of the list for JSON."""
    selection, page, groups, unread = _select(wanted)
    pages = {"page": page.number, "pages": page.paginator.num_pages, "order": selection.order}
    found = as_json(groups, selection.past, unread, selection.found, selection.compared)
    return {**pages, **found}


def data_of(status: Status, wanted: Wanted) -> dict[str, Any]:
    """Return a name for JSON. If it is a policy, `keys` has a page of its keys."""
    own = Group(status.name, status, ())
    past = {(one.name, one.key): one for one in histories_of([status])}
    found = as_json([own], past, [], 1)
    if status.key is None and Recent(status.name):
        found["keys"] = data(wanted)
    return found


def _select(wanted: Wanted) -> tuple[Selection, Page[Any], list[Group], list[Unread]]:
    alike = possible_keys(wanted.query) if wanted.query and wanted.policy is not None else ()
    selection = Selection(
        wanted.order,
        query=wanted.query,
        alike=alike,
        policy=wanted.policy,
        max_compared=MAX_COMPARED,
    )
    rows = PER_PAGE if wanted.policy is None else KEYS_PER_PAGE
    page: Page[Any] = Paginator(range(selection.readable), rows).get_page(wanted.page)
    groups, unread = selection.read(max(0, page.start_index() - 1), page.end_index())
    return selection, page, groups, unread


def _units(group: Group, flat: bool) -> list[Group]:
    """Return what gets a row: a policy is one row, unless its keys are listed."""
    if group.children and not flat:
        return [group]
    return [Group.alone(status) for status in group.all]


def _row(group: Group, past: Past) -> Row:
    key, spark = None, ""
    if not group.children:
        (one,) = group.all
        key, peaks = one.key, [row.peak for _, row in past[one.name, one.key].rows]
        spark = charts.sparkline(peaks, one.limit or 1)
    return Row(Name.of(group.all[0].name, key).id, group, hour(group, past), spark)


# A name


@dataclass(frozen=True, slots=True)
class HolderRow:
    """A holder as shown. `fence` identifies it in links."""

    holder: Holder
    since: Moment
    left: str

    @property
    def fence(self) -> str:
        return str(self.holder.fence)


@dataclass(frozen=True, slots=True)
class WaiterRow:
    waiter: Waiter
    since: Moment


@dataclass(frozen=True, slots=True)
class Detail:
    """The page of a name. `listing`: its keys, if it is a policy. `longest`: hours of history."""

    status: Status
    holders: tuple[HolderRow, ...]
    waiters: tuple[WaiterRow, ...]
    past: History
    chart: charts.Chart
    minutes: int
    longest: int
    listing: Listing | None
    statistics: Statistics | None = None

    @property
    def bar(self) -> charts.Bar:
        permanent = any(row.holder.permanent for row in self.holders)
        return charts.bar(self.status.in_use, self.status.limit, self.status.waiting, permanent)

    @property
    def paused_since(self) -> str:
        return moment(self.status.paused_since) if self.status.paused_since else ""

    @property
    def paused_until(self) -> str:
        return moment(self.status.paused_until) if self.status.paused_until else ""

    @property
    def more_holders(self) -> int:
        return max(0, self.status.holding - len(self.holders))

    @property
    def more_waiters(self) -> int:
        return max(0, self.status.waiting - len(self.waiters))

    @property
    def more_shares(self) -> int:
        return max(0, self.status.share_count - len(self.status.shares))

    @property
    def last_shown(self) -> str:
        """The highest fence of the holders shown."""
        return self.holders[-1].fence if self.holders else ""

    @property
    def handed_over(self) -> str:
        """An explanation of the state "handed", if a holder is in it."""
        handed = any(row.holder.state == "handed" for row in self.holders)
        return handed_over() if handed else ""

    @property
    def durations(self) -> dict[str, str]:
        """Mean and upper bounds of waits and holds, as far as they are known."""
        total = self.past.total
        found = {
            "mean_wait": _mean(total.wait_seconds, total.waited),
            "mean_hold": _mean(total.held_seconds, total.released),
        }
        if self.statistics:
            found["most_waits"] = _bounds(self.statistics.waited)
            found["most_holds"] = _bounds(self.statistics.held)
        return found

    @property
    def only_keys(self) -> bool:
        """True if only keys of this policy were used, never the name itself."""
        return self.listing is not None and not self.status.fence


def _bounds(found: Quantiles) -> str:
    """Return the durations that half and that 95 % stay below, or "" if there were none."""
    if found.p50 is None or found.p95 is None:
        return ""
    return f"{duration(found.p50)}, {duration(found.p95)}"


def _mean(seconds: float, times: int) -> str:
    return duration(seconds / times) if times else ""


def find(name: str, key: str | None, rows: int = MAX_ROWS) -> Status | None:
    """Return the status of a name, or None if the name is not known and so has no page."""
    status = statuses([(name, key)], rows=rows)[0]
    return status if status.used or is_known(name, key) else None


def number_of_keys(status: Status) -> int:
    """Return the number of keys that an action on this name includes."""
    return 0 if status.key is not None else count_keys([status.name])[status.name]


def detail(status: Status, wanted: Wanted, history: str) -> Detail:
    """Return the content of the page of a name. `history`: "all", or "" for the last hour. Raise
    Unavailable if Redis can't be reached."""
    longest = max(SHORT, conf.current().keep(status.key))
    minutes = longest if history == "all" else SHORT
    children, statistics = None, None
    if status.key is None:
        children = listing(wanted)
        if not children.found and not (wanted.query and Recent(status.name)):
            children = None
    if children is not None:
        found = statistics_of([status.name], minutes=minutes)[0]
        if found.processes or found.history.ever != Counters():
            # No suggested limit: the limit of a policy is per key.
            past, statistics = replace(found.history, suggested_limit=None), found
    if statistics is None:
        past = histories_of([status], minutes=minutes)[0]
    return Detail(
        status=status,
        holders=tuple(holder_row(status, holder) for holder in status.holders),
        waiters=tuple(WaiterRow(w, Moment.before(w.since, status.at)) for w in status.waiters),
        past=past,
        chart=charts.chart(charts.steps(past.rows), None if statistics else status.limit),
        minutes=minutes,
        longest=longest // 60 if longest > SHORT else 0,
        listing=children,
        statistics=statistics,
    )


def holder_row(status: Status, holder: Holder) -> HolderRow:
    since = Moment.before(holder.since, status.at)
    return HolderRow(holder, since, "" if holder.permanent else duration(holder.ends_in))


# The server


@dataclass(frozen=True, slots=True)
class Health:
    """The findings of the doctor. `at`: time of the examination, on the monotonic clock."""

    problems: Sequence[doctor.Finding]
    fine: Sequence[doctor.Finding]
    at: float

    @property
    def age(self) -> str:
        return duration(time.monotonic() - self.at)


_examined: dict[str, Health] = {}


def health() -> Health:
    """Return the findings of the doctor. They are at most HEALTH_LIFETIME seconds old: the
    examination sends more commands than the list itself."""
    config = conf.current()
    found = _examined.get(config.prefix(config.cache))
    if found is None or time.monotonic() - found.at > HEALTH_LIFETIME:
        findings = doctor.examine()
        found = Health(
            problems=[finding for finding in findings if finding.level != "ok"],
            fine=[finding for finding in findings if finding.level == "ok"],
            at=time.monotonic(),
        )
        _examined[config.prefix(config.cache)] = found
    return found
