"""Mutants of what Python code takes."""

from __future__ import annotations

from .plant import Plant

PLANTS = [
    Plant(
        "more permits than a share may have are asked for",
        "        if permits > (self._share_limit(named) or permits):\n",
        "        if False:\n",
        "behaviour/test_shares.py",
    ),
    Plant(
        "an answered release is sent again after a cancellation",
        "            if state.answer is None:\n",
        "            if True:\n",
        "behaviour/test_cancellation.py",
    ),
    Plant(
        "a lost lease is not counted in Redis",
        "        if state.terms.keys.keep:\n",
        "        if False:\n",
        "behaviour/test_lost_count.py",
    ),
    Plant(
        "a release whose reply is lost is a lost lease after the first renewal",
        "self.grant._replace(until=self.until)",
        "self.grant",
        "behaviour/test_lost_count.py",
    ),
    Plant(
        "blocking_timeout has an upper bound",
        "    if not number >= 0:  # NaN, too\n",
        "    if not 1e9 > number >= 0:\n",
        "test_locks_messages.py",
    ),
    Plant(
        "a limit is missed only at the acquire",
        "if self.limit is None and settings.configured:",
        "if False:",
        "test_locks_messages.py",
    ),
    Plant(
        "a misspelled name is filled",
        "    _check_spelling(name)\n",
        "",
        "test_locks_messages.py",
    ),
    Plant(
        "a block whose lease was released ends another block",
        "        item = blocks.pop()\n",
        "        item = blocks.pop(0)\n",
        "test_locks_blocks.py",
    ),
    Plant(
        "released leases pile up",
        "                if not old.held:\n",
        "                if False:\n",
        "test_locks_blocks.py",
    ),
    Plant(
        "acquire_all waits for each as long as for all",
        "return lambda: max(0.0, deadline - clock())",
        "return lambda: self._seconds",
        "test_locks_acquire_all.py",
    ),
    Plant(
        "a handle forgets max_hold",
        "terms.renew, terms.max_hold, terms.min_hold",
        'terms.renew, float("inf"), terms.min_hold',
        "test_locks_handle.py",
    ),
    Plant(
        "a detach gives less than was asked for",
        "if not leaving or self.until >= end - _CLOSE:",
        "if True:",
        "test_locks_lease_state.py",
    ),
    Plant(
        "MAX_HOLD is not read",
        "max_hold = config.max_hold if max_hold is None else max_hold",
        "pass",
        "test_locks_options.py",
    ),
    Plant(
        "an undone reentrant lock is released (async)",
        "            if semaphore._last(lease):\n                await lease.__aexit__(*error)",
        "            await lease.__aexit__(*error)",
        "test_locks_rlock.py",
    ),
    Plant(
        "release() does not wait for the COMMIT",
        "if self._last(lease) and not self._deferred(lease):",
        "if self._last(lease):",
        "test_requests_transactions.py",
    ),
]
