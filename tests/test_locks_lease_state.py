"""What may be believed of a lease, and what its keeper does next: without server or clock."""

from __future__ import annotations

import math
from typing import Any

import pytest

from django_redis_sync.exceptions import LeaseLost, NotAcquired
from django_redis_sync.locks.lease_state import LeaseState, Lost, Terms
from django_redis_sync.protocol.keys import keys_of
from django_redis_sync.protocol.plans import Answer, Failure, Grant, Run

KEYS = keys_of("p", "n")


def state_of(
    timeout: float = 30.0, renew: bool = True, max_hold: float = math.inf, **grant: Any
) -> LeaseState:
    """Granted at 100 for its whole time."""
    terms = Terms(KEYS, "default", timeout, renew, max_hold, 0.0)
    ends = 100.0 + timeout
    given = {"token": "t", "fence": 7, "permits": 1, "began": 100.0, "until": ends, "ends": ends}
    return LeaseState(terms, Grant(**{**given, "unanswered": False, **grant}), 0, 100.0)


def ok(seconds: float, sent: float) -> Answer:
    return Answer(["ok", str(int(seconds * 1000))], sent, sent)


def test_it_is_looked_at_after_a_third_of_its_time_and_renewed_for_all_of_it() -> None:
    state = state_of(30)
    assert 110.0 == state.due
    step = state.tend(110.0)
    assert isinstance(step, Run)
    assert ("renew", "set", "30001") == (step.verb, step.argv[2], step.argv[3])
    assert state.tended(ok(30, 110.0), 110.0) is None
    assert 139.999 == pytest.approx(state.until)


def test_a_hard_lease_is_looked_at_when_it_ends() -> None:
    state = state_of(10, renew=False)
    assert 110.0 == state.due
    assert Lost("its time is over") == state.tend(110.0)


def test_it_is_given_up_shortly_before_the_server_may_give_it_away() -> None:
    state = state_of(3)
    assert isinstance(state.tend(101.0), Run)
    assert state.tended(Failure(OSError(), 102.0, "unanswered"), 102.0) is None
    assert 102.3 == pytest.approx(state.due)
    assert state.held(102.84)
    assert Lost("it could not be renewed") == state.tend(102.86)


def test_it_is_never_renewed_past_max_hold() -> None:
    state = state_of(30, max_hold=35)
    step = state.tend(110.0)
    assert isinstance(step, Run) and "25001" == step.argv[3]
    state.tended(ok(25.001, 110.0), 110.0)
    assert 135.0 == pytest.approx(state.until) == pytest.approx(state.due)


def test_what_is_lost_is_lost_once() -> None:
    state = state_of()
    assert state.lose("a reason")
    assert not state.lose("another")
    assert not state.held(100.0) and 0.0 == state.remaining(100.0)
    with pytest.raises(LeaseLost, match="a reason"):
        state.check_ours()


def test_it_is_given_back_once() -> None:
    state = state_of()
    state.end()
    with pytest.raises(NotAcquired, match="released already"):
        state.end()
    assert state.released(True) is None


def test_a_loss_that_only_its_release_found_is_still_to_be_told() -> None:
    state = state_of()
    state.end()
    assert Lost("the server has it no more") == state.released(False)
    assert state.lose("the server has it no more")
