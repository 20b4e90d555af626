"""What `locks` prints of a name and of a list: without a server."""

from __future__ import annotations

import ast
import os
import re
import signal
from argparse import SUPPRESS
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command
from django.core.management.color import no_style
from django.utils import timezone

from django_redis_sync.exceptions import Unavailable
from django_redis_sync.logs import printable
from django_redis_sync.management import display, looking, naming, runner, terminal, watchdog
from django_redis_sync.management.commands import locks
from django_redis_sync.management.commands.locks import Command, _chosen
from django_redis_sync.management.display import Seen
from django_redis_sync.management.runner import NOT_ACQUIRED, Order
from django_redis_sync.operators.audit import Act
from django_redis_sync.operators.doctor import Finding
from django_redis_sync.operators.history import Counters, History
from django_redis_sync.operators.status import Unread
from django_redis_sync.operators.sums import Quantiles
from django_redis_sync.protocol.plans import Refusal
from tests.support import statuses as make
from tests.support.statuses import ago, forever, group, history, holder, waiter
from tests.support.written import as_written

STYLE = no_style()


def page(*some: Any, past: History | None = None, **said: Any) -> str:
    """A name, or a policy, as it is printed."""
    found = group(*some, **said)
    told = {(one.name, one.key): history(one.name, one.key, Counters()) for one in found.all}
    if past is not None:
        told[past.name, past.key] = past
    return "\n".join(display.page(Seen([found], told, [], found.keys), None, STYLE))


def overview(*some: Any, past: Any = None, **said: Any) -> list[str]:
    """The cells of its line in the list."""
    found = group(*some, **said)
    told = past or {(one.name, one.key): history(one.name, one.key) for one in found.all}
    row = display._overview_row(found, told, STYLE)
    return [cell if isinstance(cell, str) else cell.text for cell in row]


# A name


def test_the_last_hour_in_a_sentence() -> None:
    counted = Counters(
        granted=6, waited=2, wait_seconds=5.0, released=4, held_seconds=10.0, peak=3, rejected=7
    )
    said = page(make.status(), past=history("exports", None, Counters(), counted))
    assert "Last 2 min: granted 8, of these after waiting 2 (2.5 s on average)" in said
    assert "held 2.5 s on average, at most 3 in use." in said
    assert "Trouble: rejected 7." in said


def test_every_trouble_is_said_with_its_count() -> None:
    counted = Counters(rejected=1, shadow_rejected=2, timed_out=3, reclaimed=4, lost=5)
    said = page(make.status(), past=history("exports", None, counted))
    words = "rejected 1, would have rejected 2, timed out 3, reclaimed 4, lost 5"
    assert f"Trouble: {words}." in said
    assert "Trouble" not in page(make.status(), past=history("exports", None, Counters(granted=1)))


def test_a_larger_limit_is_advised() -> None:
    past = history("exports", None, Counters(granted=1), suggested_limit=9)
    said = page(make.status(limit=3), past=past)
    assert "A limit of 9 would have been enough; it is 3 now." in said


def test_no_limit_is_advised_to_a_policy_by_what_its_keys_did_together() -> None:
    past = history("exports", None, Counters(granted=1), suggested_limit=9)
    none = Quantiles(None, None)
    some: Any = SimpleNamespace(
        history=past, waited=none, held=none, in_use=0, waiting=0, refused_off=0
    )
    said = page(make.status(key="7"), keys=20, sums=some)
    assert "granted 1" in said and "would have been enough" not in said


WHO = {"host": "web1", "pid": 7, "label": "export", "user": "42", "request": "r-1"}
WHO["thread"] = "Thread-1"


def test_holders_and_waiters_are_told_with_their_oddities() -> None:
    said = page(
        make.status(
            holders=(
                holder("aaa", held=65, ends_in=12.0, permits=2, label=WHO),
                holder("bbb", ends_in=5.0, state="handed"),
                holder("ccc", ends_in=5.0, state="kept"),
                forever("ddd"),
                holder("eee", permits=0),
            ),
            waiters=(waiter("www", 1, waits=7.0), waiter("xxx", 2, alive=False)),
            holding=9,
            waiting=5,
        )
    )
    lines = {line[:3]: line for line in said.splitlines() if line[:3].isalpha()}
    assert "1 min 5 s" in lines["aaa"] and "12 s" in lines["aaa"]
    assert "5.0 s*" in lines["bbb"] and "* Just handed over" in said
    assert "released, kept by min_hold" in lines["ccc"] and "*" not in lines["ccc"]
    assert "permanent" in lines["ddd"] and "all" in lines["eee"]
    assert ["… and 4 more", "… and 3 more"] == [s for s in said.splitlines() if "more" in s]
    assert "web1:7" in lines["aaa"] and "export, user 42, request r-1, Thread-1" in lines["aaa"]
    silent = [line for line in said.splitlines() if "xxx" in line or "www" in line]
    assert ["(silent)" in line for line in silent] == [False, True]
    assert "7.0 s" in silent[0]


def test_a_waiter_among_holders_is_told_by_its_place() -> None:
    one = make.status(waiters=(waiter("www", 2),))
    (_, line) = display.holders_table([(one, one.waiters[0])], None, STYLE)
    assert "waits, place 2" in line


@pytest.mark.parametrize(("more", "said"), [(0, []), (1, ["… and 1 more"] * 2)])
def test_each_that_is_not_shown_is_counted(more: int, said: list[str]) -> None:
    one = make.status(holders=(holder(),), waiters=(waiter(),), holding=1 + more, waiting=1 + more)
    assert said == [line for line in page(one).splitlines() if "more" in line]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({}, "exports: free, limit 3"),
        ({"limit": None}, "exports: free"),
        ({"holders": (holder(permits=2),)}, "exports: 2 of 3 in use"),
        ({"holders": (holder(),), "limit": None}, "exports: 1 of – in use"),
        ({"holders": (holder(),), "exclusive": True}, "exports: taken by a writer"),
        ({"holders": (holder(),), "kind": "read/write"}, "exports: 1 reader"),
        ({"waiters": (waiter(), waiter("b", 2))}, "exports: 0 of 3 in use, 2 wait"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_headline_says_how_full_it_is(said: Any, words: str) -> None:
    assert words == page(make.status(**said)).splitlines()[0]


PACKAGE = Path(display.__file__).parents[1]


def plurals() -> Iterator[tuple[str, str]]:
    """The number that chooses between two forms of a text, and the one that it is shown with."""
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            match node:
                case ast.BinOp(ast.Call(ast.Name("ngettext"), [_, _, number]), ast.Mod(), shown):
                    if not isinstance(shown, ast.Dict):
                        yield ast.unparse(number), ast.unparse(shown)


def test_the_form_of_a_word_goes_by_the_number_before_it() -> None:
    found = [*plurals()]
    assert len(found) > 10
    assert [] == [pair for pair in found if pair[0] != pair[1]]


def test_an_operators_marks_and_a_clash_are_said_with_the_remedy() -> None:
    marks = {"paused_since": ago(120), "override": 9, "limit": 9, "clash": (4, ago(60))}
    said = page(make.status(**marks))
    assert "Paused for 2 min 0 s: nobody new gets in. Undo: locks resume exports" in said
    assert "An operator set the limit to 9; callers say 3." in said
    assert "Callers disagree on the limit: 3 and, 1 min 0 s ago, 4." in said


def test_what_is_said_of_a_policy_is_not_said_of_its_keys_again() -> None:
    paused = {"paused_since": ago(120), "override": 9}
    said = page(
        make.status(**paused),
        make.status(key="7", **paused, holders=(holder(),)),
        make.status(key="8", override=5),
        make.status(key="9", **paused),
    )
    assert (1, 1, 1) == (
        said.count("Paused"),
        said.count("limit to 9"),
        said.count("limit to 5"),
    )
    assert "exports@7: 1 of 3 in use" in said and "exports@9" not in said


def test_a_page_of_a_policy_tells_of_each_key_in_use() -> None:
    said = page(
        make.status(holders=(holder("own"),), clash=(4, ago(60))),
        make.status(key="7", holders=(holder("aaa"),)),
        make.status(key="8", waiters=(waiter("www"),)),
        past=history("exports", "7", Counters(granted=1), suggested_limit=9),
    )
    parts = re.split(r"^(exports(?:@[78])?):.*$", said, flags=re.MULTILINE)
    told = dict(zip(parts[1::2], parts[2::2], strict=True))  # the last of a name
    for name, id in (("exports", "own"), ("exports@7", "aaa"), ("exports@8", "www")):
        assert [id] == re.findall(r"\b(own|aaa|www)\b", told[name])
    assert 1 == said.count("Callers disagree")
    assert "A limit of 9 would have been enough" in said


def test_a_key_that_is_marked_by_itself_is_told_beside_its_policy() -> None:
    said = page(
        make.status(override=5),
        make.status(key="7", paused_since=ago(120)),
        make.status(key="8", override=9),
    )
    assert "exports@7: free, limit 3\nPaused for 2 min 0 s" in said and 1 == said.count("Paused")
    assert "limit to 5" in said and "limit to 9" in said


# The list


def test_a_line_tells_a_name() -> None:
    some = make.status(holders=(holder(held=5), holder(held=65)), waiters=(waiter(waits=7),))
    past = {("exports", None): history("exports", None, Counters(rejected=2, timed_out=3))}
    line = ["exports", "", "2/3", "1", "5", "1 min 5 s", "7.0 s", ""]
    assert line == overview(some, past=past)
    assert ["exports", "", "0/3", "0", "", "", "", ""] == overview(make.status())


def test_an_hour_without_events_is_told_in_a_sentence() -> None:
    said = page(make.status(), past=history("exports", None, Counters(), Counters()))
    assert "Last 2 min: nothing happened." in said and "granted" not in said


def test_what_is_odd_about_a_name_is_noted() -> None:
    odd = {"paused_since": make.AT, "override": 9, "clash": (4, make.AT), "holders": (forever(),)}
    assert "paused, resized, callers disagree, permanent" == overview(make.status(**odd))[-1]


def test_sums_of_some_of_the_keys_are_marked() -> None:
    one = make.status(key="7", holders=(holder(),), waiters=(waiter(),))
    assert ["1", "1", "1"] == overview(one)[1:4]
    assert ["9", "≥1", "≥1"] == overview(one, keys=9)[1:4]


def test_a_full_name_is_shown_in_a_colour_of_its_own() -> None:
    style: Any = SimpleNamespace(WARNING="warning")
    cells = [display._use(group(make.status(holders=(holder(),) * n)), style) for n in (2, 3, 4)]
    assert [None, "warning", "warning"] == [cell.style for cell in cells]
    assert "writer" == display._use(group(make.status(exclusive=True)), style).text


def test_that_somebody_waits_is_shown_in_a_colour_of_its_own() -> None:
    style: Any = SimpleNamespace(WARNING="warning", NOTICE="notice")
    told = {("exports", None): history()}
    rows = [
        display._overview_row(group(make.status(waiters=some)), told, style)
        for some in ((), (waiter(),))
    ]
    assert [None, "warning"] == [row[3].style for row in rows]  # type: ignore[union-attr]


def test_it_is_said_how_exact_sums_are() -> None:
    exact, off = (display._exactness(SimpleNamespace(refused_off=n)) for n in (0, 4))  # type: ignore[arg-type]
    assert f"Sums are {display.AGAIN:.0f} s old at most." == exact
    assert f"{exact} A key may have been refused 4 times more than is known of it." == off


def test_quantiles_are_said_where_there_are_any() -> None:
    sums: Any = SimpleNamespace(waited=Quantiles(0.008, 1.0), held=Quantiles(None, None))
    assert ["half waited less than 8 ms, 95 % less than 1.0 s"] == display._quantiles(sums)


# Names that are typed


def test_a_key_may_be_typed_as_people_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    address, value = naming.identity.digest("ip", "10.0.0.1"), naming.identity.of_value("blue")
    known = {address, value}
    monkeypatch.setattr(
        naming, "is_listed", lambda pairs, using: [key in known for _, key in pairs]
    )
    for typed, key in (("10.0.0.1", address), ("42", "42"), ("blue", value), ("red", "red")):
        assert [("exports", key)] == naming.find("exports", typed, None)


def test_a_child_may_be_typed_as_a_table_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {("exports", "42"): True, ("a@b", None): True, ("a", "b"): True}
    monkeypatch.setattr(
        naming, "is_listed", lambda pairs, using: [listed.get(pair, False) for pair in pairs]
    )
    monkeypatch.setattr(naming, "family", lambda name, using: [(name, None)])
    assert [("exports", "42")] == naming.find("exports@42", None, None)
    assert [("a@b", None)] == naming.find("a@b", None, None)
    assert [("exports@43", None)] == naming.find("exports@43", None, None)


@pytest.mark.parametrize(
    ("cause", "remedy"),
    [
        (redis.ConnectionError("refused"), "Is the server running"),
        (redis.ResponseError("NOPERM"), "See locks doctor."),
        (redis.OutOfMemoryError("not allowed"), "raise maxmemory"),
        (redis.ResponseError("OOM command not allowed"), "raise maxmemory"),
    ],
    ids=repr,
)
def test_what_is_said_to_help_goes_by_what_redis_said(cause: Exception, remedy: str) -> None:
    error = Unavailable(f"Redis: {cause}")
    error.__cause__ = cause
    said = naming.unavailable(error)
    assert said.startswith(f"Redis: {cause}. ") and remedy in said


def test_watching_goes_on_while_redis_is_down_and_says_what_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[Any] = []

    @contextmanager
    def screen(stream: Any) -> Iterator[Any]:
        yield SimpleNamespace(draw=drawn.append)

    def lines(width: int | None) -> list[str]:
        raise Unavailable("Redis: refused")

    def sleep(seconds: float) -> None:
        if len(drawn) == 2:
            raise KeyboardInterrupt

    command = Command(stdout=StringIO())
    monkeypatch.setattr(terminal, "screen", screen)
    monkeypatch.setattr(locks, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(command, "_width", lambda: 80)
    with pytest.raises(KeyboardInterrupt):
        command._watch(lines, 1.0, "table")
    assert [True] * 2 == ["Is the server running" in shown[-1] for shown in drawn]


@pytest.mark.parametrize("format", ["table", "json"])
@pytest.mark.parametrize(("every", "rest"), [(0.0, 0.1), (0.5, 0.5)])
def test_whoever_watches_all_the_time_leaves_redis_a_moment(
    format: str, every: float, rest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(locks, "time", SimpleNamespace(sleep=sleep))
    command = Command(stdout=StringIO())
    with pytest.raises(KeyboardInterrupt):
        command._watch(lambda width: ["line"], every, format)
    assert [rest] * 2 == slept


def test_keys_of_a_policy_for_which_most_wait_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    own = make.status(paused_since=make.AT)
    keys = [
        make.status(key="busy", in_use=3),
        make.status(key="queue", in_use=1, waiting=2),
        make.status(key="idle"),
    ]
    groups = [SimpleNamespace(children=(one,)) for one in keys]
    asked, read = list[Any](), list[Any]()

    def rows(*some: int) -> Any:
        read.append(some)
        return groups, []

    selection = SimpleNamespace(read=rows, past={}, found=3, compared=None)

    def histories_of(some: Any, *, using: Any) -> Any:
        asked.append(using)
        return [history("exports", None, Counters(granted=2))]

    monkeypatch.setattr(looking, "status_of", lambda name, using: own)
    monkeypatch.setattr(looking, "Recent", lambda name, using: keys)
    orders: list[str] = []

    def select(order: str, policy: str, using: str) -> Any:
        orders.append(order)
        return selection

    monkeypatch.setattr(looking, "Selection", select)
    monkeypatch.setattr(looking, "histories_of", histories_of)
    seen = looking._policy("exports", "", 10, "other")
    assert ["queue", "busy", "idle"] == [one.key for one in seen.groups[0].children]
    assert (["other"], 2) == (asked, seen.past["exports", None].total.granted)
    ordered = looking._policy("exports", "name", 10, "other")
    assert ["busy", "queue", "idle"] == [one.key for one in ordered.groups[0].children]
    assert [(0, looking.MOST_SUMMED), (0, 10)] == read
    keys = keys * looking.MOST_SUMMED  # too many to read them all: the busiest
    looking._policy("exports", "", 10, "other")
    assert ["recent", "name", "use"] == orders
    own = make.status(fence=0)
    assert looking._policy("exports", "", 10, "other").groups[0].own is None  # never used itself


def test_a_page_of_some_of_the_keys_says_of_how_many() -> None:
    some = [make.status(key=key) for key in "78"]
    assert "2 of 9 are shown: see --top and --sort." in page(*some, keys=9)
    assert "are shown" not in page(*some, keys=2)


def test_a_list_says_of_how_many_it_is_and_how_many_were_compared() -> None:
    some = [group(make.status(name)) for name in "ab"]
    told = {(one.name, None): history(one.name) for one in some}
    for found, compared, said in (
        (2, None, []),
        (9, None, ["2 of 9 are shown: see --top and --sort."]),
        (2, 7, ["Compared were 7: the busiest by the sums, and those used last."]),
    ):
        lines = display.overview(Seen(some, told, [], found, compared=compared), None, STYLE)
        assert said == [line for line in lines if "shown" in line or "ompared" in line]


def test_of_many_keys_those_in_use_are_told() -> None:
    idle = [make.status(key=f"idle{n}") for n in range(display.MOST_DETAILED + 1)]
    said = page(*idle, make.status(key="busy", holders=(holder(),)))
    assert "exports@busy: 1 of 3 in use" in said and "idle" not in said


def test_names_that_cannot_be_read_are_named_up_to_five() -> None:
    some = [Unread(f"n{n}", None, Unavailable("gone")) for n in range(6)]
    assert "5 names can't be read: n0, n1, n2, n3, n4. gone" == display.unread(some[:5])
    assert "6 names can't be read: n0, n1, n2, n3, n4, …. gone" == display.unread(some)


def test_a_finding_is_told_with_its_place_and_its_remedy() -> None:
    found = Finding("slow", "warning", "Slow", "d", "r", ("h:1", "h:2"))
    said = display.findings([found], None, STYLE)
    assert "h:2" in found.where
    assert ["warning: Slow [slow]", f"    {found.where}", "    d", "    r"] == said[:4]


def test_what_a_server_says_does_not_steer_the_terminal() -> None:
    evil = "\x1b[2J"
    found = Finding("slow", "error", f"a{evil}", f"b{evil}", f"c{evil}", (f"d{evil}",))
    said = "\n".join(display.findings([found], None, STYLE))
    assert 4 == said.count("\\x1b[2J") and "\x1b" not in said


def test_findings_are_counted_by_what_they_come_to() -> None:
    levels: Any = ("error", "warning", "warning", "ok", "ok", "ok")
    some = [Finding("x", level, "t", "d") for level in levels]
    assert "1 error, 2 warnings, 3 ok" == display.findings(some, None, STYLE)[-1]
    assert "0 errors, 1 warning, 0 ok" == display.findings(some[1:2], None, STYLE)[-1]


def test_acts_are_told_in_the_time_of_the_site() -> None:
    with timezone.override("Asia/Tokyo"):
        (_, row) = display.acts([Act(make.AT, "pause", "exports", None, "ann")], None, STYLE)
    assert row.split() == ["2026-01-31", "21:00:00", "exports", "paused", "ann"]


# The terminal


def test_what_a_terminal_cannot_show_is_escaped() -> None:
    for encoding, said in (("ascii", "\\xe9\\u2192x"), ("latin-1", "é\\u2192x"), ("utf-8", "é→x")):
        assert said == terminal.encodable("é→x", SimpleNamespace(encoding=encoding))


@pytest.mark.parametrize("text", ["a b", "é→x", "汉字"])
@pytest.mark.parametrize(
    ("control", "escaped"), [("", ""), ("\x1b[2J", "\\x1b[2J"), ("\r\n", "\\r\\n")]
)
def test_what_would_steer_a_terminal_is_shown(text: str, control: str, escaped: str) -> None:
    assert text + escaped + text == printable(text + control + text)


@pytest.mark.parametrize(
    ("text", "columns"), [("e\u0301", 1), ("a\u20dd", 1), ("漢A", 3), ("Ａ", 2)]
)
def test_a_text_takes_the_columns_of_what_is_seen(text: str, columns: int) -> None:
    assert columns == terminal.wide(text)


@pytest.mark.parametrize("lines", [3, 4, 5, 9])
def test_a_screen_is_filled_and_what_is_left_out_is_counted(
    lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal.shutil, "get_terminal_size", lambda **_: os.terminal_size((50, 4)))
    drawn = StringIO()
    terminal.Screen(drawn).draw([f"line{n}" for n in range(lines)])
    shown = drawn.getvalue().replace("\x1b[", "\n").split("\n")
    seen = [line for line in shown if "line" in line]
    left = lines - sum("make the terminal" not in line for line in seen)
    assert min(lines, 4) == len(seen)
    assert [f"… {left} more line{'s' * (left > 1)}:" in seen[-1]] == [left > 0]


def test_after_the_screen_sigterm_is_what_it_was() -> None:
    before, out = signal.getsignal(signal.SIGTERM), StringIO()
    with pytest.raises(KeyboardInterrupt), terminal.screen(out):
        signal.raise_signal(signal.SIGTERM)
    assert before == signal.getsignal(signal.SIGTERM)
    assert out.getvalue().endswith("\x1b[?25h\x1b[?1049l")


def test_a_waiter_may_be_cleared_by_its_id_and_is_not_unless_it_is_named() -> None:
    one = make.status(holders=(holder("aaa"),), waiters=(waiter("www"),))
    for id, found in ((None, ["aaa"]), ("www", ["www"]), ("aaa", ["aaa"]), ("zzz", [])):
        assert found == [shown.id for _, shown in _chosen([one], id)]


# Running a command


@pytest.mark.parametrize(
    ("reason", "skip", "code"),
    [
        ("full", True, 0),
        ("timeout", True, 0),
        ("paused", True, 0),
        ("cleared", True, NOT_ACQUIRED),
        ("large", True, NOT_ACQUIRED),
        ("full", False, NOT_ACQUIRED),
        ("paused", False, NOT_ACQUIRED),
    ],
)
def test_what_is_skipped_is_another_ones_turn(
    reason: str, skip: bool, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    taken = SimpleNamespace(take=lambda: Refusal(reason, "3"))
    monkeypatch.setattr(runner, "_semaphore", lambda order, command: taken)
    order = Order("nightly", None, None, skip, None, None)
    assert code == runner.run(order, ["true"], SimpleNamespace(write=said.append))
    assert bool(code) == bool(said)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (Order("a", None, None, False, None, None), (1, float("inf"), None, "default")),
        (Order("a", 4, 2.0, False, 60.0, "other"), (4, 2.0, 60.0, "other")),
        (Order("a", None, None, True, None, None), (1, 0.0, None, "default")),
        (Order("a", None, 3.0, True, None, None), (1, 3.0, None, "default")),
        (Order("exports", None, None, False, None, None), (None, float("inf"), None, "default")),
    ],
)
def test_a_command_runs_on_the_terms_that_were_given(
    order: Order, expected: Any, settings: Any
) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": {"exports": {"limit": 7}}}
    made = runner._semaphore(order, ["/usr/bin/backup", "--password", "secret"])
    found = (made.limit, made.blocking_timeout, made.min_hold, made.alias())
    assert (expected, True) == (found, made.renew)
    assert "locks run: backup" == made.label


def test_signals_are_passed_on_and_ctrl_z_does_not_suspend_what_renews() -> None:
    passed = [getattr(signal, name) for name in runner._PASSED_ON]
    before = [signal.getsignal(number) for number in (*passed, signal.SIGTSTP)]
    job = runner._Job(["true"], None)
    with job.signals():
        assert [job._received] * len(passed) == [signal.getsignal(number) for number in passed]
        ignoring = signal.getsignal(signal.SIGTSTP)
        assert callable(ignoring) and ignoring != job._received
        assert ignoring(signal.SIGTSTP, None) is None
    assert before == [signal.getsignal(number) for number in (*passed, signal.SIGTSTP)]


@pytest.mark.parametrize(
    ("patience", "sent"),
    [
        (30.0, [signal.SIGTERM, signal.SIGCONT, 0, signal.SIGKILL, signal.SIGKILL]),
        (0.0, [signal.SIGKILL, signal.SIGKILL]),
    ],
    ids=["asked to end", "its parent is dead"],
)
def test_all_that_is_left_is_asked_woken_and_killed(
    patience: float, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is stopped gets no SIGTERM before it goes on."""
    found: list[int] = []

    def signal_all(number: int) -> bool:
        found.append(number)
        return number == signal.SIGKILL and found.count(number) == 1

    def ends(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(watchdog, "signal_all", signal_all)
    monkeypatch.setattr(watchdog, "reap", lambda command: None)
    monkeypatch.setattr(watchdog.os, "_exit", ends)
    with pytest.raises(SystemExit):
        watchdog.end(patience)
    assert sent == found


def test_what_is_typed_at_the_terminal_leaves_the_watchdog_running() -> None:
    assert {"SIGTSTP", "SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"} <= {*watchdog.PASSED}
    assert {*runner._PASSED_ON} | {"SIGTSTP"} == {*watchdog.PASSED}


def test_a_text_is_broken_between_words_and_loses_none() -> None:
    text = "Callers disagree on the limit: 报表导出 and, a-very-long-word-of-many-letters, 3."
    for width in range(1, 90):
        lines = terminal.wrap(text, width)
        assert text == " ".join(lines)
        assert all(terminal.wide(line) <= width or " " not in line for line in lines)
    assert ([text], []) == (terminal.wrap(text, None), terminal.wrap("", 9))


@pytest.mark.parametrize("columns", [display._OVERVIEW, display._HOLDERS, display._WAITERS])
def test_numbers_end_and_texts_begin_below_each_other(columns: Any) -> None:
    """So do durations, which are read by their last figures."""
    some = columns()
    short, long = ["1"] * len(some), ["long content of a cell"] * len(some)
    head, *lines = terminal.table(some, [short, long], None)
    texts = {"NAME", "NOTES", "HOLDER", "WAITER", "WHERE", "WHO"}
    assert [column.title in texts for column in some] == [not column.right for column in some]
    gives_way = {"NAME", "NOTES", "WHERE", "WHO"}
    assert [column.title in gives_way for column in some] == [column.flexible for column in some]
    for place, column in enumerate(some):
        start = place * len("long content of a cell  ")
        end = start + len("long content of a cell")
        for cell in (line[start:end].ljust(end - start) for line in (head, *lines)):
            assert (cell.startswith if not column.right else cell.endswith)(cell.strip()), cell


@pytest.mark.parametrize("width", range(34, 64))
def test_a_table_is_as_wide_as_the_terminal_when_it_has_to_give_way(width: int) -> None:
    columns = [terminal.Column("A", flexible=True), terminal.Column("B"), terminal.Column("C")]
    columns[2] = terminal.Column("C", flexible=True)
    (_, line) = terminal.table(columns, [["a" * 30, "b" * 10, "c" * 20]], width)
    assert width == len(line) and "b" * 10 in line
    assert ("c" * 20 in line) == (width >= 53)  # the widest first


def test_the_flexible_columns_give_way_down_to_a_few_letters() -> None:
    columns = [terminal.Column(letter, flexible=letter != "B") for letter in "ABC"]
    for width in (8 + 2 + 10 + 2 + 8, 9):
        (_, line) = terminal.table(columns, [["a" * 30, "b" * 10, "c" * 20]], width)
        assert ["a" * 7 + "…", "b" * 10, "c" * 7 + "…"] == line.split()


def test_in_an_order_that_was_asked_for_idle_keys_have_a_line_too() -> None:
    keys = [make.status(key=key, holders=(holder(),) * n) for key, n in (("8", 0), ("7", 1))]
    found = group(*keys)
    told = {(one.name, one.key): history(one.name, one.key, Counters()) for one in keys}
    said = display.page(Seen([found], told, [], found.keys, ordered=True), None, STYLE)
    assert [["exports@8", "0/3"], ["exports@7", "1/3"]] == [line.split()[:2] for line in said[-2:]]


def test_of_very_many_keys_in_use_some_are_told_in_a_line_each() -> None:
    most = display.MOST_DETAILED
    busy = [make.status(key=f"k{n:03}", holders=(holder(),)) for n in range(most + 1)]
    few, many = page(*busy[:most]), page(*busy)
    assert (most, 0) == (few.count("1 of 3 in use"), many.count("1 of 3 in use"))
    assert (0, most) == (few.count(" 1/3 "), many.count(" 1/3 "))
    assert f"exports@{busy[most].key}" not in many


# What is typed


@pytest.mark.parametrize(
    ("words", "option", "value"),
    [
        ("run a --wait 0", "wait", 0.0),
        ("run a --wait 0.5", "wait", 0.5),
        ("run a --min-hold 999999999", "min_hold", 999999999.0),
        ("run a --limit 1", "limit", 1),
        ("run a", "wait", None),
        ("status --watch", "watch", 1.0),
        ("status --watch 0", "watch", 0.0),
        ("status", "top", 100),
        ("log --top 1", "top", 1),
        ("resize a 1", "limit", 1),
    ],
)
def test_a_number_means_what_was_typed(words: str, option: str, value: Any) -> None:
    parser = Command().create_parser("manage.py", "locks")
    assert value == vars(parser.parse_args(words.split()))[option]


@pytest.mark.parametrize("words", ["resize a", "resize a 3 --reset", "run a", "status --key 7"])
def test_what_makes_no_sense_together_is_wrong_usage(words: str) -> None:
    with pytest.raises(CommandError) as caught:
        call_command("locks", *words.split(), stdout=StringIO())
    assert 2 == caught.value.returncode


@pytest.mark.parametrize("name", ["@x", "x@", "@", "x@y"])
def test_what_reads_like_half_a_child_is_a_name(name: str, raw: redis.Redis) -> None:
    assert [(name, None)] == naming.find(name, None, None)


def test_colour_is_for_terminals_and_for_those_who_insist(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django.core.management.color.supports_color", lambda: True)

    def coloured(**options: Any) -> bool:
        out = StringIO()
        call_command("locks", "doctor", stdout=out, **options)
        return "\x1b[" in out.getvalue()

    monkeypatch.setattr(locks.doctor, "examine", lambda using: [Finding("x", "ok", "t", "d")])
    assert [False, True] == [coloured(), coloured(force_color=True)]
    monkeypatch.setattr(terminal, "size", lambda stream: (80, 24))
    assert [True, False] == [coloured(), coloured(no_color=True)]


def test_an_empty_cell_has_no_colour() -> None:
    columns = [terminal.Column("A"), terminal.Column("B")]
    cells = [terminal.Cell(text, lambda text: f"<{text}>") for text in ("", "b")]
    (_, *lines) = terminal.table(columns, [["a", one] for one in cells], None)
    assert ["a", "a  <b>"] == lines


def test_each_action_and_each_option_says_what_it_is_for() -> None:
    parser = Command().create_parser("manage.py", "locks")
    (actions,) = (one for one in parser._actions if one.dest == "action")
    assert isinstance(actions.choices, dict)
    told = {one.dest for one in actions._get_subactions() if one.help}
    assert {*actions.choices} == told
    assert "exit codes:" in parser.format_help()
    for name, one in actions.choices.items():
        assert one.description, name
        for option in one._actions:
            # What goes without saying: `run NAME`, `resize NAME LIMIT`, words that are shown.
            plain = (name, option.dest) in {("run", "name"), ("resize", "limit")}
            assert plain or option.choices or option.help, f"{name} {option.dest}"


def test_the_command_explains_itself_in_these_words() -> None:
    parser = Command().create_parser("manage.py", "locks")
    (actions,) = (one for one in parser._actions if one.dest == "action")
    helps = {one.dest: one.help for one in actions._get_subactions()}
    said = [f"locks: {parser.description}", *locks.EXIT_CODES.splitlines()]
    for name, one in actions.choices.items():  # type: ignore[union-attr]
        assert helps[name] == one.description
        said += ["", f"locks {name}: {one.description}"]
        for option in one._actions:
            if option.help != SUPPRESS and option.dest != "help":
                words = "/".join(option.option_strings) or option.dest
                default = None if option.default == SUPPRESS else option.default
                given = (
                    option.metavar,
                    default,
                    option.const,
                    option.choices and [*option.choices],
                )
                said.append(f"  {words} {given}: {option.help}")
    as_written("locks", said)


@pytest.mark.parametrize(
    ("format", "width", "ends"), [("json", None, ""), ("json", 80, ""), ("table", None, "\n")]
)
def test_what_is_watched_is_written_line_by_line_for_programs(
    format: str, width: int | None, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON on a terminal too; between two tables is an empty line."""

    def sleep(seconds: float) -> None:
        if said.getvalue().count("{}") == 2:
            raise KeyboardInterrupt

    command = Command(stdout=(said := StringIO()))
    monkeypatch.setattr(locks, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(command, "_width", lambda: width)
    with pytest.raises(KeyboardInterrupt):
        command._watch(lambda width: ["{}"], 1.0, format)
    assert f"{{}}\n{ends}" * 2 == said.getvalue()


def test_what_is_cleared_and_what_was_done_fits_a_narrow_terminal() -> None:
    one = make.status("n" * 40, holders=(holder("aaa", label=WHO),))
    act = Act(make.AT, "clear", "n" * 40, None, "ann" * 10, "why " * 20, ids=("aaaaaaaa",) * 5)
    for width in (70, 79):
        lines = display.holders_table([(one, one.holders[0])], width, STYLE)
        lines += display.acts([act], width, STYLE)
        assert {width} == {len(line) for line in lines if "…" in line}
        assert 2 == sum("…" in line for line in lines)
