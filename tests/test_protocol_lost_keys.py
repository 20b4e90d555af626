"""Scripts go on after a server with an eviction policy has removed keys of a name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis
from django.conf import settings

from devtools.servers import RedisServer
from django_redis_sync.protocol.keys import keys_of
from tests.behaviour.both import eventually
from tests.support.workload import call
from tests.test_protocol_scripts import Name

pytestmark = pytest.mark.promise(3, 9)

CALLS: dict[str, Callable[[Name], object]] = {
    "ask": lambda x: x.ask("d"),
    "try": lambda x: x.ask("e", "try"),
    "ask again": lambda x: x.ask("b", "again"),
    "release": lambda x: x.end("a"),
    "renew": lambda x: x.renew("a", ms=1000, nth=1),
    "undo": lambda x: x.end("b", "undo", tombstone=1),
    "give up": lambda x: x.end("c", "giveup"),
    "clear": lambda x: x.do("clear", "c"),
    "resume": lambda x: x.operate("resume"),
    "inspect": lambda x: x.do("inspect"),
}


@pytest.fixture
def x() -> Name:
    x = Name()
    x.hold("a", limit=2, permits=2)
    x.wait("b", "c", limit=2)
    return x


@pytest.mark.parametrize("part", ["leases", "queue", "waiters", "info", "record"])
@pytest.mark.parametrize("then", CALLS)
def test_name_works_again_after_one_of_its_keys_was_evicted(x: Name, part: str, then: str) -> None:
    if part == "record":
        x.change("info", b=None)
    else:
        x.lose(part)
    CALLS[then](x)
    assert not x.entries[-1].error
    x.pass_time(1000)  # without its record, a lease can only expire
    for token in "abcde":
        x.end(token, "undo", tombstone=1)
    assert "b" not in x.state, "a waiter without a record blocks the queue"
    x.hold("new", limit=2, permits=2)
    assert int(x.fences["new"]) > int(x.fences["a"])


@pytest.mark.parametrize("how", ["wait", "try"])
def test_permits_of_evicted_leases_are_free(x: Name, how: str) -> None:
    x.end("b", "giveup")
    x.end("c", "giveup")
    x.lose("leases")
    assert "ok" == x.ask("d", how, limit=2, permits=2)[:2]
    assert "no full 0  2" == x.ask("e", "try", limit=2)


def test_heartbeat_returns_gone_when_the_queue_was_evicted(x: Name) -> None:
    x.lose("queue")
    assert "gone" == x.ask("b", "again")


def test_new_holder_without_a_record_loses_its_unclaimed_lease(x: Name) -> None:
    x.end("a")
    x.change("info", b=None)
    x.ask("c", "again", limit=2)
    x.renew("c", ms=60_000)
    x.pass_time(1000)
    assert "ok" == x.ask("d", "try", limit=2)[:2]
    assert "c d |" == x.state


POLICIES = ["volatile-lru", "volatile-lfu", "volatile-ttl", "volatile-random", "allkeys-lru"]


def test_fences_grow_after_an_evicting_server_has_lost_leases(
    new_server: Callable[..., RedisServer],
) -> None:
    """All keys of a name expire, so the policies `volatile-*` evict them, too."""
    keys = [keys_of(settings.PREFIX, f"n{number}") for number in range(20)]

    def fences(client: redis.Redis, token: str) -> list[int]:
        calls = [call("acquire", key, token, how="try", lease=60_000) for key in keys]
        replies = [one.run_on(client).split(b" ") for one in calls]
        return [int(fence) for word, fence, *_ in replies if word == b"ok"]

    with redis.Redis.from_url(new_server().url) as client:
        last = fences(client, "a")
        for policy in ["noeviction", *POLICIES]:
            client.config_set("maxmemory-policy", policy)
            client.config_set("maxmemory", 1)
            with pytest.raises(redis.ResponseError, match=r"OOM|maxmemory"):
                client.set("too", "much")
            if policy != "noeviction":
                eventually(lambda: client.dbsize() == 0)
            client.config_set("maxmemory", 0)
            found = fences(client, policy)
            assert (policy == "noeviction") == (found == []), policy
            assert all(one < other for one, other in zip(last, found, strict=False)), policy
            last = found or last
