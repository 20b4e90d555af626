"""The content of the admin's pages, read from Redis and put in order. No HTTP and no HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.core import signing
from django.core.paginator import Page, Paginator

from ..limits.identity import possible_keys
from ..models import Name
from ..operators.export import as_json
from ..operators.history import Counters, History, histories_of
from ..operators.listing import Past, Selection, hour, keys_like, since
from ..operators.names import Group, Recent, counted, is_known
from ..operators.status import (
    MOST_ROWS,
    Holder,
    Status,
    Unread,
    Waiter,
    readable,
    statuses,
)
from ..operators.sums import Quantiles, Sums, sums_of
from ..operators.words import duration, handed_over
from . import charts

PER_PAGE = 50
#: Children of a policy that the list shows below it; the policy's own page has them all.
MOST_CHILDREN = 5
#: Keys that were searched for, of all policies together.
MOST_KEYED = 20
#: Rows read where an action must find a holder that some page showed.
ALL_ROWS = 100_000


def reference(status: Status, token: str) -> str:
    """A holder's mark in a form: only we can make it, and the token in it can't be read."""
    signer = signing.Signer(salt="django_redis_sync.admin.holder")
    return signer.signature(f"{Name.of(status.name, status.key).id} {token}")


def referred(status: Status, references: Iterable[str]) -> list[Holder]:
    """The holders that are still there of those that a form speaks of."""
    wanted = set(references)
    return [holder for holder in status.holders if reference(status, holder.token) in wanted]


# The list


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the list: a name, a policy with its children's sums, or a child.

    `group`: what is in use, waits, is paused, as `locks status` has it; `hour`: the events of the
    last hour, None where they are too many to sum up; `more`, after the last child shown:
    those of its `policy` that are not.
    """

    id: str
    group: Group
    hour: Counters | None
    spark: str
    child: bool = False
    policy: str = ""
    more: int = 0

    @property
    def limit(self) -> int | None:
        """None where it can't be told, and for a policy, since each child has its own."""
        return None if self.group.keys else self.group.limit

    @property
    def since(self) -> datetime | None:
        return since(self.group.all)

    @property
    def age(self) -> str:
        oldest = self.since
        return "" if oldest is None else _between(oldest, self.group.all[0].at)

    @property
    def resized(self) -> bool:
        return any(status.override is not None for status in self.group.all)

    @property
    def stuck(self) -> bool:
        return any(holder.stuck for status in self.group.all for holder in status.holders)

    @property
    def bar(self) -> charts.Bar:
        return charts.bar(self.group.in_use, self.limit, self.group.waiting, self.stuck)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A visitor's query of the list. `policy`: only the children of this name."""

    query: str = ""
    order: str = ""
    page: str = "1"
    policy: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of the list. `found`: names that there are; `compared`: see listing.Selection."""

    rows: tuple[Row, ...]
    page: Page[Any]
    found: int
    compared: int | None
    wanted: Wanted
    unread: tuple[Unread, ...] = ()

    @property
    def in_use(self) -> int:
        return sum(row.group.in_use for row in self.rows if not row.child)

    @property
    def waiting(self) -> int:
        return sum(row.group.waiting for row in self.rows if not row.child)


def listing(wanted: Wanted) -> Listing:
    """The rows of a page. Unavailable when Redis can't be reached."""
    selection, page, groups, unread = _select(wanted)
    rows = tuple(_rows(groups, selection.past, wanted.policy is not None))
    if wanted.query and wanted.policy is None:
        rows = (*_keyed(wanted.query), *rows)
    wanted = replace(wanted, order=selection.order)
    return Listing(rows, page, selection.found, selection.compared, wanted, tuple(unread))


def _keyed(query: str) -> Iterable[Row]:
    """A line for each policy that has the searched text as a key: a user, an address."""
    policy, at, key = query.partition("@")
    pairs = keys_like(possible_keys(key if at and policy else query))[:MOST_KEYED]
    found, _ = readable(pairs)
    past = {(one.name, one.key): one for one in histories_of(found)}
    return [_row(Group.alone(one), past) for one in found if not at or one.name == policy]


def data(wanted: Wanted) -> dict[str, Any]:
    """As listing, for machines."""
    selection, page, groups, unread = _select(wanted)
    pages = {"page": page.number, "pages": page.paginator.num_pages, "order": selection.order}
    found = as_json(groups, selection.past, unread, selection.found, selection.compared)
    return {**pages, **found}


def data_of(status: Status, wanted: Wanted) -> dict[str, Any]:
    """A name for machines; a page of its keys stands under `keys` when it is a policy."""
    own = Group(status.name, status, ())
    past = {(one.name, one.key): one for one in histories_of([status])}
    found = as_json([own], past, [], 1)
    if status.key is None and Recent(status.name):
        found["keys"] = data(wanted)
    return found


def _select(wanted: Wanted) -> tuple[Selection, Page[Any], list[Group], list[Unread]]:
    alike = possible_keys(wanted.query) if wanted.query and wanted.policy is not None else ()
    selection = Selection(wanted.order, query=wanted.query, alike=alike, policy=wanted.policy)
    page: Page[Any] = Paginator(range(selection.readable), PER_PAGE).get_page(wanted.page)
    groups, unread = selection.read(max(0, page.start_index() - 1), page.end_index())
    return selection, page, groups, unread


def _rows(groups: Sequence[Group], past: Past, flat: bool) -> Iterable[Row]:
    for group in groups:
        children = _children(group)
        if flat or not children:
            yield from (_row(Group.alone(status), past) for status in group.all)
        else:
            yield _row(group, past)
            rows = [_row(Group.alone(status), past, child=True) for status in children]
            more = group.keys - len(rows)
            yield from (*rows[:-1], replace(rows[-1], more=more, policy=Name.of(group.name).id))


def _children(group: Group) -> list[Status]:
    """Those that the list shows: where most wait, then where most are in."""
    return sorted(group.children, key=lambda s: (-s.waiting, -s.in_use))[:MOST_CHILDREN]


def _row(group: Group, past: Past, child: bool = False) -> Row:
    key, spark = None, ""
    if not group.children:
        (one,) = group.all
        key, peaks = one.key, [row.peak for _, row in past[one.name, one.key].rows]
        spark = charts.sparkline(peaks, one.limit or 1)
    name = group.all[0].name
    return Row(Name.of(name, key).id, group, hour(group, past), spark, child)


# A name


@dataclass(frozen=True, slots=True)
class Who:
    """The taker of a lease or a place, from its label; every field may be empty."""

    label: str
    user: str
    request: str
    host: str
    pid: str
    thread: str

    @classmethod
    def of(cls, person: Holder | Waiter) -> Who:
        fields = ("label", "user", "request", "host", "pid", "thread")
        return cls(*(str(person.label.get(field, "")) for field in fields))


@dataclass(frozen=True, slots=True)
class HolderRow:
    """A holder as shown. `reference` stands for it in forms."""

    holder: Holder
    who: Who
    reference: str
    fence: str
    age: str
    left: str


@dataclass(frozen=True, slots=True)
class WaiterRow:
    waiter: Waiter
    who: Who
    age: str


@dataclass(frozen=True, slots=True)
class Detail:
    """The page of a name. `listing`: its children, when it is a policy."""

    status: Status
    holders: tuple[HolderRow, ...]
    waiters: tuple[WaiterRow, ...]
    past: History
    chart: charts.Chart
    minutes: int
    listing: Listing | None
    sums: Sums | None = None

    @property
    def bar(self) -> charts.Bar:
        stuck = any(row.holder.stuck for row in self.holders)
        return charts.bar(self.status.in_use, self.status.limit, self.status.waiting, stuck)

    @property
    def more_holders(self) -> int:
        return max(0, self.status.holding - len(self.holders))

    @property
    def more_waiters(self) -> int:
        return max(0, self.status.waiting - len(self.waiters))

    @property
    def handed_over(self) -> str:
        """The meaning of its state, for those that need it."""
        handed = any(row.holder.state == "handed" for row in self.holders)
        return handed_over() if handed else ""

    @property
    def mean_wait(self) -> str:
        total = self.past.total
        return _mean(total.wait_seconds, total.waited)

    @property
    def mean_hold(self) -> str:
        total = self.past.total
        return _mean(total.held_seconds, total.released)

    @property
    def p_wait(self) -> str:
        return _quantiles(self.sums.waited) if self.sums else ""

    @property
    def p_hold(self) -> str:
        return _quantiles(self.sums.held) if self.sums else ""

    @property
    def only_children(self) -> bool:
        """The name itself was never used."""
        return self.listing is not None and not self.status.fence


def _quantiles(found: Quantiles) -> str:
    """Half, and 95 of a hundred, lasted less; empty when there were none."""
    if found.p50 is None or found.p95 is None:
        return ""
    return f"{duration(found.p50)}, {duration(found.p95)}"


def _mean(seconds: float, times: int) -> str:
    """Empty when it never happened."""
    if not times:
        return ""
    return duration(seconds / times)


def _between(start: datetime, end: datetime) -> str:
    return duration((end - start).total_seconds())


def find(name: str, key: str | None, rows: int = MOST_ROWS) -> Status | None:
    """The status of a name that we know, else None: a name that was never used has no page."""
    status = statuses([(name, key)], rows=rows)[0]
    return status if status.used or is_known(name, key) else None


def detail(status: Status, minutes: int, wanted: Wanted) -> Detail:
    """Everything about a name. Unavailable when Redis can't be reached."""
    past = histories_of([status], minutes=minutes)[0]
    children = listing(wanted) if status.key is None and Recent(status.name) else None
    sums = counted([status.name]).get(status.name) if children is not None else None
    if sums is not None:
        # An advised limit is for a single name: of a policy the limit is each key's.
        past = replace(sums_of([status.name], minutes=minutes)[0].history, suggested_limit=None)
    return Detail(
        status=status,
        holders=tuple(holder_row(status, holder) for holder in status.holders),
        waiters=tuple(
            WaiterRow(w, Who.of(w), _between(w.since, status.at)) for w in status.waiters
        ),
        past=past,
        chart=charts.chart(charts.steps(past.rows), None if sums else status.limit),
        sums=sums,
        minutes=minutes,
        listing=children if children and (children.found or wanted.query) else None,
    )


def holder_row(status: Status, holder: Holder) -> HolderRow:
    return HolderRow(
        holder=holder,
        who=Who.of(holder),
        reference=reference(status, holder.token),
        fence=str(holder.fence),
        age=_between(holder.since, status.at),
        left="" if holder.stuck else duration(holder.ends_in),
    )
