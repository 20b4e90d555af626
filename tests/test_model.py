"""The real scripts and plans, in every order of events of a small world (see tests/model)."""

from __future__ import annotations

import gc
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.conf import settings as django_settings

from django_redis_sync.engine.wire import answered
from django_redis_sync.protocol import scripts
from django_redis_sync.protocol.keys import Keys, keys_of

from .model import cases
from .model.check import Violation, check
from .model.clients import protocol
from .model.defects import DEFECTS, Defect
from .model.redis import Scripts, Store

#: Liveness is tried from every n-th state; runs that meet are not walked twice.
SAMPLE = 20


def constants_of(case: cases.Case) -> dict[str, int]:
    return cases.FINE if case.micros != cases.SECOND else {}


def worlds() -> Iterator[Any]:
    """Those with many states are for `make deep`; their shorter ones are always explored, but for
    the largest."""
    for case in cases.CASES:
        deep = [pytest.mark.deep] * bool(case.short or case.large)
        yield pytest.param(case, marks=deep, id=case.setting.name)
        if case.short:
            yield pytest.param(case.shorter, id=case.shorter.setting.name)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """States are many and make no circles: looking for some would be a third of the work."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("case", list(worlds()))
def test_nothing_that_can_happen_breaks_the_protocol(case: cases.Case) -> None:
    found = check(protocol(case.micros, **constants_of(case)), case.setting, SAMPLE)
    print(f"{found.states} states, {found.fair} fair runs of up to {found.longest} ticks")
    assert found.whole
    assert found.states >= case.floor
    assert found.fair >= case.floor // SAMPLE


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_the_checker_finds_it_when(defect: Defect) -> None:
    broken = protocol(lua=defect.lua, python=defect.python)
    with pytest.raises(Violation) as caught:
        check(broken, defect.setting, SAMPLE, most=60_000)
    print(caught.value)
    assert re.search(defect.found, caught.value.what)


def test_a_defect_that_cannot_be_planted_any_more_is_an_error() -> None:
    with pytest.raises(LookupError):
        protocol(lua={"no such line": ""})
    with pytest.raises(LookupError):
        protocol(python={"no such line": ""})


def test_a_counterexample_tells_who_did_what_and_who_believes_that_they_hold() -> None:
    defect = DEFECTS[0]
    with pytest.raises(Violation) as caught:
        check(protocol(lua=defect.lua), defect.setting)
    lines = str(caught.value).splitlines()
    assert any(re.search(r"a runs acquire \(a1 .*\(ok ", line) for line in lines)
    assert any(re.search(r"\| a1 until \d", line) for line in lines)


# The model's Redis and a real one, side by side


class Twins:
    """The same script with the same arguments and the same clock on both."""

    def __init__(self, raw: redis.Redis, keys: Keys) -> None:
        self.raw, self.keys = raw, keys
        seconds, _ = raw.time()
        self.start = seconds * 1_000_000
        self.micros = self.start + 86_400_000_000  # nothing expires meanwhile
        sources = {verb: self._timed(scripts.compose(verb)) for verb in scripts.NAME_SCRIPTS}
        self.ours, self.theirs = Scripts(sources), sources
        self.frozen: Any = ()

    @staticmethod
    def _timed(source: str) -> str:
        """The last argument is the time."""
        asked, given = "redis.call('TIME')", "{math.floor(micros / 1000000), micros % 1000000}"
        assert asked in source
        return "local micros = table.remove(ARGV)\n" + source.replace(asked, given)

    def run(self, verb: str, *argv: Any) -> Any:
        args = [str(arg) for arg in (*argv, self.micros)]
        keys = self.keys.declared
        theirs = answered(self.raw.eval(self.theirs[verb], len(keys), *keys, *args))
        store = Store(self.frozen, self.start)
        ours = self.ours.run(store, verb, keys, args)
        self.frozen = store.freeze()
        assert ours == theirs, (verb, args)
        self.compare()
        return ours

    def pop(self, token: str) -> None:
        store = Store(self.frozen, self.start)
        ours = store.call("LPOP", self.keys.wake + token)
        self.frozen = store.freeze()
        assert (ours or None) == _plain(self.raw.lpop(self.keys.wake + token))
        self.compare()

    def compare(self) -> None:
        names = [f"{self.keys.leases.removesuffix('leases')}*"]
        theirs = {key.decode(): None for key in self.raw.scan_iter(match=_literal(names[0]))}
        assert sorted(theirs) == [key for key, *_ in self.frozen]
        seconds, micros = self.raw.time()
        now = seconds * 1000 + micros // 1000
        for key, kind, items, expiry in self.frozen:
            assert items == self._contents(key, kind)
            left = self.raw.pttl(key)
            assert left == -1 if expiry is None else abs(now + left - expiry) < 1000

    def _contents(self, key: str, kind: str) -> Any:
        if kind == "l":
            return tuple(_plain(self.raw.lrange(key, 0, -1)))
        if kind == "h":
            return tuple(
                sorted((k.decode(), v.decode("latin-1")) for k, v in self.raw.hgetall(key).items())
            )
        return tuple(
            sorted((m.decode(), s) for m, s in self.raw.zrange(key, 0, -1, withscores=True))
        )


def _plain(reply: Any) -> Any:
    if isinstance(reply, bytes):
        return reply.decode()
    return [_plain(item) for item in reply] if isinstance(reply, list) else reply


def _literal(pattern: str) -> str:
    return re.sub(r"[\[\]?\\]", r"\\\g<0>", pattern)


@pytest.mark.parametrize("seed", range(4))
def test_the_models_redis_answers_and_stores_as_a_real_one(raw: redis.Redis, seed: int) -> None:
    chance = random.Random(seed)
    keep = chance.choice([0, 5])
    twins = Twins(raw, keys_of(django_settings.PREFIX, f"model {seed}", None, keep))
    fences = dict.fromkeys("abcdef", "0")
    words = set()
    for _ in range(300):
        token = chance.choice("abcdef")
        twins.micros += chance.choice([0, 1, 700, 400_000, 1_500_000, 3_000_000, -5_000_000])
        mark = chance.choice(["-", "-", "0 2", "1790000000000 0"])
        match chance.choice(
            ["acquire"] * 6 + ["release"] * 3 + ["renew", "clear", "operate", "pop"]
        ):
            case "acquire":
                lease, permits = (
                    chance.choice([1, 900, 8000, "inf"]),
                    chance.choice([0, 1, 1, 2, 4]),
                )
                how, channel = chance.choice(["try", "wait", "again"]), chance.choice(["-", "ch"])
                fair, kind = chance.choice([0, 1]), chance.choice("pppw")
                share, compact = chance.choice([("", 1), ("", 1), ("/2/a ", 0), ("/1/b%20c ", 0)])
                terms = f"{permits} 3 {channel} {share}who it is"
                argv = (token, lease, how, f"{kind} 3", terms, keep, mark, 4, fair, compact)
                reply = twins.run("acquire", *argv)
                if reply[0] == "ok":
                    fences[token] = reply[1]
            case "release":
                how = chance.choice(["release", "release", "undo", "giveup", "share"])
                tombstone, hold = chance.choice([0, 1]), chance.choice([0, 0, 2000])
                reply = twins.run("release", token, fences[token], keep, how, tombstone, hold, mark)
            case "renew":
                how, ms = chance.choice(["set", "confirm"]), chance.choice([1000, 9000, "inf"])
                nth = chance.choice([0, 1, 2])
                reply = twins.run("renew", token, fences[token], how, ms, nth, 0, keep)
            case "clear":
                reply = twins.run("clear", token, mark, keep)
            case "operate":
                how = chance.choice(["pause", "resume", "resume", "resize", "reset", "poke"])
                reply = twins.run("operate", "", how, 2, mark, keep)
            case "pop":
                twins.pop(token)
                continue
        words.add(reply[0])
        twins.run("inspect", "", 5, keep)
    assert words >= {"ok", "wait", "gone", "lost"}
