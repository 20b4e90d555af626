"""The equivalence of the two states: expanding a name changes nothing.

The same scripts run, with the same arguments at the same time, on a name that may be in the compact
state and on a name that may not. Every reply, message, and counter must be equal. The tests use the
model's Redis, whose clock they set (`test_model` compares it with a real one).
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

KEYS = keys_of("equal", "n")
START = 1_700_000_000_000_000
TOKENS = "abcdef"


class _ClockCounter(Store):
    """Counts how often a script reads the clock: two readings could differ."""

    clock_reads = 0

    def _time(self) -> list[str]:
        self.clock_reads += 1
        return super()._time()


class Side:
    """A server with the name. `compact`: True if the name may be in the compact state."""

    def __init__(self, verbs: Scripts, compact: bool) -> None:
        self.verbs, self.compact, self.frozen = verbs, compact, ()
        self.compact_steps = 0  # scripts after which the name was in the compact state

    def run(self, micros: int, full: bool, verb: str, args: Mapping[str, Any]) -> Any:
        store = _ClockCounter(self.frozen, micros, full)
        args = {**args, "compact": int(self.compact)}
        argv = argv_of(verb, args)
        try:
            reply = self.verbs.run(store, verb, KEYS.declared, argv)
        except ScriptError as error:
            reply = "OOM" if "OOM" in str(error) else f"ERROR {error}"
        assert store.clock_reads <= 1, f"compact, {store.clock_reads} clock reads: {verb} {args}"
        self.frozen = store.freeze()
        self.compact_steps += (KEYS.leases, "h") in [row[:2] for row in self.frozen]
        return reply, store.published

    def pop(self, micros: int, token: str) -> Any:
        store = Store(self.frozen, micros)
        reply = store.call("LPOP", KEYS.wake + token)
        self.frozen = store.freeze()
        return reply

    def expires(self, micros: int) -> bool:
        return any(expiry == micros // 1000 for *_, expiry in self.frozen)

    def counted(self, micros: int, full: bool) -> Any:
        """Return the counters and wake lists, and when the last key of the name expires."""
        rows = [row for row in Store(self.frozen, micros).freeze() if row[0] != KEYS.declared[1]]
        beside = [row for row in rows if row[0] == KEYS.stats or row[0].startswith(KEYS.wake)]
        own = [row[3] or 10**18 for row in rows if row not in beside]
        # If the memory is full, which counters can be written depends on earlier writes.
        return [row for row in beside if not full or row[0] != KEYS.stats], max(own, default=0)


class Pair:
    """Both sides, which get the same random calls. `trail`: the calls and replies."""

    def __init__(
        self, chance: random.Random, lua: Mapping[str, str] = {}, full: bool = False
    ) -> None:
        verbs = compiled(tuple(lua.items()))
        self.sides = [Side(verbs, True), Side(verbs, False)]
        self.chance, self.micros, self.may_fill, self.full = chance, START, full, False
        self.last = TOKENS[0]  # the token that was granted last
        self.fences = dict.fromkeys(TOKENS, "0")
        self.kind, self.keep = chance.choice("ppw"), chance.choice([0, 5, 5])
        self.limit = chance.choice([1, 1, 1, 2, 3])
        self.long = chance.random() < 0.3  # leases seldom expire
        self.lone = chance.random() < 0.5  # mostly the calls of a single holder
        self.trail: list[Any] = []
        self.words: set[str] = set()

    def both(self, verb: str, **args: Any) -> Any:
        common = {"keep": self.keep, "mark": "-", "token": "", "place": "", **args}
        compact, expanded = (s.run(self.micros, self.full, verb, common) for s in self.sides)
        self.trail.append((self.micros - START, verb, self.full, args, compact[0]))
        difference = f"{verb} {args}: {compact} compact, {expanded} expanded"
        assert expanded == compact, self.failure_text(difference)
        word = compact[0] if isinstance(compact[0], str) else compact[0][0]
        if verb != "inspect":
            self.words.add(word)
        assert not word.startswith("ERROR"), self.failure_text(word)
        return compact[0]

    def failure_text(self, problem: str) -> str:
        return "\n".join([problem, *map(str, self.trail[-12:])])

    def step(self) -> None:
        chance = self.chance
        # The replies may differ if the memory is full after the clock went back.
        wide = [3_000_000, 20_000_000] + [-5_000_000] * (not self.may_fill)
        self.micros += chance.choice([0, 1, 700, 1000, 400_000, 1_500_000] + wide * (not self.long))
        if chance.random() < 0.01:
            self.micros += chance.choice([7 * 60_000_000, 3600_000_000])
        # In the millisecond in which keys expire, they may exist or not.
        self.micros += 1000 * any(side.expires(self.micros) for side in self.sides)
        if self.may_fill and chance.random() < 0.2:
            self.full = not self.full
        often = ["acquire"] * 5 + ["release"] * 4 + ["renew"] * 3
        if not (self.lone and chance.random() < 0.9):
            often += ["clear", "operate", "pop"]
        getattr(self, chance.choice(often))()
        self.both("inspect", max_rows=chance.choice([0, 1, 5]))
        compact, expanded = (side.counted(self.micros, self.may_fill) for side in self.sides)
        assert expanded == compact, self.failure_text(f"{compact} compact, {expanded} expanded")

    def token(self) -> str:
        if self.chance.random() < 0.3:
            return self.last
        return self.chance.choice("ab" if self.lone else TOKENS)

    def mark(self) -> str:
        return self.chance.choice(["-"] * 12 + ["0 2", "1790000000000 0", "0 1"])

    def acquire(self) -> None:
        chance, token = self.chance, self.token()
        permits = chance.choice([1, 1, 1, 2, 4] if self.kind == "p" else [0, 1])
        if self.lone:
            how = chance.choice(["try", "try", "try", "wait", "again", "shadow"])
        else:
            how = chance.choice(["try", "wait", "wait", "again", "shadow"])
        reply = self.both(
            "acquire",
            token=token,
            lease=chance.choice(
                [1, 900, 8000, 8000, 60_000, "inf"] if not self.lone else [900, 8000]
            ),
            permits=min(permits, 1) if self.lone else permits,
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
            ms=chance.choice([1000, 9000, 30_000] + ["inf"] * (not self.lone)),
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
        compact, expanded = (side.pop(self.micros, token) for side in self.sides)
        assert expanded == compact


def walk(seeds: range, steps: int, **more: Any) -> tuple[set[str], float]:
    """Return the words of the replies, and the part of the steps with the name compact."""
    words: set[str] = set()
    compact_steps = 0
    for seed in seeds:
        pair = Pair(random.Random(seed), **more)
        for _ in range(steps):
            pair.step()
        words |= pair.words
        compact_steps += pair.sides[0].compact_steps
        assert not pair.sides[1].compact_steps
    return words, compact_steps / (len(seeds) * steps)


@pytest.mark.parametrize("full", [False, True], ids=["memory free", "memory full at times"])
@pytest.mark.parametrize("part", range(4))
def test_expanding_changes_no_reply_and_no_count(part: int, full: bool) -> None:
    words, compact_steps = walk(range(part * 25, part * 25 + 25), 120, full=full)
    assert words >= {"ok", "wait", "no", "gone", "lost", "large", "kind", "dead"} | (
        {"OOM"} if full else set()
    )
    assert compact_steps > 0.15


DEFECTS = {
    "expanding loses the fence": {"'#fence', string.format('%.0f', fence), '#expiry'": "'#expiry'"},
    "expanding loses the record": {
        "if terms then redis.call('HSET', INFO, holder, record) end": ""
    },
    "expanding loses the kind and the limit": {", '#seen', seen)": ")"},
    "expanding counts one permit": {
        "weight(tonumber(string.match(terms, '^%d+'))) - 1 or 0": "0 or 0"
    },
    "expanding ends the lease": {"string.format('%.0f', ends), holder)": "'1', holder)"},
    "expanding creates keys that do not expire": {
        "  redis.call('PEXPIREAT', INFO, until_then)\n": ""
    },
    "a newcomer expands the name while the memory is full": {
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
    "a name is compacted while it has a tombstone": {"redis.call('ZCARD', WAITERS) == 0 and": ""},
    "a name is compacted while it has waiters": {
        "waiting == 0 and compact ~= '0'": "compact ~= '0'",
        "redis.call('ZCARD', WAITERS) == 0 and": "",
    },
    "a name is compacted while it has holders": {
        "if free and alone and name.card == 0 and": "if free and alone and"
    },
    "a name is compacted while an operator's limit applies": {
        "return not name.override and": "return"
    },
    "a name is compacted while a conflicting limit is stored": {
        "and not redis.call('HGET', INFO, '#clash')": ""
    },
    "a compact name loses the expiry of its keys": {
        "token, lease, permits, terms, name.fence, name.expiry": (
            "token, lease, permits, terms, name.fence, 0"
        )
    },
    "a compact name loses its last fence": {
        "token, lease, permits, terms, name.fence,": "token, lease, permits, terms, 0,"
    },
    "grants are not counted": {
        "if redis.pcall('HINCRBY', stats, minute .. ':g', '1') == 1": "if false"
    },
    "an expired lease is not counted": {
        "if expired ~= '' then redis.pcall('HINCRBY', stats, minute .. ':c', '1') end": ""
    },
    "releases are not counted": {
        "if redis.pcall('HINCRBY', stats, minute .. ':r', by) == n": "if false"
    },
    "the minute is one too late": {
        "minute, stats = string.format('%d', (now - now % 60000) / 60000)": (
            "minute, stats = string.format('%d', (now - now % 60000) / 60000 + 1)"
        )
    },
    "the peak is not stored": {"if top ~= peak then": "if false then"},
    "a release with another fence succeeds": {"held and last == tonumber(fence)": "held"},
    "the release of an expired lease succeeds": {
        "holder == token and us < ends * 1000": "holder == token"
    },
    "a renewal with another fence succeeds": {
        "lease_ends <= name.now or last ~= tonumber(fence)": "lease_ends <= name.now"
    },
    "an older renewal moves the end": {"or tonumber(nth) < latest then": "then"},
    "a lease is adopted twice": {"and latest ~= tonumber(nth) then": "and false then"},
    "a renewal does not move the expiry of the key": {
        "if later then redis.call('PEXPIREAT', LEASES, string.format('%.0f', expiry)) end\nend": (
            "end"
        )
    },
    "min_hold retains no permit": {
        "(not tombstone or tombstone == '0' and hold == '0')": "(not tombstone or tombstone == '0')"
    },
    "no tombstone is written": {
        "(not tombstone or tombstone == '0' and hold == '0')": "(not hold or hold == '0')"
    },
    "a repeated acquire grants another lease": {"if holder == token then": "if false then"},
    "a request of another kind is granted": {
        " or live and string.sub(seen, 1, 1) ~= string.sub(wants, 1, 1)": ""
    },
    "a policy's pause is not applied": {
        "  name.card, name.extra = live and 1": "  mark = nil\n  name.card, name.extra = live and 1"
    },
    "a permanent lease is compact": {
        "compact ~= '0' and lease ~= 'inf' and (": "compact ~= '0' and (",
        "local ends = now + lease\n": "local ends = now + tonumber(lease)\n",
    },
    "a name is compact despite the override of its policy": {
        "lease ~= 'inf' and (not mark or mark == '-')": "lease ~= 'inf'"
    },
    "a heartbeat is treated as a new request": {
        "and how ~= 'again' and string.sub": "and string.sub"
    },
    "several permits count as one": {" and string.sub(terms, 1, 2) == '1 '": ""},
    "a writer weighs as much as a reader": {
        "live and (permits == 0 and EXCLUSIVE or permits) - 1 or 0": "0"
    },
    "the clock is read twice": {"  if not us then\n": "  if true then\n"},
    "inspect returns another end of the lease": {
        "row = live and max_rows > 0 and {holder, whole(name, ends)": (
            "row = live and max_rows > 0 and {holder, whole(name, ends + 1)"
        )
    },
}


#: The seed of the first walk that finds a rare defect, to begin with.
FOUND_BY = {
    "a full memory denies a renewal": 11,
    "a renewal with another fence succeeds": 21,
    "a request of another kind is granted": 55,
    "a name is compact despite the override of its policy": 23,
    "a permanent lease is compact": 24,
    "a writer weighs as much as a reader": 155,
    "several permits count as one": 32,
}


@pytest.mark.parametrize("name", DEFECTS)
def test_equivalence_check_finds_the_defect(name: str) -> None:
    with pytest.raises(AssertionError, match=r"compact,|ERROR"):
        first = FOUND_BY.get(name, 0)
        for seed in (*range(first, 200), *range(first)):
            walk(range(seed, seed + 1), 120, lua=DEFECTS[name], full=bool(seed % 2))


# Errors in the middle of a script: Redis does not roll back


class _Stopping(Store):
    """Fails after `left` writes."""

    left = 10**9

    def call(self, *args: Any) -> Any:
        if args[0] in WRITES:
            if self.left == 0:
                raise ScriptError("stopped")
            self.left -= 1
        return super().call(*args)


class _Interruptible(Side):
    """A server whose scripts can be stopped after some writes."""

    def stopped(self, writes: int, verb: str, args: Mapping[str, Any]) -> bool:
        """Run a script that fails after `writes` writes. Return False if it made fewer."""
        store = _Stopping(self.frozen, self.micros)
        store.left = writes
        argv = argv_of(verb, {**DEFAULTS, **args, "compact": 1})
        try:
            self.verbs.run(store, verb, KEYS.declared, argv)
        except ScriptError as error:
            assert "stopped" in str(error)
        self.frozen = store.freeze()
        return store.left == 0

    micros = START

    def ask(self, verb: str, **args: Any) -> Any:
        return self.run(self.micros, False, verb, {**DEFAULTS, **args})[0]


def one_holder(state: str) -> tuple[_Interruptible, str]:
    side = _Interruptible(compiled(()), True)
    _, fence, _ = side.ask("acquire", token="a", how="try", lease=9000, permits=2, limit=3)
    if state == "released":
        side.ask("release", token="a", fence=fence, how="release")
    assert side.compact_steps
    return side, fence


EXPANDING: list[tuple[str, dict[str, Any]]] = [
    ("acquire", {"token": "b", "how": "try", "limit": 3, "lease": "inf"}),
    ("acquire", {"token": "b", "how": "wait", "limit": 3, "permits": 3, "lease": "inf"}),
    ("renew", {"token": "a", "how": "set", "ms": "inf", "nth": 1}),
    ("release", {"token": "b", "how": "undo", "tombstone": 1}),
    ("operate", {"how": "poke"}),
    ("operate", {"how": "resize", "value": 3}),
]


def expanded_info(side: Side) -> Mapping[str, str]:
    """Return the fields of INFO; none if the name is compact."""
    return dict(next((items for key, _, items, _ in side.frozen if key == KEYS.info), ()))


@pytest.mark.parametrize("state", ["held", "released"])
@pytest.mark.parametrize(("verb", "args"), EXPANDING)
def test_interrupted_expansion_loses_nothing(state: str, verb: str, args: Any) -> None:
    """The next script completes the expansion."""
    if verb == "renew" and state != "held":
        return  # the lease is lost, so the script expands nothing
    halves = 0
    for writes in range(1, 20):
        side, fence = one_holder(state)
        shown = side.ask("inspect")
        assert side.stopped(writes, verb, {"fence": fence, **args} if verb == "renew" else args)
        if expanded_info(side) and "#lone" not in expanded_info(side):
            break  # the expansion is complete; the other writes of the script follow
        halves += bool(expanded_info(side))
        assert shown == side.ask("inspect")
        assert ["ok"] == side.ask("operate", how="poke")
        assert expanded_info(side) and "#lone" not in expanded_info(side)
        assert shown == side.ask("inspect")
        assert all(expiry for *_, expiry in side.frozen)
        again = side.ask("renew", token="a", fence=fence, how="confirm")
        assert (["ok", "9000"] if state == "held" else ["lost"]) == again
    assert halves >= (6 if state == "held" else 3)


@pytest.mark.parametrize("writes", range(1, 4))
def test_interrupted_compaction_keeps_the_new_holder(writes: int) -> None:
    side, fence = one_holder("held")
    side.ask("operate", how="poke")
    side.ask("release", token="a", fence=fence, how="release")
    taking = {"token": "b", "how": "try", "limit": 1, "lease": 9000}
    assert side.stopped(writes, "acquire", taking)
    assert (writes < 3) == bool(expanded_info(side))
    assert "full" == side.ask("acquire", token="c", how="try", limit=1)[1]
    word, given, left = side.ask("acquire", token="b", how="try", limit=1)
    assert ("ok", "9000") == (word, left)
    assert ["ok"] == side.ask("release", token="b", fence=given, how="release")
    assert int(fence) < int(given) < int(side.ask("acquire", token="d", how="try", limit=1)[1])
    assert all(expiry for *_, expiry in side.frozen)


def test_name_with_one_holder_stays_compact() -> None:
    side, fence = one_holder("held")
    for verb, args in (
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
        side.ask(verb, **args)
        assert not expanded_info(side), (verb, args)


# The millisecond in which a lease or a wait ends

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


@pytest.mark.parametrize("compact", [True, False], ids=["compact", "expanded"])
@pytest.mark.parametrize(("verb", "args", "before", "then"), AT_ITS_END)
def test_lease_expires_in_the_millisecond_of_its_end(
    verb: str, args: dict[str, Any], before: list[Any], then: list[Any], compact: bool
) -> None:
    for ms, expected in ((8999, before), (9000, then)):
        side = _Interruptible(compiled(()), compact)
        _, fence, _ = side.ask("acquire", token="a", how="try", lease=9000)
        side.micros += ms * 1000
        reply = side.ask(verb, **{"token": "a", "fence": fence, **args})
        found = reply[7:8] if verb == "inspect" else [word for word in reply if word != fence]
        assert expected == found[: len(expected)]


@pytest.mark.parametrize(("ms", "retained"), [(1999, 1), (2000, 0)])
@pytest.mark.parametrize("compact", [True, False], ids=["compact", "expanded"])
def test_min_hold_ends_in_the_millisecond_of_its_end(compact: bool, ms: int, retained: int) -> None:
    side = _Interruptible(compiled(()), compact)
    _, fence, _ = side.ask("acquire", token="a", how="try", lease=9000)
    side.micros += ms * 1000
    assert ["ok"] == side.ask("release", token="a", fence=fence, how="release", hold=2000)
    assert retained == side.ask("inspect")[7]


@pytest.mark.parametrize(("early", "wins"), [(1, "b"), (0, "c")])
def test_waiter_is_dead_in_the_millisecond_of_its_deadline(early: int, wins: str) -> None:
    side = _Interruptible(compiled(()), True)
    _, fence, _ = side.ask("acquire", token="a", how="try", lease=60_000)
    told = int(side.ask("acquire", token="b", how="wait")[2])
    side.micros += 1000
    side.ask("acquire", token="c", how="wait")
    side.micros = START + (told + scripts.CONSTANTS["PATIENCE"] - early) * 1000
    side.ask("release", token="a", fence=fence, how="release")
    assert wins == side.ask("inspect")[9][0]


@pytest.mark.parametrize(("early", "word"), [(1, "ok"), (0, "no")])
def test_head_that_waited_for_a_heartbeat_is_not_overtaken(early: int, word: str) -> None:
    side = _Interruptible(compiled(()), True)
    side.ask("acquire", token="a", how="try", lease=60_000, limit=2)
    side.ask("acquire", token="b", how="wait", permits=2, limit=2)
    side.micros += (scripts.CONSTANTS["HEARTBEAT"] - early) * 1000
    assert word == side.ask("acquire", token="c", how="try", limit=2, fair=0)[0]


@pytest.mark.parametrize("watched", ["a lease", "a new holder that does not wake up"])
def test_head_asks_again_when_a_permit_becomes_free(watched: str) -> None:
    side = _Interruptible(compiled(()), True)
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
def test_waiter_asks_again_when_the_event_loop_ahead_is_dead(early: int) -> None:
    side = _Interruptible(compiled(()), True)
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
