"""Actions of `manage.py locks`: their effects, their log, and the names that they change."""

import getpass
import logging
import math
import os
import re
import socket
import time
from datetime import datetime, timedelta
from io import StringIO
from typing import Any

import pytest
import redis
from django.conf import settings
from django.utils import timezone

from django_redis_sync import LeaseLost, Lock, NotAcquired, ReadWriteLock, Semaphore
from tests.behaviour.both import eventually
from tests.support.operators import act, as_json, failed, has_free_permit, locks, status_of
from tests.support.renewers import fresh_renewer, listed, waiting_threads  # noqa: F401 - fixtures

pytestmark = [pytest.mark.usefixtures("fresh_renewer"), pytest.mark.promise(26)]
NAMES, OVERRIDES, RECORD = (f"{settings.PREFIX}:{part}" for part in ("names", "marks", "acts"))
#: Each action that sets an override, and the action that undoes it.
UNDO = {("pause",): ("resume",), ("resize", "7"): ("resize", "--reset")}


def override(words: tuple[str, ...], name: str, key: str | None = None) -> str:
    """Run the action `words` on a name. For ("resize", "7"), run `locks resize NAME 7`."""
    return act(words[0], name, *words[1:], key=key)


def recorded(*words: str) -> list[dict[str, Any]]:
    """Return the actions that `locks log` lists, oldest first. `words`: more arguments."""
    return list(reversed(as_json("log", *words)))


def test_clear_command_removes_only_the_holder_or_waiter_with_the_given_id(threads: Any) -> None:
    first, second = (Semaphore("s", 2, raise_on_release_error=False).acquire() for _ in range(2))
    waiting = threads.submit(Semaphore("s", 2).__enter__)
    waiter = eventually(lambda: status_of("s").waiters)[0]
    locks("clear", "s", "--holder", waiter.id, "--no-input")
    with pytest.raises(NotAcquired) as caught:
        waiting.result(30)
    waiting = threads.submit(Semaphore("s", 2).acquire)
    eventually(lambda: status_of("s").waiting)
    assert "Cleared 1." in locks("clear", "s", "--holder", second.token[:8], "--no-input")
    assert 0 == status_of("s").waiting, "the permit was not handed off at once"
    assert ("cleared", True, False) == (caught.value.reason, first.owned(), second.owned())
    with waiting.result(30) as lease, pytest.raises(LeaseLost):
        assert lease.fence > second.fence
        second.renew()
    assert [[waiter.id], [second.token[:8]]] == [one["ids"] for one in recorded("s")]


def test_clear_command_logs_the_cleared_holders_when_it_fails_for_another_holder(
    raw: redis.Redis,
) -> None:
    first, second = (Semaphore("s", 3, raise_on_release_error=False).acquire() for _ in range(2))
    raw.hset(f"{settings.PREFIX}:{{s}}:info", second.token, "h 5 30000 damaged")
    assert 1 == failed("clear", "s", "--no-input")[0]
    assert not first.owned()
    assert [[first.token[:8]]] == [one["ids"] for one in recorded("s")]


@pytest.mark.parametrize("key", [None, "42"])
def test_paused_name_grants_no_permit_until_it_is_resumed(threads: Any, key: str | None) -> None:
    semaphore = Semaphore("p", 2, key=key)
    lease = semaphore.acquire()
    act("pause", "p", key=key)
    assert not has_free_permit("p", 2, key=key)
    waiting = threads.submit(Semaphore("p", 2, key=key).acquire)
    lease.renew()
    lease.release()
    status = eventually(lambda: (found := semaphore.status()).waiting and found)
    assert (True, 0, False) == (status.paused, status.holding, waiting.done())
    assert abs(status.at - status.paused_since) < timedelta(minutes=1)
    if key is not None:
        assert has_free_permit("p", 2, key="43") and not status_of("p").paused
    act("resume", "p", key=key)
    given = semaphore.status()  # `resume` hands off the permit before the waiter asks again
    assert (1, 0, False) == (given.holding, given.waiting, given.paused)
    waiting.result(30).release()


@pytest.mark.parametrize("key", [None, "42"])
def test_pause_with_a_duration_ends_when_the_duration_has_passed(
    threads: Any, raw: redis.Redis, key: str | None
) -> None:
    start = time.monotonic()
    act("pause", "p", "--for", "3s", key=key)
    waiting = threads.submit(Semaphore("p", 2, key=key).acquire, blocking_timeout=60)
    eventually(lambda: has_free_permit("p", 2, key=key))
    assert time.monotonic() - start > 2.9
    waiting.result(60).release()
    assert not status_of("p", key).paused
    eventually(lambda: locks("status") and not raw.exists(OVERRIDES))
    assert 0 < raw.pttl(next(raw.scan_iter("*{p*:info"))) < 60_000


def test_pause_of_a_paused_name_changes_the_end_but_not_the_start_of_the_pause(
    raw: redis.Redis,
) -> None:
    act("pause", "p")
    since = status_of("p").paused_since
    for words, minutes in ((["--for", "10m"], 10), ([], None), (["--for", "1h"], 60)):
        assert "paused already" not in act("pause", "p", *words)
        status = status_of("p")
        left = status.paused_until and round((status.paused_until - status.at).total_seconds() / 60)
        assert (since, minutes) == (status.paused_since, left)
    raw.hset(OVERRIDES, "p:q", 10**17)  # beyond the last time that Python can express
    assert 9999 == status_of("q", "7").paused_since.year
    ends = [one["until"] for one in recorded("p")]
    assert [True, False, True, False] == [end is None for end in ends]
    assert status_of("p").paused_until == datetime.fromisoformat(ends[-1])


def test_resize_command_overrides_the_limit_of_the_callers_but_ends_no_lease(threads: Any) -> None:
    held = [Semaphore("r", 2).acquire() for _ in range(2)]
    waiting = threads.submit(Semaphore("r", 2).acquire)
    eventually(lambda: status_of("r").waiting)
    act("resize", "r", "3")
    given = status_of("r")  # `resize` hands off the permit before the waiter asks again
    assert (3, 0) == (given.holding, given.waiting)
    held.append(waiting.result(30))
    act("resize", "r", "1")
    status = status_of("r")
    assert (1, 1, 2, 3) == (status.limit, status.override, status.callers_limit, status.in_use)
    assert all(lease.owned() for lease in held)
    locks("resize", "r", "--reset")
    assert (2, None) == (status_of("r").limit, status_of("r").override)
    for lease in held:
        lease.release()


@pytest.mark.parametrize("key", [None, "7"])
def test_resize_command_sets_a_rate_until_it_is_reset(key: str | None) -> None:
    semaphore = Semaphore("r", 5, key=key)
    assert "Resized r" in act("resize", "r", "--rate", "2/h", key=key)
    assert "r" in locks("resize", "r", "--rate", "2/h", *(["--key", key] if key else []))
    rate = semaphore.status().rate
    assert (2, 3600.0, 0, True) == (rate.permits, rate.seconds, rate.used, rate.by_operator)
    assert [True, True, False] == [has_free_permit("r", 5, key=key) for _ in range(3)]
    shown = " ".join(locks("status", "r", *(["--key", key] if key else [])).split())
    assert "2 of 2 used" in shown and "An operator set this rate." in shown
    locks("resize", "r", "--reset", *(["--key", key] if key else []))
    assert has_free_permit("r", 5, key=key) and semaphore.status().rate is None
    assert [("resize", "2/h"), ("reset", None)] == [
        (one["what"], one["rate"]) for one in recorded()
    ]
    assert "rate set to 2/h" in locks("log")


def test_rate_of_a_policy_applies_to_each_key_for_itself_unless_the_key_is_exempt() -> None:
    def granted(key: str) -> int:
        return sum(has_free_permit("api", 9, key=key, rate="4/h") for _ in range(6))

    act("resize", "api", "3", "--rate", "2/h")
    assert [2, 2] == [granted("a"), granted("b")]
    assert (3, 2, 2) == ((s := status_of("api", "a")).limit, s.rate.used, s.rate.permits)
    act("resize", "api", "--rate", "3/h", key="b")
    assert [0, 1] == [granted("a"), granted("b")], "the rate of the key takes precedence"
    locks("resize", "api", "--reset", "--key", "a")
    assert [2, 0] == [granted("a"), granted("b")], "the rate of the callers"
    status = status_of("api", "a")
    assert (9, None, False) == (status.limit, status.override, status.rate.by_operator)
    assert status_of("api", "unused").rate.by_operator
    act("resize", "api", "8")  # ends the exemption from the limit, and not that from the rate
    assert (8, 4) == ((s := status_of("api", "a")).limit, s.rate.permits)
    act("resize", "api", "--rate", "1/h")
    assert [1, 3] == [status_of("api", key).rate.permits for key in "ab"]
    locks("resize", "api", "--reset")
    assert [4, 4] == [status_of("api", key).rate.permits for key in "ab"]
    assert [(3, None), (None, "2/h")] == [(o["limit"], o["rate"]) for o in recorded()[:2]]


def test_resize_command_with_a_higher_rate_admits_waiters_at_once(threads: Any) -> None:
    for name, key in (("r", None), ("policy", "k")):
        rate = {"rate": "1/h", "key": key}
        assert has_free_permit(name, 5, **rate)
        waiting = threads.submit(Semaphore(name, 5, **rate).acquire)
        eventually(lambda of=(name, key): status_of(*of).waiting)
        act("resize", name, "--rate", "2/h")
        waiting.result(30).release()


@pytest.mark.parametrize("key", [None, "7"])
@pytest.mark.parametrize("first", [0, 1])
def test_resume_ends_only_a_pause_and_resize_reset_ends_only_a_changed_limit(
    raw: redis.Redis, key: str | None, first: int
) -> None:
    for words in UNDO:
        override(words, "b", key)
    undo = [*UNDO.values()]
    override(undo[first], "b", key)
    status = status_of("b", key)
    assert (first == 1, first == 0) == (status.paused, status.override == 7)
    override(undo[1 - first], "b", key)
    assert not raw.exists(OVERRIDES)


def test_paused_name_stays_in_the_status_list_although_nothing_uses_it(raw: redis.Redis) -> None:
    act("pause", "idle")
    raw.delete(NAMES)  # the registry drops names that were not used for a day
    assert ["idle"] == [one["name"] for one in as_json("status")["names"]]
    (info,) = raw.scan_iter("*{idle}:info")
    assert -1 == raw.ttl(info)
    locks("resume", "idle")
    assert [] == as_json("status")["names"]
    assert 0 < raw.ttl(info) <= 60


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (f"resize r {2**40} --create", "limit must be"),
        ("pause r --for 9999d --create", "seconds must be"),
        ("resize rw 3", "'rw' is a read/write lock"),
        ("resize rw --rate 3/m", "'rw' is a read/write lock"),
    ],
)
def test_invalid_operator_action_has_no_effect_and_is_not_logged(
    words: str, error: str, raw: redis.Redis
) -> None:
    with ReadWriteLock("rw").read:
        eventually(lambda: listed("rw"))
        assert error in failed(*words.split())[1]
    assert not raw.exists(OVERRIDES, RECORD)


def test_action_without_effect_says_that_nothing_was_changed_and_is_not_logged() -> None:
    with Lock("p"):
        eventually(lambda: listed("p"))
        for words in (*UNDO.values(), ("pause",), ("pause",), ("resize", "3"), ("resize", "3")):
            text = override(words, "p")
        assert "p has this limit already: nothing was changed.\n" == text
        assert ["pause", "resize"] == [one["what"] for one in recorded("p")]


OVERRIDING = ["pause exports", "resume exports", "resize exports 3", "resize exports --reset"]


@pytest.mark.parametrize("words", OVERRIDING)
def test_action_that_the_server_rejects_is_not_recorded(raw: redis.Redis, words: str) -> None:
    with Semaphore("exports", 3, raise_on_release_error=False):
        eventually(lambda: listed("exports"))
        raw.hset(OVERRIDES, mapping={"p:exports": f"1 {10**13}", "l:exports": 4})
        leases, info = (f"{settings.PREFIX}:{{exports}}:{part}" for part in ("leases", "info"))
        raw.delete(leases, info)
        raw.mset(dict.fromkeys((leases, info), "another program's"))
        assert re.search(r"is in one of .*\{exports\}:leases", failed(*words.split())[1])
        raw.delete(leases, info)
    assert [] == recorded("exports")


def test_action_log_shows_the_time_the_operator_and_the_reason_of_each_action(
    raw: redis.Redis,
) -> None:
    lease = Semaphore("a", 2, raise_on_release_error=False).acquire()
    eventually(lambda: listed("a"))
    before = raw.time()[0]
    for words in ("clear a --no-input", *(one.replace("exports", "a") for one in OVERRIDING)):
        locks(*words.split(), "--reason", "move of the 報表")
    found = recorded("a")
    whats = ["clear", "pause", "resume", "resize", "reset"]
    assert whats == [one["what"] for one in found]
    who = f"{getpass.getuser()}@{socket.gethostname()}"
    about = {(one["by"], one["reason"], one["name"], one["key"]) for one in found}
    assert {(who, "move of the 報表", "a", None)} == about
    assert ([lease.token[:8]], 3) == (found[0]["ids"], found[3]["limit"])
    times = [datetime.fromisoformat(one["at"]).timestamp() for one in found]
    assert before <= times[0] < times[-1] < raw.time()[0] + 1
    head, *rows = locks("log").splitlines()
    assert ["WHEN", "NAME", "WHAT", "WHO", "WHY"] == head.split()
    texts = [
        "limit and rate reset",
        "limit set to 3",
        "resumed",
        "paused",
        f"cleared 1: {lease.token[:8]}",
    ]
    for row, text, at in zip(rows, texts, reversed(times), strict=True):
        when = timezone.localtime(datetime.fromtimestamp(at, timezone.get_current_timezone()))
        assert re.fullmatch(rf"{when:%Y-%m-%d %H:%M:%S}  a +{text} +{who} +move of the 報表", row)
    act("pause", "b", "--for", "10m")
    assert " paused until " in locks("log", "--top", "1").splitlines()[1]
    assert 2 == len(locks("log", "--top", "1").splitlines())
    assert "\n" in locks("log", "--format", "json").strip(), "the JSON is not indented"


def test_action_log_of_a_key_includes_the_actions_on_the_policy_of_the_key() -> None:
    assert "No operator has acted.\n" == locks("log")
    for name, key in (("api", "7"), ("api", "8"), ("api2", "9")):
        act("pause", name, key=key)
    assert "Resumed api.\n" == locks("resume", "api"), (
        "the paused keys did not make the policy known"
    )
    paused = [status_of(name, key).paused for name, key in (("api", "7"), ("api2", "9"))]
    assert [False, True] == paused, "not only the keys of the policy were resumed"
    assert ["7", "8", None] == [one["key"] for one in recorded("api")]
    assert ["7", None] == [one["key"] for one in recorded("api", "--key", "7")]
    assert "No operator has acted on this name.\n" == locks("log", "a")


def test_action_log_keeps_the_latest_1000_actions_for_at_least_360_days(raw: redis.Redis) -> None:
    entries = {f'{{"what": "pause", "name": "n{n}", "key": null}}': n for n in range(1005)}
    raw.zadd(RECORD, entries)
    act("pause", "last", "--reason", "y" * 1000)
    assert 1000 == raw.zcard(RECORD)
    assert raw.pttl(RECORD) > 360 * 86_400_000
    found = recorded("--top", "2000")
    assert (1000, "n6", "last") == (len(found), found[0]["name"], found[-1]["name"])
    assert "y" * 200 == found[-1]["reason"]
    assert ["n6"] == [one["name"] for one in recorded("n6")], "a name's only action, 999 ago"
    foreign = {b"\xff": 1e13, b"{}": 1e13, b"[1]": 2e18, b'{"what": 1, "zzz": 2}': 1e13}
    raw.zadd(RECORD, foreign)
    assert "last" == recorded()[-1]["name"], "foreign entries are skipped"


def test_operator_action_takes_effect_even_if_the_action_log_cannot_be_written(
    raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    raw.set(RECORD, "another program's")
    act("pause", "a")
    assert status_of("a").paused
    assert "could not record" in caplog.text
    assert 1 == failed("log")[0]


# getpass.getuser raises OSError since Python 3.13, and KeyError in earlier versions.
@pytest.mark.parametrize("error", [OSError, KeyError])
def test_action_log_has_the_user_id_if_the_user_has_no_name(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def unknown() -> str:
        raise error("no such user")

    monkeypatch.setattr("getpass.getuser", unknown)
    act("pause", "a")
    assert f"{os.getuid()}@{socket.gethostname()}" == recorded()[0]["by"]


def test_log_messages_of_operator_actions_have_structured_fields(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "django_redis_sync")
    lease = Semaphore("q", 1).acquire()
    locks("clear", "q", "--no-input")
    for words in (("pause",), ("resize", "7")):
        override(words, "p", "7")
        override(words, "p")
    records = [r for r in caplog.records if hasattr(r, "sync_event")]
    events = ["cleared", "pause", "pause", "resize", "resize"]
    assert events == [r.sync_event for r in records]
    assert ["q", "p@7", "p", "p@7", "p"] == [r.sync_name for r in records]
    cleared, *others = records
    assert (lease.token[:8], True) == (cleared.sync_id, cleared.sync_done)
    assert (os.uname().nodename, os.getpid()) == (cleared.sync_host, cleared.sync_pid)
    assert [(1, None), (1, None), (1, 7), (1, 7)] == [(r.sync_names, r.sync_limit) for r in others]
    assert lease.token not in caplog.text


# Which names and holders an action applies to


def test_clear_command_shows_the_holders_and_asks_for_confirmation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lease = Lock("a", timeout=math.inf, label="stuck.job").acquire()
    monkeypatch.setattr("sys.stdin", StringIO("n\n\nyes please\n"))
    for _ in range(3):  # three answers that are not "y"
        assert (1, "Nothing was cleared.") == failed("clear", "a")
    for stdin in (StringIO(), None):  # no input, and no stdin, as in some jobs of cron
        monkeypatch.setattr("sys.stdin", stdin)
        code, line = failed("clear", "a")
        assert 1 == code and "Nothing was cleared." in line and "--no-input" in line
    assert locks("clear", "a", "--dry-run").endswith("Dry run: nothing was cleared.\n")
    assert lease.owned()
    monkeypatch.setattr("sys.stdin", StringIO("y\n"))
    output = locks("clear", "a")
    assert "permanent" in output and "stuck.job" in output
    assert lease.token[:8] in output and lease.token not in output
    assert "Its work is not stopped." in output, "the operator knows what will happen"
    assert output.endswith("\nClear 1 entry? [y/N] Cleared 1.\n")
    assert locks("clear", "a") == "There are no holders.\n"


def test_clear_command_removes_only_holders_that_were_shown_to_the_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown, newcomers = Lock("a").acquire(), []

    def replace_the_holder() -> str:
        shown.release()
        newcomers.append(Lock("a").acquire())
        return "y"

    monkeypatch.setattr("builtins.input", replace_the_holder)
    assert locks("clear", "a").endswith("Cleared 0. 1 lease or wait had already ended.\n")
    assert newcomers[0].owned()
    assert "No operator has acted on this name.\n" == locks("log", "a")
    newcomers[0].release()


def test_clear_command_removes_even_the_holders_that_locks_status_omits() -> None:
    leases = [Semaphore("s", 300).acquire(blocking=False) for _ in range(201)]
    assert 200 == len(status_of("s").holders)
    assert locks("clear", "s", "--noinput").endswith("Cleared 201.\n")
    (one,) = as_json("log")
    assert (20, 201) == (len(one["ids"]), one["amount"])
    assert {*one["ids"]} < {lease.token[:8] for lease in leases}
    assert f"cleared 201: {', '.join(one['ids'])}, …" in locks("log")


def test_clear_command_rejects_an_unknown_or_ambiguous_holder_id(raw: redis.Redis) -> None:
    leases, info = (f"{settings.PREFIX}:{{s}}:{part}" for part in ("leases", "info"))
    for token in ("aaaaaaaa1" + "0" * 23, "aaaaaaaa2" + "0" * 23):
        raw.zadd(leases, {token: "inf"})
        raw.hset(info, token, f"h {10**15} inf 1 2 - {{}}")
    for id in ("", "0", "zzzzzzzz"):
        error = "No holder or waiter has that id: nothing was cleared."
        assert (1, error) == failed("clear", "s", "--holder", id, "--no-input")
    _, error = failed("clear", "s", "--holder", "aaaaaaaa", "--no-input")
    assert error.endswith("Give more characters: aaaaaaaa1000, aaaaaaaa2000")
    assert "Cleared 1." in locks("clear", "s", "--holder", "aaaaaaaa2", "--no-input")
    assert ["aaaaaaaa1"] == [holder.token[:9] for holder in status_of("s").holders]


def test_clear_command_treats_the_name_as_a_glob_only_if_pattern_is_passed() -> None:
    leases = [Lock(name).acquire() for name in ("x1", "x2", "x[1]")]
    leases += [Semaphore("api", 2, key=key).acquire() for key in ("1", "2", "3", "4")]
    eventually(lambda: listed("x[1]", "x1", "x2", *(f"api@{n}" for n in "1234")))
    for glob in ("*", "x?"):
        code, error = failed("clear", glob, "--no-input")
        assert (3, True) == (code, error.endswith("To use the name as a glob, add --pattern."))
    for words, text, owned in (
        (("[12]", "--pattern"), "No known name matches the pattern.\n", "x1 x2 x[1] 1 2 3 4"),
        (("x[1]",), "Cleared 1.\n", "x1 x2 1 2 3 4"),
        (("x[12]", "--pattern"), "Cleared 2.\n", "1 2 3 4"),
        (("api", "--key", "2"), "Cleared 1.\n", "1 3 4"),
        (("api@[13]", "--pattern"), "Cleared 2.\n", "4"),
        (("api",), "Cleared 1.\n", ""),
    ):
        assert locks("clear", *words, "--no-input").endswith(text)
        assert owned.split() == [one.name.removeprefix("api@") for one in leases if one.owned()]


UNKNOWN = ["clear exprots", "resume exprots", "resize exprots --reset", "pause exprots"]
UNKNOWN += ["resize exprots 3", "history exprots"]


@pytest.mark.parametrize("words", UNKNOWN)
def test_action_on_an_unknown_name_suggests_known_names(words: str, raw: redis.Redis) -> None:
    with Lock("exports"):
        eventually(lambda: listed("exports"))
        code, error = failed(*words.split())
    assert (3, True) == (code, error.endswith(" Did you mean exports?"))
    assert [] == raw.keys("*{exprots}*")


def test_pause_and_resize_print_what_they_did() -> None:
    assert "Paused coming until resume.\n" == act("pause", "coming")
    assert "Resumed coming.\n" == locks("resume", "coming")
    assert "Resized coming. The limit is 3.\n" == act("resize", "coming", "3")
    assert "Resized coming. The rate is 9/m.\n" == act("resize", "coming", "--rate", "9/m")
    both = act("resize", "coming", "4", "--rate", "8/m")
    assert "Resized coming. The limit is 4. The rate is 8/m.\n" == both
    same = "coming has this rate already: nothing was changed.\n"
    assert same == act("resize", "coming", "--rate", "8/60s")
    reset = "Reset coming: the callers' limit and rate apply again.\n"
    assert reset == locks("resize", "coming", "--reset")
    with Semaphore("api", 2, key="1"), Semaphore("api", 2, key="2"):
        eventually(lambda: listed("api@1", "api@2"))
        assert locks("pause", "api", "--for", "10m").startswith("Paused api (2 keys) until ")
        assert "Resumed api@1.\n" == locks("resume", "api", "--key", "1")
