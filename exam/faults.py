"""The faults: workers `a` hold the lock, workers `b` wait, and harm is done.

Each team has as many workers as the lock's limit. Harm to a server is done to one server, in a
quorum to the first of three. At the end, `_aftermath` checks that the lock still works: the waiters
get in, a newcomer has to wait while they are inside, and gets in after them.

A trial counts only if there is evidence that the harm reached the lock, in `Lab.evidence` or in the
history.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from .adapter import LEASE
from .checker import EARLY, ERROR, IN_VAIN, NO_REASON, REFUSED, Visit
from .lab import Hand, Lab, Team, Unable
from .servers import HOST

#: Number of waiters that are killed at the same time.
CROWD = 1000


@dataclass(frozen=True)
class Fault:
    """A fault. `evidence`: the evidence that is needed. `redis`: True if it harms a Redis server.
    `lossy`, `keeps`, `retried`: see `checker.check`. `unless`: kinds of findings ("": all) that
    count only against locks with a claim. `config`: of the server. `clock`: True if it moves the
    server's clock."""

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


def fault(name: str, title: str, *evidence: str, **more: Any) -> Callable[..., None]:
    """Add a function to the list of faults."""

    def add(put: Callable[[Lab], Any]) -> None:
        FAULTS[name] = Fault(title, put, evidence or (CONTENDED,), **more)

    return add


def evidence_of(visits: Sequence[Visit]) -> Counter[str]:
    """Return the evidence in a history."""
    seen: Counter[str] = Counter()
    for one in visits:
        role = one.who.rstrip("0123456789")
        until = min(one.left, one.told)
        lasted = (end - start for start, end in one.stops if one.entered <= start < until)
        seen["turns"] += one.entered < math.inf
        seen[CONTENDED] += any(
            other.entered < one.asked < min(other.left, other.told, other.gone)
            for other in visits
            if other.name == one.name
        )
        seen[f"{role} died"] += one.gone < min(until, one.gave_up, one.failed)
        seen[f"{role} died inside"] += one.entered <= one.gone < until
        seen[f"{role} died waiting"] += one.gone < min(one.entered, one.gave_up, one.failed)
        seen[f"{role} was stopped inside"] += any(LEASE < long < math.inf for long in lasted)
        seen[f"{role} failed"] += one.failed < math.inf
    return seen


# The beginning and the end of most faults


def _teams(lab: Lab, **options: Any) -> tuple[Team, Team, Hand]:
    """Return the team that will hold, the team that will wait, and a newcomer."""
    return lab.team("a", **options), lab.team("b", **options), lab.hand("newcomer", **options)


def _fill(lab: Lab, b: Team, name: str = "") -> None:
    """Take all permits at the same time, while there is no other caller."""
    if "time-up" in lab.lock.cannot:  # it would wait without end for a permit that was lost
        return
    time.sleep(0.1)
    for hand in b[: lab.limit]:
        hand.do("take", 1.5, name)
    for hand in b[: lab.limit]:
        hand.do("give")


def _take(a: Team) -> None:
    if set(a.do("take", 5)) != {"got"}:
        raise RuntimeError("it could not be taken when it was free")


def _hold(a: Team, seconds: float) -> None:
    """Let `a` acquire the lock and hold it for `seconds`."""
    _take(a)
    a.start("keep", seconds)


def _wait(b: Team, wait: float = 16, stay: float = 1.2) -> None:
    """Let `b` wait for up to `wait` seconds, and then hold the lock for `stay` seconds."""
    b.start("turn", wait, stay)
    time.sleep(0.4)


def _patience(lab: Lab) -> float:
    """Return the seconds after a lease within which waiters have to get in."""
    within = lab.lock.claims.within
    return IN_VAIN + 4 if within is None else within + 1.3


def _aftermath(lab: Lab, b: Team, newcomer: Hand) -> None:
    """Check that the waiters get in, and that a newcomer gets in after them."""
    end = time.monotonic() + LEASE + _patience(lab)
    for hand in b:
        lab.until_inside(hand.who, end - time.monotonic())
    newcomer.start("turn", 8.0, 0.1)
    newcomer.end(10)
    if "waits" not in b.end(3):
        _fill(lab, b)


def _storm(lab: Lab, names: str, seconds: float, hold: float) -> Team:
    """Let teams acquire and release the lock for `seconds`."""
    hands = Team(itertools.chain(*map(lab.team, names)))
    hands.start("storm", seconds, hold)
    return hands


def held(
    name: str, title: str, harm: Callable[[Lab, Team], Any], *evidence: str,
    hold: float, wait: float = 16, stay: float = 1.2, own_way: bool = False, **more: Any,
) -> None:  # fmt: skip
    """Add a fault where `harm` is done while `a` hold the lock for `hold` seconds, and `b` wait."""

    @fault(name, title, *evidence, **more)
    def put(lab: Lab) -> None:
        a, b, newcomer = lab.team("a", own_way=own_way), lab.team("b"), lab.hand("newcomer")
        _hold(a, hold)
        _wait(b, wait, stay)
        to_all = more.get("redis") and not own_way
        with lab.seat.harm(name) if to_all else contextlib.nullcontext():
            harm(lab, a)
        a.do("give")
        _aftermath(lab, b, newcomer)


# Without harm


@fault("line", "none: three wait in line")
def _(lab: Lab) -> None:
    a, *others = map(lab.team, "abcd")
    _hold(a, 1.6)
    for team in others:
        team.start("turn", 10, 0.5)
        time.sleep(0.5)
    a.do("give")
    for team in others:
        team.end(12)


@fault("storm", "none: many at once", "turns", CONTENDED)
def _(lab: Lab) -> None:
    _storm(lab, "abcd", 2.5, 0.03).end()


@fault("time-up", "none: the time to wait is over")
def _(lab: Lab) -> None:
    a, b, newcomer = _teams(lab)
    _hold(a, 1.9)
    b.do("take", 0.5)
    a.do("give")
    newcomer.do("turn", 9, 0.1)  # `b` gave up, and must not be in its way
    _fill(lab, b)


held("long-work", "works more than twice as long as its lease", lambda lab, a: None,
     hold=2.3 * LEASE, wait=12, stay=1.5)  # fmt: skip


@fault(
    "chaos",
    "kills, stops, cuts and lost replies by chance",
    "turns",
    "worker died",
    unless=dict.fromkeys((ERROR, EARLY, REFUSED, NO_REASON), "retries"),
)
def _(lab: Lab) -> None:
    """Let workers work for ten seconds, and harm one of them every few tenths of a second."""
    chance, born = random.Random(7), itertools.count()

    def new() -> Hand:
        hand = lab.hand(f"worker{next(born)}", own_way=True)
        hand.start("storm", 60, 0.15)
        return hand

    crew = [new() for _ in range(3 + lab.limit)]
    end = time.monotonic() + 10
    while time.monotonic() < end:
        time.sleep(chance.random() * 0.4)
        place = chance.randrange(len(crew))
        what = chance.choice(["kill", "kill", "stop", "cut", "lose"])
        if what == "kill":  # a holder, if possible
            last = next((one.who for one in reversed(lab.history()) if one.what == "enter"), "")
            place = next((n for n, hand in enumerate(crew) if hand.who == last), place)
            crew[place].kill()
            crew[place] = new()
        elif what == "stop":
            crew[place].stop()
            time.sleep(chance.choice([0.1, 0.1, LEASE + 0.7]))
            crew[place].resume()
        else:
            for way in crew[place].ways:
                way.cut() if what == "cut" else way.harm("lose")
    time.sleep(LEASE + 0.5)


# Holders


held("killed", "holder killed", lambda lab, a: a.kill(), "a died inside", hold=30)


@fault("one-killed", "one holder killed, others come and go", "a died inside")
def _(lab: Lab) -> None:
    """Grants and releases of others must not extend the lease of a dead holder."""
    a, b = Team([lab.hand("a")]), Team(lab.team("b") + lab.team("c"))
    _hold(a, 30)
    b.start("storm", LEASE + 2, 0.1)
    time.sleep(0.4)
    a.kill()
    b.end()
    _fill(lab, b)


@fault("stopped", "holder stopped past its lease", "a was stopped inside")
def _(lab: Lab) -> None:
    """Stop holders past their lease. They check their lease long after they run again, and must not
    renew it meanwhile."""
    a, b, newcomer = _teams(lab)
    _take(a)
    a.start("keep", 0.2, LEASE + 7.5)
    _wait(b, 12, LEASE)
    _stop(lab, a)
    newcomer.start("storm", 3.5, 0.05, 4)
    newcomer.end(9)
    a.do("give")
    b.end(3)


def _stop(lab: Lab, a: Team) -> None:
    """Stop holders until a waiter gets in, and for longer than a lease."""
    start = time.monotonic()
    a.stop()
    lab.until_inside("b", LEASE + 2)
    time.sleep(max(0.2, start + LEASE + 0.2 - time.monotonic()))
    a.resume()


def _fork_and_give(lab: Lab, a: Team) -> None:
    a.do("fork_and_give")
    a.do("keep", 0.8)


def _fork_and_die(lab: Lab, a: Team) -> None:
    a.do("fork_and_stay", 20)
    for hand in a:
        hand.kill_alone()


held("forked", "holder forks, the child leaves the block too", _fork_and_give,
     hold=0, wait=8, unless={"": "forks"})  # fmt: skip
held("fork-killed", "holder forks and is killed, the child lives", _fork_and_die, "a died inside",
     hold=0, unless={"": "forks"})  # fmt: skip


@fault("second-release", "released a second time")
def _(lab: Lab) -> None:
    a, b, newcomer = _teams(lab)
    _take(a)
    a.do("give")
    _hold(b, 1.4)
    a.do("again")
    newcomer.start("turn", 6, 0.1)
    b.do("give")
    newcomer.end(7)


@fault("late-release", "released after its lease", "a was stopped inside")
def _(lab: Lab) -> None:
    a, b, newcomer = _teams(lab)
    _hold(a, 0.5)
    _wait(b, 12, 1.6)
    _stop(lab, a)
    if "nothing" in a.do("give"):
        a.do("again")
    newcomer.start("turn", 6, 0.1)
    newcomer.end(7)
    b.end(3)


@fault("one-process", "two threads of one process")
def _(lab: Lab) -> None:
    a, newcomer = lab.team("a"), lab.hand("newcomer")
    a.start("in_one_process")
    lab.until_inside("a1, second thread", 4)
    newcomer.start("turn", 6, 0.1)
    a.end(15)
    newcomer.end(7)


# Waiters


@fault("waiter-killed", "first waiter killed", "head died waiting")
def _(lab: Lab) -> None:
    a, b, newcomer = _teams(lab)
    head = lab.team("head")
    _hold(a, 1.5)
    _wait(head, 20)
    _wait(b)
    head.kill()
    a.do("give")
    _aftermath(lab, b, newcomer)


@fault(
    "crowd-killed",
    f"{CROWD:,} waiters and the holder killed",
    "a died inside",
    "a crowd waited",
    "crowd died waiting",
)
def _(lab: Lab) -> None:
    a, b, newcomer = _teams(lab)
    crowd = lab.hand("crowd", warm=False)
    _hold(a, 60)
    with lab.seat.harm("the observer has only one of them", "crowd"):
        crowd.do("crowd", CROWD, 90)
        _settled(crowd.pid, 15)
        _wait(b, 30)
        size = crowd.do("crowded")  # no number if waiters that poll leave its process no time
        lab.evidence["a crowd waited"] += str(size).isdigit() and int(size) > 0.9 * CROWD
        crowd.kill()
        a.kill()
    _aftermath(lab, b, newcomer)


def _settled(pid: int, seconds: float) -> None:
    """Wait until no thread of a process runs or waits for a processor."""
    end, used = time.monotonic() + seconds, math.inf
    while time.monotonic() < end:
        time.sleep(0.5)
        before, used = used, 0.0
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                used += sum(map(int, (task / "schedstat").read_text().split()[:2])) / 1e9
        if 0 <= used - before < 0.15:
            return


@fault("signal", "waiter interrupted by signals, 40 times", "interrupted failed")
def _(lab: Lab) -> None:
    a, b, newcomer = _teams(lab)
    other = lab.hand("interrupted")
    a.start("storm", 1, 0.3)
    with lab.seat.harm("exceptions from signals", "interrupted"):
        other.do("alarmed", 20)
        a.end()
        time.sleep(LEASE)
        other.do("alarmed", 20)
    _wait(b)
    _aftermath(lab, b, newcomer)


@fault("no-thread", "no thread can be started", "a thread was refused")
def _(lab: Lab) -> None:
    a, b, newcomer = _teams(lab, warm=False)
    for hand in a:
        with lab.seat.harm("no thread can be started", hand.who):
            said = hand.do("threadless", 0.3)
            lab.evidence["a thread was refused"] += int(said.rpartition(" ")[2])
            if not said.startswith("got"):
                hand.do("take", LEASE + 3)
    if not lab.evidence["a thread was refused"]:
        raise Unable("it starts no thread")
    _wait(b)
    a.do("keep", 0.5)
    a.do("give")
    _aftermath(lab, b, newcomer)


@fault("loop-ended", "event loop closed in the middle", "a loop was closed")
def _(lab: Lab) -> None:
    if not lab.lock.is_async():
        raise Unable("it has no async version")
    a, b, newcomer = _teams(lab)
    lab.evidence["a loop was closed"] += all(one.startswith("ended") for one in a.do("loop_ended"))
    _wait(b)
    _aftermath(lab, b, newcomer)


# Messages


def _each_request(lab: Lab, harm: str, seconds: float, of_release: bool) -> None:
    """Harm each request of an acquire, or of a release, with a separate name for each request."""
    a, b, newcomer = lab.hand("a", own_way=True), lab.team("b"), lab.hand("newcomer")
    fillers = lab.team("filler")[1:]  # they hold the other permits
    way = a.ways[0]
    a.do("warm", "dry")
    before = way.requests
    a.do("take", 2, "dry")
    taken = way.requests
    a.do("give")
    requests = way.requests - taken if of_release else taken - before
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
        answered = time.monotonic()
        if said == "got":
            a.do("keep", 0.4)
            a.do("give")
        end = time.monotonic() + LEASE + _patience(lab)
        for hand in b:
            lab.until_inside(hand.who, end - time.monotonic(), name)
        newcomer.start("turn", 5, 0.1, name)
        newcomer.end(7)
        b.end(3)
        # A harmed acquire may leave a grant behind, for the time of a lease.
        time.sleep(max(0.0, answered + LEASE + 0.2 - time.monotonic()))
        _fill(lab, b, name)
        time.sleep(max(0.0, start + seconds + 0.5 - time.monotonic()))
    lab.evidence[harm] += way.done[harm]


for _name, _title, _harm, _seconds in (
    ("reply-lost", "acquire: each reply lost", "lose", 0),
    ("reply-late", "acquire: each reply later than the lease", "late", LEASE + 0.8),
    ("doubled", "acquire: each request arrives twice", "double", 0),
    ("release-lost", "release: each request lost", "drop", 0),
    ("release-unanswered", "release: each reply lost", "lose", 0),
    ("release-late", "release: each request comes after the lease", "hold", LEASE + 0.4),
    ("release-doubled", "release: each request comes again later", "double", 0.9),
):
    _keeps = _harm in ("lose", "drop", "double")
    _of_release = _name.startswith("release")
    fault(_name, _title, _harm, redis=True, keeps=_keeps, retried=_keeps)(
        partial(_each_request, harm=_harm, seconds=_seconds, of_release=_of_release)
    )


@fault("waiter-late", "waiter: each request comes after the release", "hold", redis=True)
def _(lab: Lab) -> None:
    """A release between two requests of a waiter must not go unnoticed."""
    a, b = lab.team("a"), lab.hand("b", own_way=True)
    for number in range(6):
        name = f"exam-{number}"
        b.do("warm", name)
        for hand in a:
            hand.do("take", 5, name)
        b.ways[0].harm("hold", number, 0.35)
        b.start("turn", 9, 0.1, name)
        time.sleep(0.2)
        a.do("give")
        b.end(11)
    lab.evidence["hold"] += b.ways[0].done["hold"]


def _silence(lab: Lab, a: Team) -> None:
    ways = [way for hand in a for way in hand.ways]
    with contextlib.ExitStack() as harms:
        for hand in a:
            harms.enter_context(lab.seat.harm("its path is silent", hand.who))
        for way in ways:
            way.silence()
        lab.until_inside("b", LEASE + 2.5)
        time.sleep(1)
        for way in ways:
            way.speak()
    lab.evidence["connections were silenced"] += sum(way.done["silence"] for way in ways)


held("silent", "holder's path is silent", _silence, "connections were silenced",
     hold=LEASE + 3.5, wait=12, stay=2, own_way=True, redis=True)  # fmt: skip


def _lose_renewal(lab: Lab, a: Team) -> None:
    if not lab.lock.claims.renewed:
        raise Unable("it does not claim to renew")
    ways = [hand.ways[0] for hand in a]
    for way in ways:
        way.harm("lose")
    time.sleep(LEASE)
    lab.evidence["lose"] += min(way.done["lose"] for way in ways)


held("renewal-lost", "renewal: one reply lost", _lose_renewal, "lose", hold=2.4 * LEASE,
     own_way=True, redis=True, keeps=True,
     unless=dict.fromkeys((ERROR, NO_REASON), "retries"))  # fmt: skip


# Servers


server = partial(held, redis=True, wait=15)
forgets = partial(server, hold=8, stay=7, lossy=True)

server("server-killed", "server killed, back with its data", lambda lab, a: lab.kill_server(0.7),
       "a server that it used was killed", hold=3,
       config={"appendonly": "yes", "appendfsync": "always"})  # fmt: skip
forgets("restarted-empty", "server restarted empty", lambda lab, a: lab.kill_server(),
        "keys were lost")  # fmt: skip
server("server-stopped", "server stopped past the lease",
       lambda lab, a: lab.stop_server(LEASE + 0.8), "a server that it used was stopped",
       hold=LEASE + 3, stay=1.5)  # fmt: skip
forgets("clock-ahead", "server's clock a minute ahead", lambda lab, a: lab.shift_clock(60),
        "the clock of a server that it used moved", clock=True)  # fmt: skip


@fault("clock-back", "server's clock 5 s back", "the clock of a server that it used moved",
       "b died inside", redis=True, clock=True)  # fmt: skip
def _(lab: Lab) -> None:
    """Move the clock back. A lease that was granted before may last longer by this time."""
    a, b, newcomer = _teams(lab)
    c = lab.team("c")
    _hold(a, 1)
    b.start("take", 12)
    c.start("turn", 25, 1)
    lab.shift_clock(-5)
    a.do("give")
    b.end()
    time.sleep(0.3)
    b.kill()
    _aftermath(lab, c, newcomer)


def _give_in_vain(lab: Lab, a: Team) -> None:
    with lab.full_memory():
        a.do("give")
        time.sleep(0.5)


server("memory-full", "server's memory full", _give_in_vain, "its commands were rejected",
       hold=1, keeps=True)  # fmt: skip


@fault("script-flush", "SCRIPT FLUSH, again and again", "scripts that it calls were flushed",
       redis=True)  # fmt: skip
def _(lab: Lab) -> None:
    """Flush scripts while workers take turns, and then while holders must renew their leases."""
    hands = _storm(lab, "abc", 2.5, 0.02)
    calls = lab.flush_scripts(2.3)
    hands.end()
    if lab.lock.claims.renewed:
        a, b, newcomer = Team(hands[: lab.limit]), Team(hands[lab.limit :][: lab.limit]), hands[-1]
        a.do("take", 5)
        a.start("keep", 2.3 * LEASE)
        _wait(b, 12)
        calls += lab.flush_scripts(2.3 * LEASE - 0.4)
        a.do("give")
        _aftermath(lab, b, newcomer)
    if not calls:
        raise Unable("it calls no script by its digest")


forgets("flushall", "FLUSHALL", lambda lab, a: lab.flush_all(), "keys were lost")


@fault("failover", "failover that loses the grant", "it used both servers", redis=True, lossy=True)
def _(lab: Lab) -> None:
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
    a.do("give")
    _aftermath(lab, b, newcomer)
    lab.evidence["it used both servers"] += min(calls, lab.calls(server=replica))


@fault("client-clock", "clients' clocks an hour off", "the clocks of workers were wrong")
def _(lab: Lab) -> None:
    a, newcomer = lab.team("a"), lab.hand("newcomer")
    ahead, behind = lab.team("ahead", off=3600), lab.team("behind", off=-3600)
    _hold(a, LEASE - 0.6)
    off = [float(said) - time.time() for said in (*ahead.do("clock"), *behind.do("clock"))]
    lab.evidence["the clocks of workers were wrong"] += all(abs(one) > 3000 for one in off)
    ahead.start("turn", 8, 0.3)
    behind.start("turn", 8, 0.3)
    a.do("give")
    ahead.end(9)
    behind.end(9)
    Team([*a, *ahead, *behind]).do("storm", 1.2, 0.05)
    newcomer.do("turn", 3, 0.1)
