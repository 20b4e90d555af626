"""The equivalence of the two states: expanding a name changes nothing.

The same verbs, with the same arguments at the same time, on a name that may be packed and on one
that may not: every reply, every message and all that is counted must be the same. On the model's
Redis, where time moves as it is told (`test_model` compares it with a real one).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from django_redis_sync.protocol import scripts
from django_redis_sync.protocol.keys import keys_of
from tests.model.redis import WRITES, ScriptError, Scripts, Store, compiled
from tests.support.workload import DEFAULTS, argv_of

pytestmark = pytest.mark.promise(31)

KEYS = keys_of("law", "n")
START = 1_700_000_000_000_000
TOKENS = "abcdef"


class _Clocked(Store):
    """Of which no script asks the time twice: its lease would be of another moment than its ask."""

    asked = 0

    def _time(self) -> list[str]:
        self.asked += 1
        return super()._time()


class Side:
    """A server with the name; `compact`: whether it may be packed."""

    def __init__(self, verbs: Scripts, compact: bool) -> None:
        self.verbs, self.compact, self.frozen = verbs, compact, ()
        self.packed = 0  # how often it was

    def run(self, micros: int, full: bool, verb: str, said: Mapping[str, Any]) -> Any:
        store = _Clocked(self.frozen, micros, full)
        said = {**said, "compact": int(self.compact)}
        argv = argv_of(verb, said)
        try:
            reply = self.verbs.run(store, verb, KEYS.declared, argv)
        except ScriptError as error:
            reply = "OOM" if "OOM" in str(error) else f"ERROR {error}"
        assert store.asked <= 1, f"{verb} {said} packed, {store.asked} times the clock"
        self.frozen = store.freeze()
        self.packed += any(key == KEYS.leases and kind == "h" for key, kind, *_ in self.frozen)
        return reply, store.published

    def pop(self, micros: int, token: str) -> Any:
        store = Store(self.frozen, micros)
        reply = store.call("LPOP", KEYS.wake + token)
        self.frozen = store.freeze()
        return reply

    def goes(self, micros: int) -> bool:
        return any(expiry == micros // 1000 for *_, expiry in self.frozen)

    def counted(self, micros: int, full: bool) -> Any:
        """What is counted, wakes, and when the last key of the name goes."""
        kept = [row for row in Store(self.frozen, micros).freeze() if row[0] != KEYS.declared[1]]
        beside = [row for row in kept if row[0] == KEYS.stats or row[0].startswith(KEYS.wake)]
        own = [row[3] or 10**18 for row in kept if row not in beside]
        # With the memory full, what can be counted hangs on what was written before.
        return [row for row in beside if not full or row[0] != KEYS.stats], max(own, default=0)


class Pair:
    """Both, driven by chance; `trail`: what was done."""

    def __init__(
        self, chance: random.Random, lua: Mapping[str, str] = {}, full: bool = False
    ) -> None:
        verbs = compiled(tuple(lua.items()))
        self.sides = [Side(verbs, True), Side(verbs, False)]
        self.chance, self.micros, self.may_fill, self.full = chance, START, full, False
        self.last = TOKENS[0]  # that was granted
        self.fences = dict.fromkeys(TOKENS, "0")
        self.kind, self.keep = chance.choice("ppw"), chance.choice([0, 5, 5])
        self.limit = chance.choice([1, 1, 1, 2, 3])
        self.quick = chance.random() < 0.3  # leases end by themselves only seldom
        self.rare = chance.random() < 0.5  # only what a lone holder does, mostly
        self.trail: list[Any] = []
        self.words: set[str] = set()

    def both(self, verb: str, **said: Any) -> Any:
        common = {"keep": self.keep, "mark": "-", "token": "", "place": "", **said}
        ours, theirs = (s.run(self.micros, self.full, verb, common) for s in self.sides)
        self.trail.append((self.micros - START, verb, self.full, said, ours[0]))
        assert theirs == ours, self.run_callbacks(f"{verb} {said}: {ours} packed, {theirs} open")
        word = ours[0] if isinstance(ours[0], str) else ours[0][0]
        if verb != "inspect":
            self.words.add(word)
        assert not word.startswith("ERROR"), self.run_callbacks(word)
        return ours[0]

    def run_callbacks(self, what: str) -> str:
        return "\n".join([what, *map(str, self.trail[-12:])])

    def step(self) -> None:
        chance = self.chance
        # A full memory denies what a clock that went back makes necessary: either answer is no.
        wide = [3_000_000, 20_000_000] + [-5_000_000] * (not self.may_fill)
        self.micros += chance.choice(
            [0, 1, 700, 1000, 400_000, 1_500_000] + wide * (not self.quick)
        )
        if chance.random() < 0.01:
            self.micros += chance.choice([7 * 60_000_000, 3600_000_000])
        # In the very millisecond in which the keys go, they may be there or not.
        self.micros += 1000 * any(side.goes(self.micros) for side in self.sides)
        if self.may_fill and chance.random() < 0.2:
            self.full = not self.full
        often = ["acquire"] * 5 + ["release"] * 4 + ["renew"] * 3
        getattr(
            self,
            chance.choice(
                often
                if self.rare and chance.random() < 0.9
                else [*often, "clear", "operate", "pop"]
            ),
        )()
        self.both("inspect", max_rows=chance.choice([0, 1, 5]))
        ours, theirs = (side.counted(self.micros, self.may_fill) for side in self.sides)
        assert theirs == ours, self.run_callbacks(f"{ours} packed, {theirs} open")

    def token(self) -> str:
        if self.chance.random() < 0.3:
            return self.last
        return self.chance.choice("ab" if self.rare else TOKENS)

    def mark(self) -> str:
        return self.chance.choice(["-"] * 12 + ["0 2", "1790000000000 0", "0 1"])

    def acquire(self) -> None:
        chance, token = self.chance, self.token()
        permits = chance.choice([1, 1, 1, 2, 4] if self.kind == "p" else [0, 1])
        if self.rare:
            how = chance.choice(["try", "try", "try", "wait", "again", "shadow"])
        else:
            how = chance.choice(["try", "wait", "wait", "again", "shadow"])
        reply = self.both(
            "acquire",
            token=token,
            lease=chance.choice(
                [1, 900, 8000, 8000, 60_000, "inf"] if not self.rare else [900, 8000]
            ),
            permits=min(permits, 1) if self.rare else permits,
            limit=self.limit if chance.random() < 0.9 else 3,
            kind=self.kind if chance.random() < 0.95 else "pw"["wp".index(self.kind)],
            how=how,
            max_waiters=chance.choice([0, 4, 4]),
            fair=chance.choice([0, 1]),
            channel=chance.choice(["-", "-", "ch"]),
            label=chance.choice(["", "who it is"]),
            mark=self.mark(),
        )
        if reply[0] == "ok":
            self.last, self.fences[token] = token, reply[1]

    def fence(self, token: str) -> str:
        return self.fences[token] if self.chance.random() < 0.95 else "17"

    def release(self) -> None:
        chance, token = self.chance, self.token()
        how = "release" if chance.random() < 0.7 else chance.choice(["undo", "giveup", "share"])
        self.both(
            "release",
            token=token,
            fence=self.fence(token),
            how=how,
            tombstone=int(chance.random() < 0.1),
            hold=chance.choice([0] * 8 + [2000]),
            mark=self.mark(),
        )

    def renew(self) -> None:
        chance, token = self.chance, self.token()
        self.both(
            "renew",
            token=token,
            fence=self.fence(token),
            how=chance.choice(["set", "set", "confirm", "adopt", "adopt"]),
            ms=chance.choice([1000, 9000, 30_000] + ["inf"] * (not self.rare)),
            nth=chance.choice([0, 1, 2, 5]),
            known=chance.choice([0, 1]),
        )

    def clear(self) -> None:
        self.both("clear", token=self.token(), mark=self.mark())

    def operate(self) -> None:
        how = self.chance.choice(["pause", "resume", "resume", "resize", "reset", "reset", "poke"])
        self.both("operate", how=how, value=2, mark=self.mark())

    def pop(self) -> None:
        token = self.token()
        ours, theirs = (side.pop(self.micros, token) for side in self.sides)
        assert theirs == ours


def walk(seeds: range, steps: int, **more: Any) -> tuple[set[str], float]:
    """The words that were answered, and how often the name was packed of all steps."""
    words: set[str] = set()
    packed = 0
    for seed in seeds:
        pair = Pair(random.Random(seed), **more)
        for _ in range(steps):
            pair.step()
        words |= pair.words
        packed += pair.sides[0].packed
        assert not pair.sides[1].packed
    return words, packed / (len(seeds) * steps)


@pytest.mark.parametrize("full", [False, True], ids=["", "memory full at times"])
@pytest.mark.parametrize("part", range(4))
def test_spilling_changes_nothing(part: int, full: bool) -> None:
    words, packed = walk(range(part * 25, part * 25 + 25), 120, full=full)
    assert words >= {"ok", "wait", "no", "gone", "lost", "large", "kind", "dead"} | (
        {"OOM"} if full else set()
    )
    assert packed > 0.15


DEFECTS = {
    "a spill loses the fence": {"'#fence', string.format('%.0f', fence), '#expiry'": "'#expiry'"},
    "a spill loses the record": {"if terms then redis.call('HSET', INFO, holder, record) end": ""},
    "a spill loses the kind and the limit": {", '#seen', seen)": ")"},
    "a spill counts one permit": {
        "weight(tonumber(string.match(terms, '^%d+'))) - 1 or 0": "0 or 0"
    },
    "a spill ends the lease": {"string.format('%.0f', ends), holder)": "'1', holder)"},
    "a spill makes keys that do not expire": {"  redis.call('PEXPIREAT', INFO, until_then)\n": ""},
    "a spilling newcomer passes a full memory": {
        "if out or (not live and holder ~= '') then redis.call('DEL', NEVER) end": (
            "redis.call('DEL', NEVER)"
        )
    },
    "a full memory denies a release": {
        "if not tonumber(redis.pcall('HSET', LEASES, '#', idle)) then": (
            "if redis.call('HSET', LEASES, '#', idle) == 9 then"
        )
    },
    "a full memory denies a renewal": {
        "if not tonumber(redis.pcall('HSET', LEASES, '#', packed)) then": (
            "if redis.call('HSET', LEASES, '#', packed) == 9 then"
        )
    },
    "a name is packed while a tombstone lies there": {"redis.call('ZCARD', WAITERS) == 0 and": ""},
    "a name is packed while somebody waits": {
        "waiting == 0 and compact ~= '0'": "compact ~= '0'",
        "redis.call('ZCARD', WAITERS) == 0 and": "",
    },
    "a name is packed while somebody holds": {
        "if free and alone and name.card == 0 and": "if free and alone and"
    },
    "a name is packed with its operator's limit": {"return not name.override and": "return"},
    "a name is packed with a note of callers that disagree": {
        "and not redis.call('HGET', INFO, '#clash')": ""
    },
    "a packed name forgets how long its keys were to last": {
        "token, lease, permits, terms, name.fence, name.expiry": (
            "token, lease, permits, terms, name.fence, 0"
        )
    },
    "a packed name forgets its last fence": {
        "token, lease, permits, terms, name.fence,": "token, lease, permits, terms, 0,"
    },
    "grants are not counted": {
        "if redis.pcall('HINCRBY', stats, minute .. ':g', '1') == 1": "if false"
    },
    "what expired is not counted": {
        "if expired ~= '' then redis.pcall('HINCRBY', stats, minute .. ':c', '1') end": ""
    },
    "releases are not counted": {
        "if redis.pcall('HINCRBY', stats, minute .. ':r', by) == n": "if false"
    },
    "a minute is one too late": {
        "minute, stats = string.format('%d', (now - now % 60000) / 60000)": (
            "minute, stats = string.format('%d', (now - now % 60000) / 60000 + 1)"
        )
    },
    "the peak is not kept": {"if top ~= peak then": "if false then"},
    "another fence releases": {"held and last == tonumber(fence)": "held"},
    "what is over is released": {"holder == token and us < ends * 1000": "holder == token"},
    "another fence renews": {
        "lease_ends <= name.now or last ~= tonumber(fence)": "lease_ends <= name.now"
    },
    "an older renewal moves the end": {"or tonumber(nth) < latest then": "then"},
    "a lease is adopted twice": {"and latest ~= tonumber(nth) then": "and false then"},
    "a renewal does not move the expiry of the key": {
        "if later then redis.call('PEXPIREAT', LEASES, string.format('%.0f', expiry)) end\nend": (
            "end"
        )
    },
    "a kept permit is forgotten": {
        "(not tombstone or tombstone == '0' and hold == '0')": "(not tombstone or tombstone == '0')"
    },
    "a token is not buried": {
        "(not tombstone or tombstone == '0' and hold == '0')": "(not hold or hold == '0')"
    },
    "a lost reply is answered with another lease": {"if holder == token then": "if false then"},
    "another kind is let in": {
        " or live and string.sub(seen, 1, 1) ~= string.sub(wants, 1, 1)": ""
    },
    "a policy's pause is not applied": {
        "  name.card, name.extra = live and 1": "  mark = nil\n  name.card, name.extra = live and 1"
    },
    "a pass for ever is packed": {
        "compact ~= '0' and lease ~= 'inf' and (": "compact ~= '0' and (",
        "local ends = now + lease\n": "local ends = now + tonumber(lease)\n",
    },
    "a name is packed against its policy's mark": {
        "lease ~= 'inf' and (not mark or mark == '-')": "lease ~= 'inf'"
    },
    "a waiter's heartbeat is a new ask": {"and how ~= 'again' and string.sub": "and string.sub"},
    "many permits are taken for one": {" and string.sub(terms, 1, 2) == '1 '": ""},
    "a writer weighs as much as a reader": {
        "live and (permits == 0 and EXCLUSIVE or permits) - 1 or 0": "0",
    },
    "the clock is read twice": {"  if not us then\n": "  if true then\n"},
    "the shown end is another": {
        "row = live and max_rows > 0 and {holder, whole(name, ends)": (
            "row = live and max_rows > 0 and {holder, whole(name, ends + 1)"
        )
    },
}


#: The walks that meet rare ones: begun with, since those before them find nothing.
FOUND_BY = {
    "a full memory denies a renewal": 11,
    "another fence renews": 21,
    "another kind is let in": 55,
    "a name is packed against its policy's mark": 23,
    "a pass for ever is packed": 24,
    "a writer weighs as much as a reader": 155,
    "many permits are taken for one": 32,
}


@pytest.mark.parametrize("name", DEFECTS)
def test_the_law_finds_it_when(name: str) -> None:
    with pytest.raises(AssertionError, match=r"packed,|ERROR"):
        first = FOUND_BY.get(name, 0)
        for seed in (*range(first, 200), *range(first)):
            walk(range(seed, seed + 1), 120, lua=DEFECTS[name], full=bool(seed % 2))


# An error on the way: scripts do not roll back


class _Stopping(Store):
    """Fails from its n-th write on."""

    left = 10**9

    def call(self, *args: Any) -> Any:
        if args[0] in WRITES:
            if self.left == 0:
                raise ScriptError("stopped")
            self.left -= 1
        return super().call(*args)


class _Alone(Side):
    """Stops scripts after some writes; `wrote`: what it let pass."""

    def stopped(self, writes: int, verb: str, said: Mapping[str, Any]) -> bool:
        store = _Stopping(self.frozen, self.micros)
        store.left = writes
        argv = argv_of(verb, {**DEFAULTS, **said, "compact": 1})
        try:
            self.verbs.run(store, verb, KEYS.declared, argv)
        except ScriptError as error:
            assert "stopped" in str(error)
        self.frozen = store.freeze()
        return store.left == 0

    micros = START

    def ask(self, verb: str, **said: Any) -> Any:
        return self.run(self.micros, False, verb, {**DEFAULTS, **said})[0]


def alone(state: str) -> tuple[_Alone, str]:
    side = _Alone(compiled(()), True)
    _, fence, _ = side.ask("acquire", token="a", how="try", lease=9000, permits=2, limit=3)
    if state == "given back":
        side.ask("release", token="a", fence=fence, how="release")
    assert side.packed
    return side, fence


SPILLING: list[tuple[str, dict[str, Any]]] = [
    ("acquire", {"token": "b", "how": "try", "limit": 3, "lease": "inf"}),
    ("acquire", {"token": "b", "how": "wait", "limit": 3, "permits": 3, "lease": "inf"}),
    ("renew", {"token": "a", "how": "set", "ms": "inf", "nth": 1}),
    ("release", {"token": "b", "how": "undo", "tombstone": 1}),
    ("operate", {"how": "poke"}),
    ("operate", {"how": "resize", "value": 3}),
]


def laid(side: Side) -> Mapping[str, str]:
    """INFO, when the name lies open."""
    return dict(next((items for key, _, items, _ in side.frozen if key == KEYS.info), ()))


@pytest.mark.parametrize("state", ["held", "given back"])
@pytest.mark.parametrize(("verb", "said"), SPILLING)
def test_a_spill_that_stops_on_the_way_loses_nothing(state: str, verb: str, said: Any) -> None:
    """And whoever comes next ends it."""
    if verb == "renew" and state != "held":
        return  # which is lost, and spills nothing
    halves = 0
    for writes in range(1, 20):
        side, fence = alone(state)
        shown = side.ask("inspect")
        assert side.stopped(writes, verb, {"fence": fence, **said} if verb == "renew" else said)
        if laid(side) and "#lone" not in laid(side):
            break  # it is done, and the verb's own writes begin
        halves += bool(laid(side))
        assert shown == side.ask("inspect")
        assert ["ok"] == side.ask("operate", how="poke")
        assert laid(side) and "#lone" not in laid(side)
        assert shown == side.ask("inspect")
        assert all(expiry for *_, expiry in side.frozen)
        again = side.ask("renew", token="a", fence=fence, how="confirm")
        assert (["ok", "9000"] if state == "held" else ["lost"]) == again
    assert halves >= (6 if state == "held" else 3)


@pytest.mark.parametrize("writes", range(1, 4))
def test_a_name_that_is_packed_only_half_belongs_to_its_new_holder(writes: int) -> None:
    side, fence = alone("held")
    side.ask("operate", how="poke")
    side.ask("release", token="a", fence=fence, how="release")
    taking = {"token": "b", "how": "try", "limit": 1, "lease": 9000}
    assert side.stopped(writes, "acquire", taking)
    assert (writes < 3) == bool(laid(side))
    assert "full" == side.ask("acquire", token="c", how="try", limit=1)[1]
    word, given, left = side.ask("acquire", token="b", how="try", limit=1)
    assert ("ok", "9000") == (word, left)
    assert ["ok"] == side.ask("release", token="b", fence=given, how="release")
    assert int(fence) < int(given) < int(side.ask("acquire", token="d", how="try", limit=1)[1])
    assert all(expiry for *_, expiry in side.frozen)


def test_a_name_with_one_holder_stays_packed_whatever_it_does() -> None:
    side, fence = alone("held")
    for verb, said in (
        ("acquire", {"token": "a", "how": "again"}),
        ("acquire", {"token": "b", "how": "try", "limit": 3, "permits": 2}),
        ("acquire", {"token": "b", "how": "wait", "limit": 3, "permits": 4}),
        ("acquire", {"token": "b", "how": "wait", "limit": 3, "permits": 2, "max_waiters": 0}),
        ("renew", {"token": "a", "fence": fence, "how": "set", "ms": 60_000, "nth": 1}),
        ("renew", {"token": "a", "fence": fence, "how": "confirm"}),
        ("renew", {"token": "b", "fence": fence, "how": "set", "ms": 1}),
        ("release", {"token": "b", "fence": fence, "how": "release"}),
        ("release", {"token": "a", "how": "giveup"}),
        ("clear", {"token": "b"}),
        ("inspect", {}),
        ("release", {"token": "a", "fence": fence, "how": "release"}),
        ("acquire", {"token": "b", "how": "try", "limit": 3, "permits": 2}),
    ):
        side.ask(verb, **said)
        assert not laid(side), (verb, said)


# The very millisecond in which something ends

AT_ITS_END: list[tuple[str, dict[str, Any], list[Any], list[Any]]] = [
    ("acquire", {"token": "b", "how": "try"}, ["no", "full", "0"], ["ok"]),
    ("acquire", {"token": "a", "how": "again"}, ["ok", "1"], ["gone"]),
    ("renew", {"how": "set", "ms": 70, "nth": 1}, ["ok", "70"], ["lost"]),
    ("renew", {"how": "confirm"}, ["ok", "1"], ["lost"]),
    ("release", {"how": "release"}, ["ok"], ["lost"]),
    ("release", {"how": "share"}, ["ok"], ["lost"]),
    ("release", {"how": "undo"}, ["ok"], ["gone"]),
    ("release", {"how": "giveup"}, ["ok", "1"], ["gone"]),
    ("inspect", {}, [1], [0]),
]


@pytest.mark.parametrize("compact", [True, False], ids=["packed", "open"])
@pytest.mark.parametrize(("verb", "said", "before", "then"), AT_ITS_END)
def test_a_lease_is_over_when_its_end_is_there(
    verb: str, said: dict[str, Any], before: list[Any], then: list[Any], compact: bool
) -> None:
    for ms, expected in ((8999, before), (9000, then)):
        side = _Alone(compiled(()), compact)
        _, fence, _ = side.ask("acquire", token="a", how="try", lease=9000)
        side.micros += ms * 1000
        reply = side.ask(verb, **{"token": "a", "fence": fence, **said})
        told = reply[7:8] if verb == "inspect" else [word for word in reply if word != fence]
        assert expected == told[: len(expected)]


@pytest.mark.parametrize(("ms", "kept"), [(1999, 1), (2000, 0)])
@pytest.mark.parametrize("compact", [True, False], ids=["packed", "open"])
def test_min_hold_is_over_when_its_end_is_there(compact: bool, ms: int, kept: int) -> None:
    side = _Alone(compiled(()), compact)
    _, fence, _ = side.ask("acquire", token="a", how="try", lease=9000)
    side.micros += ms * 1000
    assert ["ok"] == side.ask("release", token="a", fence=fence, how="release", hold=2000)
    assert kept == side.ask("inspect")[7]


@pytest.mark.parametrize(("early", "wins"), [(1, "b"), (0, "c")])
def test_a_waiter_is_dead_when_its_deadline_is_there(early: int, wins: str) -> None:
    side = _Alone(compiled(()), True)
    _, fence, _ = side.ask("acquire", token="a", how="try", lease=60_000)
    told = int(side.ask("acquire", token="b", how="wait")[2])
    side.micros += 1000
    side.ask("acquire", token="c", how="wait")
    side.micros = START + (told + scripts.CONSTANTS["PATIENCE"] - early) * 1000
    side.ask("release", token="a", fence=fence, how="release")
    assert wins == side.ask("inspect")[9][0]


@pytest.mark.parametrize(("early", "word"), [(1, "ok"), (0, "no")])
def test_nobody_passes_a_head_that_has_waited_for_a_heartbeat(early: int, word: str) -> None:
    side = _Alone(compiled(()), True)
    side.ask("acquire", token="a", how="try", lease=60_000, limit=2)
    side.ask("acquire", token="b", how="wait", permits=2, limit=2)
    side.micros += (scripts.CONSTANTS["HEARTBEAT"] - early) * 1000
    assert word == side.ask("acquire", token="c", how="try", limit=2, fair=0)[0]


@pytest.mark.parametrize("watched", ["a lease", "a winner that does not wake"])
def test_who_is_first_asks_again_when_it_can_be_served_and_not_before(watched: str) -> None:
    side = _Alone(compiled(()), True)
    lease = 2500 if watched == "a lease" else 60_000
    _, fence, _ = side.ask("acquire", token="a", how="try", lease=lease)
    if watched != "a lease":
        side.ask("acquire", token="b", how="wait", lease=60_000)
    reply = side.ask("acquire", token="c", how="wait")
    if watched != "a lease":
        side.ask("release", token="a", fence=fence, how="release")
        reply = side.ask("acquire", token="c", how="again")
    told = []
    while reply[0] == "wait":
        told.append(int(reply[2]))
        side.micros += told[-1] * 1000
        reply = side.ask("acquire", token="c", how="again")
    assert "ok" == reply[0]
    assert [1000, 1000, 501] == told


@pytest.mark.parametrize("early", [0, 1000], ids=["at once", "once more"])
def test_who_is_behind_an_event_loop_asks_again_when_that_counts_as_dead(early: int) -> None:
    side = _Alone(compiled(()), True)
    side.ask("acquire", token="a", how="try", lease=60_000)
    for n in range(256):
        side.ask("acquire", token=f"b{n}", how="wait", channel="loop")
    told = int(side.ask("acquire", token="c", how="wait")[2])
    if early:
        side.micros += early * 1000
        told = int(side.ask("acquire", token="c", how="again")[2])
    assert scripts.CONSTANTS["ALIVE"] + 1 == early + told
    side.micros += told * 1000
    word, _, _, rank = side.ask("acquire", token="c", how="again")
    assert ("wait", "0") == (word, rank)
