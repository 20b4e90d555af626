"""Put one lock through some faults: `python -m exam.examine LOCK FAULT ...` prints the results.

This process starts the servers, and they end with it.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from .adapter import find
from .checker import KINDS, PROVEN, Finding, against, check, gap, read
from .faults import FAULTS, evidence_of
from .lab import Lab, Unable

#: A trial that found a delay is repeated if processes had to wait for longer than this many
#: seconds.
DOUBT = 0.3
#: Max runs of a trial.
TIMES = 3
#: The outcomes of a trial, the worst first.
OUTCOMES = ("failed", "broken off", "seen", "passed", "not reached", "not applicable")


@dataclass
class Seen:
    """The result of a trial.

    outcome   "failed" (a finding contradicts a claim), "passed", "seen" (there are findings, but
              the lock claims nothing else), "not reached" (the harm did not reach the lock),
              "not applicable", "broken off"
    free      the longest time in seconds in which the lock was free although a worker waited
    busy      seconds for which the observer or workers could not run
    why       why the trial was not carried out, or doesn't count
    took      duration in seconds
    """

    lock: str
    fault: str
    outcome: str
    found: list[Finding] = field(default_factory=list)
    free: float = 0.0
    busy: float = 0.0
    why: str = ""
    took: float = 0.0

    @property
    def rank(self) -> tuple[float, ...]:
        """The order of two runs of a trial: the worst has the lowest rank."""
        kind = KINDS.index(self.found[0].kind) if self.found else len(KINDS)
        longest = self.found[0].seconds if self.found else self.free
        return OUTCOMES.index(self.outcome), kind, -longest

    @classmethod
    def read(cls, words: dict[str, Any]) -> Seen:
        return cls(**{**words, "found": [Finding(**one) for one in words["found"]]})


def examine(key: str, which: str) -> Seen:
    """Put a lock to one fault."""
    start = time.monotonic()
    try:
        for _ in range(TIMES):
            seen = _trial(key, which)
            if not is_doubtful(seen):
                break
    except Unable as error:
        seen = Seen(key, which, "not applicable", why=str(error))
    except Exception as error:
        seen = Seen(key, which, "broken off", why=f"{type(error).__name__}: {error}"[:300])
    seen.took = round(time.monotonic() - start, 1)
    return seen


def is_doubtful(seen: Seen) -> bool:
    """Return True if the only findings against the lock are delays, and the machine was busy."""
    kinds = {one.kind for one in against(seen.found)}
    return seen.busy > DOUBT and bool(kinds) and not kinds & PROVEN


def _trial(key: str, which: str) -> Seen:
    lock, fault = find(key), FAULTS[which]
    if which in lock.cannot:
        raise Unable(lock.cannot[which])
    if not lock.needs and fault.redis:
        raise Unable("it uses no Redis")
    with Lab(lock, key, fault.config, fault.clock) as lab:
        fault.put(lab)
        history = lab.history()
        course = read(history)
        evidence = lab.evidence + evidence_of(course.visits)
    claims = lock.promises()
    # A quorum has to survive that one of its three servers loses its data.
    lossy = fault.lossy and lock.needs != "quorum"
    found = check(history, claims, lossy=lossy, keeps=fault.keeps, retried=fault.retried)
    for number, one in enumerate(found):
        claim = fault.unless.get(one.kind) or fault.unless.get("")
        if claim and not getattr(claims, claim):
            found[number] = replace(one, against=False)
    found.sort(key=lambda one: not one.against)
    missing = [name for name in fault.evidence if not evidence[name]]
    why = f"the harm did not reach it; missing: {', '.join(missing)}" if missing else ""
    outcome = (
        "failed" if against(found) else "not reached" if missing else "seen" if found else "passed"
    )
    free, busy = gap(history, lock.limit), course.busy_in(0, math.inf)
    return Seen(key, which, outcome, found, round(free, 2), round(busy, 2), why)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are stopped
    key, *faults = sys.argv[1:]
    for which in faults:
        print(json.dumps(asdict(examine(key, which))), flush=True)


if __name__ == "__main__":
    main()
