"""What the admin's pages make of statuses, and how it is drawn: without a server or a request."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from django.contrib import messages
from django.core.exceptions import ImproperlyConfigured
from django.http import QueryDict
from django.template.loader import render_to_string
from django.utils import translation

from django_redis_sync.console import acting, broken, charts, pages, views
from django_redis_sync.console.charts import Bar, Step
from django_redis_sync.console.pages import Listing, Wanted
from django_redis_sync.operators.doctor import Finding
from django_redis_sync.operators.history import Counters
from django_redis_sync.operators.listing import FIGURES
from django_redis_sync.operators.sums import Quantiles
from tests.support import statuses as make
from tests.support.statuses import ago, forever, group, history, holder, waiter

# Rows


def row(one: Any, **said: Any) -> Any:
    past = {(one.name, one.key): history(one.name, one.key, Counters(granted=2, peak=1))}
    return pages._row(group(one, keys=0), past, **said)


def test_a_row_tells_a_name() -> None:
    found = row(
        make.status(
            holders=(holder(held=5), holder(held=65)),
            waiters=(waiter(),),
            paused_since=make.AT,
            override=9,
        )
    )
    assert (3, "1 min 5 s", ago(65)) == (found.limit, found.age, found.since)
    assert (True, False, 2) == (found.resized, found.stuck, found.hour.granted)
    idle = row(make.status(holders=(forever(),)))
    assert (False, True, "busy") == (
        idle.resized,
        idle.stuck,
        row(make.status(limit=1, holders=(forever(),))).bar.level,
    )


def test_a_line_is_drawn_of_peaks_as_high_as_the_limit_allows() -> None:
    counts = [Counters(granted=9, peak=peak) for peak in (0, 2, 4)]
    past = {("exports", None): history("exports", None, *counts)}
    for limit, spark in (
        (4, "0,22 60,12 120,2"),
        (8, "0,22 60,17 120,12"),
        (None, "0,22 60,12 120,2"),
    ):
        assert spark == pages._row(group(make.status(limit=limit), keys=0), past).spark


def test_a_policy_stands_above_the_keys_for_which_most_wait() -> None:
    some = [
        make.status(key="idle"),
        make.status(key="busy", holders=(holder(), holder())),
        make.status(key="waited", holders=(holder(),), waiters=(waiter(),)),
        *[make.status(key=f"k{n}") for n in range(5)],
    ]
    past = {(one.name, one.key): history(one.name, one.key, Counters()) for one in some}
    policy, *children = pages._rows([group(*some, keys=20)], past, flat=False)
    assert ["waited", "busy", "idle", "k0", "k1"] == [one.group.all[0].key for one in children]
    assert [0, 0, 0, 0, 15] == [one.more for one in children]
    assert [False, *[True] * 5] == [one.child for one in (policy, *children)]
    assert (3, 1, 20) == (policy.group.in_use, policy.group.waiting, policy.group.keys)
    assert (None, 3) == (policy.limit, children[0].limit)
    assert len(some) == len([*pages._rows([group(*some)], past, flat=True)])


def test_a_list_counts_each_permit_once() -> None:
    rows = [
        row(make.status(holders=(holder(),))),
        row(make.status(holders=(holder(),)), child=True),
    ]
    found = Listing(tuple(rows), None, 2, None, Wanted())  # type: ignore[arg-type]
    assert (1, 0) == (found.in_use, found.waiting)


@pytest.mark.parametrize("stuck", [0, 1, 2])
def test_a_page_marks_its_bar_where_any_holder_never_ends(stuck: int) -> None:
    holders = tuple(forever(f"f{n}") if n < stuck else holder(f"h{n}") for n in range(2))
    one = make.status(holders=holders, limit=None, kind="read/write")
    rows = tuple(pages.holder_row(one, each) for each in one.holders)
    page: Any = pages.Detail(one, rows, (), history("exports", None), None, 60, None)  # type: ignore[arg-type]
    assert ("busy" if stuck else "calm") == page.bar.level


def test_a_page_of_a_name_says_how_many_are_not_shown_and_means() -> None:
    past = history(
        "exports",
        None,
        Counters(waited=2, wait_seconds=6.0, released=4, held_seconds=20.0),
    )
    found = pages.Detail(
        make.status(holding=9, waiting=5, holders=()),
        (pages.holder_row(make.status(), holder(state="handed")),),
        (),
        past,
        None,  # type: ignore[arg-type]
        60,
        None,
    )
    sums: Any = SimpleNamespace(waited=Quantiles(0.5, 2.0), held=Quantiles(None, None))
    assert ("", "") == (found.p_wait, found.p_hold)
    known = replace(found, sums=sums)
    assert ("500 ms, 2.0 s", "") == (known.p_wait, known.p_hold)
    assert (8, 5, "3.0 s", "5.0 s") == (
        found.more_holders,
        found.more_waiters,
        found.mean_wait,
        found.mean_hold,
    )
    assert "handed over" in found.handed_over
    none = replace(found, status=make.status(holding=1))
    assert (0, 0) == (none.more_holders, none.more_waiters)
    gone = replace(found, status=make.status(holding=0))  # as when it was read once more
    assert 0 == gone.more_holders
    assert "" == replace(found, holders=()).handed_over
    policy: Any = replace(found, listing=SimpleNamespace())
    assert [True, False] == [
        replace(policy, status=make.status(fence=fence)).only_children for fence in (0, 1)
    ]
    assert not found.only_children


def test_a_form_names_a_holder_by_a_mark_of_this_name_only() -> None:
    mine, other = make.status(holders=(holder("a"), holder("b"))), make.status("imports")
    marks = [pages.reference(mine, "a-token")]
    assert ["a"] == [one.id for one in pages.referred(mine, marks)]
    assert [] == pages.referred(mine, ["a-token", pages.reference(other, "a-token")])


def test_a_page_begins_where_the_last_one_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []

    class Selection:
        readable, found, compared, order, past = 120, 120, None, "name", {}

        def __init__(self, *_: Any, **__: Any) -> None: ...

        def read(self, start: int, stop: int) -> Any:
            read.append((start, stop))
            return [], []

    monkeypatch.setattr(pages, "Selection", Selection)
    for number in ("1", "2", "3", "9", "x"):
        pages._select(Wanted(page=number))
    assert [(0, 50), (50, 100), (100, 120), (100, 120), (0, 50)] == read


# Links


def test_links_keep_the_search_and_turn_the_order() -> None:
    page = pages.Paginator(range(120), 50).get_page(2)
    listing = Listing((), page, 120, None, Wanted(query="a b", order="use", page="2"))
    links = views._links(listing, {"history": "all"})
    assert "?history=all&q=a+b&o=use&p=1" == links["previous"]
    assert "?history=all&q=a+b&o=use&p=3" == links["next"]
    assert "?history=all&q=a+b&o=-use" == links["sort"]["use"]["url"]
    assert "?history=all&q=a+b&o=waiting" == links["sort"]["waiting"]["url"]
    assert "descending" == links["sort"]["use"]["aria"]
    assert "none" == links["sort"]["waiting"]["aria"]


@pytest.mark.parametrize(
    ("number", "previous", "following"), [(1, "", "?p=2"), (2, "?p=1", "?p=3"), (3, "?p=2", "")]
)
def test_before_the_first_page_and_behind_the_last_there_is_none(
    number: int, previous: str, following: str
) -> None:
    page = pages.Paginator(range(120), 50).page(number)
    links = views._links(Listing((), page, 120, None, Wanted()), {})
    told = [one.replace("o=&", "") for one in (links["previous"], links["next"])]
    assert [previous, following] == told


@pytest.mark.parametrize("field", ["name", *FIGURES])
def test_a_list_that_is_sorted_by_a_column_is_turned_by_it_each_time(field: str) -> None:
    page = pages.Paginator(range(1), 1).page(1)
    first = "ascending" if field == "name" else "descending"
    for order, other, aria in ((field, f"-{field}", first), (f"-{field}", field, None)):
        sort = views._links(Listing((), page, 1, None, Wanted(order=order)), {})["sort"]
        turned = "descending" if field == "name" else "ascending"
        assert (f"?o={other}", aria or turned) == (sort[field]["url"], sort[field]["aria"])
        assert {"none"} == {one["aria"] for name, one in sort.items() if name != field}


# Drawings


@pytest.mark.parametrize(
    ("said", "bar"),
    [
        ((0, 4), Bar("0", "calm")),
        ((2, 4), Bar("50", "calm")),
        ((3, 4), Bar("75", "busy")),
        ((4, 4), Bar("100", "busy")),
        ((4, 4, 1), Bar("100", "full")),
        ((9, 4, 1), Bar("100", "full")),
        ((9, 4), Bar("100", "busy")),
        ((2, 4, 1), Bar("50", "calm")),
        ((1, 1), Bar("100", "calm")),
        ((1, 1, 1), Bar("100", "full")),
        ((1, 1, 0, True), Bar("100", "busy")),
        ((1, None), Bar("100", "calm")),
        ((0, None), Bar("0", "calm")),
    ],
)
def test_a_bar_is_loud_only_where_somebody_waits(said: Any, bar: Bar) -> None:
    assert bar == charts.bar(*said)


def test_minutes_are_put_together_by_their_highest_peak_and_their_sums() -> None:
    rows = [
        (make.AT + timedelta(minutes=n), Counters(peak=n % 7, waited=1, rejected=1, timed_out=1))
        for n in range(361)
    ]
    found = charts.steps(rows)
    assert 52 == len(found)  # of seven minutes each
    assert Step(rows[0][0], peak=6, waited=7, turned_away=14) == found[0]
    assert 60 == len(charts.steps(rows[:60]))
    assert () == charts.steps([])


@pytest.mark.parametrize(
    ("length", "ticks"),
    [(1, [0]), (3, [0, 1, 2]), (5, [0, 1, 2, 3, 4]), (60, [0, 15, 30, 45]), (0, [])],
)
def test_a_chart_has_some_times_below_it(length: int, ticks: list[int]) -> None:
    some = [Step(ago(60 * (length - n)), 1, 0, 0) for n in range(length)]
    assert [some[n].start for n in ticks] == [*charts.chart(some, None).ticks]


def test_a_chart_has_the_limit_as_a_line_and_rejections_above_waits() -> None:
    found = charts.chart([Step(make.AT, 2, 3, 1), Step(make.AT, 8, 0, 0)], limit=4)
    assert (8, "50") == (found.use_top, found.limit_y)
    assert "M0 100V75H300V0H600V100Z" == found.use
    (waits,), (rejections,) = found.waits, found.rejections
    assert ("0", "25", "75") == (waits.x, waits.y, waits.height)
    assert ("0", "0", "25") == (rejections.x, rejections.y, rejections.height)
    assert {"240"} == {waits.width, rejections.width}  # of 300: one is told from the next
    assert charts.chart([], None).limit_y is None
    once = charts.chart([Step(make.AT, 1, 1, 0)], None)
    assert (1, 1, "100") == (once.use_top, once.count_top, once.waits[0].height)
    assert ("0", "480") == (once.waits[0].x, once.waits[0].width)
    later = charts.chart([Step(make.AT), Step(make.AT), Step(make.AT, 0, 1, 1)], None)
    assert ["400"] * 2 == [later.waits[0].x, later.rejections[0].x]


# Acts


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acting, "count_keys", lambda names: dict.fromkeys(names, 0))


def form(**fields: Any) -> QueryDict:
    made = QueryDict(mutable=True)
    for name, value in fields.items():
        made.setlist(name, value if isinstance(value, list) else [value])
    return made


def test_acts_that_take_something_back_are_harmless() -> None:
    harmless = {
        verb: acting.prepare(verb, make.status(), form(limit="5")).harmless
        for verb in ("pause", "resume", "resize", "reset")
    }
    assert {"pause": False, "resume": True, "resize": False, "reset": True} == harmless


def test_what_was_typed_is_what_is_confirmed() -> None:
    deed = acting.prepare("resize", make.status(), form(limit=" 5 "))
    assert (("limit", "5"),) == deed.fields
    assert deed.title == "Set the limit of exports to 5?"


@pytest.mark.parametrize("given", ["0", "-1", "", "x", "1.5", str(2**31)])
def test_a_limit_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="whole number"):
        acting.prepare("resize", make.status(), form(limit=given))


def test_those_chosen_are_released_and_those_shown_are_cleared() -> None:
    mine = make.status(holders=(holder("a"), holder("b")))
    first, second = (pages.reference(mine, f"{id}-token") for id in "ab")
    fields = form(holder=[first], shown=[first, second, "gone", first])
    released = acting.prepare("release", mine, fields)
    cleared = acting.prepare("clear", mine, fields)
    assert (["a"], 0) == ([one.holder.id for one in released.holders], released.gone)
    assert (["a", "b"], 1) == ([one.holder.id for one in cleared.holders], cleared.gone)
    assert (("holder", first),) == released.fields  # as they are read again when confirmed
    assert (("shown", first), ("shown", second)) == cleared.fields


@pytest.mark.parametrize(("done", "level"), [(True, messages.SUCCESS), (False, messages.WARNING)])
def test_that_nobody_was_there_any_more_is_no_success(
    done: bool, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [SimpleNamespace(id="a", done=done), SimpleNamespace(id="b", done=False)]
    monkeypatch.setattr(acting.actions, "clear", lambda status, tokens, **author: answers)
    mine = make.status(holders=(holder("a"), holder("b")))
    said = acting._evict(mine, [*mine.holders], acting.Author(by="ada", reason=""))
    assert level == said[0]
    assert done == ("Released 1 holder of exports: a." == said[1])


# Errors


def test_nobody_is_told_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(own: Any, request: Any) -> Any:
        raise views.Broken("Error at redis://me:s3cret@h:1/0", "mend it")

    shown: list[Any] = []
    monkeypatch.setattr(views, "_render", lambda *args, **said: shown.append(args[3]["broken"]))
    own = SimpleNamespace(has_view_permission=lambda request: True)
    request: Any = SimpleNamespace(method="GET")
    for name in ("data_list", "list_page"):
        fail.__name__ = name
        shown.append(views.page("GET")(fail)(own, request))  # type: ignore[arg-type]
    reply, broken, _ = shown
    assert 503 == reply.status_code
    for said in (reply.content.decode(), broken.said):
        assert "***@h:1/0" in said and "s3cret" not in said


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ImproperlyConfigured("There is no such alias."), "There is no such alias."),
        (KeyError("s3cret"), "The connection settings can’t be used (KeyError)."),
        (redis.ConnectionError("refused"), "refused"),
    ],
    ids=["ours", "theirs", "Redis"],
)
def test_what_is_wrong_with_the_connection_is_told(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def server_of(alias: str) -> Any:
        raise error

    monkeypatch.setattr(broken, "server_of", server_of)
    with pytest.raises(broken.Broken) as caught, broken.asking():
        pytest.fail("asked all the same")
    assert said == caught.value.said
    assert ("settings" in caught.value.remedy) == (said != "refused")


def test_acts_are_posts() -> None:
    request: Any = SimpleNamespace(method="GET")
    assert 405 == views.act(None, request, object_id="exports", verb="pause").status_code  # type: ignore[arg-type, call-arg]
    assert 405 == views.list_page(None, SimpleNamespace(method="POST")).status_code  # type: ignore[arg-type]


def test_the_page_that_is_loaded_again_has_the_same_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "_url", lambda own, name, *args: f"/{name}/")
    own: Any = SimpleNamespace(may_manage=lambda request: False)
    for query, url in (("q=a+b&o=use", "/live/?q=a+b&o=use"), ("", "/live/")):
        request: Any = SimpleNamespace(GET=QueryDict(query))
        assert {"live_url": url, "may_manage": False} == views._live(own, request, "live")


def test_html_in_what_a_process_says_of_itself_is_text() -> None:
    evil = "<img src=x>"
    who = pages.Who(*[f"{evil}{field}" for field in ("label", "user", "request", "host", "1", "t")])
    shown = render_to_string("admin/django_redis_sync/_who.html", {"who": who})
    assert evil not in shown
    assert all(
        f"&lt;img src=x&gt;{field}" in shown for field in ("label", "user", "host", "1", "t")
    )


def text_of(template: str, **context: Any) -> str:
    shown = render_to_string(f"admin/django_redis_sync/{template}.html", context)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", shown))


def test_a_page_of_a_name_tells_its_oddities() -> None:
    one = make.status(
        holders=(holder("aaa"), holder("bbb", state="kept"), holder("ccc", state="handed")),
        waiters=(waiter("www", permits=2), waiter("xxx", 2, alive=False, permits=0)),
        clash=(4, ago(60)),
        callers_limit=3,
        holding=4,
        waiting=7,
    )
    past = history("exports", None, Counters(waited=2, rejected=3, timed_out=4, granted=9))
    waits = [pages.WaiterRow(each, pages.Who.of(each), "5 s") for each in one.waiters]
    chart = charts.chart(charts.steps(past.rows), 3)
    rows = tuple(pages.holder_row(one, each) for each in one.holders)
    detail = pages.Detail(one, rows, tuple(waits), past, chart, 60, None)
    said = text_of("_name", status=one, detail=detail)
    assert "Callers disagree on the limit: 3 now, 4 before" in said
    parts = re.split(r"\b(aaa|bbb|ccc|www|xxx)\b", said)
    told = dict(zip(parts[1::2], parts[2::2], strict=True))
    for words, id in (
        ("released, kept for a while", "bbb"),
        ("just handed over", "ccc"),
        ("not heard of lately", "xxx"),
    ):
        assert [id] == [each for each in told if words in told[each]]
    assert "5 s 2 " in told["www"] and "5 s all " in told["xxx"]
    assert "and 1 more" in told["ccc"] and "and 5 more" in told["xxx"]
    drawn = render_to_string("admin/django_redis_sync/_chart.html", {"chart": chart, "past": past})
    assert 'aria-label="Waited: 2, rejected: 3, timed out: 4"' in drawn
    assert {
        "use": "Permits in use, highest",
        "limit": "Limit",
        "wait": "Waited",
        "reject": "Rejected or timed out",
    } == dict(re.findall(r'sync-key-(\w+)">([^<]+)', drawn))


@pytest.mark.parametrize(
    ("language", "ours"), [("en", False), ("en-gb", False), ("zh-hans", False), ("ar", True)]
)
def test_texts_that_nobody_translated_are_marked_as_english(language: str, ours: bool) -> None:
    with translation.override(language):
        assert ours == views._in_english()


@pytest.mark.parametrize("event", ["peak", "waited", "turned_away"])
def test_a_chart_tells_in_words_of_each_step_with_an_event(event: str) -> None:
    quiet, told = Step(ago(120)), Step(ago(60), **{event: 1})
    assert (told,) == charts.chart([quiet, told], 3).eventful


def test_a_sparkline_runs_from_edge_to_edge() -> None:
    assert "0,22 60,12 120,2" == charts.sparkline([0, 1, 2], 2)
    assert "0,12 120,22" == charts.sparkline([2, 0], 4)
    assert ("", "0,2") == (charts.sparkline([0, 0], 2), charts.sparkline([3], 1))


def test_what_the_doctor_found_is_told_by_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    some = [Finding(level, level, level, "") for level in ("ok", "warning", "error")]  # type: ignore[arg-type]
    monkeypatch.setattr(views.doctor, "examine", lambda: some)
    assert {"wrong": some[1:], "fine": some[:1]} == views._findings()


@pytest.mark.parametrize(
    ("hours", "asked", "key", "minutes", "longest"),
    [
        (6, "all", None, 360, 6),
        (6, "", None, 60, 6),
        (1, "all", None, 60, 0),
        (0, "", None, 60, 0),
        (0, "all", None, 60, 0),
        (6, "all", "7", 60, 0),
    ],
)
def test_a_page_shows_an_hour_or_all_that_is_kept(
    hours: int, asked: str, key: str | None, minutes: int, longest: int, settings: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "STATS_HOURS": hours}
    given: list[int] = []

    def detail(status: Any, minutes: int, wanted: Any) -> Any:
        given.append(minutes)
        return SimpleNamespace(listing="keys")

    monkeypatch.setattr(views.pages, "detail", detail)
    monkeypatch.setattr(views, "_found", lambda object_id, rows: make.status(key=key))
    monkeypatch.setattr(views, "_links", lambda listing, kept: (listing, kept))
    monkeypatch.setattr(views, "_live", lambda *_: {})
    monkeypatch.setattr(views, "_url", lambda own, name, *args: name)
    request: Any = SimpleNamespace(GET=QueryDict(f"history={asked}"))
    context = views._name_context(None, request, "exports")  # type: ignore[arg-type]
    assert ([minutes], longest) == (given, context["longest"])
    assert ("keys", {"history": "all"} if minutes > 60 else {}) == context["links"]


def test_a_search_is_for_what_stands_between_spaces() -> None:
    request: Any = SimpleNamespace(GET=QueryDict("q=+a+b+&o=use&p=3"))
    assert Wanted("a b", "use", "3", "api") == views._wanted(request, "api")


def test_a_chart_of_sums_has_no_limit_which_is_each_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    past = history("exports", None, Counters(peak=7), Counters(), suggested_limit=9)
    sums = SimpleNamespace(history=past)
    monkeypatch.setattr(pages, "Recent", lambda name: ["7"])
    asked: list[int] = []

    def told(found: Any) -> Any:
        return lambda some, minutes: asked.append(minutes) or [found]

    monkeypatch.setattr(pages, "histories_of", told(past))
    monkeypatch.setattr(pages, "sums_of", told(sums))
    monkeypatch.setattr(pages, "listing", lambda wanted: SimpleNamespace(found=1))
    for counted, line, suggested in (({"exports": sums}, False, None), ({}, True, 9)):
        monkeypatch.setattr(pages, "counted", lambda names, counted=counted: counted)
        found = pages.detail(make.status(waiters=(waiter(waits=7),)), 2, Wanted())
        assert ["7.0 s"] == [row.age for row in found.waiters]
        assert (line, suggested) == (found.chart.limit_y is not None, found.past.suggested_limit)
    assert [2] * 3 == asked
