"""`manage.py locks status`: as a table, as JSON, on a terminal, and with `--watch`."""

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from io import StringIO
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import redis
from django.conf import settings
from django.http import HttpResponse
from django.test import RequestFactory

from django_redis_sync import Lock, ReadWriteLock, Semaphore, semaphore_required, synchronized
from django_redis_sync.operators.listing import MAX_COMPARED
from tests.behaviour.both import eventually
from tests.support.operators import act, as_json, failed, locks, status_of
from tests.support.renewers import fresh_renewer, listed, waiting_threads  # noqa: F401 - fixtures
from tests.support.screens import Terminal, by_name, columns, on_terminal, rows

pytestmark = pytest.mark.usefixtures("fresh_renewer")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def busy(raw: redis.Redis) -> Iterator[None]:
    """Hold permits of ten names. Some names are full, some texts have unusual characters, and one
    lease never expires."""
    label = "reports.views.export_everything_for_the_accountants_of_all_countries"
    held = [Semaphore("exports", 2, label=label), Semaphore("exports", 2, label=label)]
    held += [Semaphore("api", 5, key=key) for key in ("1", "42", "ann b")]
    held += [Semaphore("clash", limit) for limit in (2, 4)]
    held += [ReadWriteLock("index").write, ReadWriteLock("config").read]
    held += [Lock("报表导出-" + "很" * 20, label="报表.任务"), Lock("for ever", timeout=math.inf)]
    held += [Lock("evil", label="\x1b[31mred\u202e\nnew line")]
    with contextlib.ExitStack() as stack:
        for one in held:
            stack.enter_context(one)
        assert Semaphore("exports", 2).acquire(blocking_timeout=0.01) is None
        eventually(lambda: 8 == as_json("status")["found"] == len(by_name(locks("status"))))
        eventually(lambda: listed("api@1", "api@42", "api@ann b"))
        yield


@pytest.mark.promise(25)
def test_locks_status_has_one_row_for_each_name_and_each_policy(busy: None) -> None:
    act("pause", "api")
    act("resize", "exports", "2")
    found = by_name(locks("status"))
    assert 8 == len(found)
    assert ("2/2", "0") == (found["exports"]["IN USE"], found["exports"]["WAITING"])
    assert "1" == found["exports"]["REJECTED"] and found["exports"]["HELD FOR"]
    assert ("3", "3") == (found["api"]["KEYS"], found["api"]["IN USE"])
    assert "writer" == found["index"]["IN USE"] and "1" == found["config"]["IN USE"]
    notes = {"api": "paused", "clash": "callers disagree", "for ever": "permanent"}
    notes["exports"] = "resized"
    assert notes == {name: row["NOTES"] for name, row in found.items() if row["NOTES"]}
    assert re.search(r"\x1b\[[\d;]+m2/2", locks("status", force_color=True)), (
        "the use of a full name has no color"
    )
    assert "\x1b[" not in locks("status"), "color without a terminal or an option"


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("trouble", ["a 2", "a 10"]),  # names with rejected calls come first
        ("name", ["a 2", "a 10", "b"]),
        ("recent", ["b", "a 2", "a 10"]),
        ("use", ["a 10", "b", "a 2"]),
        ("rejected", ["a 2", "a 10", "b"]),
        ("oldest", ["b", "a 2", "a 10"]),
        ("share", ["b", "a 2", "a 10"]),
    ],
)
def test_rows_of_locks_status_are_in_the_order_of_the_sort_option(
    raw: redis.Redis, order: str, names: list[str]
) -> None:
    with Semaphore("b", 2, share="x"), Semaphore("a 2", 3), Lock("a 10"):
        for name, limit in (("a 2", 3), ("a 2", 3), ("a 10", 1)):
            assert Semaphore(name, limit).acquire(blocking_timeout=0.01, permits=limit) is None
        eventually(lambda: listed("a 2", "a 10", "b"))
        raw.zadd(f"{settings.PREFIX}:names", {"a 10": 1, "a 2": 2, "b": 3})
        assert names == [*by_name(locks("status", "--sort", order))][: len(names)]


@pytest.mark.promise(25, 28)
def test_locks_status_shows_the_host_the_process_and_the_lease_of_each_holder(busy: None) -> None:
    page = locks("status", "exports")
    lease = status_of("exports").holders[0]
    assert "exports: 2 of 2 in use\n" in page
    row = next(row for row in rows(page) if row["HOLDER"] == lease.id)
    assert f"{os.uname().nodename}:{os.getpid()}" == row["WHERE"]
    assert "1" == row["PERMITS"] and row["HELD FOR"] and row["LEASE LEFT"]
    # Output that does not go to a terminal is neither shortened nor colored.
    assert row["WHO"].startswith("reports.views.export_everything_for_the_accountants_of_all_c")
    assert lease.token not in page and "…" not in page and "\x1b" not in page
    assert "Last 60 min: granted 2, at most 2 in use." in page
    assert "Trouble: timed out 1." in page


def test_locks_status_shows_if_a_holder_is_permanent_retained_or_exclusive(
    raw: redis.Redis,
) -> None:
    Semaphore("s", 9, min_hold=60, label="early").acquire().release()
    with Semaphore("s", 9, timeout=math.inf, label="endless"), ReadWriteLock("rw").write:
        lease = Semaphore("s", 9, label="two").acquire(permits=2)
        shown = {row["WHO"].rpartition(",")[0]: row for row in rows(locks("status", "s"))}
        assert locks("status", "rw").startswith("rw: taken by a writer\n")
        (writer,) = rows(locks("status", "rw"))
        lease.release()
    assert ("2", "1") == (shown["two"]["PERMITS"], shown["endless"]["PERMITS"])
    assert "permanent" == shown["endless"]["LEASE LEFT"]
    assert "(released, retained by min_hold) early" in shown
    assert "all" == writer["PERMITS"]
    with ReadWriteLock("rw").read:
        assert locks("status", "rw").startswith("rw: 1 reader\n")


def test_locks_status_marks_silent_waiters_and_permits_that_were_handed_off(
    raw: redis.Redis, threads: Any
) -> None:
    waiters, info = (f"{settings.PREFIX}:{{a}}:{part}" for part in ("waiters", "info"))
    with Semaphore("a", 2) as lease, Semaphore("a", 2), Semaphore("b", 2), Semaphore("b", 2):
        waiting = threads.submit(Semaphore("a", 2, label="a waiter").acquire)
        (waiter,) = eventually(lambda: status_of("a").waiters)
        page = locks("status", "a")
        assert "a: 2 of 2 in use, 1 waits\n" in page
        (row,) = [row for row in rows(page) if row.get("WAITER") == waiter.id]
        assert ("1", "1") == (row["#"], row["PERMITS"]) and row["WHO"].startswith("a waiter")
        table = eventually(lambda: rows(locks("status", "--sort", "waiting")))
        assert "a" == table[0]["NAME"]

        def is_silent() -> bool:
            raw.zadd(waiters, {waiter.token: 1})  # make the waiter's last heartbeat old
            return "(silent) a waiter" in locks("status", "a")

        eventually(is_silent)
        held = raw.hget(info, lease.token)
        raw.hset(info, lease.token, b"g" + held[1:])  # state g: handed off, but not claimed yet
        page = locks("status", "a")
        raw.hset(info, lease.token, held)
    assert "\n* Handed over: the holder waited, and got its permit" in page
    left = [row["LEASE LEFT"] for row in rows(page) if row.get("HOLDER") == lease.token[:8]]
    assert "*" == left[0][-1]
    waiting.result(30).release()


def test_locks_status_shows_operator_overrides_and_how_to_undo_a_pause(busy: None) -> None:
    act("pause", "exports")
    act("resize", "exports", "7")
    page = locks("status", "exports")
    assert re.search(r"Paused for .*: no permits are granted. Undo: locks resume exports\n", page)
    assert "An operator set the limit to 7. The callers’ own limit is 2." in page
    act("pause", "exports", "--for", "10m", key="ann b")
    page = locks("status", "exports", "--key", "ann b")
    assert re.search(r"Paused for .*, until .*Undo: locks resume exports --key 'ann b'\n", page)
    act("pause", "exports", "--for", "10m")
    page = locks("status", "exports")
    assert re.search(r"Paused for .*, until .*Undo: locks resume exports\n", page)
    assert "Callers disagree on the limit: 2 until " in locks("status", "clash")


def test_locks_status_of_a_policy_shows_all_keys_or_the_given_key(busy: None) -> None:
    page = locks("status", "api")
    assert page.startswith("api: 3 keys, 3 in use, 0 waiting, limit 5 for each key\n")
    assert page.count(" of 5 in use\n") == 3
    for words in (["api", "--key", "42"], ["api@42"]):
        assert locks("status", *words).startswith("api@42: 1 of 5 in use\n")
    act("pause", "api")
    assert 1 == locks("status", "api").count("Paused for "), (
        "one pause, that of the policy, is shown"
    )
    with Lock("api@42"), Lock("a@b"), Semaphore("a", 3, key="b"), Lock("{x}%:y"):
        names = {("a@b", None), ("a", "b"), ("{x}%:y", None), ("api@42", None), ("api", "42")}
        eventually(lambda: names <= {(n["name"], n["key"]) for n in as_json("status")["names"]})
        assert "1 of 1 in use" in locks("status", "a@b"), "a name takes precedence over a key"


def test_last_hour_of_a_policy_counts_its_uses_with_and_without_a_key(raw: redis.Redis) -> None:
    for key in (None, "a", "b", "b"):
        Semaphore("api", 9, key=key).acquire().release()
    eventually(lambda: listed("api", "api@a", "api@b"))
    for words, count in (((), 4), (("--key", "b"), 2)):
        page = locks("status", "api", *words)
        assert f"Last 60 min: granted {count}, " in page, page


def test_locks_status_accepts_an_ip_address_as_the_key_of_a_policy(raw: redis.Redis) -> None:
    @semaphore_required("visits", limit=5, key="ip")
    def view(request: Any) -> HttpResponse:
        return HttpResponse(locks("status", "visits", "--key", "10.0.0.1"))

    page = view(RequestFactory().get("/", REMOTE_ADDR="10.0.0.1")).content.decode()
    assert re.match(r"visits@ip-\w{32}: 1 of 5 in use\n", page), (
        "the name shows only a digest of the address"
    )


def test_locks_status_of_a_policy_shows_20_of_21_keys_in_one_table(raw: redis.Redis) -> None:
    with contextlib.ExitStack() as stack:
        for n in range(21):
            stack.enter_context(Semaphore("api", 3, key=f"k{n}"))
        stack.enter_context(Semaphore("few", 3, key="k", label="me"))
        eventually(lambda: listed(*(f"api@k{n}" for n in range(21)), "few@k"))
        page = locks("status", "api")
        assert page.startswith("api: 21 keys, 21 in use, 0 waiting, limit 3 for each key\n")
        assert 20 == len(rows(page)) and all("1/3" == row["IN USE"] for row in rows(page))
        assert "20 of 21 entries are shown" not in page
        assert "To list others, use --sort recent." in page
        one = locks("status", "api", "--sort", "name", "--top", "1")
        assert ["api@k0"] == [*by_name(one)] and "1 of 21 entries are shown. For others" in one
        assert ["me"] == [row["WHO"].split(",")[0] for row in rows(locks("status", "few"))]
        assert "To list others" not in locks("status", "few"), "its one key is shown"
        stack.enter_context(Semaphore("few", 5, key="larger"))
        stack.enter_context(Semaphore("few", 2, key="smaller"))
        eventually(lambda: listed("few@larger", "few@smaller"))
        assert ", limit 5 for each key\n" in locks("status", "few"), "the largest limit of its keys"


def test_locks_status_of_a_family_does_not_say_that_it_shows_idle_names(raw: redis.Redis) -> None:
    @synchronized("webhook:{event_id}")
    def handle(event_id: int) -> None: ...

    for n in range(MAX_COMPARED + 5):
        handle(n)
    name, options = "webhook:{event_id}", ("--sort", "recent", "--top", "3")
    eventually(lambda: f"{MAX_COMPARED + 5} names, 0 in use" in locks("status", name))
    page = locks("status", name)
    assert "entries are shown" not in page and "To list others, use --sort recent." in page
    assert 3 == len(by_name(locks("status", name, *options)))


def test_unknown_name_is_an_error_that_suggests_known_names(busy: None) -> None:
    error = "It is not configured and was not used within the last day."
    for words, hint in (
        (["exprots"], " Did you mean exports?"),
        (["zzz"], ""),
        (["api", "--key", "43"], " Did you mean api@42, "),
        (["apu@42"], " Did you mean api@42?"),
    ):
        code, text = failed("status", *words, stdout=(out := StringIO()))
        assert (3, "") == (code, out.getvalue())
        name = words[0] if words[1:] == [] else "api@43"
        assert text.startswith(f"Unknown name: {name}. {error}{hint}") and (hint or error in text)
    assert 3 == failed("status", "exprots", "--format", "json", stdout=out)[0]
    (one,) = json.loads(out.getvalue())["names"]
    assert ("exprots", 0, []) == (one["name"], one["in_use"], one["holders"])


def test_known_name_without_holders_is_shown_as_free(raw: redis.Redis, settings: Any) -> None:
    endpoints = {"shop:*": {"limit": 3, "name": "shop"}, "r:e": "named", "a:b": {"limit": 4}}
    endpoints["any:*"] = {"limit": lambda request: 5, "name": "any"}
    named = {"named": {"limit": 2}, "limitless": {"blocking_timeout": 1}}
    config = {"SEMAPHORES": named, "ENDPOINTS": endpoints}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, **config}
    with Lock("counted"):
        assert Lock("counted").acquire(blocking=False) is None
    eventually(lambda: listed("counted"))
    limits = {"named": 2, "shop": 3, "a:b": 4, "counted": 1, "any": None, "limitless": None}
    for name, limit in limits.items():
        state = "free" if limit is None else f"free, limit {limit}"
        assert f"{name}: {state}" == locks("status", name).splitlines()[0]
    assert 2 == status_of("named", "7").limit
    with Semaphore("named", 9):
        assert 9 == status_of("named").limit
    # If many names are in use, the registry of names drops old names, but their counters remain.
    raw.delete(f"{settings.PREFIX}:names", *raw.keys("*{counted}:[il]*"))
    assert locks("status", "counted").startswith("counted: free")


def test_locks_status_shows_all_readable_names_if_one_name_can_not_be_read(
    raw: redis.Redis,
) -> None:
    with Lock("good"), Lock("spoiled"):
        eventually(lambda: listed("good", "spoiled"))
    raw.set(f"{settings.PREFIX}:{{spoiled}}:leases", "another program's")
    code, error = failed("status", stdout=(out := StringIO()))
    assert (1, True) == (code, error.startswith("1 name can't be read: spoiled. "))
    assert "good" in out.getvalue() and "spoiled" not in out.getvalue()
    failed("status", "--format", "json", stdout=(out := StringIO()))
    found = json.loads(out.getvalue())
    assert ["good"] == [one["name"] for one in found["names"]]
    ((name, error),) = [(one["name"], one["error"]) for one in found["unread"]]
    assert "spoiled" == name and "another program's value" in error and "{spoiled}" in error
    raw.delete(f"{settings.PREFIX}:names")
    assert "another program's value" in failed("status", "spoiled")[1]


def test_json_has_everything_that_the_table_shows(busy: None) -> None:
    found = as_json("status")
    by_name = {one["display"]: one for one in found["names"]}
    assert 10 == len(by_name)
    exports, (holder, _) = by_name["exports"], by_name["exports"]["holders"]
    about = "name key display kind limit callers_limit override paused_since paused_until in_use"
    about += " exclusive holding waiting conflicting_limit fence at members holders waiters recent"
    about += " ever suggested_limit suggested_limit_is_estimate"
    of_holder = "id since held_seconds ends_in_seconds permanent permits state fence host pid"
    of_holder += " thread label user request"
    assert {*about.split()} <= {*exports}, "scripts rely on these keys"
    assert {*of_holder.split()} <= {*holder}, "scripts rely on these keys"
    assert (2, 2, 0) == (exports["in_use"], exports["limit"], exports["waiting"])
    assert (os.uname().nodename, os.getpid()) == (holder["host"], holder["pid"])
    assert 0 <= holder["held_seconds"] < 60 and 0 < holder["ends_in_seconds"] <= 30
    (forever,) = by_name["for ever"]["holders"]
    assert (True, None) == (forever["permanent"], forever["ends_in_seconds"])
    assert 2 == by_name["clash"]["conflicting_limit"]["limit"]
    assert by_name["index"]["exclusive"] is True
    assert status_of("exports").holders[0].token not in json.dumps(found)
    (one,) = as_json("status", "exports")["names"]
    assert (1, 60) == (one["recent"]["timed_out"], one["recent"]["minutes"])
    assert one["suggested_limit"] is None


def test_control_characters_are_shown_as_escapes(
    busy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for page in (locks("status", "evil"), locks("status", "evil", force_color=True)):
        assert r"\x1b[31mred\u202e\nnew line" in page and "\u202e" not in page
    with Lock("clears the screen", label="\x1b[2J"):
        assert "  \\x1b[2J" in locks("status", "clears the screen")
    monkeypatch.setattr(Terminal, "encoding", "latin-1")  # Latin-1 has no Chinese characters
    assert r"\u62a5\u8868" in on_terminal("status")


@pytest.mark.parametrize("width", range(80, 200, 17))
def test_output_fits_the_width_of_a_terminal(
    busy: None, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for words in ([], ["exports"], ["clash"], ["报表导出-" + "很" * 20], ["api"]):
        lines = on_terminal("status", *words).splitlines()
        assert [] == [line for line in lines if columns(line) > width]
        # Numbers are aligned even in rows with Chinese characters, which are two columns wide.
        ends = [columns(line[: line.index("1/1") + 3]) for line in lines if "1/1" in line]
        assert len({*ends}) <= 1
        assert not words or "…" not in "".join(lines), "a text is cut"
    words = " ".join(on_terminal("status", "clash").split())
    assert "Callers disagree on the limit: 2 until " in words


def test_narrow_terminal_shows_whole_names_and_notes(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = "reports:monthly-statements-of-all-tenants"
    with Lock("other"), contextlib.ExitStack() as stack:
        held = Lock(name, timeout=math.inf, thread_local=False).acquire()
        for wait in ({"blocking": False}, {"blocking_timeout": 0.01}):
            assert Lock(name, thread_local=False, **wait).acquire() is None
        thread = Thread(target=lambda: Lock(name, blocking_timeout=60).acquire().release())
        thread.start()
        stack.callback(thread.join)
        stack.callback(held.release)
        eventually(lambda: by_name(locks("status")).get(name, {}).get("WAITING") == "1")
        eventually(lambda: by_name(locks("status"))[name]["REJECTED"] == "1")
        act("pause", name)
        stack.callback(act, "resume", name)
        lines = [line.strip() for line in on_terminal("status").splitlines()]
        assert name in lines and "paused, permanent" in lines
        assert by_name(locks("status"))[name]["NOTES"] == "paused, permanent", "no terminal"


def test_locks_status_exits_with_0_when_the_reader_closes_the_pipe(busy: None) -> None:
    command = f"{sys.executable} -m django locks status | head -1; echo ${{PIPESTATUS[0]}}"
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": str(ROOT)}
    options: Any = {"shell": True, "executable": "/bin/bash", "capture_output": True}
    done = subprocess.run(command, env={**env, "PYTHONWARNINGS": ""}, text=True, **options)
    assert (done.stdout.split()[-1], done.stderr) == ("0", "")


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Return an empty list, to which a test adds functions.

    After each frame that `--watch 0.1` prints, the first function of the list is removed and
    called. If the list is empty, the process gets SIGINT, as if a user had pressed Ctrl-C."""
    calls: list[Callable[[], object]] = []
    sleep = time.sleep

    def pause(seconds: float) -> None:
        if seconds == 0.1:
            calls.pop(0)() if calls else os.kill(os.getpid(), signal.SIGINT)
        sleep(seconds)

    monkeypatch.setattr("time.sleep", pause)
    return calls


def frames_of(*words: str, **options: Any) -> list[list[str]]:
    """Run `locks status --watch` on a terminal. Return each frame as lines without escape codes."""
    shown = on_terminal("status", *words, "--watch", "0", **options)
    head, *frames = shown.split("\x1b[H")
    assert "\x1b[?1049h\x1b[?25l\x1b[?7l" == head, "the alternate screen cuts long lines"
    assert shown.endswith("\x1b[?7h\x1b[?25h\x1b[?1049l")
    # No frame clears the whole screen. Each frame overwrites the previous frame, and then clears
    # the lines below it.
    assert "\x1b[2J" not in shown and all(1 == frame.count("\x1b[J") for frame in frames)
    return [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", frame).split("\n") for frame in frames]


@pytest.mark.parametrize("color", [True, False])
def test_watch_mode_redraws_in_place_and_restores_the_terminal(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, pauses: Any, color: bool
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "14")
    before = signal.getsignal(signal.SIGTERM)
    leases: list[Any] = []

    def hold(count: int) -> None:
        semaphore = Semaphore("watched", 30, label="报表 a label that has to be cut")
        leases.extend(semaphore.acquire() for _ in range(count))

    pauses += [partial(hold, 1), partial(hold, 29)]
    pauses += [lambda: os.kill(os.getpid(), signal.SIGTERM)] * color
    idle, one, many = frames_of("watched", force_color=color)
    assert "Unknown name: watched." in " ".join(idle)
    assert re.fullmatch(r"[\d:]{8}, refreshed every 100 ms. Press Ctrl-C to stop.", idle[0]), (
        "the interval of 0 s is not raised to 100 ms"
    )
    assert ["watched: 1 of 30 in use", "watched: 30 of 30 in use"] == [one[2], many[2]]
    assert (14, "… 24 more lines: make the terminal higher") == (len(many), many[-1])
    assert signal.getsignal(signal.SIGTERM) is before
    for lease in leases:
        lease.release()


def test_watch_mode_continues_while_redis_is_down(
    new_server: Any, settings: Any, pauses: Any
) -> None:
    server = new_server()
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": server.url}}
    pauses += [server.kill, server.restart]
    texts = [" ".join(frame) for frame in frames_of("watched")]
    assert [True, False, True] == ["Unknown name: watched." in text for text in texts]
    assert "is LOCATION in CACHES its address?" in texts[1]


def test_watch_mode_on_a_pipe_prints_one_json_line_per_interval(
    raw: redis.Redis, pauses: Any
) -> None:
    pauses += [lambda: None]
    lines = locks("status", "a", "--format", "json", "--watch", "0.1").splitlines()
    assert ["a", "a"] == [json.loads(line)["names"][0]["display"] for line in lines]
