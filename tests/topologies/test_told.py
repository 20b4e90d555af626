"""If some of several servers hang, their holders are notified in time, and other leases live on."""

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

#: Long socket timeouts, on which the notification must not depend.
PATIENT = {"SOCKET_TIMEOUT": 5, "SOCKET_CONNECT_TIMEOUT": 5}
RENEWED: dict[str, Any] = {"timeout": 5, "renew": True}


class Notifications:
    """Times at which `on_lost` was called for each lease, by the clock that the servers read."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}
        self.pulse = Pulse()

    def lost(self, lease: Lease) -> None:
        assert not lease.held
        self.at[lease.name] = time.time()

    def before(self, end: float, name: str) -> bool:
        """Return True if `on_lost` was called before `end`, apart from the delay with which the
        three threads involved wake up on this machine."""
        return self.at[name] < end + 3 * self.pulse.most


def end_at(server: RedisServer, name: str) -> float:
    """Return the expiry of a name's lease by the server's clock, even if it has passed."""
    with client(server) as mine:
        [end] = leases_of(mine, View(mine, name).keys.leases).values()
    return end / 1000


def test_loss_on_a_hung_shard_is_reported_in_time_and_delays_no_other_shard(
    start: Any, alias: Any
) -> None:
    cluster = start(Cluster)
    name, notified = alias(cluster, **PATIENT), Notifications()
    names = [some[0] for some in spread(cluster)]
    leases = [Lock(one, using=name, on_lost=notified.lost, **RENEWED).acquire() for one in names]
    assert all(leases)
    time.sleep(2.5)  # each was renewed on its own shard
    hung = cluster.primaries[0]
    hung.pause()
    try:
        with notified.pulse:
            eventually(lambda: names[0] in notified.at)
        time.sleep(3)  # the other leases would have expired by now
        assert [names[0]] == list(notified.at)
        assert [lease.held for lease in leases] == [False, True, True]
    finally:
        hung.resume()
    assert notified.before(end_at(hung, names[0]), names[0])
    for lease in leases[1:]:
        lease.release()


def quorum(start: Any, alias: Any) -> Five:
    servers = start(Independent, count=5).servers
    return Five(servers, [alias(_One(server), **PATIENT) for server in servers])


def test_quorum_loss_is_reported_in_time_when_the_majority_hangs(start: Any, alias: Any) -> None:
    five, notified = quorum(start, alias), Notifications()
    lease = Lock("x", using=five.aliases, on_lost=notified.lost, **RENEWED).acquire()
    assert lease
    time.sleep(2.5)
    for server in five.servers[:3]:
        server.pause()
    try:
        with notified.pulse:
            eventually(lambda: "x" in notified.at)
    finally:
        for server in five.servers[:3]:
            server.resume()
    # Another client can get the lock as soon as one of the three servers ends the lease.
    assert notified.before(min(end_at(server, "x") for server in five.servers[:3]), "x")


def test_quorum_lease_is_kept_when_two_of_five_servers_hang(start: Any, alias: Any) -> None:
    five, notified = quorum(start, alias), Notifications()
    lease = Lock("x", using=five.aliases, on_lost=notified.lost, **RENEWED).acquire()
    assert lease
    for server in five.servers[:2]:
        server.pause()
    try:
        time.sleep(8)
        assert lease.held and not notified.at
    finally:
        for server in five.servers[:2]:
            server.resume()
    lease.release()
