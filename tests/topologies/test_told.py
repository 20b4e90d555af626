"""Where some of several servers hang: what lives there is told in time, all else goes on."""

from __future__ import annotations

import time
from typing import Any

from devtools.servers import RedisServer
from devtools.topologies import Cluster, Independent, client
from django_redis_sync import Lease, Lock
from tests.behaviour.both import eventually
from tests.behaviour.watching import Pulse, View
from tests.support.packed import leases_of

from .test_cluster import spread
from .test_quorum import Five, _One

#: As long as a project may have them.
PATIENT = {"SOCKET_TIMEOUT": 5, "SOCKET_CONNECT_TIMEOUT": 5}
RENEWED: dict[str, Any] = {"timeout": 5, "renew": True}


class Told:
    """When each lease was told to be lost, by the clock that the servers read too."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}
        self.pulse = Pulse()

    def lost(self, lease: Lease) -> None:
        assert not lease.held
        self.at[lease.name] = time.time()

    def before(self, end: float, name: str) -> bool:
        """Whether it was told by then: three threads wake for it, none of them sooner than this
        machine lets them."""
        return self.at[name] < end + 3 * self.pulse.most


def end_at(server: RedisServer, name: str) -> float:
    """When the lease of a name ends by a server, whether or not it is over."""
    with client(server) as mine:
        [end] = leases_of(mine, View(mine, name).keys.leases).values()
    return end / 1000


def test_a_shard_that_hangs_is_told_in_time_and_makes_no_other_late(start: Any, alias: Any) -> None:
    cluster = start(Cluster)
    name, told = alias(cluster, **PATIENT), Told()
    names = [some[0] for some in spread(cluster)]
    leases = [Lock(one, using=name, on_lost=told.lost, **RENEWED).acquire() for one in names]
    assert all(leases)
    time.sleep(2.5)  # each was renewed on its own shard
    hung = cluster.primaries[0]
    hung.pause()
    try:
        with told.pulse:
            eventually(lambda: names[0] in told.at)
        time.sleep(3)  # the others would be over by then
        assert [names[0]] == list(told.at)
        assert [lease.held for lease in leases] == [False, True, True]
    finally:
        hung.resume()
    assert told.before(end_at(hung, names[0]), names[0])
    for lease in leases[1:]:
        lease.release()


def quorum(start: Any, alias: Any) -> Five:
    servers = start(Independent, count=5).servers
    return Five(servers, [alias(_One(server), **PATIENT) for server in servers])


def test_a_quorum_whose_majority_hangs_is_told_in_time(start: Any, alias: Any) -> None:
    five, told = quorum(start, alias), Told()
    lease = Lock("x", using=five.aliases, on_lost=told.lost, **RENEWED).acquire()
    assert lease
    time.sleep(2.5)
    for server in five.servers[:3]:
        server.pause()
    try:
        with told.pulse:
            eventually(lambda: "x" in told.at)
    finally:
        for server in five.servers[:3]:
            server.resume()
    # Another one gets it when a majority of them has given it away.
    assert told.before(min(end_at(server, "x") for server in five.servers[:3]), "x")


def test_a_quorum_of_which_two_hang_keeps_its_lease(start: Any, alias: Any) -> None:
    five, told = quorum(start, alias), Told()
    lease = Lock("x", using=five.aliases, on_lost=told.lost, **RENEWED).acquire()
    assert lease
    for server in five.servers[:2]:
        server.pause()
    try:
        time.sleep(8)
        assert lease.held and not told.at
    finally:
        for server in five.servers[:2]:
            server.resume()
    lease.release()
