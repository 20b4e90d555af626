"""Samples of shares: which shares of a name had the most permits, by the quarter of an hour."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from ..protocol.keys import Keys
from ..protocol.scripts import CONSTANTS
from ..protocol.steps import Failure, Run
from .server import Server
from .statistics import Use
from .wire import ROUND, clock, decoded, whole

#: Seconds between two samples.
INTERVAL = 20.0
#: Seconds for which a name without shares is not examined again.
SKIP_FOR = 600.0
#: Max names of a sample, and max names that are remembered as names without shares.
MOST_NAMES, MOST_SKIPPED = 20, 10_000
#: Max shares that are stored for a quarter of an hour.
MOST_SHARES = 10
QUARTER = CONSTANTS["QUARTER"]


def samples_key(keys: Keys) -> str:
    """Return the Redis key of a hash with the samples of a name. A field `MINUTE:SHARE` has the sum
    of the permits of the share in all samples of the quarter of an hour that begins at MINUTE,
    counted from 1970. The share is quoted.

    Each process that uses the name adds its samples, so only the ratios of the sums mean
    something."""
    return keys.leases.removesuffix("leases") + "samples"


class ShareSampler:
    """The housekeeping chore that samples the shares of the names in use. `uses`: a function that
    returns the leases and waiters of this process."""

    def __init__(self, uses: Callable[[], Iterable[Use]]) -> None:
        self._uses = uses
        self.due = math.inf
        self._skipped: dict[str, float] = {}  # until when to skip a name

    def expect(self) -> None:
        """Schedule a sample, unless one is scheduled. Call this after a use began."""
        if self.due == math.inf:
            self.due = clock() + INTERVAL

    def run(self, server: Server, now: float, leaving: bool) -> None:
        self.due = math.inf
        if leaving or getattr(server, "quorum", None) is not None:
            return
        every = {named.keys.leases: named.keys for named, _, _ in self._uses() if named.keys.keep}
        if every:
            self.due = now + INTERVAL
        some = [key for key in every if self._skipped.get(key, 0.0) <= now][:MOST_NAMES]
        names = [every[key] for key in some]
        steps = [Run("inspect", keys.declared, ("", 1), ROUND) for keys in names]
        answers = server.many(steps) if steps else []
        for keys, answer in zip(names, answers, strict=True):
            if isinstance(answer, Failure):
                continue
            shares = answer.reply[12:]
            if shares and shares[2]:
                rows = shares[2]
                used = dict(zip(rows[::3], map(whole, rows[1::3]), strict=True))
                self._write(server, keys, used, int(answer.reply[0]) // 60_000)
            else:
                if len(self._skipped) >= MOST_SKIPPED:
                    self._skipped.clear()
                self._skipped[keys.leases] = now + SKIP_FOR

    def _write(self, server: Server, keys: Keys, used: dict[str, int], minute: int) -> None:
        """Add a sample. Remove samples that are too old, and the lightest shares."""
        key, start = samples_key(keys), f"{minute - minute % QUARTER}:"
        for share, permits in used.items():
            if permits:
                server.command("HINCRBY", key, start + share, permits, timeout=ROUND)
        reply = decoded(server.command("HGETALL", key, timeout=ROUND))
        if not isinstance(reply, dict):  # in RESP2
            reply = dict(zip(reply[::2], reply[1::2], strict=True))
        mine = sorted((f for f in reply if f.startswith(start)), key=lambda f: -whole(reply[f]))
        oldest = minute - keys.keep
        old = [field for field in reply if whole(field.partition(":")[0]) < oldest]
        if gone := [*mine[MOST_SHARES:], *old]:
            server.command("HDEL", key, *gone, timeout=ROUND)
        server.command("PEXPIRE", key, keys.keep * 60_000, timeout=ROUND)
