"""The log of a rate in this process, for processes without Redis. In Redis, rate_log.lua is it."""

from __future__ import annotations

import math
from collections import deque

from ..protocol.scripts import CONSTANTS

#: A rate: the permits, and the seconds of the period.
Rate = tuple[int, float]


class RateLog:
    """The permits that were granted within the last period, by `clock()`.

    The log has at most about 200 entries. Grants shortly after each other share an entry, which
    counts until its last grant is one period old. So there are never more than the rate's permits
    in any period.
    """

    def __init__(self) -> None:
        # (the time of the last grant, the permits) of each entry, and the first time of the newest
        self._entries = deque[tuple[float, int]]()
        self._first, self._ends = -math.inf, -math.inf  # _ends: one period after the last grant

    def used(self, rate: Rate, now: float) -> int:
        """Return the permits that were granted within the last period."""
        self.tidy(rate, now)
        return sum(granted for _, granted in self._entries)

    def tidy(self, rate: Rate, now: float) -> bool:
        """Remove the entries that are older than the period. Return True if none is left."""
        while self._entries and self._entries[0][0] + rate[1] <= now:
            self._entries.popleft()
        return not self._entries

    def is_over(self, now: float) -> bool:
        """Return True if the last grant is older than its period."""
        return self._ends <= now

    def opens(self, rate: Rate, permits: int, now: float) -> float:
        """Return the seconds until the rate allows `permits` more permits; 0 if it does now."""
        missing = self.used(rate, now) + permits - rate[0]
        for last, granted in self._entries:
            if missing <= 0:
                break
            missing -= granted
            if missing <= 0:
                return last + rate[1] - now
        return 0.0 if missing <= 0 else rate[1]

    def spend(self, rate: Rate, permits: int, now: float) -> None:
        """Add a grant."""
        self.tidy(rate, now)
        most = CONSTANTS["SLOTS"]
        shared = rate[0] > most or len(self._entries) >= most
        if self._entries and now - self._first <= (rate[1] / most if shared else 0):
            permits += self._entries.pop()[1]
        else:
            self._first = now
        self._entries.append((now, permits))
        self._ends = now + rate[1]
