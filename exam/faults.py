"""The faults, one function each: workers `a` hold, workers `b` wait, and something happens.

Each team has as many workers as the lock's limit. Harm to a server is done to one server; of a
quorum, to the first of three. At the end, `_aftermath` looks whether the lock still works: the
waiters get in, a newcomer is kept out while they are inside, and gets in after them.

A trial without its `evidence` doesn't count. The examiner looks for it in `Lab.evidence`, which the
instruments fill, and in the history.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .adapter import LEASE
from .checker import EARLY, ERROR, IN_VAIN, NO_REASON, REFUSED
from .lab import Hand, Lab, Team, Unable
from .observer import Event
from .servers import HOST

Put = Callable[[Lab], Any]

#: Waiters that are killed at once.
CROWD = 1000


@dataclass(frozen=True)
class Fault:
    """`evidence`: what shows that the harm reached the lock. `redis`: it is done to a server.
    `lossy`: it takes away the lock's memory, so that two may be inside until one is told.
    `keeps`: it is not a reason to lose a lease or to fail a release; `retried`: nor, for a lock
    that claims to retry, to fail an acquire. `unless`: findings ("": all) that only count against
    locks that make a claim. `config`: of the server; `clock`: the server's clock can be moved."""

    title: str
    put: Callable[[Lab], Any]
    evidence: tuple[str, ...]
    redis: bool = False
    lossy: bool = False
    keeps: bool = False
    retried: bool = False
    unless: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    clock: bool = False


FAULTS: dict[str, Fault] = {}
CONTENDED = "it was contended"
CLOCK_MOVED = "the clock of a server that it used moved"
SCRIPTS_FLUSHED = "scripts that it calls by their digest were flushed"


def fault(name: str, title: str, *evidence: str, **more: Any) -> Callable[[Put], Put]:
    """Add a function to the list of faults."""

    def add(put: Put) -> Put:
        FAULTS[name] = Fault(title, put, evidence or (CONTENDED,), **more)
        return put

    return add


def seen_in(history: Sequence[Event]) -> Counter[str]:
    """Return the evidence that a history gives."""
    seen: Counter[str] = Counter()
    state: dict[int, str] = {}
    stopped: dict[int, tuple[float, str]] = {}
    inside: dict[str, set[int]] = {}  # of each name
    for event in history:
        what, seat, role = event.what, event.seat, event.who.rstrip("0123456789")
        now = state.get(seat, "")
        if what == "ask" and any(inside.get(event.name, ())):
            seen[CONTENDED] += 1
        elif what == "enter":
            inside.setdefault(event.name, set()).add(seat)
            seen["turns"] += 1
        elif what == "died":
            seen[f"{role} died {now}"] += 1
        elif what == "stopped":
            stopped[seat] = (event.number or event.at, now)
        elif what == "resumed" and seat in stopped:
            start, then = stopped.pop(seat)
            seen[f"{role} was stopped {then}"] += event.at - start > LEASE
        elif what in ("gave_up", "error"):
            seen[f"{role} {what}"] += 1
        if what in ("enter", "probe", "held"):
            state[seat] = "inside"
        elif what not in ("stopped", "resumed", "closed"):
            state[seat] = "waiting" if what == "ask" else "outside"
        if what == "closed" or state.get(seat) == "outside":
            for seats in inside.values():
                seats.discard(seat)
    return seen


# What most faults begin and end with


def _teams(lab: Lab, **options: Any) -> tuple[Team, Team, Hand]:
    """Return those who hold, those who wait, and a newcomer."""
    return lab.team("a", **options), lab.team("b", **options), lab.hand("newcomer", **options)


def _take(a: Team) -> None:
    if set(a.do("take", 5)) != {"got"}:
        raise RuntimeError("it could not be taken when it was free")


def _hold(a: Team, seconds: float) -> None:
    """Let `a` take it and stay inside for a time."""
    _take(a)
    a.start("keep", seconds)


def _wait(b: Team, wait: float = 16, hold: float = 1.2) -> None:
    """Let `b` ask, and stay inside for a time when they get in."""
    b.start("turn", wait, hold)
    time.sleep(0.4)


def _leave(a: Team) -> None:
    a.end()
    a.do("give")


def _patience(lab: Lab) -> float:
    """Return the seconds beyond a lease for which waiters may get in before a newcomer asks."""
    within = lab.lock.claims.within
    return IN_VAIN + 4 if within is None else within + 1.3


def _aftermath(lab: Lab, b: Team, newcomer: Hand, lease: float = LEASE) -> None:
    """Look whether the waiters get in, and whether a newcomer gets in after them."""
    end = time.monotonic() + lease + _patience(lab)
    for hand in b:
        lab.until("enter", who=hand.who, seconds=end - time.monotonic())
    newcomer.start("turn", 8.0, 0.1)
    newcomer.end(10)
    b.end(3)


def _while_held(lab: Lab, what: str, harm: Callable[[], None], seconds: float, hold: float) -> None:
    """Do harm to a server while `a` stay inside for `seconds`, and `b` wait to `hold` it."""
    a, b, newcomer = _teams(lab)
    _hold(a, seconds)
    _wait(b, 15, hold)
    with lab.seat.harm(what):
        harm()
    _leave(a)
    _aftermath(lab, b, newcomer)


# Without harm


@fault("line", "none: three wait in line")
def line(lab: Lab) -> None:
    a, *others = (lab.team(name) for name in "abcd")
    _hold(a, 1.6)
    for team in others:
        team.start("turn", 10, 0.5)
        time.sleep(0.5)
    _leave(a)
    for team in others:
        team.end(12)


@fault("storm", "none: many at once", "turns", CONTENDED)
def storm(lab: Lab) -> None:
    hands = Team(itertools.chain(*(lab.team(name) for name in "abcd")))
    hands.do("storm", 2.5, 0.03)


@fault("time-up", "none: the time to wait is over")
def time_is_up(lab: Lab) -> None:
    a, b = lab.team("a"), lab.team("b")
    _hold(a, 1.9)
    b.do("take", 0.5)
    _leave(a)


@fault("long-work", "works more than twice as long as its lease")
def long_work(lab: Lab) -> None:
    a, b, newcomer = _teams(lab)
    _hold(a, 2.3 * LEASE)
    _wait(b, 12, 1.5)
    _leave(a)
    _aftermath(lab, b, newcomer)


@fault(
    "chaos",
    "kills, stops, cuts and lost replies by chance",
    "turns",
    "workers were killed",
    unless=dict.fromkeys((ERROR, EARLY, REFUSED, NO_REASON), "retries"),
)
def chaos(lab: Lab) -> None:
    """Some work for ten seconds, and every few tenths of a second one of them is harmed."""
    chance, born = random.Random(7), itertools.count()
    has_way = bool(lab.servers)

    def new() -> Hand:
        hand = lab.hand(f"worker-{next(born)}", own_way=has_way)
        hand.start("storm", 60, 0.15)
        return hand

    def stop(hand: Hand) -> None:
        hand.stop()
        time.sleep(chance.choice([0.1, 0.1, LEASE + 0.7]))
        hand.resume()

    def cut(hand: Hand) -> None:
        for way in hand.ways:
            way.cut()

    def lose(hand: Hand) -> None:
        for way in hand.ways:
            way.harm("lose")

    crew = [new() for _ in range(3 + lab.limit)]
    end = time.monotonic() + 10
    while time.monotonic() < end:
        time.sleep(chance.random() * 0.4)
        place = chance.randrange(len(crew))
        what = chance.choice([Hand.kill, Hand.kill, stop, cut, lose])
        if what is Hand.kill:  # one that is inside, if possible
            last = next((one.who for one in reversed(lab.history()) if one.what == "enter"), "")
            place = next((n for n, hand in enumerate(crew) if hand.who == last), place)
        what(crew[place])
        if what is Hand.kill:
            lab.prove("workers were killed", 1)
            crew[place] = new()
    time.sleep(LEASE + 0.5)
    for hand in crew:
        hand.kill()


# Holders


@fault("killed", "holder killed", "a died inside")
def killed(lab: Lab) -> None:
    a, b, newcomer = _teams(lab)
    _hold(a, 30)
    _wait(b)
    a.kill()
    _aftermath(lab, b, newcomer)


@fault("stopped", "holder stopped past its lease", "a was stopped inside")
def stopped(lab: Lab) -> None:
    """The holders look again long after they run again: what they renew until then is not theirs,
    so waiters keep their places, and newcomers get in after them."""
    a, b, newcomer = _teams(lab)
    _take(a)
    a.start("keep", 0.2, LEASE + 7.5)
    _wait(b, 12, LEASE)
    _stop(lab, a)
    newcomer.start("storm", 3.5, 0.05, 4)
    newcomer.end(9)
    _leave(a)
    b.end(3)


def _stop(lab: Lab, a: Team) -> None:
    """Stop holders until a waiter gets in, and for longer than a lease."""
    start = time.monotonic()
    a.stop()
    lab.until("enter", who="b", seconds=LEASE + 2)
    time.sleep(max(0.2, start + LEASE + 0.2 - time.monotonic()))
    a.resume()


@fault("forked", "holder forks, the child leaves the block too", unless={"": "forks"})
def forked_and_gave(lab: Lab) -> None:
    a, b, newcomer = _teams(lab)
    _take(a)
    _wait(b, 8)
    a.do("fork_and_give")
    a.do("keep", 0.8)
    a.do("give")
    _aftermath(lab, b, newcomer)


@fault(
    "fork-killed",
    "holder forks and is killed, the child lives",
    "a died inside",
    unless={"": "forks"},
)
def forked_and_killed(lab: Lab) -> None:
    a, b, newcomer = _teams(lab)
    _take(a)
    a.do("fork_and_stay", 20)
    _wait(b)
    for hand in a:
        os.kill(hand.pid, signal.SIGKILL)  # the child lives on
    _aftermath(lab, b, newcomer)


@fault("second-release", "released a second time")
def second_release(lab: Lab) -> None:
    a, b, newcomer = _teams(lab)
    _take(a)
    a.do("give")
    _hold(b, 1.4)
    a.do("again")
    newcomer.start("turn", 6, 0.1)
    _leave(b)
    newcomer.end(7)


@fault("late-release", "released after its lease", "a was stopped inside")
def late_release(lab: Lab) -> None:
    a, b, newcomer = _teams(lab)
    _hold(a, 0.5)
    _wait(b, 12, 1.6)
    _stop(lab, a)
    a.end()
    if "nothing" in a.do("give"):
        a.do("again")
    newcomer.start("turn", 6, 0.1)
    newcomer.end(7)
    b.end(3)


@fault("one-process", "two threads of one process")
def one_process(lab: Lab) -> None:
    a, newcomer = lab.team("a"), lab.hand("newcomer")
    a.start("in_one_process")
    lab.until("enter", who="a1, second thread", seconds=4)
    newcomer.start("turn", 6, 0.1)
    a.end(15)
    newcomer.end(7)


# Waiters


@fault("waiter-killed", "first waiter killed", "head died waiting")
def waiter_killed(lab: Lab) -> None:
    a, b, newcomer = _teams(lab)
    head = lab.team("head")
    _hold(a, 1.5)
    head.start("take", 20)
    time.sleep(0.4)
    _wait(b)
    head.kill()
    _leave(a)
    _aftermath(lab, b, newcomer)


@fault(
    "crowd-killed",
    f"{CROWD:,} waiters and the holder killed",
    "a died inside",
    "a crowd waited",
    "crowd died waiting",
)
def crowd_killed(lab: Lab) -> None:
    a, b, newcomer = _teams(lab)
    crowd = lab.hand("crowd", warm=False)
    _hold(a, 60)
    with lab.seat.harm("the observer knows of one of them", "crowd"):
        crowd.do("crowd", CROWD, 90)
        _settled(crowd.pid, 15)
        _wait(b, 30)
        lab.prove("a crowd waited", int(crowd.do("crowded")) > 0.9 * CROWD)
        crowd.kill()
        a.kill()
    _aftermath(lab, b, newcomer)


def _settled(pid: int, seconds: float) -> None:
    """Wait until a process has little to do, as when all its threads wait."""
    end, used = time.monotonic() + seconds, 0.0
    while time.monotonic() < end:
        time.sleep(0.5)
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        before, used = used, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        if before and used - before < 0.15:
            return


@fault("signal", "waiter interrupted by signals, 40 times", "interrupted error")
def alarmed(lab: Lab) -> None:
    a, b, newcomer = _teams(lab)
    other = lab.hand("interrupted")
    a.start("storm", 1, 0.05)
    with lab.seat.harm("exceptions from signals", "interrupted"):
        other.do("alarmed", 20)
        a.end()
        time.sleep(LEASE)
        other.do("alarmed", 20)
    _wait(b)
    _aftermath(lab, b, newcomer)


@fault("no-thread", "no thread can be started", "a thread was refused")
def threadless(lab: Lab) -> None:
    a, b, newcomer = _teams(lab, warm=False)
    for hand in a:
        with lab.seat.harm("no thread can be started", hand.who):
            said = hand.do("threadless", 0.3)
            lab.prove("a thread was refused", int(said.rpartition(" ")[2]))
            if not said.startswith("got"):
                hand.do("take", LEASE + 3)
    if not lab.evidence["a thread was refused"]:
        raise Unable("it starts no thread")
    _wait(b)
    a.do("keep", 0.5)
    a.do("give")
    _aftermath(lab, b, newcomer)


@fault("loop-ended", "event loop closed in the middle", "a loop was closed")
def loop_ended(lab: Lab) -> None:
    if not lab.lock.is_async():
        raise Unable("it has no async version")
    a, b, newcomer = _teams(lab)
    for said in a.do("loop_ended"):
        lab.prove("a loop was closed", said.startswith("ended"))
    _wait(b)
    _aftermath(lab, b, newcomer)


# Messages


def _each_request(lab: Lab, harm: str, seconds: float = 0.0, of_release: bool = False) -> None:
    """Harm each request of an acquire, or of a release, on a name of its own each."""
    a, b, newcomer = lab.hand("a", own_way=True), lab.team("b"), lab.hand("newcomer")
    fillers = lab.team("filler")[1:]  # at a limit of two, the rest is taken
    way = a.ways[0]
    a.do("warm", "dry")
    before = way.requests
    a.do("take", 2, "dry")
    if of_release:
        before = way.requests
        a.do("give")
    requests = way.requests - before
    a.do("give")
    for number in range(min(requests, 4)):
        name = f"exam-{number}"
        a.do("warm", name)
        for hand in fillers:
            hand.do("take", 2, name)
        if of_release:
            a.do("take", 2, name)
        start = time.monotonic()
        with lab.seat.harm(f"a message: {harm}", "a"):
            way.harm(harm, number, seconds)
            a.start("give") if of_release else a.start("take", 4 + seconds, name)
            time.sleep(0.3)
            b.start("turn", 9, 1.7, name)
            time.sleep(0.2)
            for hand in fillers:
                hand.do("give")
            said = a.end()
        if said == "got":
            a.do("keep", 0.4)
            a.do("give")
        for hand in b:
            lab.until("enter", who=hand.who, seconds=LEASE + _patience(lab))
        newcomer.start("turn", 5, 0.1, name)
        newcomer.end(7)
        b.end(3)
        time.sleep(max(0.0, start + seconds + 0.5 - time.monotonic()))
    lab.prove(harm, way.done[harm])


def _message(
    name: str, title: str, harm: str, seconds: float = 0, of_release: bool = False
) -> None:
    keeps = harm in ("lose", "drop", "double")
    put = partial(_each_request, harm=harm, seconds=seconds, of_release=of_release)
    FAULTS[name] = Fault(title, put, (harm,), redis=True, keeps=keeps, retried=keeps)


_message("reply-lost", "acquire: each reply lost", "lose")
_message("reply-late", "acquire: each reply later than the lease", "late", LEASE + 0.8)
_message("doubled", "acquire: each request arrives twice", "double")
_message("release-lost", "release: each request lost", "drop", 0, True)
_message("release-unanswered", "release: each reply lost", "lose", 0, True)
_message("release-late", "release: each request comes after the lease", "hold", LEASE + 0.4, True)
_message("release-doubled", "release: each request comes again later", "double", 0.9, True)


@fault("silent", "holder's path is silent", "bytes were swallowed", redis=True)
def silent(lab: Lab) -> None:
    a, b, newcomer = lab.team("a", own_way=True), lab.team("b"), lab.hand("newcomer")
    ways = [way for hand in a for way in hand.ways]
    _hold(a, LEASE + 3.5)
    _wait(b, 12, 2)
    for way in ways:
        way.silence()
    for hand in a:
        lab.seat.say("harm", hand.who, None, "its path is silent")
    lab.until("enter", who="b", seconds=LEASE + 2.5)
    time.sleep(1)
    for way in ways:
        way.speak()
    for hand in a:
        lab.seat.say("calm", hand.who, None, "its path is silent")
    lab.prove("bytes were swallowed", sum(way.done["swallowed"] + way.done["cut"] for way in ways))
    _leave(a)
    _aftermath(lab, b, newcomer)


# Servers


@fault(
    "server-killed",
    "server killed, back with its data",
    "a server that it used was killed",
    redis=True,
    config={"appendonly": "yes", "appendfsync": "always"},
)
def server_killed(lab: Lab) -> None:
    def harm() -> None:
        with lab.killed():
            time.sleep(0.7)

    _while_held(lab, "the server is down", harm, 3, 1.2)


@fault("restarted-empty", "server restarted empty", "keys were lost", redis=True, lossy=True)
def restarted_empty(lab: Lab) -> None:
    def harm() -> None:
        with lab.killed():
            pass

    _while_held(lab, "the server is down", harm, 8, 7)


@fault(
    "server-stopped",
    "server stopped past the lease",
    "a server that it used was stopped",
    redis=True,
)
def server_stopped(lab: Lab) -> None:
    harm = partial(lab.stop_server, LEASE + 0.8)
    _while_held(lab, "the server is stopped", harm, LEASE + 3, 1.5)


@fault(
    "clock-ahead", "server's clock a minute ahead", CLOCK_MOVED, redis=True, lossy=True, clock=True
)
def clock_ahead(lab: Lab) -> None:
    _while_held(lab, "the server's clock goes ahead", partial(lab.shift_clock, 60), 8, 7)


@fault(
    "clock-back", "server's clock 5 s back", CLOCK_MOVED, "b died inside", redis=True, clock=True
)
def clock_back(lab: Lab) -> None:
    """A lease that was granted before may last longer, by as much as the clock went back."""
    a, b, newcomer = _teams(lab)
    c = lab.team("c")
    _hold(a, 1)
    b.start("take", 12)
    c.start("turn", 25, 1)
    lab.shift_clock(-5)
    _leave(a)
    b.end()
    time.sleep(0.3)
    b.kill()
    _aftermath(lab, c, newcomer)


@fault("memory-full", "server's memory full", "its commands were rejected", redis=True, keeps=True)
def memory_full(lab: Lab) -> None:
    a, b, newcomer = _teams(lab)
    _hold(a, 1.0)
    _wait(b, 15)
    with lab.seat.harm("memory is full"), lab.full_memory():
        _leave(a)
        time.sleep(0.5)
    _aftermath(lab, b, newcomer)


@fault("script-flush", "SCRIPT FLUSH, again and again", SCRIPTS_FLUSHED, redis=True)
def scripts_flushed(lab: Lab) -> None:
    hands = Team(itertools.chain(*(lab.team(name) for name in "abc")))
    hands.start("storm", 2.5, 0.02)
    lab.flush_scripts(2.3)
    hands.end()
    if not lab.evidence[SCRIPTS_FLUSHED]:
        raise Unable("it calls no script by its digest")


@fault("flushall", "FLUSHALL", "keys were lost", redis=True, lossy=True)
def flushed(lab: Lab) -> None:
    _while_held(lab, "FLUSHALL", lab.flush_all, 8, 7)


@fault("failover", "failover that loses the grant", "it used both servers", redis=True, lossy=True)
def failover(lab: Lab) -> None:
    primary = lab.redis
    link = lab.way(primary)
    replica = lab.server(replicaof=[HOST, link.port])
    a, b, newcomer = _teams(lab, own_way=True)
    end = time.monotonic() + 20
    while lab.ask("INFO", "replication", server=replica)["master_link_status"] != "up":
        if time.monotonic() > end:
            raise RuntimeError("the replica is not in sync")
        time.sleep(0.05)
    link.silence()
    _hold(a, 8)
    _wait(b, 15, 7)
    with lab.seat.harm("failover"):
        calls = lab.calls()
        primary.kill()
        lab.ask("REPLICAOF", "NO", "ONE", server=replica)
        lab.ask("CONFIG", "RESETSTAT", server=replica)
        for hand in (*a, *b, newcomer):
            hand.ways[0].lead_to(HOST, replica.port)
    _leave(a)
    _aftermath(lab, b, newcomer)
    lab.prove("it used both servers", min(calls, lab.calls(server=replica)))


@fault("client-clock", "clients' clocks an hour off", "the clocks of workers were wrong")
def client_clocks(lab: Lab) -> None:
    a, newcomer = lab.team("a"), lab.hand("newcomer")
    ahead, behind = lab.team("ahead", off=3600), lab.team("behind", off=-3600)
    _hold(a, LEASE - 0.6)
    off = [float(said) - time.time() for said in (*ahead.do("clock"), *behind.do("clock"))]
    lab.prove("the clocks of workers were wrong", sum(abs(one) > 3000 for one in off))
    ahead.start("turn", 8, 0.3)
    behind.start("turn", 8, 0.3)
    _leave(a)
    ahead.end(9)
    behind.end(9)
    Team([*a, *ahead, *behind]).do("storm", 1.2, 0.05)
    newcomer.do("turn", 3, 0.1)
