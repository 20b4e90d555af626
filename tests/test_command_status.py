"""`manage.py locks status`: as a table, as JSON, on a terminal, again and again."""

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
from django.core.management.color import no_style

from django_redis_sync import Lock, ReadWriteLock, Semaphore
from django_redis_sync.limits import identity
from django_redis_sync.management import display, looking, terminal
from django_redis_sync.management.commands.locks import Command
from django_redis_sync.operators import actions
from django_redis_sync.operators.doctor import Finding
from django_redis_sync.operators.names import names_in_use
from django_redis_sync.operators.status import _record, status_of
from django_redis_sync.operators.words import duration
from django_redis_sync.protocol.keys import keys_of
from tests.behaviour.both import eventually
from tests.support import nursery
from tests.support.keepers import fresh_keeper, listed  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("fresh_keeper")

ROOT = Path(__file__).resolve().parent.parent
MANAGE = ["-m", "django", "locks"]

# Gives the command a terminal of its own, as a shell does: Ctrl-C reaches it.
ON_TERMINAL = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv("
ON_TERMINAL += "sys.executable, [sys.executable, *sys.argv[1:]])"


def locks(*words: str, **options: Any) -> str:
    out = StringIO()
    call_command("locks", *words, stdout=out, **options)
    return out.getvalue()


def spoil(raw: redis.Redis, name: str) -> None:
    """Another program's value, where the leases of a name would be."""
    raw.set(keys_of(settings.PREFIX, name).leases, "precious")


def environment(**more: str) -> dict[str, str]:
    known = {"DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": str(ROOT)}
    return {**os.environ, "PYTHONWARNINGS": "", **known, **more}


@pytest.fixture
def busy(raw: redis.Redis) -> Iterator[None]:
    """A name with holders and waiters, and several that are odd in some way."""
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


# The table


def test_the_list_has_a_line_for_each_name_and_one_for_a_policy(busy: None) -> None:
    actions.pause("api")
    head, *lines = locks("status").splitlines()
    assert re.split(r"  +", head) == [
        "NAME",
        "KEYS",
        "IN USE",
        "WAITING",
        "REFUSED",
        "HELD FOR",
        "NOTES",
    ]
    rows = {line.split("  ")[0]: line for line in lines}
    assert len(rows) == 8
    assert re.search(r"exports +2/2 +0 ", rows["exports"])
    assert re.search(r"api +3 +3 +0 .*paused", rows["api"])
    assert rows["clash"].endswith("callers disagree")
    assert rows["for ever"].endswith("permanent")
    assert " writer " in rows["index"]


def test_nothing_is_said_in_one_sentence(raw: redis.Redis) -> None:
    assert locks("status") == "No lock or semaphore was used within the last day.\n"


def unheard_of(*words: str) -> str:
    """What is said of a name that nobody knows; nothing else is."""
    out = StringIO()
    with pytest.raises(CommandError) as caught:
        call_command("locks", *words, stdout=out)
    assert caught.value.returncode == 3 and out.getvalue() == ""
    return str(caught.value)


def test_a_name_that_nobody_knows_is_no_free_one(busy: None) -> None:
    said = "Nothing is known of exprots: nobody used it within the last day. Did you mean exports?"
    assert unheard_of("status", "exprots") == said
    assert unheard_of("status", "zzz").endswith("within the last day.")
    assert "Did you mean api@42, " in unheard_of("status", "api", "--key", "43")
    assert "Did you mean api@42" in unheard_of("status", "apu@42")


def test_a_name_that_is_known_may_be_free(
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
    # Dropped from the registry, which holds the newest: the counters are left.
    raw.delete(f"{settings.PREFIX}:names", *raw.keys("*{counted}:[il]*"))
    assert locks("status", "counted").startswith("counted: free")


def test_json_of_an_unknown_name_is_whole_and_the_code_says_so(busy: None) -> None:
    out = StringIO()
    with pytest.raises(CommandError, match="Did you mean exports") as caught:
        call_command("locks", "status", "exprots", "--format", "json", stdout=out)
    assert caught.value.returncode == 3
    (one,) = json.loads(out.getvalue())["names"]
    assert (one["name"], one["in_use"], one["holders"]) == ("exprots", 0, [])


def test_a_page_answers_who_holds_since_when_where_and_whether_it_was_too_small(
    busy: None, raw: redis.Redis
) -> None:
    page = locks("status", "exports")
    lease = status_of("exports").holders[0]
    assert "exports: 2 of 2 in use\n" in page
    assert page.count(f"{os.uname().nodename}:{os.getpid()}") == 2
    assert re.search(rf"{lease.id} +[\d.]+ m?s +\d+ s +1 ", page)
    assert lease.token not in page
    # On a pipe nothing is cut and nothing is coloured.
    assert "reports.views.export_everything_for_the_accountants_of_all_countries" in page
    assert "…" not in page and "\x1b" not in page
    assert "Last 60 min: granted 2, at most 2 in use." in page
    assert "Trouble: rejected 1." in page


def test_a_page_shows_waiters_in_order(raw: redis.Redis) -> None:
    with Lock("a"), subprocess_waiter("a"):
        eventually(lambda: status_of("a").waiting)
        page = locks("status", "a")
        assert "a: 1 of 1 in use, 1 waits\n" in page
        assert re.search(r"^1  [0-9a-f]{8} +\S+ m?s +1  \S+:\d+ +a waiter", page, re.M)


def test_a_holder_by_hand_over_is_explained(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = _record
    monkeypatch.setattr(
        "django_redis_sync.operators.status._record", lambda text: ("g", *read(text)[1:])
    )
    with Lock("handed"):
        page = locks("status", "handed")
    assert re.search(r"^[0-9a-f]{8} +\S+ m?s +[\d.]+ s\*  ", page, re.M)
    assert "\n* Just handed over: it waited, and got its permit" in page
    assert "the permit goes to the next by itself within 5 s.\n" in page


def test_one_is_no_plural(raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding("x", "warning", "odd", "so it is", "mend it")
    last = display.findings([finding], None, no_style())[-1]
    assert last == "0 errors, 1 warning, 0 ok"
    with Semaphore("api", 2, key="1"), Semaphore("api", 2, key="2"):
        eventually(lambda: listed("api@1", "api@2"))
        assert "1 of 2 are shown: see --top" in locks(
            "status", "api", "--sort", "name", "--top", "1"
        )
    stream = StringIO()
    monkeypatch.setattr(terminal.shutil, "get_terminal_size", lambda **_: os.terminal_size((80, 3)))
    terminal.Screen(stream).draw(["1", "2", "3"])
    assert "more line" not in stream.getvalue()
    terminal.Screen(stream).draw(["1", "2", "3", "4"])
    assert "… 2 more lines: make the terminal higher" in stream.getvalue()


@contextlib.contextmanager
def subprocess_waiter(name: str) -> Iterator[None]:
    code = "import django; django.setup(); from django_redis_sync import Lock\n"
    code += f"Lock({name!r}, label='a waiter').acquire()"
    with nursery.Process("-c", code, env=environment()) as waiter:
        try:
            yield
        finally:
            waiter.kill()


def test_marks_are_visible_with_the_way_back(busy: None) -> None:
    actions.pause("exports")
    actions.resize("exports", None, 7)
    page = locks("status", "exports")
    assert re.search(r"Paused for .*: nobody new gets in. Undo: locks resume exports", page)
    assert "An operator set the limit to 7; callers say 2." in page
    actions.pause("exports", "ann b")
    page = locks("status", "exports", "--key", "ann b")
    assert "Undo: locks resume exports --key 'ann b'" in " ".join(page.split())
    assert "Callers disagree on the limit: 4 and, " in locks("status", "clash")


def test_control_characters_are_shown_and_not_sent(busy: None) -> None:
    for page in (locks("status", "evil"), locks("status", "evil", force_color=True)):
        assert r"\x1b[31mred\u202e\nnew line" in page
        assert "\u202e" not in page


def test_a_terminal_that_lacks_letters_gets_escapes(busy: None) -> None:
    done = subprocess.run(
        [sys.executable, *MANAGE, "status"],
        env=environment(PYTHONIOENCODING="ascii", PYTHONUTF8="0"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert r"\u62a5\u8868" in done.stdout


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_tables_fit_the_terminal(busy: None, width: int) -> None:
    seen = looking.at(None, None, "", 100, None)
    lists = [display.overview(seen, width, no_style())]
    lists += [
        display.page(looking.at(g.name, None, "", 100, None), width, no_style())
        for g in seen.groups
    ]
    needed = 64 if width < 64 else width  # what can't give way any more is left to the terminal
    for line in (line for lines in lists for line in lines):
        assert terminal.wide(line) <= needed, line
    if width == 200:
        assert not any("…" in line for lines in lists for line in lines)


def test_columns_stay_aligned_with_wide_letters(busy: None) -> None:
    lines = locks("status").splitlines()
    use = {terminal.wide(line[: line.index("1/1") + 3]) for line in lines if "1/1" in line}
    assert len(use) == 1


# Which name is meant


def test_a_policy_shows_all_its_keys_and_one_by_key(busy: None) -> None:
    page = locks("status", "api")
    assert page.startswith("api: 3 keys, 3 in use, 0 waiting, limit 5 each\n")
    assert page.count(" of 5 in use\n") == 3
    for words in (["api", "--key", "42"], ["api@42"]):
        assert locks("status", *words).startswith("api@42: 1 of 5 in use\n")


def test_an_address_is_digested_as_request_policies_do(busy: None) -> None:
    assert locks("status", "api", "--key", "10.0.0.1").startswith(
        f"api@{identity.digest('ip', '10.0.0.1')}: 1 of 5 in use\n"
    )


def test_a_plain_name_with_an_at_sign_comes_first(raw: redis.Redis) -> None:
    with Lock("a@b"), Semaphore("a", 3, key="b"):
        eventually(lambda: len(names_in_use()) >= 2)
        assert "1 of 1 in use" in locks("status", "a@b")


# JSON


def test_json_holds_everything_the_table_shows(busy: None) -> None:
    found = json.loads(locks("status", "--format", "json"))
    by_name = {one["display"]: one for one in found["names"]}
    assert len(by_name) == 10
    exports = by_name["exports"]
    assert (exports["in_use"], exports["limit"], exports["waiting"]) == (2, 2, 0)
    holder = exports["holders"][0]
    assert holder["host"] == os.uname().nodename and holder["pid"] == os.getpid()
    assert 0 <= holder["held_seconds"] < 60 and 0 < holder["ends_in_seconds"] <= 30
    assert by_name["for ever"]["holders"][0]["permanent"] is True
    assert by_name["for ever"]["holders"][0]["ends_in_seconds"] is None
    assert by_name["clash"]["clash"]["limit"] == 2
    assert by_name["index"]["exclusive"] is True
    token = status_of("exports").holders[0].token
    assert token not in json.dumps(found)
    one = json.loads(locks("status", "exports", "--format", "json"))["names"][0]
    assert one["recent"]["rejected"] == 1 and one["recent"]["minutes"] == 60
    assert one["suggested_limit"] is None


# When Redis is down


@pytest.mark.parametrize(("action", "code"), [("status", 1), ("doctor", 2)])
def test_redis_down_is_one_line_and_an_exit_code(action: str, code: int) -> None:
    dead = environment(DJANGO_REDIS_SYNC_TEST_URL="redis://me:secret@127.0.0.1:1/0")
    done = nursery.run(*MANAGE, action, env=dead)
    assert done.returncode == code
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "127.0.0.1:1" in line and "LOCATION in CACHES" in line
    assert "secret" not in line


def test_a_reader_that_leaves_early_is_no_error(busy: None) -> None:
    done = subprocess.run(
        f"{sys.executable} -m django locks status | head -1; echo ${{PIPESTATUS[0]}}",
        env=environment(),
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
    )
    assert (done.stdout.split()[-1], done.stderr) == ("0", "")


@pytest.mark.parametrize(
    "words",
    [
        ("status", "--sort", "age"), ("status", "--format", "yaml"), ("status", "--top", "0"),
        ("status", "--watch", "soon"), ("status", "--watch", "-1"), ("log", "--format", "yaml"),
        ("log", "--top", "some"), ("resize", "exports", "0"), ("resize", "exports", "many"),
        ("run", "exports", "--limit", "0"), ("run", "exports", "--wait", "-1"),
        ("run", "exports", "--wait", "nan"), ("run", "exports", "--min-hold", "1e9"),
        ("clear",), ("pause",), ("resume",), ("run",), ("stat",), (),
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_before_anything_is_done(words: tuple[str, ...]) -> None:
    with pytest.raises(CommandError, match="argument"):
        call_command("locks", *words)


def test_the_help_of_run_says_where_the_command_stands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Command().create_parser("manage.py", "locks").parse_args(["run", "--help"])
    usage = " ".join(capsys.readouterr().out.partition("\n\n")[0].split())
    assert usage.startswith("usage: manage.py locks run NAME ") and usage.endswith("-- COMMAND ...")


@pytest.mark.parametrize(
    "option",
    [
        ("--settings", "x"), ("--pythonpath", "."), ("-v", "2"), ("--verbosity", "0"),
        ("--traceback",), ("--no-color",), ("--force-color",), ("--using", "other"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_an_option_may_stand_behind_the_action_too(option: tuple[str, ...]) -> None:
    parser = Command().create_parser("manage.py", "locks")
    before, behind = (
        vars(parser.parse_args(words)) for words in ([*option, "status"], ["status", *option])
    )
    assert before == behind != vars(parser.parse_args(["status"]))


def test_a_key_needs_a_name(raw: redis.Redis) -> None:
    with pytest.raises(CommandError) as caught:
        locks("status", "--key", "1")
    assert caught.value.returncode == 2


# Again and again


class Terminal:
    """A command on a pseudo-terminal of 80 × 24."""

    def __init__(self, *words: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", ON_TERMINAL, *MANAGE, *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env=environment(TERM="xterm-256color"),
        )
        os.close(slave)
        self.seen = ""

    def read_until(self, wanted: str, seconds: float = 15.0) -> str:
        """What came since the last call, to `wanted` (without colours) at least."""
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
            while True:  # a terminal whose process is gone says so by an error
                if select.select([self._master], [], [], 5)[0]:
                    self.seen += os.read(self._master, 65536).decode()
        except OSError:
            pass
        os.close(self._master)
        return self.process.wait(30)


@pytest.mark.parametrize("ends", ["ctrl-c", "sigterm"])
def test_watch_redraws_in_place_and_leaves_the_terminal_as_it_was(
    raw: redis.Redis, ends: str
) -> None:
    with Terminal("status", "watched", "--watch", "0.1") as screen:
        screen.read_until("Nothing is known of watched")
        with Lock("watched", label="a long label that has to be cut at eighty columns, surely"):
            frames = screen.read_until("1 of 1 in use\x1b")
            frames += screen.read_until("a long label that")
        screen.read_until("watched: free")
        if ends == "ctrl-c":
            screen.type(b"\x03")
        else:
            screen.process.send_signal(signal.SIGTERM)
        assert screen.wait() == 0
    assert "every 100 ms" in screen.seen
    assert screen.seen.startswith("\x1b[?1049h\x1b[?25l\x1b[H")
    assert screen.seen.replace("^C", "").endswith("\x1b[?25h\x1b[?1049l")
    # Never blank in between: lines are overwritten and then cleared to their right.
    assert "\x1b[2J" not in screen.seen
    for frame in frames.split("\x1b[H")[1:-1]:
        assert frame.count("\x1b[J") == 1 and frame.endswith("\x1b[J")
        for line in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", frame).split("\r\n"):
            assert terminal.wide(line) <= 80


def test_watch_on_a_pipe_gives_a_json_line_each_time(raw: redis.Redis) -> None:
    words = ("status", "a", "--format", "json", "--watch", "0.1")
    with nursery.Process(*MANAGE, *words, env=environment()) as watch:
        lines = [json.loads(watch.line()) for _ in range(3)]
        watch.send_signal(signal.SIGINT)
        assert watch.wait(10) == 0
    assert [line["names"][0]["display"] for line in lines] == ["a"] * 3


# Texts


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0314, "31 ms"),
        (1.26, "1.3 s"),
        (59.9, "59 s"),
        (61, "1 min 1 s"),
        (3600, "1 h 0 min"),
        (100_000, "1 d 3 h"),
        (math.inf, "for ever"),
        (-1, "0 ms"),
        (90_000, "1 d 1 h"),
    ],
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_coloured_line_is_cut_by_what_is_seen() -> None:
    assert terminal.clip("\x1b[31mabcdef\x1b[0m gh", 4) == "\x1b[31mabc…\x1b[0m"
    assert terminal.clip("\x1b[31mab\x1b[0m", 4) == "\x1b[31mab\x1b[0m"
    assert terminal.fit("报表导出", 5) == "报表…"


def test_a_name_that_cannot_be_read_does_not_hide_the_others(raw: redis.Redis) -> None:
    with Lock("good"), Lock("spoiled"):
        eventually(lambda: listed("good", "spoiled"))
    spoil(raw, "spoiled")
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
    said = found["unread"][0]["error"]
    assert "another program's value" in said and "{spoiled}" in said  # under which key


def test_names_none_of_which_can_be_read_are_an_error(raw: redis.Redis) -> None:
    with Lock("spoiled"):
        eventually(lambda: listed("spoiled"))
    spoil(raw, "spoiled")
    with pytest.raises(CommandError, match="another program's value"):
        locks("status")
    with pytest.raises(CommandError, match="another program's value"):
        locks("status", "spoiled")
