"""The pages of the admin have the right contents, and require the right permissions."""

from __future__ import annotations

import html
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path, resolve
from django.utils import translation

from django_redis_sync import LeaseLost, Lock, Semaphore, semaphore_required, synchronized
from django_redis_sync.admin import NameAdmin
from django_redis_sync.console import views
from django_redis_sync.models import Name
from django_redis_sync.operators.facts import Worker
from tests.behaviour.both import eventually
from tests.support import statuses as make
from tests.support.operators import locks
from tests.support.pages import LIST, Page, client_of, get, get_list, unreachable_redis
from tests.support.renewers import fresh_renewer  # noqa: F401 - a fixture
from tests.support.snapshots import as_written
from tests.support.statuses import ago, forever, holder, waiter

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.usefixtures("clean_redis"),
    pytest.mark.promise(25),
]

#: The statistics store a count and a sum of milliseconds as one number: count * PAIR + sum.
PAIR = 2**40
EVIL = "<img src=x onerror=alert(1)>"
#: Patterns of text that differs between runs, machines, or versions. Each pattern maps to a word
#: that replaces such text in a snapshot.
CHANGING = {
    r"\w{3,9}\.? \d+, \d{4}, (?:[\d:]+ [ap]\.m\.|noon|midnight)": "DATE",
    r"\b[0-9a-f]{8}\b": "ID",
    r"\b\d{16}\b": "FENCE",
    r"\b\d\d:\d\d(:\d\d)?\b": "TIME",
    r"\b(\d+ min )?[\d.]+ m?s\b": "AGE",
    rf"(\w+@)?{re.escape(os.uname().nodename)}": "HOST",
    rf"(?<!\w){os.getpid()}(?!\w)": "PID",
}

Held = Callable[..., Any]
Shown = Callable[..., Page]


@pytest.fixture
def viewer() -> Client:
    return client_of("view_locks")


@pytest.fixture
def held() -> Iterator[Held]:
    """Return a function that takes a permit and holds it until the test ends."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(Semaphore(*args, **options))


def stay_in_one_minute() -> None:
    """Wait for the next minute if less than 15 s of the current minute are left.

    Charts count events per minute. A test must end in the minute in which it began."""
    while time.time() % 60 > 45:
        time.sleep(0.1)


def lines_of(page: Page) -> list[str]:
    """Return the lines of a page for its snapshot, without the findings about the Redis server."""
    text = "\n".join(page.lines).partition("## This Redis server")[0]
    for pattern, word in CHANGING.items():
        text = re.sub(pattern, word, text)
    return text.splitlines()


def test_pages_match_the_snapshots(admin_client: Client, held: Held, fresh_renewer: None) -> None:  # noqa: F811
    """Among other things, the pages show a permanent holder, a waiter, a policy, and overrides."""
    stay_in_one_minute()
    waiting = threading.Thread(target=lambda: Semaphore("exports", 2, label="<b>").acquire())
    waiting.name = "waiter"
    held("exports", 2, timeout=math.inf, label="nightly")
    lease = held("exports", 2, label="weekly")
    for seconds in (0, 0.01, 0.01):
        assert Semaphore("exports", 2).acquire(blocking_timeout=seconds) is None
    waiting.start()
    held("api", 3, key="7")
    Lock("slow", timeout=0.05).acquire()
    time.sleep(0.1)  # the lease expires, so the next acquire gets the permit
    with suppress(LeaseLost), Lock("slow", timeout=0.05):
        time.sleep(0.1)
    locks("pause", "slow", "--reason", "the disk <b> is full")
    locks("resize", "slow", "2")
    rows = ["row-exports", "row-slow", "row-api"]  # names with problems come first in the list
    shown = eventually(lambda: [*(page := get(admin_client)).cells] == rows and page)
    as_written("list", lines_of(shown))
    as_written("name", lines_of(get(admin_client, "exports/change/")))
    as_written("confirm", lines_of(get(admin_client, "slow/act/pause/?reason=a+%26+b")))
    admin_client.post(f"{LIST}slow/act/resume/", {"reason": "mended"})
    as_written("history", lines_of(get(admin_client, "slow/history/")))
    lease.release()
    waiting.join()


@pytest.mark.parametrize(
    "address", ["", "live/", "data/", "exports/change/", "exports/live/", "exports/data/"]
)
def test_page_needs_the_view_permission_and_rejects_post(address: str) -> None:
    clients = [Client(), client_of(), client_of("view_locks"), client_of("manage_locks")]
    with Semaphore("exports", 2):
        codes = [client.get(LIST + address).status_code for client in clients]
    assert [302, 403, 200, 200] == codes
    assert 405 == clients[2].post(LIST + address).status_code
    owner: Any = getattr(resolve(LIST + address).func, "model_admin", None)
    assert isinstance(owner, NameAdmin), (
        "the view has no `model_admin`, which Django's own views have"
    )


def test_admin_index_shows_a_view_link_only_to_users_with_the_view_permission(
    viewer: Client,
) -> None:
    index = viewer.get("/admin/").content.decode()
    assert "Locks and semaphores" in index and "viewlink" in index
    assert "addlink" not in index and "changelink" not in index
    assert "Locks and semaphores" not in client_of().get("/admin/").content.decode()
    for address in ("add/", "exports/delete/"):
        assert 403 == viewer.get(LIST + address).status_code, address


# The list


def test_list_of_names_reports_unreadable_names_and_shows_the_others(
    raw: redis.Redis, viewer: Client, held: Held, settings: Any
) -> None:
    held("good", 3)
    with Lock("spoiled"):
        get_list(viewer, "row-good", "row-spoiled")
    raw.set(f"{settings.PREFIX}:{{spoiled}}:leases", "precious")
    for order in ("", "?o=-use"):
        page = get(viewer, order)
        assert "1 name can't be read, and is not shown: spoiled : " in page.text
        assert "another program's value" in page.text and ["row-good"] == [*page.cells]


#: For each query string: the names that the list must show, in this order, and the values of
#: `aria-sort` in the headings of the columns.
SORTED = {
    "?o=use": ("beta gamma alpha", ["desc"]),
    "?o=-use": ("alpha gamma beta", ["asc"]),
    "?o=name": ("alpha beta gamma", ["asc"]),
    "?o=-name": ("gamma beta alpha", ["desc"]),
    "?o=oldest": ("alpha beta gamma", ["desc"]),
    "?o=nonsense": ("alpha beta gamma", []),
    "?q=-BET": ("beta", []),
    "?q=+list-beta+": ("beta", []),
}


def test_list_of_names_can_be_searched_and_sorted(viewer: Client, held: Held) -> None:
    for name, limit in {"list-alpha": 4, "list-beta": 1, "list-gamma": 2}.items():
        held(name, limit)
    get_list(viewer, "row-list-alpha", "row-list-beta", "row-list-gamma")
    for query, (rows, order) in SORTED.items():
        page = get(viewer, query)
        assert [f"row-list-{row}" for row in rows.split()] == [*page.cells], query
        assert order == re.findall(r'aria-sort="(\w+)ending"', page.html), query
    page = get(viewer, "?q=-BET&o=use")
    kept = ('name="q" value="-BET"', 'name="o" value="use"')
    assert all(field in page.html for field in kept), "the form keeps the search"
    # Links keep the search. A second click on a header reverses the order.
    assert {"?q=-BET&o=-use", "?q=-BET&o=waiting", "?q=-BET&o=trouble"} <= {*page.links}
    assert f'data-url="{LIST}live/?q=-BET&o=use"' in html.unescape(page.html)
    assert f"No name contains “{EVIL}”" in get(viewer, f"?q={EVIL}").text


def test_each_search_of_a_page_that_refreshes_itself_finds_its_own_names(
    viewer: Client, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a page uses what this process has read within half a minute, for the same search."""
    monkeypatch.setattr("django_redis_sync.operators.reads._replies", {})

    @synchronized("paid:{pk}")
    def pay(pk: int) -> None:
        pass

    for n in (31, 32):
        held(f"live-{n}", 2, key=f"k{n}")
        pay(n)
    found = {n: {f"row-live-{n}", f"row-paid_3A{n}"} for n in (31, 32)}
    for n in found:
        get_list(viewer, *found[n], query=f"?q={n}")
        eventually(lambda n=n: get(viewer, f"live-{n}/change/").cells)

    def shown(address: str) -> set[str]:
        return {id for id in get(viewer, address).ids if id.startswith("row-")}

    for order in ("trouble", "name", "use"):
        for n, rows in found.items():
            assert rows == shown(f"live/?q={n}&o={order}"), (order, n)
    for n in found:
        assert {f"row-live-{n}_40k{n}"} == shown(f"live-{n}/live/?o=use")


def test_search_finds_the_keys_of_a_user_or_address_in_all_policies(
    viewer: Client, held: Held, rf: Any
) -> None:
    held("found-a", 3, key="4711")
    held("found-b", 3, key="4711")
    held("found-c", 3)
    users = {"row-found-a_404711", "row-found-b_404711"}

    @semaphore_required("found-b", 3, key="ip")
    def view(request: HttpRequest) -> HttpResponse:
        eventually(lambda: users == {*get(viewer, "?q=4711").cells})
        ((row, _),) = eventually(lambda: get(viewer, "?q=10.0.0.1").cells.items())
        assert row.startswith("row-found-b_40") and row not in users
        assert [row] == [*get(viewer, "found-b/change/?q=10.0.0.1").cells]
        return HttpResponse()

    assert 200 == view(rf.get("/", REMOTE_ADDR="10.0.0.1")).status_code
    assert ["row-found-b_404711"] == [*get(viewer, "?q=found-b@4711").cells]
    none = get(viewer, "found-b/change/?q=nobody")
    assert "No name contains “nobody”" in none.parts["keys"], "the section stays"
    assert "keys" not in get(viewer, "found-c/change/?q=4711").parts


def test_policy_page_has_one_row_for_each_key_of_the_policy(viewer: Client, held: Held) -> None:
    for key in "12":
        held("tenants", 3, key=key)
    get_list(viewer, "row-tenants")
    page = eventually(lambda: "all keys" in (p := get(viewer, "tenants/change/")).text and p)
    assert "2 in use, 0 waiting in all keys" in page.text and "holders" not in page.parts
    assert {"row-tenants_401", "row-tenants_402"} == {*page.cells}
    assert "2 in 2 keys" == get(viewer).cells["row-tenants"]["In use"]
    assert f"{LIST}tenants/change/" in get(viewer, "tenants_401/change/").links


def test_pages_of_a_policy_have_at_most_20_keys_and_together_each_key_once(
    viewer: Client, held: Held
) -> None:
    every = {f"k{n}" for n in range(21)}
    for key in every:
        held("tenants", 3, key=key)

    def keys_on(page: int, order: str) -> list[str]:
        found = viewer.get(f"{LIST}tenants/data/?o={order}&p={page}").json()["keys"]
        return [one["key"] for one in found["names"]]

    eventually(lambda: every == {*keys_on(1, "name"), *keys_on(2, "name")})
    for order in ("trouble", "recent", "name", "use", "oldest"):
        first, second = keys_on(1, order), keys_on(2, order)
        assert (20, 1, every) == (len(first), len(second), {*first, *second}), order
    assert 20 == len(get(viewer, "tenants/change/?o=use").cells)


def test_configured_name_has_a_page_before_it_is_used(viewer: Client) -> None:
    with override_settings(REDIS_SYNC={"SEMAPHORES": {"unused": {"limit": 2}}}):
        assert "0 / 2" == get(viewer).cells["row-unused"]["In use"]
        assert "0 of 2 in use" in get(viewer, "unused/change/").text


def test_list_of_names_shows_and_caches_findings_about_the_redis_server(
    viewer: Client, raw: redis.Redis
) -> None:
    problems, passed, fine = get(viewer).html.partition("checks passed")
    assert passed and "sync-level-warning" in problems and "sync-level-ok" in fine
    assert "sync-level-ok" not in problems and "sync-level-warning" not in fine
    before = raw.info("commandstats")["cmdstat_info"]["calls"]
    assert re.search(r"Checked (just now|\S+ s ago)", get(viewer).text)
    assert 1 == raw.info("commandstats")["cmdstat_info"]["calls"] - before, (
        "the second visit ran the checks again"
    )


# The page of a name


@pytest.mark.promise(28)
def test_name_page_shows_holders_but_not_their_tokens(viewer: Client) -> None:
    with Semaphore("exports", 3, label="nightly_report", timeout=math.inf) as lease:
        page = get(viewer, "exports/change/")
    for text in ("nightly_report", str(lease.fence), "never ends", lease.token[:8]):
        assert text in page.text
    assert lease.token not in page.html


def test_html_in_names_and_labels_is_escaped(viewer: Client, held: Held) -> None:
    held(EVIL, 2, label=EVIL)
    row = f"row-{quote(Name.of(EVIL).id)}"
    for page in (get_list(viewer, row), get(viewer, f"{row.removeprefix('row-')}/change/")):
        assert EVIL not in page.html and EVIL in page.text


NAMES = [("a", "b"), ("{x}%20", "k@1"), (EVIL, "?"), ("история ?q=1#top", None)]
NAMES += [(name, None) for name in ("a/b", "a@b", ".", "..", "%2E", "live", "a_2Fb")]


@pytest.mark.parametrize(("name", "key"), NAMES)
def test_every_valid_name_has_a_page(viewer: Client, name: str, key: str | None) -> None:
    address = quote(Name.of(name, key).id)
    assert address not in (".", ".."), "a browser would open the parent folder"
    with Semaphore(name, 2, key=key):
        (found,) = viewer.get(f"{LIST}{address}/data/").json()["names"]
        assert (name, key) == (found["name"], found["key"])
        assert f"# {found['display']}" == get(viewer, f"{address}/change/").lines[0]
        get(viewer, f"{address}/live/")


@pytest.mark.parametrize("unknown", ["unused", "%7Bx%7D:leases", "a%00b", "x" * 500, "%252F"])
def test_pages_of_an_unknown_name_are_not_found(viewer: Client, unknown: str) -> None:
    for part in ("change", "live", "data"):
        assert 404 == viewer.get(f"{LIST}{unknown}/{part}/").status_code
    if unknown not in ("unused", "%252F"):  # these two are valid names
        response = viewer.get(f"{LIST}{unknown}/history/")
        assert (302, "/admin/") == (response.status_code, response["Location"]), (
            "the redirect differs from that of other models"
        )


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """Return a function that returns the page of `exports`. The arguments of the function replace
    fields of the status that the page shows."""
    manager = client_of("manage_locks")

    def show(**state: Any) -> Page:
        status = make.status(**{"shares": (), "share_count": 0, **state})
        monkeypatch.setattr(views, "statuses", lambda *_, **__: [status])
        return get(manager, "exports/change/")

    return show


def test_name_page_explains_unusual_holders_waiters_and_limits(shown: Shown) -> None:
    text = shown(
        holders=(holder("a", 65), holder("b", state="kept"), holder("c", state="handed", fence=3)),
        waiters=(waiter("w", permits=2, waits=5), waiter("x", 2, alive=False, permits=0)),
        conflicting_limit=(4, ago(60)),
        callers_limit=3,
        holding=4,
        waiting=7,
        workers=(Worker("w1@host", 2),),
        exclusive=True,
    ).text
    assert "3 of 3 in use, 7 waiting by a writer" in text
    assert "Callers disagree on the limit: 3 now, 4 before" in text
    assert "its process is dead, the next waiter gets the permit within 5 s" in text
    assert "and 1 more ## Waiting: 7" in text
    assert "and 3 more Celery worker w1@host holds 2 more. ##" in text, "jobs are counted twice"
    assert "b released, retained by min_hold fence 1" in text
    assert "c just handed over fence 3" in text
    assert re.search(r"a fence 1 .* Since: 2026-01-31 \d\d:58:55 1 min 5 s ", text)
    assert re.search(r"Place: 1 w What: – Where: – Waits since: \S+ \S+ 5.0 s Permits: 2 ", text)
    assert re.search(r"Place: 2 x heartbeat missed .* Permits: all ", text)
    text = shown(holders=(holder("a"),), holding=1, waiters=(waiter("w"),), waiting=9).text
    assert "and 8 more" in text and "Release all…" in text and "just handed over" not in text


def test_name_page_shows_overrides_and_the_members_of_a_quorum(shown: Shown) -> None:
    text = shown(override=9, callers_limit=3, paused_since=ago(60), paused_until=ago(-600)).text
    assert "An operator set the limit to 9. The callers’ own limit is 3." in text
    assert re.search(r"paused it at \S+ \d\d:59:00\. No new permit is granted until \S+ \d", text)
    text = shown(override=9, callers_limit=None, paused_since=ago(60)).text
    assert "No new permit is granted until it is resumed." in text and "callers’ own" not in text
    assert "Resume… Set the limit… Set the rate… Reset the limit and the rate…" in text
    member = {"holders": (), "error": None, "paused": False}
    given = {"q0": {"holders": ("aaa", "bbb")}, "q1": {"error": "down"}, "q2": {"paused": True}}
    members = tuple(SimpleNamespace(alias=name, **{**member, **one}) for name, one in given.items())
    text = shown(members=members, paused_since=ago(60)).text
    assert "q0 held by aaa bbb q1 no answer q2 free paused" in text
    assert "Resume… Operators’ actions" in text, (
        "the page offers to resize a quorum, whose limit is 1"
    )


def test_numbers_in_charts_links_and_forms_are_not_localized(held: Held) -> None:
    fence = held("exports", 3).fence
    manager = client_of("manage_locks")
    with override_settings(LANGUAGE_CODE="de", USE_THOUSAND_SEPARATOR=True):
        assert 'width="33.3"' in get(manager, "exports/change/").html
        locks("resize", "exports", "3000")
        page = get(manager, "exports/change/")
        assert f"{LIST}exports/act/release/?fence={fence}" in page.links
        assert f" {fence} " in page.text and f" {os.getpid()} " in page.text
        (link,) = (link for link in page.links if "/resize/" in link)
        assert 'name="limit" value="3000"' in get(manager, link).html


# Charts


@pytest.mark.parametrize(
    ("bar", "state"),
    [
        ("calm 0", {"limit": 4, "in_use": 0}),
        ("calm 33.3", {"limit": 3, "in_use": 1}),
        ("calm 50", {"limit": 4, "in_use": 2, "waiting": 1}),
        ("busy 75", {"limit": 4, "in_use": 3}),
        ("busy 100", {"limit": 4, "in_use": 4}),
        ("full 100", {"limit": 4, "in_use": 9, "waiting": 1}),
        ("calm 100", {"limit": 1, "in_use": 1}),
        ("full 100", {"limit": 1, "in_use": 1, "waiting": 1}),
        ("busy 100", {"limit": 1, "holders": (forever(),)}),
        ("calm 100", {"limit": None, "in_use": 1}),
    ],
)
def test_usage_bar_is_marked_as_full_only_if_callers_wait(
    shown: Shown, bar: str, state: dict[str, Any]
) -> None:
    found = re.findall(r'sync-bar sync-(\w+)".*sync-fill" width="([\d.]+)"', shown(**state).html)
    assert [(*bar.split(),)] == found


@pytest.fixture
def used(raw: redis.Redis, settings: Any) -> Callable[..., None]:
    """Return a function that overwrites the statistics of the name "exports" in Redis.

    For example, the argument `{5: {"g": 3}}` means: five minutes ago, 3 grants (event g)."""

    def write(minutes: dict[int, dict[str, int]]) -> None:
        Semaphore("exports", 4).acquire().release()
        stay_in_one_minute()
        key, now = f"{settings.PREFIX}:{{exports}}:stats", int(raw.time()[0]) // 60
        fields = {
            f"{now - ago}:{what}": n for ago, each in minutes.items() for what, n in each.items()
        }
        raw.delete(key)
        raw.hset(key, mapping={**fields, "tidied": now})

    return write


def test_chart_shows_permits_in_use_and_waits_and_rejections_of_each_minute(
    viewer: Client, used: Callable[..., None]
) -> None:
    waits, holds = 3 * PAIR + 6000, 2 * PAIR + 3000
    used({2: {"p": 2, "w": waits, "n": 1}, 1: {"p": 8, "r": holds}, 59: {"g": 1}})
    page = get(viewer, "exports/change/")
    assert 'V75H580V0H590V100H600V100Z"' in page.html
    assert '<line class="sync-limit" x1="0" x2="600" y1="50" y2="50"' in page.html
    assert '<rect class="sync-wait" x="570" y="25" width="8" height="75"/>' in page.html
    assert '<rect class="sync-reject" x="570" y="0" width="8" height="25"/>' in page.html
    tops = re.findall(r'<span class="sync-top" aria-hidden="true">(\d+)', page.html)
    assert ["8", "4"] == tops, "the highest use, and the most waits and rejections"
    rows = [line.split(" | ")[1:] for line in page.lines if re.match(r"\d\d:\d\d \| \d+ \|", line)]
    assert [["2", "3", "1"], ["8", "0", "0"]] == rows, "the minutes in which something happened"
    ticks = re.findall(r"<span>(\d\d):(\d\d)</span>", page.html)
    minutes = [int(hour) * 60 + int(minute) for hour, minute in ticks]
    assert [0, 15, 30, 45] == [(each - minutes[0]) % 1440 for each in minutes]
    assert "Mean wait 2.0 s" in page.text and "Mean hold 1.5 s" in page.text
    assert "a limit of at least 8 was needed" in page.text
    listed = get_list(viewer, "row-exports")
    assert "(At most 8 at a time in the last hour)" in listed.text
    (points,) = re.findall(r'<polyline points="([^"]+)"', listed.html)
    assert points.startswith("0,22 2,22 ") and points.endswith(" 115.9,17 118,2 120,22")


def test_chart_of_a_day_has_at_most_60_intervals(viewer: Client, used: Callable[..., None]) -> None:
    used({**{ago: {"n": 1} for ago in range(0, 1440, 15)}, 300: {"p": 5, "n": 1}})
    page = get(viewer, "exports/change/?history=all")
    assert 48 == page.html.count('<rect class="sync-reject"')
    assert 48 == page.html.count('y="0" width="10" height="100"/>'), (
        "a step is not two quarters of an hour"
    )
    assert "Rejected 96" in page.text and "Highest use 5" in page.text


def test_shares_on_a_name_page_are_those_of_the_period_that_it_shows(
    viewer: Client, raw: redis.Redis, settings: Any
) -> None:
    start = raw.time()[0] // 60 // 15 * 15
    samples = {f"{start - 180}:earlier": 5, f"{start - 30}:lately": 1}
    raw.hset(f"{settings.PREFIX}:{{exports}}:samples", mapping=samples)
    for period, shown in (("", (False, True)), ("?history=all", (True, True))):
        with Semaphore("exports", 5):
            text = get(viewer, f"exports/change/{period}").text
        assert shown == ("earlier" in text, "lately" in text), period


@pytest.mark.parametrize(
    ("hours", "key", "link"), [(6, None, True), (1, None, False), (6, "7", False)]
)
def test_name_page_links_to_the_whole_history_if_the_history_exceeds_an_hour(
    viewer: Client, settings: Any, hours: int, key: str | None, link: bool
) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "STATS_HOURS": hours}
    address = f"{quote(Name.of('past', key).id)}/change/"
    with Semaphore("past", 2, key=key):
        short, whole = get(viewer, address), get(viewer, f"{address}?history=all")
    assert "The last hour" == short.parts["past-title"]
    assert link == ("?history=all" in short.links) == ("?" in whole.links)
    assert ("The last 6 hours" if link else "The last hour") == whole.parts["past-title"]


def test_json_view_returns_the_numbers_that_the_admin_pages_show(
    viewer: Client, held: Held
) -> None:
    for key in ("2", "10"):
        held("data-api", 3, key=key)
    held("data-solo", 2)

    def data(address: str) -> Any:
        return viewer.get(LIST + address).json()

    read = [{"name": "data-api", "keys": 2, "read": 2}]
    found = eventually(
        lambda: (got := data("data/?q=data-"))["found"] == 2 and got["policies"] == read and got
    )
    assert ("trouble", 1, 1) == (found["order"], found["page"], found["pages"])
    assert {"data-api@2", "data-api@10", "data-solo"} == {n["display"] for n in found["names"]}
    one = data("data-solo/data/")
    assert (1, 2, 1) == tuple(one["names"][0][part] for part in ("in_use", "limit", "holding"))
    assert 1 == one["names"][0]["recent"]["granted"] == one["found"]
    assert "keys" not in one and "keys" not in data("data-api_402/data/")
    keys = data("data-api/data/")["keys"]
    assert ["data-api@2", "data-api@10"] == [name["display"] for name in keys["names"]]


# The project's own admin


#: The `admin/base_site.html` of a project.
SITE = """{% extends "admin/base.html" %}
{% block extrastyle %}<link id="host-style">{% endblock %}
{% block extrahead %}<meta id="host-head">{% endblock %}
{% block bodyclass %}host-class{% endblock %}
{% block footer %}<p id="host-footer"></p>{% endblock %}"""


def test_admin_pages_extend_the_admin_templates_of_the_project(held: Held, settings: Any) -> None:
    (engine,) = settings.TEMPLATES
    loaders = [
        ("django.template.loaders.locmem.Loader", {"admin/base_site.html": SITE}),
        "django.template.loaders.app_directories.Loader",
    ]
    options = {"APP_DIRS": False, "OPTIONS": {**engine["OPTIONS"], "loaders": loaders}}
    settings.TEMPLATES = [{**engine, **options}]
    name, key, manager = "whole_2F/1?#", "k_40/2", client_of("manage_locks")
    held(name, 2)
    held(name, 2, key=key)
    plain, child = (f"{LIST}{quote(Name.of(name, each).id)}/" for each in (None, key))
    manager.post(f"{child}act/pause/", {"reason": "a"})
    shown = ["", *(one + end for one in (plain, child) for end in ("change/", "history/"))]
    found = {address: get(manager, address) for address in (*shown, f"{child}act/resume/")}
    with unreachable_redis():
        found["down"] = get(manager, status=503)
    for address, page in found.items():
        assert (address, sorted({*page.ids})) == (address, sorted(page.ids)), (
            "two elements have the same id"
        )
        assert (address, set()) == (address, page.referred - {*page.ids})
        host = {"host-style", "host-head", "host-footer", "logout-form"}
        assert host <= {*page.ids} and "host-class" in page.html, address
        assert bool(address) == (f'<li><a href="{LIST}">' in page.html), (
            "only the list has no breadcrumb"
        )
    links = {link for page in found.values() for link in page.links}
    links = {link for link in links if link.startswith(LIST) and "?" not in link}
    assert {f"{plain}change/", f"{child}change/", f"{child}history/"} <= links
    assert {} == {link: code for link in links if (code := manager.get(link).status_code) != 200}


@pytest.mark.parametrize(
    ("language", "english", "text"),
    [("ar", True, "1 of 3 in use"), ("zh-hans", False, "使用中 1 / 3")],
)
def test_pages_without_a_translation_have_lang_en(
    language: str, english: bool, text: str, held: Held
) -> None:
    manager = client_of("manage_locks")
    held("exports", 3)
    with override_settings(LANGUAGE_CODE=language), translation.override(language):
        found = [get(manager, one) for one in ("", "exports/change/", "exports/act/pause/")]
        with unreachable_redis():
            found.append(get(manager, status=503))
        index = manager.get("/admin/").content.decode()
    marked = re.compile(r'<div id="content-main"[^>]* lang="en" dir="ltr"')
    assert [english] * 4 == [bool(marked.search(page.html)) for page in found]
    assert text in found[1].text
    assert ("Locks and semaphores" if english else "锁与信号量") in index


own_site = admin.AdminSite(name="operations")
own_site.register(Name, NameAdmin)
urlpatterns = [path("ops/", own_site.urls), path("admin/", admin.site.urls)]


def test_links_in_a_custom_admin_site_stay_in_that_site(held: Held) -> None:
    held("elsewhere", 2)
    here = "/ops/django_redis_sync/name/"
    with override_settings(ROOT_URLCONF=__name__):
        client = client_of("manage_locks")
        page = eventually(lambda: (page := get(client, here)).cells and page)
        assert f"{here}elsewhere/change/" in page.links and f'"{here}live/"' in page.html
        assert '"/admin/' not in get(client, f"{here}elsewhere/change/").html
        response = client.post(f"{here}elsewhere/act/pause/")
        assert f"{here}elsewhere/change/" == response["Location"]
        login = Client().post(f"{here}elsewhere/act/pause/")["Location"]
        assert login.startswith("/ops/login/")


def test_page_shows_the_rate_and_the_cool_down_of_a_name(viewer: Client) -> None:
    mails = Semaphore("mails", rate="1/h")
    with mails:
        mails.cool_down(60)
    page = viewer.get(f"{LIST}{quote('mails')}/change/", follow=True)
    shown = " ".join(html.unescape(page.content.decode()).split())
    assert "1 of 1 used in the last 1 h." in shown and "Rate: next in" in shown
    assert "Cool-down until" in shown
