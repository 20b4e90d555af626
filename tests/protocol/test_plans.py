"""Plans are generators that yield the steps of a call. These tests run plans without a server, and
choose the replies and the times."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_redis_sync.protocol import plans, reasons, renewals, scripts, steps
from django_redis_sync.protocol.keys import keys_of
from django_redis_sync.protocol.plans import AcquireRequest, Rejection
from django_redis_sync.protocol.renewals import Grant
from django_redis_sync.protocol.steps import (
    Answer,
    Failure,
    Plan,
    Run,
    Sleep,
    Wait,
)

KEYS = keys_of("t", "name")
FIRST, CLAIM = scripts.CONSTANTS["FIRST"], scripts.CONSTANTS["CLAIM"] / 1000
FENCE = "1700000000000000"
S1 = 1_700_000_000_000  # the server time in a "wait" reply, in ms
UNDONE = ("t1", "undo", 1)


class PlanRun:
    """A run of a plan. `step`: the step that the plan yielded last. `result`: its return value."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.step, self.result, self.ended = plan, None, None, False
        RUNS.append(self)
        self.go(lambda: next(plan))

    def go(self, move: Callable[[], Any]) -> PlanRun:
        try:
            self.step = move()
        except StopIteration as stop:
            self.step, self.result, self.ended = None, stop.value, True
        return self

    def answer(self, *reply: Any, sent: float, after: float = 0.0) -> PlanRun:
        """Send a script's reply. The request was sent at `sent`, and answered `after` s later."""
        return self.go(lambda: self.plan.send(Answer(list(reply), sent, sent + after)))

    def waiting(self, sent: float, delay: int = 1000, **since: Any) -> PlanRun:
        """Reply "wait": ask again after `delay` ms. `since`: the server time in the reply."""
        return self.answer("wait", str(since.get("since", S1)), delay, 0, sent=sent)

    def message(self, text: str | None, at: float) -> PlanRun:
        return self.go(lambda: self.plan.send(Answer(text, at, at)))

    def fail(self, why: Any, at: float) -> PlanRun:
        return self.go(lambda: self.plan.throw(Failure(OSError(why), at, why)))

    def throw(self, error: BaseException) -> PlanRun:
        return self.go(lambda: self.plan.throw(error))

    def fail_until(self, why: str, at: float, end: float = math.inf, every: float = 0.1) -> float:
        """Fail each try for the reason `why`. The first try begins at the time `at`, and each try
        lasts `every` seconds. Stop when the plan raises Failure, or at the time `end`. Return the
        time at which this method stopped."""
        while at < end:
            if isinstance(self.step, Sleep):
                assert self.step.seconds <= 1
                at += self.step.seconds
                self.message(None, at)
            else:
                at += every
                try:
                    self.fail(why, at)
                except Failure:
                    return at
        return at

    @property
    def args(self) -> dict[str, Any]:
        """The arguments of the script that the plan runs next, by name."""
        assert isinstance(self.step, Run), self.step
        return {"verb": self.step.verb, **scripts.arguments_of(self.step.verb, self.step.argv)}

    def asks(self, **expected: Any) -> bool:
        """Check that the next step has these arguments. Return True."""
        assert expected.items() <= self.args.items(), self.args
        return True


RUNS: list[PlanRun] = []


@pytest.fixture(autouse=True)
def _end_unfinished_plans() -> Iterator[None]:
    """Interrupt each plan that is not finished. If a plan then yields an undo, interrupt that."""
    yield
    for run in RUNS:
        for _ in range(2):
            if inspect.getgeneratorstate(run.plan) == inspect.GEN_SUSPENDED:
                with contextlib.suppress(KeyboardInterrupt):
                    run.plan.throw(KeyboardInterrupt())
    RUNS.clear()


class Client:
    """A client that uses the tokens t1, t2, …. `deferred`: undo steps that it would run later."""

    def __init__(self) -> None:
        self.deferred: list[Run] = []
        self.numbers: Iterator[int] = iter(range(1, 100))

    def ask(self, **changes: Any) -> AcquireRequest:
        tokens, later = (lambda: f"t{next(self.numbers)}"), self.deferred.append
        times = {"give_up_at": math.inf, "budget": 3.0, "attempt": 1.0}
        given = {"lease": 10.0, "permits": 1, "limit": 3, "wait": True, **times, **changes}
        return AcquireRequest(KEYS, tokens=tokens, later=later, **given)

    def acquire(self, start: float = 100.0, **changes: Any) -> PlanRun:
        return PlanRun(plans.acquire(self.ask(**changes), start))

    def waiting(self, sent: float = 100.0, delay: int = 1000, **changes: Any) -> PlanRun:
        """Start an acquire. The server replies "wait" at the server time S1."""
        return self.acquire(sent, **changes).waiting(sent, delay)

    @property
    def undone(self) -> list[tuple[Any, ...]]:
        args = [scripts.arguments_of(step.verb, step.argv) for step in self.deferred]
        return [(said["token"], said["how"], said["tombstone"]) for said in args]


@pytest.fixture
def client() -> Client:
    return Client()


def grant(**changes: Any) -> Grant:
    """Return the grant of a lease that was requested at 100 s, and lasts for 10 s."""
    given: Grant = Client().acquire().answer("ok", FENCE, "10000", sent=100).result
    return given._replace(**changes)


def ends_at(time: float, given: Any) -> bool:
    """Return True if the grant expires locally at `time`, or up to 1.5 ms earlier."""
    return bool(time - 0.0015 <= given.until <= time)


def test_durations_are_rounded_up_to_whole_milliseconds() -> None:
    times = (10, 0.5, 0.0001, 0.0011, math.inf)
    assert ["10000", "500", "1", "2", "inf"] == list(map(plans.milliseconds, times))


# The fast path: functions that replace a plan if one step is enough


@pytest.mark.parametrize("key", [None, "7"])
@pytest.mark.parametrize(
    ("reply", "asked"),
    [
        (["ok", FENCE, "10000"], {}),
        (["ok", FENCE, "3000"], {"wait": False}),
        (["ok", FENCE, "10000", "2", "full"], {"shadow": True}),
        (["no", "full", 3, 20, 4], {"fair": False}),
        (["wait", str(S1), 1000, 0], {}),
        (["more"], {}),
        (["gone"], {}),
        (["ok", FENCE, "5000"], {"lease": math.inf}),
    ],
    ids=str,
)
def test_fast_path_sends_the_same_request_and_returns_the_same_grant_as_the_plan(
    client: Client, monkeypatch: pytest.MonkeyPatch, reply: Any, asked: Any, key: str | None
) -> None:
    ask = client.ask(**asked)._replace(keys=(keys := keys_of("p", "x", key)))
    worded = plans.worded(ask)
    if keys.policy:  # the request must contain this override
        monkeypatch.setattr(keys.policy, "overrides", "5 0")
    run = PlanRun(plans.acquire(ask, 100.0, "t0"))
    assert run.step == plans.asking(ask, "t0") == plans.asking(worded, "t0")
    result = run.answer(*reply, sent=100.5, after=0.1).result
    expected = result if isinstance(result, Grant) else None
    assert expected == plans.granted(Answer(reply, 100.5, 100.6), ask, 100.0, "t0")


# Granted at once


@pytest.mark.promise(8)
def test_lease_duration_begins_when_the_client_sends_the_request(client: Client) -> None:
    run = client.acquire(99.0)
    assert run.asks(verb="acquire", token="t1", lease="10000", how="wait", permits="1", limit="3")
    assert KEYS.declared == run.step.keys
    given = run.answer("ok", FENCE, "10000", sent=100, after=4).result
    assert ("t1", int(FENCE), False, 0.0) == (given.token, given.fence, *given[6:9:2])
    # The server counts whole ms, so the lease may end almost 1 ms early. `until` equals `ends`: the
    # server granted the whole requested duration, so no renewal is necessary.
    assert 109.9985 <= given.until == given.ends <= 109.9991
    assert [] == client.deferred


# Late and lost replies


@pytest.mark.promise(8, 13)
@pytest.mark.parametrize("waits", [True, False])
def test_acquire_starts_again_if_a_grant_arrives_after_the_end_of_its_lease(
    client: Client, waits: bool
) -> None:
    def arriving(run: PlanRun, after: float) -> PlanRun:
        return run.answer("ok", FENCE, "10000", sent=100, after=after)

    assert "t1" == arriving(client.acquire(wait=waits), 9.99).result.token
    run, now, delays = client.acquire(wait=waits), 110.0, list[float]()
    with pytest.raises(Failure, match="8 grants of a lease of 10 s arrived after its end"):
        for token in range(2, 10):
            assert run.asks(verb="acquire", token=f"t{token}")
            run.answer("ok", FENCE, "10000", sent=now - 10, after=10.0)
            assert run.asks(verb="release", token=f"t{token}", how="undo", tombstone=1)
            delays.append(run.answer("ok", sent=now).step.seconds)
            now += delays[-1]
            run.message(None, now)
    # The budget of 3 s begins with the first late grant.
    assert [*steps.BACKOFF, 1.0] == delays
    assert [] == client.deferred, "each late grant was undone at once, and not once more later"


@pytest.mark.promise(5, 8)
def test_acquire_is_repeated_with_the_same_token_when_its_reply_is_lost(client: Client) -> None:
    run = client.acquire()
    first = run.step
    run.fail("unanswered", 101)
    assert [*map(str, first.argv)] == [*map(str, run.step.argv)]
    given = run.answer("ok", FENCE, "8500", sent=101.5).result
    assert ("t1", True) == (given.token, given.unanswered)
    # The reply says that 8.5 s are left, counted from the second request at 101.5 s.
    assert ends_at(110, given)


@pytest.mark.promise(13)
def test_acquire_is_retried_with_growing_delays_until_its_time_budget_is_spent(
    client: Client,
) -> None:
    run, now, seen = client.acquire(budget=3.0, attempt=1.0), 100.0, []
    with pytest.raises(Failure) as caught:
        while True:
            if isinstance(run.step, Sleep):
                seen.append(run.step.seconds)
                now += run.step.seconds
                run.message(None, now)
            else:
                assert run.step.timeout <= max(103 - now, steps.SHORTEST_WAIT) + 1e-6
                now += 0.5 if now < 102 else run.step.timeout
                run.fail("unanswered", now)
    assert "unanswered" == caught.value.why
    assert now <= 103 + steps.SHORTEST_WAIT
    assert [0.05, 0.1, 0.2] == seen[:3]
    assert [UNDONE] == client.undone  # the acquire may have been granted


@pytest.mark.promise(13)
@pytest.mark.parametrize(
    ("first", "last", "undone"),
    [
        ("unreachable", "unreachable", []),  # nothing was sent, so there is nothing to undo
        ("unanswered", "unreachable", [UNDONE]),
        ("unanswered", "final", [UNDONE]),
    ],
)
def test_failure_after_an_immediate_retry_has_the_reason_of_the_first_try(
    client: Client, first: str, last: str, undone: Any
) -> None:
    run = client.acquire().fail(first, 100)
    assert run.asks(verb="acquire")
    with pytest.raises(Failure) as caught:
        run.fail(last, 100.1)
    assert (first, undone) == (caught.value.why, client.undone)


@pytest.mark.parametrize(("since", "cause"), [(102.5, "busy"), (101.5, "unanswered")])
def test_failure_has_the_cause_of_the_latest_try_that_had_its_full_time(
    client: Client, since: float, cause: str
) -> None:
    """A try times out after 1 s, and all tries together after 3 s. If the last try gets less than
    1 s, the failure has the cause of the try before it."""
    run = client.acquire().fail("busy", since)
    while run.step.timeout == 1:
        run.fail("unanswered", since := since + 1)
        if isinstance(run.step, Sleep):
            run.message(None, since)
    with pytest.raises(Failure) as caught:
        run.fail("unanswered", 103)
    assert (cause, "unanswered") == (str(caught.value.cause), caught.value.why)


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
def test_acquire_returns_a_rejection_when_the_server_rejects_the_request(
    client: Client, reply: tuple[Any, ...], rejection: Rejection
) -> None:
    run = client.acquire(wait=False)
    assert run.asks(how="try")
    assert rejection == run.answer(*reply, sent=100).result
    assert [] == client.deferred


@pytest.mark.parametrize("times", [2, 30])
def test_acquire_is_repeated_if_the_server_replies_that_it_has_more_to_do(
    client: Client, times: int
) -> None:
    run = client.acquire(wait=False, budget=3.0)
    for turn in range(times):
        assert run.asks(verb="acquire", token="t1", how="try")
        run.answer("more", sent=100 + 3 * turn / 29)
    if times == 2:
        assert run.answer("ok", FENCE, "10000", sent=100.2).result.token == "t1"
    else:
        assert (Rejection("full"), []) == (run.result, client.deferred)


@pytest.mark.promise(5)
@pytest.mark.parametrize("reply", [("no", "full", 0), ("gone",)])
def test_tombstone_is_written_when_an_earlier_reply_was_lost(client: Client, reply: Any) -> None:
    """The tombstone rejects the first request if that request arrives late. After the reply "gone",
    the client acquires again, with a new token."""
    run = client.acquire().fail("unanswered", 101).answer(*reply, sent=101)
    assert run.asks(verb="release", token="t1", how="undo", tombstone=1)
    run.answer("gone", sent=101)
    if reply == ("gone",):
        assert run.asks(verb="acquire", token="t2")
    else:
        assert "full" == run.result.reason


@pytest.mark.parametrize("word", [*reasons.REASONS, "asleep {now}"])
def test_rejection_has_a_message_for_known_and_unknown_reasons(word: str) -> None:
    rejection = Rejection(word, detail="3")
    assert word == rejection.why.word
    assert str(rejection) and ("{" in word) == ("{" in str(rejection))


# Waiting


def test_waiter_waits_no_longer_than_the_reply_or_the_deadline_allows(client: Client) -> None:
    assert Wait(KEYS, "t1", 1.0) == client.waiting().step
    assert 0.25 == pytest.approx(client.waiting(give_up_at=100.25).step.seconds)
    # BLPOP with 0 would block forever.
    assert steps.SHORTEST_WAIT == client.waiting(delay=1, give_up_at=100.25).step.seconds


def test_waiter_with_prepared_arguments_sends_a_heartbeat_after_a_wait_reply(
    client: Client,
) -> None:
    run = PlanRun(plans.acquire(plans.worded(client.ask()), 100.0))
    assert run.asks(how="wait")
    assert run.waiting(100).message(None, 101).asks(how="again")


@pytest.mark.promise(8)
@pytest.mark.parametrize(
    ("asked", "granted", "lease", "at", "until"),
    [
        # until = 100 s (the time of the request) + server time from S1 to the grant + lease
        ({"lease": 4.0}, 600, 4000, 100.9, 104.6),
        ({"lease": 4.0}, 60_000, 4000, 100.5, 104.5),  # the server's clock jumped forward
        ({"lease": 4.0}, 600, 4000, 104.7, None),  # the lease expired before the message came
        # With a channel, the message may get lost, so a lease that is not renewed lasts only CLAIM.
        ({"lease": 60.0, "channel": "c"}, 100, FIRST, 100.5, 100.1 + CLAIM),
        ({"lease": 0.5, "channel": "c"}, 100, 500, 100.2, 100.6),
        ({"lease": 60.0, "channel": "c"}, 0, FIRST, 100 + CLAIM, None),
        # Half of a lease must be left for its first renewal.
        ({"lease": 4.0}, 0, 4000, 101.9, 104.0),
        ({"lease": 4.0}, 0, 4000, 102.1, None),
        ({"lease": 60.0, "channel": "c"}, 0, FIRST, 100.1 + CLAIM / 2, None),
    ],
)
def test_client_counts_the_duration_of_a_handed_off_lease_from_its_grant(
    client: Client, asked: Any, granted: int, lease: int, at: float, until: float | None
) -> None:
    run = client.waiting(sent=100, **asked).message(f"{FENCE} {S1 + granted} {lease}", at)
    if until is None:
        assert run.asks(verb="acquire", token="t1", how="again")
    else:
        assert (int(FENCE), "t1") == (run.result.fence, run.result.token)
        assert ends_at(until, run.result)
        assert pytest.approx(min(at, 100 + granted / 1000), abs=0.0015) == run.result.began


@pytest.mark.promise(8)
def test_server_time_is_converted_to_client_time_with_the_latest_wait_reply(client: Client) -> None:
    run = client.waiting(sent=100, lease=4.0).message(None, 101)
    run.answer("wait", str(S1 + 1200), 1000, 0, sent=101, after=0.3)
    assert ends_at(105.3, run.message(f"{FENCE} {S1 + 1500} 4000", at=101.8).result)


def test_grant_contains_the_seconds_that_the_caller_waited(client: Client) -> None:
    assert 0.0 == client.acquire(100).answer("ok", FENCE, "10000", sent=107).result.waited
    handed = client.waiting(sent=100).message(f"{FENCE} {S1 + 2500} 4000", at=103).result
    assert 2.5 == pytest.approx(handed.waited)
    asked = client.waiting(sent=100).message(None, 101).answer("ok", FENCE, "10000", sent=104)
    assert 4.0 == pytest.approx(asked.result.waited)


@pytest.mark.parametrize("allowed", [None, False])
def test_callback_is_called_when_a_wait_begins_and_when_it_ends(
    client: Client, allowed: bool | None
) -> None:
    calls: list[tuple[str, bool]] = []
    run = client.waiting(on_wait=lambda *args: calls.append(args) or allowed)
    assert [("t1", True)] == calls
    if allowed is False:  # the callback forbids the wait
        assert run.asks(how="withdraw")
        assert Rejection("full") == run.answer("gone", sent=100).result
    else:
        run.message(None, 101).waiting(101).message(None, 102)
        assert [("t1", True)] == calls
        run.answer("ok", FENCE, "10000", sent=102)
    assert [("t1", True), ("t1", False)] == calls


@pytest.mark.promise(2, 13)
@pytest.mark.parametrize(
    ("options", "why", "every", "least", "most"),
    [
        # In an outage that is shorter than RIDE_OUT, a waiter keeps its position in the queue.
        ({}, "unreachable", 0.1, plans.RIDE_OUT - 2, plans.RIDE_OUT + 1),
        ({"give_up_at": 101}, "unanswered", 0.2, 1.5, 2.5),
    ],
    ids=["heartbeat", "giveup"],
)
def test_wait_that_fails_in_a_long_outage_is_undone_later(
    client: Client, options: Any, why: str, every: float, least: float, most: float
) -> None:
    run = client.waiting(**options).message(None, 101)
    assert run.asks(token="t1", how="giveup" if options else "again")
    assert least < run.fail_until(why, 101, every=every) - 101 <= most
    assert [UNDONE] == client.undone


# Giving up


@pytest.mark.parametrize("lost", [False, True], ids=["answered", "reply lost"])
def test_waiter_keeps_a_lease_that_is_granted_while_the_waiter_gives_up(
    client: Client, lost: bool
) -> None:
    run = client.waiting(give_up_at=101).message(None, 101)
    if lost:
        run.fail("unanswered", 101.5)
    assert run.asks(how="giveup", token="t1")
    given = run.answer("ok", FENCE, "4000", sent=101.5).result
    assert int(FENCE) == given.fence
    assert ends_at(105.5, given)


# Cancelled


@pytest.mark.promise(6)
@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("waits", [False, True], ids=["asking", "waiting"])
@pytest.mark.parametrize("undo", ["succeeds", "fails", "is interrupted"])
def test_interrupted_acquire_is_undone_with_a_tombstone(
    client: Client, error: type[BaseException], waits: bool, undo: str
) -> None:
    """The acquire request may arrive after the undo. The tombstone blocks it."""
    run = client.waiting() if waits else client.acquire()
    run.throw(error("stop"))
    assert run.asks(verb="release", token="t1", how="undo", tombstone=1)
    assert run.step.timeout <= plans.UNDO_BUDGET
    with pytest.raises(error if undo != "is interrupted" else ZeroDivisionError):
        if undo == "succeeds":
            run.answer("ok", sent=101)
        elif undo == "fails":
            run.fail("unreachable", 101)
        else:
            run.throw(ZeroDivisionError())
    assert ([] if undo == "succeeds" else [UNDONE]) == client.undone
    assert all(step.keys == KEYS.declared for step in client.deferred)


def test_acquire_is_undone_later_if_its_plan_is_closed_during_a_wait(client: Client) -> None:
    """When an event loop ends, it closes its coroutines. This also closes their plans."""
    client.waiting().plan.close()
    assert [UNDONE] == client.undone


# Permanent leases


@pytest.mark.promise(3)
@pytest.mark.parametrize("handed_off", [False, True], ids=["at once", "handed off"])
@pytest.mark.parametrize("outcome", ["ok", "lost", "unanswered", "unreachable"])
def test_permanent_lease_is_renewed_before_acquire_returns(
    client: Client, handed_off: bool, outcome: str
) -> None:
    run = (client.waiting if handed_off else client.acquire)(lease=math.inf)
    if handed_off:
        run.message(f"{FENCE} {S1} {FIRST}", 100.1)
    else:
        assert run.asks(lease="inf")
        run.answer("ok", FENCE, f"{FIRST}", sent=100)
    register(run)
    assert run.asks(verb="renew", token="t1", fence=int(FENCE), how="set", ms="inf")
    if outcome == "lost":
        assert run.answer("lost", sent=101).asks(verb="acquire", token="t2")
    elif outcome == "unreachable":
        run.fail_until("unreachable", 100.1, every=0)
        # The lease is not permanent yet, so it would expire. The undo frees its permit sooner.
        assert [UNDONE] == client.undone
    else:
        if outcome == "unanswered":
            run.fail("unanswered", 101.0)
        given = run.answer("ok", "inf", sent=101).result
        assert (math.inf, math.inf, "") == (given.until, given.ends, given.rejected)


def register(run: PlanRun, *failures: str) -> None:
    """Answer the steps that register a name. First, fail the first one for these reasons."""
    since = int(FENCE) // 1000
    for why in failures:
        assert run.asks(verb="register", since=since, member=KEYS.quoted)
        run.fail(why, 100.2)
        if isinstance(run.step, Sleep):
            run.message(None, 100.2)
    if "final" not in failures:
        assert run.asks(verb="register", since=since, member=KEYS.quoted)
        assert (f"{KEYS.prefix}:holders",) == run.step.keys
        run.answer("ok", sent=100)


@pytest.mark.promise(25)
@pytest.mark.parametrize("failures", [["busy", "unanswered"], ["final"]], ids=str)
def test_permanent_lease_is_registered_before_it_becomes_permanent(
    client: Client, failures: list[str]
) -> None:
    run = client.acquire(lease=math.inf)
    run.answer("ok", FENCE, f"{FIRST}", sent=100)
    register(run, *failures)
    assert math.inf == run.answer("ok", "inf", sent=101).result.until
    longer = PlanRun(renewals.renew(KEYS, run.result, math.inf, 7, 3.0, 1.0, 100.0))
    register(longer, *failures)
    assert longer.asks(verb="renew", ms="inf")
    assert PlanRun(renewals.renew(KEYS, run.result, 9.0, 8, 3.0, 1.0, 100.0)).asks(verb="renew")


def test_acquire_is_undone_if_its_permanent_lease_cannot_be_registered(client: Client) -> None:
    run = client.acquire(lease=math.inf)
    run.answer("ok", FENCE, f"{FIRST}", sent=100)
    run.fail_until("unreachable", 100.1, every=0)
    assert [UNDONE] == client.undone


# Release and renewal


def release(given: Grant) -> PlanRun:
    return PlanRun(plans.release(KEYS, given, 0.0, 3.0, 1.0, 105.0))


@pytest.mark.promise(5, 10)
@pytest.mark.parametrize(
    ("changes", "fails", "word", "expected"),
    [
        ({}, False, "ok", True),
        ({}, False, "lost", False),
        ({}, True, "lost", True),  # the unanswered request released the lease
        ({"until": 104.0}, True, "lost", False),  # the lease had expired before the release
        ({"unanswered": True}, False, "ok", True),
        ({"unanswered": True}, False, "lost", False),
    ],
)
def test_release_returns_whether_the_lease_was_still_held(
    changes: Any, fails: bool, word: str, expected: bool
) -> None:
    run = release(grant(**changes))
    unanswered = int("unanswered" in changes)
    assert run.asks(token="t1", fence=int(FENCE), how="release", tombstone=unanswered)
    first = run.step
    if fails:
        run.fail("unanswered", 106)
        assert [*map(str, first.argv)] == [*map(str, run.step.argv)]
    run.answer(word, sent=105)
    if unanswered and word == "lost":
        # A late copy of the acquire may have got another lease, with another fence. Undo it.
        assert run.asks(how="undo", tombstone=1)
        run.answer("ok", sent=105)
    assert expected is run.result
    assert (word == "ok") is plans.given_back(Answer([word], 105.0, 105.0))


@pytest.mark.parametrize("word", ["ok", "lost"])
def test_downgrade_plan_and_confirm_plan_return_true_if_the_lease_is_held(word: str) -> None:
    downgrading = PlanRun(plans.downgrade(KEYS, grant(), 1.0, 105.0))
    assert downgrading.asks(
        verb="release", token="t1", fence=int(FENCE), how="downgrade", tombstone=0
    )
    confirming = PlanRun(renewals.confirm(KEYS, grant(), 1.0, 105.0))
    assert confirming.asks(verb="renew", token="t1", fence=int(FENCE), how="confirm")
    results = [run.answer(word, "1000", sent=105).result for run in (downgrading, confirming)]
    assert [word == "ok"] * 2 == results


@pytest.mark.promise(8)
def test_renewed_lease_duration_begins_when_the_client_sends_the_renewal() -> None:
    run = PlanRun(renewals.renew(KEYS, grant(), 10.0, 7, 3.0, 1.0, 105.0))
    assert run.asks(verb="renew", token="t1", fence=int(FENCE), how="set", ms="10000", nth=7)
    assert renewals.number_of(run.step) == 7
    assert 114.998 <= run.answer("ok", "10000", sent=105, after=2).result <= 115
    run = PlanRun(renewals.renew(KEYS, grant(), 10.0, 7, 3.0, 1.0, 105.0))
    assert run.answer("lost", sent=105).result is None


# The arguments of the scripts


def sent(plan: Plan, *answers: list[Any]) -> list[dict[str, Any]]:
    """Return the arguments of each script that a plan runs. `answers`: the replies for the plan."""
    run = PlanRun(plan)
    steps = [run.args]
    for reply in answers:
        assert len(scripts.script(run.step.verb).keys) == len(run.step.keys)
        if not run.answer(*reply, sent=100.0).ended:
            steps.append(run.args)
    return steps


def test_plans_send_arguments_in_the_order_that_the_script_header_lists(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All values differ, so a value in a wrong place fails the test."""
    keys = keys_of("p", "n", "child", keep=77)
    monkeypatch.setattr(keys.policy, "overrides", "88 6")
    some = {"kind": "w", "fair": False, "max_waiters": 55, "channel": "chan", "label": "lab"}
    long = client.ask(lease=math.inf, permits=5, limit=9, **some)._replace(keys=keys)
    short = long._replace(lease=2.5, give_up_at=100.0)
    asking = {"verb": "acquire", "token": "T", "keep": "77", "overrides": "88 6", "compact": 1}
    asking |= {"kind": "w", "max_waiters": 55, "fair": 0, "channel": "chan", "label": "lab"}
    asking |= {"wants": "w 9", "terms": "5 9 chan lab", "permits": "5", "limit": "9"}
    asking |= {"share": "", "share_limit": 0, "rate": ""}
    renewing = {"verb": "renew", "token": "T", "fence": 123, "how": "set", "keep": 77, "job": ""}
    leaving = {"verb": "release", "token": "T", "fence": 123, "hold": 0, "keep": 77, "id": ""}
    leaving |= {"overrides": "88 6", "tombstone": 0}
    assert [
        {**asking, "lease": "inf", "how": "wait"},
        {"verb": "register", "since": 123, "member": keys.quoted},
        {**renewing, "fence": 123456, "ms": "inf", "nth": 0, "known": 0},
    ] == sent(plans.acquire(long, 100.0, "T"), ["ok", "123456", "5000"], ["ok"], ["ok", "inf"])
    assert [
        {**asking, "lease": "2500", "how": "wait"},
        {**leaving, "fence": "0", "how": "giveup"},
    ] == sent(plans.acquire(short, 100.0, "T"), ["wait", "1000", 1000, 0], ["gone"])
    given = Grant("T", 123, 5, 100.0, 102.5, 102.5, False)
    own, job = (keys, given), (keys, given._replace(job_id="P"))
    adopting, trying = {**renewing, "ms": "4000", "nth": 33}, long._replace(wait=False)
    for plan, expected in (
        (plans.acquire(trying, 100.0, "T"), {**asking, "lease": "inf", "how": "try"}),
        (plans.release(*own, 1.5, 3.0, 1.0, 100.0), {**leaving, "how": "release", "hold": 1500}),
        (plans.release(*job, 0.0, 3.0, 1.0, 1.0), {**leaving, "how": "release", "id": "P"}),
        (renewals.renew(*own, 4.0, 33, 3.0, 1.0, 100.0), {**adopting, "known": 0}),
        (renewals.renew(*job, 4.0, 33, 3.0, 1.0, 1.0), {**adopting, "known": 0, "job": "P"}),
        (
            renewals.renew(*own, 4.0, 33, 3.0, 1.0, 1.0, 22),
            {**adopting, "how": "adopt", "known": 22},
        ),
        (plans.downgrade(*own, 1.0, 100.0), {**leaving, "how": "downgrade"}),
    ):
        assert [expected] == sent(plan)


# Time budgets, and replies that have new fields in a later version


@pytest.mark.promise(13)
@pytest.mark.parametrize(
    ("plan", "ends"),
    [
        (lambda: plans.acquire(Client().ask(), 100.0), 103.0),
        (lambda: plans.release(KEYS, grant(), 0, 3.0, 1.0, 100.0), 103.0),
        (lambda: renewals.renew(KEYS, grant(), 10.0, 7, 3.0, 1.0, 100.0), 103.0),
        (lambda: plans.downgrade(KEYS, grant(), 4.0, 100.0), 108.0),
        (lambda: renewals.confirm(KEYS, grant(), 4.0, 100.0), 108.0),
        (lambda: steps.run_once("clear", KEYS, ("t9", "-", 0), 4.0, 100.0), 108.0),
    ],
    ids=["acquire", "release", "renew", "downgrade", "confirm", "run_once"],
)
def test_calls_to_a_busy_server_are_retried_until_the_time_budget_ends(
    plan: Any, ends: float
) -> None:
    run = PlanRun(plan())
    at = run.fail_until("busy", 100.0, ends - 1.5, every=0.5)
    if isinstance(run.step, Sleep):
        run.message(None, at)
    assert isinstance(run.step, Run) and at + run.step.timeout <= ends
    with pytest.raises(Failure):
        run.fail("busy", ends - 0.001)


@pytest.mark.parametrize(
    ("reply", "plan"),
    [
        (["ok", FENCE, "10000", "1", "full"], lambda client: client.acquire(shadow=True)),
        (["no", "full", 0, "1500", "2"], lambda client: client.acquire(wait=False)),
        (["large", "2"], lambda client: client.acquire()),
        (["kind", "w"], lambda client: client.acquire()),
        (["ok"], lambda client: release(grant())),
        (["ok", "9000"], lambda client: PlanRun(renewals.confirm(KEYS, grant(), 1.0, 105.0))),
    ],
    ids=["granted", "rejected", "too large", "another kind", "released", "confirmed"],
)
def test_unknown_field_of_a_reply_is_ignored(reply: list[Any], plan: Any) -> None:
    results = [plan(Client()).answer(*some, sent=105.0).result for some in (reply, [*reply, "new"])]
    assert results[0] is not None and results[0] == results[1]


def test_unknown_field_of_a_wake_up_message_or_wait_reply_is_ignored(client: Client) -> None:
    run = client.acquire().answer("wait", str(S1), 1000, 0, "new", sent=100)
    assert int(FENCE) == run.message(f"{FENCE} {S1} 5000 new", 100.1).result.fence
