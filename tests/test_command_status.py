"""`manage.py locks status`: as a table, as JSON, on a terminal, and with `--watch`."""

import contextlib
import fcntl
import json
import math
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import redis
from django.conf import settings
from django.core.management import CommandError, call_command

from django_redis_sync import Lock, ReadWriteLock, Semaphore
from django_redis_sync.limits import identity
from django_redis_sync.management import terminal
from django_redis_sync.operators import actions
from django_redis_sync.operators.names import names_in_use
from django_redis_sync.operators.status import status_of
from django_redis_sync.protocol.keys import keys_of
from tests.behaviour.both import eventually
from tests.support import worker_processes
from tests.support.commands import locks
from tests.support.keepers import fresh_keeper, listed  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("fresh_keeper")

ROOT = Path(__file__).resolve().parent.parent
MANAGE = ["-m", "django", "locks"]

# Makes the pseudo-terminal the command's controlling terminal, so that Ctrl-C reaches the command.
ON_TERMINAL = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv("
ON_TERMINAL += "sys.executable, [sys.executable, *sys.argv[1:]])"


def store_foreign_value(raw: redis.Redis, name: str) -> None:
    """Store another program's value under the key of a name's leases."""
    raw.set(keys_of(settings.PREFIX, name).leases, "precious")


def environment(**more: str) -> dict[str, str]:
    known = {"DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": str(ROOT)}
    return {**os.environ, "PYTHONWARNINGS": "", **known, **more}


@pytest.fixture
def busy(raw: redis.Redis) -> Iterator[None]:
    """Names in use: some full, permanent, exclusive, of many keys, or with unusual characters."""
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            label = "reports.views.export_everything_for_the_accountants_of_all_countries"
            stack.enter_context(Semaphore("exports", 2, label=label))
        stack.enter_context(Lock("报表导出-" + "很" * 20, label="报表.任务"))
        stack.enter_context(Lock("for ever", timeout=math.inf))
        stack.enter_context(Lock("evil", label="\x1b[31mred\u202e\nnew line"))
        stack.enter_context(ReadWriteLock("index").write)
        stack.enter_context(ReadWriteLock("config").read)
        for key in ("1", "42", identity.digest("ip", "10.0.0.1")):
            stack.enter_context(Semaphore("api", 5, key=key))
        for limit in (2, 4):
            stack.enter_context(Semaphore("clash", limit))
        assert Semaphore("exports", 2).acquire(blocking=False) is None
        eventually(lambda: len(names_in_use()) >= 10)
        yield


def rows(text: str) -> list[dict[str, str]]:
    """Return the rows of all tables in a text: the cells by column title, in any order."""
    found: list[dict[str, str]] = []
    for block in text.split("\n\n"):
        head: list[tuple[str, int, int]] = []
        for line in block.splitlines():
            if re.fullmatch(r"(#|[A-Z]+( [A-Z]+)*)(  +[A-Z]+( [A-Z]+)*)+", line):
                head = [(one[0], *one.span()) for one in re.finditer(r"#|[A-Z]+( [A-Z]+)*", line)]
            elif head:
                cells = [(one[0], *one.span()) for one in re.finditer(r"\S+( \S+)*", line)]
                row = {}
                for title, start, end in head:
                    # A cell begins or ends below its title.
                    row[title] = next(
                        (text for text, left, right in cells if start == left or end == right), ""
                    )
                found.append(row)
    return found


def by_name(text: str) -> dict[str, dict[str, str]]:
    return {row["NAME"]: row for row in rows(text)}


# The table


@pytest.mark.promise(25)
def test_list_has_one_row_for_each_name_and_each_policy(busy: None) -> None:
    actions.pause("api")
    found = by_name(locks("status"))
    assert 8 == len(found)
    assert ("2/2", "0") == (found["exports"]["IN USE"], found["exports"]["WAITING"])
    assert "1" == found["exports"]["REJECTED"] and found["exports"]["HELD FOR"]
    assert ("3", "3") == (found["api"]["KEYS"], found["api"]["IN USE"])
    assert "writer" == found["index"]["IN USE"]
    notes = {"api": "paused", "clash": "callers disagree", "for ever": "permanent"}
    assert notes == {name: row["NOTES"] for name, row in found.items() if row["NOTES"]}


@pytest.mark.promise(25, 28)
def test_page_shows_host_process_and_lease_of_each_holder(busy: None) -> None:
    page = locks("status", "exports")
    lease = status_of("exports").holders[0]
    assert "exports: 2 of 2 in use\n" in page
    row = next(row for row in rows(page) if row["HOLDER"] == lease.id)
    assert f"{os.uname().nodename}:{os.getpid()}" == row["WHERE"]
    assert "1" == row["PERMITS"] and row["HELD FOR"] and row["LEASE LEFT"]
    # Output that isn't a terminal is neither shortened nor colored.
    assert row["WHO"].startswith("reports.views.export_everything_for_the_accountants_of_all_c")
    assert lease.token not in page and "…" not in page and "\x1b" not in page
    assert "Last 60 min: granted 2, at most 2 in use." in page
    assert "Trouble: rejected 1." in page


def test_page_shows_permanent_retained_and_exclusive_holders(raw: redis.Redis) -> None:
    Semaphore("s", 9, min_hold=60, label="early").acquire().release()
    with Semaphore("s", 9, timeout=math.inf, label="endless"), ReadWriteLock("rw").write:
        lease = Semaphore("s", 9, label="two").acquire(permits=2)
        found = rows(locks("status", "s"))
        (writer,) = rows(locks("status", "rw"))
        lease.release()

    def shown(label: str) -> dict[str, str]:
        return next(row for row in found if label in row["WHO"])

    assert ("2", "1") == (shown("two")["PERMITS"], shown("endless")["PERMITS"])
    assert "permanent" in shown("endless")["LEASE LEFT"]
    assert "retained by min_hold" in shown("early")["WHO"]
    assert "all" == writer["PERMITS"]


def test_page_shows_position_and_missed_heartbeat_of_a_waiter(raw: redis.Redis) -> None:
    with Lock("a"), subprocess_waiter("a") as waiter:
        eventually(lambda: status_of("a").waiting)
        page = locks("status", "a")
        assert "a: 1 of 1 in use, 1 waits\n" in page
        row = next(row for row in rows(page) if row.get("WAITER"))
        assert ("1", "1") == (row["#"], row["PERMITS"]) and row["WHO"].startswith("a waiter")
        waiter.send_signal(signal.SIGSTOP)
        eventually(lambda: "(silent)" in locks("status", "a"), 30)


def test_page_explains_a_permit_that_was_handed_off(raw: redis.Redis) -> None:
    lease = Lock("a").acquire()
    with subprocess_waiter("a") as waiter:
        eventually(lambda: status_of("a").waiting)
        waiter.send_signal(signal.SIGSTOP)
        lease.release()
        page = locks("status", "a")
    assert "\n* It waited, and was granted its permit" in page
    assert rows(page)[0]["LEASE LEFT"].endswith("*")


def test_page_of_a_policy_with_many_keys_has_one_row_for_each_key(raw: redis.Redis) -> None:
    with contextlib.ExitStack() as stack:
        for n in range(21):
            stack.enter_context(Semaphore("api", 3, key=f"k{n}"))
        stack.enter_context(Semaphore("few", 3, key="k", label="me"))
        eventually(lambda: listed(*(f"api@k{n}" for n in range(21)), "few@k"))
        page = locks("status", "api")
        assert page.startswith("api: 21 keys, 21 in use, 0 waiting, limit 3 each\n")
        assert 20 == len(rows(page)) and all("1/3" == row["IN USE"] for row in rows(page))
        assert "20 of 21 are shown" not in page
        one = locks("status", "api", "--sort", "name", "--top", "1")
        assert ["api@k0"] == [*by_name(one)] and "1 of 21 are shown: see --top" in one
        assert ["me"] == [row["WHO"].split(",")[0] for row in rows(locks("status", "few"))]


def test_color_is_used_only_on_demand_or_on_a_terminal(busy: None) -> None:
    assert re.search(r"\x1b\[[\d;]+m2/2", locks("status", force_color=True)), "a full name"
    assert "\x1b[" not in locks("status")


def test_list_begins_with_names_in_trouble(busy: None) -> None:
    with Lock("a-quiet-name"):
        eventually(lambda: "a-quiet-name" in locks("status"))
        names = [line.split("  ")[0] for line in locks("status").splitlines()[1:]]
    assert names.index("exports") < names.index("a-quiet-name"), "exports rejected a call"


def test_list_without_names_is_one_sentence(raw: redis.Redis) -> None:
    assert locks("status") == "No lock or semaphore was used within the last day.\n"


def error_of_unknown_name(*words: str) -> str:
    """Return the error for an unknown name. Check that nothing else is printed."""
    out = StringIO()
    with pytest.raises(CommandError) as caught:
        call_command("locks", *words, stdout=out)
    assert caught.value.returncode == 3 and out.getvalue() == ""
    return str(caught.value)


def test_unknown_name_is_an_error_that_suggests_known_names(busy: None) -> None:
    error = (
        "Unknown name: exprots. It is not configured and was not used within the last day. "
        "Did you mean exports?"
    )
    assert error_of_unknown_name("status", "exprots") == error
    assert error_of_unknown_name("status", "zzz").endswith("within the last day.")
    assert "Did you mean api@42, " in error_of_unknown_name("status", "api", "--key", "43")
    assert "Did you mean api@42" in error_of_unknown_name("status", "apu@42")


def test_known_name_without_holders_is_shown_as_free(
    raw: redis.Redis, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REDIS_SYNC = {
        **settings.REDIS_SYNC,
        "SEMAPHORES": {"in-settings": {"limit": 2}},
        "ENDPOINTS": {"shop:*": {"limit": 3, "name": "shop"}, "r:e": "in-settings"},
    }
    actions.pause("paused")
    actions.resume("paused")
    with Lock("just-used"):
        pass
    with Lock("counted"):
        assert Lock("counted").acquire(blocking=False) is None
    eventually(lambda: len(names_in_use()) >= 2)
    for name in ("in-settings", "shop", "just-used", "counted"):
        assert locks("status", name).startswith(f"{name}: free")
    # A busy registry drops old names, but their counters remain.
    raw.delete(f"{settings.PREFIX}:names", *raw.keys("*{counted}:[il]*"))
    assert locks("status", "counted").startswith("counted: free")


def test_json_of_an_unknown_name_is_complete_and_the_exit_code_is_3(busy: None) -> None:
    out = StringIO()
    with pytest.raises(CommandError, match="Did you mean exports") as caught:
        call_command("locks", "status", "exprots", "--format", "json", stdout=out)
    assert caught.value.returncode == 3
    (one,) = json.loads(out.getvalue())["names"]
    assert (one["name"], one["in_use"], one["holders"]) == ("exprots", 0, [])


@contextlib.contextmanager
def subprocess_waiter(name: str) -> Iterator[worker_processes.Process]:
    code = "import django; django.setup(); from django_redis_sync import Lock\n"
    code += f"Lock({name!r}, label='a waiter').acquire()"
    with worker_processes.Process("-c", code, env=environment()) as waiter:
        try:
            yield waiter
        finally:
            waiter.kill()


def test_page_shows_overrides_and_how_to_undo_them(busy: None) -> None:
    actions.pause("exports")
    actions.resize("exports", None, 7)
    page = locks("status", "exports")
    assert re.search(r"Paused for .*: no permits are granted. Undo: locks resume exports", page)
    assert "An operator set the limit to 7. The callers’ own limit is 2." in page
    actions.pause("exports", "ann b")
    page = locks("status", "exports", "--key", "ann b")
    assert "Undo: locks resume exports --key 'ann b'" in " ".join(page.split())
    assert "Callers disagree on the limit: 4 and, " in locks("status", "clash")


def test_control_characters_are_shown_as_escapes(busy: None) -> None:
    for page in (locks("status", "evil"), locks("status", "evil", force_color=True)):
        assert r"\x1b[31mred\u202e\nnew line" in page
        assert "\u202e" not in page
    with Lock("clears the screen", label="\x1b[2J"):
        assert "  \\x1b[2J" in locks("status", "clears the screen")


def test_letters_that_the_terminal_lacks_are_shown_as_escapes(busy: None) -> None:
    done = subprocess.run(
        [sys.executable, *MANAGE, "status"],
        env=environment(PYTHONIOENCODING="ascii", PYTHONUTF8="0"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert r"\u62a5\u8868" in done.stdout


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("name", ["a 2", "a 10", "b"]),
        ("recent", ["b", "a 2", "a 10"]),
        ("use", ["a 10", "b", "a 2"]),
        ("rejected", ["a 2", "a 10", "b"]),
        ("oldest", ["b", "a 2", "a 10"]),
    ],
)
def test_list_has_the_order_of_the_sort_option(
    raw: redis.Redis, order: str, names: list[str]
) -> None:
    with Semaphore("b", 2), Semaphore("a 2", 3), Semaphore("a 10", 1):
        for name, limit in (("a 2", 3), ("a 2", 3), ("a 10", 1)):
            assert Semaphore(name, limit).acquire(blocking=False, permits=limit) is None
        eventually(lambda: listed(*names))
        raw.zadd(f"{settings.PREFIX}:names", {"a 10": 1, "a 2": 2, "b": 3})
        assert names == [*by_name(locks("status", "--sort", order))]


# Which name is meant


def test_page_of_a_policy_shows_all_keys_or_the_key_given(busy: None) -> None:
    page = locks("status", "api")
    assert page.startswith("api: 3 keys, 3 in use, 0 waiting, limit 5 each\n")
    assert page.count(" of 5 in use\n") == 3
    for words in (["api", "--key", "42"], ["api@42"]):
        assert locks("status", *words).startswith("api@42: 1 of 5 in use\n")
    address = identity.digest("ip", "10.0.0.1")  # request policies store the digest
    page = locks("status", "api", "--key", "10.0.0.1")
    assert page.startswith(f"api@{address}: 1 of 5 in use\n")


def test_name_with_an_at_sign_precedes_a_policy_with_that_key(raw: redis.Redis) -> None:
    with Lock("a@b"), Semaphore("a", 3, key="b"):
        eventually(lambda: len(names_in_use()) >= 2)
        assert "1 of 1 in use" in locks("status", "a@b")


# JSON


def test_json_has_everything_that_the_table_shows(busy: None) -> None:
    found = json.loads(locks("status", "--format", "json"))
    by_name = {one["display"]: one for one in found["names"]}
    assert len(by_name) == 10
    exports = by_name["exports"]
    about = "name key display kind limit callers_limit override paused_since paused_until in_use"
    about += " exclusive holding waiting conflicting_limit fence at members holders waiters recent"
    about += " ever suggested_limit suggested_limit_is_estimate"
    assert {*about.split()} <= {*exports}, "scripts rely on these keys"
    of_holder = "id since held_seconds ends_in_seconds permanent permits state fence host pid"
    of_holder += " thread label user request"
    assert {*of_holder.split()} <= {*exports["holders"][0]}
    assert (exports["in_use"], exports["limit"], exports["waiting"]) == (2, 2, 0)
    holder = exports["holders"][0]
    assert holder["host"] == os.uname().nodename and holder["pid"] == os.getpid()
    assert 0 <= holder["held_seconds"] < 60 and 0 < holder["ends_in_seconds"] <= 30
    assert by_name["for ever"]["holders"][0]["permanent"] is True
    assert by_name["for ever"]["holders"][0]["ends_in_seconds"] is None
    assert by_name["clash"]["conflicting_limit"]["limit"] == 2
    assert by_name["index"]["exclusive"] is True
    token = status_of("exports").holders[0].token
    assert token not in json.dumps(found)
    one = json.loads(locks("status", "exports", "--format", "json"))["names"][0]
    assert one["recent"]["rejected"] == 1 and one["recent"]["minutes"] == 60
    assert one["suggested_limit"] is None


# When Redis is down


@pytest.mark.parametrize(("action", "code"), [("status", 1), ("doctor", 2)])
def test_command_prints_one_line_and_fails_while_redis_is_down(action: str, code: int) -> None:
    dead = environment(DJANGO_REDIS_SYNC_TEST_URL="redis://me:secret@127.0.0.1:1/0")
    done = worker_processes.run(*MANAGE, action, env=dead)
    assert done.returncode == code
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "127.0.0.1:1" in line and "LOCATION in CACHES" in line
    assert "secret" not in line


def test_pipe_closed_by_its_reader_is_not_an_error(busy: None) -> None:
    done = subprocess.run(
        f"{sys.executable} -m django locks status | head -1; echo ${{PIPESTATUS[0]}}",
        env=environment(),
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
    )
    assert (done.stdout.split()[-1], done.stderr) == ("0", "")


# --watch


class Terminal:
    """A command on a pseudo-terminal of 80 × 24."""

    def __init__(self, *words: str, **more: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", ON_TERMINAL, *MANAGE, *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env=environment(TERM="xterm-256color", **more),
        )
        os.close(slave)
        self.seen = ""

    def read_until(self, wanted: str, seconds: float = 15.0) -> str:
        """Return the output since the last call, up to at least `wanted` (without colors)."""
        start, end = len(self.seen), time.monotonic() + seconds
        while wanted not in re.sub(r"\x1b\[[0-9;]*m", "", self.seen[start:]):
            assert time.monotonic() < end, self.seen
            if select.select([self._master], [], [], 0.1)[0]:
                self.seen += os.read(self._master, 65536).decode()
        return self.seen[start:]

    def type(self, text: bytes) -> None:
        os.write(self._master, text)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def wait(self) -> int:
        try:
            while True:  # reading fails once the process has exited
                if select.select([self._master], [], [], 5)[0]:
                    self.seen += os.read(self._master, 65536).decode()
        except OSError:
            pass
        os.close(self._master)
        return self.process.wait(30)


@pytest.mark.parametrize("ends", ["ctrl-c", "sigterm"])
def test_watch_redraws_in_place_and_restores_the_terminal(raw: redis.Redis, ends: str) -> None:
    with Terminal("status", "watched", "--watch", "0") as screen:
        screen.read_until("Unknown name: watched")
        with Lock("watched", label="a long label that has to be cut at eighty columns, surely"):
            frames = screen.read_until("1 of 1 in use\x1b")
            frames += screen.read_until("a long label that")
        screen.read_until("watched: free")
        with contextlib.ExitStack() as stack:
            for _ in range(30):
                stack.enter_context(Semaphore("watched", 30))
            frames += screen.read_until("more lines: make the terminal higher")
        if ends == "ctrl-c":
            screen.type(b"\x03")
        else:
            screen.process.send_signal(signal.SIGTERM)
        assert screen.wait() == 0
    assert "every 100 ms" in screen.seen  # the shortest interval, though 0 was given
    assert screen.seen.startswith("\x1b[?1049h\x1b[?25l\x1b[H")
    assert screen.seen.replace("^C", "").endswith("\x1b[?25h\x1b[?1049l")
    # The screen is never cleared as a whole: lines are overwritten and then cleared to their right.
    assert "\x1b[2J" not in screen.seen
    for frame in frames.split("\x1b[H")[1:-1]:
        assert frame.count("\x1b[J") == 1 and frame.endswith("\x1b[J")
        lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", frame).split("\r\n")
        assert len(lines) <= 24 and all(terminal.wide(line) <= 80 for line in lines)


def test_watch_continues_while_redis_is_down(new_server: Any) -> None:
    server = new_server()
    words = ("status", "watched", "--watch", "0.1")
    with Terminal(*words, DJANGO_REDIS_SYNC_TEST_URL=server.url) as screen:
        screen.read_until("Unknown name: watched")
        server.kill()
        screen.read_until("is LOCATION in CACHES")
        server.restart()
        screen.read_until("Unknown name: watched")


def test_watch_on_a_pipe_prints_one_json_line_per_interval(raw: redis.Redis) -> None:
    words = ("status", "a", "--format", "json", "--watch", "0.1")
    with worker_processes.Process(*MANAGE, *words, env=environment()) as watch:
        lines = [json.loads(watch.line()) for _ in range(3)]
        watch.send_signal(signal.SIGINT)
        assert watch.wait(10) == 0
    assert [line["names"][0]["display"] for line in lines] == ["a"] * 3


def test_list_shows_other_names_when_one_can_not_be_read(raw: redis.Redis) -> None:
    with Lock("good"), Lock("spoiled"):
        eventually(lambda: listed("good", "spoiled"))
    store_foreign_value(raw, "spoiled")
    out = StringIO()
    with pytest.raises(CommandError, match="1 name can't be read: spoiled") as caught:
        call_command("locks", "status", stdout=out)
    assert 1 == caught.value.returncode
    assert "good" in out.getvalue() and "spoiled" not in out.getvalue()

    out = StringIO()
    with pytest.raises(CommandError):
        call_command("locks", "status", format="json", stdout=out)
    found = json.loads(out.getvalue())
    assert ["good"] == [one["name"] for one in found["names"]]
    assert ["spoiled"] == [one["name"] for one in found["unread"]]
    error = found["unread"][0]["error"]
    assert "another program's value" in error and "{spoiled}" in error  # the key is named


def test_status_fails_when_no_name_can_be_read(raw: redis.Redis) -> None:
    with Lock("spoiled"):
        eventually(lambda: listed("spoiled"))
    store_foreign_value(raw, "spoiled")
    with pytest.raises(CommandError, match="another program's value"):
        locks("status")
    with pytest.raises(CommandError, match="another program's value"):
        locks("status", "spoiled")
