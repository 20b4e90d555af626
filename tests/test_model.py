"""The scripts and plans of the package, in every order of events of a small world (tests/model)."""

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

#: Liveness is checked from every N-th state.
SAMPLE = 20


def constants_of(case: cases.Case) -> dict[str, int]:
    return cases.FINE if case.micros != cases.SECOND else {}


def worlds() -> Iterator[Any]:
    """Yield the cases of the model. Cases with many states run only in `make deep`; the usual tests
    run their shorter versions instead, if there are any."""
    for case in cases.CASES:
        deep = [pytest.mark.deep] * bool(case.short or case.large)
        yield pytest.param(case, marks=deep, id=case.setting.name)
        if case.short:
            yield pytest.param(case.shorter, id=case.shorter.setting.name)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Turn the garbage collector off: it would take a third of the time and find no cycles."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("case", list(worlds()))
def test_no_order_of_events_breaks_the_protocol(case: cases.Case) -> None:
    found = check(protocol(case.micros, **constants_of(case)), case.setting, SAMPLE)
    print(f"{found.states} states, {found.fair} fair runs of up to {found.longest} ticks")
    assert found.whole
    assert found.states >= case.floor
    assert found.fair >= case.floor // SAMPLE


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_checker_finds_the_defect(defect: Defect) -> None:
    broken = protocol(lua=defect.lua, python=defect.python)
    with pytest.raises(Violation) as caught:
        check(broken, defect.setting, SAMPLE, most=60_000)
    print(caught.value)
    assert re.search(defect.found, caught.value.what)


def test_missing_text_of_a_defect_raises_lookup_error() -> None:
    with pytest.raises(LookupError):
        protocol(lua={"no such line": ""})
    with pytest.raises(LookupError):
        protocol(python={"no such line": ""})


def test_violation_shows_the_steps_and_the_local_expiries() -> None:
    defect = DEFECTS[0]
    with pytest.raises(Violation) as caught:
        check(protocol(lua=defect.lua), defect.setting)
    lines = str(caught.value).splitlines()
    assert any(re.search(r"a runs acquire \(a1 .*\(ok ", line) for line in lines)
    assert any(re.search(r"\| a1 until \d", line) for line in lines)


# The model's Redis beside a real server


class BothServers:
    """The model's Redis and a real one. Both run the same calls at the same time of the clock."""

    def __init__(self, raw: redis.Redis, keys: Keys) -> None:
        self.raw, self.keys = raw, keys
        seconds, _ = raw.time()
        self.start = seconds * 1_000_000
        self.micros = self.start + 86_400_000_000  # so that the real server expires no key
        sources = {verb: self._timed(scripts.compose(verb)) for verb in scripts.NAME_SCRIPTS}
        self.model, self.sources = Scripts(sources), sources
        self.frozen: Any = ()

    @staticmethod
    def _timed(source: str) -> str:
        """Return a script that takes the time as its last argument, in microseconds."""
        call, time = "redis.call('TIME')", "{math.floor(micros / 1000000), micros % 1000000}"
        assert call in source
        return "local micros = table.remove(ARGV)\n" + source.replace(call, time)

    def run(self, verb: str, *argv: Any) -> Any:
        args = [str(arg) for arg in (*argv, self.micros)]
        keys = self.keys.declared
        real = answered(self.raw.eval(self.sources[verb], len(keys), *keys, *args))
        store = Store(self.frozen, self.start)
        model = self.model.run(store, verb, keys, args)
        self.frozen = store.freeze()
        assert model == real, (verb, args)
        self.compare()
        return model

    def pop(self, token: str) -> None:
        store = Store(self.frozen, self.start)
        model = store.call("LPOP", self.keys.wake + token)
        self.frozen = store.freeze()
        assert (model or None) == _plain(self.raw.lpop(self.keys.wake + token))
        self.compare()

    def compare(self) -> None:
        pattern = _literal(f"{self.keys.leases.removesuffix('leases')}*")
        real = {key.decode() for key in self.raw.scan_iter(match=pattern)}
        assert sorted(real) == [key for key, *_ in self.frozen]
        seconds, micros = self.raw.time()
        now = seconds * 1000 + micros // 1000
        for key, kind, items, expiry in self.frozen:
            assert items == self._contents(key, kind)
            ttl = self.raw.pttl(key)
            assert ttl == -1 if expiry is None else abs(now + ttl - expiry) < 1000

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
def test_model_redis_replies_and_stores_like_a_real_server(raw: redis.Redis, seed: int) -> None:
    chance = random.Random(seed)
    keep = chance.choice([0, 5])
    servers = BothServers(raw, keys_of(django_settings.PREFIX, f"model {seed}", None, keep))
    fences = dict.fromkeys("abcdef", "0")
    replies = set()
    for _ in range(300):
        token = chance.choice("abcdef")
        servers.micros += chance.choice([0, 1, 700, 400_000, 1_500_000, 3_000_000, -5_000_000])
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
                terms = f"{permits} 3 {channel} {share}a label"
                argv = (token, lease, how, f"{kind} 3", terms, keep, mark, 4, fair, compact)
                reply = servers.run("acquire", *argv)
                if reply[0] == "ok":
                    fences[token] = reply[1]
            case "release":
                how = chance.choice(["release", "release", "undo", "giveup", "share"])
                tombstone, hold = chance.choice([0, 1]), chance.choice([0, 0, 2000])
                reply = servers.run(
                    "release", token, fences[token], keep, how, tombstone, hold, mark
                )
            case "renew":
                how, ms = chance.choice(["set", "confirm"]), chance.choice([1000, 9000, "inf"])
                nth = chance.choice([0, 1, 2])
                reply = servers.run("renew", token, fences[token], how, ms, nth, 0, keep)
            case "clear":
                reply = servers.run("clear", token, mark, keep)
            case "operate":
                how = chance.choice(["pause", "resume", "resume", "resize", "reset", "poke"])
                reply = servers.run("operate", "", how, 2, mark, keep)
            case "pop":
                servers.pop(token)
                continue
        replies.add(reply[0])
        servers.run("inspect", "", 5, keep)
    assert replies >= {"ok", "wait", "gone", "lost"}
