"""Leases on the nodes of a Cluster: a node that hangs delays no renewal on another."""

from __future__ import annotations

import time
from typing import Any

import pytest
from redis.crc import key_slot

from devtools.topologies import Cluster
from django_redis_sync import Lease, Lock
from django_redis_sync.engine import renewal
from django_redis_sync.protocol.keys import keys_of


def test_node_that_hangs_delays_no_renewal_on_another_node(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each renewal on the node that hangs takes a whole time limit, as BATCH is 1. These renewals
    come first, and together take longer than the lease on the other node lasts."""
    monkeypatch.setattr(renewal, "BATCH", 1)
    lost: list[Lease] = []

    def hold(name: str) -> Lease:
        lock = Lock(name, using="nodes", timeout=3, renew=True, on_lost=lost.append)
        lease = lock.acquire(blocking_timeout=20)
        assert lease
        return lease

    with Cluster() as cluster:
        settings.CACHES = {**settings.CACHES, "nodes": cluster.cache()}
        prefix = settings.REDIS_SYNC["KEY_PREFIX"]
        hangs, answers = cluster.primaries[:2]
        names = [f"x{number}" for number in range(200)]
        at = {
            name: cluster.owner(key_slot(keys_of(prefix, name).leases.encode())) for name in names
        }
        stuck = [hold(name) for name in [name for name in names if at[name] is hangs][:12]]
        kept = hold(next(name for name in names if at[name] is answers))
        hangs.pause()
        try:
            time.sleep(5)
            assert (True, False) == (kept.held, kept in lost), "another node's renewals delay it"
            assert not any(lease.held for lease in stuck)
        finally:
            hangs.resume()
            renewal.renewer("nodes").clear()
