"""Histories of random clients, judged by the checker: the scripts break no rule.

`tests/test_history.py` shows that the checker finds what is wrong.
"""

from __future__ import annotations

import time

import redis

from tests.support.workload import FAST, workload


def test_random_clients_find_nothing_wrong_with_the_scripts(raw: redis.Redis) -> None:
    random = workload(raw)
    random.run(10_000)
    summary = random.journal.check().summary()

    assert 5 == summary["names"]
    assert summary["believed"] > 1000
    # What was never seen was never checked.
    for what in (
        "granted at once",
        "handed over",
        "reclaimed",
        "unclaimed",
        "waited",
        "dead",
        "refused, share",
    ):
        assert summary[what] > 10, what


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
