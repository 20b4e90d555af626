"""The local expiry of a lease and its next renewal, without server or clock."""

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
    """Return the state of a lease that was granted at 100 s for `timeout` seconds."""
    terms = LeaseSettings(KEYS, "default", timeout, renew, max_hold, 0.0)
    ends = 100.0 + timeout
    given = {"token": "t", "fence": 7, "permits": 1, "began": 100.0, "until": ends, "ends": ends}
    return LeaseState(terms, Grant(**{**given, "unanswered": False, **grant}), 0, 100.0)


def renewal_at(state: LeaseState, now: float) -> Run:
    step = state.next_renewal(now)
    assert isinstance(step, Run)
    return step


def ok(seconds: float, sent: float) -> Answer:
    return Answer(["ok", str(int(seconds * 1000))], sent, sent)


def test_lease_is_renewed_for_its_whole_timeout_after_a_third_of_it() -> None:
    state = state_of(30)
    assert 110.0 == state.due
    step = renewal_at(state, 110.0)
    assert ("renew", "set", "30001") == (step.verb, step.argv[2], step.argv[3])
    assert state.renewal_done(step, ok(30, 110.0), 110.0) is None
    assert 139.999 == pytest.approx(state.until)
    assert 120.0 == pytest.approx(state.due, abs=0.01)


@pytest.mark.parametrize(("timeout", "pause"), [(60.0, 1.0), (5.0, 0.5), (0.3, 0.05)])
def test_failed_renewal_is_retried_after_a_short_pause(timeout: float, pause: float) -> None:
    state = state_of(timeout)
    step = renewal_at(state, state.due)
    failed = Failure(errors.ConnectionError("refused"), state.due, "unreachable")
    at = state.due
    assert state.renewal_done(step, failed, at) is None
    assert at + pause == pytest.approx(state.due)


def test_lease_renewed_without_end_needs_no_further_renewal() -> None:
    state = state_of(30)
    plan = state.renewal(math.inf, 100.0)
    assert ("set", "inf") == plan.send(None).argv[2:4]  # type: ignore[arg-type,union-attr]
    with pytest.raises(StopIteration):
        plan.send(Answer(["ok", "inf"], 100.0, 100.0))
    state.renewed(100.0)
    assert (math.inf, None) == (state.until, state.next_renewal(1e6))


def test_background_renewal_asks_for_the_longer_of_two_renewals_in_flight() -> None:
    state = state_of(30)
    for seconds in (90.0, 10.0):
        state.renewal(seconds, 100.0)
    step = renewal_at(state, 104.0)
    assert 86_000 == pytest.approx(int(step.argv[3]), abs=10)


def test_lease_without_renewal_is_lost_at_its_end() -> None:
    state = state_of(10, renew=False)
    assert 110.0 == state.due
    assert state.next_renewal(105.0) is None
    assert Lost("it expired") == state.next_renewal(110.0)


def test_lease_that_cannot_be_renewed_is_lost_shortly_before_its_end() -> None:
    state = state_of(3)
    step = renewal_at(state, 101.0)
    assert state.renewal_done(step, Failure(OSError(), 102.0, "unanswered"), 102.0) is None
    assert 102.3 == pytest.approx(state.due)
    assert state.renewal_done(step, Failure(OSError(), 102.8, "unanswered"), 102.8) is None
    assert 102.85 == pytest.approx(state.due)
    assert state.held(102.84)
    assert Lost("it could not be renewed") == state.next_renewal(102.86)


def test_lease_is_never_renewed_past_max_hold() -> None:
    state = state_of(30, max_hold=35)
    step = renewal_at(state, 110.0)
    assert "25001" == step.argv[3]
    state.renewal_done(step, ok(25.001, 110.0), 110.0)
    assert 135.0 == pytest.approx(state.until)
    assert 134.75 == pytest.approx(state.deadline) == pytest.approx(state.due)


def test_lease_is_held_before_its_end_and_not_at_its_end() -> None:
    state = state_of(30)
    assert [True, False, False] == [state.held(now) for now in (129.9, 130.0, 131.0)]
    assert [0.5, 0.0, 0.0] == [state.remaining(now) for now in (129.5, 130.0, 131.0)]
    assert "the lease of 'n' is no longer held: expired" == str(state.lost_error())
    assert state.next_renewal(130.0) == Lost("it was not renewed in time")
    assert state_of(30, renew=False).next_renewal(130.0) == Lost("it expired")


def test_lease_is_lost_only_once() -> None:
    state = state_of()
    assert state.lose("a reason")
    assert not state.lose("another")
    assert not state.held(100.0) and 0.0 == state.remaining(100.0)
    with pytest.raises(LeaseLost, match="a reason"):
        state.check_ours()


def test_lost_lease_is_not_renewed() -> None:
    state = state_of()
    step = renewal_at(state, 110.0)
    state.lose("a reason")
    assert (None, math.inf) == (state.next_renewal(120.0), state.due)
    assert state.renewal_done(step, Answer(["lost"], 110.0, 110.0), 110.0) is None
    assert math.inf == state.due


def test_lease_can_be_released_only_once() -> None:
    state = state_of()
    state.end()
    with pytest.raises(NotAcquired, match="released already"):
        state.end()
    assert state.released(True) is None


def test_loss_found_by_the_release_can_still_be_reported() -> None:
    state = state_of()
    state.end()
    assert Lost("Redis no longer has it") == state.released(False)
    assert state.lose("Redis no longer has it")


# Renewals that overlap


def receive_reply(plan: Any, seconds: float, sent: float) -> Lost | None:
    """Send the reply to a plan that has sent its renewal. Return the plan's result."""
    try:
        plan.send(ok(seconds, sent))
    except StopIteration as stop:
        result: Lost | None = stop.value
        return result
    raise AssertionError("the plan did not return")


def test_local_expiry_is_the_soonest_end_of_two_renewals_in_flight() -> None:
    state = state_of(30)
    longer = state.renewal(60, 101.0)
    next(longer)
    shorter = state.renewal(3, 102.0)
    next(shorter)
    assert 105.0 == pytest.approx(state.until, abs=0.01)
    receive_reply(shorter, 3, 102.0)
    receive_reply(longer, 60, 101.0)  # the server executed it before `shorter`
    assert 105.0 == pytest.approx(state.until, abs=0.01)


def test_reply_does_not_confirm_a_later_renewal() -> None:
    state = state_of(30)
    first, later = state.renewal(40, 101.0), state.renewal(60, 102.0)
    next(first)
    next(later)
    receive_reply(first, 40, 101.0)
    assert 141.0 == pytest.approx(state.until, abs=0.01)
    receive_reply(later, 60, 102.0)
    assert 162.0 == pytest.approx(state.until, abs=0.01)


def test_unanswered_renewal_bounds_the_local_expiry_until_a_later_reply() -> None:
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
    receive_reply(later, 60, 103.0)  # from now on, the server ignores `lost`
    assert 163.0 == pytest.approx(state.until, abs=0.01)


def test_background_renewal_asks_for_at_least_the_end_the_holder_asked_for() -> None:
    state = state_of(3)
    plan = state.renewal(60, 100.5)
    next(plan)
    step = renewal_at(state, state.due)
    assert int(step.argv[3]) > 58_000
    receive_reply(plan, 60, 100.5)
    due = state.due
    assert state.next_renewal(due) is None  # the lease is already longer than its timeout
    assert state.due > due + 1


def test_background_renewal_does_not_lengthen_a_lease_being_detached() -> None:
    state = state_of(3)
    plan = state.renewal(3.5, 100.0, leaving=True)
    next(plan)
    step = renewal_at(state, 101.0)
    assert int(step.argv[3]) <= 2_500


def test_detach_renews_again_when_another_thread_shortened_the_lease() -> None:
    state = state_of(30)
    plan = state.renewal(60, 100.0, leaving=True)
    first = next(plan)
    other = state.renewal(3, 100.0)
    next(other)
    again = plan.send(ok(60, 100.0))
    assert plans.number_of(first) < plans.number_of(again)
    receive_reply(plan, 60, 100.0)
    receive_reply(other, 3, 100.0)
    assert 160.0 == pytest.approx(state.until, abs=0.01)


@pytest.mark.parametrize(
    "error",
    [Failure(errors.ConnectionError("refused"), 101.0, "final"), KeyboardInterrupt()],
    ids=["failed", "interrupted"],
)
def test_lease_is_renewed_after_a_failed_detach(error: BaseException) -> None:
    state = state_of(30)
    plan = state.renewal(60, 100.0, leaving=True)
    next(plan)
    with pytest.raises(type(error)):
        plan.throw(error)
    step = renewal_at(state, 110.0)
    assert "30001" == step.argv[3]


def test_release_of_a_lost_lease_raises_even_if_redis_released_it() -> None:
    state = state_of(30)
    state.lose("it could not be renewed")
    state.end()
    with pytest.raises(LeaseLost, match="could not be renewed"):
        state.released(True)


def test_lease_without_renewal_can_be_shortened() -> None:
    state = state_of(30, renew=False)
    plan = state.renewal(3, 101.0)
    next(plan)
    assert 104.0 == pytest.approx(state.due, abs=0.01)
    receive_reply(plan, 3, 101.0)
    state.renewed(101.0)
    assert Lost("it expired") == state.next_renewal(104.0)


def test_lease_without_renewal_keeps_its_end_when_lengthening_fails() -> None:
    state = state_of(10, renew=False)
    plan = state.renewal(60, 101.0)
    next(plan)
    with pytest.raises(Failure):
        plan.throw(Failure(OSError(), 102.0, "final"))
    assert state.next_renewal(105.0) is None
    assert Lost("it expired") == state.next_renewal(110.0)


def test_lease_shortened_by_its_holder_is_still_renewed() -> None:
    state = state_of(30)
    plan = state.renewal(0.2, 101.0)
    next(plan)
    receive_reply(plan, 0.2, 101.0)
    state.renewed(101.0)
    assert isinstance(state.next_renewal(state.due), Run)


def test_renewed_raises_for_a_lost_lease_although_the_renewal_succeeded() -> None:
    state = state_of(3)
    plan = state.renewal(60, 101.0)
    next(plan)
    state.lose("it could not be renewed")
    receive_reply(plan, 60, 101.0)
    with pytest.raises(LeaseLost, match="could not be renewed"):
        state.renewed(102.0)


@pytest.mark.parametrize(
    "end",
    [lambda state: state.lose("gone"), LeaseState.end, LeaseState.detached],
    ids=["lost", "released", "detached"],
)
@pytest.mark.parametrize(
    "request_plan",
    [lambda state: state.renewal(9, 101.0), lambda state: state.sharing(101)],
    ids=["renewal", "sharing"],
)
def test_renewal_and_sharing_of_an_ended_lease_raise(end: Any, request_plan: Any) -> None:
    state = state_of(30, permits=0)
    end(state)
    with pytest.raises(LeaseLost, match=state.over):
        request_plan(state)


def test_lose_returns_true_to_exactly_one_of_two_concurrent_threads() -> None:
    """The second call runs between every two bytecode instructions of the first call."""
    inside = 0
    for nth in range(1, 500):
        state, results, left = state_of(30), list[bool](), [nth]

        def trace(
            frame: FrameType,
            event: str,
            arg: Any,
            state: LeaseState = state,
            results: list[bool] = results,
            left: list[int] = left,
        ) -> Any:
            if frame.f_code is not LeaseState.lose.__code__:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                left[0] -= 1
                if left[0] == 0:
                    sys.settrace(None)
                    results.append(state.lose("another thread's"))
                    sys.settrace(trace)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            results.append(state.lose("mine"))
        finally:
            sys.settrace(before)
        assert 1 == results.count(True), nth
        assert state.over in ("mine", "another thread's")
        if left[0] > 0:
            break
        inside += 1
    assert inside > 5


def test_every_release_step_passes_min_hold() -> None:
    terms = LeaseSettings(KEYS, "default", 30.0, True, math.inf, min_hold=7.5)
    state = LeaseState(terms, Grant("t", 7, 1, 100.0, 130.0, 130.0, True), 0, 100.0)
    for step in (next(state.releasing(101.0)), state.giving_back()):
        assert isinstance(step, Run)
        assert ("t", 7, 0, "release", 1, 7500) == step.argv[:6]
