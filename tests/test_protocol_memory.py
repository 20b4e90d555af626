"""A server with full memory that evicts nothing: only requests of newcomers fail."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from devtools.servers import RedisServer, find_server
from tests.test_protocol_scripts import Name

pytestmark = pytest.mark.skipif(find_server() is None, reason="limits the memory of its own server")


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(config={"maxmemory-policy": "noeviction"}) as started:
        yield started


@pytest.fixture
def x(server: RedisServer) -> Iterator[Name]:
    with redis.Redis.from_url(server.url) as raw:
        raw.config_set("maxmemory", 0)
        raw.flushall()
        yield Name(raw)


def fill(x: Name) -> None:
    x.raw.config_set("maxmemory", 1)
    with pytest.raises(redis.ResponseError, match=r"OOM|maxmemory"):
        x.raw.set("too", "much")


def test_full_memory_denies_a_new_name_and_stores_nothing(x: Name) -> None:
    fill(x)
    for how in ("try", "wait", "shadow"):
        with pytest.raises(redis.ResponseError, match=r"OOM|maxmemory"):
            x.ask("a", how)
    assert [] == x.raw.keys("*")


def test_full_memory_denies_a_new_waiter_and_keeps_the_queue(x: Name) -> None:
    x.hold("a")
    x.wait("b")
    fill(x)
    with pytest.raises(redis.ResponseError, match=r"OOM|maxmemory"):
        x.ask("c")
    assert (["a"], ["b"], []) == (x.holders(), x.queue(), x.traces("c"))


def test_full_memory_allows_an_ordinary_rejection(x: Name) -> None:
    x.hold("a", limit=1)
    fill(x)
    assert ["no", "full"] == x.ask("b", "try", limit=1)[:2]
    # The limit differs from the last caller's, so it is stored for operators.
    assert ["no", "full"] == x.ask("b", "try", permits=2, limit=2)[:2]
    assert b"p 2" == x.field("#seen")


@pytest.mark.parametrize("ms", [60_000, math.inf], ids=["1 minute", "permanent"])
def test_full_memory_allows_a_renewal(x: Name, ms: Any) -> None:
    fence = x.hold("a", lease=1000)
    fill(x)
    assert "ok" == x.run("renew", "a", fence=fence, how="set", ms=ms, nth=1)[0]
    assert x.left("a") > 50_000
    assert all(ttl > 50_000 or ttl == -1 for ttl in x.ttls().values())


def test_full_memory_allows_confirm_adopt_and_share(x: Name) -> None:
    fence = x.hold("a", permits=0, kind="w", limit=9)
    fill(x)
    assert "ok" == x.run("renew", "a", fence=fence, how="confirm")[0]
    assert "ok" == x.run("renew", "a", fence=fence, how="adopt", ms=5000, nth=7, known=0)[0]
    assert "ok" == x.run("release", "a", fence=fence, how="share")[0]
    assert b"0" == x.field("#extra")


def test_full_memory_allows_a_release_with_its_count_and_handoff(x: Name) -> None:
    fence = x.hold("a", keep=5)
    x.wait("b", keep=5)
    fill(x)
    assert "ok" == x.release("a", fence, keep=5)
    assert (["b"], [], 1) == (x.holders(), x.queue(), len(x.wake("b")))
    counted = {field.decode().partition(":")[2] for field in x.raw.hkeys(x.keys.stats)}
    assert {"r", "w"} <= counted


def test_full_memory_allows_min_hold_to_retain_permits(x: Name) -> None:
    fence = x.hold("a")
    fill(x)
    assert "ok" == x.release("a", fence, hold=60_000)
    assert ["ka"] == x.holders()


@pytest.mark.parametrize("token", ["a", "b", "c"], ids=["holder", "waiter", "unknown"])
def test_full_memory_allows_an_undo_with_a_tombstone(x: Name, token: str) -> None:
    x.hold("a")
    x.wait("b")
    fill(x)
    x.undo(token)
    x.raw.config_set("maxmemory", 0)
    assert ["dead"] == x.ask(token)


def test_full_memory_allows_a_waiter_to_give_up(x: Name) -> None:
    x.hold("a")
    x.wait("b")
    fill(x)
    assert ["no", "timeout", 0, "", "1"] == x.run("release", "b", how="giveup")
    assert [] == x.traces("b")


def test_full_memory_allows_a_waiter_to_keep_its_place_and_be_granted(x: Name) -> None:
    x.hold("a")
    x.wait("b", "c")
    x.raw.zadd(x.keys.waiters, {"c": x.now() + 500}, xx=True)
    fill(x)
    assert "wait" == x.ask("c", "again")[0]
    assert x.deadline("c") > 1000
    x.raw.config_set("maxmemory", 0)
    x.expire("a")
    fill(x)
    assert "ok" == x.ask("b", "again")[0]


def test_full_memory_allows_a_waiter_to_take_free_permits(x: Name) -> None:
    x.operate("pause")
    x.wait("b")
    x.raw.hdel(x.keys.info, "#paused")
    fill(x)
    assert "ok" == x.ask("b", "again")[0]
    assert ["b"] == x.holders()


def test_full_memory_allows_a_new_holder_to_claim_its_lease(x: Name) -> None:
    fence = x.hold("a")
    x.wait("b")
    x.release("a", fence)
    fill(x)
    assert "ok" == x.ask("b", "again")[0]
    assert [] == x.wake("b")


@pytest.mark.parametrize("how", ["pause", "resume", "resize", "reset"])
def test_full_memory_allows_operators_to_pause_and_resize(x: Name, how: str) -> None:
    x.hold("a")
    fill(x)
    x.operate(how, 7 if how == "resize" else "")
    assert (how == "resize") == (x.field("#limit") == b"7")
    assert (how == "pause") == (x.field("#paused") is not None)


def test_full_memory_allows_operators_to_clear_a_lease(x: Name) -> None:
    x.hold("a")
    x.wait("b")
    fill(x)
    assert ["ok"] == x.run("clear", "a")
    assert ["b"] == x.holders()


def test_full_memory_allows_inspect(x: Name) -> None:
    x.hold("a")
    fill(x)
    assert 1 == x.run("inspect")[7]


def test_full_memory_does_not_keep_keys_from_expiring(x: Name) -> None:
    fence = x.hold("a", lease=4000)
    fill(x)
    x.run("renew", "a", fence=fence, how="set", ms=5000, nth=1)
    assert all(0 < ttl < 20_000 for ttl in x.ttls().values())
