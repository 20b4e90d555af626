"""The local expiry of a lease and its next renewal. The tests need no server and no clock."""

from __future__ import annotations

import itertools
import math
import sys
from types import FrameType
from typing import Any

import pytest

from django_redis_sync import LeaseLost, NotAcquired
from django_redis_sync.locks.lease_state import LeaseSettings, LeaseState, Lost
from django_redis_sync.protocol.plans import Answer, Failure, Run
from django_redis_sync.protocol.renewals import Grant
from tests.behaviour.watching import View

pytestmark = pytest.mark.promise(8)

KEYS = View(None, "n").keys  # type: ignore[arg-type]
GONE, FAILURE = Lost("Redis no longer has the lease"), Failure(OSError("refused"), 101.0, "final")
EXPIRED = Lost("the lease expired")


def state_of(
    timeout: float = 30.0, renew: bool = True, max_hold: float = math.inf, permits: int = 1
) -> LeaseState:
    """Return the state of a lease that was granted at 100 s for `timeout` seconds."""
    terms = LeaseSettings(KEYS, "default", timeout, renew, max_hold, 0.0)
    ends = 100.0 + timeout
    return LeaseState(terms, Grant("t", 7, permits, 100.0, ends, ends, False), 0, 100.0)


def ok(seconds: float, sent: float) -> Answer:
    return Answer(["ok", f"{seconds * 1000:.0f}"], sent, sent)


def background(state: LeaseState, now: float) -> Run:
    """Return the step that sends the background renewal due at `now`."""
    step = state.next_renewal(now)
    assert isinstance(step, Run), step
    return step


class Renewal:
    """A renewal that the holder requests. Creating the object sends the request."""

    def __init__(self, state: LeaseState, seconds: float, now: float, leaving: bool = False):
        self.plan: Any = state.renewal(seconds, now, leaving)
        self.step, self.arguments = next(self.plan), (seconds, now)

    def answer(self) -> Any:
        """Send the server's reply to the plan. Return the next step, or the result of the plan."""
        try:
            return self.plan.send(ok(*self.arguments))
        except StopIteration as stop:
            return stop.value

    def fail(self, error: BaseException = FAILURE) -> None:
        with pytest.raises(type(error)):
            self.plan.throw(error)


def about(seconds: float) -> Any:
    return pytest.approx(seconds, abs=0.01)


# Renewals in the background


@pytest.mark.parametrize(
    ("max_hold", "request_ms", "until", "due"),
    [(math.inf, "30001", 140.0, 120.0), (35.0, "25001", 135.0, 134.75)],
)
def test_background_renewal_is_due_after_a_third_of_the_lease_duration(
    max_hold: float, request_ms: str, until: float, due: float
) -> None:
    state = state_of(30, max_hold=max_hold)
    assert 110.0 == state.due
    step = background(state, 110.0)
    assert ("renew", "set", request_ms) == (step.verb, *step.argv[2:4])
    assert state.renewal_done(step, ok(int(request_ms) / 1000, 110.0), 110.0) is None
    assert (about(until), about(due)) == (state.until, state.due)


@pytest.mark.parametrize(("timeout", "pause"), [(60.0, 1.0), (5.0, 0.5), (0.3, 0.05)])
def test_failed_renewal_is_retried_after_a_short_pause(timeout: float, pause: float) -> None:
    state = state_of(timeout)
    now = state.due
    assert state.renewal_done(background(state, now), FAILURE, now) is None
    assert pytest.approx(now + pause) == state.due


def test_lease_whose_renewals_fail_is_lost_shortly_before_its_end() -> None:
    state = state_of(3)
    step = background(state, 101.0)
    for now, due in ((102.0, 102.3), (102.8, 102.85)):
        assert state.renewal_done(step, FAILURE, now) is None
        assert (pytest.approx(due), about(102.85)) == (state.due, state.deadline)
    assert state.held(102.84)
    assert Lost("the lease could not be renewed") == state.next_renewal(102.86)


def test_lease_is_held_before_its_end_and_lost_at_its_end() -> None:
    state, unrenewed = state_of(10), state_of(10, renew=False)
    assert [(True, 0.5), (False, 0.0), (False, 0.0)] == [
        (state.held(now), state.remaining(now)) for now in (109.5, 110.0, 111.0)
    ]
    assert "the lease of 'n' is no longer held: expired" == str(state.lost_error())
    assert Lost("the lease expired before a renewal") == state.next_renewal(110.0)
    assert (110.0, None) == (unrenewed.due, unrenewed.next_renewal(105.0))
    assert EXPIRED == unrenewed.next_renewal(110.0)


# The end


def test_lost_lease_is_not_renewed_and_can_be_lost_only_once() -> None:
    state, gone = state_of(), Answer(["lost"], 110.0, 110.0)
    step = background(state, 110.0)
    assert GONE == state.renewal_done(step, gone, 110.0)
    assert [True, False] == [state.lose("a reason"), state.lose("another")]
    assert (False, 0.0, None) == (state.held(110), state.remaining(110), state.next_renewal(120))
    assert state.renewal_done(step, gone, 110.0) is None
    assert (math.inf, math.inf) == (state.due, state.deadline)


@pytest.mark.parametrize("how", ["lost", "released", "detached"])
def test_ended_lease_raises_lease_lost_with_the_reason(how: str) -> None:
    state = state_of(permits=0)
    {"lost": lambda: state.lose("lost"), "released": state.end, "detached": state.detached}[how]()
    for method, *args in (
        (state.renewal, 9.0, 101.0),
        (state.downgrading, 101.0),
        (state.renewed, 1),
    ):
        with pytest.raises(LeaseLost, match=how):
            method(*args)


def test_release_raises_if_the_lease_is_already_released_or_lost() -> None:
    state, lost = state_of(), state_of()
    state.end()
    with pytest.raises(NotAcquired, match="'n' was released already"):
        state.end()
    assert [None, GONE] == [state.released(True), state.released(False)]
    assert state.lose("the loss that the release found can be reported")
    lost.lose("the lease could not be renewed")
    lost.end()
    with pytest.raises(LeaseLost, match="could not be renewed"):
        lost.released(True)  # Redis released it


def test_only_one_of_two_concurrent_threads_marks_a_lease_as_lost() -> None:
    """In round N, the second call runs before bytecode instruction N of the first call. Round 0 has
    no second call: Python 3.12.1 has no opcode events in the first call that is traced."""
    before = sys.gettrace()
    for nth in itertools.count():
        state, results, steps = state_of(), list[bool](), itertools.count(1)

        def trace(frame: FrameType, event: str, _: Any, at: Any = (state, results, steps, nth)):  # type: ignore[no-untyped-def]
            state, results, steps, nth = at
            frame.f_trace_opcodes = True
            if event == "opcode" and next(steps) == nth:
                results.append(state.lose("another thread's"))
            return trace if frame.f_code is LeaseState.lose.__code__ else None

        sys.settrace(trace)
        try:
            results.append(state.lose("mine"))
        finally:
            sys.settrace(before)
        assert 1 == results.count(True), f"the other call ran before bytecode {nth}"
        if nth and len(results) == 1:
            break
    assert nth > 5, "too few interruptions"


# Renewals by the holder, and renewals that overlap


def test_lease_that_became_permanent_needs_no_further_renewal() -> None:
    state = state_of()
    renewal = Renewal(state, math.inf, 100.0)
    assert "register" == renewal.step.verb
    assert ("set", "inf") == renewal.answer().argv[2:4]
    assert renewal.answer() is None
    state.renewed(100.0)
    assert (math.inf, None) == (state.until, state.next_renewal(1e6))


@pytest.mark.parametrize(
    "events",
    [
        # A request of a renewal: (name, requested duration, time, expected local expiry). Its
        # outcome: (name, outcome, expected local expiry).
        [("a", 60, 101.0, 130), ("b", 3, 102.0, 105), ("b", "answer", 105), ("a", "answer", 105)],
        [("a", 40, 101.0, 130), ("b", 60, 102.0, 130), ("a", "answer", 141), ("b", "answer", 162)],
        [("a", 3, 101.0, 104), ("a", "fail", 104), ("b", 60, 103.0, 104), ("b", "answer", 163)],
    ],
)
def test_local_expiry_is_the_earliest_expiry_that_concurrent_renewals_may_set(events: Any) -> None:
    state, renewals = state_of(), dict[str, Renewal]()
    for name, *event, until in events:
        if len(event) == 2:
            renewals[name] = Renewal(state, *event)
        else:
            getattr(renewals[name], event[0])()
        assert about(until) == state.until, (name, event)
        assert state.until < until or until == 130, "not earlier than on the server"


def test_background_renewal_keeps_the_longest_duration_of_unanswered_renewals() -> None:
    state = state_of(3)
    longer, _ = Renewal(state, 60, 100.5), Renewal(state, 10, 100.5)
    assert 59_500 == pytest.approx(int(background(state, 101.0).argv[3]), abs=10)
    longer.answer()
    due = state.due
    assert state.next_renewal(due) is None  # not due: the lease lasts longer than its timeout
    assert state.due > due + 1


def test_unanswered_renewals_do_not_change_the_expiry_of_a_detached_lease() -> None:
    state = state_of(3)
    detaching, other = Renewal(state, 3.5, 100.0, leaving=True), Renewal(state, 1, 100.0)
    assert int(background(state, 100.5).argv[3]) <= 3_000
    again = detaching.answer()
    assert isinstance(again, Run) and again.argv[4] > other.step.argv[4], again
    assert detaching.answer() is None
    other.answer()
    assert about(103.5) == state.until


@pytest.mark.parametrize("error", [FAILURE, KeyboardInterrupt()], ids=["failed", "interrupted"])
def test_lease_is_renewed_after_a_failed_detach(error: BaseException) -> None:
    state = state_of()
    Renewal(state, 60, 100.0, leaving=True).fail(error)
    assert "30001" == background(state, 110.0).argv[3]


def test_renew_option_decides_if_a_shortened_lease_is_renewed() -> None:
    state, unrenewed = state_of(), state_of(renew=False)
    for each in (state, unrenewed):
        shorter = Renewal(each, 3, 101.0)
        assert each.due <= 104
        shorter.answer()
        each.renewed(101.0)
    assert "30001" == background(state, state.due).argv[3]
    assert EXPIRED == unrenewed.next_renewal(104.0)


def test_lease_with_renew_false_keeps_its_expiry_after_a_failed_renewal() -> None:
    state = state_of(10, renew=False)
    Renewal(state, 60, 101.0).fail()
    assert [None, EXPIRED] == [state.next_renewal(105.0), state.next_renewal(110.0)]
