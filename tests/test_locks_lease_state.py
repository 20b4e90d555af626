"""What may be believed of a lease, and what its keeper does next: without server or clock."""

from __future__ import annotations

import math
import sys
from types import FrameType
from typing import Any

import pytest
from redis import exceptions as errors

from django_redis_sync.exceptions import LeaseLost, NotAcquired
from django_redis_sync.locks.lease_state import LeaseSettings, LeaseState, Lost
from django_redis_sync.protocol import plans
from django_redis_sync.protocol.keys import keys_of
from django_redis_sync.protocol.plans import Answer, Failure, Grant, Run

pytestmark = pytest.mark.promise(8)

KEYS = keys_of("p", "n")


def state_of(
    timeout: float = 30.0, renew: bool = True, max_hold: float = math.inf, **grant: Any
) -> LeaseState:
    """Granted at 100 for its whole time."""
    terms = LeaseSettings(KEYS, "default", timeout, renew, max_hold, 0.0)
    ends = 100.0 + timeout
    given = {"token": "t", "fence": 7, "permits": 1, "began": 100.0, "until": ends, "ends": ends}
    return LeaseState(terms, Grant(**{**given, "unanswered": False, **grant}), 0, 100.0)


def ok(seconds: float, sent: float) -> Answer:
    return Answer(["ok", str(int(seconds * 1000))], sent, sent)


def test_it_is_looked_at_after_a_third_of_its_time_and_renewed_for_all_of_it() -> None:
    state = state_of(30)
    assert 110.0 == state.due
    step = state.next_renewal(110.0)
    assert isinstance(step, Run)
    assert ("renew", "set", "30001") == (step.verb, step.argv[2], step.argv[3])
    assert state.renewal_done(step, ok(30, 110.0), 110.0) is None
    assert 139.999 == pytest.approx(state.until)
    assert 120.0 == pytest.approx(state.due, abs=0.01)


@pytest.mark.parametrize(("timeout", "pause"), [(60.0, 1.0), (5.0, 0.5), (0.3, 0.05)])
def test_a_renewal_that_failed_is_tried_again_soon(timeout: float, pause: float) -> None:
    state = state_of(timeout)
    step = state.next_renewal(state.due)
    assert isinstance(step, Run)
    failed = Failure(errors.ConnectionError("refused"), state.due, "unreachable")
    at = state.due
    assert state.renewal_done(step, failed, at) is None
    assert at + pause == pytest.approx(state.due)


def test_a_lease_may_be_renewed_without_end() -> None:
    state = state_of(30)
    plan = state.renewal(math.inf, 100.0)
    assert ("set", "inf") == plan.send(None).argv[2:4]  # type: ignore[arg-type,union-attr]
    with pytest.raises(StopIteration):
        plan.send(Answer(["ok", "inf"], 100.0, 100.0))
    state.renewed(100.0)
    assert (math.inf, None) == (state.until, state.next_renewal(1e6))


def test_of_two_renewals_under_way_the_keeper_asks_for_the_longer() -> None:
    state = state_of(30)
    for seconds in (90.0, 10.0):
        state.renewal(seconds, 100.0)
    step = state.next_renewal(104.0)
    assert isinstance(step, Run)
    assert 86_000 == pytest.approx(int(step.argv[3]), abs=10)


def test_a_hard_lease_is_looked_at_when_it_ends() -> None:
    state = state_of(10, renew=False)
    assert 110.0 == state.due
    assert state.next_renewal(105.0) is None
    assert Lost("it expired") == state.next_renewal(110.0)


def test_it_is_given_up_shortly_before_the_server_may_give_it_away() -> None:
    state = state_of(3)
    step = state.next_renewal(101.0)
    assert isinstance(step, Run)
    assert state.renewal_done(step, Failure(OSError(), 102.0, "unanswered"), 102.0) is None
    assert 102.3 == pytest.approx(state.due)
    assert state.renewal_done(step, Failure(OSError(), 102.8, "unanswered"), 102.8) is None
    assert 102.85 == pytest.approx(state.due)
    assert state.held(102.84)
    assert Lost("it could not be renewed") == state.next_renewal(102.86)


def test_it_is_never_renewed_past_max_hold() -> None:
    state = state_of(30, max_hold=35)
    step = state.next_renewal(110.0)
    assert isinstance(step, Run) and "25001" == step.argv[3]
    state.renewal_done(step, ok(25.001, 110.0), 110.0)
    assert 135.0 == pytest.approx(state.until)
    assert 134.75 == pytest.approx(state.deadline) == pytest.approx(state.due)


def test_it_is_held_until_its_end_and_not_at_it() -> None:
    state = state_of(30)
    assert [True, False, False] == [state.held(now) for now in (129.9, 130.0, 131.0)]
    assert [0.5, 0.0, 0.0] == [state.remaining(now) for now in (129.5, 130.0, 131.0)]
    assert "the lease of 'n' is no longer held: expired" == str(state.lost_error())
    assert state.next_renewal(130.0) == Lost("it was not renewed in time")
    assert state_of(30, renew=False).next_renewal(130.0) == Lost("it expired")


def test_what_is_lost_is_lost_once() -> None:
    state = state_of()
    assert state.lose("a reason")
    assert not state.lose("another")
    assert not state.held(100.0) and 0.0 == state.remaining(100.0)
    with pytest.raises(LeaseLost, match="a reason"):
        state.check_ours()


def test_what_is_lost_is_looked_after_no_more() -> None:
    state = state_of()
    step = state.next_renewal(110.0)
    assert isinstance(step, Run)
    state.lose("a reason")
    assert (None, math.inf) == (state.next_renewal(120.0), state.due)
    assert state.renewal_done(step, Answer(["lost"], 110.0, 110.0), 110.0) is None
    assert math.inf == state.due


def test_it_is_given_back_once() -> None:
    state = state_of()
    state.end()
    with pytest.raises(NotAcquired, match="released already"):
        state.end()
    assert state.released(True) is None


def test_a_loss_that_only_its_release_found_is_still_to_be_told() -> None:
    state = state_of()
    state.end()
    assert Lost("Redis no longer has it") == state.released(False)
    assert state.lose("Redis no longer has it")


# Renewals that overlap


def answered(plan: Any, seconds: float, sent: float) -> Lost | None:
    """Hear the answer to a plan that has sent its renewal."""
    try:
        plan.send(ok(seconds, sent))
    except StopIteration as stop:
        result: Lost | None = stop.value
        return result
    raise AssertionError("the plan goes on")


def test_of_two_renewals_in_flight_the_soonest_end_is_believed() -> None:
    state = state_of(30)
    longer = state.renewal(60, 101.0)
    next(longer)
    shorter = state.renewal(3, 102.0)
    next(shorter)
    assert 105.0 == pytest.approx(state.until, abs=0.01)
    answered(shorter, 3, 102.0)
    answered(longer, 60, 101.0)  # the server ran it before the other
    assert 105.0 == pytest.approx(state.until, abs=0.01)


def test_an_answer_says_nothing_of_a_later_renewal() -> None:
    state = state_of(30)
    first, later = state.renewal(40, 101.0), state.renewal(60, 102.0)
    next(first)
    next(later)
    answered(first, 40, 101.0)
    assert 141.0 == pytest.approx(state.until, abs=0.01)
    answered(later, 60, 102.0)
    assert 162.0 == pytest.approx(state.until, abs=0.01)


def test_a_renewal_without_an_answer_may_be_run_at_any_time() -> None:
    state = state_of(30)
    lost = state.renewal(3, 101.0)
    next(lost)
    with pytest.raises(Failure):
        lost.throw(Failure(OSError(), 111.5, "final"))
    assert 104.0 == pytest.approx(state.until, abs=0.01)
    assert state.next_renewal(state.due) is not None
    later = state.renewal(60, 103.0)
    next(later)
    assert 104.0 == pytest.approx(state.until, abs=0.01)
    answered(later, 60, 103.0)  # the server heeds the other no more
    assert 163.0 == pytest.approx(state.until, abs=0.01)


def test_the_keeper_asks_for_no_less_than_its_holder_does() -> None:
    state = state_of(3)
    plan = state.renewal(60, 100.5)
    next(plan)
    step = state.next_renewal(state.due)
    assert isinstance(step, Run) and int(step.argv[3]) > 58_000
    answered(plan, 60, 100.5)
    due = state.due
    assert state.next_renewal(due) is None  # it has all that it may have
    assert state.due > due + 1


def test_the_keeper_asks_for_no_more_than_a_detached_lease_is_to_have() -> None:
    state = state_of(3)
    plan = state.renewal(3.5, 100.0, leaving=True)
    next(plan)
    step = state.next_renewal(101.0)
    assert isinstance(step, Run) and int(step.argv[3]) <= 2_500


def test_a_detached_lease_that_another_thread_cut_short_is_renewed_once_more() -> None:
    state = state_of(30)
    plan = state.renewal(60, 100.0, leaving=True)
    first = next(plan)
    other = state.renewal(3, 100.0)
    next(other)
    again = plan.send(ok(60, 100.0))
    assert plans.number_of(first) < plans.number_of(again)
    answered(plan, 60, 100.0)
    answered(other, 3, 100.0)
    assert 160.0 == pytest.approx(state.until, abs=0.01)


@pytest.mark.parametrize(
    "error",
    [Failure(errors.ConnectionError("refused"), 101.0, "final"), KeyboardInterrupt()],
    ids=["failed", "interrupted"],
)
def test_a_lease_that_could_not_be_detached_is_renewed_on(error: BaseException) -> None:
    state = state_of(30)
    plan = state.renewal(60, 100.0, leaving=True)
    next(plan)
    with pytest.raises(type(error)):
        plan.throw(error)
    step = state.next_renewal(110.0)
    assert isinstance(step, Run) and "30001" == step.argv[3]


def test_a_lease_that_was_called_lost_was_not_given_back_whatever_the_server_says() -> None:
    state = state_of(30)
    state.lose("it could not be renewed")
    state.end()
    with pytest.raises(LeaseLost, match="could not be renewed"):
        state.released(True)


def test_a_shorter_hard_lease_stays_shorter() -> None:
    state = state_of(30, renew=False)
    plan = state.renewal(3, 101.0)
    next(plan)
    assert 104.0 == pytest.approx(state.due, abs=0.01)
    answered(plan, 3, 101.0)
    state.renewed(101.0)
    assert Lost("it expired") == state.next_renewal(104.0)


def test_a_hard_lease_that_could_not_be_made_longer_ends_when_it_would_have() -> None:
    state = state_of(10, renew=False)
    plan = state.renewal(60, 101.0)
    next(plan)
    with pytest.raises(Failure):
        plan.throw(Failure(OSError(), 102.0, "final"))
    assert state.next_renewal(105.0) is None
    assert Lost("it expired") == state.next_renewal(110.0)


def test_a_lease_that_is_renewed_for_a_moment_is_kept_up() -> None:
    state = state_of(30)
    plan = state.renewal(0.2, 101.0)
    next(plan)
    answered(plan, 0.2, 101.0)
    state.renewed(101.0)
    assert isinstance(state.next_renewal(state.due), Run)


def test_a_renewal_is_no_remedy_for_a_lease_that_was_called_lost() -> None:
    state = state_of(3)
    plan = state.renewal(60, 101.0)
    next(plan)
    state.lose("it could not be renewed")
    answered(plan, 60, 101.0)
    with pytest.raises(LeaseLost, match="could not be renewed"):
        state.renewed(102.0)


@pytest.mark.parametrize(
    "ends",
    [lambda state: state.lose("gone"), LeaseState.end, LeaseState.detached],
    ids=["lost", "released", "detached"],
)
@pytest.mark.parametrize("asks", [lambda state: state.renewal(9, 101.0), lambda s: s.sharing(101)])
def test_of_a_lease_that_is_over_the_server_is_asked_nothing(ends: Any, asks: Any) -> None:
    state = state_of(30, permits=0)
    ends(state)
    with pytest.raises(LeaseLost, match=state.over):
        asks(state)


def test_of_all_who_find_out_at_once_one_tells() -> None:
    """The others come at each bytecode of the first one's."""
    inside = 0
    for nth in range(1, 500):
        state, told, left = state_of(30), list[bool](), [nth]

        def trace(
            frame: FrameType,
            event: str,
            arg: Any,
            state: LeaseState = state,
            told: list[bool] = told,
            left: list[int] = left,
        ) -> Any:
            if frame.f_code is not LeaseState.lose.__code__:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                left[0] -= 1
                if left[0] == 0:
                    sys.settrace(None)
                    told.append(state.lose("another thread's"))
                    sys.settrace(trace)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            told.append(state.lose("mine"))
        finally:
            sys.settrace(before)
        assert 1 == told.count(True), nth
        assert state.over in ("mine", "another thread's")
        if left[0] > 0:
            break
        inside += 1
    assert inside > 5


def test_permits_stay_taken_for_min_hold_however_they_are_given_back() -> None:
    terms = LeaseSettings(KEYS, "default", 30.0, True, math.inf, min_hold=7.5)
    state = LeaseState(terms, Grant("t", 7, 1, 100.0, 130.0, 130.0, True), 0, 100.0)
    for step in (next(state.releasing(101.0)), state.giving_back()):
        assert isinstance(step, Run)
        assert ("t", 7, 0, "release", 1, 7500) == step.argv[:6]
