"""What a quorum believes and does when its servers say this or that, with no server."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis import exceptions as errors

from django_redis_sync.engine.quorum import Quorum, async_server, quorum_of, voting
from django_redis_sync.engine.quorum.async_server import AsyncQuorumServer
from django_redis_sync.engine.quorum.members import deducted, stretched
from django_redis_sync.engine.wire import clock
from django_redis_sync.protocol.plans import Answer, Failure, Run

NAMES = ("a", "b", "c", "d", "e")
TOKEN = "f" * 32
LEASE = 10_000


class Servers:
    """Five servers: what each says to a step, as the test has it. None: nothing, ever."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Run]] = []
        self.left_for_later: list[tuple[str, Run]] = []
        self.says: Callable[[str, Run], Any] = lambda alias, step: ["ok", "1", step.argv[1]]
        self.slow: dict[str, float] = {}

    def submit(self, alias: str, step: Run) -> asyncio.Future[Answer]:
        self.asked.append((alias, step))
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Answer] = loop.create_future()
        said = ["gone"] if is_undo(step) else self.says(alias, step)

        def answer() -> None:
            if done.done() or said is None:
                return
            if isinstance(said, Exception):
                done.set_exception(said)
            else:
                done.set_result(Answer(said, clock(), clock()))

        loop.call_later(self.slow.get(alias, 0.0), answer)
        return done

    def undone(self) -> list[str]:
        return sorted(alias for alias, step in self.asked if is_undo(step))

    def keeper(self, alias: str) -> Any:
        class Keeper:
            def later(_, step: Run) -> None:
                self.left_for_later.append((alias, step))

        return Keeper()


def is_undo(step: Run) -> bool:
    return step.verb == "release" and step.argv[2] == "undo"


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    mine = Servers()
    monkeypatch.setattr(voting, "_submit", mine.submit)
    monkeypatch.setattr(async_server, "keeper", mine.keeper)
    monkeypatch.setattr(async_server, "check", lambda quorum: None)
    return mine


def acquire(how: str = "wait", lease: int = LEASE) -> Run:
    keys = ("leases", "queue", "waiters", "info", f"wake:{TOKEN}", "stats", "never")
    argv = (TOKEN, str(lease), 1, 1, "p", how, 10**9, 0, "-", "", 360)
    return Run("acquire", keys, argv, 5.0)


def renew(lease: int = LEASE) -> Run:
    keys = ("leases", "queue", "waiters", "info", f"wake:{TOKEN}", "stats", "never")
    return Run("renew", keys, (TOKEN, 1, "set", str(lease), 1, 0, 360), 5.0)


def reply_to(*steps: Run) -> list[Any]:
    """The replies of a quorum of five to steps, one after the other."""

    async def main() -> list[Any]:
        server = AsyncQuorumServer(Quorum(NAMES))
        replies = [(await server.perform(step)).reply for step in steps]
        await server.aclose()
        return replies

    return asyncio.run(main())


def granting(*names: str) -> Callable[[str, Run], Any]:
    return lambda alias, step: ["ok", "1", step.argv[1]] if alias in names else ["no", "full", 0]


@pytest.mark.parametrize(("count", "need"), [(3, 2), (4, 3), (5, 3), (6, 4), (7, 4)])
def test_a_majority_is_more_than_half(count: int, need: int) -> None:
    quorum = quorum_of([f"alias{n}" for n in range(count)])
    assert need == quorum.need
    assert 2 * quorum.need > count  # any two share a server


def test_three_of_five_hold(servers: Servers) -> None:
    servers.says = granting("a", "c", "e")
    ((word, *_),) = reply_to(acquire())
    assert ("ok", []) == (word, servers.undone())


def test_two_of_five_hold_nothing_and_give_back(servers: Servers) -> None:
    servers.says = granting("a", "c")
    ((word, *_),) = reply_to(acquire("try"))
    assert ("no", ["a", "c"]) == (word, servers.undone())


def test_belief_ends_with_the_first_lease_of_the_longest_lived_majority(servers: Servers) -> None:
    leases = {"a": 50_000, "b": 10_000, "c": 40_000, "d": 20_000, "e": 30_000}
    servers.says = lambda alias, step: ["ok", "1", str(leases[alias])]
    ((_, _, left),) = reply_to(acquire(lease=60_000))
    assert int(deducted("30000")) == int(left)


def test_belief_in_a_renewal_ends_so_too(servers: Servers) -> None:
    leases = {"a": 50_000, "b": 10_000, "c": 40_000, "d": 20_000, "e": 30_000}

    def says(alias: str, step: Run) -> Any:
        ms = str(leases[alias])
        return ["ok", ms] if step.verb == "renew" else ["ok", "1", ms]

    servers.says = says
    _, (word, left) = reply_to(acquire(), renew())
    assert ("ok", int(deducted("30000"))) == (word, int(left))


def test_servers_are_asked_for_more_than_is_believed(servers: Servers) -> None:
    ((_, _, left),) = reply_to(acquire())
    asked = {int(step.argv[1]) for _, step in servers.asked}
    assert {int(stretched(str(LEASE)))} == asked
    # A server whose clock runs faster by a hundredth ends it no earlier than belief ends.
    assert int(left) * 1.01 + 2 <= min(asked)
    assert LEASE <= int(left) + 1


def test_a_permanent_lease_has_no_drift() -> None:
    assert ("inf", math.inf) == (stretched("inf"), deducted("inf"))


def test_votes_that_came_too_late_for_the_lease_count_for_nothing(servers: Servers) -> None:
    servers.slow = dict.fromkeys(NAMES, 0.2)
    ((word, *_),) = reply_to(acquire("try", lease=50))
    assert ("no", sorted(NAMES)) == (word, servers.undone())


def test_the_fence_is_the_highest_of_the_majoritys(servers: Servers) -> None:
    fences = {"a": "7", "b": "90", "c": "8", "d": "11", "e": "10"}
    servers.says = lambda alias, step: ["ok", fences[alias], step.argv[1]]
    ((_, fence, _),) = reply_to(acquire())
    assert "90" == fence


def test_a_lease_that_a_majority_lost_is_lost_and_given_back_by_the_rest(servers: Servers) -> None:
    def says(alias: str, step: Run) -> Any:
        if step.verb == "acquire":
            return ["ok", "1", step.argv[1]]
        return ["ok", step.argv[3]] if alias in "ab" else ["lost"]

    servers.says = says
    _, (word,) = reply_to(acquire(), renew())
    assert ("lost", ["a", "b"]) == (word, [one for one in servers.undone() if one in "ab"])


def test_two_silent_servers_of_five_stop_nothing(servers: Servers) -> None:
    servers.says = lambda alias, step: None if alias in "de" else ["ok", "1", step.argv[1]]
    began = time.monotonic()
    ((word, *_),) = reply_to(acquire())
    assert "ok" == word
    assert time.monotonic() - began < voting.PATIENCE + 5


def test_three_silent_servers_of_five_are_an_outage(servers: Servers) -> None:
    servers.says = lambda alias, step: None if alias in "cde" else ["ok", "1", step.argv[1]]
    with pytest.raises(Failure) as caught:
        reply_to(acquire())
    assert "unanswered" == caught.value.why
    assert ["a", "b"] == [one for one in servers.undone() if one in "ab"]


def test_a_server_that_was_silent_is_not_waited_for_again(servers: Servers) -> None:
    """It is asked all the same; what it says late is heeded."""
    servers.says = lambda alias, step: None if alias == "e" else ["ok", "1", step.argv[1]]

    async def main() -> float:
        server = AsyncQuorumServer(Quorum(NAMES))
        await server.perform(acquire())
        began = time.monotonic()
        await server.perform(acquire())
        await server.aclose()
        return time.monotonic() - began

    assert asyncio.run(main()) < voting.LATE
    assert 2 == [alias for alias, step in servers.asked if not is_undo(step)].count("e")


def test_an_undo_that_could_not_be_said_is_left_to_the_keeper(servers: Servers) -> None:
    refused = Failure(errors.ConnectionError("refused"), clock(), "unanswered")
    servers.says = lambda alias, step: refused if alias in "cde" else ["ok", "1", step.argv[1]]
    submit = servers.submit

    def no_undo_there(alias: str, step: Run) -> Any:
        if is_undo(step) and alias in "cde":
            failed = asyncio.get_running_loop().create_future()
            failed.set_exception(refused)
            return failed
        return submit(alias, step)

    voting._submit = no_undo_there  # the fixture puts it back
    with pytest.raises(Failure):
        reply_to(acquire())
    assert ["c", "d", "e"] == sorted(alias for alias, _ in servers.left_for_later)
