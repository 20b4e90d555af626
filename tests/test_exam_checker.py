"""The exam's checker examines histories written by hand. For each kind of problem, there is also a
similar history without a problem."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from exam.checker import Promises, check, gap
from exam.observer import Event

pytestmark = pytest.mark.tools

PLAIN, FAIR, PUNCTUAL = Promises(max_wait=2), Promises(fair=True), Promises(punctual=True)
HARD, FENCED = Promises(lease=2), Promises(lease=2, fenced=True)  # not renewed
LEASED = Promises(lease=2, renewed=True, max_wait=2)
TELLS, RETRIES = replace(LEASED, reports_loss=True), replace(LEASED, retries=True)
HARD_TELLS = replace(HARD, reports_loss=True)


def holds(who: str, asked: float, entered: float, left: float, *more: Any) -> Any:
    """Return the events of a worker that asks for a lock, enters, and leaves, at these times in
    seconds. Every 0.1 s, the worker checks that it still holds the lock.

    An event is (at, who, what, number, name). `more`: the fence, and the name of the lock.
    """
    steps = [entered + 0.1 * n for n in range(1, 1000) if entered + 0.1 * n < left]
    checks = [(at + d, who, what) for at in steps for d, what in ((0, "probe"), (0.01, "held"))]
    start = [(asked, who, "ask", None, *more[1:]), (entered, who, "enter", *more)]
    return [*start, *checks, (left, who, "leave"), (left + 0.01, who, "released")]


def loses(who: str, entered: float, lost: float) -> Any:
    """Return the events of a worker that gets a lock at `entered` seconds. At `lost` seconds, the
    worker learns that the lock was lost."""
    start = holds(who, 0, entered, lost)[:-2]
    return [*start, (lost, who, "probe"), (lost, who, "lost")]


def fault(start: float, end: float, name: str = "") -> Any:
    return [(start, "exam", "fault", None, name), (end, "exam", "fault_end", None, name)]


A, B, C = holds("a", 0, 0.1, 1), holds("b", 0.2, 0.5, 2), holds("c", 0.2, 0.8, 2)
LATER, LONG, NEXT = holds("b", 0.2, 5, 6), holds("a", 0, 0.1, 20), holds("b", 0.6, 0.7, 9)
DEAD = [(0, "a", "ask"), (0.1, "a", "enter"), (1, "a", "died")]
DIED_WAITING = [(0.2, "w", "ask"), (0.8, "w", "died"), *A, *holds("b", 0.5, 4.5, 6)]
EARLY, LATE = [(1, "b", "ask", 2), (1.1, "b", "gave_up")], [(1, "b", "ask", 2), (6, "b", "gave_up")]
FAILED = [(1, "b", "ask"), (1.1, "b", "error")]
FORGOTTEN = [(0, "a", "ask"), (1, "a", "gave_up"), (9, "b", "ask", 0.5), (9.5, "b", "gave_up")]
HARMED, WIPED, BEFORE = fault(0.1, 1.1, "a"), fault(0.5, 0.6), fault(0, 0.1)
# In ONE, the worker holds its lock for 2.9 s, which is longer than the lease of 2 s.
ONE, OTHER = holds("a", 0, 0.1, 3), holds("b", 0.2, 2.1, 3.9)
PASSED = [*A, *holds("b", 0.2, 2.5, 3), *holds("c", 0.8, 1.1, 1.5)]
PAUSED = [*holds("a", 0, 0.1, 0.3)[:-2], (0.31, "a", "stopped", 0.3), (2.4, "a", "resumed"),
          (2.5, "a", "probe"), (2.5, "a", "lost")]  # fmt: skip
REFUSED = [(2, "b", "ask", 0), (2.1, "b", "gave_up")]
STOPPED = [*A[:-2], (1.02, "a", "stopped", 1.0), (4.02, "a", "resumed"), (4.03, "a", "probe")]
RESUMED = [*STOPPED, (4.03, "a", "held"), (4.5, "a", "leave"), (4.6, "a", "released")]
SLOW_CHECK = [*DEAD[:2], (0.9, "a", "probe"), (1.2, "a", "held"), (1.25, "a", "lost")]


def history(lines: Any) -> list[Event]:
    """Return `lines` as events. Each worker in `lines` has a process of its own."""
    workers: dict[str, int] = {}
    made = []
    for at, who, what, *rest in sorted(lines, key=lambda line: line[0]):
        worker = workers.setdefault(who, len(workers) + 1)
        number = rest[0] if rest else None
        name = rest[1] if len(rest) == 2 else "" if what in ("fault", "fault_end", "busy") else "x"
        made.append(Event(at, f"{worker}", 100 + worker, who, what, name, number))
    return made


@pytest.mark.parametrize(
    ("promises", "lines", "expected"),
    [
        # More workers inside than the limit allows
        *[(one, [*A, *holds("b", 0.2, 1.1, 2)], "") for one in (PLAIN, LEASED, TELLS)],
        *[(one, [*A, *B], "two inside") for one in (PLAIN, LEASED, TELLS)],
        (PLAIN, [*A, *holds("b", 0.2, 0.5, 2, None, "another lock")], ""),
        (Promises(limit=3), [*A, *B, *C], ""),
        (Promises(limit=2), [*A, *B, *C], "two inside"),
        (PLAIN, [(0, "a", "ask"), (0.1, "a", "enter"), (0.6, "a", "died"), *B], ""),
        (TELLS, [*BEFORE, *loses("a", 0.1, 1), *holds("b", 0.2, 1.05, 2)], ""),
        (TELLS, [*BEFORE, *loses("a", 0.1, 1.5), *holds("b", 0.2, 0.7, 2)], "loss reported late"),
        (TELLS, [*SLOW_CHECK, *holds("b", 0.2, 1, 2)], ""),  # "a" provably held only until 0.9 s
        (TELLS, [*STOPPED, (4.04, "a", "lost"), *holds("b", 0.2, 3.1, 3.9)], ""),
        (TELLS, [*RESUMED, *holds("b", 0.2, 3.1, 5)], "two inside"),
        (LEASED, [*RESUMED, *holds("b", 0.2, 3.1, 5)], "(past its lease)"),
        (LEASED, [*ONE, *OTHER], "two inside"),
        (LEASED, [*ONE, *OTHER, (1.5, "x", "busy", 0.3, "101")], "(past its lease)"),
        (HARD, [*ONE, *OTHER], "(past its lease)"),
        # A lease may begin up to 0.3 s before the worker enters. If a fault delayed the reply, the
        # lease may begin with the fault.
        (HARD, [*OTHER, *holds("c", 2.2, 3.7, 4)], "two inside"),
        (HARD, [*OTHER, *holds("c", 2.2, 3.85, 4)], "(past its lease)"),
        (HARD, [*OTHER, *holds("c", 2.2, 2.6, 4), *fault(0.3, 2.1)], "(past its lease)"),
        (HARD, [*OTHER, *holds("c", 2.2, 2.6, 4), *fault(0.3, 1.4)], "two inside"),
        # A holder may take `lease` + `max_wait`, here 4 s, to learn that the data was lost.
        ((TELLS, "lossy"), [*WIPED, *loses("a", 0.1, 1.5), *NEXT], "(loss reported late)"),
        ((TELLS, "lossy"), [*WIPED, *holds("a", 0, 0.1, 8), *NEXT], "loss never reported"),
        ((LEASED, "lossy"), [*WIPED, *holds("a", 0, 0.1, 8), *NEXT], "(two inside)"),
        # Fences
        (FENCED, [*holds("a", 0, 0.1, 1, 7), *holds("b", 1.1, 1.2, 2, 7)], "fence went back"),
        (FENCED, [*holds("a", 0, 0.1, 1, 8), *holds("b", 0, 1.2, 2, 7)], ""),  # concurrent requests
        (FENCED, [*holds("a", 0, 0.1, 3, 7), *holds("b", 0.2, 2.1, 3.5, 8)], "(past its lease)"),
        ((FENCED, "lossy"), [*holds("a", 0, 0.1, 1, 7), *holds("b", 1.1, 1.2, 2)],
         "(fence went back)"),
        # A permit is free, but not granted
        (Promises(lease=2, max_wait=2), DIED_WAITING, ""),  # "w" may have died with a permit
        (HARD, [*holds("a", 0, 0.1, 9), *holds("b", 0.3, 9.05, 10)], ""),
        (LEASED, [*DEAD, *holds("b", 0.2, 7, 8)], "free but not granted"),
        (LEASED, [*DEAD, *holds("b", 0.2, 4.5, 5)], ""),
        (PLAIN, [*DEAD, *holds("b", 0.2, 7, 8)], "(free but not granted)"),
        (HARD, [*DEAD, (0.2, "b", "ask"), (6, "c", "ask"), (12, "x", "fault")], "never free again"),
        (PLAIN, [*A, *LATER, *fault(1, 4.9)], ""),
        (Promises(), [*A, *LATER], "(free but not granted)"),
        (Promises(), [*A, *holds("b", 0.2, 9, 10)], "free but not granted"),
        (Promises(), [*A, *holds("b", 0.2, 9, 10), *BEFORE], "(free but not granted)"),
        # If a process had to wait for a processor, the checker accepts a delay of up to three times
        # this wait.
        (PLAIN, [*A, *holds("b", 0.2, 4, 6), (3.5, "x", "busy", 0.5)], ""),
        (PLAIN, [*A, *holds("b", 0.2, 4, 6), (3.5, "x", "busy", 0.2)], "free but not granted"),
        (PLAIN, [*A, *holds("b", 0.2, 9, 10), (8.5, "x", "busy", 7.0)], "free but not granted"),
        (PLAIN, [*A, *REFUSED], "refused though free"),
        (PLAIN, [*holds("a", 0, 0.1, 2.05), *REFUSED], ""),
        (Promises(retries=True), [*HARMED, *FORGOTTEN], "refused though free"),
        (Promises(retries=True), [*HARMED, *FORGOTTEN, (9.4, "x", "busy", 0.1)], ""),
        (Promises(), [*HARMED, *FORGOTTEN], ""),
        # Order of grants, losses of leases, and rejections
        (FAIR, PASSED, "order broken"),
        (PLAIN, PASSED, ""),
        (FAIR, [*A, *holds("b", 0.7, 2.5, 3), *holds("c", 0.8, 1.1, 1.5)], ""),
        (HARD_TELLS, loses("a", 0.1, 0.5), "lost without reason"),
        (HARD_TELLS, loses("a", 0.1, 1.3), ""),  # lost in the second half of the lease
        (HARD, loses("a", 0.1, 0.5), ""),
        (TELLS, [*DEAD[:2], (1.2, "a", "probe"), (1.2, "a", "lost")], ""),  # "a" hung for 1 s
        (TELLS, PAUSED, ""),
        (TELLS, [*fault(0.3, 0.9), *loses("a", 0.1, 0.5)], ""),
        ((TELLS, "keeps"), [*fault(0.3, 0.9), *loses("a", 0.1, 0.5)], ""),
        ((RETRIES, "keeps"), [*fault(0.3, 0.9), *loses("a", 0.1, 0.5)], "lost without reason"),
        (PUNCTUAL, [*LONG, *LATE], "came back late"),
        (PLAIN, [*LONG, *LATE], "(came back late)"),
        (PUNCTUAL, [*LONG, *EARLY], "gave up early"),
        (PLAIN, [*WIPED, *FAILED], ""),
        (PLAIN, [*fault(0.5, 1.5, "c"), *FAILED], "error"),  # the fault affected "c", not "b"
        ((RETRIES, "retried"), [*WIPED, *FAILED], "error"),
    ],
)  # fmt: skip
def test_checker_reports_exactly_the_expected_problems(
    promises: Any, lines: Any, expected: str
) -> None:
    promises, *flags = promises if isinstance(promises, tuple) else [promises]
    found = check(history(lines), promises, flags)
    assert expected == ", ".join(one.kind if one.breach else f"({one.kind})" for one in found)


def test_exam_checker_measures_late_reports_and_gaps_without_a_holder() -> None:
    found, *_ = check(history([*loses("a", 0.1, 1.5), *holds("b", 0.2, 0.7, 2)]), TELLS)
    text = "loss reported late for 0.70 s, at 0.70 s: a got the report +0.80 s after b entered, b"
    assert str(found).startswith(text)
    died = [(0, "a", "ask"), (0.1, "a", "enter"), (0.6, "a", "died")]
    assert 1.5 == pytest.approx(gap(history([*died, *holds("b", 0.2, 2.1, 3)])))
    assert 0.1 == gap(history([*A, *holds("b", 2, 2, 3)]))
