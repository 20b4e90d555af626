"""A journal records calls of scripts, and a checker examines the journal. For each rule of the
checker, a test breaks the rule by a defect in the package. The checker must find the defect."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import redis
from django.conf import settings

from django_redis_sync.protocol import plans, scripts
from django_redis_sync.protocol.keys import keys_of
from django_redis_sync.protocol.steps import LocalExpiry
from tests.support import worker_processes
from tests.support.history import RULES, History, Replay, judge
from tests.support.journal import Entry, journalling
from tests.support.workload import FullAtTimes, ModelServer, Workload, call

pytestmark = pytest.mark.tools

#: For each rule of the checker: (text in the Lua scripts, new text that breaks the rule).
DEFECTS = {
    "limit": ("+ permits <= limit\n", "+ permits <= limit + 1\n"),
    "fence": ("name.fence = name.fence < name.us and name.us or", "name.fence = name.us - 1 or"),
    "owner": ("  redis.call('ZREM', WAITERS, token)\n  redis.call('DEL', WAKE)\n", ""),
    "extended": ("if ends <= name.now or own ~= fence then", "if own ~= fence then"),
    "moved": ("if coming >= latest then", "if how == 'set' then"),
    "ended": ("if tombstone == '1' then", "if false then"),
    "share": ("local fitting, last = share_fits(held, permits, bound)", "local fitting, last = 1"),
    "turn": ("first = queue_next_of_share(name, share, held, ticket)", "first = ''"),
    "order": ("  if free and waiting > 0 then", "  if false then"),
    "place": ("or permits > limit or permits > name.most then", "or true then"),
    "rate": ("return name.opens == 0\n", "return true\n"),
    "paused": ("  if name.paused then return false end\n", ""),
    "refused": (
        "local free = fits(name, permits, limit)",
        "if how == 'try' then return 'no full 0' end\n  local free = fits(name, permits, limit)",
    ),
    "handover": ("for _ = 1, BOUND do\n    local head", "for _ = 1, 0 do\n    local head"),
    "silent": ("redis.pcall('RPUSH', wake_key(t), message)", "redis.pcall('DEL', wake_key(t))"),
    "term": ("if ms > FIRST and (handed or lease == 'inf') then ms = FIRST end", ""),
    "answer": ("local live = tonumber(ends or 0) > name.now", "local live = ends"),
    "expiry": ("redis.call('PERSIST', keys[i])", ""),
    "keys": ("redis.call('DEL', NEVER)", "redis.call('HSET', 'other', 'a', 'b')"),
    "memory": ("redis.pcall('ZADD', LEASES,", "redis.call('ZADD', LEASES,"),
    "error": ("local function end_token(name,", "local function end_token(_, name,"),
}


def found_by(rule: str, expiry_class: type[LocalExpiry] = LocalExpiry) -> History:
    """Run random calls of scripts until the checker reports that `rule` is broken. Return the
    history of the calls. If `rule` is in DEFECTS, the scripts have this defect. `expiry_class`: the
    class with which clients compute local expiries."""
    replay, server = Replay(), FullAtTimes(dict([DEFECTS[rule]]) if rule in DEFECTS else {})
    random = Workload(server, 1, expiry_class=expiry_class)
    for _ in range(40):
        random.run(500)
        for entry in server.entries:
            replay.take(entry)
        server.entries.clear()
        if rule in replay.history.rules():
            break
    return replay.history


@pytest.mark.parametrize("rule", DEFECTS)
def test_checker_finds_a_defect_of_a_script(rule: str) -> None:
    found = found_by(rule)
    assert rule in found.rules(), f"{found.summary()}\n{found.report()}"


class LastReplyOnly(LocalExpiry):
    """A defective class: a reply replaces the local expiry, and other renewals are forgotten."""

    def answered(self, nth: int, until: float) -> None:
        self.__init__(until, nth)  # type: ignore[misc]


class RepliesOnly(LocalExpiry):
    """A defective class: the local expiry changes only at a reply, not when a renewal is sent."""

    def asked(self, nth: int, lease: float, now: float) -> None:
        pass


@pytest.mark.parametrize("expiry_class", [LastReplyOnly, RepliesOnly])
def test_checker_finds_a_defect_of_the_local_expiry(expiry_class: type[LocalExpiry]) -> None:
    assert {"local"} == found_by("local", expiry_class).rules()


def test_each_rule_of_the_checker_is_broken_deliberately_in_a_test() -> None:
    assert set(RULES) == {*DEFECTS, "local", "vanished"}


@pytest.mark.parametrize(
    ("noted", "expected"),
    [("", {"vanished", "ended"}), ("!wiped", set()), ("restarted", set())],
    ids=["unnoted", "flushed", "restarted"],
)
def test_checker_accepts_lost_data_only_after_a_recorded_restart_or_flush(
    noted: str, expected: set[str]
) -> None:
    server = ModelServer()
    random = Workload(server, 3)
    random.run(600)
    before, tokens = server.entries[:], {client.token for client in random.clients}
    server.names.clear()
    server.entries.clear()
    # After a restart, the clock may be earlier, so the fences may be lower.
    random.pass_time(-60 if noted == "restarted" else 0.001)
    random.run(300)
    after = server.entries if noted else [one for one in server.entries if one.verb[0] != "!"]
    if noted == "restarted":  # omit clients' notes, because clients don't know of the loss
        after = [one._replace(epoch="second") for one in after if one.verb[0] != "!"]
    note = [Entry(0, "", 0, noted, "")] if noted == "!wiped" else []
    found = judge([*before, *note, *after])
    assert expected == found.rules() & {"vanished", "fence", "ended"}, found.summary()
    assert tokens, "nothing was held when the data was lost"


def test_violation_shows_the_journal_entries_before_it() -> None:
    found = found_by("limit").violations[-1]
    shown = str(found).splitlines()
    assert "limit: " == shown[0][:7] and RULES["limit"] in shown[0]
    around = [one.seq for one in (*found.before, found.entry)]
    assert around == sorted(around) and len(shown) == 1 + len(around) > 3
    assert shown[1 + len(found.before)].startswith(f"  > {found.entry.seq} ")


# The journal, which records the calls of scripts


def test_journalled_script_fails_like_the_plain_script(raw: redis.Redis, redis_url: str) -> None:
    keys = keys_of(settings.PREFIX, "x")
    raw.set(keys.leases, "foreign")
    with journalling(redis_url) as journal:
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            call("acquire", keys, "t", how="try").run_on(raw)
        (entry,) = journal
        assert 0 == journal.drain() - 1
        assert [entry] == list(journal), "a drained entry is lost"
    assert "WRONGTYPE" in entry.error
    assert raw.info("server")["run_id"] == entry.epoch
    assert abs(entry.us / 1e6 - time.time()) < 60
    assert b"foreign" == raw.get(keys.leases)


def test_journalling_restores_the_scripts_the_constants_and_the_environment(
    raw: redis.Redis, redis_url: str
) -> None:
    def state() -> Any:
        return scripts.script("acquire").sha, dict(scripts.CONSTANTS), dict(os.environ)

    before = state()
    with journalling(redis_url, constants={"CLAIM": 50}) as journal:
        assert journal.key in scripts.script("acquire").source
        assert 50 == plans.CONSTANTS["CLAIM"]
    assert before == state()
    assert 0 == raw.exists(journal.key)


def test_child_process_writes_to_the_journal_of_its_parent(
    raw: redis.Redis, redis_url: str
) -> None:
    child = f"""
import redis
from tests.support.journal import install_from_env
from tests.support.workload import call
from django_redis_sync.protocol import scripts
from django_redis_sync.protocol.keys import keys_of
install_from_env()
assert "777" in scripts.script("clear").source
with redis.Redis.from_url({redis_url!r}) as client:
    print(call("clear", keys_of({settings.PREFIX!r}, "x"), "t").run_on(client))
"""
    with journalling(redis_url, constants={"TOMBSTONE_TTL": 777}) as journal:
        done = worker_processes.run("-c", child)
        verbs = [entry.verb for entry in journal]
    assert "b'gone'\n" == done.stdout, done.stderr
    assert ["clear"] == verbs
    assert 1 == journal.check().entries  # the journal stays readable after the block
