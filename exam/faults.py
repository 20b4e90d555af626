"""What is done to a lock, one function each: `a` has it, `b` waits for it, and something happens.

What is done to a server is done to one: of a quorum, to the first of three. A function ends when
that is over and everybody had time to get in; the judge reads the witness' history then. Unable:
this fault can't be put to this lock.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from devtools.servers import HOST, RedisServer
from devtools.topologies import wait_for

from .adapter import LEASE
from .judge import EARLY, ERROR, NO_REASON, REFUSED
from .lab import Hand, Lab, Unable
from .proxy import Way

#: Waiters that are killed at once.
CROWD = 1000


@dataclass(frozen=True)
class Fault:
    """`lossy`: it takes away the lock's memory, so that two may be inside until one is told.
    `keeps`: it is no reason to lose a lease, nor for a release to fail; `retried`: nor for an
    acquire, of a lock that claims to retry.
    `unless`: findings (all: "") that are held against those only that make a claim.
    `limit`: of the lock; `config`: of the server; `clock`: the server's clock can be moved."""

    title: str
    put: Callable[[Lab], Any]
    lossy: bool = False
    keeps: bool = False
    retried: bool = False
    unless: dict[str, str] = field(default_factory=dict)
    limit: int = 1
    config: dict[str, Any] = field(default_factory=dict)
    clock: bool = False


def _pair(lab: Lab, **options: Any) -> tuple[Hand, Hand]:
    a, b = lab.hand("a", **options), lab.hand("b", **options)
    return a, b


def _held(a: Hand, keep: float) -> None:
    """`a` has it, and stays for so long."""
    if a.do("take", 5) != "got":
        raise RuntimeError("it could not be taken when it was free")
    a.start("keep", keep)


def _waited(b: Hand, wait: float = 12, hold: float = 0.2) -> None:
    b.start("turn", wait, hold)
    time.sleep(0.4)


# No fault at all


def line(lab: Lab) -> None:
    a, *others = lab.hands("a", "b", "c", "d")
    _held(a, 1.6)
    for hand in others:
        _waited(hand, 10)
        time.sleep(0.1)
    a.end()
    a.do("give")
    for hand in others:
        hand.end()


def storm(lab: Lab) -> None:
    for hand in [hand.start("storm", 2.5, 0.02) for hand in lab.hands("a", "b", "c", "d")]:
        hand.end()


def storm_of_many(lab: Lab) -> None:
    hands = lab.hands("a", "b", "c", "d", "e", "f")
    for hand in [hand.start("storm", 2.5, 0.05) for hand in hands]:
        hand.end()


def time_is_up(lab: Lab) -> None:
    a, b = _pair(lab)
    _held(a, 1.7)
    b.do("take", 1.0)
    a.end()
    a.do("give")


def long_work(lab: Lab) -> None:
    a, b = _pair(lab)
    _held(a, 2.3 * LEASE)
    _waited(b, 12, 2.2)
    a.end()
    a.do("give")
    b.end()


def chaos(lab: Lab) -> None:
    """Four at work for twelve seconds, and every few tenths of one something happens to one."""
    chance, born = random.Random(7), itertools.count()
    has_way = lab.entry.needs in ("redis", "quorum")

    def new() -> Hand:
        hand = lab.hand(f"worker-{next(born)}", own_way=has_way)
        return hand.start("storm", 60, 0.05)

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

    crew = [new() for _ in range(4)]
    end = time.monotonic() + 12
    while time.monotonic() < end:
        time.sleep(chance.random() * 0.4)
        place, what = chance.randrange(len(crew)), chance.choice([Hand.kill, stop, cut, lose])
        what(crew[place])
        if what is Hand.kill:
            crew[place] = new()
    time.sleep(LEASE)
    for hand in crew:
        hand.kill()


# Holders


def killed(lab: Lab) -> None:
    a, b = _pair(lab)
    _held(a, 30)
    _waited(b)
    a.kill()
    b.end()


def stopped(lab: Lab) -> None:
    a, b = _pair(lab)
    _held(a, LEASE + 3)
    _waited(b, 12, 3)
    a.stop()
    lab.until("enter", who="b", seconds=LEASE + 3)
    time.sleep(0.5)
    a.resume()
    a.end()
    a.do("give")
    b.end()


def forked_and_gave(lab: Lab) -> None:
    a, b = _pair(lab)
    a.do("take", 5)
    _waited(b, 8)
    a.do("fork_and_give")
    a.do("keep", 1.0)
    a.do("give")
    b.end()


def forked_and_killed(lab: Lab) -> None:
    a, b = _pair(lab)
    a.do("take", 5)
    a.do("fork_and_stay", 20)
    _waited(b)
    os.kill(a.pid, signal.SIGKILL)  # the child lives on
    b.end()


def second_release(lab: Lab) -> None:
    a, b = _pair(lab)
    c = lab.hand("c")
    a.do("take", 5)
    a.do("give")
    b.do("take", 5)
    b.start("keep", 1.5)
    a.do("again")
    c.do("take", 0.8)
    b.end()
    b.do("give")
    c.do("give")


def late_release(lab: Lab) -> None:
    a, b = _pair(lab)
    c = lab.hand("c")
    _held(a, 0.5)
    _waited(b, 12, 1.8)
    a.stop()
    lab.until("enter", who="b", seconds=LEASE + 3)
    c.start("turn", 8, 0.5)
    time.sleep(0.3)
    a.resume()
    a.end()
    if a.do("give") == "nothing":
        a.do("again")
    b.end()
    c.end()


# Waiters


def waiter_killed(lab: Lab) -> None:
    a, b = _pair(lab)
    head = lab.hand("head")
    _held(a, 1.5)
    head.start("take", 20)
    time.sleep(0.5)
    _waited(b, 12)
    head.kill()
    a.end()
    a.do("give")
    b.end()


def crowd_killed(lab: Lab) -> None:
    a, b = _pair(lab)
    crowd = lab.hand("crowd", warm=False)
    _held(a, 60)
    with lab.seat.trouble("a thousand, none of whom the witness knows", "crowd"):
        crowd.do("crowd", CROWD, 90)
        _settled(crowd.pid, 15)
        _waited(b, 30)
        crowd.kill()
        a.kill()
    b.end()


def _settled(pid: int, seconds: float) -> None:
    """Until a process has little to do, as when all of it waits; those that poll never have."""
    end, used = time.monotonic() + seconds, 0.0
    while time.monotonic() < end:
        time.sleep(0.5)
        before, used = used, _cpu(pid)
        if before and used - before < 0.15:
            return


def _cpu(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def alarmed(lab: Lab) -> None:
    a, b = _pair(lab)
    w = lab.hand("w")
    a.start("storm", 3, 0.05)
    with lab.seat.trouble("exceptions from signals", "w"):
        w.do("alarmed", 40)
    a.end()
    b.do("turn", 8)


def threadless(lab: Lab) -> None:
    a, b = _pair(lab, warm=False)
    with lab.seat.trouble("no thread can be started", "a"):
        said = a.do("threadless", 0.5)
    if said != "got":
        a.do("take", LEASE + 3)
    _waited(b, 12)
    a.do("keep", LEASE * 1.5)
    a.do("give")
    b.end()


def loop_ended(lab: Lab) -> None:
    if not lab.entry.asynchronous:
        raise Unable("it has no async face")
    a, b = _pair(lab)
    b.do("warm")
    took = a.do("loop_ended")
    b.do("turn", 12)
    if not took.startswith("ended"):
        raise RuntimeError(took)


# Messages


def _each_request(lab: Lab, what: str, seconds: float = 0.0) -> None:
    """To each request of an acquire, on a name of its own each."""
    _redis(lab)
    a, b = lab.hand("a", own_way=True), lab.hand("b")
    way = _way(a)
    before = way.requests
    a.do("take", 2, "dry")
    requests = way.requests - before
    a.do("give")
    for number in range(min(requests, 8)):
        name = f"exam-{number}"
        with lab.seat.trouble(what, "a"):
            way.harm(what, number, seconds)
            a.start("take", 4 + seconds, name)
            if what == "late":
                time.sleep(0.3)
                b.start("turn", 8, seconds, name)
            said = a.end()
        if what != "late":
            b.start("turn", LEASE + 4, 0.1, name)
        if said == "got":
            a.do("keep", 0.5)
            a.do("give")
        b.end()


def _way(hand: Hand) -> Way:
    if hand.way is None:
        raise Unable("it uses no Redis")
    return hand.way


def reply_lost(lab: Lab) -> None:
    _each_request(lab, "lose")


def reply_late(lab: Lab) -> None:
    _each_request(lab, "late", LEASE + 0.8)


def doubled(lab: Lab) -> None:
    _each_request(lab, "double")


def silent(lab: Lab) -> None:
    _redis(lab)
    a, b = lab.hand("a", own_way=True), lab.hand("b")
    _held(a, LEASE + 4)
    _waited(b, 12, 2)
    with lab.seat.trouble("its path is silent", "a"):
        for way in a.ways:
            way.silence()
        lab.until("enter", who="b", seconds=LEASE + 3)
        time.sleep(1)
        for way in a.ways:
            way.speak()
    a.end()
    a.do("give")
    b.end()


# Servers


def _redis(lab: Lab) -> RedisServer:
    return lab.redis


def server_killed(lab: Lab) -> None:
    server = _redis(lab)
    a, b = _pair(lab)
    _held(a, 3.5)
    _waited(b, 15)
    with lab.seat.trouble("the server is down"):
        server.kill()
        time.sleep(0.7)
        server.restart()
    a.end()
    a.do("give")
    b.end()


def restarted_empty(lab: Lab) -> None:
    server = _redis(lab)
    a, b = _pair(lab)
    _held(a, 6)
    _waited(b, 15, 5)
    with lab.seat.trouble("the server is down"):
        server.kill()
        server.restart()
    a.end()
    a.do("give")
    b.end()


def server_stopped(lab: Lab) -> None:
    server = _redis(lab)
    a, b = _pair(lab)
    _held(a, LEASE + 3.5)
    _waited(b, 15, 1.5)
    with lab.seat.trouble("the server is stopped"):
        server.pause()
        time.sleep(LEASE + 0.8)
        server.resume()
    a.end()
    a.do("give")
    b.end()


def clock_ahead(lab: Lab) -> None:
    _redis(lab)
    a, b = _pair(lab)
    _held(a, 5)
    _waited(b, 12, 3)
    with lab.seat.trouble("the server's clock goes ahead"):
        lab.clocks[0].shift(60)
    a.end()
    a.do("give")
    b.end()


def clock_back(lab: Lab) -> None:
    _redis(lab)
    a, b = _pair(lab)
    _held(a, 30)
    _waited(b)
    lab.clocks[0].shift(-60)
    a.kill()
    b.end()


def memory_full(lab: Lab) -> None:
    _redis(lab)
    a, b = _pair(lab)
    _held(a, LEASE + 1.5)
    _waited(b, 15)
    with lab.seat.trouble("memory is full"):
        lab.ask("CONFIG", "SET", "maxmemory", "1")
        a.end()
        a.do("give")
        time.sleep(0.7)
        lab.ask("CONFIG", "SET", "maxmemory", "0")
    b.end()


def scripts_flushed(lab: Lab) -> None:
    _redis(lab)
    hands = [hand.start("storm", 2.5, 0.02) for hand in lab.hands("a", "b", "c")]
    end = time.monotonic() + 2.3
    while time.monotonic() < end:
        for server in lab.servers:
            lab.ask("SCRIPT", "FLUSH", server=server)
        time.sleep(0.03)
    for hand in hands:
        hand.end()


def flushed(lab: Lab) -> None:
    _redis(lab)
    a, b = _pair(lab)
    _held(a, 5)
    _waited(b, 12, 3)
    with lab.seat.trouble("FLUSHALL"):
        lab.ask("FLUSHALL")
    a.end()
    a.do("give")
    b.end()


def failover(lab: Lab) -> None:
    primary = _redis(lab)
    link = lab.way(primary)
    replica = lab.server(replicaof=[HOST, str(link.port)])
    a, b = lab.hand("a", own_way=True), lab.hand("b", own_way=True)
    wait_for(lambda: _is_copied(lab, replica), "a replica")
    link.silence()
    _held(a, 6)
    _waited(b, 15, 3)
    with lab.seat.trouble("failover"):
        primary.kill()
        lab.ask("REPLICAOF", "NO", "ONE", server=replica)
        for hand in (a, b):
            _way(hand).lead_to(HOST, replica.port or 0)
    a.end()
    a.do("give")
    b.end()


def _is_copied(lab: Lab, replica: RedisServer) -> bool:
    return bool(lab.ask("INFO", "replication", server=replica)["master_link_status"] == "up")


def client_clocks(lab: Lab) -> None:
    a = lab.hand("a")
    ahead, behind = lab.hand("ahead", off=3600), lab.hand("behind", off=-3600)
    _held(a, LEASE - 0.6)
    for hand in (ahead, behind):
        hand.start("turn", 8, 0.3)
    a.end()
    a.do("give")
    for hand in (ahead, behind):
        hand.end()
    for hand in [hand.start("storm", 1.5, 0.05) for hand in (a, ahead, behind)]:
        hand.end()


FAULTS: dict[str, Fault] = {
    "line": Fault("nothing: three stand in line", line),
    "storm": Fault("nothing: four at once", storm),
    "storm-3": Fault("nothing: six at a limit of three", storm_of_many, limit=3),
    "chaos": Fault(
        "kills, stops, cuts and lost replies by chance",
        chaos,
        unless=dict.fromkeys((ERROR, EARLY, REFUSED, NO_REASON), "retries"),
    ),
    "time-up": Fault("nothing: the time to wait is over", time_is_up),
    "long-work": Fault("works more than twice as long as its lease", long_work),
    "killed": Fault("holder killed", killed),
    "stopped": Fault("holder stopped past its lease", stopped),
    "forked": Fault(
        "holder forks, the child leaves the block too", forked_and_gave, unless={"": "forks"}
    ),
    "fork-killed": Fault(
        "holder forks and is killed, the child lives", forked_and_killed, unless={"": "forks"}
    ),
    "second-release": Fault("released a second time", second_release),
    "late-release": Fault("released after its lease ended", late_release),
    "waiter-killed": Fault("waiter killed at the head", waiter_killed),
    "crowd-killed": Fault(f"{CROWD:,} waiters and the holder killed", crowd_killed),
    "signal": Fault("waiter thrown out by signals, 40 times", alarmed),
    "no-thread": Fault("no thread can be started", threadless),
    "loop-ended": Fault("event loop closed in the middle", loop_ended),
    "reply-lost": Fault(
        "reply lost, of each request of an acquire", reply_lost, keeps=True, retried=True
    ),
    "reply-late": Fault("reply later than the lease", reply_late),
    "doubled": Fault("request arrives twice", doubled, keeps=True, retried=True),
    "silent": Fault("holder's path is silent", silent),
    "server-killed": Fault(
        "server killed, back with its data",
        server_killed,
        config={"appendonly": True, "appendfsync": "always"},
    ),
    "restarted-empty": Fault("server restarted empty", restarted_empty, lossy=True),
    "server-stopped": Fault("server stopped past the lease", server_stopped),
    "clock-ahead": Fault("server's clock a minute ahead", clock_ahead, lossy=True, clock=True),
    "clock-back": Fault("server's clock a minute back, holder killed", clock_back, clock=True),
    "memory-full": Fault("server's memory full", memory_full, keeps=True),
    "script-flush": Fault("SCRIPT FLUSH, again and again", scripts_flushed),
    "flushall": Fault("FLUSHALL", flushed, lossy=True),
    "failover": Fault("failover that loses the grant", failover, lossy=True),
    "client-clock": Fault("clients' clocks an hour off", client_clocks),
}
