"""Defects that are planted into locks, semaphores, and leases, to see that tests find them."""

from __future__ import annotations

from .mutant import Mutant

MUTANTS = [
    Mutant(
        "an acquire of more permits than share_limit is sent",
        "        if permits > (share_limit := self._share_limit(named) or permits):\n",
        "        if False:\n",
        "behaviour/test_shares.py",
    ),
    Mutant(
        "an answered release is sent again after a cancellation",
        "            if state.answer is None:\n",
        "            if True:\n",
        "behaviour/test_cancellation.py",
    ),
    Mutant(
        "a lost lease is not counted in Redis",
        "        if state.terms.keys.keep:\n",
        "        if False:\n",
        "behaviour/test_lost_count.py",
    ),
    Mutant(
        "a lost reply of a release counts as a lost lease after a renewal",
        "self.grant._replace(until=self.until)",
        "self.grant",
        "behaviour/test_lost_count.py",
    ),
    Mutant(
        "blocking_timeout has an upper bound",
        "    if not number >= 0:  # NaN, too\n",
        "    if not 1e9 > number >= 0:\n",
        "test_locks_lease.py",
    ),
    Mutant(
        "a block whose lease was released ends another block",
        "        *others, item = self._blocks.pop(caller)\n",
        "        item, *others = self._blocks.pop(caller)\n",
        "test_locks_blocks.py",
    ),
    Mutant(
        "acquire_all waits for each lock with the full timeout",
        "return lambda: max(0.0, deadline - clock())",
        "return lambda: self._seconds",
        "test_locks_acquire_all.py",
    ),
    Mutant(
        "a handle loses max_hold",
        "terms.renew, max_hold, terms.min_hold",
        'terms.renew, float("inf"), terms.min_hold',
        "test_locks_lease.py",
    ),
    Mutant(
        "a detach shortens the requested lease",
        "if not leaving or self.until >= end - _CLOSE:",
        "if True:",
        "test_locks_lease_state.py",
    ),
    Mutant(
        "MAX_HOLD is not read",
        "max_hold = config.max_hold if max_hold is None else max_hold",
        "pass",
        "test_locks_lease.py",
    ),
    Mutant(
        "an undone reentrant lock is released (async)",
        "        if self._last(lease):\n            await lease._aleave(kind",
        "        if True:\n            await lease._aleave(kind",
        "test_locks_rlock.py",
    ),
    Mutant(
        "release() does not wait for the COMMIT",
        "if self._last(lease) and not self._deferred(lease):",
        "if self._last(lease):",
        "test_requests_transactions.py",
    ),
]
