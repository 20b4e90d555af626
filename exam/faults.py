"""Carry out a trial: `python -m exam.faults LOCK FAULT` examines one lock under one fault.

faults.ini has a script for each fault, and explains the scripts. Many steps of the scripts are
methods of the class `Script`. A trial counts only if there is evidence that its fault reached the
lock. The field `evidence` in faults.ini lists what must have happened. Steps count such events in
`Script.evidence`, and the function `evidence_of` counts those that the observer has recorded.
"""

from __future__ import annotations

import configparser
import contextlib
import itertools
import json
import math
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import Any

from .adapter import LEASE, Adapter, find
from .checker import IN_VAIN, KINDS, Attempt, Problem, check, gap, read
from .lab import HOST, Lab, Proxy, Team, Unable
from .observer import state, times

_table = configparser.ConfigParser(interpolation=None)
_table.read(Path(__file__).with_name("faults.ini"), encoding="utf-8")
#: A section of faults.ini. The comment at the top of faults.ini explains the fields.
Fault = make_dataclass("Fault", ["title", "control", "script", *_table.defaults()], frozen=True)
FAULTS = {name: Fault(**_table[name]) for name in _table.sections()}


def evidence_of(attempts: Sequence[Attempt]) -> Counter[str]:
    """Count evidence in the attempts of a history. Return a Counter: what happened -> how often."""
    seen = Counter[str]()
    for one in attempts:
        role = one.who.rstrip("0123456789")
        until = min(one.left, one.reported)
        lasted = (end - start for start, end in one.stops if one.entered <= start < until)
        seen["turns"] += one.entered < math.inf
        seen["the lock was contended"] += any(
            other.entered < one.asked < min(other.left, other.reported, other.gone)
            for other in attempts
            if other.name == one.name
        )
        seen[f"{role} died"] += one.gone < min(until, one.gave_up, one.failed)
        seen[f"{role} died inside"] += one.entered <= one.gone < until
        seen[f"{role} died waiting"] += one.gone < min(one.entered, one.gave_up, one.failed)
        seen[f"{role} was stopped"] += bool(one.stops)
        seen[f"{role} was stopped inside"] += any(LEASE < long < math.inf for long in lasted)
        seen[f"{role} failed"] += one.failed < math.inf
    return seen


class Script(Lab):
    """A Lab that runs the script of a fault. Public methods of this class can be steps of a
    script."""

    def play(self, script: str) -> None:
        """Run a script. Before its first step, start all workers that the script names."""
        steps = [text.split() for text in re.split("[;\n]", script) if text.strip()]
        for name in [one[0] for one in steps if not hasattr(self, one[0])] + ["newcomer"]:
            self.team(name)
        for name, *words in steps:
            values = [float(one) if re.fullmatch("-?[0-9.]+", one) else one for one in words]
            if hasattr(self, name):
                getattr(self, name)(*values)
            elif hasattr(Team, words[0]):
                getattr(self.team(name), words[0])(*values[1:])
            elif words[-1] == "&":
                self.team(name).start(*values[:-1])
            else:
                self.team(name).do(*values)

    pause = staticmethod(time.sleep)

    def report(self, what: str, team: str = "") -> None:
        """Report to the observer that a fault begins or has ended. `what`: "fault" or
        "fault_end". `team`: the workers that the fault affects; by default, all workers."""
        for who in [hand.who for hand in self.team(team)] if team else [""]:
            self.reporter.say(what, who)

    def until_inside(self, who: str, seconds: float, name: str = "") -> None:
        """Wait until a worker has acquired the lock, but at most `seconds`. `who`: how the worker's
        name begins. `name`: the name of the lock; by default, any lock."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for one in self.history():
                if one.what == "enter" and one.who.startswith(who) and name in ("", one.name):
                    return
            time.sleep(0.03)

    def admit(self, waiters: str, name: str = "") -> None:
        """Wait until each waiter has acquired the lock. Give up after LEASE, plus the `max_wait`
        that the lock promises or else IN_VAIN, plus a margin."""
        wait = self.lock.promises.max_wait
        end = time.monotonic() + LEASE + (IN_VAIN + 4 if wait is None else wait + 1.3)
        for hand in self.team(waiters):
            self.until_inside(hand.who, end - time.monotonic(), name)

    def refill(self, workers: str, name: str = "") -> None:
        """Test that no permit is lost: let the workers take all permits of the lock at the same
        time. If a worker gets no permit, try up to twice more. In the last try, the workers wait
        longer, and a newcomer waits too. The checker reports waits that were too long."""
        *others, last = team = self.team(workers)
        if {"waits", "no"} & {*team.end(3)} or "time-up" in self.lock.cannot:
            return  # an earlier acquire still waits or got no permit, or the lock has no timeout
        time.sleep(0.1)
        for wait in (1.5, 1.5, 8):  # the checker may excuse a wait of 1.5 s by load, but not 8 s
            said = [hand.do("take", wait, name) for hand in others]
            last.start("take", wait, name)
            if wait == 8:
                self.team("newcomer").do("turn", 6, 0.1, name)
            said.append(last.end())
            team.do("give")
            if "no" not in said:
                return

    def aftermath(self, waiters: str) -> None:
        """Let the waiters acquire the lock, and then a newcomer. At the end, let the waiters
        acquire all permits (`refill`). The checker reports waits that were too long."""
        self.play(f"admit {waiters}; newcomer turn 8 0.1 &; newcomer end 10; refill {waiters}")

    # Faults of workers

    def deny_threads(self) -> None:
        """Let the workers `a` acquire and hold the lock while they can't start threads."""
        self.evidence["a thread was refused"] += sum(
            self.team("a").do("threadless", 0.3, LEASE + 3)
        )

    def settle(self, who: str, seconds: float) -> None:
        """Wait until the first worker of a team needs almost no processor time, but at most
        `seconds`. `who`: the name of the team."""
        end, used = time.monotonic() + seconds, math.inf
        while time.monotonic() < end:
            time.sleep(0.5)
            before, used = used, sum(map(sum, times(self.team(who)[0].pid).values()))
            if 0 <= used - before < 0.15:
                return

    def count_crowd(self, count: float) -> None:
        size = self.team("crowd")[0].do("crowded")  # "waits" if the worker is too busy to answer
        self.evidence["a crowd waited"] += isinstance(size, int) and size > 0.9 * count

    def chaos(self) -> None:
        """Let workers use the lock for ten seconds. After random pauses of up to 0.4 s, kill or
        stop a random worker, close its connections, or discard a reply to it."""
        chance, born, spared = random.Random(7), itertools.count(), Counter[Proxy]()

        def new() -> Team:
            team = Team([self.hand(f"worker{next(born)}", "worker")])
            team.start("storm", 60, 0.15)
            return team

        crew = [new() for _ in range(3 + self.limit)]
        end = time.monotonic() + 10
        while time.monotonic() < end:
            time.sleep(chance.random() * 0.4)
            place = chance.randrange(len(crew))
            what = chance.choice(["kill", "kill", "stop", "cut", "lose"])
            if what == "kill":  # prefer the worker that got in last, which may be a holder
                last = [one.who for one in self.history() if one.what == "enter"][-1:]
                place = next((n for n, one in enumerate(crew) if one[0].who in last), place)
                crew[place].kill()
                crew[place] = new()
            elif what == "stop":
                crew[place].stop()
                time.sleep(chance.choice([0.1, 0.1, LEASE + 0.7]))
                crew[place].resume()
            for proxy in crew[place][0].proxies if what in ("cut", "lose") else ():
                # The lock may repeat a request that failed. So spare the next 15 requests.
                if proxy.requests >= spared[proxy]:
                    proxy.cut() if what == "cut" else proxy.inject("lose")
                    spared[proxy] = proxy.requests + 15
        time.sleep(LEASE + 2.5)

    def wrong_clocks(self) -> None:
        """Check that the clocks of the workers are wrong, and count this as evidence."""
        off = [abs(said - time.time()) for said in self.team("ahead+behind").do("clock")]
        self.evidence["the clocks of workers were wrong"] += min(off) > 3000

    # Faults of messages

    def each_request(self, of: str, what: str, seconds: float = 0) -> None:
        """Disturb one request of an acquire or release in each of up to four rounds: request N in
        round N. Each round uses a new lock name. `of`: "acquire" or "release". `what` and
        `seconds`: see `Proxy`."""
        (a,), b, newcomer = self.team("one"), self.team("b"), self.team("newcomer")
        fillers = Team(self.team("filler")[1:])  # these workers take all permits except one
        proxy, of_release = a.proxies[0], of == "release"
        a.do("warm", "dry")
        before = proxy.requests
        a.do("take", 2, "dry")
        taken = proxy.requests
        a.do("give")
        requests = proxy.requests - taken if of_release else taken - before
        for number in range(min(requests, 4)):
            name = f"exam-{number}"
            a.do("warm", name)
            fillers.do("take", 2, name)
            if of_release:
                a.do("take", 2, name)
            start = time.monotonic()
            with self.reporter.fault(f"a message: {what}", a.who):
                proxy.inject(what, number, seconds)
                a.start("give") if of_release else a.start("take", 4 + seconds, name)
                time.sleep(0.3)
                b.start("turn", 9, 1.7, name)
                time.sleep(0.2)
                fillers.do("give")
                a.end()
            answered = time.monotonic()
            a.do("keep", 0.4)
            a.do("give")
            self.admit("b", name)
            newcomer.start("turn", 5, 0.1, name)
            newcomer.end(7)
            # Worker `one` may have a lease that it doesn't know of. Let this lease expire.
            time.sleep(max(0.0, answered + LEASE + 0.2 - time.monotonic()))
            self.refill("b", name)
            time.sleep(max(0.0, start + seconds + 0.5 - time.monotonic()))

    def each_request_of_a_waiter(self) -> None:
        """Delay one request of a waiter by 0.35 s in each of six rounds: request N in round N. In
        each round, the holders release the lock 0.2 s after the waiter's acquire began."""
        for number in range(6):
            name = f"exam-{number}"
            self.play(
                f"one warm {name}; a take 5 {name}; one proxies inject hold {number} 0.35;"
                f"one turn 9 0.1 {name} &; pause 0.2; a give; one end 11"
            )

    def lose_renewals(self) -> None:
        """Discard the reply to the next renewal of each holder."""
        self.play(f"a proxies inject lose; pause {LEASE}")
        lost = [hand.proxies[0].done["lose"] for hand in self.team("a")]
        self.evidence["each holder lost a reply"] += min(lost)

    # Faults of servers

    def used(self, what: str, done: bool) -> None:
        """If the first server had a fault (`done`), count the commands that it has executed for the
        lock, as evidence that the lock uses it. `what`: what happened to it: "was stopped"."""
        self.evidence[f"the lock's server {what}"] += done and self.calls()

    def kill_server(self, seconds: float) -> None:
        """Kill the first server. After `seconds`, start it again."""
        calls, before = self.calls(), self.ask("INFO", "server")["run_id"]
        keys = self.ask("DBSIZE")
        self.ask("SET", "a key of the exam", 1)
        self.redis.kill()
        time.sleep(seconds)
        self.start(self.redis)
        if self.ask("INFO", "server")["run_id"] != before:
            self.evidence["the lock's server was killed"] += calls
            lost = not self.ask("EXISTS", "a key of the exam")
            self.evidence["keys were lost"] += keys if lost else 0

    def stop_server(self, seconds: float) -> None:
        self.redis.signal(signal.SIGSTOP)
        time.sleep(seconds)
        stopped = state(self.redis.pid) == "T"
        self.redis.signal(signal.SIGCONT)
        self.used("was stopped", stopped)

    def shift_clock(self, seconds: float) -> None:
        """Move the clock of the first server by `seconds`. Check the server's time."""
        self.clock.shift(seconds)
        self.used("has another time", abs(self.ask("TIME")[0] - time.time() - seconds) < 2)

    def fill_memory(self) -> None:
        """While the first server's memory is full, let the workers of team `a` release the lock."""

        def rejected() -> int:
            stats = self.ask("INFO", "commandstats").values()
            return sum(one.get("rejected_calls", 0) + one.get("failed_calls", 0) for one in stats)

        before = rejected()
        self.ask("CONFIG", "SET", "maxmemory", "1")
        self.team("a").do("give")
        time.sleep(0.5)
        self.evidence["commands of the lock were rejected"] += rejected() - before
        self.ask("CONFIG", "SET", "maxmemory", "0")

    def flush_all(self) -> None:
        self.evidence["keys were lost"] += self.ask("DBSIZE")
        self.ask("FLUSHALL")

    def flush_scripts(self, seconds: float, more: str = "") -> None:
        """Flush the scripts of all servers every 0.3 s, for `seconds`. Count as evidence how often
        the lock called scripts meanwhile. `more`: suffix for the name of this evidence."""

        def called() -> int:
            return sum(self.calls("evalsha", "evalsha_ro", server=one) for one in self.servers)

        before, end = called(), time.monotonic() + seconds
        while time.monotonic() < end:
            for server in self.servers:
                self.ask("SCRIPT", "FLUSH", server=server)
            time.sleep(0.3)
        self.evidence[f"scripts of the lock were flushed{more}"] += called() - before

    def renew_without_scripts(self) -> None:
        """If the lock promises to renew leases, flush scripts while holders renew their leases."""
        script = "a take 5; a keep 4.6 &; b wait; flush_scripts 4.2 again; a give; aftermath b"
        self.play(script if self.lock.promises.renewed else "")

    def replicate(self) -> None:
        """Start a replica of the first server. The replica connects through a proxy. When it is in
        sync, silence the proxy, so that the replica misses all later changes."""
        link = self.proxy(self.redis)
        self.replica = self.server({}, "--replicaof", HOST, str(link.server_address[1]))
        end = time.monotonic() + 20
        while self.ask("INFO", "replication", server=self.replica)["master_link_status"] != "up":
            if time.monotonic() > end:
                raise RuntimeError("the replica is not in sync")
            time.sleep(0.05)
        link.silence()

    def fail_over(self, workers: str) -> None:
        """Kill the first server, promote its replica, and connect `workers` to the replica."""
        self.evidence["the lock used the primary"] += self.calls()
        self.redis.kill()
        self.ask("REPLICAOF", "NO", "ONE", server=self.replica)
        self.ask("CONFIG", "RESETSTAT", server=self.replica)
        for hand in self.team(workers):
            hand.proxies[0].connect_to(self.replica.port)

    def count_calls(self) -> None:
        self.evidence["the lock used the replica"] += self.calls(server=self.replica)


# A trial

#: The outcomes of a trial, the worst first. "failed": the lock broke a promise. "broken off": the
#: exam itself had an error. "seen": the lock has problems, but broke no promise. "not reached": the
#: fault did not reach the lock.
OUTCOMES = ("failed", "broken off", "seen", "passed", "not reached", "not applicable")


@dataclass
class Seen:
    """The result of a trial."""

    lock: str
    fault: str
    outcome: str
    found: list[Problem] = field(default_factory=list)
    free: float = 0.0  # the longest time for which a permit was free although a worker waited
    why: str = ""  # the reason, if the trial has no result or doesn't count
    took: float = 0.0  # duration in seconds

    @property
    def kinds(self) -> set[str]:
        """The kinds of problems that break a promise of the lock."""
        return {one.kind for one in self.found if one.breach}

    @property
    def rank(self) -> tuple[float, ...]:
        """Sort key for runs of the same trial. A worse run has a lower rank."""
        kind = KINDS.index(self.found[0].kind) if self.found else len(KINDS)
        longest = self.found[0].seconds if self.found else self.free
        return OUTCOMES.index(self.outcome), kind, -longest

    @classmethod
    def read(cls, words: dict[str, Any]) -> Seen:
        return cls(**{**words, "found": [Problem(**one) for one in words["found"]]})


def examine(key: str, which: str) -> Seen:
    """Run a trial: examine a lock under a fault. `key`: see `adapter.find`. `which`: the fault."""
    start = time.monotonic()
    try:
        seen = _trial(key, which, find(key), FAULTS[which])
    except Unable as error:
        seen = Seen(key, which, "not applicable", why=str(error))
    except Exception as error:
        seen = Seen(key, which, "broken off", why=f"{type(error).__name__}: {error}"[:300])
    seen.took = round(time.monotonic() - start, 1)
    return seen


def _trial(key: str, which: str, lock: type[Adapter], fault: Any) -> Seen:
    promises, flags = replace(lock.promises, limit=lock.limit), {*fault.flags.split()}
    why = lock.cannot.get(which, "")
    if "redis" in flags and not lock.needs:
        why = "the lock uses no Redis"
    elif fault.only == "async" and lock.aacquire is Adapter.aacquire:
        why = "the lock has no async version"
    elif fault.only == "renewed" and not promises.renewed:
        why = "the lock does not promise to renew"
    if why:
        raise Unable(why)
    with contextlib.ExitStack() as stack:
        script = Script(stack, lock, key, fault)
        script.play(fault.script)
        history = script.history()
    done = sum((proxy.done for proxy in script.proxies), Counter[str]())
    evidence = script.evidence + done + evidence_of(read(history).attempts)
    missing = ", ".join(one for one in fault.evidence.split(", ") if not evidence[one])
    if missing and fault.without:
        raise Unable(fault.without)
    # For a quorum, ignore "lossy": a quorum must keep its promises even if one of its three servers
    # loses data.
    found = check(history, promises, flags - {"lossy"} if lock.needs == "quorum" else flags)
    promise, _, kinds = fault.unless.partition(": ")
    if promise and not getattr(promises, promise):
        excused = kinds.split(", ") if kinds else KINDS
        found = [replace(one, breach=one.breach and one.kind not in excused) for one in found]
    found.sort(key=lambda one: not one.breach)
    outcome = "not reached" if missing else "seen" if found else "passed"
    if found and found[0].breach:
        outcome = "failed"
    why = f"the fault did not reach the lock; missing: {missing}" if missing else ""
    return Seen(key, which, outcome, found, round(gap(history, lock.limit), 2), why)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # exit normally, to stop the servers
    print(json.dumps(asdict(examine(*sys.argv[1:]))))
