"""The server in memory, of `django_redis_sync.testing`, beside a real one: Hypothesis has both
carry out the same verbs, and their replies have to say the same.

What is left out is what it says of itself that it lacks: no waiter is woken (so all ask again after
each verb, in both), statistics, tombstones (so no ended token comes back).
"""

from __future__ import annotations

import itertools
import os
from functools import cache
from typing import Any

import pytest
import redis
from django.conf import settings as django_settings
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from django_redis_sync import memory as memories
from django_redis_sync.engine.wire import ATTEMPT, answered
from django_redis_sync.memory import MemoryServer
from django_redis_sync.protocol import scripts
from django_redis_sync.protocol.keys import Keys, keys_of
from django_redis_sync.protocol.plans import Answer, Run
from tests.support.workload import call

#: No time passes: a machine that is held up finds the same.
LONG = 3_600_000
CONSTANTS = dict(scripts.CONSTANTS)
CONSTANTS |= dict.fromkeys(("FIRST", "CLAIM", "BEAT", "PATIENCE", "ASLEEP", "ALIVE"), 10 * LONG)

_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def waiters_live_long(monkeypatch: pytest.MonkeyPatch, clean_redis: None) -> None:
    monkeypatch.setattr(memories, "PATIENCE", LONG)


class Real:
    """The scripts on a server, with those constants."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url, decode_responses=True)
        self._known = {verb: self._client.register_script(source(verb)) for verb in scripts.VERBS}

    def run(self, step: Run) -> Answer:
        reply = self._known[step.verb](keys=step.keys, args=step.argv)
        return Answer(answered(reply), 0.0, 0.0)


real = cache(Real)


@cache
def source(verb: str) -> str:
    return scripts.compose(verb, CONSTANTS)


class InMemory(RuleBasedStateMachine):
    """One name: take, wait, ask again, give back, renew, adopt, clear, pause, resize."""

    def __init__(self) -> None:
        super().__init__()
        self.real, self.memory = real(os.environ["DJANGO_REDIS_SYNC_TEST_RAW_URL"]), MemoryServer()
        self.keys: Keys = keys_of(f"{django_settings.PREFIX}:m", f"n{next(_numbers)}")
        #: Of both servers, the fences of those that hold, and the terms of those that wait.
        self.held: dict[str, tuple[str, str]] = {}
        self.waiting: dict[str, dict[str, Any]] = {}
        self.tokens = (f"t{number}" for number in itertools.count())
        self.nth = itertools.count(1)

    # Both

    def run(self, verb: str, token: str = "", fences: Any = ("0", "0"), **said: Any) -> Any:
        """The reply of both, as far as it is to be the same."""
        replies = []
        for server, fence in zip((self.real, self.memory), fences, strict=True):
            more = {"fence": fence} if verb in ("release", "renew") else {}
            replies.append(server.run(self.step(verb, token, **more, **said)).reply)
        real, memory = (self.shown(verb, said.get("how", ""), reply) for reply in replies)
        assert real == memory, (verb, token, said, *replies)
        if verb == "acquire" and replies[0][0] == "ok":
            self.held[token] = (replies[0][1], replies[1][1])
        return real

    def step(self, verb: str, token: str = "", **said: Any) -> Run:
        one = call(verb, self.keys, token, **said)
        return Run(verb, one.keys, tuple(one.argv), ATTEMPT)

    def shown(self, verb: str, how: str, reply: list[Any]) -> Any:
        """What has to be the same."""
        word, *rest = reply
        if verb == "inspect":
            _, _, limit, paused, seen, _, used, holding, waiting, held, queued = reply
            # Not in turn: leases that end within a millisecond stand in either order.
            permits = [text.split(" ")[3] for text in held[2::3]]
            rows = sorted(zip(held[::3], permits, strict=True))
            mine = [row for row in rows if row[0] in self.held]
            rest = sorted(permits), queued[::4]
            return limit, bool(paused), seen, int(used), holding, waiting, mine, rest
        if word == "no":
            return word, rest[0], rest[1], int(rest[3])
        if word == "wait":
            return word, rest[2]
        if how in ("again", "giveup"):  # a winner gets no more until it was heard of
            return (word,)
        if word == "ok" and verb == "acquire":
            return word, self.left(rest[1]), rest[2:3]
        if word == "ok" and rest:
            return word, self.left(rest[-1])
        return reply

    @staticmethod
    def left(ms: str) -> str:
        """The lease of a reply: of those that the rules ask for, the one that it is near."""
        return "inf" if ms == "inf" else str(round(int(ms) / LONG))

    def settle(self) -> None:
        """All that wait ask again, in their order, until none gets in: woken or not is the same."""
        going = True
        while going:
            going = False
            for token, terms in list(self.waiting.items()):
                said = self.run("acquire", token, how="again", **terms)
                if said[0] != "wait":
                    del self.waiting[token]
                    going = True
                if said[0] == "ok":
                    more = {"how": "set", "ms": LONG, "nth": next(self.nth)}
                    self.run("renew", token, self.held[token], **more)

    # The rules

    @rule(
        how=st.sampled_from(["try", "wait", "wait", "shadow"]),
        permits=st.integers(0, 3),
        limit=st.integers(1, 4),
        kind=st.sampled_from("pppw"),
        fair=st.sampled_from([1, 1, 0]),
        max_waiters=st.sampled_from([0, 2, 9]),
    )
    def take(self, how: str, permits: int, **said: Any) -> None:
        token = next(self.tokens)
        terms = {**said, "permits": permits, "lease": LONG}
        got = self.run("acquire", token, how=how, **terms)
        if got[0] == "wait":
            self.waiting[token] = terms
        self.settle()

    @rule(data=st.data(), hold=st.sampled_from([0, 0, LONG]), stale=st.booleans())
    @precondition(lambda self: self.held)
    def release(self, data: Any, hold: int, stale: bool) -> None:
        token = data.draw(st.sampled_from(list(self.held)))
        fences = ("1", "1") if stale else self.held[token]
        got = self.run("release", token, fences, how="release", hold=hold)
        if got[0] == "ok":
            del self.held[token]
        self.settle()

    @rule(data=st.data())
    @precondition(lambda self: self.held)
    def ask_again(self, data: Any) -> None:
        """A retry, as after a lost reply."""
        token = data.draw(st.sampled_from(list(self.held)))
        before = self.held[token]
        self.run("acquire", token, how="try", permits=1, limit=4, lease=LONG)
        assert before == self.held[token]

    @rule(data=st.data())
    @precondition(lambda self: self.held)
    def share(self, data: Any) -> None:
        """Of a writer; the faces ask for no other."""
        token = data.draw(st.sampled_from(list(self.held)))
        if self.permits_of(token) == 0:
            self.run("release", token, self.held[token], how="share")
            self.settle()

    @rule(data=st.data(), how=st.sampled_from(["undo", "giveup"]))
    @precondition(lambda self: self.held or self.waiting)
    def leave(self, data: Any, how: str) -> None:
        token = data.draw(st.sampled_from([*self.held, *self.waiting]))
        self.run("release", token, how=how)
        if not (how == "giveup" and token in self.held):
            self.held.pop(token, None)
            self.waiting.pop(token, None)
        self.settle()

    @rule(
        data=st.data(),
        how=st.sampled_from(["set", "set", "adopt", "confirm"]),
        minutes=st.integers(1, 3),
        late=st.booleans(),
        stale=st.booleans(),
    )
    @precondition(lambda self: self.held)
    def renew(self, data: Any, how: str, minutes: int, late: bool, stale: bool) -> None:
        token = data.draw(st.sampled_from(list(self.held)))
        number = next(self.nth)
        nth = number // 2 if late else number
        fences = ("1", "1") if stale else self.held[token]
        said = {"how": how, "ms": minutes * LONG, "nth": nth, "known": number // 2}
        self.run("renew", token, fences, **said)

    @rule(data=st.data())
    @precondition(lambda self: self.held or self.waiting)
    def clear(self, data: Any) -> None:
        token = data.draw(st.sampled_from([*self.held, *self.waiting]))
        self.run("clear", token)
        self.held.pop(token, None)
        self.waiting.pop(token, None)
        self.settle()

    @rule(how=st.sampled_from(["pause", "resume", "resume", "reset"]))
    def operate(self, how: str) -> None:
        self.run("operate", how=how)
        self.settle()

    @rule(limit=st.integers(1, 5))
    def resize(self, limit: int) -> None:
        self.run("operate", how="resize", value=limit)
        self.settle()

    @invariant()
    def they_look_the_same(self) -> None:
        self.run("inspect", most=99)

    def permits_of(self, token: str) -> int:
        reply = self.real.run(self.step("inspect", most=99)).reply
        records = dict(zip(reply[9][::3], reply[9][2::3], strict=True))
        return int(records[token].split(" ")[3]) if token in records else 1


TestInMemory = InMemory.TestCase
TestInMemory.settings = settings(max_examples=40, stateful_step_count=25)


def test_of_two_renewals_the_later_one_counts_whichever_came_last() -> None:
    memory, keys = MemoryServer(), keys_of("m", "late")

    def run(verb: str, **said: Any) -> list[Any]:
        one = call(verb, keys, "t", **said)
        return memory.run(Run(verb, one.keys, tuple(one.argv), ATTEMPT)).reply  # type: ignore[no-any-return]

    _, fence, _ = run("acquire", how="try", lease=LONG)
    for nth, minutes, left in ((5, 3, 3), (4, 1, 3), (5, 2, 2), (6, 1, 1)):
        reply = run("renew", fence=fence, how="set", ms=minutes * LONG, nth=nth)
        assert left == round(int(reply[1]) / LONG)


def test_a_waiter_that_is_not_in_the_queue_any_more_is_told() -> None:
    both = InMemory()
    assert ("gone",) == both.run("acquire", "t0", how="again", limit=2, lease=LONG, permits=1)
    both.they_look_the_same()


def play(*turns: dict[str, Any]) -> list[str]:
    """What both say to the one and the other, in turn."""
    both = InMemory()
    said = []
    for n, one in enumerate(turns):
        terms = {"how": "wait", "limit": 2, "lease": LONG, **one}
        said.append(both.run("acquire", f"t{n}", **terms)[0])
        both.they_look_the_same()
    return said


def test_nobody_passes_a_queue_but_those_who_would_not_be_fair() -> None:
    one, two = {"permits": 1}, {"permits": 2}
    assert ["ok", "wait", "no", "wait", "ok"] == play(
        one, two, {**one, "how": "try"}, one, {**one, "fair": 0}
    )


def test_who_would_not_be_fair_but_had_to_wait_keeps_its_place() -> None:
    both, terms = InMemory(), {"limit": 2, "kind": "p", "max_waiters": 9}
    for permits, fair in ((2, 1), (2, 1), (1, 0)):
        both.take(how="wait", permits=permits, fair=fair, **terms)
    both.resize(3)
    assert ["t1", "t2"] == [*both.waiting]


def test_as_many_wait_as_may() -> None:
    few = {"permits": 2, "max_waiters": 1}
    assert ["ok", "wait", "no", "no"] == play(few, few, few, {**few, "max_waiters": 0})


def test_a_writer_is_alone_and_another_kind_is_refused() -> None:
    reader, writer = {"kind": "w", "permits": 1}, {"kind": "w", "permits": 0}
    assert ["ok", "ok", "wait", "wait", "kind"] == play(
        reader, reader, writer, reader, {"kind": "p"}
    )
    assert ["ok", "no", "no"] == play(writer, {**reader, "how": "try"}, {**writer, "how": "try"})
