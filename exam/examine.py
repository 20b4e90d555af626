"""Examine one lock under one fault: `python -m exam.examine LOCK FAULT` prints the result.

This process starts the servers. When this process ends, the servers end, too.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from .adapter import Adapter, find
from .checker import KINDS, Finding, check, gap, read
from .faults import FAULTS, Script, evidence_of
from .lab import Fault, Unable

#: The outcomes of a trial, the worst first. "failed" means that a finding contradicts a claim.
#: "seen" means that there are findings, but they contradict no claim. "not reached" means that the
#: harm did not reach the lock.
OUTCOMES = ("failed", "broken off", "seen", "passed", "not reached", "not applicable")


@dataclass
class Seen:
    """The result of a trial."""

    lock: str
    fault: str
    outcome: str
    found: list[Finding] = field(default_factory=list)
    free: float = 0.0  # the longest time in which the lock was free although a worker waited
    why: str = ""  # why the trial was not carried out, or doesn't count
    took: float = 0.0  # duration in seconds

    @property
    def kinds(self) -> set[str]:
        """The kinds of findings that contradict the claims."""
        return {one.kind for one in self.found if one.against}

    @property
    def rank(self) -> tuple[float, ...]:
        """Sort key for the runs of a trial. The worst run has the lowest rank."""
        kind = KINDS.index(self.found[0].kind) if self.found else len(KINDS)
        longest = self.found[0].seconds if self.found else self.free
        return OUTCOMES.index(self.outcome), kind, -longest

    @classmethod
    def read(cls, words: dict[str, Any]) -> Seen:
        return cls(**{**words, "found": [Finding(**one) for one in words["found"]]})


def examine(key: str, which: str) -> Seen:
    """Examine a lock under one fault."""
    start = time.monotonic()
    try:
        seen = _trial(key, which, find(key), FAULTS[which])
    except Unable as error:
        seen = Seen(key, which, "not applicable", why=str(error))
    except Exception as error:
        seen = Seen(key, which, "broken off", why=f"{type(error).__name__}: {error}"[:300])
    seen.took = round(time.monotonic() - start, 1)
    return seen


def _trial(key: str, which: str, lock: type[Adapter], fault: Fault) -> Seen:
    claims, flags = replace(lock.claims, limit=lock.limit), {*fault.flags.split()}
    why = lock.cannot.get(which, "")
    if "redis" in flags and not lock.needs:
        why = "it uses no Redis"
    elif fault.only == "async" and not lock.is_async():
        why = "it has no async version"
    elif fault.only == "renewed" and not claims.renewed:
        why = "it does not claim to renew"
    if why:
        raise Unable(why)
    with contextlib.ExitStack() as stack:
        script = Script(stack, lock, key, fault)
        script.play(fault.script)
        history = script.history()
    evidence = script.evidence + evidence_of(read(history).visits)
    missing = ", ".join(one for one in fault.evidence.split(", ") if not evidence[one])
    if missing and fault.without:
        raise Unable(fault.without)
    # A quorum has to survive that one of its three servers loses its data.
    found = check(history, claims, flags - {"lossy"} if lock.needs == "quorum" else flags)
    claim, _, kinds = fault.unless.partition(": ")
    if claim and not getattr(claims, claim):
        excused = kinds.split(", ") if kinds else KINDS
        found = [replace(one, against=one.against and one.kind not in excused) for one in found]
    found.sort(key=lambda one: not one.against)
    outcome = "not reached" if missing else "seen" if found else "passed"
    if found and found[0].against:
        outcome = "failed"
    why = f"the harm did not reach it; missing: {missing}" if missing else ""
    return Seen(key, which, outcome, found, round(gap(history, lock.limit), 2), why)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are stopped
    print(json.dumps(asdict(examine(*sys.argv[1:]))))
