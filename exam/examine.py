"""One lock through some faults: `python -m exam.examine ENTRY FAULT ...` prints what was seen.

A process of its own for each lock: it starts the servers, and they end with it.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from .entries import find
from .faults import FAULTS, Fault
from .judge import FENCE, NEVER_TOLD, TOLD_LATE, TWO_INSIDE, Claims, Finding, gap, judge
from .lab import Lab, Unable

#: Seconds without a turn of the witness that make a finding doubtful; how often it is put then.
DOUBT, TIMES = 0.3, 3
#: These are seen on any machine as they were.
PROVEN = {TWO_INSIDE, NEVER_TOLD, TOLD_LATE, FENCE}


@dataclass
class Seen:
    """What came of a fault. `why`: it was not put, or could not be carried through.

    outcome   "passed", "failed" (against what it claims), "seen" (claims nothing of it),
              "not applicable", "broken off"
    free      the longest time in which somebody waited and nobody was inside
    busy      seconds in which the witness got no turn
    """

    entry: str
    fault: str
    outcome: str
    found: list[Finding] = field(default_factory=list)
    free: float = 0.0
    busy: float = 0.0
    why: str = ""
    took: float = 0.0

    @classmethod
    def read(cls, words: dict[str, Any]) -> Seen:
        return cls(**{**words, "found": [Finding(**one) for one in words["found"]]})


def examine(key: str, which: str) -> Seen:
    """Put a lock to one fault."""
    start = time.monotonic()
    try:
        for _ in range(TIMES):
            seen = _put(key, which)
            if not _doubtful(seen):
                break
    except Unable as error:
        seen = Seen(key, which, "not applicable", why=str(error))
    except Exception as error:
        seen = Seen(key, which, "broken off", why=f"{type(error).__name__}: {error}"[:300])
    seen.took = round(time.monotonic() - start, 1)
    return seen


def _doubtful(seen: Seen) -> bool:
    """Whether it waited for too long on a machine that was busy elsewhere: it is put again."""
    kinds = {one.kind for one in seen.found if one.against}
    return bool(kinds) and not kinds & PROVEN and seen.busy > DOUBT


def _put(key: str, which: str) -> Seen:
    entry, fault = find(key), FAULTS[which]
    if which in entry.cannot:
        raise Unable(entry.cannot[which])
    if fault.limit > entry.most:
        raise Unable(f"its limit is {entry.most}")
    if entry.needs not in ("redis", "quorum") and (fault.config or fault.clock):
        raise Unable("it uses no Redis")
    with Lab(entry, key, fault.limit, fault.config, fault.clock) as lab:
        fault.put(lab)
        history = lab.history()
    claims = entry.for_limit(fault.limit)
    # One server of three that forgets is what a quorum is for.
    lossy = fault.lossy and entry.needs != "quorum"
    found = judge(history, claims, lossy=lossy, keeps=fault.keeps, retried=fault.retried)
    found = [_with_reason(one, fault, claims) for one in found]
    found.sort(key=lambda one: not one.against)
    outcome = "failed" if any(one.against for one in found) else "seen" if found else "passed"
    busy = sum(one.number or 0 for one in history if one.what == "busy")
    return Seen(key, which, outcome, found, round(gap(history, fault.limit), 2), round(busy, 2))


def _with_reason(found: Finding, fault: Fault, claims: Claims) -> Finding:
    """Not held against a lock that does not make the claim it takes."""
    claim = fault.unless.get(found.kind) or fault.unless.get("")
    excused = claim is not None and not getattr(claims, claim)
    return replace(found, against=False) if excused else found


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that its servers end with it
    key, *faults = sys.argv[1:]
    for which in faults:
        print(json.dumps(asdict(examine(key, which))), flush=True)


if __name__ == "__main__":
    main()
