"""The server in memory, of `django_redis_sync.testing`, beside a real one: Hypothesis has both
carry out the same verbs, and their replies have to say the same.

What is left out is what it says of itself that it lacks: no waiter is woken (so all ask again after
each verb, in both), statistics, tombstones (so no ended token comes back).
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from django.conf import settings as django_settings
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from django_redis_sync.engine.server import server_of
from django_redis_sync.engine.wire import ATTEMPT
from django_redis_sync.memory import MemoryServer
from django_redis_sync.protocol.keys import Keys, keys_of
from django_redis_sync.protocol.plans import Run
from django_redis_sync.protocol.scripts import CONSTANTS
from tests.support.workload import call

#: Seconds after which a waiter may count as dead, and an unfair newcomer pass no more: an example
#: that was held up for so long compares nothing from there on.
SOON = CONSTANTS["BEAT"] / 2000
MINUTE = 60_000

_numbers = itertools.count(1)


class InMemory(RuleBasedStateMachine):
    """One name: take, wait, ask again, give back, renew, adopt, clear, pause, resize."""

    def __init__(self) -> None:
        super().__init__()
        self.real, self.memory = server_of("default"), MemoryServer()
        self.keys: Keys = keys_of(f"{django_settings.PREFIX}:m", f"n{next(_numbers)}")
        self.began = time.monotonic()
        #: Of both servers, the fences of those that hold, and the terms of those that wait.
        self.held: dict[str, tuple[str, str]] = {}
        self.waiting: dict[str, dict[str, Any]] = {}
        self.tokens = (f"t{number}" for number in itertools.count())
        self.nth = itertools.count(1)

    # Both

    def run(self, verb: str, token: str = "", fences: Any = ("0", "0"), **said: Any) -> Any:
        """The reply of both, as far as it is to be the same; None when too much time has passed."""
        replies = []
        for server, fence in zip((self.real, self.memory), fences, strict=True):
            more = {"fence": fence} if verb in ("release", "renew") else {}
            replies.append(server.run(self.step(verb, token, **more, **said)).reply)
        if not self.soon():
            return None
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
            records = [[text.split(" ")[3] for text in held[2::3]], queued[::4]]
            mine = sorted(token for token in held[::3] if token in self.held)
            return limit, bool(paused), seen, int(used), holding, waiting, mine, records
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
        return "inf" if ms == "inf" else str(round(int(ms) / MINUTE))

    def settle(self) -> None:
        """All that wait ask again, in their order, until none gets in: woken or not is the same."""
        going = True
        while going and self.soon():
            going = False
            for token, terms in list(self.waiting.items()):
                said = self.run("acquire", token, how="again", **terms)
                if said is None:
                    return
                if said[0] != "wait":
                    del self.waiting[token]
                    going = True
                if said[0] == "ok":
                    more = {"how": "set", "ms": MINUTE, "nth": next(self.nth)}
                    self.run("renew", token, self.held[token], **more)

    def soon(self) -> bool:
        return time.monotonic() - self.began < SOON

    # The rules

    @rule(
        how=st.sampled_from(["try", "wait", "wait", "shadow"]),
        permits=st.integers(0, 3),
        limit=st.integers(1, 4),
        kind=st.sampled_from("pppw"),
        fair=st.sampled_from([1, 1, 0]),
        max_waiters=st.sampled_from([0, 2, 9]),
    )
    @precondition(soon)
    def take(self, how: str, permits: int, **said: Any) -> None:
        token = next(self.tokens)
        terms = {**said, "permits": permits, "lease": MINUTE}
        got = self.run("acquire", token, how=how, **terms)
        if got is not None and got[0] == "wait":
            self.waiting[token] = terms
        self.settle()

    @rule(data=st.data(), hold=st.sampled_from([0, 0, MINUTE]), stale=st.booleans())
    @precondition(lambda self: self.held and self.soon())
    def release(self, data: Any, hold: int, stale: bool) -> None:
        token = data.draw(st.sampled_from(list(self.held)))
        fences = ("1", "1") if stale else self.held[token]
        got = self.run("release", token, fences, how="release", hold=hold)
        if got is not None and got[0] == "ok":
            del self.held[token]
        self.settle()

    @rule(data=st.data())
    @precondition(lambda self: self.held and self.soon())
    def ask_again(self, data: Any) -> None:
        """A retry, as after a lost reply."""
        token = data.draw(st.sampled_from(list(self.held)))
        before = self.held[token]
        self.run("acquire", token, how="try", permits=1, limit=4, lease=MINUTE)
        assert before == self.held[token]

    @rule(data=st.data())
    @precondition(lambda self: self.held and self.soon())
    def share(self, data: Any) -> None:
        """Of a writer; the faces ask for no other."""
        token = data.draw(st.sampled_from(list(self.held)))
        if self.permits_of(token) == 0:
            self.run("release", token, self.held[token], how="share")
            self.settle()

    @rule(data=st.data(), how=st.sampled_from(["undo", "giveup"]))
    @precondition(lambda self: (self.held or self.waiting) and self.soon())
    def leave(self, data: Any, how: str) -> None:
        token = data.draw(st.sampled_from([*self.held, *self.waiting]))
        got = self.run("release", token, how=how)
        if got is not None and not (how == "giveup" and token in self.held):
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
    @precondition(lambda self: self.held and self.soon())
    def renew(self, data: Any, how: str, minutes: int, late: bool, stale: bool) -> None:
        token = data.draw(st.sampled_from(list(self.held)))
        number = next(self.nth)
        nth = number // 2 if late else number
        fences = ("1", "1") if stale else self.held[token]
        said = {"how": how, "ms": minutes * MINUTE, "nth": nth, "known": number // 2}
        self.run("renew", token, fences, **said)

    @rule(data=st.data())
    @precondition(lambda self: (self.held or self.waiting) and self.soon())
    def clear(self, data: Any) -> None:
        token = data.draw(st.sampled_from([*self.held, *self.waiting]))
        self.run("clear", token)
        self.held.pop(token, None)
        self.waiting.pop(token, None)
        self.settle()

    @rule(how=st.sampled_from(["pause", "resume", "resume", "reset"]))
    @precondition(soon)
    def operate(self, how: str) -> None:
        self.run("operate", how=how)
        self.settle()

    @rule(limit=st.integers(1, 5))
    @precondition(soon)
    def resize(self, limit: int) -> None:
        self.run("operate", how="resize", value=limit)
        self.settle()

    @invariant()
    def they_look_the_same(self) -> None:
        if self.soon():
            self.run("inspect", most=99)

    def permits_of(self, token: str) -> int:
        reply = self.real.run(self.step("inspect", most=99)).reply
        records = dict(zip(reply[9][::3], reply[9][2::3], strict=True))
        return int(records[token].split(" ")[3]) if token in records else 1


TestInMemory = InMemory.TestCase
TestInMemory.settings = settings(max_examples=40, stateful_step_count=25)
TestInMemory = pytest.mark.usefixtures("clean_redis")(TestInMemory)


def test_of_two_renewals_the_later_one_counts_whichever_came_last() -> None:
    memory, keys = MemoryServer(), keys_of("m", "late")

    def run(verb: str, **said: Any) -> list[Any]:
        one = call(verb, keys, "t", **said)
        return memory.run(Run(verb, one.keys, tuple(one.argv), ATTEMPT)).reply  # type: ignore[no-any-return]

    _, fence, _ = run("acquire", how="try", lease=MINUTE)
    for nth, minutes, left in ((5, 3, 3), (4, 1, 3), (5, 2, 2), (6, 1, 1)):
        reply = run("renew", fence=fence, how="set", ms=minutes * MINUTE, nth=nth)
        assert left == round(int(reply[1]) / MINUTE)
