"""Scripts go on after a server with an eviction policy has removed one key of a name."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import redis

from tests.test_protocol_scripts import Name

CALLS: dict[str, Callable[[Name, str], object]] = {
    "ask": lambda x, fence: x.ask("d"),
    "try": lambda x, fence: x.ask("e", "try"),
    "ask again": lambda x, fence: x.ask("b", "again"),
    "release": lambda x, fence: x.release("a", fence),
    "renew": lambda x, fence: x.run("renew", "a", fence=fence, how="set", ms=1000, nth=1),
    "undo": lambda x, fence: x.undo("b"),
    "give up": lambda x, fence: x.run("release", "c", how="giveup"),
    "clear": lambda x, fence: x.run("clear", "c"),
    "resume": lambda x, fence: x.operate("resume"),
    "inspect": lambda x, fence: x.run("inspect"),
}


@pytest.fixture
def x(raw: redis.Redis) -> Name:
    return Name(raw)


@pytest.mark.parametrize("part", ["leases", "queue", "waiters", "info"])
@pytest.mark.parametrize("call", CALLS)
def test_name_works_again_after_one_of_its_keys_was_evicted(x: Name, part: str, call: str) -> None:
    fence = x.hold("a")
    x.wait("b", "c")
    x.raw.delete(getattr(x.keys, part))
    CALLS[call](x, fence)
    for token in "abcde":
        x.undo(token)
    tokens = (f"new{n}" for n in itertools.count())
    if part == "info":  # without its record, a lease can only expire; skip the wait
        x.raw.delete(x.keys.leases)
    assert "ok" == x.ask(next(tokens))[0]


@pytest.mark.parametrize("ask", ["wait", "try"])
def test_permits_of_evicted_leases_are_free(x: Name, ask: str) -> None:
    x.hold("a", limit=3, permits=3)
    x.open()
    x.raw.delete(x.keys.leases)
    assert "ok" == x.ask("b", ask, limit=3, permits=3)[0]
    assert "ok" != x.ask("c", "try", limit=3)[0]


@pytest.mark.parametrize("call", CALLS)
def test_waiter_without_a_record_does_not_block_the_queue(x: Name, call: str) -> None:
    fence = x.hold("a")
    x.wait("b", "c")
    x.raw.hdel(x.keys.info, "b")
    CALLS[call](x, fence)
    x.release("a", fence)
    assert "b" not in x.queue() and "b" not in x.holders()


def test_new_holder_without_a_record_loses_its_unclaimed_lease(x: Name) -> None:
    fence = x.hold("a")
    x.wait("b", "c")
    x.release("a", fence)
    x.raw.hdel(x.keys.info, "b")
    x.silence("b")
    assert "ok" == x.ask("c", "again")[0]
    assert ["c"] == x.holders()
