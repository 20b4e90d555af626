"""Histories of random clients: the checker finds no violation by the scripts.

`tests/test_history.py` proves that the checker finds violations.
"""

from __future__ import annotations

import time

import redis

from tests.support.workload import FAST, workload

SEEN = (
    *("granted at once", "handed over", "reclaimed", "unclaimed", "waited", "dead"),
    "refused, share",
)


def test_random_clients_find_no_violation_by_the_scripts(raw: redis.Redis) -> None:
    random = workload(raw)
    rare: set[str] = set(SEEN)
    for _ in range(4):  # until each event was seen often enough to be checked
        random.run(10_000 if len(rare) == len(SEEN) else 2500)
        summary = random.journal.check().summary()
        rare = {what for what in SEEN if summary[what] <= 10}
        if not rare:
            break
    assert not rare
    assert 5 == summary["names"]
    assert summary["believed"] > 1000


def test_all_keys_expire_after_the_last_lease_and_waiter(raw: redis.Redis) -> None:
    random = workload(raw, constants={**FAST, "TOMBSTONE_TTL": 300})
    random.run(1500)
    random.settle()
    deadline = time.monotonic() + 5
    names = [kind.keys.leases.removesuffix("leases") for kind in random.kinds]
    while left := [key for name in names for key in raw.keys(f"{name}*")]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
