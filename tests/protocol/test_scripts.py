"""The scripts, and their headers: the comments at their top that list arguments and replies.

The scripts run on the Redis in Python of `tests/model`. Its clock moves only when a test moves it.
`test_model` compares this Redis with a real server. `test_protocol_history` checks random calls.
"""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import redis
from django.conf import settings

from django_redis_sync.protocol import scripts
from django_redis_sync.protocol.keys import group_keys, keys_of
from tests.support.packed import Packed, unpack
from tests.support.workload import ModelServer, call, words

C = scripts.CONSTANTS


class Name(ModelServer):
    """A name on the Redis in Python. The methods run scripts on the name, and return replies."""

    def __init__(self, keep: int = 0, **said: Any) -> None:
        super().__init__(**said)
        self.keys, self.fences = keys_of("t", "x", None, keep), dict[str, str]()

    def do(self, verb: str, token: str = "", **said: Any) -> list[Any]:
        said |= {"keep": self.keys.keep} if verb not in ("inspect", "job") else {}
        reply: list[Any] = self.run(call(verb, self.keys, token, **said))
        return reply

    def ask(self, token: str, how: str = "wait", verb: str = "acquire", **said: Any) -> str:
        reply = self.do(verb, token, **({"how": how} if verb == "acquire" else {}), **said)
        if reply[0] == "ok":
            self.fences[token] = reply[1]
        return " ".join(reply)

    def hold(self, *tokens: str, **said: Any) -> None:
        for token in tokens:
            assert "ok" == self.ask(token, **said)[:2]

    def wait(self, *tokens: str, **said: Any) -> None:
        for token in tokens:
            assert "wait" == self.ask(token, **said)[:4]

    def end(self, token: str, how: str = "release", **said: Any) -> str:
        fence = self.fences.get(token, "0")
        return " ".join(self.do("release", token, **{"fence": fence, "how": how, **said}))

    def renew(self, token: str, how: str = "set", **said: Any) -> str:
        return " ".join(self.do("renew", token, fence=self.fences.get(token, "0"), how=how, **said))

    def operate(self, how: str, value: Any = "", **said: Any) -> None:
        assert ["ok"] == self.do("operate", how=how, value=value, **said)

    def hand_off(self, *waiters: str, **said: Any) -> None:
        """Let `a` get a lease, and let `waiters` wait. Then release `a`, so that the script grants
        the permit to the first waiter. `said`: arguments of all acquires."""
        self.hold("a", **said)
        self.wait(*waiters, **said)
        self.end("a")
        self.fences[waiters[0]] = self.field(waiters[0]).split(" ")[1]

    def pass_time(self, ms: float) -> None:
        self.micros += int(ms * 1000)

    # The stored state

    @property
    def now(self) -> int:
        return self.micros // 1000

    @property
    def packed(self) -> Packed | None:
        """The compact state, or None if the name is expanded."""
        found = self.contents(self.keys, self.keys.leases).get("#")
        return unpack(found.encode("latin-1")) if found else None

    @property
    def state(self) -> str:
        """The holders, and the waiters in the order of the queue, for example "a | b c"."""
        queue = sorted(self.contents(self.keys, self.keys.queue).items(), key=lambda row: row[1])
        holders = sorted(self.leases(self.keys))
        return f"{' '.join(holders)} | {' '.join(token for token, _ in queue)}".strip()

    def left(self, token: str) -> float:
        """Return the milliseconds until the lease of `token` ends."""
        return self.leases(self.keys)[token] - self.now

    def deadline(self, token: str) -> float:
        return self.contents(self.keys, self.keys.waiters)[token] - self.now

    def field(self, name: str) -> str:
        fields = self.packed.fields if self.packed else self.contents(self.keys, self.keys.info)
        return fields.get(name, "")

    @property
    def stats(self) -> dict[str, str]:
        return self.contents(self.keys, self.keys.stats)

    def traces(self, token: str) -> set[str]:
        """Return the kinds of keys that contain data of `token`."""
        data = {key: row for rows in self.names.values() for key, _, row, _ in rows}
        return {
            key.rpartition("}:")[2].removesuffix(f":{token}")
            for key, row in data.items()
            if token in dict(row if row and type(row[0]) is tuple else ()) or key.endswith(token)
        }

    def change(self, part: str, **fields: Any) -> None:
        """Set fields of a hash, or scores of a sorted set, without a script. If a value is None,
        remove the field. The first `_` in the name of a field stands for "#"."""
        key = getattr(self.keys, part)
        ((base, rows),) = self.names.items()
        kinds = {name: (kind, expiry) for name, kind, _, expiry in rows}
        kind, expiry = kinds.get(key, ("h" if part in ("info", "stats") else "z", None))
        given = {field.replace("_", "#", 1): value for field, value in fields.items()}
        items = {f: v for f, v in (self.contents(self.keys, key) | given).items() if v is not None}
        new = (key, kind, tuple(sorted(items.items())), expiry)
        self.names[base] = tuple(
            sorted([row for row in rows if row[0] != key] + [new] * bool(items))
        )

    def lose(self, part: str) -> None:
        """Delete a key, as an eviction does."""
        self.change(part, **dict.fromkeys(self.contents(self.keys, getattr(self.keys, part))))


@pytest.fixture
def x() -> Name:
    return Name()


# Acquiring


@pytest.mark.promise(1, 5)
def test_repeated_acquire_gets_the_same_fence_until_its_lease_expires(x: Name) -> None:
    assert f"ok {x.micros} 10000" == x.ask("a", lease=10_000)
    assert (10_000, str(x.micros)) == (x.left("a"), x.field("#fence"))
    x.pass_time(4000)
    assert f"ok {x.micros - 4_000_000} 6000" == x.ask("a", lease=10_000)
    x.pass_time(6000)
    assert "gone" == x.ask("a", lease=10_000), "an expired token is granted again"
    assert f"ok {x.micros} 5000" == x.ask("b", lease="inf"), (
        "the permanent lease is not limited before its first renewal"
    )


@pytest.mark.promise(9)
def test_fences_grow_when_the_keys_were_lost(x: Name) -> None:
    x.hold("a")
    x.names.clear()
    x.pass_time(0.001)
    x.hold("b")
    assert int(x.fences["a"]) < int(x.fences["b"])


@pytest.mark.promise(9)
def test_fences_grow_when_a_transaction_deletes_all_data_between_acquires(raw: redis.Redis) -> None:
    """Since Redis 7.2, the clock of a transaction stands still. Then both grants get this time."""
    keys, source = keys_of(settings.PREFIX, "x"), scripts.script("acquire").source
    asks = [call("acquire", keys, token, how="try", limit=9) for token in "ab"]
    with raw.pipeline(transaction=True) as both:
        both.eval(source, *asks[0].asked).time()
        both.flushall()
        both.time().eval(source, *asks[1].asked)
        first, before, _, after, second = both.execute()
    one, two = int(words(first)[1]), int(words(second)[1])
    frozen = before == after and one == two == before[0] * 1_000_000 + before[1]
    assert one < two or frozen, "the same fence was granted twice"


def test_acquire_stores_both_limits_if_two_callers_use_different_limits(x: Name) -> None:
    x.hold("a", limit=3)
    x.hold("b", limit=5)
    assert ("p 5", f"{x.now} p 3") == (x.field("#seen"), x.field("#clash"))
    assert x.field("#clash") == x.do("inspect")[5]


@pytest.mark.promise(22)
def test_grant_in_shadow_mode_contains_the_reason_for_a_rejection(x: Name) -> None:
    fence = x.micros
    assert f"ok {fence} 1000" == x.ask("a", "shadow")
    assert f"ok {fence + 1} 1000 2 full" == x.ask("b", "shadow")
    x.operate("pause")
    assert f"ok {fence + 2} 1000 3 paused" == x.ask("c", "shadow")


def test_rejection_contains_the_number_of_waiters_and_the_limit_in_force(x: Name) -> None:
    x.hold("a", limit=3)
    x.operate("resize", 1)
    assert "no full 0  1" == x.ask("b", "try", limit=3)
    x.wait("b", "c", limit=3)
    assert "no full 2  1" == x.ask("d", max_waiters=2, limit=3)
    assert "no full 2  1" == x.ask("d", max_waiters=0, limit=3)
    x.operate("reset")  # b and c are granted their permits
    assert "no full 0  1" == x.ask("d", "try", limit=1)


@pytest.mark.promise(4)
@pytest.mark.parametrize("paused", [False, True])
def test_dead_waiters_do_not_count_toward_max_waiters(x: Name, paused: bool) -> None:
    if paused:
        x.operate("pause")
    else:
        x.hold("a", lease=60_000)
    x.wait("b", max_waiters=1, channel="loop")
    x.pass_time(C["ALIVE"])  # an event loop counts as dead sooner than a waiter
    x.wait("c", max_waiters=1)
    assert ("| c" if paused else "a | c") == x.state


@pytest.mark.promise(2)
@pytest.mark.parametrize(("age", "reply"), [(0, "ok"), (C["HEARTBEAT"], "no"), (-60_000, "no")])
def test_unfair_caller_overtakes_the_first_waiter_only_while_that_waiter_is_new(
    x: Name, age: int, reply: str
) -> None:
    x.hold("a", limit=2, lease=60_000)
    x.wait("head", limit=2, permits=2)
    assert "no" == x.ask("fair", "try", limit=2)[:2]
    x.change("queue", head=float(x.micros - age * 1000))  # a negative age: the clock went back
    assert reply == x.ask("unfair", "try", limit=2, fair=0)[:2]


def test_one_script_removes_a_bounded_number_of_expired_leases(x: Name) -> None:
    count = C["BOUND"] * C["ROUNDS"] + 500
    x.hold("a", kind="w", limit=10_000, lease=100)
    x.operate("poke")
    ends = {f"t{n}": float(x.now + 100) for n in range(count - 1)}
    x.change("leases", **ends)
    x.pass_time(100)
    writer = {"kind": "w", "permits": 0, "limit": 10_000}
    assert "more" == x.ask("writer", "try", **writer)
    assert 500 == len(x.leases(x.keys))
    assert "ok" == x.ask("writer", "try", **writer)[:2]
    assert "writer |" == x.state


@pytest.mark.promise(4)
def test_one_script_removes_a_bounded_number_of_dead_waiters(x: Name) -> None:
    x.hold("a", lease=600_000)
    x.wait("dead")
    dead = {f"dead{n}": n for n in range(3 * C["CHUNK"])}
    record = x.field("dead")
    x.change("info", **dict.fromkeys(dead, record))
    x.change("waiters", **dict.fromkeys(dead, 1.0))
    x.change("queue", **{token: float(x.micros + n) for token, n in dead.items()})
    x.pass_time(C["ASLEEP"])
    assert f"wait {x.now} 1 {C['CHUNK'] - C['BOUND'] + 1}" == x.ask("live"), (
        "it has to ask again at once"
    )
    assert f"wait {x.now} 1000 0" == x.ask("live", "again")
    assert "a | live" == x.state


# When waiters ask again for a permit


def test_nth_waiter_asks_again_when_the_nth_lease_ends(x: Name) -> None:
    x.hold("a", limit=2, lease=700)
    x.hold("b", limit=2, lease=950)
    delays = [x.ask(f"w{n}", limit=2).split(" ")[2] for n in range(4)]
    assert ["701", "951", "1000", "1000"] == delays
    assert 701 + C["PATIENCE"] == x.deadline("w0")


def test_waiters_far_back_in_the_queue_ask_less_often(x: Name) -> None:
    x.hold("a", lease=60_000)
    delays = [int(x.ask(f"w{n}").split(" ")[2]) for n in range(40)]
    near = C["NEAR"] + 1
    assert {C["HEARTBEAT"]} == set(delays[:near])
    assert [1010, 1020] == delays[near : near + 2]


@pytest.mark.promise(11)
def test_first_waiter_asks_again_when_the_new_holder_has_not_claimed_its_lease(x: Name) -> None:
    x.hand_off("b", "c", lease=60_000)
    x.pass_time(C["CLAIM"] - 300)
    assert f"wait {x.now} 301 0" == x.ask("c", "again")
    x.pass_time(301)
    assert "ok" == x.ask("c", "again")[:2]
    assert "gone" == x.ask("b", "again")


@pytest.mark.promise(4)
def test_waiter_asks_again_when_the_event_loop_of_earlier_waiters_counts_as_dead(x: Name) -> None:
    x.hold("a", lease=600_000)
    x.wait(*(f"b{n}" for n in range(300)), channel="loop")
    x.wait("live")
    x.pass_time(500)
    again = f"wait {x.now} {C['ALIVE'] - 500 + 1 + 300 % 64} 300"
    assert again == x.ask("live", "again")
    # A waiter of the same event loop asks later. If the loop is dead, then so is this waiter.
    x.wait("b300", channel="loop")
    assert "3000" == x.ask("b300", "again", channel="loop").split(" ")[2]
    x.pass_time(C["ALIVE"])
    assert f"wait {x.now} 1000 0" == x.ask("live", "again")
    assert set() == x.traces("b0") | x.traces("loop")


# Releasing, undoing, clearing


@pytest.mark.promise(5)
def test_token_is_rejected_until_its_tombstone_expires(x: Name) -> None:
    x.hold("a")
    assert ("ok", "gone") == (x.end("a", "undo", tombstone=1), x.end("new", "undo", tombstone=1))
    x.end("a", "release")
    x.pass_time(C["TOMBSTONE_TTL"] - 1)
    assert ["dead"] * 4 == [x.ask(token, how) for token in ("a", "new") for how in ("try", "wait")]
    x.pass_time(1)
    x.hold("b")
    x.wait("c")
    assert set() == x.traces("a") | x.traces("new")


@pytest.mark.promise(15)
def test_former_holder_cannot_release_permits_that_min_hold_retains(x: Name) -> None:
    x.hold("a", lease=60_000)
    x.wait("b", lease=60_000)
    x.pass_time(1000)
    assert "ok" == x.end("a", hold=5000, tombstone=1)
    assert ("ka | b", 4000) == (x.state, x.left("ka"))
    assert ("dead", "lost", "lost") == (x.ask("a"), x.end("a"), x.renew("a", ms=60_000))
    x.ask("b", "again")
    assert ["ok"] == x.do("clear", "ka")
    assert "b |" == x.state
    x.fences["b"] = x.field("#fence")
    assert "ok" == x.end("b", hold=90_000), "the hold may last longer than the lease"
    assert 90_000 == x.left("kb")


@pytest.mark.promise(5)
@pytest.mark.parametrize("how", ["undo", "expiry", "release", "unclaimed", "giveup"])
def test_all_data_of_a_token_is_deleted_when_its_lease_or_wait_ends(x: Name, how: str) -> None:
    x.hand_off("b", "c", lease=2000)
    assert {"info", "leases", "waiters", "wake"} == x.traces("b")
    if how in ("expiry", "unclaimed"):
        x.pass_time(2000)
        x.ask("c", "again")
    elif how == "giveup":  # `b` got a lease from the handoff, and claims it
        assert f"ok {x.fences['b']} 2000" == x.end("b", "giveup")
        assert {"info", "leases"} == x.traces("b")
        x.end("b")
    else:
        x.end("b", how)
    assert (set(), "c |") == (x.traces("b"), x.state)


@pytest.mark.promise(11)
def test_handoff_is_published_on_the_channel_of_the_waiter(x: Name) -> None:
    x.hand_off("b", lease=60_000, channel="loop")
    assert [("loop", f"b {x.fences['b']} {x.now} {C['FIRST']}")] == x.published


# Renewing


@pytest.mark.promise(10, 15)
@pytest.mark.parametrize("compact", [1, 0], ids=["compact", "expanded"])
def test_only_the_first_of_two_processes_adopts_a_lease(compact: int) -> None:
    x = Name(compact=compact)
    x.hold("a", lease=10_000)
    first = {"ms": 30_000, "nth": 1000, "known": 4}
    assert ["ok 30000"] * 2 == [x.renew("a", "adopt", **first) for _ in range(2)]  # repeated
    assert "adopted" == x.renew("a", "adopt", **{**first, "nth": 2000, "ms": 90_000})
    assert "ok 30000" == x.renew("a", ms=90_000, nth=5), (
        "a renewal by the former owner had an effect"
    )


# Overrides of a policy: callers send them with each call for a key of the policy


@pytest.mark.parametrize("frees", ["release", "clear", "operate"])
def test_limit_of_a_key_wins_over_the_limit_of_its_policy(x: Name, frees: str) -> None:
    arguments = {"limit": 9, "overrides": "0 1"}
    x.operate("resize", 2)
    x.hold("a", **arguments)
    x.hold("b", **arguments, lease=2000)
    x.wait("c", **arguments)
    if frees == "operate":
        x.pass_time(1000)
        x.operate("poke", overrides="0 1")
    else:
        x.end("a", overrides="0 1") if frees == "release" else x.do("clear", "a", overrides="0 1")
    assert "b c |" == x.state


@pytest.mark.promise(26)
@pytest.mark.parametrize("frees", ["release", "undo", "clear", "resume", "again"])
def test_freed_permit_is_granted_to_no_waiter_while_the_policy_is_paused(
    x: Name, frees: str
) -> None:
    x.hold("a")
    x.wait("b", "c")
    if frees in ("resume", "again"):
        x.pass_time(1000)
    verb, token, said = {
        "clear": ("clear", "a", {}),
        "resume": ("operate", "", {"how": "resume"}),
        "again": ("acquire", "b", {"how": "again"}),
    }.get(frees, ("release", "a", {"how": frees, "fence": x.fences["a"]}))
    x.do(verb, token, overrides=f"{x.now} {x.now + 50} 0", **said)
    assert "| b c" == x.state
    x.operate("poke", overrides="0 0")
    assert "b | c" == x.state


# Numbers and clocks


@pytest.mark.promise(9)
def test_numbers_near_2_to_the_53_are_stored_exactly(x: Name) -> None:
    x.hold("a", limit=9)
    x.operate("poke")
    x.change("info", _fence=str(2**53 - 10))
    assert f"ok {2**53 - 9} {10**12} 2" == x.ask("b", limit=2**31 - 1, lease=10**12)
    assert str(2**53 - 9) == x.field("#fence")
    assert "ok" == x.end("b")
    x.wait("c", limit=1, lease=700)
    x.end("a")
    assert str(2**53 - 8) == x.field("#fence")
    info = x.contents(x.keys, x.keys.info)
    assert not [v for v in (*info, *info.values()) if "e+" in v or "." in v]


def went_back(x: Name, hour: int = 3_600_000) -> None:
    """Let the clock go back by an hour."""
    x.operate("poke")
    x.pass_time(-hour)


@pytest.mark.promise(3, 4)
@pytest.mark.parametrize("retained", [0, 4000], ids=["held", "retained by min_hold"])
def test_leases_and_deadlines_are_shortened_when_the_server_clock_went_back(
    x: Name, retained: int
) -> None:
    x.hold("a", lease=4000, limit=2)
    x.hold("ever", limit=2)
    x.renew("ever", ms="inf")
    x.wait("b", limit=2, permits=2)
    x.end("undone", "undo", tombstone=1)
    if retained:
        x.end("a", hold=retained)
    went_back(x)
    x.wait("c", limit=2)
    assert (4000, math.inf) == (x.left("ka" if retained else "a"), x.left("ever"))
    assert (C["ASLEEP"], C["TOMBSTONE_TTL"]) == (x.deadline("b"), x.deadline("undone"))
    assert ["b", "c"] == x.state.split(" ")[-2:], "the order of the waiters has changed"


def test_lease_end_is_not_changed_if_it_is_at_most_the_lease_duration_away(x: Name) -> None:
    x.hold("a", "b", lease=60_000, limit=2)
    x.wait("c", limit=2)
    x.pass_time(1000)
    before = x.leases(x.keys)["a"], x.deadline("c") + x.now
    x.change("info", _fence=str(x.micros + 10**9))
    x.wait("d", limit=2)
    assert before == (x.leases(x.keys)["a"], x.deadline("c") + x.now)
    x.end("a", hold=5000)
    assert 4000 == x.left("ka")


# Inspecting


@pytest.mark.promise(25)
def test_inspect_script_returns_the_state_of_a_name_without_changing_it(x: Name) -> None:
    x.hold("a", limit=3, permits=2, label="me & you", lease=9000)
    x.hold("over", limit=3)
    x.wait("b", "c", limit=3, permits=2, lease=500)
    x.pass_time(1000)
    x.operate("pause")
    before = x.names.copy()
    now, last, limit, paused, seen, _, used, holding, waiting, holders, waiters, _ = x.do("inspect")
    assert (str(x.now), x.fences["over"], "", str(x.now)) == (now, last, limit, paused)
    # The lease of `over` has expired, although Redis still stores it. So 2 of 3 permits are in use.
    assert ("p 3", "2", 1, 2) == (seen, used, holding, waiting)
    assert ["a", str(x.now + 8000), x.field("a")] == holders
    assert holders[2].endswith(" 9000 2 3 - me & you")
    assert ["b", "c"] == waiters[::4]
    assert [str(x.now + C["PATIENCE"]), x.field("b")] == waiters[2:4]
    assert before == x.names
    *_, holding, waiting, holders, waiters, _ = x.do("inspect", max_rows=1)
    assert (1, 2, 3, 4) == (holding, waiting, len(holders), len(waiters))


def test_inspect_of_an_unused_name_creates_no_keys(x: Name) -> None:
    assert [0, 0, [], [], []] == x.do("inspect")[-5:]
    assert [] == x.left_keys()


# Data that the scripts don't understand

CALLS = (
    *(("acquire", {"how": how, "keep": 5}) for how in ("try", "wait", "again")),
    *(("release", {"how": how, "keep": 5}) for how in ("release", "undo", "giveup", "downgrade")),
    *(("renew", {"how": how, "ms": 1000, "nth": 1}) for how in ("set", "confirm", "adopt")),
    *(("operate", {"how": how, "value": 3}) for how in ("pause", "resume", "resize", "reset")),
    *(("clear", {}), ("inspect", {})),
)


@pytest.mark.promise(28)
@pytest.mark.parametrize("state", ["held", "released", "foreign"])
def test_foreign_value_or_unknown_format_is_neither_used_nor_deleted(state: str) -> None:
    x, error = Name(keep=5), "format of another version: 2"
    x.hold("a")
    if state == "released":
        x.end("a")
    if state == "foreign":
        x.names["t:{x}:"], error = ((x.keys.leases, "l", ("foreign",), None),), "WRONGTYPE"
    else:
        assert x.packed
        later = x.packed._replace(format=C["FORMAT"] + 1).pack() + b"and more"
        x.change("leases", _=later.decode("latin-1"))
    before = x.names["t:{x}:"]
    for token in "ab":
        for verb, said in CALLS:
            fence = {"fence": x.fences["a"]} if verb in ("release", "renew") else {}
            token = "" if verb in ("operate", "inspect") else token
            x.run(call(verb, x.keys, token, **fence, **said))
            assert error in x.entries[-1].error, (verb, said)
    assert {*before} <= {*x.names["t:{x}:"]}
    assert state == "foreign" or before == x.names["t:{x}:"]


@pytest.mark.parametrize("part", ["queue", "waiters"])
def test_foreign_value_does_not_expire(x: Name, part: str) -> None:
    x.hold("a")
    x.operate("poke")
    foreign = (getattr(x.keys, part), "l", ("foreign",), None)
    x.names["t:{x}:"] = tuple(sorted([*x.names["t:{x}:"], foreign]))
    assert "ok 60000" == x.renew("a", ms=60_000)
    assert foreign in x.names["t:{x}:"]


# The headers of the scripts


def listed(verb: str) -> set[str]:
    """Return the first word of each reply that the header of a script lists."""
    returns = re.search(r"^-- Returns (.*)\n((?:--   .*\n)*)", scripts.read(verb), re.M)
    assert returns is not None, verb
    return set(re.findall(r'^--   "(\w+)', returns[2], re.M)) or {returns[1].strip('"')}


@pytest.mark.parametrize("verb", sorted({*scripts.NAME_SCRIPTS, "statistics"} - {"inspect"}))
def test_script_header_documents_every_reply_of_the_script(verb: str) -> None:
    code = scripts.with_functions(scripts.read(verb))
    returned = r"^ *(?:if .* then )?(?:return|reply =|return .* (?:and|or)) "
    found = set(re.findall(rf"{returned}(?:[^'\n]* and )?'(\w+)[ ']", code, re.M))
    found |= set(re.findall(rf"{returned}.* or '(\w+)'(?: end)?$", code, re.M))
    assert listed(verb) == found - {"inf"}


@pytest.mark.parametrize("verb", [*scripts.NAME_SCRIPTS, "statistics"])
def test_script_header_documents_every_argument_of_the_script(verb: str) -> None:
    text = scripts.read(verb)
    first = scripts.with_functions(text).splitlines()[0]
    taken = first.removeprefix("local ").removesuffix(" = unpack(ARGV)").split(", ")
    named = scripts.header(text, "ARGV")[: len(taken)]
    assert [*named] == [n if t == "_" else t for n, t in zip(named, taken, strict=True)]


def test_scripts_declare_the_keys_that_clients_send() -> None:
    assert {("leases", "never")} == {scripts.script(verb).keys for verb in scripts.NAME_SCRIPTS}
    assert ("p:{n}:leases", "p:{n}:never") == keys_of("p", "n").declared
    assert ("overrides",) == scripts.script("overrides").keys
    parts = [key.rpartition(":")[2] for key in group_keys("p", "g")]
    # The script calls the first key "gauges", and the third "stats".
    assert ["shares", "sketch", "sums"] == parts
    assert ("gauges", "sketch", "stats") == scripts.script("statistics").keys


def test_constants_satisfy_the_inequalities_that_scripts_rely_on() -> None:
    assert C["HEARTBEAT"] + C["PATIENCE"] <= C["ASLEEP"]
    assert C["CLAIM"] <= C["FIRST"]
    assert scripts.MOST_PERMITS < C["EXCLUSIVE"] < 2**52


# How scripts are composed of functions


@pytest.mark.parametrize(
    ("text", "order"),
    {
        "before its first call": (
            "local a = whole(1)\nif a then\n  weight(1)\nend\nput(a)\n",
            "whole if weight put",
        ),
        "before the if of an elseif": (
            "if a then\n  a()\nelseif weight(1) then\n  a()\nend\nif a then\nend\n",
            "weight if if",
        ),
        "before a loop whose every turn calls it": (
            "for i = 1, 2 do\n  weight(i)\n  if i then\n    whole(i)\n  end\nend\n",
            "weight for if whole",
        ),
        "once, where it is made": (
            "-- the composer inserts here: weight\nif a then\n  weight(1)\nend\n"
            "if a then\n  weight(2)\nend\n",
            "weight if if",
        ),
        "in each block that calls it": (
            "if a then\n  weight(1)\nend\nif a then\n  weight(2)\nend\n",
            "if weight if weight",
        ),
        "before a long statement": ("if a then\nend\nadd({1,\n  weight(1)})\n", "if weight"),
        "after the functions that it calls": ("weight(1)\nadd(wake_key(1))", "weight wake_key"),
    }.values(),
)
def test_function_is_inserted_before_the_statement_that_calls_it(text: str, order: str) -> None:
    composed = scripts.with_functions(text)
    found = re.findall(r"^\s*(?:local function (\w+)|(if|for)\b)", composed, re.MULTILINE)
    assert order.split(" ") == [created or word for created, word in found]
    assert composed.endswith(text.rstrip().splitlines()[-1] + "\n")


def test_lua_code_with_an_unknown_field_raises_key_error() -> None:
    with pytest.raises(KeyError, match="crad"):
        scripts.with_numbers("acquire", "name.crad", {})
