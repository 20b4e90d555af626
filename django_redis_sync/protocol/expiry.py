"""When a lease ends at the soonest, as far as its holder knows."""

from __future__ import annotations

from .plans import TICK


class LocalExpiry:
    """The soonest end of a lease, in whichever order its renewals are executed and answered.

    Threads share it without a lock: each method reads or writes the table in one atomic step.
    """

    # Of two renewals, the server applies the one with the higher number, whichever arrives last. So
    # the answer with the highest number counts, and lower ones mean nothing. A renewal above it may
    # have been executed, or may be later; then it gives at least its own duration, counted from
    # before it was sent. Hence the soonest of these ends is the local expiry.
    __slots__ = ("_ends",)

    def __init__(self, until: float, nth: int = 0) -> None:
        #: By number: the end, and whether an answer said so.
        self._ends = {nth: (until, True)}

    @property
    def until(self) -> float:
        ends = self._ends.copy()
        if len(ends) == 1:
            return next(iter(ends.values()))[0]
        newest = max(nth for nth, (_, answered) in ends.items() if answered)
        return min(end for nth, (end, _) in ends.items() if nth >= newest)

    def asked(self, nth: int, lease: float, now: float) -> None:
        """A renewal by `lease` seconds is about to be sent."""
        self._ends[nth] = (now + lease - TICK, False)

    def answered(self, nth: int, until: float) -> None:
        self._ends[nth] = (until, True)
        ends = self._ends.copy()
        newest = max(nth for nth, (_, answered) in ends.items() if answered)
        for nth in ends:
            if nth < newest:
                self._ends.pop(nth, None)
