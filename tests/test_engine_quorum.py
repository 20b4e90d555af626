"""Votes of a quorum: the steps that its servers get, and the reply of the majority."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from redis import exceptions as errors

from django_redis_sync import Lock, Semaphore
from django_redis_sync.engine import loops
from django_redis_sync.engine.quorum import (
    Quorum,
    quorum_of,
    server,
    voting,
)
from django_redis_sync.engine.quorum.server import AsyncQuorumServer, QuorumServer
from django_redis_sync.engine.quorum.voting import check, deducted, stretched, undo
from django_redis_sync.protocol import plans, scripts
from django_redis_sync.protocol.keys import keys_of
from django_redis_sync.protocol.plans import Answer, Failure, Grant, Run
from django_redis_sync.protocol.scripts import arguments_of
from tests.test_engine_batching import on_loop, run_callbacks

KEYS = keys_of("test", "x", None, 7)
GRANT = Grant("t", 1, 1, 0.0, 30.0, 30.0, False)


@pytest.mark.parametrize(
    "step",
    [
        plans.releasing(KEYS, GRANT, 0, 1.0),
        plans.renewing(KEYS, GRANT, 30.0, 1, 1.0),
        plans.undoing(KEYS, "t"),
    ],
    ids=lambda step: step.verb,
)
def test_undo_builds_a_release_from_any_step(step: Run) -> None:
    given = scripts.arguments_of("release", undo(step, 1).argv)
    expected = {"token": "t", "how": "undo", "tombstone": 1, "mark": "-", "keep": KEYS.keep}
    assert expected == {word: given[word] for word in expected}


# Votes, without a server


class Member:
    """Stand-in for a server of a quorum. `says` returns its reply to a step, or None to reply later
    by `answer()`."""

    def __init__(self) -> None:
        self.says: Callable[[Run], Any] = lambda step: REPLIES[step.verb]
        self.asked: list[Run] = []
        self.unanswered: list[asyncio.Future[Answer]] = []

    def perform(self, step: Run) -> asyncio.Future[Answer]:
        self.asked.append(step)
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        reply = self.says(step)
        if isinstance(reply, Failure):
            done.set_exception(reply)
        elif reply is None:
            self.unanswered.append(done)
        else:
            done.set_result(Answer(reply, 0.0, 0.0))
        return done

    def answer(self, reply: list[Any]) -> None:
        self.unanswered.pop().set_result(Answer(reply, 0.0, 0.0))

    def received(self, verb: str) -> list[tuple[Any, ...]]:
        """Return the arguments of the steps of this verb."""
        return [step.argv for step in self.asked if step.verb == verb]


REPLIES: dict[str, Any] = {"acquire": ["ok", "7", "30302"], "renew": ["ok", "30302"]}
REPLIES |= {"release": ["ok"], "inspect": ["0"] * 7 + [0], "operate": ["ok"]}
GONE = Failure(errors.ConnectionError("refused"), 0.0, "unreachable")


class Later:
    """Stand-in for a lease renewer. It records the steps of `later()`."""

    def __init__(self) -> None:
        self.steps: list[Run] = []
        self.later = self.steps.append


class Five(dict[str, Member]):
    """Five members by alias, and the renewer of each in `later`."""

    later: dict[str, Later]

    def ok(self, *leases: str) -> None:
        """Have the first members grant leases of these milliseconds, and the others be full."""
        for n, member in enumerate(self.values()):
            grant = ["ok", str(7 + n), leases[n]] if n < len(leases) else ["no", "full", 0]
            member.says = lambda step, grant=grant: {**REPLIES, "acquire": grant}[step.verb]


@pytest.fixture
def five(monkeypatch: pytest.MonkeyPatch) -> Five:
    made = Five({alias: Member() for alias in "abcde"})
    made.later = {alias: Later() for alias in made}
    monkeypatch.setattr(voting, "async_server_of", lambda alias: made[alias])
    monkeypatch.setattr(server, "renewer", lambda alias: made.later[alias])
    monkeypatch.setattr(server, "check", lambda quorum: None)
    monkeypatch.setattr(voting, "LATE", 0.0)
    return made


def acquire(how: str = "try", token: str = "t", lease: str = "30000") -> Run:
    argv = (token, lease, how, "p 1", "1 1 - ", 7, "-", 9, 0)
    return Run("acquire", KEYS.declared, argv, 1.0)


RENEW = plans.renewing(KEYS, GRANT, 30.0, 1, 1.0)
RELEASE = plans.releasing(KEYS, GRANT, 0, 1.0)


def set_reply(five: Five, verb: str, reply: Any, *aliases: str) -> None:
    """Have these members reply to a verb with `reply`, or later if it is None."""
    for alias in aliases:
        before = five[alias].says
        five[alias].says = lambda step, before=before: reply if step.verb == verb else before(step)


def run(five: Five, *asked: Run) -> list[Any]:
    """Run steps one after the other. Return the reply or the Failure of each."""

    async def main() -> list[Any]:
        server, replies = AsyncQuorumServer(Quorum(five)), []
        for step in asked:
            try:
                replies.append((await asyncio.wait_for(server.run(step), 30)).reply)
            except Failure as failure:
                replies.append(failure)
        return replies

    return asyncio.run(main())


@pytest.fixture(autouse=True)
def no_remembered_leases() -> None:
    voting._known.clear()


@pytest.mark.parametrize(("servers", "need"), [(3, 2), (4, 3), (5, 3), (7, 4)])
def test_quorum_needs_more_than_half_of_its_servers(servers: int, need: int) -> None:
    assert need == Quorum([str(n) for n in range(servers)]).need


def test_deducted_undoes_stretched_within_a_millisecond() -> None:
    assert ("30302", "inf") == (stretched("30000"), stretched("inf"))
    assert (30000.0, math.inf) == (deducted("30302"), deducted("inf"))
    for ms in range(1, 3000, 7):
        assert ms <= deducted(stretched(str(ms))) <= ms + 1


def test_grant_expires_when_fewer_than_a_majority_of_leases_remain(five: Five) -> None:
    five.ok("40402", "30302", "20202", "10102")
    assert [["ok", "10", "20000"]] == run(five, acquire())
    assert ("t", "30302") == five["a"].received("acquire")[0][:2]


def test_answer_is_timed_from_before_the_first_request(
    five: Five, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reply(step: Run) -> Any:
        now[0] += 1
        return REPLIES[step.verb]

    now = [100.0]
    monkeypatch.setattr(server, "clock", lambda: now[0])
    for member in five.values():
        member.says = reply
    answer = asyncio.run(AsyncQuorumServer(Quorum(five)).run(acquire()))
    assert ("ok", 100.0, 105.0) == (answer.reply[0], answer.sent, answer.received)


def test_grants_of_a_minority_are_released(five: Five) -> None:
    five.ok("30302", "30302")
    (rejected,) = run(five, acquire())
    assert ["no", "full"] == rejected[:2]
    assert [1, 1, 0, 0, 0] == [len(member.received("release")) for member in five.values()]
    assert ("t", "0", 7, "undo", 0) == five["a"].received("release")[0][:5]


def test_retry_delay_of_a_waiter_varies_and_is_shorter_after_a_split_vote(five: Five) -> None:
    def delays(granted: int, *unreachable: str) -> set[int]:
        five.ok(*["30302"] * granted)
        set_reply(five, "acquire", GONE, *unreachable)
        replies = run(five, *[acquire("wait", f"t{n}") for n in range(20)])
        assert {"wait"} == {reply[0] for reply in replies}
        return {int(reply[2]) for reply in replies}

    split, full, nearly = delays(2, "e"), delays(0), delays(2)
    assert len(split) > 3 and len(full) > 3
    assert max(split) <= server.SPLIT[1] and max(full) <= server.HELD[1]
    assert max(nearly) > server.SPLIT[1], "a majority of rejections is not a split vote"


def test_lease_that_expired_during_the_vote_is_not_granted(
    five: Five, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = itertools.count(100.0, 40.0)
    monkeypatch.setattr(server, "clock", lambda: next(now))
    (rejected,) = run(five, acquire())
    assert ["no", "full", 0] == rejected
    assert all(member.received("release") for member in five.values())


def test_acquire_without_answers_of_a_majority_fails_and_is_undone_later(five: Five) -> None:
    for alias in "abc":
        five[alias].says = lambda step: GONE
    (failure,) = run(five, acquire())
    assert isinstance(failure, Failure)
    assert "unreachable" == failure.why and isinstance(failure.cause, errors.ConnectionError)
    assert "2 of 5 servers of the quorum answered; one failed with: refused" == str(failure.cause)
    assert [1, 1, 1, 0, 0] == [len(later.steps) for later in five.later.values()]
    # A late copy of the acquire may still arrive there, so the undo writes a tombstone.
    assert ("t", "0", 7, "undo", 1) == five.later["a"].steps[0].argv
    assert five["d"].received("release") and five["e"].received("release")


def test_failure_is_unanswered_if_any_server_may_have_run_the_step(
    five: Five,
) -> None:
    late = Failure(errors.TimeoutError("late"), 0.0, "unanswered")
    for alias, failure in zip("abcd", (GONE, GONE, late, GONE), strict=True):
        five[alias].says = lambda step, failure=failure: failure
    (failure,) = run(five, acquire())
    assert ("unanswered", True) == (failure.why, "failed with: late" in str(failure.cause))


def test_pause_on_one_server_is_the_reason_of_the_rejection(five: Five) -> None:
    five.ok()
    set_reply(five, "acquire", ["no", "paused", 0], "c")
    assert ["no", "paused"] == run(five, acquire())[0][:2]


def test_error_replies_of_a_majority_are_a_final_failure(five: Five) -> None:
    refused = Failure(errors.ResponseError("NOPERM no right"), 0.0, "final")
    for alias in "abc":
        five[alias].says = lambda step: refused
    (failure,) = run(five, acquire())
    assert ("final", errors.ResponseError) == (failure.why, type(failure.cause))


def test_permanent_lease_stays_permanent(five: Five) -> None:
    five.ok("inf", "inf", "inf")
    assert "inf" == run(five, acquire(lease="inf"))[0][2]
    assert "inf" == five["a"].received("acquire")[0][1]


@pytest.mark.parametrize("mistake", [["kind", "w"], ["large", "1"]])
def test_error_of_the_caller_on_one_server_is_the_reply(five: Five, mistake: list[str]) -> None:
    five.ok("30302")
    set_reply(five, "acquire", mistake, "e")
    assert [mistake] == run(five, acquire("wait"))


@on_loop
async def test_late_grant_is_renewed_and_released(five: Five) -> None:
    set_reply(five, "acquire", None, "e")
    server = AsyncQuorumServer(Quorum(five))
    assert "ok" == (await server.run(acquire())).reply[0]
    five["e"].answer(["ok", "99", "30302"])
    await asyncio.sleep(0)
    await server.run(RENEW)
    await server.run(RELEASE)
    assert ("t", "99") == five["e"].received("renew")[0][:2] == five["e"].received("release")[0][:2]


def test_late_rejection_or_failure_is_ignored(five: Five) -> None:
    """A late grant is renewed, but a rejection or a failure gives no fence to renew."""
    set_reply(five, "acquire", None, "d", "e")
    errors_of_loop: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: errors_of_loop.append(context)
        )
        server = AsyncQuorumServer(Quorum(five))
        assert "ok" == (await server.run(acquire())).reply[0]
        five["d"].answer(["no", "full", 0])
        five["e"].unanswered.pop().set_exception(GONE)
        await asyncio.sleep(0)
        await server.run(RENEW)
        set_reply(five, "release", None, "d")
        await server.run(RELEASE)
        five["d"].answer(["ok"])
        await asyncio.sleep(0)

    asyncio.run(main())
    assert [1, 1, 1, 0, 0] == [len(member.received("renew")) for member in five.values()]
    assert [] == errors_of_loop


def test_each_attempt_of_an_acquire_has_its_own_token(five: Five) -> None:
    """A server that answered late may have a tombstone of the token of the last attempt."""
    five.ok("30302")
    assert ["wait", "wait"] == [reply[0] for reply in run(five, acquire("wait"), acquire("wait"))]
    first, second = (argv[0] for argv in five["a"].received("acquire"))
    assert "t" == first != second


def test_waiter_that_gives_up_sends_no_undo(five: Five) -> None:
    five.ok("30302")
    giveup = plans.undoing(KEYS, "t")
    giveup = giveup._replace(
        argv=tuple("giveup" if word == "undo" else word for word in giveup.argv)
    )
    assert "wait" == run(five, acquire("wait"))[0][0]
    before = [len(member.received("release")) for member in five.values()]
    assert [["gone"]] == run(five, giveup)
    assert before == [len(member.received("release")) for member in five.values()]
    assert voting.held_of(Quorum(five), "t") is None


def test_renew_and_release_of_an_unknown_lease_return_lost(five: Five) -> None:
    assert [["lost"], ["lost"]] == run(five, RENEW, RELEASE)
    assert [] == [step for member in five.values() for step in member.asked]


@on_loop
async def test_grant_to_a_caller_that_gave_up_during_the_vote_is_undone(
    five: Five, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(voting, "PATIENCE", 30.0)
    set_reply(five, "acquire", None, *five)
    server = AsyncQuorumServer(Quorum(five))
    asked = asyncio.ensure_future(server.run(acquire()._replace(timeout=30.0)))
    await asyncio.sleep(0)
    await server.run(plans.undoing(KEYS, "t"))
    assert [1] * 5 == [len(member.received("release")) for member in five.values()]
    for alias in "abc":
        five[alias].answer(["ok", "7", "30302"])
    assert "no" == (await asked).reply[0]
    for alias in "abc":
        assert [("t", "0", 7, "undo")] * 2 == [argv[:4] for argv in five[alias].received("release")]
    assert voting.held_of(Quorum(five), "t") is None


def test_renewal_uses_the_fence_of_each_server_and_the_expiry_of_the_majority(five: Five) -> None:
    five.ok(*["30302"] * 5)
    set_reply(five, "renew", ["ok", "20202"], "a", "b", "c")
    assert ["ok", "20000"] == run(five, acquire(), RENEW)[1]
    assert ["7", "8", "9", "10", "11"] == [five[alias].received("renew")[0][1] for alias in five]
    assert "30302" == five["a"].received("renew")[0][3]


def test_renewal_returns_lost_only_when_no_majority_can_hold_the_lease(five: Five) -> None:
    set_reply(five, "renew", ["lost"], "a", "b")
    set_reply(five, "renew", GONE, "c", "d")
    _, first, second = run(five, acquire(), RENEW, RENEW)
    assert isinstance(first, Failure) and isinstance(second, Failure)
    set_reply(five, "renew", ["lost"], "c")
    voting.forget(Quorum(five), "t")
    assert ["lost"] == run(five, acquire(), acquire("again"), RENEW)[2]
    (_, again), undone = five["e"].received("acquire")[-2:], five["e"].received("release")[-1]
    assert again[0] == undone[0], "the rest of the lease is released"


def test_released_undone_and_lost_leases_are_forgotten(five: Five) -> None:
    undoing = plans.undoing(KEYS, "t")
    for tries in (
        [acquire()],
        [acquire(), acquire("again")],
    ):  # the second attempt has another token
        for last, word in ((RELEASE, "ok"), (undoing, "gone")):
            assert word == run(five, *tries, last)[-1][0]
            assert voting.held_of(Quorum(five), "t") is None
            for member in five.values():
                assert member.received("acquire")[-1][0] == member.received("release")[-1][0]
    set_reply(five, "renew", ["lost"], *five)
    assert "lost" == run(five, acquire(), RENEW)[1][0]
    assert voting.held_of(Quorum(five), "t") is None


@pytest.mark.parametrize("renewed", [False, True])
def test_held_lease_is_remembered_until_it_expires(
    five: Five, monkeypatch: pytest.MonkeyPatch, renewed: bool
) -> None:
    five.ok(*["30302" if renewed else "1000000"] * 5)
    set_reply(five, "renew", ["ok", "1000000"], *five)
    began, quorum = voting.clock(), Quorum(five)
    assert "ok" == run(five, acquire(), *[RENEW] * renewed)[-1][0]
    monkeypatch.setattr(voting, "MAX_REMEMBERED", 0)
    known = []
    for later in (900.0, 1100.0):
        monkeypatch.setattr(voting, "clock", lambda later=later: began + later)
        voting.remember(quorum, f"another {later}")
        known.append(voting.held_of(quorum, "t") is not None)
    assert [True, False] == known


@on_loop
async def test_aclose_waits_for_a_running_vote(five: Five, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "END", 20.0)
    for member in five.values():
        member.says = lambda step: None
    server = AsyncQuorumServer(Quorum(five))
    done = server.perform(acquire())
    closing = asyncio.ensure_future(server.aclose())
    await run_callbacks()
    for member in five.values():
        member.answer(["ok", "7", "30302"])
    await closing
    assert done.done() and "ok" == done.result().reply[0]


def test_timeout_of_a_step_is_limited_to_that_of_a_vote(five: Five) -> None:
    run(five, acquire()._replace(timeout=9.0), acquire(token="u")._replace(timeout=0.5))
    timeouts = [[step.timeout for step in member.asked] for member in five.values()]
    assert [[voting.PATIENCE, 0.5]] * 5 == timeouts


def test_release_is_retried_on_servers_that_missed_it(five: Five) -> None:
    set_reply(five, "release", GONE, "a", "b")
    assert ["ok"] == run(five, acquire(), RELEASE)[1]
    assert [1, 1, 0, 0, 0] == [len(later.steps) for later in five.later.values()]


def test_release_undoes_the_acquire_on_a_server_that_did_not_answer(
    five: Five,
) -> None:
    set_reply(five, "acquire", None, "e")
    assert ["ok"] == run(five, acquire(), RELEASE)[1]
    sent = [arguments_of("release", five[alias].received("release")[0]) for alias in "ae"]
    assert [("release", 0), ("undo", 1)] == [(one["how"], int(one["tombstone"])) for one in sent]


def test_release_without_a_majority_fails_and_its_retry_asks_only_failed_servers(
    five: Five,
) -> None:
    set_reply(five, "release", GONE, "a", "b", "c")
    assert isinstance(run(five, acquire(), RELEASE)[1], Failure)
    set_reply(five, "release", ["ok"], "a", "b", "c")
    for member in five.values():
        member.asked.clear()
    assert [["ok"]] == run(five, RELEASE)
    assert [1, 1, 1, 0, 0] == [len(member.asked) for member in five.values()]


@pytest.mark.parametrize(("expired", "lost"), [("ab", False), ("abc", True)])
def test_release_returns_lost_only_when_no_majority_can_hold_the_lease(
    five: Five, expired: str, lost: bool
) -> None:
    set_reply(five, "release", ["lost"], *expired)
    set_reply(five, "release", GONE, *five.keys() - {*expired})
    reply = run(five, acquire(), RELEASE)[1]
    assert ["lost"] == reply if lost else isinstance(reply, Failure)


@on_loop
async def test_vote_does_not_wait_for_a_server_that_was_silent_before(
    five: Five, monkeypatch: pytest.MonkeyPatch
) -> None:
    five["e"].says = lambda step: None
    monkeypatch.setattr(voting, "UNDO_BUDGET", 1e6)
    server = AsyncQuorumServer(Quorum(five))
    monkeypatch.setattr(voting, "PATIENCE", 0.02)
    await server.run(acquire()._replace(timeout=1e6))
    monkeypatch.setattr(voting, "PATIENCE", 1e6)
    monkeypatch.setattr(voting, "LATE", 1e6)
    asked = server.run(acquire(token="u")._replace(timeout=1e6))
    assert "ok" == (await asyncio.wait_for(asked, 30)).reply[0]
    undone = server.run(plans.undoing(KEYS, "t")._replace(timeout=1e6))
    await asyncio.wait_for(undone, 30)


def test_vote_ends_when_a_majority_is_impossible(
    five: Five, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(voting, "PATIENCE", 1e6)
    five.ok("30302")
    set_reply(five, "acquire", None, "e")
    assert "no" == run(five, acquire()._replace(timeout=1e6))[0][0]


def test_vote_ends_when_a_majority_has_granted(five: Five, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voting, "PATIENCE", 1e6)
    for alias in "de":
        five[alias].says = lambda step: None
    assert "ok" == run(five, acquire()._replace(timeout=1e6))[0][0]


def test_vote_ends_after_its_time_limit_when_all_servers_are_silent(
    five: Five, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(voting, "PATIENCE", 0.02)
    for member in five.values():
        member.says = lambda step: None
    (failure,) = run(five, acquire()._replace(timeout=1e6))
    assert isinstance(failure, Failure) and "unanswered" == failure.why


def test_inspect_counts_the_holders_that_a_majority_may_have(five: Five) -> None:
    step = Run("inspect", KEYS.declared, ("", 1), 1.0)
    for holding, first, alias in zip((0, 1, 1, 1, 3), "98765", five, strict=True):
        set_reply(five, "inspect", [first] + ["0"] * 6 + [holding], alias)
    ((*_, holding),) = run(five, step)
    assert 1 == holding
    set_reply(five, "inspect", GONE, "b", "c")
    ((*_, holding),) = run(five, step)
    assert 0 == holding  # only three servers answered, and one of them has no holder
    set_reply(five, "inspect", GONE, "d")
    (failed,) = run(five, step)
    assert isinstance(failed, Failure) and "2 of 5 servers" in str(failed)


@pytest.mark.parametrize(
    ("answering", "timeout"), [("abcde", 9.0), ("e", 0.5), ("", 9.0)], ids=["all", "one", "none"]
)
def test_command_asks_all_servers_and_fails_only_if_all_fail(
    five: Five, monkeypatch: pytest.MonkeyPatch, answering: str, timeout: float
) -> None:
    def of(alias: str) -> Any:
        return SimpleNamespace(command=lambda *words, timeout: command(alias, timeout))

    def command(alias: str, timeout: float) -> str:
        asked.append((alias, timeout))
        if alias not in answering:
            raise GONE
        return alias

    monkeypatch.setattr(server, "check", lambda quorum: None)
    monkeypatch.setattr(server, "server_of", of)
    quorum, asked = QuorumServer(Quorum(five)), list[Any]()
    if answering:
        assert quorum.command("TIME", timeout=timeout) in answering
    else:
        with pytest.raises(Failure, match="refused"):
            quorum.command("TIME", timeout=timeout)
    assert [(alias, min(timeout, voting.PATIENCE)) for alias in five] == sorted(asked)


# In sync code


@pytest.fixture
def sync_server(five: Five, monkeypatch: pytest.MonkeyPatch) -> QuorumServer:
    made: dict[str, AsyncQuorumServer] = {}
    quorum = Quorum(five)
    monkeypatch.setattr(server, "check", lambda quorum: None)
    monkeypatch.setattr(
        server, "async_server_of", lambda of: made.setdefault(of, AsyncQuorumServer(quorum))
    )
    return QuorumServer(quorum)


def test_many_returns_an_answer_or_a_failure_per_step(
    sync_server: QuorumServer, five: Five
) -> None:
    set_reply(five, "renew", GONE, "a", "b", "c")
    assert "ok" == sync_server.run(acquire()).reply[0]
    renewed, released = sync_server.many([RENEW, acquire(token="other")])
    assert isinstance(renewed, Failure) and isinstance(released, Answer)
    assert [] == sync_server.many([])
    set_reply(five, "renew", ["ok", "no number"], *five)
    with pytest.raises(ValueError):
        sync_server.many([RENEW])


# Which servers


@pytest.mark.parametrize("using", [["a"], ["a", "b"], ["a", "b", "a"], ["a", "b", "b", "c"]])
def test_quorum_requires_three_different_aliases(using: list[str]) -> None:
    with pytest.raises(ImproperlyConfigured):
        quorum_of(using)


def test_quorum_rejects_two_aliases_of_one_server(settings: Any) -> None:
    urls = ["redis://127.0.0.1:7001/0", "redis://127.0.0.1:7002/0", "redis://127.0.0.1:7001/0"]
    for alias, url in zip("abc", urls, strict=True):
        cache = {**settings.CACHES["default"], "LOCATION": url}
        settings.CACHES = {**settings.CACHES, alias: cache}
    for use in (check, QuorumServer, AsyncQuorumServer):
        with pytest.raises(ImproperlyConfigured, match="same LOCATION"):
            use(quorum_of(["a", "b", "c"]))


@pytest.mark.parametrize(
    "options", [{"timeout": math.inf}, {"fair": True}], ids=["permanent", "fair"]
)
def test_quorum_rejects_unsupported_options(options: Any) -> None:
    for several in (list("abc"), tuple("abc")):
        with pytest.raises(ImproperlyConfigured):
            Lock("x", using=several, **options)
    with pytest.raises(ImproperlyConfigured):
        Semaphore("x", 2, using=["a", "b", "c"])
