"""The checker of tests/model tries each order of events among a few clients. In each order,
the scripts and plans of the package must keep the rules of the protocol."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.conf import settings

from django_redis_sync.protocol import scripts
from django_redis_sync.protocol.keys import keys_of
from tests.model.cases import CASES, Case
from tests.model.check import Violation, check
from tests.model.clients import protocol
from tests.model.defects import DEFECTS
from tests.support.journal import parse, wrap
from tests.support.workload import Call, Kind, ModelServer, Workload, words

#: At every 20th state, the checker also tests that all waiters get permits in the end.
SAMPLE = 20


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Turn off the garbage collector, because it would take a third of the time of the test and
    find no cycles."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.promise(1, 2, 3, 5, 6, 8, 10, 11, 12, 14, 15, 26, 32)
@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[pytest.mark.deep] * case.deep, id=case.setting.name)
        for case in CASES
    ],
)
def test_no_order_of_events_breaks_the_protocol(case: Case) -> None:
    found = check(protocol(case.micros, ticks=case.ticks), case.setting, SAMPLE)
    print(f"{found.states} states, {found.fair} fair runs of up to {found.longest} ticks")
    assert found.whole, "the exploration was cut short"
    assert found.states >= case.floor
    assert found.fair >= case.floor // SAMPLE


@pytest.mark.tools
@pytest.mark.parametrize("name", DEFECTS)
def test_model_checker_finds_each_inserted_defect(name: str) -> None:
    defect = DEFECTS[name]
    with pytest.raises(Violation) as caught:
        check(protocol(lua=defect.changes), defect.setting, SAMPLE, most=60_000)
    assert re.search(defect.found, caught.value.what), caught.value


def test_replacement_of_text_that_no_script_contains_raises_lookup_error() -> None:
    with pytest.raises(LookupError):
        protocol(lua={"no such line": ""})


# The imitation of Redis, compared with a real server


class BothServers(ModelServer):
    """The imitation of Redis and a real server. Both run each call with the same clock reading."""

    def __init__(self, raw: redis.Redis) -> None:
        super().__init__()
        self.raw, self.journal = raw, f"{settings.PREFIX}-journal"
        self.real = raw.time()[0] * 1_000_000
        # The scripts get a time that is a day ahead. So the real server expires no key in the test.
        self.micros = self.real + 86_400_000_000
        self.sources = {verb: self.timed(verb) for verb in scripts.NAME_SCRIPTS}
        self.replies = set[str]()

    def timed(self, verb: str) -> str:
        """Return the source of a script. The script takes its last argument as the time in µs."""
        call, time = "redis.call('TIME')", "{math.floor(micros / 1000000), micros % 1000000}"
        source = scripts.compose(verb)
        assert call in source
        return "local micros = table.remove(ARGV)\n" + wrap(
            verb, source.replace(call, time), self.journal
        )

    def run(self, one: Call) -> Any:
        model = super().run(one)
        if one.verb == "pop":
            assert (model or None) == _plain(self.raw.lpop(f"{one.base}wake:{one.said['token']}"))
            return model
        self.replies |= {f"{one.verb} {model[0]}"} if one.verb != "inspect" else set()
        asked = [len(one.keys), *one.keys, *one.argv, self.micros]
        reply = words(self.raw.eval(self.sources[one.verb], *asked))
        assert model == _plain(reply), one
        known, (line,) = self.entries[-1], self.raw.lpop(self.journal, 1)
        assert known[3:] == parse(0, line)[3:], f"the journals differ:\n{known}\n{parse(0, line)}"
        self.compare(one.base)
        return model

    def compare(self, base: str) -> None:
        names = {key.decode() for key in self.raw.scan_iter(match=f"{base}*")}
        assert names == {key for key, *_ in self.names[base]}
        seconds, micros = self.raw.time()
        now = seconds * 1000 + micros // 1000
        for key, kind, items, expiry in self.names[base]:
            assert items == self.contents_of(key, kind)
            ttl = self.raw.pttl(key)
            assert ttl == -1 if expiry is None else abs(now + ttl - expiry) < 60_000

    def contents_of(self, key: str, kind: str) -> Any:
        if kind == "l":
            return tuple(_plain(self.raw.lrange(key, 0, -1)))
        if kind == "h":
            pairs = self.raw.hgetall(key).items()
            return tuple(sorted((k.decode(), v.decode("latin-1")) for k, v in pairs))
        return tuple(
            sorted((m.decode(), s) for m, s in self.raw.zrange(key, 0, -1, withscores=True))
        )


def _plain(reply: Any) -> Any:
    if isinstance(reply, bytes):
        return reply.decode()
    return [_plain(item) for item in reply] if isinstance(reply, list) else reply


@pytest.mark.parametrize("shares", [(), ("a", "b c", "")], ids=["plain", "shares"])
@pytest.mark.parametrize("keep", [0, 5])
def test_simulated_redis_returns_and_stores_the_same_values_as_a_real_server(
    raw: redis.Redis, shares: tuple[str, ...], keep: int
) -> None:
    servers = BothServers(raw)
    keys = keys_of(settings.PREFIX, "model {}", None, keep)
    overrides = ("-", "-", "0 2", "1790000000000 0")
    kinds = [
        Kind(keys, 6, 3, (0, 1, 1, 2), "w", shares, overrides),
        Kind(keys_of(settings.PREFIX, "calm", None, keep), 2, 1, calm=True),
    ]
    Workload(servers, 5, kinds).run(400)
    assert servers.replies >= {
        *("acquire ok", "acquire wait", "acquire gone", "acquire no", "release ok", "release lost"),
        *("renew ok", "renew lost", "operate ok"),
    }
