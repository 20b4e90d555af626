"""The checker of histories finds defects of the scripts and reports bad journals."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.conf import settings

from django_redis_sync.locks.lease_state import LocalExpiry
from django_redis_sync.protocol import plans, scripts
from django_redis_sync.protocol.keys import keys_of
from tests.support import worker_processes
from tests.support.history import RULES, judge
from tests.support.journal import Entry, journalling
from tests.support.workload import call, words, workload

pytestmark = pytest.mark.tools


# Defects of the scripts: a text, its replacement, and rules, at least one of which must break

DEFECTS: dict[str, tuple[str, str, set[str]]] = {
    "a server clock that is off by up to 40 ms": (
        "us = time[1] * 1000000 + time[2]",
        "us = time[1] * 1000000 + time[2] + (time[2] * 7 % 81 - 40) * 1000",
        {"limit", "term", "owner", "extended", "answer"},
    ),
    "a release that ignores the fence": (
        "not (live and own == fence)",
        "not live",
        {"owner", "answer"},
    ),
    "a retried acquire that is granted again": (
        "\nif record then",
        "\nif string.sub(record or '', 1, 1) == 'h' then record = nil end\nif record then",
        {"fence", "limit"},
    ),
    "a release that hands nothing off": (
        "if waiting_of(name) > 0 then\n  if name.card > 0 then",
        "if false then\n  if true then",
        {"handover"},
    ),
    "a handoff without a wake-up message": (
        "redis.pcall('RPUSH', wake_key(t), message)",
        "redis.pcall('DEL', wake_key(t))",
        {"silent"},
    ),
    "a handoff to the last waiter": (
        "local head = redis.call('ZRANGE', QUEUE, '0', '0', 'WITHSCORES')\n",
        "local head = redis.call('ZREVRANGE', QUEUE, '0', '0', 'WITHSCORES')\n",
        {"order"},
    ),
    "a handoff with the releaser's lease duration": (
        "then ms = FIRST end",
        "then ms = tonumber(string.match(record or '', '^%a%d* %d+ (%d+)') or ms) end",
        {"term"},
    ),
    "a renewal that ignores the fence": (
        "if ends <= name.now or own ~= fence then",
        "if ends <= name.now then",
        {"moved", "answer"},
    ),
    "a renewal of an expired lease": (
        "if ends <= name.now or own ~= fence then",
        "if own ~= fence then",
        {"extended", "answer"},
    ),
    "a late renewal that is applied": (
        "if how ~= 'confirm' and coming >= latest then",
        "if how == 'set' then",
        {"moved"},
    ),
    "a handle that is adopted twice": (
        "if how == 'adopt' and latest > tonumber(known)",
        "if how == 'adopt' and latest > 2 ^ 53",
        {"moved"},
    ),
    "a release of an expired lease": (
        "local live = tonumber(ends or 0) > name.now",
        "local live = tonumber(ends or 0) > 0",
        {"answer"},
    ),
    "a key expiry that a shorter lease brings forward": (
        "and latest + GRACE > expiry",
        "",
        {"expiry", "vanished"},
    ),
    "a permanent lease on keys that expire": ("redis.call('PERSIST', key)", "", {"expiry"}),
    "one permit too many": ("  return used <= limit\n", "  return used <= limit + 1\n", {"limit"}),
    "a newcomer that overtakes the queue": (
        "  if free and waiting > 0 then",
        "  if false then",
        {"order"},
    ),
    "an unfair newcomer that overtakes an old first waiter": (
        "math.abs(name.now - head / 1000) < HEARTBEAT",
        "name.now - head / 1000 < 60 * HEARTBEAT",
        {"order"},
    ),
    "a fence that is only the clock": (
        "name.fence = name.fence < name.us and name.us or name.fence + 1",
        "name.fence = name.us",
        {"fence"},
    ),
    "an undo without a tombstone": ("if tombstone == '1' then", "if false then", {"ended"}),
    "a claimed permit that is taken away": (
        "elseif ends and redis.call('EXISTS', wake_key(t)) == 0 then",
        "elseif false then",
        {"owner"},
    ),
    "a live first waiter that is removed": (
        "elseif state ~= 'w' or permits > limit then",
        "elseif true then",
        {"place"},
    ),
    "an event loop whose heartbeat expires at once": (
        "local ends = name.now + ALIVE",
        "local ends = name.now - 1",
        {"handover", "order", "place"},
    ),
    "a removed waiter that takes its loop's heartbeat along": (
        "    redis.call('ZREM', WAITERS, t)\n",
        "    redis.call('ZREM', WAITERS, t, 'loop:1')\n",
        {"place"},
    ),
    "live waiters that are removed with the expired ones": (
        "if t ~= me and (state ~= 'w' or deadline_of(name, t, channel) <= name.now) then",
        "if t ~= me then",
        {"place"},
    ),
    "a pause without effect": ("  if name.paused then return false end\n", "", {"paused"}),
    "a rejection although permits are free": (
        "local free = fits(name, permits, limit)",
        "if how == 'try' then return {'no', 'full', 0} end\n"
        "  local free = fits(name, permits, limit)",
        {"refused"},
    ),
    "a wake list that expires before its lease": (
        "name.now + ms + GRACE)",
        "name.now + math.min(CLAIM, ms))",
        {"expiry"},
    ),
    "a handoff with the whole lease duration": (
        "if ms > FIRST and (handed or lease == 'inf') then ms = FIRST end",
        "",
        {"term"},
    ),
    "operator overrides that expire": (
        "    latest = math.max(latest, pause_ends(own[2]))\n",
        "",
        {"expiry"},
    ),
    "a resume that hands nothing off": (
        "for _ = 1, BOUND do\n    local head",
        "for _ = 1, ARGV[2] == 'resume' and 0 or BOUND do\n    local head",
        {"handover"},
    ),
    "expired leases that are never removed": (
        "for round = 1, ROUNDS do",
        "for round = 1, 0 do",
        {"refused", "handover"},
    ),
    "leases that are removed by a clock that is ahead": (
        "call('ZRANGEBYSCORE', LEASES, '-inf', name.at, 'LIMIT', '0', BOUND)",
        "call('ZRANGEBYSCORE', LEASES, '-inf', name.at + 20, 'LIMIT', '0', BOUND)",
        {"owner"},
    ),
    "a claim that is not stored": (
        "  redis.call('ZREM', WAITERS, token)\n  redis.call('DEL', WAKE)\n",
        "",
        {"owner"},
    ),
    "a fence that is not stored": ("put(name, '#fence', fence)\n", "", {"fence"}),
    "a downgraded writer that still counts as a writer": (
        "  name.extra = name.extra - weight(tonumber(permits)) + 1\n",
        "",
        {"handover"},
    ),
    "permits retained by min_hold that are not counted": (
        "  add_lease(name, 'k' .. token,",
        "  name.card = name.card - tonumber(string.match(terms, '^%d+'))\n"
        "  add_lease(name, 'k' .. token,",
        {"limit"},
    ),
    "a removed waiter that frees a permit": (
        "if ends then\n    redis.call('ZREM', LEASES, t)",
        "if true then\n    redis.call('ZREM', LEASES, t)",
        {"limit"},
    ),
    "a newcomer above the limit of its share": (
        "local fitting, last = share_fits(held, permits, bound), nil",
        "local fitting, last = true, nil",
        {"share", "refused"},
    ),
    "two waiters of one share in the queue": (
        "if fitting and first == '' and not last then",
        "if fitting then",
        {"turn"},
    ),
    "a release that queues no next waiter of its share": (
        "first = call_up(name, share, held, ticket)",
        "first = ''",
        {"turn"},
    ),
    "a share whose leases are not counted": (
        "held = held + weight(permits)\n",
        "held = held\n",
        {"share"},
    ),
    "a retried acquire that loses its place in the queue": (
        "  sweep(name, me)\n",
        "  if me then redis.call('ZADD', QUEUE, name.us, me) end\n  sweep(name, me)\n",
        {"place"},
    ),
}


#: Steps of random work before each check. The last check must find the defect. The first check
#: finds most defects; a few need a rare moment.
ROUNDS = (300, 300, 600, 1200, 2400, 4800, 9600, 19_200, 21_600)


@pytest.mark.parametrize("name", DEFECTS)
def test_checker_finds_defect_of_a_script(raw: redis.Redis, name: str) -> None:
    anchor, replacement, expected = DEFECTS[name]
    planted: list[str] = []

    def mutate(verb: str, source: str) -> str:
        if anchor in source:
            planted.append(verb)
        return source.replace(anchor, replacement)

    random = workload(raw, mutate=mutate)
    assert planted, f"no script contains {anchor!r}: adapt this defect to the scripts"
    for steps in ROUNDS:
        random.run(steps)
        found = random.journal.judge(most=1000)
        if found.rules() & expected:
            return
    pytest.fail(f"not found: {name}\n{found.summary()}\n{found.report()}")


class LastReplyOnly(LocalExpiry):
    """A defective local expiry: it uses only the reply received last."""

    def answered(self, nth: int, until: float) -> None:
        self._ends = {nth: (until, True)}


class RepliesOnly(LocalExpiry):
    """A defective local expiry: it ignores renewals without a reply."""

    def asked(self, nth: int, lease: float, now: float) -> None:
        pass


@pytest.mark.parametrize("believing", [LastReplyOnly, RepliesOnly])
def test_checker_finds_defect_of_the_local_expiry(
    raw: redis.Redis, believing: type[LocalExpiry]
) -> None:
    random = workload(raw, believing=believing)
    for steps in ROUNDS:
        random.run(steps)
        if random.journal.judge().rules() == {"belief"}:
            return
    pytest.fail("not found")


# Journals written by hand

US = 1_700_000_000_000_000
NOW = US // 1000
KEYS = keys_of("t", "n")
EXPIRY = [("PEXPIREAT", key, str(NOW + 500_000)) for key in (1, 2, 3, 4)]

Write = tuple[Any, ...]


class JournalBuilder:
    """A journal written by hand. Times are ms after the start; tokens are any words."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.leases: set[str] = set()
        self.queue: set[str] = set()
        self.epoch = "first"

    def add(self, at: float, command: Any, reply: Write, *writes: Write, error: str = "") -> None:
        cards = (len(self.leases), len(self.queue))
        for write, key, *args in writes:
            members = {1: self.leases, 2: self.queue}.get(key)
            if members is not None and write == "ZADD":
                members.add(args[1])
            elif members is not None and write == "ZREM":
                members.discard(args[0])
        argv, us = tuple(str(word) for word in command.argv), US + int(at * 1000)
        entry = (self.epoch, us, command.verb, "n", argv, reply, cards, writes, error)
        self.entries.append(Entry(len(self.entries), *entry))

    def acquire_call(self, token: str, **arguments: Any) -> Any:
        return call("acquire", KEYS, token, **{"how": "wait", "lease": 100, **arguments})

    def grant(self, at: float, token: str, **arguments: Any) -> str:
        """Add an acquire that is granted at once. Return the fence."""
        command = self.acquire_call(token, **arguments)
        return self.granted(at, command, token, command.said["lease"])

    def granted(self, at: float, command: Any, token: str, lease: float) -> str:
        fence = str(US + int(at * 1000))
        self.add(at, command, ("ok", fence, str(lease)), *self.lease_writes(at, token, lease))
        return fence

    def lease_writes(self, at: float, token: str, lease: float) -> list[Write]:
        return [
            ("ZADD", 1, str(NOW + at + lease), token),
            ("HSET", 4, token, "h", "#fence", str(US + int(at * 1000))),
            *EXPIRY,
        ]

    def wait(self, at: float, token: str, until: float = 1000, **arguments: Any) -> None:
        writes = [("ZADD", 2, str(US + int(at * 1000)), token)]
        writes += [("ZADD", 3, str(NOW + until), token), *EXPIRY]
        self.add(at, self.acquire_call(token, **arguments), ("wait", str(NOW), 1000, 0), *writes)

    def renew(self, at: float, token: str, fence: str | int, ms: int = 100, nth: int = 0) -> None:
        command = call("renew", KEYS, token, fence=fence, how="set", ms=ms, nth=nth)
        self.add(at, command, ("ok", str(ms)), ("ZADD", 1, str(NOW + at + ms), token))

    def release(self, at: float, token: str, fence: str, *writes: Write) -> None:
        command = call("release", KEYS, token, fence=fence, how="release")
        self.add(at, command, ("ok",), ("ZREM", 1, token, 0), *writes)

    def handoff_writes(self, at: float, token: str, lease: float = 100) -> list[Write]:
        fence = str(US + int(at * 1000))
        return [
            *self.lease_writes(at, token, lease),
            ("ZREM", 2, token),
            ("ZADD", 3, str(NOW + at + 50), token),
            ("RPUSH", 5, token, f"{fence} {NOW + int(at)} {lease:.0f}"),
            ("PEXPIREAT", 5, token, str(NOW + at + 10_000)),
        ]

    def hand_off(self, lease: float = 100, keep: Callable[[Write], bool] = bool) -> None:
        """Grant to a, let b wait, and hand off to b at a release of a. `keep`: filter of writes."""
        fence = self.grant(0, "a")
        self.wait(1, "b", lease=lease)
        self.release(2, "a", fence, *filter(keep, self.handoff_writes(2, "b", lease)))

    def expect_end(self, at: float, token: str, until: float) -> None:
        argv, us = (token, str(NOW + until)), US + int(at * 1000)
        entry = ("", us, "!believes", "n", argv, (), (0, 0), (), "")
        self.entries.append(Entry(len(self.entries), *entry))

    def operate(self, at: float, how: str, *writes: Write, value: int | str = "") -> None:
        self.add(at, call("operate", KEYS, how=how, value=value), ("ok",), *writes)


def limit(journal: JournalBuilder) -> None:
    journal.grant(0, "a")
    journal.grant(50, "b")


def limit_of_the_whole_name(journal: JournalBuilder) -> None:
    journal.grant(0, "a", limit=9, kind="w")
    journal.grant(50, "b", limit=9, kind="w", permits=0)


def limit_by_an_operator(journal: JournalBuilder) -> None:
    journal.operate(0, "resize", value=1)
    journal.grant(0, "a", limit=9)
    journal.grant(50, "b", limit=9)


def fence_granted_twice(journal: JournalBuilder) -> None:
    journal.grant(0, "a", limit=2)
    journal.grant(0, "b", limit=2)


def fence_of_a_retried_acquire(journal: JournalBuilder) -> None:
    journal.grant(0, "a")
    journal.add(10, journal.acquire_call("a"), ("ok", str(US + 10_000), "90"))


def owner_of_a_release_with_another_fence(journal: JournalBuilder) -> None:
    fence = journal.grant(0, "a")
    journal.release(10, "a", str(int(fence) - 1))


def owner_of_a_release_with_another_token(journal: JournalBuilder) -> None:
    fence = journal.grant(0, "a", limit=2)
    journal.grant(1, "b", limit=2)
    journal.release(10, "b", fence, ("ZREM", 1, "a", 0))


def owner_of_a_claimed_handoff(journal: JournalBuilder) -> None:
    journal.hand_off()
    # The wake list is gone (the 0): the new holder has popped it, so it is alive.
    journal.operate(60, "resume", ("ZREM", 1, "b", 0))


def extended_after_expiry(journal: JournalBuilder) -> None:
    journal.renew(150, "a", journal.grant(0, "a"))


def moved_by_another_fence(journal: JournalBuilder) -> None:
    journal.renew(50, "a", int(journal.grant(0, "a")) + 1)


def moved_by_a_late_renewal(journal: JournalBuilder) -> None:
    fence = journal.grant(0, "a")
    journal.renew(10, "a", fence, ms=500, nth=2)
    journal.renew(20, "a", fence, ms=100, nth=1)


def owner_of_retained_permits(journal: JournalBuilder) -> None:
    fence = journal.grant(0, "a")
    command = call("release", KEYS, "b", fence=fence, how="release", hold=500)
    journal.add(10, command, ("lost",), ("ZADD", 1, str(NOW + 500), "kb"))


def limit_of_retained_permits(journal: JournalBuilder) -> None:
    fence = journal.grant(0, "a")
    command = call("release", KEYS, "a", fence=fence, how="release", hold=500)
    journal.add(10, command, ("ok",), ("ZREM", 1, "a", 0), ("ZADD", 1, str(NOW + 500), "ka"))
    journal.grant(400, "b")


def ended_by_a_release(journal: JournalBuilder) -> None:
    fence = journal.grant(0, "a")
    journal.release(10, "a", fence)
    journal.grant(20, "a")


def ended_before_the_acquire(journal: JournalBuilder) -> None:
    command = call("release", KEYS, "a", how="undo", tombstone=1)
    journal.add(0, command, ("gone",), ("ZADD", 3, str(NOW + 100_000), "a"), *EXPIRY)
    journal.grant(20, "a")


def order(journal: JournalBuilder) -> None:
    fence = journal.grant(0, "a")
    journal.wait(1, "b")
    journal.wait(2, "c")
    journal.release(3, "a", fence, *journal.handoff_writes(3, "c"))


def order_of_a_newcomer(journal: JournalBuilder) -> None:
    journal.grant(0, "a", limit=2)
    journal.wait(1, "b", permits=2, limit=2)
    journal.grant(2, "c", limit=2)


def order_of_an_unfair_newcomer(journal: JournalBuilder) -> None:
    journal.grant(0, "a", limit=2, lease=5000)
    journal.wait(1, "b", 9000, permits=2, limit=2)
    journal.grant(2000, "c", limit=2, fair=0)


def place_taken_away(journal: JournalBuilder) -> None:
    journal.grant(0, "a")
    journal.wait(1, "b")
    journal.operate(5, "resume", ("ZREM", 2, "b"))


def place_given_twice(journal: JournalBuilder) -> None:
    journal.grant(0, "a")
    journal.wait(1, "b")
    journal.wait(2, "b")


def paused(journal: JournalBuilder) -> None:
    journal.operate(0, "pause")
    journal.grant(1, "a")


def refused(journal: JournalBuilder) -> None:
    journal.add(0, journal.acquire_call("a"), ("no", "full", 0))


def refused_after_expiry(journal: JournalBuilder) -> None:
    journal.grant(0, "a")
    journal.add(100, journal.acquire_call("b", how="try"), ("no", "full", 0))


def refused_as_too_large(journal: JournalBuilder) -> None:
    journal.add(0, journal.acquire_call("a", permits=2, limit=2), ("large", "2"))


def handover_at_a_release(journal: JournalBuilder) -> None:
    fence = journal.grant(0, "a")
    journal.wait(1, "b")
    journal.release(2, "a", fence)


def handover_after_resume(journal: JournalBuilder) -> None:
    journal.operate(0, "pause")
    journal.wait(1, "a")
    journal.operate(2, "resume")


def silent_handoff(journal: JournalBuilder) -> None:
    journal.hand_off(keep=lambda write: write[1] != 5)


def term_longer_than_requested(journal: JournalBuilder) -> None:
    journal.granted(0, journal.acquire_call("a", lease=50), "a", 100)


def term_longer_than_stored(journal: JournalBuilder) -> None:
    fence = journal.grant(0, "a")
    journal.add(10, journal.acquire_call("a"), ("ok", fence, "100"))


def term_of_a_handoff(journal: JournalBuilder) -> None:
    journal.hand_off(60_000)


def answer_to_a_late_release(journal: JournalBuilder) -> None:
    fence = journal.grant(0, "a")
    journal.release(100, "a", fence)


def answer_to_a_valid_renewal(journal: JournalBuilder) -> None:
    fence = journal.grant(0, "a")
    journal.add(50, call("renew", KEYS, "a", fence=fence, how="set", ms=9), ("lost",))


def answer_without_a_lease(journal: JournalBuilder) -> None:
    journal.add(0, journal.acquire_call("a"), ("ok", str(US), "100"))


def expiry_too_early(journal: JournalBuilder) -> None:
    journal.grant(0, "a", limit=2, lease=60_000)
    early = [("PEXPIREAT", key, str(NOW + 1700)) for key in (1, 4)]
    command = journal.acquire_call("b", limit=2)
    journal.add(
        10, command, ("ok", str(US + 10_000), "100"), *journal.lease_writes(10, "b", 100), *early
    )


def expiry_never(journal: JournalBuilder) -> None:
    writes = [w for w in journal.lease_writes(0, "a", 100) if w[0] != "PEXPIREAT"]
    journal.add(0, journal.acquire_call("a"), ("ok", str(US), "100"), *writes)


def expiry_of_the_wake_list(journal: JournalBuilder) -> None:
    journal.hand_off(keep=lambda write: write[:2] != ("PEXPIREAT", 5))


def vanished_lease(journal: JournalBuilder) -> None:
    journal.grant(0, "a")
    journal.leases.clear()
    journal.add(50, journal.acquire_call("b", how="try"), ("no", "full", 0))


def keys_of_another_name(journal: JournalBuilder) -> None:
    journal.add(0, call("clear", KEYS, "a"), ("gone",), ("SET", 0, "other", "1"))


def belief_after_the_end(journal: JournalBuilder) -> None:
    journal.grant(0, "a")
    journal.expect_end(50, "a", until=101)


def error(journal: JournalBuilder) -> None:
    journal.add(0, call("clear", KEYS, "a"), (), error="ERR attempt to index a nil value")


def share_above_its_limit(journal: JournalBuilder) -> None:
    for at, token in enumerate("ab"):
        journal.grant(at, token, limit=3, share="acme", share_limit=1)


def turn_of_two_of_a_share(journal: JournalBuilder) -> None:
    journal.grant(0, "a", limit=1, share="acme", share_limit=3)
    journal.wait(1, "b", limit=1, share="acme", share_limit=3)
    journal.wait(2, "c", limit=1, share="acme", share_limit=3)


#: The functions above: each writes a journal that breaks the rule its name begins with.
BAD = [thing for thing in vars().values() if "journal" in getattr(thing, "__annotations__", ())]


def rule_of(write: Callable[[JournalBuilder], None]) -> str:
    return write.__name__.partition("_")[0]


@pytest.mark.parametrize("write", BAD, ids=lambda write: write.__name__)
def test_checker_reports_the_rule_that_a_journal_breaks(
    write: Callable[[JournalBuilder], None],
) -> None:
    journal, rule = JournalBuilder(), rule_of(write)
    write(journal)

    assert rule in judge(journal.entries).rules()
    assert rule not in judge(journal.entries, ignore={rule}).rules()


def test_every_rule_has_a_bad_journal() -> None:
    assert set(RULES) == {rule_of(write) for write in BAD}


def good() -> JournalBuilder:
    journal = JournalBuilder()
    fence = journal.grant(0, "a")
    journal.expect_end(0, "a", until=99)
    journal.wait(1, "b")
    journal.wait(2, "dead", until=3)
    journal.release(10, "a", fence, *journal.handoff_writes(10, "b"))
    ends = [("ZREM", 1, "b", 0), ("ZREM", 3, "b"), ("ZREM", 2, "dead"), ("ZREM", 3, "dead")]
    reply = ("ok", str(US + 120_000), "100")
    journal.add(120, journal.acquire_call("c"), reply, *ends, *journal.lease_writes(120, "c", 100))
    return journal


def test_checker_accepts_and_counts_a_good_journal() -> None:
    history = judge(good().entries)

    assert [] == history.violations
    counts = {"granted at once": 2, "handed over": 1, "reclaimed": 1, "released": 1, "waited": 2}
    counts["believed"] = 1
    assert {"entries": 6, "names": 1, "epochs": 1, **counts} == history.summary()


@pytest.mark.parametrize(("restarted", "expected"), [(True, set()), (False, {"fence"})])
def test_checker_accepts_a_lower_fence_only_after_a_restart(
    restarted: bool, expected: set[str]
) -> None:
    journal = JournalBuilder()
    fence = journal.grant(1000, "a")
    journal.release(1010, "a", fence)
    journal.epoch = "second" if restarted else "first"
    journal.grant(0, "b")

    assert expected == judge(journal.entries).rules()


@pytest.mark.parametrize(("flushed", "expected"), [(True, set()), (False, {"ended"})])
def test_checker_accepts_a_late_copy_only_if_a_flush_deleted_its_tombstone(
    flushed: bool, expected: set[str]
) -> None:
    journal = JournalBuilder()
    ended_before_the_acquire(journal)
    if flushed:
        note = journal.entries[0]._replace(verb="!wiped", argv=(), reply=(), writes=())
        journal.entries.insert(1, note)
    assert expected == judge(journal.entries).rules()


def test_checker_accepts_leases_that_a_restart_lost() -> None:
    journal = JournalBuilder()
    journal.grant(0, "a")
    journal.leases.clear()
    journal.epoch = "second"
    journal.grant(10, "b")

    assert set() == judge(journal.entries).rules()


def test_checker_counts_an_expired_downgraded_lease_as_a_writer_again() -> None:
    journal, writer = JournalBuilder(), {"limit": 9, "kind": "w", "permits": 0}
    fence = journal.grant(0, "a", **writer)
    share = call("release", KEYS, "a", fence=fence, how="share")
    journal.add(5, share, ("ok",), ("HSET", 4, "a", "h"))
    journal.grant(10, "b", limit=9, kind="w", lease=500)
    gone = [("ZREM", 1, "a", 0), ("HDEL", 4, "a"), ("ZADD", 2, str(US + 150_000), "a")]
    gone += [("ZADD", 3, str(NOW + 1000), "a"), *EXPIRY]
    journal.add(150, journal.acquire_call("a", **writer), ("wait", str(NOW), 1000, 0), *gone)

    assert [] == judge(journal.entries).violations


def test_checker_forgets_the_content_of_expired_keys() -> None:
    journal = JournalBuilder()
    ends = [
        ("ZADD", 3, str(NOW + 20), "late"),
        *(("PEXPIREAT", n, str(NOW + 60)) for n in (1, 3, 4)),
    ]
    fence = journal.granted(0, journal.acquire_call("a", lease=10), "a", 10)
    journal.release(5, "a", fence, *ends)
    writes = [
        w
        for w in journal.lease_writes(61, "b", 100)
        if w[:2] not in (("PEXPIREAT", 2), ("PEXPIREAT", 3))
    ]
    journal.add(61, journal.acquire_call("b"), ("ok", str(US + 61_000), "100"), *writes)

    assert [] == judge(journal.entries).violations


def test_violation_shows_the_entries_before_and_after_it() -> None:
    journal = JournalBuilder()
    limit(journal)
    journal.wait(60, "c")
    (violation,) = judge(journal.entries).violations

    assert [0] == [entry.seq for entry in violation.before]
    assert (1, [2]) == (violation.entry.seq, [entry.seq for entry in violation.after])
    assert "limit: 1 of 1 were in use, 1 were granted" in str(violation)


def calls_of(entries: int) -> int:
    """Return the number of function calls that replay `entries` good entries."""
    journal, calls = good().entries, 0

    def count(frame: Any, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    many = (
        entry._replace(seq=number, name=f"n{number // len(journal)}")
        for number, entry in enumerate(itertools.islice(itertools.cycle(journal), entries))
    )
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        assert [] == judge(many).violations
    finally:
        sys.setprofile(before)
    return calls


def test_replay_cost_per_entry_does_not_grow_with_the_journal() -> None:
    assert calls_of(12_000) < 10.5 * calls_of(1_200)


# The journal itself


def test_wrapped_script_replies_like_the_plain_script(raw: redis.Redis, redis_url: str) -> None:
    keys = keys_of(settings.PREFIX, "x")
    command = call("acquire", keys, "t" * 32, how="wait", label="ünï {} \"'\\", compact=0)
    plain = command.run_on(raw)
    with journalling(redis_url) as journal:
        wrapped = command.run_on(raw)
        (entry,) = journal

    plain, wrapped = words(plain), words(wrapped)
    assert plain[:2] == wrapped[:2]
    assert [word.decode() for word in wrapped] == list(entry.reply)
    assert ("acquire", keys.info) == (entry.verb, f"{entry.name}:info")
    assert tuple(map(str, command.argv)) == entry.argv
    assert (("ZREM", 3, "t" * 32), ("DEL", 5, "t" * 32)) == entry.writes
    assert (1, 0) == entry.cards
    assert raw.info("server")["run_id"] == entry.epoch
    assert abs(entry.us / 1e6 - time.time()) < 60


def test_wrapped_script_fails_like_the_plain_script(raw: redis.Redis, redis_url: str) -> None:
    keys = keys_of(settings.PREFIX, "x")
    raw.set(keys.leases, "foreign")
    command = call("acquire", keys, "t", how="try")
    with journalling(redis_url) as journal:
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            command.run_on(raw)
        (entry,) = journal

    assert "WRONGTYPE" in entry.error
    assert b"foreign" == raw.get(keys.leases)


def test_checker_accepts_adoptions_within_the_millisecond_of_a_renewal(
    raw: redis.Redis, redis_url: str
) -> None:
    """Such an adoption leaves the end as it is, and changes only who holds the lease."""
    keys = keys_of(settings.PREFIX, "x")

    def run(client: redis.Redis, verb: str, **arguments: Any) -> Any:
        return call(verb, keys, "t", **arguments).run_on(client)

    with journalling(redis_url) as journal, raw.pipeline(transaction=False) as pipe:
        fence = words(run(raw, "acquire", how="try", lease=5000))[1]
        for known in range(0, 400, 2):
            for nth in (known + 1, known + 2):
                run(pipe, "renew", fence=fence, how="adopt", ms=5000, nth=nth, known=known)
        replies = pipe.execute()
        journal.check()

    assert [b"adopted"] * 200 == replies[1::2]


def test_journalling_restores_scripts_constants_and_environment(
    raw: redis.Redis, redis_url: str
) -> None:
    before = scripts.script("acquire").sha, dict(scripts.CONSTANTS), plans.CLAIM, dict(os.environ)
    with journalling(redis_url, constants={"CLAIM": 50}) as journal:
        assert journal.key in scripts.script("acquire").source
        assert (0.05, 50) == (plans.CLAIM, plans.CONSTANTS["CLAIM"])
    after = scripts.script("acquire").sha, dict(scripts.CONSTANTS), plans.CLAIM, dict(os.environ)

    assert before == after
    assert 0 == raw.exists(journal.key)


def test_journalling_recomposes_a_script_that_a_thread_is_composing(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, began, goes_on = scripts.compose, threading.Event(), threading.Event()

    def slowly(verb: str, *more: Any) -> str:
        began.set()
        goes_on.wait(10)
        return before(verb, *more)

    scripts.script.cache_clear()
    monkeypatch.setattr(scripts, "compose", slowly)
    other = threading.Thread(target=scripts.script, args=("clear",))
    other.start()
    assert began.wait(10)
    threading.Timer(0.1, goes_on.set).start()
    with journalling(redis_url) as journal:
        other.join()
        assert journal.key in scripts.script("clear").source


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
command = call("clear", keys_of({settings.PREFIX!r}, "x"), "t")
assert "777" in scripts.script("clear").source
with redis.Redis.from_url({redis_url!r}) as client:
    print(command.run_on(client))
"""
    with journalling(redis_url, constants={"TOMBSTONE_TTL": 777}) as journal:
        done = worker_processes.run("-c", child)
        verbs = [entry.verb for entry in journal]

    assert "b'gone'\n" == done.stdout, done.stderr
    assert ["clear"] == verbs
    # The journal stays readable after the block.
    assert 1 == journal.check().entries


def test_drained_entries_are_judged_with_later_entries(raw: redis.Redis) -> None:
    random = workload(raw)
    random.run(300)
    drained = random.journal.drain()
    random.run(300)

    assert drained > 100
    assert drained + raw.llen(random.journal.key) == random.journal.judge().entries


@pytest.mark.parametrize(("noted", "expected"), [(True, set()), (False, {"vanished"})])
def test_checker_reports_a_flush_unless_the_journal_notes_it(
    raw: redis.Redis, noted: bool, expected: set[str]
) -> None:
    random = workload(raw)
    random.run(600)
    for key in raw.scan_iter(f"{settings.PREFIX}:*"):
        raw.delete(key)
    if noted:
        random.journal.note("wiped")
    random.run(300)

    assert expected == random.journal.judge().rules() & {"vanished"}
