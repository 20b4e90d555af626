"""The checker of histories is checked: planted defects are found, and bad journals break rules."""

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


# Planted defects: what is replaced by what, and the rules of which one has to be found broken

DEFECTS: dict[str, tuple[str, str, set[str]]] = {
    "a client's clock, 40 ms off either way": (
        "us = time[1] * 1000000 + time[2]",
        "us = time[1] * 1000000 + time[2] + (time[2] * 7 % 81 - 40) * 1000",
        {"limit", "term", "owner", "extended", "answer"},
    ),
    "a release by anybody": ("not (live and own == fence)", "not live", {"owner", "answer"}),
    "a retry that is not idempotent": (
        "\nif record then",
        "\nif string.sub(record or '', 1, 1) == 'h' then record = nil end\nif record then",
        {"fence", "limit"},
    ),
    "a hand-over that is lost": (
        "if waiting > 0 then\n  if name.card > 0 then",
        "if false then\n  if true then",
        {"handover"},
    ),
    "a hand-over that tells nobody": (
        "redis.pcall('RPUSH', wake_key(t), message)",
        "redis.pcall('DEL', wake_key(t))",
        {"silent"},
    ),
    "a hand-over out of order": (
        "local head = redis.call('ZRANGE', QUEUE, '0', '0', 'WITHSCORES')\n",
        "local head = redis.call('ZREVRANGE', QUEUE, '0', '0', 'WITHSCORES')\n",
        {"order"},
    ),
    "a hand-over with the releaser's lease": (
        "then ms = FIRST end",
        "then ms = tonumber(string.match(record or '', '^%a%d* %d+ (%d+)') or ms) end",
        {"term"},
    ),
    "a renewal without a fence": (
        "if ends <= name.now or own ~= fence then",
        "if ends <= name.now then",
        {"moved", "answer"},
    ),
    "a renewal of an expired lease": (
        "if ends <= name.now or own ~= fence then",
        "if own ~= fence then",
        {"extended", "answer"},
    ),
    "a late renewal that is heeded": (
        "if how ~= 'confirm' and coming >= latest then",
        "if how == 'set' then",
        {"moved"},
    ),
    "a handle that two adopt": (
        "if how == 'adopt' and latest > tonumber(known)",
        "if how == 'adopt' and latest > 2 ^ 53",
        {"moved"},
    ),
    "a release of an expired lease": (
        "local live = tonumber(ends or 0) > name.now",
        "local live = tonumber(ends or 0) > 0",
        {"answer"},
    ),
    "the releaser's key expiry": ("and latest + GRACE > expiry", "", {"expiry", "vanished"}),
    "a permanent lease on keys that expire": (
        "redis.call('PERSIST', key)",
        "",
        {"expiry"},
    ),
    "one permit too many": (
        "  return used <= limit\n",
        "  return used <= limit + 1\n",
        {"limit"},
    ),
    "a newcomer that passes the queue": (
        "  if free and waiting > 0 then",
        "  if false then",
        {"order"},
    ),
    "an unfair newcomer that passes an old head": (
        "math.abs(name.now - head / 1000) < HEARTBEAT",
        "name.now - head / 1000 < 60 * HEARTBEAT",
        {"order"},
    ),
    "a fence that is only the clock": (
        "name.fence = name.fence < name.us and name.us or name.fence + 1",
        "name.fence = name.us",
        {"fence"},
    ),
    "nothing buried": ("if tombstone == '1' then", "if false then", {"ended"}),
    "a winner that claimed thrown out": (
        "elseif ends and redis.call('EXISTS', wake_key(t)) == 0 then",
        "elseif false then",
        {"owner"},
    ),
    "a live head thrown out": (
        "elseif state ~= 'w' or permits > limit then",
        "elseif true then",
        {"place"},
    ),
    "an event loop given up while it gives signs of life": (
        "local ends = name.now + ALIVE",
        "local ends = name.now - 1",
        {"handover", "order", "place"},
    ),
    "a sign of life thrown out with a waiter": (
        "    redis.call('ZREM', WAITERS, t)\n",
        "    redis.call('ZREM', WAITERS, t, 'loop:1')\n",
        {"place"},
    ),
    "live waiters dropped among the dead": (
        "if t ~= me and (state ~= 'w' or deadline_of(name, t, channel) <= name.now) then",
        "if t ~= me then",
        {"place"},
    ),
    "a pause that stops nobody": ("  if name.paused then return false end\n", "", {"paused"}),
    "a refusal of free permits": (
        "local free = fits(name, many, most)",
        "if how == 'try' then return {'no', 'full', 0} end\n  local free = fits(name, many, most)",
        {"refused"},
    ),
    "a wake list that goes before its lease": (
        "name.now + ms + GRACE)",
        "name.now + math.min(CLAIM, ms))",
        {"expiry"},
    ),
    "a hand-over of the whole lease at once": (
        "if ms > FIRST and (handed or lease == 'inf') then ms = FIRST end",
        "",
        {"term"},
    ),
    "an operator's marks that expire": (
        "    latest = math.max(latest, pause_ends(marks[2]))\n",
        "",
        {"expiry"},
    ),
    "an operator who hands nothing over": (
        "for _ = 1, BOUND do\n    local head",
        "for _ = 1, ARGV[2] == 'resume' and 0 or BOUND do\n    local head",
        {"handover"},
    ),
    "expired leases that are never swept": (
        "for round = 1, ROUNDS do",
        "for round = 1, 0 do",
        {"refused", "handover"},
    ),
    "leases swept by a clock that is ahead": (
        "call('ZRANGEBYSCORE', LEASES, '-inf', name.at, 'LIMIT', '0', BOUND)",
        "call('ZRANGEBYSCORE', LEASES, '-inf', name.at + 20, 'LIMIT', '0', BOUND)",
        {"owner"},
    ),
    "a claim that is forgotten": (
        "  redis.call('ZREM', WAITERS, token)\n  redis.call('DEL', WAKE)\n",
        "",
        {"owner"},
    ),
    "a fence that goes with its lease": ("put(name, '#fence', fence)\n", "", {"fence"}),
    "a writer that becomes a reader and counts on": (
        "  name.extra = name.extra - weight(tonumber(permits)) + 1\n",
        "",
        {"handover"},
    ),
    "permits kept by min_hold that nobody counts": (
        "  add_lease(name, 'k' .. token,",
        "  name.card = name.card - tonumber(string.match(terms, '^%d+'))\n"
        "  add_lease(name, 'k' .. token,",
        {"limit"},
    ),
    "a permit given back by everything that is removed": (
        "if ends then\n    redis.call('ZREM', LEASES, t)",
        "if true then\n    redis.call('ZREM', LEASES, t)",
        {"limit"},
    ),
    "a newcomer above the limit of its share": (
        "local fitting, last = share_fits(held, many, bound), nil",
        "local fitting, last = true, nil",
        {"share", "refused"},
    ),
    "two of one share in the queue": (
        "if fitting and first == '' and not last then",
        "if fitting then",
        {"turn"},
    ),
    "a share that gives back and calls nobody up": (
        "first = call_up(name, share, held, ticket)",
        "first = ''",
        {"turn"},
    ),
    "a share whose use is forgotten": (
        "held = held + weight(permits)\n",
        "held = held\n",
        {"share"},
    ),
    "a place lost by asking again": (
        "  sweep(name, me)\n",
        "  if me then redis.call('ZADD', QUEUE, name.us, me) end\n  sweep(name, me)\n",
        {"place"},
    ),
}


#: Steps of random work between looks, until a defect has to be found. Most are found at the first
#: look; a few need a rare moment.
ROUNDS = (300, 300, 600, 1200, 2400, 4800, 9600, 19_200, 21_600)


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found(raw: redis.Redis, name: str) -> None:
    anchor, other, expected = DEFECTS[name]
    planted: list[str] = []

    def mutate(verb: str, source: str) -> str:
        if anchor in source:
            planted.append(verb)
        return source.replace(anchor, other)

    random = workload(raw, mutate=mutate)
    assert planted, f"no script holds {anchor!r} any more: plant this defect anew"
    for steps in ROUNDS:
        random.run(steps)
        found = random.journal.judge(most=1000)
        if found.rules() & expected:
            return
    pytest.fail(f"not found: {name}\n{found.summary()}\n{found.report()}")


class OfTheLastAnswer(LocalExpiry):
    """Believes the answer that came last."""

    def answered(self, nth: int, until: float) -> None:
        self._ends = {nth: (until, True)}


class OfAnswersOnly(LocalExpiry):
    """Does not reckon with what is on its way."""

    def asked(self, nth: int, lease: float, now: float) -> None:
        pass


@pytest.mark.parametrize("believing", [OfTheLastAnswer, OfAnswersOnly])
def test_a_defect_in_what_holders_believe_is_found(
    raw: redis.Redis, believing: type[LocalExpiry]
) -> None:
    random = workload(raw, believing=believing)
    for steps in ROUNDS:
        random.run(steps)
        if random.journal.judge().rules() == {"belief"}:
            return
    pytest.fail("not found")


# Journals made by hand

US = 1_700_000_000_000_000
NOW = US // 1000
KEYS = keys_of("t", "n")
EXPIRY = [("PEXPIREAT", key, str(NOW + 500_000)) for key in (1, 2, 3, 4)]

Write = tuple[Any, ...]


class Job:
    """Writes entries by hand. Times are ms after the start; tokens are any words."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.leases: set[str] = set()
        self.queue: set[str] = set()
        self.epoch = "first"

    def add(self, at: float, one: Any, reply: Write, *writes: Write, error: str = "") -> None:
        cards = (len(self.leases), len(self.queue))
        for command, key, *args in writes:
            kept = {1: self.leases, 2: self.queue}.get(key)
            if kept is not None and command == "ZADD":
                kept.add(args[1])
            elif kept is not None and command == "ZREM":
                kept.discard(args[0])
        argv = tuple(str(word) for word in one.argv)
        entry = (self.epoch, US + int(at * 1000), one.verb, "n", argv, reply, cards, writes, error)
        self.entries.append(Entry(len(self.entries), *entry))

    def asked(self, token: str, **said: Any) -> Any:
        return call("acquire", KEYS, token, **{"how": "wait", "lease": 100, **said})

    def grant(self, at: float, token: str, **said: Any) -> str:
        """A grant at once; returns its fence."""
        one = self.asked(token, **said)
        return self.given(at, one, token, one.said["lease"])

    def given(self, at: float, one: Any, token: str, lease: float) -> str:
        fence = str(US + int(at * 1000))
        self.add(at, one, ("ok", fence, str(lease)), *self.lent(at, token, lease))
        return fence

    def lent(self, at: float, token: str, lease: float) -> list[Write]:
        return [
            ("ZADD", 1, str(NOW + at + lease), token),
            ("HSET", 4, token, "h", "#fence", str(US + int(at * 1000))),
            *EXPIRY,
        ]

    def wait(self, at: float, token: str, until: float = 1000, **said: Any) -> None:
        writes = [("ZADD", 2, str(US + int(at * 1000)), token)]
        writes += [("ZADD", 3, str(NOW + until), token), *EXPIRY]
        self.add(at, self.asked(token, **said), ("wait", str(NOW), 1000, 0), *writes)

    def release(self, at: float, token: str, fence: str, *writes: Write) -> None:
        one = call("release", KEYS, token, fence=fence, how="release")
        self.add(at, one, ("ok",), ("ZREM", 1, token, 0), *writes)

    def handed(self, at: float, token: str, lease: float = 100) -> list[Write]:
        fence = str(US + int(at * 1000))
        return [
            *self.lent(at, token, lease),
            ("ZREM", 2, token),
            ("ZADD", 3, str(NOW + at + 50), token),
            ("RPUSH", 5, token, f"{fence} {NOW + int(at)} {lease:.0f}"),
            ("PEXPIREAT", 5, token, str(NOW + at + 10_000)),
        ]

    def believe(self, at: float, token: str, until: float) -> None:
        argv, us = (token, str(NOW + until)), US + int(at * 1000)
        entry = ("", us, "!believes", "n", argv, (), (0, 0), (), "")
        self.entries.append(Entry(len(self.entries), *entry))

    def operate(self, at: float, how: str, *writes: Write, value: int | str = "") -> None:
        self.add(at, call("operate", KEYS, how=how, value=value), ("ok",), *writes)


def limit(book: Job) -> None:
    book.grant(0, "a")
    book.grant(50, "b")


def limit_of_the_whole_name(book: Job) -> None:
    book.grant(0, "a", limit=9, kind="w")
    book.grant(50, "b", limit=9, kind="w", permits=0)


def limit_by_an_operator(book: Job) -> None:
    book.operate(0, "resize", value=1)
    book.grant(0, "a", limit=9)
    book.grant(50, "b", limit=9)


def fence_that_stands_still(book: Job) -> None:
    book.grant(0, "a", limit=2)
    book.grant(0, "b", limit=2)


def fence_of_a_repeated_ask(book: Job) -> None:
    book.grant(0, "a")
    book.add(10, book.asked("a"), ("ok", str(US + 10_000), "90"))


def owner_by_fence(book: Job) -> None:
    fence = book.grant(0, "a")
    book.release(10, "a", str(int(fence) - 1))


def owner_by_token(book: Job) -> None:
    fence = book.grant(0, "a", limit=2)
    book.grant(1, "b", limit=2)
    book.release(10, "b", fence, ("ZREM", 1, "a", 0))


def owner_of_a_claimed_hand_over(book: Job) -> None:
    fence = book.grant(0, "a")
    book.wait(1, "b")
    book.release(2, "a", fence, *book.handed(2, "b"))
    # Its wake list is gone (the 0): it was popped, so the winner is alive.
    book.operate(60, "resume", ("ZREM", 1, "b", 0))


def extended(book: Job) -> None:
    fence = book.grant(0, "a")
    one = call("renew", KEYS, "a", fence=fence, how="set", ms=100)
    book.add(150, one, ("ok", "100"), ("ZADD", 1, str(NOW + 250), "a"))


def moved(book: Job) -> None:
    fence = book.grant(0, "a")
    one = call("renew", KEYS, "a", fence=int(fence) + 1, how="set", ms=100)
    book.add(50, one, ("ok", "100"), ("ZADD", 1, str(NOW + 150), "a"))


def moved_by_a_late_renewal(book: Job) -> None:
    fence = book.grant(0, "a")
    for at, nth, ms in ((10, 2, 500), (20, 1, 100)):
        one = call("renew", KEYS, "a", fence=fence, how="set", ms=ms, nth=nth)
        book.add(at, one, ("ok", str(ms)), ("ZADD", 1, str(NOW + at + ms), "a"))


def owner_of_kept_permits(book: Job) -> None:
    fence = book.grant(0, "a")
    one = call("release", KEYS, "b", fence=fence, how="release", hold=500)
    book.add(10, one, ("lost",), ("ZADD", 1, str(NOW + 500), "kb"))


def limit_of_kept_permits(book: Job) -> None:
    fence = book.grant(0, "a")
    one = call("release", KEYS, "a", fence=fence, how="release", hold=500)
    book.add(10, one, ("ok",), ("ZREM", 1, "a", 0), ("ZADD", 1, str(NOW + 500), "ka"))
    book.grant(400, "b")


def ended(book: Job) -> None:
    fence = book.grant(0, "a")
    book.release(10, "a", fence)
    book.grant(20, "a")


def ended_before_it_came(book: Job) -> None:
    one = call("release", KEYS, "a", how="undo", tombstone=1)
    book.add(0, one, ("gone",), ("ZADD", 3, str(NOW + 100_000), "a"), *EXPIRY)
    book.grant(20, "a")


def order(book: Job) -> None:
    fence = book.grant(0, "a")
    book.wait(1, "b")
    book.wait(2, "c")
    book.release(3, "a", fence, *book.handed(3, "c"))


def order_of_a_newcomer(book: Job) -> None:
    book.grant(0, "a", limit=2)
    book.wait(1, "b", permits=2, limit=2)
    book.grant(2, "c", limit=2)


def order_of_an_unfair_newcomer(book: Job) -> None:
    book.grant(0, "a", limit=2, lease=5000)
    book.wait(1, "b", 9000, permits=2, limit=2)
    book.grant(2000, "c", limit=2, fair=0)


def place_taken(book: Job) -> None:
    book.grant(0, "a")
    book.wait(1, "b")
    book.operate(5, "resume", ("ZREM", 2, "b"))


def place_given_twice(book: Job) -> None:
    book.grant(0, "a")
    book.wait(1, "b")
    book.wait(2, "b")


def paused(book: Job) -> None:
    book.operate(0, "pause")
    book.grant(1, "a")


def refused(book: Job) -> None:
    book.add(0, book.asked("a"), ("no", "full", 0))


def refused_after_expiry(book: Job) -> None:
    book.grant(0, "a")
    book.add(100, book.asked("b", how="try"), ("no", "full", 0))


def refused_as_too_large(book: Job) -> None:
    book.add(0, book.asked("a", permits=2, limit=2), ("large", "2"))


def handover(book: Job) -> None:
    fence = book.grant(0, "a")
    book.wait(1, "b")
    book.release(2, "a", fence)


def handover_after_resume(book: Job) -> None:
    book.operate(0, "pause")
    book.wait(1, "a")
    book.operate(2, "resume")


def silent(book: Job) -> None:
    fence = book.grant(0, "a")
    book.wait(1, "b")
    book.release(2, "a", fence, *(w for w in book.handed(2, "b") if w[1] != 5))


def term_that_is_too_long(book: Job) -> None:
    book.given(0, book.asked("a", lease=50), "a", 100)


def term_promised_too_long(book: Job) -> None:
    fence = book.grant(0, "a")
    book.add(10, book.asked("a"), ("ok", fence, "100"))


def term_of_a_hand_over(book: Job) -> None:
    fence = book.grant(0, "a")
    book.wait(1, "b", lease=60_000)
    book.release(2, "a", fence, *book.handed(2, "b", 60_000))


def answer_of_an_expired_release(book: Job) -> None:
    fence = book.grant(0, "a")
    book.release(100, "a", fence)


def answer_of_a_renewal(book: Job) -> None:
    fence = book.grant(0, "a")
    book.add(50, call("renew", KEYS, "a", fence=fence, how="set", ms=9), ("lost",))


def answer_without_a_lease(book: Job) -> None:
    book.add(0, book.asked("a"), ("ok", str(US), "100"))


def expiry_too_early(book: Job) -> None:
    book.grant(0, "a", limit=2, lease=60_000)
    early = [("PEXPIREAT", key, str(NOW + 1700)) for key in (1, 4)]
    one = book.asked("b", limit=2)
    book.add(10, one, ("ok", str(US + 10_000), "100"), *book.lent(10, "b", 100), *early)


def expiry_never(book: Job) -> None:
    writes = [w for w in book.lent(0, "a", 100) if w[0] != "PEXPIREAT"]
    book.add(0, book.asked("a"), ("ok", str(US), "100"), *writes)


def expiry_of_the_wake_list(book: Job) -> None:
    fence = book.grant(0, "a")
    book.wait(1, "b")
    book.release(2, "a", fence, *(w for w in book.handed(2, "b") if w[:2] != ("PEXPIREAT", 5)))


def vanished(book: Job) -> None:
    book.grant(0, "a")
    book.leases.clear()
    book.add(50, book.asked("b", how="try"), ("no", "full", 0))


def keys(book: Job) -> None:
    book.add(0, call("clear", KEYS, "a"), ("gone",), ("SET", 0, "other", "1"))


def belief(book: Job) -> None:
    book.grant(0, "a")
    book.believe(50, "a", until=101)


def error(book: Job) -> None:
    book.add(0, call("clear", KEYS, "a"), (), error="ERR attempt to index a nil value")


def share_above_its_limit(book: Job) -> None:
    for at, token in enumerate("ab"):
        book.grant(at, token, limit=3, share="acme", share_limit=1)


def turn_of_two_of_a_share(book: Job) -> None:
    book.grant(0, "a", limit=1, share="acme", share_limit=3)
    book.wait(1, "b", limit=1, share="acme", share_limit=3)
    book.wait(2, "c", limit=1, share="acme", share_limit=3)


BAD: list[Callable[[Job], None]] = [
    share_above_its_limit,
    turn_of_two_of_a_share,
    limit,
    limit_of_the_whole_name,
    limit_by_an_operator,
    fence_that_stands_still,
    fence_of_a_repeated_ask,
    owner_by_fence,
    owner_by_token,
    owner_of_a_claimed_hand_over,
    extended,
    owner_of_kept_permits,
    limit_of_kept_permits,
    moved,
    moved_by_a_late_renewal,
    ended,
    ended_before_it_came,
    order,
    order_of_a_newcomer,
    order_of_an_unfair_newcomer,
    place_taken,
    place_given_twice,
    paused,
    refused,
    refused_after_expiry,
    refused_as_too_large,
    handover,
    handover_after_resume,
    silent,
    term_that_is_too_long,
    term_promised_too_long,
    term_of_a_hand_over,
    answer_of_an_expired_release,
    answer_of_a_renewal,
    answer_without_a_lease,
    expiry_too_early,
    expiry_never,
    expiry_of_the_wake_list,
    vanished,
    keys,
    belief,
    error,
]


def rule_of(write: Callable[[Job], None]) -> str:
    return write.__name__.partition("_")[0]


@pytest.mark.parametrize("write", BAD, ids=lambda write: write.__name__)
def test_a_bad_journal_breaks_its_rule(write: Callable[[Job], None]) -> None:
    book, rule = Job(), rule_of(write)
    write(book)

    assert rule in judge(book.entries).rules()
    # A test that breaks one rule on purpose can have the others judged.
    assert rule not in judge(book.entries, ignore={rule}).rules()


def test_every_rule_has_a_bad_journal() -> None:
    assert set(RULES) == {rule_of(write) for write in BAD}


def good() -> Job:
    book = Job()
    fence = book.grant(0, "a")
    book.believe(0, "a", until=99)
    book.wait(1, "b")
    book.wait(2, "dead", until=3)
    book.release(10, "a", fence, *book.handed(10, "b"))
    ends = [("ZREM", 1, "b", 0), ("ZREM", 3, "b"), ("ZREM", 2, "dead"), ("ZREM", 3, "dead")]
    reply = ("ok", str(US + 120_000), "100")
    book.add(120, book.asked("c"), reply, *ends, *book.lent(120, "c", 100))
    return book


def test_a_good_journal_breaks_none() -> None:
    history = judge(good().entries)

    assert [] == history.violations
    counts = {"granted at once": 2, "handed over": 1, "reclaimed": 1, "released": 1, "waited": 2}
    counts["believed"] = 1
    assert {"entries": 6, "names": 1, "epochs": 1, **counts} == history.summary()


@pytest.mark.parametrize(("restarted", "expected"), [(True, set()), (False, {"fence"})])
def test_fences_go_back_only_with_the_clock_and_a_restart(
    restarted: bool, expected: set[str]
) -> None:
    book = Job()
    fence = book.grant(1000, "a")
    book.release(1010, "a", fence)
    book.epoch = "second" if restarted else "first"
    book.grant(0, "b")

    assert expected == judge(book.entries).rules()


def test_leases_lost_in_a_restart_are_not_held_against_the_scripts() -> None:
    book = Job()
    book.grant(0, "a")
    book.leases.clear()
    book.epoch = "second"
    book.grant(10, "b")

    assert set() == judge(book.entries).rules()


def test_a_shared_lease_that_is_over_is_asked_for_anew_as_a_whole() -> None:
    """A writer that became a reader is a writer again when it asks after its lease ended."""
    book, writer = Job(), {"limit": 9, "kind": "w", "permits": 0}
    fence = book.grant(0, "a", **writer)
    share = call("release", KEYS, "a", fence=fence, how="share")
    book.add(5, share, ("ok",), ("HSET", 4, "a", "h"))
    book.grant(10, "b", limit=9, kind="w", lease=500)
    gone = [("ZREM", 1, "a", 0), ("HDEL", 4, "a"), ("ZADD", 2, str(US + 150_000), "a")]
    gone += [("ZADD", 3, str(NOW + 1000), "a"), *EXPIRY]
    book.add(150, book.asked("a", **writer), ("wait", str(NOW), 1000, 0), *gone)

    assert [] == judge(book.entries).violations


def test_keys_that_expired_a_millisecond_ago_are_gone() -> None:
    """What lay in them need not outlive what is granted then."""
    book = Job()
    ends = [
        ("ZADD", 3, str(NOW + 20), "late"),
        *(("PEXPIREAT", n, str(NOW + 60)) for n in (1, 3, 4)),
    ]
    fence = book.given(0, book.asked("a", lease=10), "a", 10)
    book.release(5, "a", fence, *ends)
    writes = [
        w for w in book.lent(61, "b", 100) if w[:2] not in (("PEXPIREAT", 2), ("PEXPIREAT", 3))
    ]
    book.add(61, book.asked("b"), ("ok", str(US + 61_000), "100"), *writes)

    assert [] == judge(book.entries).violations


def test_a_violation_shows_what_happened_around_it() -> None:
    book = Job()
    limit(book)
    book.wait(60, "c")
    (violation,) = judge(book.entries).violations

    assert [0] == [entry.seq for entry in violation.before]
    assert (1, [2]) == (violation.entry.seq, [entry.seq for entry in violation.after])
    assert "limit: 1 of 1 were in use, 1 were granted" in str(violation)


def calls_of(entries: int) -> int:
    """How many functions are called to replay so many entries, of which all are good."""
    book, calls = good().entries, 0

    def count(frame: Any, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    many = (
        entry._replace(seq=number, name=f"n{number // len(book)}")
        for number, entry in enumerate(itertools.islice(itertools.cycle(book), entries))
    )
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        assert [] == judge(many).violations
    finally:
        sys.setprofile(before)
    return calls


def test_a_replay_takes_as_much_for_each_entry_however_many_there_are() -> None:
    assert calls_of(12_000) < 10.5 * calls_of(1_200)


# The journal itself


def test_a_wrapped_script_answers_as_the_plain_one(raw: redis.Redis, redis_url: str) -> None:
    keys = keys_of(settings.PREFIX, "x")
    one = call("acquire", keys, "t" * 32, how="wait", label="ünï {} \"'\\", compact=0)
    plain = one.run_on(raw)
    with journalling(redis_url) as journal:
        wrapped = one.run_on(raw)
        (entry,) = journal

    plain, wrapped = words(plain), words(wrapped)
    assert plain[:2] == wrapped[:2]
    assert [word.decode() for word in wrapped] == list(entry.reply)
    assert ("acquire", keys.info) == (entry.verb, f"{entry.name}:info")
    assert tuple(map(str, one.argv)) == entry.argv
    assert (("ZREM", 3, "t" * 32), ("DEL", 5, "t" * 32)) == entry.writes
    assert (1, 0) == entry.cards
    assert raw.info("server")["run_id"] == entry.epoch
    assert abs(entry.us / 1e6 - time.time()) < 60


def test_a_wrapped_script_fails_as_the_plain_one(raw: redis.Redis, redis_url: str) -> None:
    keys = keys_of(settings.PREFIX, "x")
    raw.set(keys.leases, "foreign")
    one = call("acquire", keys, "t", how="try")
    with journalling(redis_url) as journal:
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            one.run_on(raw)
        (entry,) = journal

    assert "WRONGTYPE" in entry.error
    assert b"foreign" == raw.get(keys.leases)


def test_a_renewal_that_moves_nothing_is_noted(raw: redis.Redis, redis_url: str) -> None:
    """Within a millisecond of the last, the end stays; who adopted the lease does not."""
    keys = keys_of(settings.PREFIX, "x")

    def ask(client: redis.Redis, verb: str, **said: Any) -> Any:
        return call(verb, keys, "t", **said).run_on(client)

    with journalling(redis_url) as journal, raw.pipeline(transaction=False) as pipe:
        fence = words(ask(raw, "acquire", how="try", lease=5000))[1]
        for known in range(0, 400, 2):
            for nth in (known + 1, known + 2):
                ask(pipe, "renew", fence=fence, how="adopt", ms=5000, nth=nth, known=known)
        replies = pipe.execute()
        journal.check()

    assert [b"adopted"] * 200 == replies[1::2]


def test_the_journal_is_taken_off_again(raw: redis.Redis, redis_url: str) -> None:
    before = scripts.script("acquire").sha, dict(scripts.CONSTANTS), plans.CLAIM, dict(os.environ)
    with journalling(redis_url, constants={"CLAIM": 50}) as journal:
        assert journal.key in scripts.script("acquire").source
        assert (0.05, 50) == (plans.CLAIM, plans.CONSTANTS["CLAIM"])
    after = scripts.script("acquire").sha, dict(scripts.CONSTANTS), plans.CLAIM, dict(os.environ)

    assert before == after
    assert 0 == raw.exists(journal.key)


def test_what_a_thread_composes_meanwhile_is_not_kept(
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


def test_child_processes_write_the_same_journal(raw: redis.Redis, redis_url: str) -> None:
    child = f"""
import redis
from tests.support.journal import install_from_env
from tests.support.workload import call
from django_redis_sync.protocol import scripts
from django_redis_sync.protocol.keys import keys_of
install_from_env()
one = call("clear", keys_of({settings.PREFIX!r}, "x"), "t")
assert "777" in scripts.script("clear").source
with redis.Redis.from_url({redis_url!r}) as client:
    print(one.run_on(client))
"""
    with journalling(redis_url, constants={"TOMBSTONE_TTL": 777}) as journal:
        done = worker_processes.run("-c", child)
        verbs = [entry.verb for entry in journal]

    assert "b'gone'\n" == done.stdout, done.stderr
    assert ["clear"] == verbs
    # What was written stays readable after the block.
    assert 1 == journal.check().entries


def test_what_was_drained_is_judged_with_the_rest(raw: redis.Redis) -> None:
    random = workload(raw)
    random.run(300)
    drained = random.journal.drain()
    random.run(300)

    assert drained > 100
    assert drained + raw.llen(random.journal.key) == random.journal.judge().entries


@pytest.mark.parametrize(("noted", "expected"), [(True, set()), (False, {"vanished"})])
def test_a_flush_is_noted_or_found(raw: redis.Redis, noted: bool, expected: set[str]) -> None:
    random = workload(raw)
    random.run(600)
    for key in raw.scan_iter(f"{settings.PREFIX}:*"):
        raw.delete(key)
    if noted:
        random.journal.note("wiped")
    random.run(300)

    assert expected == random.journal.judge().rules() & {"vanished"}
