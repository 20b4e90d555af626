"""Scripts reply and count in the same way, whether a name is in compact or in expanded state.

The same clients call the same scripts at the same times on two servers. Only on the first server
may a name be compact. Every reply, message, and counter must be equal. Each server is the Redis in
Python of `tests/model`, whose clock the tests set. `test_model` compares it with a real server.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from django_redis_sync.protocol.keys import keys_of
from tests.model.redis import WRITES, ScriptError, Store
from tests.support.workload import START, Call, Kind, ModelServer, Recording, Workload, call

pytestmark = pytest.mark.promise(31)

KEYS = keys_of("equal", "n")
OVERRIDES = ("-",) * 12 + ("0 2", "1790000000000 0", "0 1")


class Twins:
    """Two servers that get the same calls. `limits`: True if both are out of memory at times."""

    def __init__(self, seed: int, lua: Mapping[str, str] = {}, limits: bool = False) -> None:
        self.sides = ModelServer(lua), ModelServer(lua, compact=0)
        self.chance, self.limits, self.micros = random.Random(seed), limits, START
        self.words, self.trail = set[str](), list[Any]()
        self.steps = self.compact = 0

    def run(self, one: Call) -> Any:
        self.micros += 1000 * any(expiry == self.micros // 1000 for expiry in self.expiries())
        if self.chance.random() < 0.005:  # advance the clock, so that scripts add up old counters
            self.micros += self.chance.choice([7, 60]) * 60_000_000
        if not self.limits and self.chance.random() < 0.02:
            self.micros -= 5_000_000
        full = self.limits and self.chance.random() < 0.3
        for side in self.sides:
            side.micros, side.full = self.micros, full
        reply = self.both(one)
        if one.verb != "pop":
            self.words |= {reply[0]} if one.verb != "inspect" else set()
            rows = self.chance.choice([0, 1, 5])
            self.both(call("inspect", KEYS, max_rows=rows))
        counted = [self.counted(side) for side in self.sides]
        self.trail.append(counted[0])
        assert counted[0] == counted[1], f"counted differently: {self.shown()}"
        compact, expanded = (side.contents(KEYS, KEYS.leases) for side in self.sides)
        self.steps, self.compact = self.steps + 1, self.compact + ("#" in compact)
        assert "#" not in expanded
        return reply

    def both(self, one: Call) -> Any:
        compact, expanded = (side.run(one) for side in self.sides)
        self.trail.append((self.micros - START, self.sides[0].full, one, compact, expanded))
        assert compact == expanded, f"replied differently: {self.shown()}"
        assert compact != ["ERROR"], self.shown()
        return compact

    def shown(self) -> str:
        return "\n".join(map(str, self.trail[-20:]))

    def expiries(self) -> list[Any]:
        return [e for side in self.sides for rows in side.names.values() for *_, e in rows]

    def counted(self, side: ModelServer) -> Any:
        """Return the data that must be equal on both servers: the published messages, the counters,
        the wake lists, and the latest expiry of the other keys of the name."""
        (frozen,) = side.names.values()
        rows = [row for row in Store(frozen, self.micros).freeze() if row[0] != KEYS.declared[1]]
        beside = [row for row in rows if row[0].startswith((KEYS.stats, KEYS.wake))]
        own = [row[3] or 10**18 for row in rows if row not in beside]
        # Don't compare counters if the memory is full at times. While it is full, a script can
        # count only after certain other writes, which differ between compact and expanded state.
        beside = [row for row in beside if not (self.limits and row[0] == KEYS.stats)]
        return side.published, beside, max(own, default=0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sides[0], name)

    def note_expiry(self, *_: Any) -> None:
        """Do nothing. `Workload` calls this to write journals, which this test does not need."""


def walk(seeds: range, calls: int, **options: Any) -> tuple[set[str], float]:
    """Return two values: the set of the first words of all replies, and the fraction of the steps
    after which the name was compact."""
    words, compact = set[str](), 0.0
    for seed in seeds:
        chance = random.Random(seed)
        keys = KEYS._replace(keep=chance.choice([0, 5, 5]))
        limit, kind = chance.choice([(1, "p"), (1, "p"), (2, "p"), (3, "p"), (3, "w")])
        permits = (1, 1, 1, 2, 4) if kind == "p" else (0, 1)
        calm, overrides = chance.random() < 0.6, chance.choice([OVERRIDES, OVERRIDES[:1]])
        clients = chance.choice([1, 2] if calm else [2, 5])
        names = [Kind(keys, clients, limit, permits, kind, overrides=overrides, calm=calm)]
        twins = Twins(seed, **options)
        Workload(twins, seed, names, faults=0.1 if calm else 1).run(calls)
        words |= twins.words
        compact += twins.compact / twins.steps / len(seeds)
    return words, compact


@pytest.mark.parametrize("limits", [False, True], ids=["memory free", "memory full at times"])
@pytest.mark.parametrize(
    "seeds",
    [range(10), pytest.param(range(10, 100), marks=pytest.mark.deep)],
    ids=["ten walks", "ninety walks"],
)
def test_scripts_reply_and_count_in_the_same_way_in_compact_and_expanded_state(
    seeds: range, limits: bool
) -> None:
    words, compact = walk(seeds, 120, limits=limits)
    assert words >= {"ok", "wait", "no", "gone", "lost", "large", "kind", "dead"}
    assert ("OOM" in words) == limits
    assert compact > 0.1, "the name was seldom compact"


_IDLE = "call('HSET', LEASES, '#', idle)"


@pytest.mark.tools
@pytest.mark.parametrize(
    ("text", "instead", "found"),
    [
        ("if holder == token then", "if false then", "replied differently"),
        ("{holder, whole(name, ends)", "{holder, whole(name, ends + 1)", "replied differently"),
        (f"redis.p{_IDLE}", f"redis.{_IDLE}", "replied differently"),
        ("minute .. ':g', '1') == 1", "minute .. ':s', '1') == 1", "counted differently"),
        ("  redis.call('PEXPIREAT', INFO, until_then)\n", "", "counted differently"),
        ("  if not us then\n", "  if true then\n", "readings of the clock"),
    ],
    ids=["reply", "inspection", "full memory", "counter", "expiry", "clock"],
)
def test_equivalence_check_finds_each_inserted_defect(text: str, instead: str, found: str) -> None:
    with pytest.raises(AssertionError, match=found):
        walk(range(40), 120, lua={text: instead}, limits=instead.startswith("redis.call"))


# Errors in the middle of a script. Redis keeps what the script wrote before the error.


class Stopping(Recording):
    """A store that raises an error after `left` writes."""

    left = 0

    def call(self, *args: Any) -> Any:
        if args[0] in WRITES:
            if self.left == 0:
                raise ScriptError("stopped")
            self.left -= 1
        return super().call(*args)


class Name(ModelServer):
    """A server with one name. The clock of the server stands still."""

    def ask(self, verb: str, token: str = "", **said: Any) -> Any:
        return self.run(call(verb, KEYS, token, **said))

    def stop(self, writes: int, verb: str, **said: Any) -> str:
        """Run the script `verb` so that it fails after `writes` writes. Return its error. `said`:
        the arguments of the script."""
        self.store = type("Stopped", (Stopping,), {"left": writes})
        self.ask(verb, **said)
        self.store = Recording
        return self.entries[-1].error

    @property
    def info(self) -> Mapping[str, str]:
        """The fields of the info key; none if the name is compact."""
        return self.contents(KEYS, KEYS.info)

    def expires(self) -> bool:
        return all(expiry for rows in self.names.values() for *_, expiry in rows)


def one_holder(state: str = "held", **said: Any) -> tuple[Name, str]:
    name = Name(**said)
    _, fence, _ = name.ask("acquire", "a", how="try", lease=9000, permits=2, limit=3)
    if state == "released":
        name.ask("release", "a", fence=fence, how="release")
    return name, fence


EXPANDING: list[tuple[str, dict[str, Any]]] = [
    ("acquire", {"token": "b", "how": "try", "limit": 3, "lease": "inf"}),
    ("acquire", {"token": "b", "how": "wait", "limit": 3, "permits": 3, "lease": "inf"}),
    ("renew", {"token": "a", "how": "set", "ms": "inf", "nth": 1}),
    ("release", {"token": "b", "how": "undo", "tombstone": 1}),
    ("operate", {"how": "resize", "value": 3}),
]


@pytest.mark.parametrize("state", ["held", "released"])
@pytest.mark.parametrize(("verb", "args"), EXPANDING)
def test_interrupted_expansion_loses_nothing(state: str, verb: str, args: Any) -> None:
    """A script fails while it expands a name. The next script completes the expansion."""
    halves = 0
    for writes in range(1, 20 if (verb, state) != ("renew", "released") else 1):
        name, fence = one_holder(state)
        shown = name.ask("inspect")
        args = {"fence": fence, **args} if verb == "renew" else args
        assert "stopped" in name.stop(writes, verb, **args)
        if name.info and "#lone" not in name.info:
            break  # the script failed only after the expansion was complete
        halves += bool(name.info)
        assert shown == name.ask("inspect")
        assert ["ok"] == name.ask("operate", how="poke")
        assert name.info and "#lone" not in name.info
        assert shown == name.ask("inspect")
        assert name.expires(), "a key does not expire"
        again = name.ask("renew", "a", fence=fence, how="confirm")
        assert (["ok", "9000"] if state == "held" else ["lost"]) == again
    assert halves >= {"held": 6, "released": 3}[state] or (verb, state) == ("renew", "released")


@pytest.mark.parametrize("writes", range(1, 4))
def test_interrupted_compaction_keeps_the_new_holder(writes: int) -> None:
    name, fence = one_holder()
    name.ask("operate", how="poke")
    name.ask("release", "a", fence=fence, how="release")
    asking = {"how": "try", "limit": 1}
    name.stop(writes, "acquire", token="b", lease=9000, **asking)
    assert (writes < 3) == bool(name.info), "the compaction was not interrupted there"
    assert "full" == name.ask("acquire", "c", **asking)[1]
    word, given, left = name.ask("acquire", "b", **asking)
    assert ("ok", "9000") == (word, left)
    assert ["ok"] == name.ask("release", "b", fence=given, how="release")
    assert int(fence) < int(given) < int(name.ask("acquire", "d", **asking)[1])
    assert name.expires(), "a key does not expire"


def test_name_stays_compact_while_it_has_at_most_one_lease() -> None:
    name, fence = one_holder()
    for verb, token, args in (
        ("acquire", "a", {"how": "again"}),
        ("acquire", "b", {"how": "try", "limit": 3, "permits": 2}),
        ("acquire", "b", {"how": "wait", "limit": 3, "permits": 4}),
        ("acquire", "b", {"how": "wait", "limit": 3, "permits": 2, "max_waiters": 0}),
        ("renew", "a", {"fence": fence, "how": "set", "ms": 60_000, "nth": 1}),
        ("renew", "a", {"fence": fence, "how": "confirm"}),
        ("renew", "b", {"fence": fence, "how": "set", "ms": 1}),
        ("release", "b", {"fence": fence, "how": "release"}),
        ("release", "a", {"how": "giveup"}),
        ("release", "a", {"how": "withdraw"}),
        ("clear", "b", {}),
        ("inspect", "", {}),
        ("release", "a", {"fence": fence, "how": "release"}),
        ("acquire", "b", {"how": "try", "limit": 3, "permits": 2}),
    ):
        name.ask(verb, token, **args)
        assert not name.info, (verb, args)
