"""A key of a name is gone, as an evicting server takes them one by one: the verbs go on."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import redis

from tests.test_protocol_scripts import Name

VERBS: dict[str, Callable[[Name, str], object]] = {
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
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_goes_on(x: Name, part: str, verb: str) -> None:
    fence = x.hold("a")
    x.wait("b", "c")
    x.raw.delete(getattr(x.keys, part))
    VERBS[verb](x, fence)
    for token in "abcde":
        x.undo(token)
    tokens = (f"new{n}" for n in itertools.count())
    if part == "info":  # of whom a lease is, nobody knows: it ends by its time
        x.raw.delete(x.keys.leases)
    assert "ok" == x.ask(next(tokens))[0]


@pytest.mark.parametrize("ask", ["wait", "try"])
def test_what_heavy_leases_took_is_free_when_they_are_gone(x: Name, ask: str) -> None:
    x.hold("a", limit=3, permits=3)
    x.open()
    x.raw.delete(x.keys.leases)
    assert "ok" == x.ask("b", ask, limit=3, permits=3)[0]
    assert "ok" != x.ask("c", "try", limit=3)[0]


@pytest.mark.parametrize("verb", VERBS)
def test_a_waiter_without_a_record_holds_up_nobody(x: Name, verb: str) -> None:
    fence = x.hold("a")
    x.wait("b", "c")
    x.raw.hdel(x.keys.info, "b")
    VERBS[verb](x, fence)
    x.release("a", fence)
    assert "b" not in x.queue() and "b" not in x.holders()


def test_a_winner_without_a_record_that_never_woke_loses_its_lease(x: Name) -> None:
    fence = x.hold("a")
    x.wait("b", "c")
    x.release("a", fence)
    x.raw.hdel(x.keys.info, "b")
    x.silence("b")
    assert "ok" == x.ask("c", "again")[0]
    assert ["c"] == x.holders()
