"""A server with full memory that evicts nothing: only requests of newcomers fail."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from devtools.servers import RedisServer, find_server
from tests.test_protocol_scripts import Name

pytestmark = [
    pytest.mark.promise(14),
    pytest.mark.skipif(find_server() is None, reason="limits the memory of its own server"),
]


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


def test_full_memory_denies_new_names_and_new_waiters_and_stores_nothing(x: Name) -> None:
    fill(x)
    for how in ("try", "wait", "shadow"):
        with pytest.raises(redis.ResponseError, match=r"OOM|maxmemory"):
            x.ask("a", how)
    assert [] == x.raw.keys("*")
    x.raw.config_set("maxmemory", 0)
    x.hold("a")
    x.wait("b")
    fill(x)
    with pytest.raises(redis.ResponseError, match=r"OOM|maxmemory"):
        x.ask("c")
    assert (["a"], ["b"], []) == (x.holders(), x.queue(), x.traces("c"))


def buried(x: Name, token: str) -> list[Any]:
    """Undo the request of `token`. Return the reply to a late copy of it."""
    x.undo(token)
    x.raw.config_set("maxmemory", 0)
    return x.ask(token)


def operated(x: Name, how: str, value: Any = "") -> tuple[bool, bool]:
    x.operate(how, value)
    return x.field("#limit") == b"7", x.field("#paused") is not None


def counted(x: Name, letter: str) -> bool:
    return any(field.decode().endswith(f":{letter}") for field in x.raw.hkeys(x.keys.stats))


#: With the holder "a", which has the fence f, and the waiter "b": a call, and its result.
ALLOWED: dict[str, tuple[Callable[[Name, str], Any], Any]] = {
    "renewal": (
        lambda x, f: (x.run("renew", "a", fence=f, how="set", ms=9e4, nth=1)[0], x.left("a") > 5e4),
        ("ok", True),
    ),
    "permanent": (
        lambda x, f: (x.run("renew", "a", fence=f, how="set", ms=math.inf, nth=1)[0], x.left("a")),
        ("ok", math.inf),
    ),
    "confirm": (lambda x, f: x.run("renew", "a", fence=f, how="confirm")[0], "ok"),
    "adopt": (
        lambda x, f: x.run("renew", "a", fence=f, how="adopt", ms=5000, nth=7, known=0)[0],
        "ok",
    ),
    "release": (
        lambda x, f: (x.release("a", f, keep=5), x.holders(), len(x.wake("b")), counted(x, "r")),
        ("ok", ["b"], 1, True),
    ),
    "min_hold": (lambda x, f: (x.release("a", f, hold=60_000), x.holders()), ("ok", ["ka"])),
    "claim": (
        lambda x, f: (x.release("a", f), x.ask("b", "again")[0], x.wake("b")),
        ("ok", "ok", []),
    ),
    **{f"undo {token}": (lambda x, f, t=token: buried(x, t), ["dead"]) for token in "abc"},
    "giveup": (
        lambda x, f: (x.run("release", "b", how="giveup"), x.traces("b")),
        (["no", "timeout", 0, "", "1"], []),
    ),
    "place": (lambda x, f: (x.ask("b", "again")[0], x.deadline("b") > 1000), ("wait", True)),
    "rejection": (lambda x, f: x.ask("c", "try", permits=2, limit=2)[:2], ["no", "full"]),
    "pause": (lambda x, f: operated(x, "pause"), (False, True)),
    "resize": (lambda x, f: operated(x, "resize", 7), (True, False)),
    **{how: (lambda x, f, h=how: operated(x, h), (False, False)) for how in ("resume", "reset")},
    "clear": (lambda x, f: (x.run("clear", "a"), x.holders()), (["ok"], ["b"])),
    "inspect": (lambda x, f: x.run("inspect")[7], 1),
}


@pytest.mark.parametrize(("call", "expected"), ALLOWED.values(), ids=ALLOWED)
def test_full_memory_allows_all_but_new_requests(x: Name, call: Any, expected: Any) -> None:
    fence = x.hold("a", keep=5)
    x.wait("b", keep=5)
    fill(x)
    assert expected == call(x, fence)
    assert all(ttl > 0 or ttl == -1 for ttl in x.ttls().values())


def test_full_memory_allows_a_waiter_to_take_free_permits(x: Name) -> None:
    x.operate("pause")
    x.wait("b")
    x.raw.hdel(x.keys.info, "#paused")
    fill(x)
    assert ("ok", ["b"]) == (x.ask("b", "again")[0], x.holders())


def test_full_memory_allows_a_writer_to_share_and_keys_to_expire(x: Name) -> None:
    fence = x.hold("a", permits=0, kind="w", limit=9, lease=4000)
    fill(x)
    assert "ok" == x.run("release", "a", fence=fence, how="share")[0]
    assert b"0" == x.field("#extra")
    x.run("renew", "a", fence=fence, how="set", ms=5000, nth=1)
    assert all(0 < ttl < 20_000 for ttl in x.ttls().values())
