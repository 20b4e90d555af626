"""The content of the admin pages, read from Redis, without HTTP and HTML."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.core.paginator import Page, Paginator

from .. import conf
from ..limits.identity import possible_keys
from ..models import Name
from ..operators import doctor
from ..operators.facts import Holder, Status, Unread
from ..operators.families import families
from ..operators.formats import (
    advice,
    as_json,
    cool_down_text,
    duration,
    handed_over,
    local,
    moment,
    parts,
    rate_text,
)
from ..operators.groups import Group
from ..operators.history import heaviest_shares, histories_of
from ..operators.listing import FIGURES, Past, Selection, hour, keys_like, since
from ..operators.names import Recent
from ..operators.statistics import Quantiles, counted
from ..operators.status import readable
from . import charts

#: Max rows per page: in a list of names, and in a list of a policy's keys. With these numbers, a
#: refresh sends at most 60 commands to Redis.
PER_PAGE, KEYS_PER_PAGE = 25, 20
#: Max names that are read to sort a list by a figure, such as the number of waiters.
MAX_COMPARED = 60
#: Max keys, of all policies together, in the result of a search.
MAX_FOUND_KEYS = 20
#: Max holders, and max waiters, that the confirmation page of an action reads. This number is so
#: large that the page finds every holder.
ALL_ROWS = 100_000
#: Minutes of history on the page of a name, by default.
SHORT = 60
#: Seconds for which the findings of the doctor are cached.
HEALTH_LIFETIME = 60

Context = dict[str, Any]


class Moment(NamedTuple):
    """A time, with two texts for the page: the time, and how long ago it was."""

    at: datetime
    clock: str
    age: str


def with_age(at: datetime, now: datetime) -> Moment:
    """Return the Moment for the time `at`, with its age at the time `now`."""
    return Moment(local(at), moment(at), duration((now - at).total_seconds()))


# The list


class Wanted(NamedTuple):
    """The query parameters of a page. `query`: the text to search for. `order`: see `Selection`.
    `policy`: list only the keys of this policy. `history`: "all", or "" for the last hour."""

    query: str = ""
    order: str = ""
    page: str = "1"
    policy: str | None = None
    history: str = ""


def listing(wanted: Wanted) -> Context:
    """Return the template context for a page of the list of names or keys. Raise Unavailable if
    Redis can't be reached."""
    selection, page, groups, unread = _select(wanted)
    rows = [_row(one, selection.past) for group in groups for one in _units(group, wanted)]
    if wanted.query and wanted.policy is None:
        rows = [*_rows_of_keys(wanted.query), *rows]
    return {
        "rows": rows,
        "page": page,
        "unread": unread,
        "selection": selection,
        "in_use": sum(row["group"].in_use for row in rows),
        "waiting": sum(row["group"].waiting for row in rows),
        "query": wanted.query,
        "links": _links(wanted, selection.order, page),
    }


def data(wanted: Wanted) -> Context:
    """Return a page of the list of names or keys, as a dict for JSON."""
    selection, page, groups, unread = _select(wanted)
    pages = {"page": page.number, "pages": page.paginator.num_pages, "order": selection.order}
    return {**pages, **as_json(groups, unread, selection.past, selection)}


def data_of(status: Status, wanted: Wanted) -> Context:
    """Return the status and history of a name for JSON. If the name is a policy, `keys` has a page
    of the policy's keys."""
    past = {(one.name, one.key): one for one in histories_of([status])}
    found = as_json([Group(status.name, status, ())], [], past, None)
    if status.key is None and Recent(status.name):
        found["keys"] = data(wanted)
    return found


def _select(wanted: Wanted) -> tuple[Selection, Page[Any], list[Group], list[Unread]]:
    alike = possible_keys(wanted.query) if wanted.query and wanted.policy is not None else ()
    selection = Selection(
        wanted.order, query=wanted.query, alike=alike, policy=wanted.policy, limit=MAX_COMPARED
    )
    rows = PER_PAGE if wanted.policy is None else KEYS_PER_PAGE
    page: Page[Any] = Paginator(range(selection.readable), rows).get_page(wanted.page)
    groups, unread = selection.read(max(0, page.start_index() - 1), page.end_index())
    return selection, page, groups, unread


def _units(group: Group, wanted: Wanted) -> list[Group]:
    """Return one group for each row of the list. In the list of names, a policy with its keys is a
    row. In the list of a policy's keys, each key is a row."""
    if (group.children or group.is_family) and wanted.policy is None:
        return [group]
    return [Group.alone(status) for status in group.all]


def _rows_of_keys(query: str) -> Iterator[Context]:
    """Yield a row for each known key that the text `query` may mean: a key, a user's primary key,
    an address, or a value that a policy's callable returned. If the text has the form POLICY@KEY,
    yield only rows of POLICY."""
    policy, at, key = query.partition("@")
    pairs = keys_like(possible_keys(key if at and policy else query))[:MAX_FOUND_KEYS]
    found, _ = readable(pairs)
    past = {(one.name, one.key): one for one in histories_of(found)}
    yield from (_row(Group.alone(one), past) for one in found if not at or one.name == policy)


def _row(group: Group, past: Past) -> Context:
    """Return a row of a list. It shows a name, a policy with the sums of its keys, or a key."""
    first, oldest, spark = group.all[0], since(group.all), ""
    longest = group.longest_waiting
    waits = min((waiter.since for status in group.all for waiter in status.waiters), default=None)
    # The limit of a policy applies to each of its keys separately, not to their sum.
    limit = None if group.keys else group.limit
    permanent = any(holder.permanent for status in group.all for holder in status.holders)
    if not group.children:
        peaks = [counters.peak for _, counters in past[first.name, first.key].rows]
        spark = charts.sparkline(peaks, limit or 1)
    return {
        "id": (Name.of(group.name) if group.children else Name.of(first.name, first.key)).id,
        "group": group,
        "limit": limit,
        "longest": longest
        and {"id": Name.of(longest.name, longest.key).id, "name": longest.display},
        "bar": charts.bar(group.in_use, limit, group.waiting, permanent),
        "permanent": permanent,
        "resized": any(status.resized for status in group.all),
        "oldest": oldest and with_age(oldest, first.at),
        "waits_for": waits and duration((first.at - waits).total_seconds()),
        # The counts of the last hour. None if the counts of some of the policy's keys are unknown.
        "hour": hour(group, past),
        "spark": spark,
    }


def _links(wanted: Wanted, order: str, page: Page[Any]) -> Context:
    """Return the URLs of the links that sort the list, and of those to the previous and the next
    page. Each URL keeps the search text and the history of the current page."""
    kept = {"history": wanted.history} if wanted.history else {}
    kept |= {"q": wanted.query} if wanted.query else {}

    def link(**changes: Any) -> str:
        return "?" + urlencode({**kept, **changes})

    sort = {}
    for field in ("name", *FIGURES):
        # The first click on the column of names sorts from A to Z. The first click on the column of
        # a figure sorts from the largest number down.
        down = (field == "name") == order.startswith("-")
        direction = "descending" if down else "ascending"
        sort[field] = {
            "url": link(o=f"-{field}" if order == field else field),
            "aria": direction if order.lstrip("-") == field else "none",
        }
    return {
        "sort": sort,
        "recent": link(o="recent"),
        "trouble": link(o="trouble"),
        "previous": link(o=order, p=page.number - 1) if page.has_previous() else "",
        "next": link(o=order, p=page.number + 1) if page.has_next() else "",
    }


# A name


def detail(status: Status, wanted: Wanted) -> Context:
    """Return the content of the page of a name. Raise Unavailable if Redis can't be reached."""
    longest = max(SHORT, conf.current().keep(status.key))
    minutes = longest if wanted.history == "all" else SHORT
    keys = sums = None
    if status.key is None:
        keys = listing(wanted._replace(history="all" if minutes > SHORT else ""))
        if not keys["selection"].found and not (wanted.query and Recent(status.name)):
            keys = None
    if keys is not None:
        sums = counted([status.name], minutes=minutes).get(status.name)
    past = sums.history if sums else histories_of([status], minutes=minutes)[0]
    holders = [holder_row(status, holder) for holder in status.holders]
    permanent = any(holder.permanent for holder in status.holders)
    handed = any(holder.state == "handed" for holder in status.holders)
    # True if this name was used only with keys, never without a key.
    only_keys = keys is not None and not status.fence
    return {
        "holders": holders,
        "more_holders": max(0, status.holding - len(holders)),
        "last_shown": holders[-1]["fence"] if holders else "",
        "handed_over": handed_over() if handed else "",
        "waiters": [{"waiter": w, "since": with_age(w.since, status.at)} for w in status.waiters],
        "more_waiters": max(0, status.waiting - len(status.waiters) - status.held),
        "more_shares": max(0, status.share_count - len(status.shares)),
        "disagreed_at": status.conflicting_limit and local(status.conflicting_limit[1]),
        "paused_since": status.paused_since and moment(status.paused_since),
        "paused_until": status.paused_until and moment(status.paused_until),
        "rate": status.rate and rate_text(status.rate, only_keys),
        "cool_down": status.cool_down and cool_down_text(status.cool_down),
        "bar": charts.bar(status.in_use, status.limit, status.waiting, permanent),
        "listing": keys,
        "is_family": status.key is None and status.name in families(),
        "statistics": sums,
        "only_keys": only_keys,
        "past": past,
        "share_history": _share_history(status, minutes),
        "advice": advice(past, [status], status.limit),
        "minutes": minutes,
        "longest": longest // 60 if longest > SHORT else 0,
        "chart": charts.chart(past.rows, None if sums else status.limit),
        "mean_wait": _mean(past.total.wait_seconds, past.total.waited),
        "mean_hold": _mean(past.total.held_seconds, past.total.released),
        "most_waits": _bounds(sums.waited) if sums else "",
        "most_holds": _bounds(sums.held) if sums else "",
    }


def _share_history(status: Status, minutes: int) -> list[tuple[str, str]]:
    """Return the heaviest shares for each quarter of an hour as pairs of texts, newest first."""
    found = heaviest_shares(status.name, status.key, minutes=minutes)
    return [(moment(at), parts(shares)) for at, shares in reversed(found)]


def holder_row(status: Status, holder: Holder) -> Context:
    return {
        "holder": holder,
        "fence": str(holder.fence),  # a str, so that templates don't localize it in links
        "since": with_age(holder.since, status.at),
        "left": "" if holder.permanent else duration(holder.ends_in),
    }


def _bounds(found: Quantiles) -> str:
    """Return a text with upper bounds of the median and of the 95th percentile, or "" if there are
    no values."""
    if found.p50 is None or found.p95 is None:
        return ""
    return f"{duration(found.p50)}, {duration(found.p95)}"


def _mean(seconds: float, times: int) -> str:
    return duration(seconds / times) if times else ""


# The server


#: For each cache: the time of the last examination, and its findings.
_examined: dict[str, tuple[float, list[doctor.Finding]]] = {}


def health() -> Context:
    """Return the findings of the doctor. They are cached for HEALTH_LIFETIME seconds, because an
    examination sends more commands to Redis than the list of names needs."""
    place, now = conf.current().prefix(conf.current().cache), time.monotonic()
    if place not in _examined or now - _examined[place][0] > HEALTH_LIFETIME:
        _examined[place] = now, [*doctor.examine()]
    at, findings = _examined[place]
    return {
        "problems": [finding for finding in findings if finding.level != "ok"],
        "fine": [finding for finding in findings if finding.level == "ok"],
        "age": duration(now - at) if now - at >= 1 else "",
    }
