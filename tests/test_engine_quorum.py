"""Steps of a quorum say what the scripts read; the majority's answer holds."""

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
def test_an_undo_of_any_step_has_every_argument_in_its_place(step: Run) -> None:
    given = scripts.arguments_of("release", undo(step, 1).argv)
    expected = {"token": "t", "how": "undo", "tombstone": 1, "mark": "-", "keep": KEYS.keep}
    assert expected == {word: given[word] for word in expected}


# Votes, without a server


class Member:
    """In the place of a server of a quorum: `says` what a verb is answered; None: nothing, yet."""

    def __init__(self) -> None:
        self.says: Callable[[Run], Any] = lambda step: REPLIES[step.verb]
        self.asked: list[Run] = []
        self.unanswered: list[asyncio.Future[Answer]] = []

    def perform(self, step: Run) -> asyncio.Future[Answer]:
        self.asked.append(step)
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        said = self.says(step)
        if isinstance(said, Failure):
            done.set_exception(said)
        elif said is None:
            self.unanswered.append(done)
        else:
            done.set_result(Answer(said, 0.0, 0.0))
        return done

    def answer(self, reply: list[Any]) -> None:
        self.unanswered.pop().set_result(Answer(reply, 0.0, 0.0))

    def told(self, verb: str) -> list[tuple[Any, ...]]:
        """What it was asked by that verb; without its history."""
        return [step.argv for step in self.asked if step.verb == verb]


REPLIES: dict[str, Any] = {"acquire": ["ok", "7", "30302"], "renew": ["ok", "30302"]}
REPLIES |= {"release": ["ok"], "inspect": ["0"] * 7 + [0], "operate": ["ok"]}
GONE = Failure(errors.ConnectionError("refused"), 0.0, "unreachable")


class Later:
    """In the place of a keeper: what it is to do later."""

    def __init__(self) -> None:
        self.steps: list[Run] = []
        self.later = self.steps.append


class Five(dict[str, Member]):
    """The members by alias; `later`: what each is to be told later."""

    later: dict[str, Later]

    def ok(self, *leases: str) -> None:
        """So many grant, for that many ms; the others are full."""
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


def ask(how: str = "try", token: str = "t", lease: str = "30000") -> Run:
    argv = (token, lease, how, "p 1", "1 1 - ", 7, "-", 9, 0)
    return Run("acquire", KEYS.declared, argv, 1.0)


def run(five: Five, *asked: Run) -> list[Any]:
    """The replies of the quorum, one after the other; Failures in their place."""

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
def nothing_known() -> None:
    voting._known.clear()


@pytest.mark.parametrize(("servers", "need"), [(3, 2), (4, 3), (5, 3), (7, 4)])
def test_more_than_half_is_a_majority(servers: int, need: int) -> None:
    assert need == Quorum([str(n) for n in range(servers)]).need


def test_servers_are_asked_for_more_than_is_believed() -> None:
    assert ("30302", "inf") == (stretched("30000"), stretched("inf"))
    assert (30000.0, math.inf) == (deducted("30302"), deducted("inf"))
    for ms in range(1, 3000, 7):
        assert ms <= deducted(stretched(str(ms))) <= ms + 1


def test_belief_ends_with_the_first_of_the_longest_lived_majority(five: Five) -> None:
    five.ok("40402", "30302", "20202", "10102")
    assert [["ok", "10", "20000"]] == run(five, ask())
    assert ("t", "30302") == five["a"].told("acquire")[0][:2]


def test_an_answer_counts_from_before_any_server_was_asked(
    five: Five, monkeypatch: pytest.MonkeyPatch
) -> None:
    def says(step: Run) -> Any:
        now[0] += 1
        return REPLIES[step.verb]

    now = [100.0]
    monkeypatch.setattr(server, "clock", lambda: now[0])
    for member in five.values():
        member.says = says
    answer = asyncio.run(AsyncQuorumServer(Quorum(five)).run(ask()))
    assert ("ok", 100.0, 105.0) == (answer.reply[0], answer.sent, answer.received)


def test_a_minority_gives_back_what_it_granted_and_nothing_else(five: Five) -> None:
    five.ok("30302", "30302")
    (refused,) = run(five, ask())
    assert ["no", "full"] == refused[:2]
    assert [1, 1, 0, 0, 0] == [len(member.told("release")) for member in five.values()]
    assert ("t", "0", 7, "undo", 0) == five["a"].told("release")[0][:5]


def test_a_minority_that_waits_asks_again_after_a_while_that_differs(five: Five) -> None:
    def whiles(granted: int, *silent: str) -> set[int]:
        five.ok(*["30302"] * granted)
        says(five, "acquire", GONE, *silent)
        replies = run(five, *[ask("wait", f"t{n}") for n in range(20)])
        assert {"wait"} == {reply[0] for reply in replies}
        return {int(reply[2]) for reply in replies}

    split, full, just = whiles(2, "e"), whiles(0), whiles(2)
    assert len(split) > 3 and len(full) > 3
    assert max(split) <= server.SPLIT[1] and max(full) <= server.HELD[1]
    assert max(just) > server.SPLIT[1], "a majority that refuses is no split vote"


def test_a_lease_that_the_vote_itself_outlasted_is_no_grant(
    five: Five, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = itertools.count(100.0, 40.0)
    monkeypatch.setattr(server, "clock", lambda: next(now))
    (refused,) = run(five, ask())
    assert ["no", "full", 0] == refused
    assert all(member.told("release") for member in five.values())


def test_a_majority_that_does_not_answer_is_a_failure_and_is_undone_later(five: Five) -> None:
    for alias in "abc":
        five[alias].says = lambda step: GONE
    (failure,) = run(five, ask())
    assert isinstance(failure, Failure)
    assert "unreachable" == failure.why and isinstance(failure.cause, errors.ConnectionError)
    assert "2 of 5 servers of the quorum answered; one failed with: refused" == str(failure.cause)
    assert [1, 1, 1, 0, 0] == [len(later.steps) for later in five.later.values()]
    # An acquire may still be on its way there, so it is buried.
    assert ("t", "0", 7, "undo", 1) == five.later["a"].steps[0].argv
    assert five["d"].told("release") and five["e"].told("release")


def test_a_failure_says_that_a_step_may_have_run_where_any_server_leaves_it_open(
    five: Five,
) -> None:
    late = Failure(errors.TimeoutError("late"), 0.0, "unanswered")
    for alias, said_there in zip("abcd", (GONE, GONE, late, GONE), strict=True):
        five[alias].says = lambda step, said_there=said_there: said_there
    (failure,) = run(five, ask())
    assert ("unanswered", True) == (failure.why, "failed with: late" in str(failure.cause))


def test_a_pause_on_any_server_is_the_reason_that_is_told(five: Five) -> None:
    five.ok()
    says(five, "acquire", ["no", "paused", 0], "c")
    assert ["no", "paused"] == run(five, ask())[0][:2]


def test_a_majority_that_refuses_a_step_is_an_error_of_the_servers(five: Five) -> None:
    refused = Failure(errors.ResponseError("NOPERM no right"), 0.0, "final")
    for alias in "abc":
        five[alias].says = lambda step: refused
    (failure,) = run(five, ask())
    assert ("final", errors.ResponseError) == (failure.why, type(failure.cause))


def test_a_lease_that_never_ends_never_ends(five: Five) -> None:
    five.ok("inf", "inf", "inf")
    assert "inf" == run(five, ask(lease="inf"))[0][2]
    assert "inf" == five["a"].told("acquire")[0][1]


@pytest.mark.parametrize("mistake", [["kind", "w"], ["large", "1"]])
def test_a_mistake_of_the_caller_that_one_server_names_is_the_answer(
    five: Five, mistake: list[str]
) -> None:
    five.ok("30302")
    says(five, "acquire", mistake, "e")
    assert [mistake] == run(five, ask("wait"))


def test_a_grant_after_the_vote_is_renewed_and_released_too(five: Five) -> None:
    five["e"].says = lambda step: None if step.verb == "acquire" else REPLIES[step.verb]

    async def main() -> None:
        server = AsyncQuorumServer(Quorum(five))
        assert "ok" == (await server.run(ask())).reply[0]
        five["e"].answer(["ok", "99", "30302"])
        await asyncio.sleep(0)
        await server.run(plans.renewing(KEYS, GRANT, 30.0, 1, 1.0))
        await server.run(plans.releasing(KEYS, GRANT, 0, 1.0))

    asyncio.run(main())
    assert ("t", "99") == five["e"].told("renew")[0][:2] == five["e"].told("release")[0][:2]


def test_a_refusal_or_a_failure_after_the_vote_changes_nothing(five: Five) -> None:
    """Neither has a fence that a renewal could name."""
    five["d"].says = five["e"].says = lambda step: (
        None if step.verb == "acquire" else REPLIES[step.verb]
    )
    errors_of_loop: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, said: errors_of_loop.append(said)
        )
        server = AsyncQuorumServer(Quorum(five))
        assert "ok" == (await server.run(ask())).reply[0]
        five["d"].answer(["no", "full", 0])
        five["e"].unanswered.pop().set_exception(GONE)
        await asyncio.sleep(0)
        await server.run(RENEW)
        says(five, "release", None, "d")
        await server.run(RELEASE)
        five["d"].answer(["ok"])
        await asyncio.sleep(0)

    asyncio.run(main())
    assert [1, 1, 1, 0, 0] == [len(member.told("renew")) for member in five.values()]
    assert [] == errors_of_loop


def test_each_try_of_an_ask_has_a_token_of_its_own(five: Five) -> None:
    """The last may be buried on a server that answered late."""
    five.ok("30302")
    assert ["wait", "wait"] == [reply[0] for reply in run(five, ask("wait"), ask("wait"))]
    first, second = (argv[0] for argv in five["a"].told("acquire"))
    assert "t" == first != second


def test_a_waiter_that_gives_up_has_nothing_to_undo(five: Five) -> None:
    five.ok("30302")
    giveup = plans.undoing(KEYS, "t")
    giveup = giveup._replace(
        argv=tuple("giveup" if word == "undo" else word for word in giveup.argv)
    )
    assert "wait" == run(five, ask("wait"))[0][0]
    before = [len(member.told("release")) for member in five.values()]
    assert [["gone"]] == run(five, giveup)
    assert before == [len(member.told("release")) for member in five.values()]
    assert {} == voting._known


def test_what_this_process_knows_nothing_of_is_lost(five: Five) -> None:
    assert [["lost"], ["lost"]] == run(five, RENEW, RELEASE)
    assert [] == [step for member in five.values() for step in member.asked]


def test_a_majority_that_grants_to_somebody_who_gave_up_meanwhile_takes_it_back(
    five: Five, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(voting, "PATIENCE", 30.0)
    for member in five.values():
        member.says = lambda step: None if step.verb == "acquire" else REPLIES[step.verb]

    async def main() -> Any:
        server = AsyncQuorumServer(Quorum(five))
        asked = asyncio.ensure_future(server.run(ask()._replace(timeout=30.0)))
        await asyncio.sleep(0)
        await server.run(plans.undoing(KEYS, "t"))
        before = [len(member.told("release")) for member in five.values()]
        for alias in "abc":
            five[alias].answer(["ok", "7", "30302"])
        return (await asked).reply[0], before

    assert ("no", [1] * 5) == asyncio.run(main())
    for alias in "abc":
        assert [("t", "0", 7, "undo")] * 2 == [argv[:4] for argv in five[alias].told("release")]
    assert {} == voting._known


RENEW = plans.renewing(KEYS, GRANT, 30.0, 1, 1.0)
RELEASE = plans.releasing(KEYS, GRANT, 0, 1.0)


def says(five: Five, verb: str, reply: Any, *aliases: str) -> None:
    for alias in aliases:
        before = five[alias].says
        five[alias].says = lambda step, before=before: reply if step.verb == verb else before(step)


def test_a_renewal_is_that_of_a_majority_each_by_its_own_fence(five: Five) -> None:
    five.ok(*["30302"] * 5)
    says(five, "renew", ["ok", "20202"], "a", "b", "c")
    assert ["ok", "20000"] == run(five, ask(), RENEW)[1]
    assert ["7", "8", "9", "10", "11"] == [five[alias].told("renew")[0][1] for alias in five]
    assert "30302" == five["a"].told("renew")[0][3]


def test_a_lease_is_lost_when_no_majority_can_have_it_and_not_before(five: Five) -> None:
    says(five, "renew", ["lost"], "a", "b")
    says(five, "renew", GONE, "c", "d")
    _, first, second = run(five, ask(), RENEW, RENEW)
    assert isinstance(first, Failure) and isinstance(second, Failure)
    says(five, "renew", ["lost"], "c")
    voting._known.clear()
    assert ["lost"] == run(five, ask(), ask("again"), RENEW)[2]
    (_, again), undone = five["e"].told("acquire")[-2:], five["e"].told("release")[-1]
    assert again[0] == undone[0], "what is left of it is given back"


def test_what_was_given_back_or_is_lost_is_remembered_no_longer(five: Five) -> None:
    undoing = plans.undoing(KEYS, "t")
    for tries in ([ask()], [ask(), ask("again")]):  # the second has another token on the servers
        for last, word in ((RELEASE, "ok"), (undoing, "gone")):
            assert word == run(five, *tries, last)[-1][0]
            assert {} == voting._known
            for member in five.values():
                assert member.told("acquire")[-1][0] == member.told("release")[-1][0]
    says(five, "renew", ["lost"], *five)
    assert "lost" == run(five, ask(), RENEW)[1][0]
    assert {} == voting._known


@pytest.mark.parametrize("renewed", [False, True])
def test_what_is_held_is_remembered_for_as_long_as_it_is(
    five: Five, monkeypatch: pytest.MonkeyPatch, renewed: bool
) -> None:
    five.ok(*["30302" if renewed else "1000000"] * 5)
    says(five, "renew", ["ok", "1000000"], *five)
    began, quorum = voting.clock(), Quorum(five)
    assert "ok" == run(five, ask(), *[RENEW] * renewed)[-1][0]
    monkeypatch.setattr(voting, "MAX_REMEMBERED", 0)
    known = []
    for later in (900.0, 1100.0):
        monkeypatch.setattr(voting, "clock", lambda later=later: began + later)
        voting.remember(quorum, f"another {later}")
        known.append(voting.held_of(quorum, "t") is not None)
    assert [True, False] == known


def test_a_loop_that_ends_waits_for_the_vote_under_way(
    five: Five, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "END", 20.0)
    for member in five.values():
        member.says = lambda step: None

    async def main() -> Answer:
        server = AsyncQuorumServer(Quorum(five))
        done = server.perform(ask())
        closing = asyncio.ensure_future(server.aclose())
        for _ in range(5):
            await asyncio.sleep(0)
        for member in five.values():
            member.answer(["ok", "7", "30302"])
        await closing
        assert done.done()
        return done.result()

    assert "ok" == asyncio.run(main()).reply[0]


def test_no_server_has_longer_for_a_step_than_a_vote_may_last(five: Five) -> None:
    run(five, ask()._replace(timeout=9.0), ask(token="u")._replace(timeout=0.5))
    timeouts = [[step.timeout for step in member.asked] for member in five.values()]
    assert [[voting.PATIENCE, 0.5]] * 5 == timeouts


def test_a_release_that_a_server_missed_is_told_to_it_later(five: Five) -> None:
    says(five, "release", GONE, "a", "b")
    assert ["ok"] == run(five, ask(), RELEASE)[1]
    assert [1, 1, 0, 0, 0] == [len(later.steps) for later in five.later.values()]


def test_a_server_that_did_not_answer_the_ask_is_told_to_undo_what_it_may_have(
    five: Five,
) -> None:
    five["e"].says = lambda step: None if step.verb == "acquire" else REPLIES[step.verb]
    assert ["ok"] == run(five, ask(), RELEASE)[1]
    hows = [arguments_of("release", five[alias].told("release")[0]) for alias in "ae"]
    assert [("release", 0), ("undo", 1)] == [(one["how"], int(one["tombstone"])) for one in hows]


def test_a_release_without_a_majority_is_a_failure_and_asked_again_only_where_it_failed(
    five: Five,
) -> None:
    says(five, "release", GONE, "a", "b", "c")
    assert isinstance(run(five, ask(), RELEASE)[1], Failure)
    says(five, "release", ["ok"], "a", "b", "c")
    for member in five.values():
        member.asked.clear()
    assert [["ok"]] == run(five, RELEASE)
    assert [1, 1, 1, 0, 0] == [len(member.asked) for member in five.values()]


@pytest.mark.parametrize(("over", "lost"), [("ab", False), ("abc", True)])
def test_a_release_says_that_it_was_lost_when_no_majority_can_have_it_and_not_before(
    five: Five, over: str, lost: bool
) -> None:
    says(five, "release", ["lost"], *over)
    says(five, "release", GONE, *five.keys() - {*over})
    reply = run(five, ask(), RELEASE)[1]
    assert ["lost"] == reply if lost else isinstance(reply, Failure)


def test_a_server_that_was_silent_is_not_waited_for_again(
    five: Five, monkeypatch: pytest.MonkeyPatch
) -> None:
    five["e"].says = lambda step: None
    monkeypatch.setattr(voting, "UNDO_BUDGET", 1e6)

    async def main() -> None:
        server = AsyncQuorumServer(Quorum(five))
        monkeypatch.setattr(voting, "PATIENCE", 0.02)
        await server.run(ask()._replace(timeout=1e6))
        monkeypatch.setattr(voting, "PATIENCE", 1e6)
        monkeypatch.setattr(voting, "LATE", 1e6)  # nor is it given a moment more
        asked = server.run(ask(token="u")._replace(timeout=1e6))
        assert "ok" == (await asyncio.wait_for(asked, 30)).reply[0]
        undone = server.run(plans.undoing(KEYS, "t")._replace(timeout=1e6))
        await asyncio.wait_for(undone, 30)

    asyncio.run(main())


def test_a_vote_that_nobody_can_win_any_more_waits_for_no_silent_server(
    five: Five, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(voting, "PATIENCE", 1e6)
    five.ok("30302")
    grants = five["e"].says
    five["e"].says = lambda step: None if step.verb == "acquire" else grants(step)
    assert "no" == run(five, ask()._replace(timeout=1e6))[0][0]


def test_a_bare_majority_decides_without_the_others(
    five: Five, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(voting, "PATIENCE", 1e6)
    for alias in "de":
        five[alias].says = lambda step: None
    assert "ok" == run(five, ask()._replace(timeout=1e6))[0][0]


def test_a_vote_ends(five: Five, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voting, "PATIENCE", 0.02)
    for member in five.values():
        member.says = lambda step: None
    (failure,) = run(five, ask()._replace(timeout=1e6))
    assert isinstance(failure, Failure) and "unanswered" == failure.why


def test_a_quorum_shows_no_fewer_holders_than_a_majority_knows_of(five: Five) -> None:
    step = Run("inspect", KEYS.declared, ("", 1), 1.0)
    for holding, first, alias in zip((0, 1, 1, 1, 3), "98765", five, strict=True):
        says(five, "inspect", [first] + ["0"] * 6 + [holding], alias)
    ((*_, holding),) = run(five, step)
    assert 1 == holding
    says(five, "inspect", GONE, "b", "c")
    ((*_, holding),) = run(five, step)
    assert 0 == holding  # of three that answered, all may be needed for a majority
    says(five, "inspect", GONE, "d")
    (failed,) = run(five, step)
    assert isinstance(failed, Failure) and "2 of 5 servers" in str(failed)


@pytest.mark.parametrize(
    ("answering", "timeout"), [("abcde", 9.0), ("e", 0.5), ("", 9.0)], ids=["all", "one", "none"]
)
def test_a_command_is_answered_by_any_server_and_fails_when_all_do(
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
def in_sync_code(five: Five, monkeypatch: pytest.MonkeyPatch) -> QuorumServer:
    made: dict[str, AsyncQuorumServer] = {}
    quorum = Quorum(five)
    monkeypatch.setattr(server, "check", lambda quorum: None)
    monkeypatch.setattr(
        server, "async_server_of", lambda of: made.setdefault(of, AsyncQuorumServer(quorum))
    )
    return QuorumServer(quorum)


def test_of_several_steps_each_has_its_answer_or_its_failure(
    in_sync_code: QuorumServer, five: Five
) -> None:
    says(five, "renew", GONE, "a", "b", "c")
    assert "ok" == in_sync_code.run(ask()).reply[0]
    renewed, released = in_sync_code.many([RENEW, ask(token="other")])
    assert isinstance(renewed, Failure) and isinstance(released, Answer)
    assert [] == in_sync_code.many([])
    says(five, "renew", ["ok", "no number"], *five)
    with pytest.raises(ValueError):
        in_sync_code.many([RENEW])


# Which servers


@pytest.mark.parametrize("using", [["a"], ["a", "b"], ["a", "b", "a"], ["a", "b", "b", "c"]])
def test_a_quorum_is_of_three_servers_at_the_least_each_named_once(using: list[str]) -> None:
    with pytest.raises(ImproperlyConfigured):
        quorum_of(using)


def test_one_server_under_two_aliases_has_one_vote(settings: Any) -> None:
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
def test_what_a_quorum_cannot_keep_is_refused(options: Any) -> None:
    for several in (list("abc"), tuple("abc")):
        with pytest.raises(ImproperlyConfigured):
            Lock("x", using=several, **options)
    with pytest.raises(ImproperlyConfigured):
        Semaphore("x", 2, using=["a", "b", "c"])
