"""Histories of random clients, judged by the checker: the scripts break no rule.

`tests/test_history.py` shows that the checker finds what is wrong.
"""

from __future__ import annotations

import time

import redis

from tests.support.workload import FAST, workload

SEEN = (
    *("granted at once", "handed over", "reclaimed", "unclaimed", "waited", "dead"),
    "refused, share",
)


def test_random_clients_find_nothing_wrong_with_the_scripts(raw: redis.Redis) -> None:
    random = workload(raw)
    rare: set[str] = set(SEEN)
    for _ in range(4):  # what was never seen was never checked
        random.run(10_000 if len(rare) == len(SEEN) else 2500)
        summary = random.journal.check().summary()
        rare = {what for what in SEEN if summary[what] <= 10}
        if not rare:
            break
    assert not rare
    assert 5 == summary["names"]
    assert summary["believed"] > 1000


def test_nothing_is_left_in_the_end(raw: redis.Redis) -> None:
    """Rule 7: every key expires some time after the last lease or waiter."""
    random = workload(raw, constants={**FAST, "TOMBSTONE_TTL": 300})
    random.run(1500)
    random.settle()
    deadline = time.monotonic() + 5
    names = [kind.keys.leases.removesuffix("leases") for kind in random.kinds]
    while left := [key for name in names for key in raw.keys(f"{name}*")]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
