"""Carry out a trial: `python -m exam.faults LOCK FAULT` examines one lock under one fault.

faults.ini has a script for each fault, and explains the scripts. Many steps of the scripts are
methods of the class `Script`. Evidence shows that harm reached the lock. Steps that do harm count
it in `evidence`, and `evidence_of` finds more evidence in the history. A trial counts only if it
has all the evidence that faults.ini lists for its fault.
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
from .checker import IN_VAIN, KINDS, Finding, Visit, check, gap, read
from .lab import HOST, Lab, Team, Unable, Way
from .observer import state, times

_table = configparser.ConfigParser(interpolation=None)
_table.read(Path(__file__).with_name("faults.ini"), encoding="utf-8")
#: A section of faults.ini. The comment at the top of faults.ini explains the fields.
Fault = make_dataclass("Fault", ["title", "control", "script", *_table.defaults()], frozen=True)
FAULTS = {name: Fault(**_table[name]) for name in _table.sections()}


def evidence_of(visits: Sequence[Visit]) -> Counter[str]:
    """Count the evidence, by kind, in the visits of a history."""
    seen = Counter[str]()
    for one in visits:
        role = one.who.rstrip("0123456789")
        until = min(one.left, one.told)
        lasted = (end - start for start, end in one.stops if one.entered <= start < until)
        seen["turns"] += one.entered < math.inf
        seen["the lock was contended"] += any(
            other.entered < one.asked < min(other.left, other.told, other.gone)
            for other in visits
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
        """Run a script. Start all workers of the script before its first step."""
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
        """Report to the observer that harm begins ("harm") or has ended ("calm"). `team`: the
        harmed workers; by default, all workers."""
        for who in [hand.who for hand in self.team(team)] if team else [""]:
            self.seat.say(what, who)

    def until_inside(self, who: str, seconds: float, name: str = "") -> None:
        """Wait for up to `seconds` until a worker gets in. `who`: the start of the worker's name.
        `name`: the name of the lock; by default, any lock."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for one in self.history():
                if one.what == "enter" and one.who.startswith(who) and name in ("", one.name):
                    return
            time.sleep(0.03)

    def admit(self, waiters: str, name: str = "") -> None:
        """Wait until the waiters hold the lock. Give up after LEASE, plus the maximum wait that the
        lock claims, plus a margin. If the lock claims no maximum wait, use IN_VAIN instead."""
        within = self.lock.claims.within
        end = time.monotonic() + LEASE + (IN_VAIN + 4 if within is None else within + 1.3)
        for hand in self.team(waiters):
            self.until_inside(hand.who, end - time.monotonic(), name)

    def refill(self, workers: str, name: str = "") -> None:
        """Let the workers acquire all permits while no other caller holds a permit. First wait up
        to 3 s for their earlier commands. If a worker gets no permit, try up to twice more. In the
        last try, waits are longer, and a new worker waits, too. The checker judges the waits."""
        *others, last = team = self.team(workers)
        if {"waits", "no"} & {*team.end(3)} or "time-up" in self.lock.cannot:
            return  # skip: an earlier acquire waits or got no permit, or the lock has no timeout
        time.sleep(0.1)
        for wait in (1.5, 1.5, 8):  # load can excuse failed waits of 1.5 s, but not of 8 s
            said = [hand.do("take", wait, name) for hand in others]
            last.start("take", wait, name)
            if wait == 8:
                self.team("newcomer").do("turn", 6, 0.1, name)
            said.append(last.end())
            team.do("give")
            if "no" not in said:
                return

    def aftermath(self, waiters: str) -> None:
        """Let the waiters get in, and then a newcomer. At last, let the waiters acquire all permits
        (`refill`). The checker judges the waits."""
        self.play(f"admit {waiters}; newcomer turn 8 0.1 &; newcomer end 10; refill {waiters}")

    # Harm to workers

    def deny_threads(self) -> None:
        """Let holders acquire the lock while no thread can be started."""
        self.evidence["a thread was refused"] += sum(
            self.team("a").do("threadless", 0.3, LEASE + 3)
        )

    def settle(self, who: str, seconds: float) -> None:
        """Wait until a worker needs almost no processor time, but at most `seconds`. `who`: the
        name of a team. Only the first worker of the team is watched."""
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
        """Let workers use the lock for ten seconds. Harm one of them every 0 to 0.4 s."""
        chance, born, harmless = random.Random(7), itertools.count(), Counter[Way]()

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
            for way in crew[place][0].ways if what in ("cut", "lose") else ():
                # The lock may repeat a harmed request. Harm the proxy again after 15 requests.
                if way.requests >= harmless[way]:
                    way.cut() if what == "cut" else way.harm("lose")
                    harmless[way] = way.requests + 15
        time.sleep(LEASE + 2.5)

    def wrong_clocks(self) -> None:
        """Count as evidence that the clocks of workers are wrong."""
        off = [abs(said - time.time()) for said in self.team("ahead+behind").do("clock")]
        self.evidence["the clocks of workers were wrong"] += min(off) > 3000

    # Harm to messages

    def each_request(self, of: str, harm: str, seconds: float = 0) -> None:
        """Harm one request of an acquire or release in each of up to four rounds: the first request
        in the first round, and so on. Each round uses a new lock name.

        `of`: "acquire" or "release". `harm` and `seconds`: see `Way`."""
        (a,), b, newcomer = self.team("one"), self.team("b"), self.team("newcomer")
        fillers = Team(self.team("filler")[1:])  # these workers take all permits but one
        way, of_release = a.ways[0], of == "release"
        a.do("warm", "dry")
        before = way.requests
        a.do("take", 2, "dry")
        taken = way.requests
        a.do("give")
        requests = way.requests - taken if of_release else taken - before
        for number in range(min(requests, 4)):
            name = f"exam-{number}"
            a.do("warm", name)
            fillers.do("take", 2, name)
            if of_release:
                a.do("take", 2, name)
            start = time.monotonic()
            with self.seat.harm(f"a message: {harm}", a.who):
                way.harm(harm, number, seconds)
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
            # Redis may have a lease that the harmed worker doesn't know of. Let this lease expire.
            time.sleep(max(0.0, answered + LEASE + 0.2 - time.monotonic()))
            self.refill("b", name)
            time.sleep(max(0.0, start + seconds + 0.5 - time.monotonic()))

    def each_request_of_a_waiter(self) -> None:
        """Delay one request of a waiter by 0.35 s in each of six rounds: the first request in the
        first round, and so on. 0.2 s after the waiter's acquire began, the holders release."""
        for number in range(6):
            name = f"exam-{number}"
            self.play(
                f"one warm {name}; a take 5 {name}; one ways harm hold {number} 0.35;"
                f"one turn 9 0.1 {name} &; pause 0.2; a give; one end 11"
            )

    def lose_renewals(self) -> None:
        """Let the reply of each holder's next renewal get lost."""
        self.play(f"a ways harm lose; pause {LEASE}")
        lost = [hand.ways[0].done["lose"] for hand in self.team("a")]
        self.evidence["each holder lost a reply"] += min(lost)

    # Harm to servers

    def used(self, what: str, done: bool) -> None:
        """If the first server was harmed (`done`), record as evidence how many calls the lock has
        sent to this server. The number shows that the lock uses the server. `what`: the kind of
        harm, such as "was stopped"."""
        self.evidence[f"the lock's server {what}"] += done and self.calls()

    def kill_server(self, seconds: float) -> None:
        """Kill the first server, and start it again after `seconds`."""
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
        """Let holders release while the first server rejects commands that need memory."""

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
        """Flush the scripts of all servers every 0.3 s, for `seconds`. Meanwhile, count the lock's
        calls of scripts as evidence. `more`: suffix for the name of this evidence."""

        def called() -> int:
            return sum(self.calls("evalsha", "evalsha_ro", server=one) for one in self.servers)

        before, end = called(), time.monotonic() + seconds
        while time.monotonic() < end:
            for server in self.servers:
                self.ask("SCRIPT", "FLUSH", server=server)
            time.sleep(0.3)
        self.evidence[f"scripts of the lock were flushed{more}"] += called() - before

    def renew_without_scripts(self) -> None:
        """Flush scripts while holders renew their leases, if the lock claims to renew leases."""
        script = "a take 5; a keep 4.6 &; b wait; flush_scripts 4.2 again; a give; aftermath b"
        self.play(script if self.lock.claims.renewed else "")

    def replicate(self) -> None:
        """Start a replica of the first server, connected through a proxy. When the replica is in
        sync, silence the proxy, so that the replica misses later changes."""
        link = self.way(self.redis)
        self.replica = self.server({}, "--replicaof", HOST, str(link.server_address[1]))
        end = time.monotonic() + 20
        while self.ask("INFO", "replication", server=self.replica)["master_link_status"] != "up":
            if time.monotonic() > end:
                raise RuntimeError("the replica is not in sync")
            time.sleep(0.05)
        link.silence()

    def fail_over(self, workers: str) -> None:
        """Kill the first server, promote its replica, and connect workers to the replica."""
        self.evidence["the lock used the primary"] += self.calls()
        self.redis.kill()
        self.ask("REPLICAOF", "NO", "ONE", server=self.replica)
        self.ask("CONFIG", "RESETSTAT", server=self.replica)
        for hand in self.team(workers):
            hand.ways[0].lead_to(self.replica.port)

    def count_calls(self) -> None:
        self.evidence["the lock used the replica"] += self.calls(server=self.replica)


# A trial

#: The outcomes of a trial, the worst first. "failed": a finding contradicts a claim. "broken off":
#: the exam had an error. "seen": there are findings, but none contradicts a claim. "not reached":
#: the harm did not reach the lock.
OUTCOMES = ("failed", "broken off", "seen", "passed", "not reached", "not applicable")


@dataclass
class Seen:
    """The result of a trial."""

    lock: str
    fault: str
    outcome: str
    found: list[Finding] = field(default_factory=list)
    free: float = 0.0  # the longest time in which the lock was free although a worker waited
    why: str = ""  # reason why the trial has no result, or doesn't count
    took: float = 0.0  # duration in seconds

    @property
    def kinds(self) -> set[str]:
        """The kinds of the findings that contradict the lock's claims."""
        return {one.kind for one in self.found if one.against}

    @property
    def rank(self) -> tuple[float, ...]:
        """Sort key for several runs of the same trial. The worst run has the lowest rank."""
        kind = KINDS.index(self.found[0].kind) if self.found else len(KINDS)
        longest = self.found[0].seconds if self.found else self.free
        return OUTCOMES.index(self.outcome), kind, -longest

    @classmethod
    def read(cls, words: dict[str, Any]) -> Seen:
        return cls(**{**words, "found": [Finding(**one) for one in words["found"]]})


def examine(key: str, which: str) -> Seen:
    """Examine a lock under one fault."""
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
    claims, flags = replace(lock.claims, limit=lock.limit), {*fault.flags.split()}
    why = lock.cannot.get(which, "")
    if "redis" in flags and not lock.needs:
        why = "the lock uses no Redis"
    elif fault.only == "async" and lock.aacquire is Adapter.aacquire:
        why = "the lock has no async version"
    elif fault.only == "renewed" and not claims.renewed:
        why = "the lock does not claim to renew"
    if why:
        raise Unable(why)
    with contextlib.ExitStack() as stack:
        script = Script(stack, lock, key, fault)
        script.play(fault.script)
        history = script.history()
    harm = sum((way.done for way in script.ways), Counter[str]())
    evidence = script.evidence + harm + evidence_of(read(history).visits)
    missing = ", ".join(one for one in fault.evidence.split(", ") if not evidence[one])
    if missing and fault.without:
        raise Unable(fault.without)
    # Ignore "lossy" for a quorum. A quorum must keep its promises even if one of the three servers
    # loses its data.
    found = check(history, claims, flags - {"lossy"} if lock.needs == "quorum" else flags)
    claim, _, kinds = fault.unless.partition(": ")
    if claim and not getattr(claims, claim):
        excused = kinds.split(", ") if kinds else KINDS
        found = [replace(one, against=one.against and one.kind not in excused) for one in found]
    found.sort(key=lambda one: not one.against)
    outcome = "not reached" if missing else "seen" if found else "passed"
    if found and found[0].against:
        outcome = "failed"
    why = f"the harm did not reach the lock; missing: {missing}" if missing else ""
    return Seen(key, which, outcome, found, round(gap(history, lock.limit), 2), why)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # exit normally, to stop the servers
    print(json.dumps(asdict(examine(*sys.argv[1:]))))
