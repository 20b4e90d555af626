"""Run random jobs on a Redis simulated in Python. No job may be lost or run twice at the same time.
The number of running jobs may not exceed the limit.

The simulated broker may deliver a message late or twice. If the worker was killed, the broker
delivers the message again. As with Celery's `acks_late`, a job may run again after its end. There
is an exception: if a second message was delivered during the run, the job must not run again soon.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.model.redis import Frozen, Store, compiled
from tests.protocol.test_equivalence import KEYS, START
from tests.support.workload import DEFAULTS, argv_of

pytestmark = pytest.mark.promise(33)

LEASE, SECOND = 4000, 1_000_000
#: Durations in microseconds. PLACE_LIFE: how long Redis keeps the queue position of an overdue job.
#: LIFETIME: how long a key of the name may exist after the last call of a script.
PLACE_LIFE, LIFETIME = 90 * SECOND, 170 * SECOND


class Message(NamedTuple):
    """A message of the broker about a job. `due`: time of delivery in microseconds. `nth` and
    `ticket`: arguments of the script `visit`."""

    due: int
    job: int
    nth: int
    ticket: int


class Running(NamedTuple):
    """A running job, or another holder of a permit. `until`: when it ends, in microseconds.
    `message`: the message of the job, or None for another holder. `dies`: True if the job ends
    because its worker is killed."""

    until: int
    lease_ends: int
    token: str
    fence: str
    message: Message | None = None
    dies: bool = False


class World:
    """The queue of a broker, the running jobs, and the state of Redis. Times are in µs."""

    def __init__(self, chance: random.Random, faults: bool) -> None:
        self.scripts, self.chance, self.faults = compiled(()), chance, faults
        self.frozen: Frozen = ()
        self.micros, self.limit = START, chance.choice([1, 2, 3])
        self.tokens = map("t{}".format, itertools.count(1))
        self.queue, self.running = list[Message](), list[Running]()
        self.ended: Counter[int] = Counter()
        self.seen: set[int] = set()  # running jobs that got a second message
        self.done: dict[int, int] = {}  # job that got a second message -> its end in µs
        self.log: list[Any] = []

    def run(self, script: str, **arguments: Any) -> list[Any]:
        """Run a script, and return its reply."""
        store = Store(self.frozen, self.micros)
        values = {**DEFAULTS, "keep": 5, "limit": self.limit, "lease": LEASE, **arguments}
        reply = self.scripts.run(store, script, KEYS.declared, argv_of(script, values))
        self.frozen = store.freeze()
        self.log.append((self.micros - START, script, values.get("id"), values["token"], reply))
        return list(reply)

    def check(self, condition: object, message: str) -> None:
        assert condition, "\n".join([message, *map(str, self.log[-15:])])

    def happens(self, part: float) -> bool:
        """Return True with probability `part`. In a world without faults, always return False."""
        return self.faults and self.chance.random() < part

    def live(self, job: int | None = None) -> list[Running]:
        """Return the running jobs whose lease has not expired. If `job` is given, return only the
        runs of this job."""
        live = [r for r in self.running if r.message and r.lease_ends > self.micros]
        return [r for r in live if job in (None, r.message.job)]

    # Events

    def run_jobs(self, jobs: int) -> None:
        self.queue += [Message(START + job * 1000, job, 0, 0) for job in range(jobs)]
        while self.queue or self.running:
            self.check(self.micros < START + 600 * SECOND, f"not done: {self.queue}")
            # Faults stop after a minute, so that all jobs can end.
            self.faults &= self.micros <= START + 60 * SECOND
            self.step()
        lost = [job for job in range(jobs) if not self.ended[job]]
        self.check(not lost, f"lost: {lost}")

    def step(self) -> None:
        events = [m.due for m in self.queue] + [r.until for r in self.running]
        self.micros = max(self.micros + 100, min(events))
        if self.happens(0.1):
            self.interfere()
        ended = [r for r in self.running if r.until <= self.micros]
        ready = [m for m in self.queue if m.due <= self.micros]
        if ended:
            self.end(ended[0])
        elif ready:
            message = self.chance.choice(ready)
            self.queue.remove(message)
            self.deliver(message)

    def deliver(self, message: Message) -> None:
        token, job = next(self.tokens), message.job
        visit = {"id": f"p{job}", "nth": message.nth, "ticket": message.ticket, "token": token}
        reply = self.run("visit", **visit)
        if self.happens(0.1):  # the reply is lost
            self.micros += self.chance.choice([1000, 300_000])
            first, reply = reply, self.run("visit", **visit)
            self.check(first[0] != "ok" or reply[0] == "ok", f"{first}, but the retry got {reply}")
        if self.happens(0.05):  # the worker is killed after the reply
            self.redeliver(message)
            return
        if self.live(job):
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
            known = [*self.queue, *(r.message for r in self.running if r.message)]
            self.check(self.ended[job] or job in {m.job for m in known}, f"{job} is lost")

    def redeliver(self, message: Message) -> None:
        """Put a message back into the queue. The broker delivers it at once or some seconds
        later."""
        delay = self.chance.choice([0, 1, 3, 10]) * SECOND
        self.queue.append(message._replace(due=self.micros + delay))

    def begin(self, message: Message, token: str, fence: str) -> None:
        job, hold = message.job, self.chance.choice([20, 500, 500, 3000]) * 1000
        self.check(not self.live(job), f"{job} runs twice at a time")
        self.check(len(self.live()) < 3, "above every limit")
        after = self.micros - self.done.get(job, -(10**18))
        self.check(after > PLACE_LIFE, f"{job} runs again although a copy was seen")
        self.seen.discard(job)
        ends = self.micros + LEASE * 1000
        lease = (self.micros + hold, ends, token, fence, message, self.happens(0.1))
        self.running.append(Running(*lease))
        if self.happens(0.2):  # a second message of the job is delivered during its run
            self.queue.append(message._replace(due=self.micros + self.chance.randrange(hold)))

    def end(self, run: Running) -> None:
        self.running.remove(run)
        release = {"token": run.token, "fence": run.fence, "how": "release"}
        if run.message is None:
            self.run("release", **release)
        elif run.dies:  # the lease is not released
            self.redeliver(run.message)
        else:
            job = run.message.job
            self.ended[job] += 1
            if job in self.seen and run.lease_ends > self.micros:
                self.done[job] = self.micros
            reply = self.run("release", id=f"p{job}", **release)
            self.check(reply == ["ok"], "the lease of a job was lost")

    def interfere(self) -> None:
        """Acquire a permit that is not for a job, or change the limit as an operator."""
        if self.chance.random() < 0.8:
            token = next(self.tokens)
            reply = self.run("acquire", token=token, how="try")
            if reply[0] == "ok":
                until = self.micros + self.chance.randrange(SECOND)
                self.running.append(Running(until, 0, token, reply[1]))
        else:
            self.run("operate", how="resize", value=self.chance.choice([1, 2, 3]))


def walk(seeds: range, faults: bool = True) -> Iterator[World]:
    for seed in seeds:
        chance = random.Random(seed)
        world = World(chance, faults)
        world.run_jobs(chance.choice([3, 12, 30]))
        world.run("operate", how="reset", token="")
        remaining = Store(world.frozen, world.micros + LIFETIME).freeze()
        world.check({KEYS.stats} >= {row[0] for row in remaining}, f"not expired: {remaining}")
        yield world


@pytest.mark.parametrize("part", range(4))
def test_no_job_is_lost_or_runs_twice_simultaneously_despite_random_faults(part: int) -> None:
    assert 40 == len([*walk(range(part * 40, part * 40 + 40))])


def test_each_job_runs_exactly_once_if_no_fault_occurs() -> None:
    for world in walk(range(30), faults=False):
        assert {1} == set(world.ended.values())
