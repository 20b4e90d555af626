"""Random jobs on the model's Redis, with a broker that delivers late, twice, or after a kill.

As with Celery's late acknowledgement, a job may run again after it ended, unless a copy was
delivered while it ran. A job never runs beside itself and is never lost, and the limit holds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from django_redis_sync.protocol import scripts
from tests.model.redis import Frozen, Store, compiled
from tests.support.workload import DEFAULTS, argv_of
from tests.test_protocol_equivalence import KEYS, START

pytestmark = pytest.mark.promise(33)

C = scripts.CONSTANTS
LEASE, SECOND = 4000, 1_000_000


class Message(NamedTuple):
    """A job in the broker's queue. `due`: time of its delivery in microseconds."""

    due: int
    job: int
    nth: int
    ticket: int


class Running(NamedTuple):
    until: int
    job: int
    token: str
    fence: str
    message: Message
    lease_ends: int
    dies: bool


class World:
    """The queue of a broker, the jobs that run, and the state of Redis. Times are microseconds."""

    def __init__(self, chance: random.Random, lua: Mapping[str, str], faults: bool) -> None:
        self.verbs, self.chance, self.faults = compiled(tuple(lua.items())), chance, faults
        self.frozen: Frozen = ()
        self.micros, self.serial = START, 0
        self.limit = chance.choice([1, 2, 3])
        self.queue: list[Message] = []
        self.running: list[Running] = []
        self.locks: list[tuple[int, str, str]] = []  # end, token, and fence of leases without a job
        self.runs: Counter[int] = Counter()
        self.ended: Counter[int] = Counter()
        self.seen: set[int] = set()  # running jobs of which a copy was delivered meanwhile
        self.done: dict[int, int] = {}  # ended jobs of `seen`: time of the end
        self.deliveries = 0
        self.log: list[Any] = []

    def run(self, verb: str, **arguments: Any) -> list[Any]:
        """Run a script, and return its reply."""
        store = Store(self.frozen, self.micros)
        values = {**DEFAULTS, "keep": 5, "limit": self.limit, "lease": LEASE, **arguments}
        reply = self.verbs.run(store, verb, KEYS.declared, argv_of(verb, values))
        self.frozen = store.freeze()
        self.log.append((self.micros - START, verb, values.get("place"), values["token"], reply))
        return list(reply)

    def check(self, condition: bool, message: str) -> None:
        assert condition, "\n".join([message, *map(str, self.log[-15:])])

    def token(self) -> str:
        self.serial += 1
        return f"t{self.serial}"

    def happens(self, part: float) -> bool:
        """Return True with probability `part`, but never in a world without faults."""
        return self.faults and self.chance.random() < part

    # Events

    def run_jobs(self, jobs: int) -> None:
        for job in range(jobs):
            self.queue.append(Message(self.micros + job * 1000, job, 0, 0))
        last = self.micros + 600 * SECOND
        while self.queue or self.running:
            self.check(self.micros < last, f"not done after ten minutes: {self.queue}")
            if self.micros > START + 60 * SECOND:  # faults stop after a minute, so all jobs can end
                self.faults = False
            self.step()
        lost = [job for job in range(jobs) if not self.ended[job]]
        self.check(not lost, f"lost: {lost}")

    def step(self) -> None:
        chance = self.chance
        events = [m.due for m in self.queue] + [r.until for r in self.running]
        self.micros = max(self.micros + 100, min(events))
        if self.happens(0.1):
            self.interfere()
        for until, token, fence in [lock for lock in self.locks if lock[0] <= self.micros]:
            self.locks.remove((until, token, fence))
            self.run("release", token=token, fence=fence, how="release")
        ended = [r for r in self.running if r.until <= self.micros]
        if ended:
            self.end(ended[0])
            return
        ready = [m for m in self.queue if m.due <= self.micros]
        if ready:
            message = chance.choice(ready)
            self.queue.remove(message)
            self.deliver(message)

    def deliver(self, message: Message) -> None:
        self.deliveries += 1
        token, job, place = self.token(), message.job, f"p{message.job}"
        visit = {"place": place, "nth": message.nth, "ticket": message.ticket, "token": token}
        reply = self.run("visit", **visit)
        if self.happens(0.1):  # the reply is lost
            self.micros += self.chance.choice([1000, 300_000])
            again = self.run("visit", **visit)
            if reply[0] == "ok":
                self.check(again[0] == "ok", f"{reply}, but the retry got {again}")
            reply = again
        if self.happens(0.05):  # the worker is killed after the reply
            self.redeliver(message)
            return
        if any(r.job == job and r.lease_ends > self.micros for r in self.running):
            self.seen.add(job)
        if reply[0] == "ok":
            self.begin(message, token, reply[1])
        elif reply[0] == "later":
            _, ms, nth, ticket, _ = reply
            due = self.micros + int(ms) * 1000 + self.chance.choice([0, 20_000, 400_000])
            self.queue.append(Message(due, job, int(nth), int(ticket)))
            if self.happens(0.05):  # the worker is killed before it acknowledges the message
                self.redeliver(message)
        else:
            self.check(reply[0] == "drop", f"{reply}")
            queued = any(m.job == job for m in self.queue)
            busy = any(r.job == job for r in self.running)
            self.check(bool(queued or busy or self.ended[job]), f"{job} is dropped and lost")

    def redeliver(self, message: Message) -> None:
        """Put a message back into the queue, for a delivery at once or later."""
        delay = self.chance.choice([0, 1, 3, 10]) * SECOND
        self.queue.append(message._replace(due=self.micros + delay))

    def begin(self, message: Message, token: str, fence: str) -> None:
        job, hold = message.job, self.chance.choice([20, 500, 500, 3000]) * 1000
        self.runs[job] += 1
        copies = [r for r in self.running if r.job == job and r.lease_ends > self.micros]
        self.check(not copies, f"{job} runs beside itself")
        live = [r for r in self.running if r.lease_ends > self.micros]
        self.check(len(live) < 3, "above every limit")
        after = self.micros - self.done.get(job, -(10**18))
        self.check(after > C["PLACE_LIFE"] * 1000, f"{job} runs again after a copy was seen")
        self.seen.discard(job)
        dies = self.happens(0.1)
        run = (self.micros + hold, job, token, fence, message, self.micros + LEASE * 1000, dies)
        self.running.append(Running(*run))
        if self.happens(0.2):  # a copy is delivered while the job runs
            self.queue.append(message._replace(due=self.micros + self.chance.randrange(hold)))

    def end(self, run: Running) -> None:
        self.running.remove(run)
        if run.dies:  # the lease is not released
            self.redeliver(run.message)
            return
        self.ended[run.job] += 1
        if run.job in self.seen and run.lease_ends > self.micros:
            self.done[run.job] = self.micros
        reply = self.run(
            "release", place=f"p{run.job}", token=run.token, fence=run.fence, how="release"
        )
        self.check(reply == ["ok"], "the lease of a job was lost")

    def interfere(self) -> None:
        """Acquire a lease of the name without a job, or change the limit as an operator."""
        chance, token = self.chance, self.token()
        if chance.random() < 0.8:
            reply = self.run("acquire", token=token, how="try")
            if reply[0] == "ok":
                self.locks.append((self.micros + chance.randrange(SECOND), token, reply[1]))
        else:
            self.run("operate", how="resize", value=chance.choice([1, 2, 3]))


def walk(seeds: range, lua: Mapping[str, str] = {}, faults: bool = True) -> Iterator[World]:
    for seed in seeds:
        chance = random.Random(seed)
        world = World(chance, lua, faults)
        world.run_jobs(chance.choice([3, 12, 30]))
        yield world


@pytest.mark.parametrize("part", range(4))
def test_no_job_runs_beside_itself_and_no_job_is_lost(part: int) -> None:
    assert all(world.deliveries for world in walk(range(part * 40, part * 40 + 40)))


def test_each_job_runs_once_without_faults() -> None:
    for world in walk(range(30), faults=False):
        assert set(world.runs.values()) == {1}


def test_all_keys_but_the_statistics_expire_after_all_jobs_have_ended() -> None:
    for world in walk(range(30)):
        world.run("operate", how="reset", token="")
        world.micros += (C["PLACE_LIFE"] + C["LATEST"] + 4 * C["GRACE"]) * 1000
        remaining = [row[0] for row in Store(world.frozen, world.micros).freeze()]
        assert {KEYS.stats} >= set(remaining)


DEFECTS = {
    "a copy runs beside its job": {"if state == 'r' then\n": "if false then\n"},
    "an older message is dropped before a later one was seen": {
        "elseif nth < tonumber(next_one) - 1 then": "elseif true then"
    },
    "a job whose worker died is never run again": {
        "if ends <= name.now then return nil end": "ends = 0"
    },
    "the end of a job is not stored": {"if place then\n": "if false then\n"},
    "the end of a job is forgotten although a copy was seen": {
        "if seen == '0' then": "if true then"
    },
    "a retry after a lost reply gets another lease": {
        "return answer_known(name, token, record)\n": "record = nil\n"
    },
    "a job takes a permit that is not free": {"and fits(name, 1, limit) then": "then"},
}


@pytest.mark.parametrize("name", DEFECTS)
def test_random_walk_finds_the_defect(name: str) -> None:
    with pytest.raises(AssertionError):
        for _ in walk(range(60), DEFECTS[name]):
            pass
