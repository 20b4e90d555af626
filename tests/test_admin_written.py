"""The admin's pages as they are written, part by part: texts, and the attributes by which browsers
and screen readers tell what stands where. See `tests/written`."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.paginator import Paginator
from django.template.loader import render_to_string

from django_redis_sync.console import acting, broken, charts, pages
from django_redis_sync.console.pages import Listing, Wanted
from django_redis_sync.exceptions import Unavailable
from django_redis_sync.models import Name
from django_redis_sync.operators.audit import Act
from django_redis_sync.operators.doctor import Finding
from django_redis_sync.operators.history import Counters
from django_redis_sync.operators.listing import FIGURES
from django_redis_sync.operators.status import Unread
from django_redis_sync.operators.sums import Quantiles
from tests.support import statuses as make
from tests.support.statuses import ago, forever, group, history, holder, waiter
from tests.support.written import as_written

VOID = ("br", "hr", "img", "input", "link", "meta")


class Outline(HTMLParser):
    """A line for each element and each text, each below the element it stands in; of Django's own
    frame, which differs by version, nothing."""

    OURS = {
        "id": ("content",),
        "class": ("breadcrumbs", "sync-page"),
        "href": ("/static/django_redis_sync/admin.css", "/static/admin/css/changelists.css"),
        "src": ("/static/django_redis_sync/live.js",),
    }

    def __init__(self, text: str) -> None:
        super().__init__()
        self.lines, self._open, self._told = list[str](), list[str](), 0
        self.feed(text)
        assert self._open == [], f"never closed: {self._open}"

    def _is_ours(self, tag: str, given: dict[str, str]) -> bool:
        alone = tag == "html" and "dir" not in given  # a page without Django's frame
        return alone or any(
            mark in given.get(name, "").split()
            for name, marks in self.OURS.items()
            for mark in marks
        )

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        given = {name: " ".join((value or "").split()) for name, value in attrs}
        if tag == "body" and "class" in given:
            self._tell(f'body class="{given["class"]}"')
        if not self._told and self._is_ours(tag, given):
            self._told = len(self._open) + 1
        if given.get("id") == "change-history":
            self._told = 0
        if self._told:
            self._tell(" ".join([tag, *(f'{name}="{value}"' for name, value in given.items())]))
        if tag not in VOID:
            self._open.append(tag)
        elif self._told > len(self._open):
            self._told = 0

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag == self._open.pop(), (tag, self._open)
        if self._told > len(self._open):
            self._told = 0

    def handle_data(self, data: str) -> None:
        if self._told and data.strip():
            self._tell(f"“{' '.join(data.split())}”")

    def _tell(self, line: str) -> None:
        depth = len(self._open) + 1 - self._told if self._told else 0
        self.lines.append("  " * depth + line)


LABEL = {"label": "nightly", "user": "7", "request": "r-1", "host": "web", "pid": 12, "thread": "t"}
TOTAL = Counters(
    granted=11, waited=12, rejected=13, shadow_rejected=14, timed_out=15, reclaimed=16, lost=17,
    released=18, peak=19, wait_seconds=24.0, held_seconds=54.0,
)  # fmt: skip
WRONG = Finding("acl", "error", "may not", "Refused: ZADD.", "Allow it.", ("a:1",))
FINE = Finding("time", "ok", "Clocks agree", "")
FINDINGS = {"wrong": [WRONG], "fine": [FINE, FINE]}
ACTS = {verb: f"/{verb}/" for verb in acting.VERBS}
SORT = {field: {"url": f"?{field}", "aria": f"{field}-ward"} for field in ("name", *FIGURES)}
LINKS = {"sort": SORT, "previous": "?p=1", "next": "?p=3", "recent": "?recent"}
FRAME = {"opts": Name._meta, "csrf_token": "a-token"}


def listed(
    rows: tuple[Any, ...], wanted: Wanted, unread: int = 0, compared: int | None = None
) -> Listing:
    page = Paginator(range(30 if compared else len(rows)), 10).get_page(2)
    some = [Unread("spoiled", str(n), Unavailable("no list")) for n in range(unread)]
    return Listing(rows, page, page.paginator.count, compared, wanted, tuple(some))


def rows_of_a_list() -> tuple[Any, ...]:
    busy = make.status(
        holders=(holder(held=65), holder()), waiters=(waiter(),), paused_since=make.AT, override=9
    )
    table = make.status("a/b", limit=None, holders=(forever(),), exclusive=True)
    idle = make.status("idle")
    policy = [make.status("a_p", key=key, holders=(holder(),)) for key in "12"]
    some = (busy, table, idle, *policy)
    counts = Counters(granted=2, rejected=3, timed_out=4, reclaimed=5, peak=2)
    past = {
        (one.name, one.key): history(
            one.name, one.key, *((Counters(), counts) if one != idle else ())
        )
        for one in some
    }
    *others, last = [pages._row(group(one, keys=0), past) for one in (*some[:3], policy[0])]
    return (
        *others,
        pages._row(group(*policy, keys=7), past),
        replace(last, child=True, more=5, policy="a_p", hour=None),
        replace(pages._row(group(*policy), past), more=1, policy="a_p"),
        replace(pages._row(group(policy[0], keys=1), past), child=True),
    )


def detailed(
    one: Any, minutes: int = 60, listing: Any = None, sums: Any = None, **said: Any
) -> Any:
    past = history("exports", None, Counters(), *said.pop("steps", ()), **said)
    waits = [
        pages.WaiterRow(each, pages.Who.of(each), f"{each.position} s") for each in one.waiters
    ]
    rows = tuple(pages.holder_row(one, each) for each in one.holders)
    chart = charts.chart(charts.steps(past.rows), None if sums else one.limit)
    return pages.Detail(one, rows, tuple(waits), past, chart, minutes, listing, sums)


def of_a_name(one: Any, detail: Any, **said: Any) -> dict[str, Any]:
    entry = Name.of(one.name, one.key)
    context = {"detail": detail, "status": one, "original": entry, "links": LINKS, "acts": ACTS}
    return {**FRAME, "live_url": "/live/", "findings": {}, "may_manage": False, **context, **said}


def busy_name() -> dict[str, Any]:
    one = make.status(
        limit=9, override=9, callers_limit=4, paused_since=ago(60), clash=(5, ago(90)),
        holders=(
            holder("aaa", 65, ends_in=20.0, permits=2, fence=41, label=LABEL, state="kept"),
            holder("bbb", 5, permits=0, state="handed", fence=2),
            forever("ccc"),
        ),
        waiters=(waiter("www", 1, 5.0, permits=3, label=LABEL),
                 waiter("xxx", 2, 4.0, permits=0, alive=False)),
        holding=5, waiting=7,
    )  # fmt: skip
    detail = detailed(one, total=TOTAL, suggested_limit=3, steps=(TOTAL, Counters(), TOTAL))
    return of_a_name(
        one, detail, may_manage=True, longest=6, findings=FINDINGS, policy=Name.of("api")
    )


def idle_name() -> dict[str, Any]:
    one = make.status(limit=None, override=2, callers_limit=None, kind="read/write", exclusive=True)
    detail = detailed(one, suggested_limit=3, minutes=360)
    return of_a_name(one, detail, longest=6, may_manage=True, in_english=True)


def policy_name(**said: Any) -> dict[str, Any]:
    sums: Any = SimpleNamespace(
        in_use=21, waiting=22, waited=Quantiles(0.1, 0.2), held=Quantiles(0.3, 0.4)
    )
    one = make.status("api", holders=(holder("aaa", state="handed"),), **{"fence": 0, **said})
    keys = listed(rows_of_a_list()[:1], Wanted(query="a<b", order="recent"), compared=20)
    return of_a_name(one, detailed(one, listing=keys, sums=sums), longest=1)


def children_name(**said: Any) -> dict[str, Any]:
    one = make.status("api", fence=0, **said)
    keys = listed(rows_of_a_list()[:1], Wanted())
    return of_a_name(one, detailed(one, listing=keys), may_manage=one.limit is None)


def asked(verb: str, keys: int = 0, gone: int = 0, **fields: Any) -> dict[str, Any]:
    one = make.status(holders=(holder("aaa", label=LABEL, state="handed"), forever("bbb")))
    rows = tuple(pages.holder_row(one, each) for each in one.holders)
    deed = acting.Deed(
        verb, "Really?", "It helps.", lambda author: (0, ""), "Do it", (("limit", "5"),),
        rows if verb == "release" else (), gone, keys,
    )  # fmt: skip
    context = {"deed": deed, "status": one, "original": Name.of("exports"), "title": "Really?"}
    return {**FRAME, **context, "back": "/back/", **fields}


def of_a_history(*acts: Act, **said: Any) -> dict[str, Any]:
    return {**FRAME, "object": Name.of("exports"), "acts": acts, "action_list": [], **said}


DOWN = {"broken": broken.Broken("Nobody answers.", "Start it."), **FRAME}
TRIED = {"wish": "Pause exports", "again": [("confirm", "yes"), ("reason", "a")]}
ACT = Act(ago(60), "resize", "exports", "7", "ada", "too many", 5)
ADMIN = "admin/django_redis_sync/"
PAGES: dict[str, tuple[str, Any]] = {
    "list": (ADMIN + "list", lambda: {
        "listing": listed(rows_of_a_list(), Wanted(order="use", query="a<b"), 2, 20),
        "findings": FINDINGS, "live_url": "/live/", "links": LINKS,
    }),
    "list-short": (ADMIN + "list", lambda: {
        "listing": listed(rows_of_a_list()[:1], Wanted(), 1), "findings": {"fine": [FINE]},
        "live_url": "/live/", "links": {"sort": SORT}, "in_english": True,
    }),
    "list-sought": (ADMIN + "list", lambda: {"listing": listed((), Wanted(query="a<b"))}),
    "list-empty": (ADMIN + "list", lambda: {"listing": listed((), Wanted())}),
    "name-busy": (ADMIN + "name", busy_name),
    "name-idle": (ADMIN + "name", idle_name),
    "name-one": (ADMIN + "name", lambda: of_a_name(
        one := make.status(holders=(holder("aaa"),), waiters=(waiter(),)), detailed(one),
        may_manage=True, longest=1,
    )),
    "policy": (ADMIN + "name", policy_name),
    "policy-paused": (ADMIN + "name", lambda: {
        **policy_name(paused_since=ago(5), limit=None, fence=1, override=7), "longest": 0
    }),
    "policy-of-keys": (ADMIN + "name", lambda: children_name(limit=None)),
    "policy-of-keys-paused": (ADMIN + "name", lambda: children_name(paused_since=ago(5))),
    "policy-of-keys-resized": (ADMIN + "name", lambda: children_name(override=7)),
    "confirm-release": (ADMIN + "confirm", lambda: asked("release", gone=2)),
    "confirm-pause": (ADMIN + "confirm", lambda: asked("pause", keys=2, in_english=True)),
    "confirm-resume": (ADMIN + "confirm", lambda: asked("resume", keys=1, gone=1)),
    "broken": (ADMIN + "broken", lambda: DOWN),
    "broken-act": (ADMIN + "broken", lambda: {**DOWN, **TRIED, "in_english": True}),
    "history": (ADMIN + "object_history", lambda: of_a_history(ACT)),
    "history-both": (ADMIN + "object_history", lambda: of_a_history(
        ACT, action_list=Paginator(["an entry"], 1).get_page(1)
    )),
    "history-none": (ADMIN + "object_history", lambda: of_a_history()),
    "refused": ("django_redis_sync/refused", lambda: {"message": "Wait <a> little."}),
    "history-unread": (ADMIN + "object_history", lambda: of_a_history(unread="Nobody answers.")),
}  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_written_as_it_was_read(name: str) -> None:
    template, context = PAGES[name]
    shown = render_to_string(f"{template}.html", {**FRAME, **context()})
    as_written(name, Outline(shown).lines)
