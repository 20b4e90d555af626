"""Plans, run step by step: without a server or sleeping, and with times that the tests choose."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from django_redis_sync.locks.lease_state import LocalExpiry
from django_redis_sync.protocol import plans, scripts, steps
from django_redis_sync.protocol.keys import keys_of
from django_redis_sync.protocol.plans import (
    AcquireRequest,
    Answer,
    Failure,
    Grant,
    Plan,
    Rejection,
    Run,
    Sleep,
    Wait,
)

KEYS = keys_of("t", "name")
FIRST, CLAIM = scripts.CONSTANTS["FIRST"] / 1000, scripts.CONSTANTS["CLAIM"] / 1000
FENCE = "1700000000000000"
S1 = 1_700_000_000_000  # server time of the replies "wait", in ms


class PlanRun:
    """Runs a plan. `step`: the last step that the plan yielded; `result`: its return value."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.step, self.result = plan, None, None
        self.ended = False
        _runs.append(self)
        self._go(lambda: plan.send(None))  # type: ignore[arg-type]

    def _go(self, move: Any) -> PlanRun:
        try:
            self.step = move()
        except StopIteration as stop:
            self.step, self.result, self.ended = None, stop.value, True
        return self

    def answer(self, *reply: Any, sent: float, after: float = 0.0) -> PlanRun:
        """Send the reply of a script, received `after` seconds after the request was sent."""
        return self._go(lambda: self.plan.send(Answer(list(reply), sent, sent + after)))

    def message(self, text: str | None, at: float) -> PlanRun:
        return self._go(lambda: self.plan.send(Answer(text, at, at)))

    def slept(self, at: float) -> PlanRun:
        assert isinstance(self.step, Sleep)
        return self._go(lambda: self.plan.send(Answer(None, at, at)))

    def fail(self, why: Any, at: float) -> PlanRun:
        return self._go(lambda: self.plan.throw(Failure(OSError(why), at, why)))

    def throw(self, error: BaseException) -> PlanRun:
        return self._go(lambda: self.plan.throw(error))

    @property
    def args(self) -> dict[str, Any]:
        """The arguments of the script that the plan runs next, by name."""
        assert isinstance(self.step, Run), self.step
        return arguments_of(self.step)

    def pick(self, *names: str) -> tuple[Any, ...]:
        return tuple(self.args[name] for name in names)


def arguments_of(step: Run) -> dict[str, Any]:
    args = scripts.arguments_of(step.verb, step.argv)
    return {"verb": step.verb, **{n: int(v) if n in _INTEGERS else v for n, v in args.items()}}


_INTEGERS = ("permits", "limit")
_runs: list[PlanRun] = []


@pytest.fixture(autouse=True)
def _end_unfinished_plans() -> Iterator[None]:
    """Interrupt each unfinished plan and then its undo, as a driver would."""
    yield
    for run in _runs:
        for _ in range(2):
            if inspect.getgeneratorstate(run.plan) == inspect.GEN_SUSPENDED:
                with contextlib.suppress(KeyboardInterrupt):
                    run.plan.throw(KeyboardInterrupt())
    _runs.clear()


class Client:
    """Makes requests with the tokens t1, t2, … and collects the undos that plans defer."""

    def __init__(self) -> None:
        self.deferred: list[Run] = []
        self._numbers: Iterator[int] = iter(range(1, 100))

    def ask(self, **changes: Any) -> AcquireRequest:
        return AcquireRequest(
            keys=KEYS,
            lease=10.0,
            permits=1,
            limit=3,
            wait=True,
            give_up_at=math.inf,
            budget=3.0,
            attempt=1.0,
            tokens=lambda: f"t{next(self._numbers)}",
            later=self.deferred.append,
        )._replace(**changes)

    def acquire(self, start: float = 100.0, **changes: Any) -> PlanRun:
        return PlanRun(plans.acquire(self.ask(**changes), start))

    def waiting(self, sent: float = 100.0, told: int = 1000, **changes: Any) -> PlanRun:
        """Start an acquire whose reply is "wait", at server time S1."""
        return self.acquire(sent, **changes).answer("wait", str(S1), told, 0, sent=sent)

    def deferred_undos(self) -> list[tuple[Any, ...]]:
        return [(s["token"], s["how"], s["tombstone"]) for s in map(arguments_of, self.deferred)]


@pytest.fixture
def client() -> Client:
    return Client()


# Functions that replace a plan where one step is enough


@pytest.mark.parametrize("asked", [{}, {"wait": False}, {"shadow": True}, {"fair": False}], ids=str)
def test_asking_returns_the_first_step_of_the_acquire_plan(client: Client, asked: Any) -> None:
    ask = client.ask(**asked)
    step = PlanRun(plans.acquire(ask, 100.0, "t0")).step
    assert step == plans.asking(ask, "t0") == plans.asking(plans.worded(ask), "t0")


def test_asking_uses_the_current_override_of_the_policy(client: Client) -> None:
    keys = keys_of("p", "x", "7")
    ask = plans.worded(client.ask(keys=keys))
    keys.policy.mark = "5 0"  # type: ignore[union-attr]
    assert plans.asking(ask, "t0") == PlanRun(plans.acquire(ask, 100.0, "t0")).step
    keys.policy.mark = "-"  # type: ignore[union-attr]


@pytest.mark.parametrize("asked", [{}, {"wait": False}, {"shadow": True}], ids=str)
@pytest.mark.parametrize(
    "reply", [["ok", FENCE, "10000"], ["ok", FENCE, "3000"], ["ok", FENCE, "10000", "2", "full"]]
)
def test_granted_equals_the_result_of_the_plan(client: Client, asked: Any, reply: Any) -> None:
    ask = client.ask(**asked)
    run = PlanRun(plans.acquire(ask, 100.0, "t0")).answer(*reply, sent=100.5, after=0.1)
    known = plans.granted(Answer(reply, 100.5, 100.6), ask, 100.0, "t0")
    assert run.ended and known == run.result


@pytest.mark.parametrize(
    ("reply", "asked"),
    [
        (["no", "full", 3, 20, 4], {}),
        (["wait", str(S1), 1000, 0], {}),
        (["more"], {}),
        (["gone"], {}),
        (["ok", FENCE, "5000"], {"lease": math.inf}),
    ],
    ids=str,
)
def test_granted_returns_none_when_the_plan_has_more_to_do(
    client: Client, reply: Any, asked: Any
) -> None:
    ask = client.ask(**asked)
    assert plans.granted(Answer(reply, 100.5, 100.6), ask, 100.0, "t0") is None


@pytest.mark.parametrize("reply", [["ok"], ["lost"]])
def test_given_back_equals_the_result_of_the_plan(reply: Any) -> None:
    known = plans.given_back(Answer(reply, 105.0, 105.0))
    assert (known or False) is release(grant()).answer(*reply, sent=105).result


def grant(**changes: Any) -> Grant:
    """Return a grant of 10 s that began at 100."""
    given = Client().acquire().answer("ok", FENCE, "10000", sent=100).result
    return given._replace(**changes)


def expires_locally_at(time: float, given: Any) -> bool:
    """Return True if the grant expires at `time`, or up to 1.5 ms earlier."""
    return bool(time - 0.0015 <= given.until <= time)


# Granted at once


def test_local_expiry_of_a_grant_counts_from_the_send(client: Client) -> None:
    run = client.acquire(99.0)
    assert ("acquire", "t1", "10000", 1, 3, "p", "wait") == run.pick(
        "verb", "token", "lease", "permits", "limit", "kind", "how"
    )
    assert KEYS.declared == run.step.keys
    given = run.answer("ok", FENCE, "10000", sent=100, after=4).result

    assert ("t1", int(FENCE), False) == (given.token, given.fence, given.unanswered)
    assert expires_locally_at(110, given)
    # The whole requested lease was granted, so no renewal has to follow.
    assert given.until == given.ends
    assert [] == client.deferred


def test_local_expiry_allows_for_a_server_clock_in_whole_ms(client: Client) -> None:
    # The server rounds S1 + 0.9 ms down to S1, so its lease ends 0.9 ms early.
    given = client.acquire(lease=1.0).answer("ok", FENCE, "1000", sent=100, after=0.0001).result

    assert given.until <= 100 + 1.0 - 0.0009


def test_milliseconds_rounds_up_to_whole_ms() -> None:
    seconds = (10, 0.5, 0.0001, 0.0011, math.inf)

    assert ["10000", "500", "1", "2", "inf"] == list(map(plans.milliseconds, seconds))


# Lost replies


def test_acquire_is_repeated_with_the_same_token_when_its_reply_is_lost(client: Client) -> None:
    run = client.acquire()
    first = run.step
    run.fail("unanswered", 101)
    assert first.argv == run.step.argv
    given = run.answer("ok", FENCE, "8500", sent=101.5).result

    # The remaining time in the reply counts from the request that was answered.
    assert ("t1", True) == (given.token, given.unanswered)
    assert expires_locally_at(110, given)


def test_retries_back_off_and_end_with_the_budget(client: Client) -> None:
    run, now, seen = client.acquire(budget=3.0, attempt=1.0), 100.0, []
    with pytest.raises(Failure) as caught:
        while True:
            if isinstance(run.step, Sleep):
                seen.append(run.step.seconds)
                now += run.step.seconds
                run.slept(now)
            else:
                assert run.step.timeout <= max(103 - now, plans.SHORTEST_WAIT) + 1e-6
                now += 0.5 if now < 102 else run.step.timeout
                run.fail("unanswered", now)

    assert "unanswered" == caught.value.why
    assert now <= 103 + plans.SHORTEST_WAIT
    assert [0.05, 0.1, 0.2] == seen[:3]
    # The acquire may have been granted.
    assert [("t1", "undo", 1)] == client.deferred_undos()


def test_first_request_tries_an_unreachable_server_twice_without_delay(client: Client) -> None:
    run = client.acquire()
    run.fail("unreachable", 100)
    assert "acquire" == run.args["verb"]
    with pytest.raises(Failure) as caught:
        run.fail("unreachable", 100)

    assert "unreachable" == caught.value.why
    # Nothing was sent, so there is nothing to undo.
    assert [] == client.deferred


@pytest.mark.parametrize("last", ["unreachable", "final"])
def test_failure_stays_unanswered_when_later_tries_fail_otherwise(
    client: Client, last: str
) -> None:
    run = client.acquire().fail("unanswered", 100)
    with pytest.raises(Failure) as caught:
        while True:
            run.fail(last, 100.1)

    assert "unanswered" == caught.value.why
    assert [("t1", "undo", 1)] == client.deferred_undos()


@pytest.mark.parametrize(("since", "cause"), [(102.5, "busy"), (101.5, "unanswered")])
def test_cause_of_a_failure_is_not_from_a_shortened_last_try(
    client: Client, since: float, cause: str
) -> None:
    """The budget is 3 s, and each try has 1 s. Only a try with its full time sets the cause."""
    run = client.acquire().fail("busy", since)
    while run.step.timeout == 1:
        run.fail("unanswered", since := since + 1)
        if isinstance(run.step, Sleep):
            run.slept(since)
    with pytest.raises(Failure) as caught:
        run.fail("unanswered", 103)
    assert (cause, "unanswered") == (str(caught.value.cause), caught.value.why)
    assert "undo" == arguments_of(client.deferred[-1])["how"]


# Rejected


@pytest.mark.parametrize(
    ("reply", "rejection"),
    [
        (("no", "full", 4), Rejection("full", waiting=4)),
        (("no", "full", 0, "1500"), Rejection("full", waiting=0, mean_hold=1.5)),
        (("no", "paused", 0), Rejection("paused")),
        (("no", "full", 0, "", "2"), Rejection("full", limit=2)),
        (("large", "2"), Rejection("large", "2")),
        (("kind", "w"), Rejection("kind", "w")),
        (("dead",), Rejection("cleared")),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_rejecting_reply_becomes_a_rejection(
    client: Client, reply: tuple[Any, ...], rejection: Rejection
) -> None:
    run = client.acquire(wait=False)
    assert "try" == run.args["how"]

    assert rejection == run.answer(*reply, sent=100).result
    assert [] == client.deferred


def test_acquire_is_repeated_at_once_after_the_reply_more(client: Client) -> None:
    run = client.acquire(wait=False, budget=3.0).answer("more", sent=100).answer("more", sent=100.1)
    assert ("acquire", "t1", "try") == run.pick("verb", "token", "how")

    assert run.answer("ok", FENCE, "10000", sent=100.2).result


def test_acquire_is_rejected_when_the_budget_ends_with_the_reply_more(client: Client) -> None:
    run = client.acquire(wait=False, budget=3.0).answer("more", sent=103)

    assert Rejection("full") == run.result
    assert [] == client.deferred


def test_rejection_after_a_lost_reply_writes_a_tombstone(client: Client) -> None:
    # A copy of the unanswered request may arrive later.
    run = client.acquire(wait=False).fail("unanswered", 101).answer("no", "full", 0, sent=101)
    assert ("release", "t1", "undo", 1) == run.pick("verb", "token", "how", "tombstone")

    assert "full" == run.answer("gone", sent=101).result.reason


def test_lost_place_after_a_lost_reply_writes_a_tombstone_before_a_new_token(
    client: Client,
) -> None:
    run = client.acquire().fail("unanswered", 101).answer("gone", sent=101)
    assert ("t1", "undo", 1) == run.pick("token", "how", "tombstone")
    run.answer("gone", sent=101)

    assert ("acquire", "t2") == (run.args["verb"], run.args["token"])


# Waiting


def test_waiter_blocks_as_long_as_the_reply_and_its_own_deadline_allow(client: Client) -> None:
    assert Wait(KEYS, "t1", 1.0) == client.waiting(told=1000).step
    assert 0.25 == pytest.approx(client.waiting(told=1000, give_up_at=100.25).step.seconds)
    # BLPOP with 0 would block forever.
    assert plans.SHORTEST_WAIT == client.waiting(told=1, give_up_at=100.25).step.seconds


def test_worded_request_asks_again_as_a_waiter(client: Client) -> None:
    run = PlanRun(plans.acquire(plans.worded(client.ask()), 100.0))
    assert "wait" == run.args["how"]
    run.answer("wait", str(S1), 1000, 0, sent=100).message(None, 101)
    assert "again" == run.args["how"]


def test_local_expiry_of_a_handoff_counts_from_its_server_time(client: Client) -> None:
    """Expiry: t1 + (grant - S1) + lease. The last "wait" reply has S1, and was asked for at t1."""
    run = client.waiting(sent=100, lease=4.0)
    given = run.message(f"{FENCE} {S1 + 600} 4000", at=100.9).result

    # The grant was at 100.6; its message arrived at 100.9.
    assert (int(FENCE), "t1") == (given.fence, given.token)
    assert expires_locally_at(104.6, given)
    assert pytest.approx(100.6, abs=0.0015) == given.began


def test_grant_contains_the_waited_seconds_only_after_a_wait(client: Client) -> None:
    assert 0.0 == client.acquire(100).answer("ok", FENCE, "10000", sent=107).result.waited
    handed = client.waiting(sent=100).message(f"{FENCE} {S1 + 2500} 4000", at=103).result
    assert 2.5 == pytest.approx(handed.waited)
    asked = client.waiting(sent=100).message(None, 101).answer("ok", FENCE, "10000", sent=104)
    assert 4.0 == pytest.approx(asked.result.waited)


def test_waits_callback_runs_at_the_start_and_the_end_of_a_wait(client: Client) -> None:
    calls: list[tuple[str, bool]] = []
    run = client.waiting(waits=lambda *args: calls.append(args))
    assert [("t1", True)] == calls
    run.message(None, 101).answer("wait", str(S1), 1000, 0, sent=101)
    assert [("t1", True)] == calls
    run.message(None, 102).answer("ok", FENCE, "10000", sent=102)
    assert [("t1", True), ("t1", False)] == calls


def test_server_time_is_mapped_by_the_last_wait_reply(client: Client) -> None:
    run = client.waiting(sent=100, lease=4.0).message(None, 101)
    run.answer("wait", str(S1 + 1200), 1000, 0, sent=101, after=0.3)
    given = run.message(f"{FENCE} {S1 + 1500} 4000", at=101.8).result

    assert expires_locally_at(105.3, given)


def test_local_expiry_of_a_handoff_counts_at_latest_from_its_arrival(client: Client) -> None:
    # The server's clock jumped forward after the "wait" reply.
    given = client.waiting(sent=100, lease=4.0).message(f"{FENCE} {S1 + 60_000} 4000", 100.5).result

    assert expires_locally_at(104.5, given)


def test_waiter_asks_again_when_it_pops_an_expired_handoff(client: Client) -> None:
    run = client.waiting(sent=100, lease=4.0).message(f"{FENCE} {S1 + 600} 4000", at=104.7)

    assert ("acquire", "t1", "again") == run.pick("verb", "token", "how")


def test_local_expiry_of_a_published_handoff_is_the_claim_deadline(client: Client) -> None:
    # A published message is not popped, so the server removes the lease unless it is confirmed.
    run = client.waiting(lease=60.0, channel="c")
    given = run.message(f"{FENCE} {S1 + 100} {FIRST * 1000:.0f}", at=100.5).result

    assert expires_locally_at(100.1 + CLAIM, given)
    short = client.waiting(lease=0.5, channel="c").message(f"{FENCE} {S1 + 100} 500", at=100.2)
    assert expires_locally_at(100.6, short.result)


def test_waiter_asks_again_when_a_message_arrives_after_the_claim_deadline(client: Client) -> None:
    run = client.waiting(lease=60.0, channel="c")
    run.message(f"{FENCE} {S1} {FIRST * 1000:.0f}", at=100 + CLAIM)

    assert "again" == run.args["how"]


def test_waiter_asks_again_when_the_pop_failed(client: Client) -> None:
    # The message may have been popped and lost on its way. Then the lease exists.
    run = client.waiting().fail("unanswered", 100.2)
    run.slept(100.25)
    assert ("t1", "again") == (run.args["token"], run.args["how"])
    given = run.answer("ok", FENCE, "9000", sent=100.3).result

    assert expires_locally_at(109.3, given)


def test_waiter_keeps_its_token_during_an_outage(client: Client) -> None:
    run, now = client.waiting().message(None, 101), 101.0
    while now < 101 + 30 - 2:
        now += 0.1
        if isinstance(run.step, Sleep):
            assert run.step.seconds <= 1
            now += run.step.seconds
            run.slept(now)
        else:
            assert ("t1", "again") == (run.args["token"], run.args["how"])
            run.fail("unreachable", now)
    if isinstance(run.step, Sleep):
        run.slept(now)
    given = run.answer("ok", FENCE, "10000", sent=now).result

    assert "t1" == given.token
    assert [] == client.deferred


def test_wait_fails_in_a_long_outage_and_its_undo_is_deferred(client: Client) -> None:
    run, now = client.waiting().message(None, 101), 101.0
    with pytest.raises(Failure):
        while True:
            now += 0.1
            if isinstance(run.step, Sleep):
                now += run.step.seconds
                run.slept(now)
            else:
                run.fail("unreachable", now)

    assert 101 + 30 - 2 < now <= 101 + 30 + 1
    assert [("t1", "undo", 1)] == client.deferred_undos()


# Giving up


def test_giveup_keeps_permits_that_were_granted_meanwhile(client: Client) -> None:
    run = client.waiting(give_up_at=101).message(None, 101)
    given = run.answer("ok", FENCE, "4000", sent=101).result

    assert ("t1", int(FENCE)) == (given.token, given.fence)
    assert expires_locally_at(105, given)


def test_giveup_after_a_lost_reply_writes_a_tombstone(client: Client) -> None:
    run = client.acquire(give_up_at=101, attempt=5.0).fail("unanswered", 100.5)
    run.answer("wait", str(S1), 1000, 0, sent=100.5).message(None, 101)
    assert ("giveup", 1) == (run.args["how"], run.args["tombstone"])
    assert plans.UNDO_BUDGET == run.step.timeout  # the time to wait has passed
    run.answer("gone", sent=101)
    if not run.ended:
        # A second tombstone does no harm.
        assert ("undo", 1) == (run.args["how"], run.args["tombstone"])
        run.answer("gone", sent=101)

    assert Rejection("timeout") == run.result


def test_giveup_is_repeated_when_its_reply_is_lost(client: Client) -> None:
    run = client.waiting(give_up_at=101).message(None, 101).fail("unanswered", 101.5)
    assert "giveup" == run.args["how"]
    given = run.answer("ok", FENCE, "3000", sent=101.5).result

    assert expires_locally_at(104.5, given)


def test_unanswered_giveup_fails_and_its_undo_is_deferred(client: Client) -> None:
    run, now = client.waiting(give_up_at=101).message(None, 101), 101.0
    with pytest.raises(Failure):
        while True:
            now += 0.2
            run.slept(now) if isinstance(run.step, Sleep) else run.fail("unanswered", now)

    assert now <= 101 + 2 * plans.UNDO_BUDGET + 0.5
    assert [("t1", "undo", 1)] == client.deferred_undos()


# Cancelled

INTERRUPTIONS = [asyncio.CancelledError, KeyboardInterrupt, SystemExit]


@pytest.mark.parametrize("error", INTERRUPTIONS)
@pytest.mark.parametrize("waits", [False, True], ids=["asking", "waiting"])
def test_interrupted_acquire_is_undone_with_a_tombstone(
    client: Client, error: type[BaseException], waits: bool
) -> None:
    # The acquire may arrive after the undo.
    run = client.waiting() if waits else client.acquire()
    run.throw(error("stop"))
    assert ("release", "t1", "undo", 1) == run.pick("verb", "token", "how", "tombstone")
    assert run.step.timeout <= plans.UNDO_BUDGET
    with pytest.raises(error, match="stop"):
        run.answer("ok", sent=101)

    assert [] == client.deferred


def test_cancellation_is_raised_when_the_undo_fails(client: Client) -> None:
    run = client.acquire().throw(asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        run.fail("unreachable", 101)

    assert [("t1", "undo", 1)] == client.deferred_undos()
    assert KEYS.declared == client.deferred[0].keys


def test_interrupted_undo_is_deferred(client: Client) -> None:
    run = client.acquire().throw(asyncio.CancelledError())
    with pytest.raises(KeyboardInterrupt):
        run.throw(KeyboardInterrupt())

    assert [("t1", "undo", 1)] == client.deferred_undos()


def test_closed_plan_defers_its_undo(client: Client) -> None:
    # When an event loop is closed, its coroutines and their plans are closed.
    client.waiting().plan.close()

    assert [("t1", "undo", 1)] == client.deferred_undos()


# Permanent leases


@pytest.mark.parametrize("handed_off", [False, True], ids=["at once", "handed off"])
def test_permanent_lease_is_renewed_before_acquire_returns(
    client: Client, handed_off: bool
) -> None:
    first = f"{FIRST * 1000:.0f}"
    if handed_off:
        run = client.waiting(lease=math.inf).message(f"{FENCE} {S1} {first}", 100.1)
    else:
        run = client.acquire(lease=math.inf)
        assert "inf" == run.args["lease"]
        run.answer("ok", FENCE, first, sent=100)
    assert ("renew", "t1", int(FENCE), "set", "inf") == run.pick(
        "verb", "token", "fence", "how", "ms"
    )
    given = run.answer("ok", "inf", sent=101).result

    assert (math.inf, math.inf, "") == (given.until, given.ends, given.rejected)


def test_acquire_starts_over_when_a_permanent_lease_was_lost(client: Client) -> None:
    run = client.acquire(lease=math.inf).answer("ok", FENCE, "5000", sent=100)
    run.answer("lost", sent=101)

    assert ("acquire", "t2") == (run.args["verb"], run.args["token"])


def test_renewal_to_a_permanent_lease_is_repeated_when_its_reply_is_lost(client: Client) -> None:
    run = client.acquire(lease=math.inf).answer("ok", FENCE, "5000", sent=100)
    run.fail("unanswered", 101.0)
    assert math.inf == run.answer("ok", "inf", sent=101).result.until


def test_undo_is_deferred_when_the_renewal_to_a_permanent_lease_fails(client: Client) -> None:
    run = client.acquire(lease=math.inf).answer("ok", FENCE, "5000", sent=100)
    with pytest.raises(Failure):
        run.fail("unreachable", 100.1).fail("unreachable", 100.1)

    # The limited lease was granted. With an undo, other callers don't wait until it expires.
    assert [("t1", "undo", 1)] == client.deferred_undos()


# Release and renewal


@pytest.mark.parametrize(("word", "expected"), [("ok", True), ("lost", False)])
def test_share_sends_token_and_fence(word: str, expected: bool) -> None:
    run = PlanRun(plans.share(KEYS, grant(), 1.0, 105.0))
    asked = {"verb": "release", "token": "t1", "fence": int(FENCE), "how": "share", "tombstone": 0}
    assert asked.items() <= run.args.items()

    assert expected is run.answer(word, sent=105).result


def release(given: Grant) -> PlanRun:
    return PlanRun(plans.release(KEYS, given, 0.0, 3.0, 1.0, 105.0))


def test_release_after_an_unanswered_acquire_writes_a_tombstone() -> None:
    assert 1 == release(grant(unanswered=True)).args["tombstone"]


def test_release_of_a_lost_lease_undoes_its_unanswered_acquire() -> None:
    # A late copy of the acquire may have been granted with another fence.
    run = release(grant(unanswered=True)).answer("lost", sent=105)
    assert ("undo", 1) == (run.args["how"], run.args["tombstone"])

    assert False is run.answer("ok", sent=105).result


def test_release_is_repeated_when_its_reply_is_lost() -> None:
    run = release(grant())
    first = run.step.argv
    run.fail("unanswered", 106)
    assert first == run.step.argv

    # The first request released the lease, so the second one finds it lost.
    assert True is run.answer("lost", sent=106).result


def test_repeated_release_returns_false_when_the_lease_had_expired() -> None:
    run = release(grant(until=104.0)).fail("unanswered", 106)

    assert False is run.answer("lost", sent=106).result


def test_local_expiry_of_a_renewal_counts_from_the_send() -> None:
    run = PlanRun(plans.renew(KEYS, grant(), 10.0, 7, 3.0, 1.0, 105.0))
    expected = {"verb": "renew", "token": "t1", "fence": int(FENCE), "how": "set", "ms": "10000"}
    expected["nth"] = 7
    assert expected.items() <= run.args.items()
    until = run.answer("ok", "10000", sent=105, after=2).result

    assert 114.998 <= until <= 115


def test_local_expiry_is_the_soonest_end_during_an_unanswered_renewal() -> None:
    expiry = LocalExpiry(130.0)
    expiry.asked(1, 10.0, 100.0)
    assert pytest.approx(110.0 - plans.TICK, abs=1e-9) == expiry.until
    expiry.asked(2, 60.0, 100.0)
    expiry.answered(2, 159.0)
    assert 159.0 == expiry.until


@pytest.mark.parametrize(
    ("plan", "ends"),
    [
        (lambda: plans.acquire(Client().ask(), 100.0), 103.0),
        (lambda: plans.release(KEYS, grant(), 0, 3.0, 1.0, 100.0), 103.0),
        (lambda: plans.renew(KEYS, grant(), 10.0, 7, 3.0, 1.0, 100.0), 103.0),
        (lambda: plans.share(KEYS, grant(), 4.0, 100.0), 108.0),
        (lambda: plans.confirm(KEYS, grant(), 4.0, 100.0), 108.0),
        (lambda: steps.run_once("clear", KEYS, ("t9", "-", 0), 4.0, 100.0), 108.0),
    ],
    ids=["acquire", "release", "renew", "share", "confirm", "run_once"],
)
def test_busy_server_is_retried_only_until_the_budget_ends(plan: Any, ends: float) -> None:
    run, at = PlanRun(plan()), 100.0
    while not run.ended and at < ends - 1.5:
        at += 0.5
        run.fail("busy", at)
        if isinstance(run.step, Sleep):
            at += run.step.seconds
            run.slept(at)
        assert isinstance(run.step, Run) and at + run.step.timeout <= ends
    with pytest.raises(Failure):
        run.fail("busy", ends - 0.001)


def test_giveup_is_tried_twice_within_its_budget() -> None:
    run = PlanRun(plans._give_up(Client().ask(), "t9", 100.0, plans.SendState(), 100.0))
    run.fail("unanswered", 100.0 + plans.UNDO_BUDGET)
    assert isinstance(run.step, Run) and run.step.timeout <= plans.UNDO_BUDGET
    with pytest.raises(Failure):
        run.fail("unanswered", 100.0 + 2 * plans.UNDO_BUDGET)


# Imports


def test_protocol_imports_only_pure_modules() -> None:
    allowed = {"__future__", "collections", "dataclasses", "functools", "hashlib"}
    allowed |= {"itertools", "math", "pathlib", "re", "threading", "types"}
    allowed |= {"typing", "unicodedata", "weakref"}
    for path in Path(plans.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found = {str(node.module).partition(".")[0]}
            else:
                continue
            assert found <= allowed, (path.name, found - allowed)


# Replies of a later version, which have another field


@pytest.mark.parametrize(
    ("replies", "plan"),
    [
        ([["ok", FENCE, "10000", "1", "full", "new"]], lambda client: client.acquire(shadow=True)),
        ([["no", "full", 0, "1500", "2", "new"]], lambda client: client.acquire(wait=False)),
        ([["large", "2", "new"]], lambda client: client.acquire()),
        ([["ok", "new"]], lambda client: release(grant())),
        ([["ok", "9000", "new"]], lambda client: PlanRun(plans.confirm(KEYS, grant(), 1.0, 105.0))),
    ],
    ids=["granted", "rejected", "too large", "released", "confirmed"],
)
def test_reply_with_another_field_is_read_as_before(
    client: Client, replies: list[list[Any]], plan: Any
) -> None:
    def result(replies: list[list[Any]]) -> Any:
        run = plan(client)
        for reply in replies:
            run.answer(*reply, sent=105.0)
        assert run.result is not None
        return run.result

    known = [reply[:-1] for reply in replies]
    given, expected = result(replies), result(known)
    if isinstance(given, plans.Grant):
        given, expected = given._replace(token="t"), expected._replace(token="t")
    assert expected == given


def test_wake_up_message_with_another_field_is_read_as_before(client: Client) -> None:
    run = client.waiting(lease=10.0).message(f"{FENCE} {S1} 5000 new", 100.1)
    assert int(FENCE) == run.result.fence
