"""Measure the CPU time of a process that only renews leases in the background."""

from __future__ import annotations

import time

from django_redis_sync import Lock

from .report import Table

#: (number of leases, lease duration in seconds)
KEPT = [(1000, 30.0), (10_000, 30.0), (10_000, 3.0)]


def keeping(url: str, quick: bool) -> Table:
    table = Table(
        "CPU time of a process that renews N leases, and how many leases it lost",
        "below 1 % of a core for 1,000 leases of 30 s, below 6 % for 10,000",
    )
    for number, seconds in KEPT[:1] if quick else KEPT:
        table.rows.append(_kept(number, seconds, 5.0 if quick else 15.0))
    return table


def _kept(number: int, seconds: float, watched: float) -> dict[str, object]:
    lost: list[object] = []
    leases = []
    # Acquire the leases over ten seconds, so that they are not all due at once.
    began = time.monotonic()
    for nth in range(number):
        lock = Lock(f"kept-{nth}", timeout=seconds, renew=True, on_lost=lost.append)
        leases.append(lock.acquire())
        time.sleep(max(0.0, began + 10 * nth / number - time.monotonic()))
    time.sleep(seconds / 2)
    cpu, wall = time.process_time(), time.monotonic()
    time.sleep(watched)
    share = (time.process_time() - cpu) / (time.monotonic() - wall)
    held = sum(lease is not None and lease.held for lease in leases)
    for lease in leases:
        if lease is not None and lease.held:
            lease.release()
    return {
        "": f"{number:,} of {seconds:g} s",
        "% of a core": 100 * share,
        "renewals/s": number * 3 / seconds,
        "held": held,
        "lost": len(lost),
    }
