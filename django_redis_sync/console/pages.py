"""What the admin's pages show, read from Redis and put in order. No HTTP and no HTML."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.core import signing
from django.core.paginator import Page, Paginator

from ..models import Name
from ..operators.history import Counters, History, add, histories_of
from ..operators.names import Group, grouped, known_names
from ..operators.status import (
    MOST_ROWS,
    Holder,
    Status,
    Unread,
    Waiter,
    readable,
    statuses,
)
from ..operators.words import display, duration, handed_over
from . import charts

PER_PAGE = 50
#: Children of a policy that the list shows below it; the policy's own page has them all.
MOST_CHILDREN = 5
#: Children whose counters are read to sum them up.
MOST_SUMMED = 500
#: Minutes that the counters and sparklines of the list speak of.
HOUR = 60
#: Rows read where an action must find a holder that some page showed.
ALL_ROWS = 100_000

Pair = tuple[str, str | None]


def reference(status: Status, token: str) -> str:
    """What a form says for a holder: only we can make it, and nobody can read the token in it."""
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

    `limit`: None where it can't be told, and for a policy, whose limit is each child's.
    `hour`: what happened in the last HOUR minutes, None where that is too much to sum up;
    `more`, after the last child shown: those of its `policy` that are not.
    """

    id: str
    title: str
    in_use: int
    limit: int | None
    waiting: int
    since: datetime | None
    age: str
    paused: bool
    resized: bool
    stuck: bool
    hour: Counters | None
    spark: str
    children: int = 0
    child: bool = False
    policy: str = ""
    more: int = 0

    @property
    def bar(self) -> charts.Bar:
        return charts.bar(self.in_use, self.limit, self.waiting)


def _since(statuses: Iterable[Status]) -> datetime | None:
    """When the oldest of the holders got in."""
    return min((h.since for status in statuses for h in status.holders), default=None)


def _fullness(group: Group) -> tuple[float, int]:
    return max((s.in_use / s.limit for s in group.all if s.limit), default=0.0), group.in_use


def _age(group: Group) -> float:
    since = _since(group.all)
    return -since.timestamp() if since else -math.inf


#: How the list can be sorted, apart from by name: the largest first.
ORDERS: dict[str, Callable[[Group], Any]] = {
    "use": _fullness,
    "waiting": lambda group: group.waiting,
    "oldest": _age,
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a visitor asked the list for. `policy`: only the children of this name."""

    query: str = ""
    order: str = "name"
    page: str = "1"
    policy: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of the list."""

    rows: tuple[Row, ...]
    page: Page[Any]
    found: int
    wanted: Wanted
    unread: tuple[Unread, ...] = ()

    @property
    def in_use(self) -> int:
        return sum(row.in_use for row in self.rows if not row.child)

    @property
    def waiting(self) -> int:
        return sum(row.waiting for row in self.rows if not row.child)


def listing(wanted: Wanted) -> Listing:
    """The rows of one page. Unavailable when Redis can't be reached."""
    pairs = [pair for pair in known_names() if _matches(pair, wanted)]
    keyed: dict[Any, list[Pair]] = {}
    for pair in sorted(pairs, key=lambda pair: (pair[0].casefold(), pair[0], pair[1] or "")):
        keyed.setdefault(pair if wanted.policy is not None else pair[0], []).append(pair)
    blocks: list[list[Pair]] = list(keyed.values())
    page: Page[Any]
    field = wanted.order.lstrip("-")
    if field in ORDERS:
        groups, unread = _groups(blocks)
        groups.sort(key=ORDERS[field], reverse=not wanted.order.startswith("-"))
        page = Paginator(groups, PER_PAGE).get_page(wanted.page)
        shown = list(page)
    else:
        if wanted.order == "-name":
            blocks.reverse()
        page = Paginator(blocks, PER_PAGE).get_page(wanted.page)
        shown, unread = _groups(list(page))
    rows = tuple(_rows(shown, wanted.policy is not None))
    return Listing(rows, page, len(pairs), wanted, tuple(unread))


def _matches(pair: Pair, wanted: Wanted) -> bool:
    name, key = pair
    if wanted.policy is not None and (name != wanted.policy or key is None):
        return False
    return wanted.query.casefold() in display(name, key).casefold()


def _groups(blocks: Sequence[Sequence[Pair]]) -> tuple[list[Group], list[Unread]]:
    found, unread = readable([pair for block in blocks for pair in block])
    by_pair = {(one.name, one.key): one for one in found}
    read = ([by_pair[pair] for pair in block if pair in by_pair] for block in blocks)
    return [group for block in read for group in grouped(block)], unread


def _rows(groups: Sequence[Group], flat: bool) -> Iterable[Row]:
    shown = [(group, _children(group)) for group in groups]
    told = [s for group, children in shown for s in _told(group, children, flat)]
    past = {(one.name, one.key): one for one in histories_of(told, minutes=HOUR)}
    for group, children in shown:
        if flat or not children:
            yield from (_row(status, past) for status in group.all)
        else:
            yield _policy_row(group, past)
            rows = [_row(status, past, child=True) for status in children]
            more = len(group.children) - len(rows)
            yield from (*rows[:-1], replace(rows[-1], more=more, policy=Name.of(group.name).id))


def _children(group: Group) -> list[Status]:
    """Those that the list shows: where most wait, then where most are in."""
    return sorted(group.children, key=lambda s: (-s.waiting, -s.in_use))[:MOST_CHILDREN]


def _told(group: Group, children: list[Status], flat: bool) -> Iterable[Status]:
    """Those whose history is read: to sum up a policy takes all of its children's."""
    return group.all if flat or len(group.all) <= MOST_SUMMED else children


def _row(status: Status, past: dict[Pair, History], child: bool = False) -> Row:
    found = past[status.name, status.key]
    since = _since([status])
    return Row(
        id=Name.of(status.name, status.key).id,
        title=status.display,
        in_use=status.in_use,
        limit=status.limit,
        waiting=status.waiting,
        since=since,
        age=duration((status.at - since).total_seconds()) if since else "",
        paused=status.paused,
        resized=status.override is not None,
        stuck=any(holder.stuck for holder in status.holders),
        hour=found.total,
        spark=charts.sparkline([row.peak for _, row in found.rows], status.limit or 1),
        child=child,
    )


def _policy_row(group: Group, past: dict[Pair, History]) -> Row:
    since = _since(group.all)
    hours = [past[s.name, s.key].total for s in group.all if (s.name, s.key) in past]
    return Row(
        id=Name.of(group.name).id,
        title=group.name,
        in_use=group.in_use,
        limit=None,
        waiting=group.waiting,
        since=since,
        age=duration((group.all[0].at - since).total_seconds()) if since else "",
        paused=group.paused,
        resized=any(status.override is not None for status in group.all),
        stuck=any(holder.stuck for status in group.all for holder in status.holders),
        hour=add(hours) if len(hours) == len(group.all) else None,
        spark="",
        children=len(group.children),
    )


# One name


@dataclass(frozen=True, slots=True)
class Who:
    """Who took a lease or a place, as its label says; every field may be empty."""

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

    @property
    def bar(self) -> charts.Bar:
        return charts.bar(self.status.in_use, self.status.limit, self.status.waiting)

    @property
    def more_holders(self) -> int:
        return max(0, self.status.holding - len(self.holders))

    @property
    def more_waiters(self) -> int:
        return max(0, self.status.waiting - len(self.waiters))

    @property
    def handed_over(self) -> str:
        """What that means, where it is said of a holder."""
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
    def only_children(self) -> bool:
        """Nobody ever used the name itself."""
        return self.listing is not None and not self.status.fence


def _mean(seconds: float, times: int) -> str:
    """Empty when it never happened."""
    if not times:
        return ""
    return duration(seconds / times)


def find(name: str, key: str | None, rows: int = MOST_ROWS) -> Status | None:
    """The status of a name that we know, else None: what was never used has no page."""
    status = statuses([(name, key)], rows=rows)[0]
    if status.used or any(_is_of(pair, name, key) for pair in known_names()):
        return status
    return None


def _is_of(pair: Pair, name: str, key: str | None) -> bool:
    """Whether this is the name, or a child of it where the policy is asked for."""
    return pair[0] == name and key in (None, pair[1])


def detail(status: Status, minutes: int, wanted: Wanted) -> Detail:
    """Everything about a name. Unavailable when Redis can't be reached."""
    past = histories_of([status], minutes=minutes)[0]
    children = listing(wanted) if status.key is None else None
    return Detail(
        status=status,
        holders=tuple(holder_row(status, holder) for holder in status.holders),
        waiters=tuple(
            WaiterRow(w, Who.of(w), duration((status.at - w.since).total_seconds()))
            for w in status.waiters
        ),
        past=past,
        chart=charts.chart(charts.steps(past.rows), status.limit),
        minutes=minutes,
        listing=children if children and (children.found or wanted.query) else None,
    )


def holder_row(status: Status, holder: Holder) -> HolderRow:
    return HolderRow(
        holder=holder,
        who=Who.of(holder),
        reference=reference(status, holder.token),
        fence=str(holder.fence),
        age=duration((status.at - holder.since).total_seconds()),
        left="" if holder.stuck else duration(holder.ends_in),
    )
