"""Every script, on a real server.

Time passes by moving scores, not by sleeping: `expire` and `silence` set them to the past.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.conf import settings

from django_redis_sync.protocol import plans, scripts
from django_redis_sync.protocol.keys import Keys, group_keys, keys_of, marks_key
from django_redis_sync.protocol.visits import Job, visit
from tests.support.packed import Packed, all_keys, packed_of
from tests.support.workload import call, words

pytestmark = pytest.mark.promise(9, 12)

C = scripts.CONSTANTS


def _as_number(word: str, at: int, value: Any) -> Any:
    """Return `value` as int where a reply with this word has a time in ms, a rank, or a count."""
    return int(value) if at in {"wait": (1, 2), "no": (1,)}.get(word, ()) else value


class Name:
    """One name on the server, and the scripts that act on it."""

    def __init__(self, raw: redis.Redis, name: str = "x") -> None:
        self.raw, self.keys = raw, keys_of(settings.PREFIX, name)

    def run(self, verb: str, token: str = "", **arguments: Any) -> list[Any]:
        one = call(verb, self.keys, token, **arguments)
        try:
            reply = words(self.raw.evalsha(scripts.script(verb).sha, *one.asked))
        except redis.exceptions.NoScriptError:
            reply = words(one.run_on(self.raw))
        word, *rest = [part.decode() if isinstance(part, bytes) else part for part in reply]
        return [word, *(_as_number(word, at, part) for at, part in enumerate(rest))]

    def ask(self, token: str, how: str = "wait", **arguments: Any) -> list[Any]:
        return self.run("acquire", token, how=how, **arguments)

    def hold(self, token: str, **arguments: Any) -> str:
        """Acquire at once; return the fence."""
        word, fence, *_ = self.ask(token, **arguments)
        assert "ok" == word
        return fence

    def wait(self, *tokens: str, **arguments: Any) -> None:
        for token in tokens:
            assert "wait" == self.ask(token, **arguments)[0]

    def acquire_together(self, *tokens: str, **arguments: Any) -> None:
        """Acquire with many tokens in one pipeline. All must get the same reply."""
        script = scripts.script("acquire")
        self.raw.script_load(script.source)
        with self.raw.pipeline(transaction=False) as all_of_them:
            for token in tokens:
                one = call("acquire", self.keys, token, **arguments)
                all_of_them.evalsha(script.sha, *one.asked)
            assert 1 == len({words(reply)[0] for reply in all_of_them.execute()})

    def wait_long(self, *tokens: str) -> None:
        """Queue many tokens, with deadlines so late that none passes meanwhile."""
        for start in range(0, len(tokens), 100):
            some = tokens[start : start + 100]
            self.acquire_together(*some, how="wait")
            late = dict.fromkeys(some, self.now() + 600_000)
            assert len(some) == self.raw.zadd(self.keys.waiters, late, xx=True, ch=True)

    def release(self, token: str, fence: str, **arguments: Any) -> str:
        return self.run("release", token, fence=fence, how="release", **arguments)[0]

    def undo(self, token: str, tombstone: int = 1) -> str:
        return self.run("release", token, how="undo", tombstone=tombstone)[0]

    def operate(self, how: str, value: Any = "") -> None:
        assert ["ok"] == self.run("operate", how=how, value=value)

    # The stored state

    def now(self) -> int:
        seconds, us = self.raw.time()
        return seconds * 1000 + us // 1000

    @property
    def packed(self) -> Packed | None:
        """The compact state, or None if the name is expanded."""
        return packed_of(self.raw, self.keys.leases)

    def open(self) -> None:
        """Expand the name and change nothing else."""
        if self.packed:
            self.operate("poke")
        assert not self.packed

    def holders(self) -> list[str]:
        if self.packed:
            return [self.packed.holder] if self.packed.holder else []
        return [t.decode() for t in self.raw.zrange(self.keys.leases, 0, -1)]

    def queue(self) -> list[str]:
        return [t.decode() for t in self.raw.zrange(self.keys.queue, 0, -1)]

    def left(self, token: str) -> float:
        """Return the milliseconds until the lease of `token` ends."""
        return self.end(token) - self.now()

    def end(self, token: str) -> float:
        """Return when the lease of `token` ends, in server ms."""
        if self.packed:
            assert token == self.packed.holder
            return self.packed.ends
        return self.raw.zscore(self.keys.leases, token)

    def move(self, token: str, ms: float) -> None:
        """Let the lease of `token` end `ms` later."""
        if not self.packed:
            self.raw.zincrby(self.keys.leases, ms, token)
            return
        assert token == self.packed.holder
        moved = self.packed._replace(ends=self.packed.ends + int(ms))
        self.raw.hset(self.keys.leases, "#", moved.pack())

    def deadline(self, token: str) -> float:
        return self.raw.zscore(self.keys.waiters, token) - self.now()

    def wake(self, token: str) -> list[bytes]:
        return self.raw.lrange(self.keys.wake + token, 0, -1)

    def field(self, name: str) -> bytes | None:
        if self.packed:
            found = self.packed.fields.get(name)
            return None if found is None else found.encode()
        return self.raw.hget(self.keys.info, name)

    def traces(self, token: str) -> list[str]:
        """Return the kinds of keys that contain data of `token`."""
        found = [k for k in ("leases", "queue", "waiters") if self._scored(k, token)]
        found += ["info"] if self.field(token) is not None else []
        return found + (["wake"] if self.wake(token) else [])

    def _scored(self, part: str, token: str) -> bool:
        if part == "leases" and self.packed:
            return token == self.packed.holder
        return self.raw.zscore(getattr(self.keys, part), token) is not None

    def ttls(self) -> dict[str, int]:
        """Return the time to live of each existing key in ms; -1 if it does not expire."""
        parts = ("leases", "queue", "waiters", "info")
        ttls = {part: self.raw.pttl(getattr(self.keys, part)) for part in parts}
        return {part: ttl for part, ttl in ttls.items() if ttl != -2}

    # The passing of time

    def expire(self, *tokens: str) -> None:
        """Let the leases of `tokens` end in the past. No script has removed them yet."""
        if len(tokens) == 1:
            return self.move(*tokens, self.now() - 1 - self.end(*tokens))
        over = dict.fromkeys(tokens, self.now() - 1)
        assert len(over) == self.raw.zadd(self.keys.leases, over, xx=True, ch=True)

    def turn_clock_back(self) -> None:
        """Move the last fence one hour ahead of the clock, as if the clock had gone back."""
        self.open()
        self.raw.hset(self.keys.info, "#fence", (self.now() + 3_600_000) * 1000)

    def silence(self, *tokens: str) -> None:
        """Move the deadlines of `tokens`, waiters or new holders, to the past."""
        over = dict.fromkeys(tokens, self.now() - 1)
        assert len(over) == self.raw.zadd(self.keys.waiters, over, xx=True, ch=True)


@pytest.fixture
def x(raw: redis.Redis) -> Name:
    return Name(raw)


# Granting


def test_acquire_grants_a_free_permit_at_once(x: Name) -> None:
    word, fence, lease = x.ask("a", lease=10_000)

    assert ("ok", "10000") == (word, lease)
    assert abs(int(fence) / 1000 - x.now()) < 1000
    assert 9000 < x.left("a") <= 10_000
    assert fence.encode() == x.field("#fence")


def test_limit_counts_permits_not_leases(x: Name) -> None:
    assert ["ok", "wait"] == [x.ask(t, limit=4, permits=n)[0] for t, n in (("a", 3), ("b", 2))]
    x.raw.delete(x.keys.queue)
    assert "ok" == x.ask("c", "try", limit=4, permits=1)[0]
    assert "no" == x.ask("d", "try", limit=4, permits=1)[0]


def test_acquire_stores_the_limit_of_a_conflicting_caller(x: Name) -> None:
    x.hold("a", limit=3)
    x.hold("b", limit=5)
    assert b"p 5" == x.field("#seen")
    assert re.fullmatch(rb"\d+ p 3", x.field("#clash") or b"")
    assert x.run("inspect")[5] == (x.field("#clash") or b"").decode()


def test_release_also_hands_off_permits_of_expired_leases(x: Name) -> None:
    x.hold("a", limit=2)
    fence = x.hold("b", limit=2)
    x.wait("c", "d", limit=2)
    x.expire("a")
    assert "ok" == x.release("b", fence)
    assert (["c", "d"], []) == (sorted(x.holders()), x.queue())


def test_shadow_mode_grants_and_returns_the_reason_of_the_rejection(x: Name) -> None:
    assert 3 == len(x.ask("a", "shadow"))
    word, _, _, *more = x.ask("b", "shadow")
    assert ("ok", ["2", "full"], ["a", "b"]) == (word, more, x.holders())
    x.operate("pause")
    assert ["3", "paused"] == x.ask("c", "shadow")[3:]


def test_fences_grow_when_the_keys_were_lost(x: Name) -> None:
    first = int(x.hold("a"))
    x.raw.delete(*all_keys(x.keys, "a"))
    assert first < int(x.hold("b"))


# Repeated requests


def test_repeated_acquire_returns_the_fence_and_the_remaining_time(x: Name) -> None:
    fence = x.hold("a", lease=10_000)
    x.move("a", -4000)
    end = x.end("a")
    word, again, lease = x.ask("a", lease=10_000)

    assert ("ok", fence) == (word, again)
    assert 5000 < int(lease) <= 6000
    assert (["a"], end) == (x.holders(), x.end("a"))


def test_waiter_keeps_its_place_when_it_asks_again(x: Name) -> None:
    x.hold("a")
    x.wait("b", "c")
    assert ["wait", 0] == [x.ask("b")[i] for i in (0, 3)]
    assert ["wait", 1] == [x.ask("c", "again")[i] for i in (0, 3)]
    assert ["b", "c"] == x.queue()


def test_token_of_an_expired_lease_is_not_granted_again(x: Name) -> None:
    x.hold("a")
    x.expire("a")
    assert ["gone"] == x.ask("a")


def test_late_waiter_at_the_head_is_granted_not_removed(x: Name) -> None:
    x.hold("a")
    x.wait("b")
    x.silence("b")
    x.expire("a")
    assert "ok" == x.ask("b", "again")[0]
    assert ["b"] == x.holders()
    assert ["leases", "info"] == x.traces("b")


def test_late_waiter_keeps_its_place_when_it_asks_again(x: Name) -> None:
    x.hold("a")
    x.wait("b", "c")
    x.silence("b")
    assert ["wait", 0] == [x.ask("b", "again")[i] for i in (0, 3)]


def test_heartbeat_of_an_unqueued_token_returns_gone(x: Name) -> None:
    assert ["gone"] == x.ask("a", "again")
    assert {} == x.ttls()


# Releasing


@pytest.mark.parametrize("wrong", ["fence", "token"])
def test_release_requires_the_token_and_the_fence(x: Name, wrong: str) -> None:
    fence = x.hold("a")
    token, other = ("a", str(int(fence) - 1)) if wrong == "fence" else ("b", fence)
    assert "lost" == x.release(token, other)
    assert ["a"] == x.holders()


def test_release_of_an_expired_lease_returns_lost(x: Name) -> None:
    fence = x.hold("a")
    x.expire("a")  # no script has removed it yet
    assert "lost" == x.release("a", fence)


def test_undo_removes_the_lease_or_queue_entry_of_a_token(x: Name) -> None:
    x.hold("a")
    x.wait("b", "c")
    assert ["gone", "ok", "gone"] == [x.undo(t, tombstone=0) for t in "bad"]
    assert (["c"], []) == (x.holders(), x.queue())
    assert ([], []) == (x.traces("a"), x.traces("b"))


@pytest.mark.parametrize("state", ["nothing", "waiting", "held", "handed off"])
def test_token_with_a_tombstone_is_never_granted(x: Name, state: str) -> None:
    if state in ("waiting", "handed off"):
        fence = x.hold("before")
        x.wait("a")
        if state == "handed off":
            x.release("before", fence)
    elif state == "held":
        x.hold("a")
    assert x.undo("a") in ("ok", "gone")

    assert [["dead"], ["dead"], ["dead"]] == [x.ask("a", how) for how in ("try", "wait", "again")]
    assert C["TOMBSTONE_TTL"] - 1000 < x.deadline("a") <= C["TOMBSTONE_TTL"]
    assert min(x.ttls().values()) >= C["TOMBSTONE_TTL"]
    assert ["info", "waiters"] == sorted(x.traces("a"))


@pytest.mark.parametrize("how", ["giveup", "undo", "release"])
def test_tombstone_stays_after_a_late_release(x: Name, how: str) -> None:
    fence = x.hold("a")
    x.undo("a")
    x.run("release", "a", fence=fence, how=how, tombstone=0)
    assert ["dead"] == x.ask("a")


def test_release_writes_a_tombstone_on_request(x: Name) -> None:
    fence = x.hold("a")
    assert "ok" == x.release("a", fence, tombstone=1)
    assert ["dead"] == x.ask("a")


def test_tombstone_is_removed_after_its_deadline(x: Name) -> None:
    x.undo("a")
    x.silence("a")
    x.hold("b")
    x.wait("c")
    assert [] == x.traces("a")


def test_giveup_keeps_a_lease_that_was_granted_meanwhile(x: Name) -> None:
    fence = x.hold("a")
    x.wait("b", lease=2000)
    x.release("a", fence)
    word, fence_of_b, lease = x.run("release", "b", how="giveup")

    assert ("ok", x.field("#fence")) == (word, fence_of_b.encode())
    assert 1000 < int(lease) <= 2000
    # The lease is claimed: the deadline and the wake-up message are gone.
    assert ["leases", "info"] == x.traces("b")


def test_giveup_does_not_keep_an_expired_lease(x: Name) -> None:
    fence = x.hold("a")
    x.wait("b")
    x.release("a", fence)
    x.expire("b")
    assert ["gone"] == x.run("release", "b", how="giveup")
    assert [] == x.traces("b")


def test_min_hold_retains_the_permits_without_an_owner(x: Name) -> None:
    fence = x.hold("a", lease=60_000)
    assert "ok" == x.release("a", fence, hold=5000)

    (retained,) = x.holders()
    assert 4000 < x.left(retained) <= 5000
    assert ["no", "full", 0] == x.ask("b", "try")[:3]
    assert [] == x.traces("a")
    assert "lost" == x.release("a", fence)
    assert ["lost"] == x.run("renew", "a", fence=fence, how="set", ms=60_000)
    # The hold can last longer than the lease.
    other = Name(x.raw, "y")
    fence = other.hold("a", lease=1000)
    assert "ok" == other.release("a", fence, hold=5000)
    assert 4000 < other.left(*other.holders()) <= 5000


def test_tombstone_stays_when_min_hold_retains_the_permits(x: Name) -> None:
    fence = x.hold("a")
    assert "ok" == x.release("a", fence, hold=5000, tombstone=1)
    assert ["dead"] == x.ask("a")
    x.expire(*x.holders())
    x.hold("b")
    assert ["dead"] == x.ask("a")


def test_clear_removes_permits_that_min_hold_retains(x: Name) -> None:
    fence = x.hold("a")
    x.wait("b")
    x.release("a", fence, hold=60_000)
    assert ["ok"] == x.run("clear", *x.holders())
    assert ["b"] == x.holders()


# Renewing


def test_renewal_makes_a_lease_permanent_and_temporary_again(x: Name) -> None:
    fence = x.hold("a")
    assert ["ok", "inf"] == x.run("renew", "a", fence=fence, how="set", ms="inf")
    assert math.inf == x.left("a")
    assert {-1} == set(x.ttls().values())
    assert ["ok", "1000"] == x.run("renew", "a", fence=fence, how="set", ms=1000)
    assert all(1000 < ttl <= 1000 + 2 * C["GRACE"] for ttl in x.ttls().values())


@pytest.mark.parametrize("known", [4, 5], ids=["last renewal arrived", "last renewal lost"])
@pytest.mark.parametrize("compact", [True, False], ids=["compact", "expanded"])
def test_only_the_first_of_two_processes_adopts_a_lease(x: Name, compact: bool, known: int) -> None:
    fence = x.hold("a", lease=10_000)
    if not compact:
        x.open()
    x.run("renew", "a", fence=fence, how="set", ms=20_000, nth=4)
    first = {"fence": fence, "how": "adopt", "ms": 30_000, "nth": 1000, "known": known}
    assert ["ok", "30000"] == x.run("renew", "a", **first)
    assert ["ok", "30000"] == x.run("renew", "a", **first)  # repeated: the reply was lost
    assert ["adopted"] == x.run("renew", "a", **{**first, "nth": 2000, "ms": 90_000})
    assert x.left("a") <= 30_000
    # A renewal of the former owner changes nothing.
    x.run("renew", "a", fence=fence, how="set", ms=90_000, nth=5)
    assert x.left("a") <= 30_000
    # A third process can adopt the lease from the new owner.
    x.run("renew", "a", fence=fence, how="set", ms=30_000, nth=1001)
    again = {"fence": fence, "how": "adopt", "ms": 500, "nth": 5000, "known": 1001}
    assert ["ok", "500"] == x.run("renew", "a", **again)


def test_confirm_does_not_move_the_end_of_the_lease(x: Name) -> None:
    fence = x.hold("a", lease=10_000)
    end = x.end("a")
    word, lease = x.run("renew", "a", fence=fence, how="confirm")

    assert "ok" == word
    assert 9000 < int(lease) <= 10_000
    assert end == x.end("a")


@pytest.mark.parametrize("how", ["set", "confirm"])
@pytest.mark.parametrize("state", ["another fence", "expired", "nothing", "waiting"])
def test_renewal_needs_an_unexpired_lease_with_the_same_fence(
    x: Name, how: str, state: str
) -> None:
    fence = "0"
    if state in ("another fence", "expired"):
        fence = x.hold("a", lease=10_000)
    if state == "another fence":
        fence = str(int(fence) - 1)
    elif state == "expired":
        x.expire("a")
    elif state == "waiting":
        x.hold("b")
        x.wait("a")
    before = x.end("a")

    assert ["lost"] == x.run("renew", "a", fence=fence, how=how, ms=60_000)
    assert before == x.end("a")


def test_late_copy_of_an_older_renewal_changes_nothing(x: Name) -> None:
    fence = x.hold("a", lease=10_000)
    assert "60000" == x.run("renew", "a", fence=fence, how="set", ms=60_000, nth=2)[1]
    word, left = x.run("renew", "a", fence=fence, how="set", ms=1000, nth=1)
    assert "ok" == word
    assert 59_000 < int(left) <= 60_000
    assert 59_000 < x.left("a") <= 60_000
    # The latest renewal is repeated: its reply was lost.
    assert "500" == x.run("renew", "a", fence=fence, how="set", ms=500, nth=2)[1]


# Handoffs


def test_granted_waiter_hands_off_further_free_permits(x: Name) -> None:
    x.hold("a", limit=2)
    x.hold("b", limit=2)
    x.wait("c", "d", limit=2)
    x.expire("a", "b")
    assert "ok" == x.ask("c", "again", limit=2)[0]
    assert (["c", "d"], []) == (sorted(x.holders()), x.queue())


def test_release_hands_off_to_the_first_waiter(x: Name) -> None:
    fence = x.hold("a")
    x.wait("b", "c", lease=2000)
    x.release("a", fence)

    assert (["b"], ["c"]) == (x.holders(), x.queue())
    (message,) = x.wake("b")
    fence_of_b, granted, lease = message.split()
    assert (x.field("#fence"), b"2000") == (fence_of_b, lease)
    assert abs(int(granted) - x.now()) < 1000
    assert x.end("b") == int(granted) + int(lease)
    assert [] == x.wake("c")


def test_handoff_limits_a_long_lease_until_it_is_renewed(x: Name) -> None:
    for token, lease in (("long", 60_000), ("ever", "inf")):
        name = Name(x.raw, token)
        fence = name.hold("a")
        name.wait("b", lease=lease)
        name.release("a", fence)
        assert C["FIRST"] - 1000 < name.left("b") <= C["FIRST"]
        assert str(C["FIRST"]).encode() == name.wake("b")[0].split()[2]


def test_acquire_limits_a_permanent_lease_until_it_is_renewed(x: Name) -> None:
    word, _, lease = x.ask("a", lease="inf")
    assert ("ok", str(C["FIRST"])) == (word, lease)
    assert x.left("a") <= C["FIRST"]


def test_handoff_uses_the_lease_and_permits_of_the_waiter(x: Name) -> None:
    fence = x.hold("a", lease=60_000, limit=5, permits=5)
    x.wait("b", lease=700, limit=5, permits=2)
    x.wait("c", lease=900, limit=5, permits=3)
    x.release("a", fence)

    assert (["b", "c"], []) == (x.holders(), x.queue())
    assert (True, True) == (x.left("b") <= 700, 700 < x.left("c") <= 900)
    assert b"700" == x.wake("b")[0].split()[2]
    assert ["no", "full", 0] == x.ask("d", "try", limit=5)[:3]


def test_handoff_uses_the_limit_of_the_waiter(x: Name) -> None:
    fence = x.hold("a", limit=9)
    x.hold("other", limit=9)
    x.wait("b", limit=1)
    x.release("a", fence)
    # One permit is in use, and the limit of b is 1.
    assert (["other"], ["b"]) == (x.holders(), x.queue())


def test_handoff_publishes_to_the_channel_of_the_waiter(x: Name) -> None:
    channel = f"{settings.PREFIX}:channel"
    with x.raw.pubsub(ignore_subscribe_messages=True) as listener:
        listener.subscribe(channel)
        fence = x.hold("a")
        x.wait("b", channel=channel)
        listener.get_message(timeout=1)
        x.release("a", fence)
        deadline = time.monotonic() + 2
        message = None
        while message is None and time.monotonic() < deadline:
            message = listener.get_message(timeout=0.1)
    assert message is not None
    assert b"b " + x.wake("b")[0] == message["data"]


@pytest.mark.parametrize("frees", ["release", "clear", "operate"])
def test_limit_of_a_key_wins_over_the_limit_of_its_policy(x: Name, frees: str) -> None:
    arguments = {"limit": 9, "mark": "0 1"}
    x.operate("resize", 2)
    fence = x.hold("a", **arguments)
    x.hold("b", **arguments)
    x.wait("c", **arguments)
    if frees == "operate":
        x.move("a", x.now() - 1 - x.end("a"))
    asked = {"release": {"fence": fence, "how": "release"}, "operate": {"how": "poke"}}
    x.run(frees, "" if frees == "operate" else "a", mark="0 1", **asked.get(frees, {}))
    assert ["b", "c"] == sorted(x.holders())


@pytest.mark.parametrize("frees", ["release", "undo", "clear", "resume", "again"])
def test_scripts_that_free_permits_apply_the_pause_of_the_policy(x: Name, frees: str) -> None:
    fence = x.hold("a")
    x.wait("b", "c")
    if frees in ("resume", "again"):
        x.expire("a")
    asked = {
        "release": ("release", "a", {"how": "release", "fence": fence}),
        "undo": ("release", "a", {"how": "undo", "tombstone": 1}),
        "clear": ("clear", "a", {}),
        "resume": ("operate", "", {"how": "resume"}),
        "again": ("acquire", "b", {"how": "again"}),
    }
    verb, token, arguments = asked[frees]
    x.run(verb, token, mark=f"{x.now()} 0", **arguments)
    assert ([], ["b", "c"]) == (x.holders(), x.queue())
    x.run("operate", how="poke", mark="0 0")
    assert (["b"], ["c"]) == (x.holders(), x.queue())


def test_claim_deadline_is_never_after_the_end_of_the_lease(x: Name) -> None:
    for token, lease in (("short", 500), ("long", 60_000)):
        name = Name(x.raw, token)
        fence = name.hold("a")
        name.wait("b", lease=lease)
        name.release("a", fence)
        most = min(lease, C["CLAIM"])
        assert most - 400 < name.deadline("b") <= most


def test_wake_list_outlives_the_lease(x: Name) -> None:
    fence = x.hold("a")
    x.wait("b", lease=60_000)
    x.release("a", fence)
    # A missing wake list means that the new holder popped its message, so it must not expire.
    ttl = x.raw.pttl(x.keys.wake + "b")
    assert x.left("b") < ttl <= C["FIRST"] + C["GRACE"]


def test_new_holder_loses_its_lease_when_it_does_not_wake_up(x: Name) -> None:
    fence = x.hold("a")
    x.wait("b", "c")
    x.release("a", fence)
    x.silence("b")
    assert "ok" == x.ask("c", "again")[0]
    assert [] == x.traces("b")
    assert ["gone"] == x.ask("b", "again")


def pop(x: Name, fence: str) -> None:
    assert x.raw.lpop(x.keys.wake + "b")


def confirm(x: Name, fence: str) -> None:
    assert "ok" == x.run("renew", "b", fence=fence, how="confirm")[0]


def ask_again(x: Name, fence: str) -> None:
    assert "ok" == x.ask("b", "again")[0]


def give_up(x: Name, fence: str) -> None:
    assert "ok" == x.run("release", "b", how="giveup")[0]


@pytest.mark.parametrize("claim", [pop, confirm, ask_again, give_up], ids=lambda f: f.__name__)
def test_claimed_lease_stays_after_the_claim_deadline(
    x: Name, claim: Callable[[Name, str], None]
) -> None:
    fence = x.hold("a")
    x.wait("b", "c", lease=4000)
    x.release("a", fence)
    claim(x, (x.field("#fence") or b"").decode())
    if x.raw.zscore(x.keys.waiters, "b"):
        x.silence("b")

    assert "wait" == x.ask("c", "again")[0]
    assert ["b"] == x.holders()
    assert ["leases", "info"] == x.traces("b")


def test_removal_deletes_all_data_of_a_token(x: Name) -> None:
    removals = {
        "undo": lambda name: name.undo("b", tombstone=0),
        "expiry": lambda name: (name.expire("b"), name.ask("c", "again")),
        "release": lambda name: name.release("b", name.wake("b")[0].split()[0].decode()),
        "unclaimed": lambda name: (name.silence("b"), name.ask("c", "again")),
    }
    for how, remove in removals.items():
        name = Name(x.raw, how)
        fence = name.hold("a")
        name.wait("b", "c")
        name.release("a", fence)
        assert ["info", "leases", "waiters", "wake"] == sorted(name.traces("b")), how
        remove(name)
        assert [] == name.traces("b"), how
        assert ["c"] == name.holders(), how


def test_release_removes_fifty_dead_heads_at_once(x: Name) -> None:
    fence = x.hold("a")
    dead = [f"dead{n}" for n in range(50)]
    x.wait(*dead, "live")
    x.silence(*dead)
    x.release("a", fence)
    assert (["live"], []) == (x.holders(), x.queue())


def test_script_removes_a_bounded_number_of_dead_waiters(x: Name) -> None:
    fence = x.hold("a", lease=600_000)
    dead = [f"dead{n}" for n in range(3 * C["CHUNK"])]
    x.wait_long(*dead, "live")
    x.silence(*dead)
    x.release("a", fence)
    assert C["CHUNK"] - C["BOUND"] <= len(x.queue()) <= C["CHUNK"] + 1
    for _ in range(3):
        answer = x.ask("live", "again")
    assert (["ok"], ["live"]) == (answer[:1], x.holders())


def test_thousands_of_expired_leases_are_removed_by_several_scripts(x: Name) -> None:
    many = C["BOUND"] * C["ROUNDS"] + 500
    tokens = [f"t{n}" for n in range(many)]
    x.acquire_together(*tokens, how="try", kind="w", limit=10_000, lease=3_600_000)
    assert len(tokens) == len(x.holders())
    x.expire(*tokens)

    writer = {"kind": "w", "permits": 0, "limit": 10_000}
    assert ["more"] == x.ask("writer", "try", **writer)
    assert 500 == len(x.holders())
    assert "ok" == x.ask("writer", "try", **writer)[0]
    assert ["writer"] == x.holders()


# Removals of the head


def test_removal_of_the_head_hands_off_to_the_next_waiter(x: Name) -> None:
    for how in ("giveup", "undo", "clear"):
        name = Name(x.raw, how)
        name.hold("a", limit=2)
        name.wait("head", limit=2, permits=2)
        name.wait("next", limit=2, permits=1)
        if how == "clear":
            assert ["ok"] == name.run("clear", "head")
        else:
            word = {"giveup": "no", "undo": "gone"}[how]
            assert word == name.run("release", "head", how=how)[0]
        assert ["a", "next"] == name.holders(), how


def test_resume_and_reset_hand_off_free_permits(x: Name) -> None:
    x.operate("pause")
    x.wait("a", "b", limit=2)
    x.operate("resize", 1)
    assert [] == x.holders()
    x.operate("resume")
    assert (["a"], ["b"]) == (x.holders(), x.queue())
    x.operate("reset")
    assert (["a", "b"], []) == (x.holders(), x.queue())


def test_clear_writes_a_tombstone(x: Name) -> None:
    fence = x.hold("a")
    x.wait("b", "c")
    assert [["ok"], ["ok"]] == [x.run("clear", t) for t in "ba"]

    assert [["dead"], ["dead"]] == [x.ask(t, "again") for t in "ab"]
    assert "lost" == x.release("a", fence)
    assert (["c"], []) == (x.holders(), x.queue())


def test_clear_of_an_ended_token_changes_nothing(x: Name) -> None:
    x.hold("a")
    assert ["gone"] == x.run("clear", "b")
    x.undo("c")
    assert ["gone"] == x.run("clear", "c")
    assert ["a"] == x.holders()


def test_head_is_removed_when_a_new_limit_is_below_its_permits(x: Name) -> None:
    x.hold("a", limit=3)
    x.wait("big", limit=3, permits=3)
    x.wait("b", limit=3, permits=1)
    x.operate("resize", 2)

    assert (["a", "b"], []) == (x.holders(), x.queue())
    assert ["gone"] == x.ask("big", "again", limit=3, permits=3)
    assert ["large", "2"] == x.ask("again", limit=3, permits=3)


def test_heartbeat_returns_gone_when_the_limit_is_below_the_permits(x: Name) -> None:
    x.hold("a", limit=3, permits=3)
    x.wait("b", limit=3)
    x.wait("big", limit=3, permits=3)
    x.operate("resize", 2)
    x.silence("b")
    assert ["gone"] == x.ask("big", "again", limit=3, permits=3)
    assert [] == x.traces("big")


def test_heartbeat_returns_gone_when_the_queue_was_evicted(x: Name) -> None:
    x.hold("a")
    x.wait("b")
    x.raw.delete(x.keys.queue)
    assert ["gone"] == x.ask("b", "again")


# Pauses and limits of operators


def test_pause_grants_nothing(x: Name) -> None:
    x.hold("a")
    x.wait("b")
    x.expire("a")
    x.operate("pause")
    assert ([], ["b"]) == (x.holders(), x.queue())


def test_rejection_contains_the_limit_in_force(x: Name) -> None:
    x.hold("a", limit=3)
    x.operate("resize", 1)
    assert ["no", "full", 0, "", "1"] == x.ask("b", "try", limit=3)
    x.operate("reset")
    assert ["no", "full", 0, "", "1"] == x.ask("b", "try", limit=1)


def test_operators_limit_overrides_the_limit_of_the_caller(x: Name) -> None:
    x.operate("resize", 1)
    assert ["ok", "no"] == [x.ask(t, "try", limit=9)[0] for t in "ab"]
    x.operate("resize", 2)
    assert ["ok", "no"] == [x.ask(t, "try", limit=1)[0] for t in "bc"]
    x.operate("reset")
    assert "ok" == x.ask("c", "try", limit=9)[0]


@pytest.mark.parametrize(("on", "off"), [("pause", "resume"), ("resize", "reset")])
def test_keys_expire_only_after_their_override_is_removed(x: Name, on: str, off: str) -> None:
    fence = x.hold("a")
    x.operate(on, 1)
    x.wait("b")
    x.release("a", fence)
    assert {-1} == set(x.ttls().values())
    x.operate(off)
    assert -1 not in x.ttls().values()


def test_override_of_an_unused_name_does_not_expire(x: Name) -> None:
    x.operate("pause")
    assert {"info": -1} == x.ttls()
    x.operate("resize", 3)
    x.operate("resume")
    assert {"info": -1} == x.ttls()
    x.operate("reset")
    assert 0 < x.ttls()["info"] <= 2 * C["GRACE"]
    x.operate("resize", 3)
    x.operate("pause")
    x.operate("reset")
    assert {"info": -1} == x.ttls()


@pytest.mark.parametrize(("how", "value"), [("pause", ""), ("resize", 2)])
def test_override_stays_after_the_release_of_a_permanent_lease(
    x: Name, how: str, value: Any
) -> None:
    fence = x.hold("a", limit=2)
    x.run("renew", "a", fence=fence, how="set", ms="inf")
    x.operate(how, value)
    assert "ok" == x.release("a", fence)
    assert {-1} == set(x.ttls().values())


# The expiry of the keys


def test_keys_outlive_the_latest_lease(x: Name) -> None:
    x.hold("long", lease=60_000, limit=9)
    fence = x.hold("short", lease=5000, limit=9)
    assert all(ttl > 60_000 for ttl in x.ttls().values())
    x.release("short", fence)
    x.run("renew", "long", fence="0", how="set", ms=1)
    assert all(60_000 < ttl <= 60_000 + 2 * C["GRACE"] for ttl in x.ttls().values())
    assert {"leases", "info"} == set(x.ttls())


def test_keys_outlive_the_latest_waiter(x: Name) -> None:
    x.hold("a", lease=2000)
    x.wait("b")
    assert {"leases", "queue", "waiters", "info"} == set(x.ttls())
    assert all(x.deadline("b") < ttl for ttl in x.ttls().values())


@pytest.mark.parametrize("makes", ["leases", "queue", "waiters", "heartbeat", "tombstone"])
def test_key_created_late_expires_with_the_others(x: Name, makes: str) -> None:
    fence = x.hold("a", lease=3_600_000, limit=2)
    other = x.hold("b", lease=1000, limit=2)
    if makes == "leases":
        x.wait("c", limit=2)  # expands the name
        x.release("b", other)
        x.release("a", fence)
    elif makes == "queue":
        x.wait("c", limit=2)
        x.undo("c", tombstone=0)
        x.wait("d", limit=2)
    elif makes == "waiters":
        x.wait("c", limit=2, channel="loop")
    elif makes == "heartbeat":
        x.wait("c", limit=2, channel="loop")
        x.raw.delete(x.keys.waiters)
        x.expire("b")
        assert "ok" == x.ask("c", "again")[0]
    else:
        x.undo("c")
    ttls = x.ttls()
    assert {"leases": "leases", "queue": "queue"}.get(makes, "waiters") in ttls
    assert all(1000 < ttl <= 3_600_000 + 2 * C["GRACE"] for ttl in ttls.values())


def test_keys_outlive_both_leases_that_one_release_creates(x: Name) -> None:
    fence = x.hold("a", lease=1000, limit=2)
    x.hold("b", lease=1000, limit=2)
    x.wait("c", lease=1000, limit=2)
    x.expire("b")
    assert "ok" == x.release("a", fence, hold=60_000)
    assert ["c", "ka"] == x.holders()
    assert all(ttl > 60_000 for ttl in x.ttls().values())


def test_keys_expire_only_without_permanent_leases(x: Name) -> None:
    first = x.hold("a", limit=2)
    second = x.hold("b", limit=2)
    for token, fence in (("a", first), ("b", second)):
        x.run("renew", token, fence=fence, how="set", ms="inf")
    x.wait("c", limit=2)
    assert {-1} == set(x.ttls().values())
    x.release("a", first)
    assert {-1} == set(x.ttls().values())
    x.release("b", second)
    assert -1 not in x.ttls().values()


def test_released_name_has_one_key_that_expires(x: Name) -> None:
    fence = x.hold("a", lease=2000)
    x.release("a", fence)
    assert ([], {"leases"}) == (x.holders(), set(x.ttls()))
    assert all(0 < ttl <= 2000 + 2 * C["GRACE"] for ttl in x.ttls().values())


# Numbers


def test_numbers_near_2_to_the_53_are_stored_exactly(x: Name) -> None:
    x.hold("a", limit=9)
    x.open()
    x.raw.hset(x.keys.info, "#fence", 2**53 - 10)
    fence = x.hold("b", limit=2**31 - 1, permits=1, lease=10**12)
    assert str(2**53 - 9) == fence
    assert b"9007199254740983" == x.field("#fence")
    assert "ok" == x.release("b", fence)
    x.wait("c", limit=1, lease=700)
    x.release("a", (x.field("a") or b"").split()[1].decode())
    assert b"9007199254740984" == x.wake("c")[0].split()[0]

    info = x.raw.hgetall(x.keys.info)
    assert not [v for v in (*info, *info.values()) if b"e+" in v or b"." in v]


def test_ticket_follows_the_last_one_when_that_is_in_the_future(x: Name) -> None:
    x.hold("a")
    x.wait("b")
    ahead = (x.now() + 60_000) * 1000
    x.raw.zadd(x.keys.queue, {"b": ahead})
    x.wait("c", "d")
    expected = [(b"b", ahead), (b"c", ahead + 1), (b"d", ahead + 2)]
    assert expected == x.raw.zrange(x.keys.queue, 0, -1, withscores=True)


# The clock goes back


@pytest.mark.parametrize("retained", [False, True], ids=["held", "retained by min_hold"])
def test_lease_far_in_the_future_is_shortened_when_the_clock_went_back(
    x: Name, retained: bool
) -> None:
    fence = x.hold("a", lease=4000)
    if retained:
        x.release("a", fence, hold=4000)
    (token,) = x.holders()
    x.move(token, 3_600_000)
    x.turn_clock_back()
    x.wait("b")
    assert x.left(token) <= 4000


def test_plausible_times_stay_when_the_clock_went_back(x: Name) -> None:
    x.hold("a", lease=60_000, limit=2)
    x.hold("b", lease=60_000, limit=2)
    x.wait("c", limit=2)
    x.move("a", -50_000)
    x.raw.zincrby(x.keys.waiters, -1000, "c")
    x.turn_clock_back()
    before = x.end("a"), x.raw.zscore(x.keys.waiters, "c")
    x.wait("d", limit=2)
    assert before == (x.end("a"), x.raw.zscore(x.keys.waiters, "c"))


def test_waiter_deadline_is_shortened_when_the_clock_went_back(x: Name) -> None:
    hour = 3_600_000
    x.hold("a")
    x.wait("b")
    x.undo("undone")
    x.raw.zincrby(x.keys.waiters, hour, "b")
    x.raw.zincrby(x.keys.waiters, hour, "undone")
    x.turn_clock_back()
    x.wait("c")
    assert x.deadline("b") <= C["ASLEEP"]
    assert C["TOMBSTONE_TTL"] - 1000 < x.deadline("undone") <= C["TOMBSTONE_TTL"]


def test_min_hold_ends_in_time_when_the_clock_went_back(x: Name) -> None:
    x.hold("a", limit=2)
    x.turn_clock_back()
    fence = x.hold("b", limit=2)
    assert "ok" == x.release("b", fence, hold=5000)
    assert 4000 < x.left("kb") <= 5000


def test_permanent_leases_stay_when_the_clock_went_back(x: Name) -> None:
    fence = x.hold("a")
    x.run("renew", "a", fence=fence, how="set", ms="inf")
    x.turn_clock_back()
    x.wait("b")
    assert math.inf == x.left("a")


# Unfair requests


def test_unfair_newcomer_overtakes_a_head_that_does_not_fit(x: Name) -> None:
    x.hold("a", limit=2)
    x.wait("head", limit=2, permits=2)  # younger than a heartbeat
    assert "no" == x.ask("fair", "try", limit=2)[0]
    assert "ok" == x.ask("unfair", "try", limit=2, fair=0)[0]


def test_unfair_newcomer_does_not_overtake_an_old_head(x: Name) -> None:
    x.hold("a", limit=2)
    x.wait("head", limit=2, permits=2)
    x.raw.zincrby(x.keys.queue, -(C["HEARTBEAT"] + 1) * 1000, "head")
    assert "no" == x.ask("unfair", "try", limit=2, fair=0)[0]


def test_unfair_newcomer_does_not_overtake_a_head_from_the_future(x: Name) -> None:
    x.hold("a", limit=1)
    x.wait("large", permits=2, limit=2)
    # The clock has gone back since the waiter came.
    x.raw.zadd(x.keys.queue, {"large": (x.now() + 60_000) * 1000})

    assert "no" == x.ask("unfair", "try", limit=2, fair=0)[0]


# When waiters ask again


def test_one_waiter_watches_the_end_of_each_lease(x: Name) -> None:
    x.hold("a", limit=2, lease=700)
    x.hold("b", limit=2, lease=950)
    delay = [x.ask(f"w{n}", limit=2)[2] for n in range(4)]

    assert 0 < delay[0] <= 701
    assert delay[0] < delay[1] <= 951
    assert [C["HEARTBEAT"], C["HEARTBEAT"]] == delay[2:]


def test_waiters_far_back_in_the_queue_ask_less_often(x: Name) -> None:
    x.hold("a", lease=60_000)
    delay = [x.ask(f"w{n}")[2] for n in range(C["NEAR"] + 3)]

    assert {C["HEARTBEAT"]} == set(delay[: C["NEAR"] + 1])
    assert [C["HEARTBEAT"] + 10, C["HEARTBEAT"] + 20] == delay[-2:]


def test_waiter_that_misses_its_heartbeat_is_dead_after_patience(x: Name) -> None:
    x.hold("a", lease=60_000)
    delay = x.ask("b")[2]
    assert delay < x.deadline("b") <= delay + C["PATIENCE"]


def test_acquire_is_rejected_when_max_waiters_are_queued(x: Name) -> None:
    x.hold("a")
    assert ["wait", "wait", "no"] == [x.ask(t, max_waiters=2)[0] for t in "bcd"]
    assert ["no", "full", 2] == x.ask("e", max_waiters=0)[:3]


@pytest.mark.parametrize("silent", ["b", "loop"], ids=["waiter", "event loop"])
@pytest.mark.parametrize("paused", [False, True], ids=["held", "paused"])
def test_dead_waiters_do_not_count_toward_max_waiters(x: Name, paused: bool, silent: str) -> None:
    if paused:
        x.operate("pause")
    else:
        x.hold("a")
    x.wait("b", max_waiters=1, channel="loop")
    x.silence(silent)
    assert "wait" == x.ask("c", max_waiters=1)[0]
    assert ["c"] == x.queue()


def test_waiter_asks_again_at_once_while_dead_waiters_are_left(x: Name) -> None:
    x.hold("a", lease=600_000)
    dead = [f"dead{n}" for n in range(3 * C["CHUNK"])]
    x.wait_long(*dead, "live")
    x.silence(*dead)
    word, _, delay, _ = x.ask("live", "again")
    assert ("wait", 1) == (word, delay)
    word, _, delay, rank = x.ask("live", "again")
    assert ("wait", 0) == (word, rank)
    assert 1 < delay <= C["HEARTBEAT"]


# Statistics


def test_statistics_are_not_stored_when_history_is_off(x: Name) -> None:
    x.hold("a")
    x.ask("b", "try")
    assert 0 == x.raw.exists(x.keys.stats)


def test_statistics_expire(x: Name) -> None:
    x.hold("a", keep=60)
    assert 59 * 60_000 < x.raw.pttl(x.keys.stats) <= 62 * 60_000


# Inspecting


def test_inspect_returns_holders_and_waiters_and_changes_nothing(x: Name) -> None:
    fence = x.hold("a", limit=3, permits=2, label="me & you")
    x.hold("gone", limit=3)
    x.expire("gone")
    x.wait("b", limit=3, permits=2)
    before = {key: x.raw.dump(key) for key in x.raw.keys(f"{settings.PREFIX}*")}
    reply = x.run("inspect", max_rows=10)
    now, last, limit, paused, seen, _, used, holding, waiting, holders, waiters = reply

    # b holds nothing: 2 of 3 permits are in use. No script has removed the expired lease.
    assert abs(int(now) - x.now()) < 1000
    assert int(last) > int(fence)
    assert ("", "", "p 3", "2", 1, 1) == (limit, paused, seen, used, holding, waiting)
    assert [b"a", b"b"] == [holders[0], waiters[0]]
    assert holders[2].endswith(b"me & you")
    assert (3, 4) == (len(holders), len(waiters))
    assert before == {key: x.raw.dump(key) for key in x.raw.keys(f"{settings.PREFIX}*")}


def test_inspect_returns_at_most_max_rows_of_each_kind(x: Name) -> None:
    for n, token in enumerate("abc"):
        x.hold(token, limit=3, lease=5000 + n)
    x.wait("d", "e", "f", limit=3)
    *_, holding, waiting, holders, waiters = x.run("inspect", max_rows=2)
    assert (3, 3) == (holding, waiting)
    assert [b"a", b"b"] == holders[::3]
    assert [b"d", b"e"] == waiters[::4]
    assert (6, 8) == (len(holders), len(waiters))


def test_inspect_returns_the_overrides_of_an_operator(x: Name) -> None:
    x.operate("pause")
    x.operate("resize", 7)
    _, _, limit, paused, *_ = x.run("inspect")
    assert "7" == limit
    assert abs(int(paused) - x.now()) < 1000


def test_inspect_of_an_unused_name_creates_no_keys(x: Name) -> None:
    assert [0, 0, [], []] == x.run("inspect")[-4:]
    assert {} == x.ttls()


def test_foreign_value_is_neither_used_nor_deleted(x: Name) -> None:
    x.raw.set(x.keys.leases, "foreign")
    for verb in ("acquire", "release", "renew", "clear", "operate", "inspect"):
        how = {"acquire": "try", "release": "undo", "renew": "set", "operate": "pause"}
        arguments = {"how": how[verb]} if verb in how else {}
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            x.run(verb, "a", **arguments)
    assert b"foreign" == x.raw.get(x.keys.leases)


@pytest.mark.parametrize("part", ["queue", "waiters"])
def test_foreign_value_does_not_expire(x: Name, part: str) -> None:
    fence = x.hold("a", lease=1000)
    x.open()
    x.raw.set(getattr(x.keys, part), "foreign")
    assert "ok" == x.run("renew", "a", fence=fence, how="set", ms=60_000)[0]
    assert -1 == x.raw.pttl(getattr(x.keys, part))


# The head comments of the scripts


def replies_of(verb: str) -> set[str]:
    """Return the reply words that the head comment of a script lists."""
    returns = re.search(r"^-- Returns (.*)$", scripts.read(verb), re.M)
    assert returns is not None, verb
    return {re.split(r"[\s\[(]", part.strip())[0] for part in returns[1].split("|")}


@pytest.mark.parametrize("verb", sorted({*scripts.NAME_SCRIPTS, "statistics"} - {"inspect"}))
def test_head_comment_lists_every_reply_of_its_script(verb: str) -> None:
    code = scripts.with_functions(scripts.read(verb))
    returned = r"^ *(?:if .* then )?(?:return|reply =|return .* (?:and|or)) "
    found = set(re.findall(rf"{returned}(?:[^'\n]* and )?'(\w+)[ ']", code, re.M))
    found |= set(re.findall(rf"{returned}.* or '(\w+)'(?: end)?$", code, re.M))

    assert replies_of(verb) == found - {"inf"}


@pytest.mark.parametrize("verb", [*scripts.NAME_SCRIPTS, "statistics"])
def test_head_comment_lists_every_argument_of_its_script(verb: str) -> None:
    text = scripts.read(verb)
    first = scripts.with_functions(text).splitlines()[0]
    taken = first.removeprefix("local ").removesuffix(" = unpack(ARGV)").split(", ")
    named = scripts.header(text, "ARGV")[: len(taken)]
    assert [*named] == [n if t == "_" else t for n, t in zip(named, taken, strict=True)]


@pytest.mark.parametrize("verb", scripts.NAME_SCRIPTS)
def test_scripts_of_a_name_declare_two_keys(verb: str) -> None:
    assert ("leases", "never") == scripts.script(verb).keys
    assert ("p:{n}:leases", "p:{n}:never") == keys_of("p", "n").declared


def test_scripts_without_a_name_declare_their_own_keys() -> None:
    assert ("marks",) == scripts.script("marks").keys == (marks_key("p").partition(":")[2],)
    parts = [key.rpartition(":")[2] for key in group_keys("p", "g")]
    assert ["shares", "sketch", "sums"] == parts
    # The script uses the sums like the statistics of a name, which are called stats.
    assert ("shares", "sketch", "stats") == scripts.script("statistics").keys


def sent(plan: plans.Plan, *answers: list[Any]) -> list[dict[str, Any]]:
    """Return the arguments of each script that a plan runs, named as in the head comments."""
    steps, step = [], plan.send(None)  # type: ignore[arg-type]
    for reply in [*answers, None]:
        if isinstance(step, plans.Run):
            script = scripts.script(step.verb)
            assert len(script.keys) == len(step.keys)
            steps.append({"verb": step.verb, **scripts.arguments_of(step.verb, step.argv)})
        if reply is None:
            break
        try:
            step = plan.send(plans.Answer(reply, 100.0, 100.0))
        except StopIteration:
            break
    return steps


def keys_with_override() -> Keys:
    """Return the keys of a policy's key, with an operator's override of the policy."""
    keys = keys_of("p", "n", "child", keep=77)
    assert keys.policy is not None
    keys.policy.mark = "88 6"
    return keys


def acquire_request(**changes: Any) -> plans.AcquireRequest:
    return plans.AcquireRequest(
        keys=keys_with_override(),
        lease=math.inf,
        permits=5,
        limit=9,
        wait=True,
        give_up_at=101.0,
        budget=3.0,
        attempt=1.0,
        tokens=lambda: "T",
        later=lambda run: None,
        kind="w",
        fair=False,
        max_waiters=55,
        channel="chan",
        label="lab",
    )._replace(**changes)


def test_plans_send_arguments_in_the_order_of_the_head_comment() -> None:
    """No two values are equal, so that a value in a wrong place fails the test."""
    keys = keys_with_override()
    asking = {"permits": 5, "limit": 9, "kind": "w", "max_waiters": 55, "fair": 0}
    asking |= {"verb": "acquire", "token": "T", "channel": "chan", "label": "lab", "keep": 77}
    asking |= {"mark": "88 6", "compact": 1, "wants": "w 9", "terms": "5 9 chan lab"}
    asking |= {"permits": "5", "limit": "9", "share": "", "share_limit": 0}
    renewing = {"verb": "renew", "token": "T", "fence": 123, "how": "set", "keep": 77}
    plan = plans.acquire(acquire_request(), 100.0)
    steps = sent(plan, ["ok", "123", "5000"], ["ok", "inf"])
    assert [
        {**asking, "lease": "inf", "how": "wait"},
        {**renewing, "ms": "inf", "nth": 0, "known": 0},
    ] == steps

    plan = plans.acquire(acquire_request(lease=2.5, give_up_at=100.0), 100.0)
    leaving = {"verb": "release", "token": "T", "fence": "0", "hold": 0, "keep": 77}
    leaving |= {"mark": "88 6", "place": ""}
    assert [
        {**asking, "lease": "2500", "how": "wait"},
        {**leaving, "how": "giveup", "tombstone": 0},
    ] == sent(plan, ["wait", "1000", 1000, 0], ["gone"])

    plan = plans.acquire(acquire_request(wait=False), 100.0)
    assert ["try"] == [step["how"] for step in sent(plan, ["no", "full", 0])]

    grant = grant_of(acquire_request(lease=2.5), ["ok", "123", "2500"])
    (step,) = sent(plans.release(keys, grant, 1.5, 3.0, 1.0, 100.0))
    assert {**leaving, "fence": 123, "how": "release", "tombstone": 0, "hold": 1500} == step
    (step,) = sent(plans.release(keys, grant._replace(place="P"), 0.0, 3.0, 1.0, 100.0))
    assert {**leaving, "fence": 123, "how": "release", "tombstone": 0, "place": "P"} == step
    (step,) = sent(visit(acquire_request(lease=2.5), Job("P", 3, 17, "who"), 100.0))
    asked = {**asking, "verb": "visit", "lease": "2500", "place": "P", "nth": 3, "ticket": 17}
    asked |= {"job": "who", "terms": "5 9 chan lab"}
    assert step == {key: asked[key] for key in asked.keys() - {"how", "fair", "compact"}}
    (step,) = sent(plans.renew(keys, grant, 4.0, 33, 3.0, 1.0, 100.0))
    assert {**renewing, "ms": "4000", "nth": 33, "known": 0} == step
    (step,) = sent(plans.renew(keys, grant, 4.0, 33, 3.0, 1.0, 100.0, 22))
    assert {**renewing, "how": "adopt", "ms": "4000", "nth": 33, "known": 22} == step
    (step,) = sent(plans.share(keys, grant, 1.0, 100.0))
    assert {**leaving, "fence": 123, "how": "share", "tombstone": 0} == step


def grant_of(ask: plans.AcquireRequest, reply: list[Any]) -> plans.Grant:
    plan = plans.acquire(ask, 100.0)
    plan.send(None)  # type: ignore[arg-type]
    with pytest.raises(StopIteration) as stop:
        plan.send(plans.Answer(reply, 100.0, 100.0))
    grant: plans.Grant = stop.value.value
    return grant


def test_constants_keep_the_order_that_scripts_rely_on() -> None:
    assert C["HEARTBEAT"] + C["PATIENCE"] <= C["ASLEEP"]
    assert C["CLAIM"] <= C["FIRST"]
    assert C["EXCLUSIVE"] > scripts.MOST_PERMITS
    assert C["EXCLUSIVE"] * 2 < 2**53


# Heartbeats of event loops


def test_waiters_of_a_dead_event_loop_are_removed_together(x: Name) -> None:
    x.hold("a")
    x.wait("b", "c", "d", channel="loop")
    x.wait("e")
    x.silence("loop")
    assert 0 == x.ask("e", "again")[3]
    assert (["e"], [], []) == (x.queue(), x.traces("b"), x.traces("loop"))


def test_heartbeat_of_one_waiter_counts_for_its_whole_event_loop(x: Name) -> None:
    fence = x.hold("a")
    x.wait("b", "c", "d", channel="loop")
    x.silence("loop")
    assert 2 == x.ask("d", "again", channel="loop")[3]
    assert C["ALIVE"] - 500 < x.deadline("loop") <= C["ALIVE"]
    x.release("a", fence)
    assert ["b"] == x.holders()


def test_acquire_of_a_newcomer_counts_for_its_whole_event_loop(x: Name) -> None:
    x.hold("a")
    x.wait("b", "c", channel="loop")
    x.silence("loop")
    assert 2 == x.ask("d", channel="loop")[3]
    assert ["b", "c", "d"] == x.queue()


def test_silent_waiter_is_removed_while_its_event_loop_is_alive(x: Name) -> None:
    fence = x.hold("a")
    x.wait("b", "c", channel="loop")
    x.silence("b")
    x.release("a", fence)
    assert (["c"], []) == (x.holders(), x.queue())


def test_waiter_asks_again_when_the_event_loop_ahead_counts_as_dead(x: Name) -> None:
    x.hold("a", lease=600_000)
    x.wait(*(f"b{n}" for n in range(300)), channel="loop")
    x.wait("live")
    x.wait("b300", channel="loop")
    assert 1 < x.ask("live", "again")[2] <= C["ALIVE"] + 100
    # A waiter of the same event loop waits longer: if the head is dead, so is the waiter.
    assert C["ASLEEP"] - C["PATIENCE"] == x.ask("b300", "again", channel="loop")[2]


def test_head_asks_again_at_the_claim_deadline_of_the_new_holder(x: Name) -> None:
    fence = x.hold("a", lease=600_000)
    x.wait("new", "b", lease=600_000)
    x.release("a", fence)
    x.raw.zadd(x.keys.waiters, {"new": x.now() + 300})
    assert 0 < x.ask("b", "again")[2] <= 301


def test_event_loop_heartbeats_expire_with_their_name(x: Name) -> None:
    x.hold("a", lease=2000)
    x.wait("b", channel="loop")
    assert 0 < x.ttls()["waiters"] <= C["ASLEEP"] + 2 * C["GRACE"]


# Names in the compact state


CALLS: list[tuple[str, dict[str, Any]]] = [
    *[("acquire", {"how": how, "keep": 5}) for how in ("try", "wait", "again")],
    *[("release", {"how": how, "keep": 5}) for how in ("release", "undo", "giveup", "share")],
    *[("renew", {"how": how, "ms": 1000, "nth": 1}) for how in ("set", "confirm", "adopt")],
    *[("operate", {"how": how, "value": 3}) for how in ("pause", "resume", "resize", "reset")],
    ("clear", {}),
    ("inspect", {}),
]


@pytest.mark.parametrize("state", ["held", "released"])
def test_scripts_reject_an_unknown_format_before_they_write(x: Name, state: str) -> None:
    fence = x.hold("a", keep=5)
    if state == "released":
        x.release("a", fence, keep=5)
    assert x.packed
    later = x.packed._replace(format=C["FORMAT"] + 1).pack() + b"and more"
    x.raw.hset(x.keys.leases, "#", later)
    before = {key: x.raw.dump(key) for key in x.raw.keys(f"{settings.PREFIX}:{{x}}:*")}
    for token in "ab":
        for verb, arguments in CALLS:
            fenced = {"fence": fence, **arguments} if verb in ("release", "renew") else arguments
            with pytest.raises(redis.ResponseError, match="format of another version: 2"):
                x.run(verb, "" if verb in ("operate", "inspect") else token, **fenced)
    after = {key: x.raw.dump(key) for key in x.raw.keys(f"{settings.PREFIX}:{{x}}:*")}
    assert before == after


def test_permanent_lease_is_never_compact(x: Name) -> None:
    fence = x.hold("a", lease=5000)
    assert x.packed
    assert "ok" == x.run("renew", "a", fence=fence, how="set", ms="inf", nth=1)[0]
    assert x.packed is None


def test_fences_grow_across_a_flush_within_one_transaction(x: Name) -> None:
    source = scripts.script("acquire").source
    asks = [call("acquire", x.keys, token, how="try", limit=9) for token in "ab"]
    with x.raw.pipeline(transaction=True) as both:
        both.eval(source, *asks[0].asked)
        both.flushall()
        both.eval(source, *asks[1].asked)
        first, _, second = both.execute()
    assert int(words(first)[1]) < int(words(second)[1]), "the same fence was granted twice"
