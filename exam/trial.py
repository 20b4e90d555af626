"""The judge is judged: `python -m exam --self`.

One trial puts a lock through all that the judge has rules for, on several names at once. Planted
defects must be caught, right locks never accused, however often and on however busy a machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass

from .adapter import LEASE
from .entries import CORRECT, PLANTED, find
from .judge import (
    EARLY,
    ERROR,
    FENCE,
    HUNG,
    NEVER_FREE,
    NO_REASON,
    NOT_GIVEN,
    ORDER,
    REFUSED,
    TOLD_LATE,
    TWO_INSIDE,
    Finding,
    against,
    judge,
)
from .lab import ROOT, Hand, Lab

#: Seconds for one trial, on a machine that has much else to do.
TRIAL_SECONDS = 120


def trial(key: str) -> list[Finding]:
    """What the judge says against a lock."""
    entry = find(key)
    with Lab(entry, key) as lab:
        # Steps with pauses between them: they go on side by side.
        due = dict.fromkeys([_line(lab), _crowd(lab), _ends(lab), _punctual(lab)], 0.0)
        start = time.monotonic()
        while due:
            step = min(due, key=lambda one: due[one])
            time.sleep(max(0.0, start + due[step] - time.monotonic()))
            try:
                due[step] = time.monotonic() - start + next(step)
            except StopIteration:
                del due[step]
        return against(judge(lab.history(), entry.for_limit(1)))


Steps = Iterator[float]


def _line(lab: Lab) -> Steps:
    """Three ask one after the other for what a fourth has."""
    first, *others = _hands(lab, "line", 4)
    first.do("take", 5)
    for hand in others:
        hand.start("turn", 10, 0.1)
        yield 0.5
    first.do("give")
    yield 2.6


def _crowd(lab: Lab) -> Steps:
    """Four at once, in turns as they come."""
    yield 0.1
    for hand in _hands(lab, "crowd", 4):
        hand.start("storm", 1.5, 0.02)
    yield 3.0


def _ends(lab: Lab) -> Steps:
    """A holder is stopped past its lease and gives back what is not its own; another is killed."""
    first, second, third = _hands(lab, "ends", 3)
    first.do("take", 5)
    first.start("keep", 3.5)
    second.start("take", 6)
    yield 0.4
    first.stop()
    yield 1.9
    second.start("keep", 5)
    yield 0.5
    third.start("turn", 4.5, 0.1)
    yield 0.3
    first.resume()
    yield 0.3
    first.start("again")
    yield 0.6
    second.kill()
    yield LEASE + 2.3


def _punctual(lab: Lab) -> Steps:
    """One waits for a short time only; others find the place free."""
    first, second, brief, alone = _hands(lab, "wait", 4)
    first.do("take", 5)
    first.start("keep", 2.7)
    second.start("turn", 10, 1.7)
    yield 0.3
    brief.start("take", 0.4)
    yield 2.5
    first.start("give")
    yield 2.3
    for _ in range(4):
        alone.start("turn", 0.5, 0.05)
    yield 1.0


def _hands(lab: Lab, name: str, count: int) -> list[Hand]:
    return [lab.hand(f"{name}-{number}", name=name, warm=False) for number in range(count)]


#: What each planted defect is caught by; one of these at the least.
EXPECTED = {
    "lets all in": {TWO_INSIDE},
    "one too many": {TWO_INSIDE},
    "short lease": {TWO_INSIDE, TOLD_LATE},
    "anybody's release": {TWO_INSIDE, TOLD_LATE},
    "newest first": {ORDER},
    "forgets one": {ORDER, NOT_GIVEN, NEVER_FREE},
    "lost hand-over": {NEVER_FREE, NOT_GIVEN},
    "slow hand-over": {NEVER_FREE, NOT_GIVEN},
    "keeps the dead": {NEVER_FREE, NOT_GIVEN},
    "fence stands": {FENCE},
    "fence goes back": {FENCE},
    "hangs": {HUNG},
    "refuses": {REFUSED, EARLY},
    "never tells": {TWO_INSIDE},
    "tells late": {TOLD_LATE},
    "loses for fun": {NO_REASON},
    "raises": {ERROR},
    "gives up early": {EARLY},
    "looks, then takes": {TWO_INSIDE},
}


@dataclass(frozen=True)
class Verdict:
    """One trial: what was said of a lock, and whether that was just."""

    key: str
    found: list[Finding]

    @property
    def just(self) -> bool:
        if self.key not in PLANTED:
            return not self.found
        return bool(EXPECTED[self.key] & {one.kind for one in self.found})


def main(times: int, at_once: int, only: list[str]) -> int:
    keys = only or [*CORRECT, *PLANTED]
    print(f"{len(keys)} locks, {times} trials of each, {at_once} at once", flush=True)
    with ThreadPoolExecutor(at_once) as pool:
        verdicts = {key: [pool.submit(apart, key) for _ in range(times)] for key in keys}
        wrong = [not _tell(key, [one.result() for one in some]) for key, some in verdicts.items()]
    print(f"{sum(wrong)} of {len(keys)} judged wrongly", flush=True)
    return int(any(wrong))


def apart(key: str) -> Verdict:
    """A trial in a process of its own."""
    words = [sys.executable, "-m", "exam.trial", key]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=TRIAL_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{key}: {done.stderr[-1000:]}")
    return Verdict(key, [Finding(*one) for one in json.loads(done.stdout)])


def _tell(key: str, verdicts: list[Verdict]) -> bool:
    just = sum(one.just for one in verdicts)
    kinds = Counter(kind for one in verdicts for kind in {found.kind for found in one.found})
    said = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()) or "nothing said"
    right, number = ("caught", just) if key in PLANTED else ("accused", len(verdicts) - just)
    print(f"  {key:20} {right} in {number} of {len(verdicts)}: {said}", flush=True)
    for one in verdicts:
        if not one.just:
            print(*(f"      {found}" for found in one.found[:3]), sep="\n")
    return just == len(verdicts)


if __name__ == "__main__":
    print(json.dumps([astuple(one) for one in trial(sys.argv[1])]))
