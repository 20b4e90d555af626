"""Two versions of the scripts on one server: those of 0.1, which know no short state, and ours.

A deploy runs both for a while, and so does its rollback. Old scripts stop at a packed name before
they write anything, and new ones at a format that they do not know.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.conf import settings

from django_redis_sync.protocol import scripts
from django_redis_sync.protocol.keys import keys_of
from django_redis_sync.protocol.sources import keys_of as parts_of
from tests.support.packed import all_keys
from tests.support.workload import DEFAULTS, call, words
from tests.test_protocol_scripts import Name

OLD = {
    path.stem: path.read_text("utf-8") for path in Path(__file__).parent.glob("scripts_of_0_1/*")
}


class OldName(Name):
    """The name as version 0.1 uses it."""

    def run(self, verb: str, token: str = "", **said: Any) -> list[Any]:
        keys, names = all_keys(self.keys, token), scripts.header(OLD[verb], "ARGV")
        said = {**DEFAULTS, **said, "token": token}
        reply = self.raw.eval(OLD[verb], len(keys), *keys, *(str(said[name]) for name in names))
        return [word.decode() if isinstance(word, bytes) else word for word in reply]


class NewName(Name):
    """The name as this version uses it, packed when it can be."""

    short = 1

    def run(self, verb: str, token: str = "", **said: Any) -> list[Any]:
        if verb == "acquire":
            said = {"short": self.short, **said}
        return super().run(verb, token, **said)


class ReadingName(NewName):
    """With SHORT_STATE off: packed names are read, and none is packed."""

    short = 0


@pytest.fixture
def new(raw: redis.Redis) -> NewName:
    return NewName(raw)


@pytest.fixture
def old(raw: redis.Redis) -> OldName:
    return OldName(raw)


ASKS: list[tuple[str, dict[str, Any]]] = [
    *[
        ("acquire", {"how": how, "limit": limit})
        for how in ("try", "wait", "again")
        for limit in (1, 3)
    ],
    *[("release", {"how": how, "bury": 1}) for how in ("release", "undo", "giveup", "share")],
    *[("renew", {"how": how, "ms": 1000, "nth": 1}) for how in ("set", "confirm", "adopt")],
    *[("operate", {"how": how, "value": 3}) for how in ("pause", "resume", "resize", "reset")],
    ("clear", {}),
    ("inspect", {}),
]


def everything(raw: redis.Redis) -> dict[bytes, Any]:
    return {key: raw.dump(key) for key in raw.keys(f"{settings.PREFIX}:{{x}}:*")}


@pytest.mark.parametrize("state", ["held", "given back"])
@pytest.mark.parametrize("token", ["a", "b"], ids=["its holder", "another"])
def test_old_scripts_stop_at_a_packed_name_before_they_write(
    new: NewName, old: OldName, state: str, token: str
) -> None:
    """A handle of the new ones that an old worker adopts is neither lost nor taken over by it."""
    fence = new.hold("a", keep=5)
    if state != "held":
        new.release("a", fence, keep=5)
    assert new.packed
    before = everything(new.raw)
    for verb, said in ASKS:
        said = {"fence": fence, **said} if verb in ("release", "renew") else said
        said = {"keep": 5, **said} if verb != "inspect" else said
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            old.run(verb, "" if verb in ("operate", "inspect") else token, **said)
    assert before == everything(new.raw)
    assert (state == "held") == (new.release("a", fence) == "ok")


@pytest.mark.parametrize("state", ["held", "given back"])
def test_scripts_stop_at_a_format_that_they_do_not_know(new: NewName, state: str) -> None:
    fence = new.hold("a", keep=5)
    if state != "held":
        new.release("a", fence, keep=5)
    assert new.packed
    later = new.packed._replace(format=scripts.CONSTANTS["FORMAT"] + 1).pack() + b"and more"
    new.raw.hset(new.keys.leases, "#", later)
    before = everything(new.raw)
    for token in "ab":
        for verb, said in ASKS:
            said = {"fence": fence, **said} if verb in ("release", "renew") else said
            with pytest.raises(redis.ResponseError, match="format of another version: 2"):
                new.run(verb, "" if verb in ("operate", "inspect") else token, **said)
    assert before == everything(new.raw)


def test_after_a_rollback_nothing_is_granted_that_is_held_and_then_all_is_well(
    new: NewName, old: OldName
) -> None:
    fence = int(new.hold("a", lease=2000))
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        old.ask("b", "try")
    # Nobody has to clean up: what is packed is gone some seconds after its lease.
    assert 0 < new.raw.pttl(new.keys.leases) <= 2000 + 2 * scripts.CONSTANTS["GRACE"]
    assert [new.keys.leases.encode()] == new.raw.keys(f"{settings.PREFIX}*")
    new.raw.pexpire(new.keys.leases, 1)
    while new.raw.exists(new.keys.leases):
        pass
    assert fence < int(old.hold("b"))


def test_what_old_scripts_granted_is_seen_by_new_ones_and_never_packed_over(
    new: NewName, old: OldName
) -> None:
    fence = old.hold("a")
    assert ["no", "full"] == new.ask("b", "try")[:2]
    assert "wait" == new.ask("c")[0]
    assert "ok" == new.run("renew", "a", fence=fence, how="adopt", ms=9000, nth=1)[0]
    assert "ok" == old.release("a", fence)
    assert (["c"], None) == (new.holders(), new.packed)


def test_a_permanent_lease_is_never_packed(new: NewName, old: OldName) -> None:
    """Packed, it would keep old scripts out for ever."""
    fence = new.hold("a", lease=5000)
    assert new.packed
    assert "ok" == new.run("renew", "a", fence=fence, how="set", ms="inf", nth=1)[0]
    assert new.packed is None
    assert ["no", "full"] == old.ask("b", "try")[:2]


class Storm:
    """Workers of both versions on one name, one script after another, as a server runs them.

    What they believe is compared with nothing but the limit: `most` is the highest number of
    permits that were believed in at once. `pace`: milliseconds between two steps of this storm.
    """

    pace = 2.0

    def __init__(self, names: list[Name], limit: int, seed: int) -> None:
        self.names, self.limit, self.chance = names, limit, random.Random(seed)
        self.held: dict[str, tuple[str, float]] = {}  # token -> fence, end in server ms
        self.waiting: list[str] = []
        self.count = self.errors = self.granted = self.most = 0

    def step(self) -> None:
        chance = self.chance
        try:
            getattr(
                self,
                chance.choice(
                    ["take"] * 4 + ["ask"] * 3 + ["give"] * 3 + ["leave", "renew", "operate"]
                ),
            )()
        except redis.ResponseError as error:
            assert "WRONGTYPE" in str(error)
            self.errors += 1
        now = self.names[0].now()
        self.held = {token: (f, end) for token, (f, end) in self.held.items() if end > now}
        self.most = max(self.most, len(self.held))
        assert len(self.held) <= self.limit

    def worker(self) -> Name:
        return self.chance.choice(self.names)

    def _ask(self, token: str, how: str) -> None:
        before = self.names[0].now()
        lease = int(self.chance.choice([1, 2.5, 10]) * self.pace)
        reply = self.worker().ask(token, how, lease=lease, limit=self.limit)
        if reply[0] == "ok":
            self.granted += 1
            self.held[token] = reply[1], before + int(reply[2])
        self.waiting = [t for t in self.waiting if t != token] + [token] * (reply[0] == "wait")

    def take(self) -> None:
        self.count += 1
        may_wait = len(self.waiting) < 2 and self.chance.random() < 0.2
        self._ask(f"t{self.count}", "wait" if may_wait else "try")

    def ask(self) -> None:
        if self.waiting:
            self._ask(self.waiting[0], "again")

    def give(self) -> None:
        if self.held:
            token = self.chance.choice(sorted(self.held))
            fence, _ = self.held[token]
            self.worker().release(token, fence)  # by another worker: a handle
            del self.held[token]

    def leave(self) -> None:
        if self.waiting:
            token = self.waiting.pop()
            self.worker().run("release", token, how="undo", bury=0)

    def renew(self) -> None:
        if self.held:
            token, before = self.chance.choice(sorted(self.held)), self.names[0].now()
            fence, _ = self.held.pop(token)  # believed in only when the answer came
            self.count += 1
            how = self.chance.choice(["set", "adopt"])
            said = {
                "fence": fence,
                "how": how,
                "ms": int(10 * self.pace),
                "nth": self.count,
                "known": self.count,
            }
            reply = self.worker().run("renew", token, **said)
            if reply[0] == "ok":
                self.held[token] = fence, before + int(reply[1])

    def operate(self) -> None:
        if self.chance.random() < 0.1:
            self.worker().operate(self.chance.choice(["resume", "reset"]))


@pytest.fixture
def storm(raw: redis.Redis) -> Iterator[Any]:
    def run(kinds: list[type[Name]], seed: int, limit: int) -> list[Storm]:
        storms = [
            Storm([kind(raw, f"storm {seed} {n}") for kind in kinds], limit, 100 * seed + n)
            for n in range(10)
        ]
        for _ in range(400):
            start = time.monotonic()
            for one in storms:
                one.step()
            # On a busy machine leases last longer, or no two of them would meet.
            Storm.pace = max(2.0, 1000 * (time.monotonic() - start))
        return storms

    return run


def most(storms: list[Storm]) -> int:
    return max(one.most for one in storms)


def total(storms: list[Storm], what: str) -> int:
    return sum(getattr(one, what) for one in storms)


@pytest.mark.parametrize(("seed", "limit"), [(1, 1), (2, 1), (3, 2), (4, 3)])
def test_old_and_new_workers_never_hold_more_than_the_limit(
    storm: Any, seed: int, limit: int
) -> None:
    ran = storm([OldName, NewName, ReadingName], seed, limit)
    assert limit == most(ran)
    assert total(ran, "granted") > 100
    assert total(ran, "errors") > 20  # old workers, at names that new ones packed


class Unseen(NewName):
    """A defect: what is packed lies where no old script looks."""

    def run(self, verb: str, token: str = "", **said: Any) -> list[Any]:
        one = call(verb, self.keys, token, **{"short": 1, **said} if verb == "acquire" else said)
        # Of the same length, or the other keys would be others as well.
        keys = [key.replace("}:leases", "}:unseen") for key in one.keys]
        source = scripts.script(verb).source
        reply = words(self.raw.eval(source, len(keys), *keys, *map(str, one.argv)))
        return [word.decode() if isinstance(word, bytes) else word for word in reply]


def test_the_storm_sees_when_old_scripts_do_not_see_what_is_packed(storm: Any) -> None:
    with pytest.raises(AssertionError, match="len"):
        storm([OldName, Unseen], 9, 1)


@pytest.mark.parametrize(("seed", "limit"), [(5, 1), (6, 2)])
def test_with_the_short_state_switched_off_old_workers_see_no_errors(
    storm: Any, seed: int, limit: int
) -> None:
    """The first step of a deploy, and the last of a rollback."""
    ran = storm([OldName, ReadingName], seed, limit)
    assert (limit, 0) == (most(ran), total(ran, "errors"))
    assert total(ran, "granted") > 100


@pytest.mark.parametrize(("seed", "limit"), [(7, 1), (8, 2)])
def test_while_it_is_switched_on_workers_that_only_read_see_no_errors(
    storm: Any, seed: int, limit: int
) -> None:
    """The second step of a deploy."""
    ran = storm([NewName, ReadingName], seed, limit)
    assert (limit, 0) == (most(ran), total(ran, "errors"))
    assert total(ran, "granted") > 100


def test_the_names_of_both_versions_are_the_same() -> None:
    keys = all_keys(keys_of(settings.PREFIX, "x"), "t")
    for verb, source in OLD.items():
        assert len(keys) == len(scripts.header(source, "KEYS"))
        assert set(scripts.header(source, "KEYS")) - {"stats"} == set(parts_of(verb))
