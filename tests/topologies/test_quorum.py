"""A lock on five independent servers, which is held if a majority grants it."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from devtools.servers import RedisServer
from devtools.topologies import Independent, client
from django_redis_sync import Lock, Unavailable
from tests.behaviour.both import Sync, answered, both, eventually, until, within
from tests.behaviour.conftest import ATTEMPT, Impatient
from tests.behaviour.watching import View
from tests.support import clock

from .conftest import start_servers
from .crowd import Crowd

pytestmark = pytest.mark.promise(17)

#: Time limit in seconds that is shorter than a lease of 30 s.
SOONER = 20
needs_shim = pytest.mark.skipif(bool(clock.reason()), reason=clock.reason())


class Five:
    """Five servers, and their cache aliases. `lock()` returns a quorum lock on all five."""

    def __init__(self, servers: list[RedisServer], aliases: list[str]) -> None:
        self.servers, self.aliases = servers, aliases

    def lock(self, name: str = "x", kind: Any = Lock, **options: Any) -> Lock:
        return kind(name, using=self.aliases, **options)

    def ends(self, name: str = "x") -> list[dict[str, float]]:
        """Return a dict for each running server: the expiry of each lease in ms, by token."""
        found = []
        for server in self.servers:
            if server.pid is not None:
                with client(server) as mine:
                    found.append(View(mine, name).leases)
        return found

    def holding(self, name: str = "x") -> list[int]:
        """Return the number of unexpired leases on each running server."""
        now = time.time() * 1000
        return [sum(end > now for end in leases.values()) for leases in self.ends(name)]

    @contextlib.contextmanager
    def hung(self, *numbers: int) -> Iterator[None]:
        """Pause the servers with these `numbers` (0 to 4) during the block."""
        for number in numbers:
            self.servers[number].pause()
        try:
            yield
        finally:
            for number in numbers:
                self.servers[number].resume()


@pytest.fixture(scope="module")
def running() -> Iterator[list[RedisServer]]:
    with start_servers(Independent, count=5) as started:
        yield started.servers


@pytest.fixture
def gather(alias: Any) -> Callable[..., Five]:
    patient = {"SOCKET_TIMEOUT": 5, "SOCKET_CONNECT_TIMEOUT": 5}
    return lambda servers: Five(servers, [alias(server, **patient) for server in servers])


@pytest.fixture
def five(running: list[RedisServer], gather: Any) -> Five:
    """Five running servers that tests share. A test must not break these servers."""
    five = gather(running)
    for server in running:
        with client(server) as mine:
            mine.flushdb()
    return five


@pytest.fixture
def own(start: Any, gather: Any) -> Five:
    """Five servers that only this test uses."""
    return gather(start(Independent, count=5).servers)


@both
async def test_quorum_lease_lasts_longer_only_if_it_is_renewed_or_extended(io, five) -> None:
    kept = await io.do(five.lock("kept", timeout=3, renew=True), "acquire")
    hard = await io.do(five.lock("hard", timeout=2), "acquire")
    async with io.entered(five.lock("period", min_hold=4.0)) as period:
        pass
    assert [1] * 5 == five.holding("period")
    assert await io.do(five.lock("period"), "acquire", False) is None
    assert hard.remaining <= 2
    again = await io.do(five.lock("period"), "acquire", blocking_timeout=SOONER)
    assert again.fence > period.fence
    assert kept.held and await io.do(kept, "owned")
    assert not hard.held
    assert await io.do(five.lock("hard"), "acquire", False)
    for method, seconds, most in (("extend", 200, 203), ("renew", 50, 50), ("renew", 20, 20)):
        await io.do(kept, method, seconds)
        assert seconds * 0.8 < kept.remaining <= most
        # Clocks may run at different rates, so the lease is longer on the server than locally.
        now, ends = time.time(), [*five.ends("kept")[0].values()]
        assert ends[0] / 1000 - now > kept.remaining * 1.01


def test_quorum_lock_is_granted_to_each_of_twenty_contenders(five) -> None:
    turns, inside = Counter[int](), list[int]()

    def contend(number: int) -> None:
        for _ in range(3):
            with five.lock("crowd") as lease:
                inside.append(number)
                assert len(inside) == 1 and lease.held
                inside.remove(number)
            turns[number] += 1

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(contend, range(20)))
    assert turns == dict.fromkeys(range(20), 3)
    eventually(lambda: five.holding("crowd") == [0] * 5, SOONER)


@both
async def test_quorum_works_when_two_of_five_servers_are_down_and_not_when_three_are(
    io, own
) -> None:
    before = await io.do(own.lock("before", timeout=6, renew=True), "acquire")
    for server in own.servers[:2]:
        server.kill()
    for _ in range(3):
        with within(3):
            async with io.entered(own.lock(kind=Impatient)) as lease:
                assert lease.held and await io.do(lease, "owned")
    await io.sleep(2)
    assert before.held
    own.servers[2].kill()
    after = own.lock("after", Impatient)
    with within(20 * ATTEMPT):
        with pytest.raises(Unavailable, match="of 5 servers"):
            await io.do(after, "acquire", False)
        with pytest.raises(Unavailable):
            await io.do(after, "acquire", blocking_timeout=0.5)
        with pytest.raises(Unavailable):
            await io.do(after, "locked")
    await until(io, lambda: own.holding("after") == [0, 0], SOONER)
    # The lease can't be renewed without a majority, so it is lost.
    await until(io, lambda: not before.held)
    for server in own.servers[:3]:
        server.restart()
    async with io.entered(after) as lease:
        assert lease.held


@both
async def test_quorum_works_with_two_hung_servers_and_not_with_three(io, own, losses) -> None:
    kept = await io.do(own.lock("kept", timeout=5, renew=True, on_lost=losses), "acquire")
    lock, took = own.lock(kind=Impatient), []
    with own.hung(0, 1):
        watch = within()
        while watch.seconds < 8:  # longer than the lease duration
            with within(5) as cycle:
                async with io.entered(lock) as lease:
                    assert lease.held
                    assert await io.do(own.lock(kind=Impatient), "acquire", False) is None
            took.append(cycle.seconds)
            await io.sleep(0.5)
        assert min(took) < 0.5
        assert kept.held and not losses.calls
    # The library undoes the requests that the hung servers executed late.
    await until(io, lambda: own.holding() == [0] * 5, SOONER)
    async with io.entered(lock) as lease:
        assert lease.held
    with own.hung(0, 1, 2):
        await until(io, lambda: losses.of(kept))
    # When the lease `kept` has expired on three servers, another client can get the lock. The loss
    # must be reported before then.
    ends = sorted(max(leases.values(), default=0) for leases in own.ends("kept"))
    assert losses.preceded(ends[2], kept)


def test_quorum_never_exceeds_the_limit_while_servers_stop_and_return(own) -> None:
    """At most two servers are down at a time. A server that lost its data must stay away for the
    longest lease duration (docs/redis-setup.md), so here it doesn't return at all."""
    with Crowd(own.aliases, ["a", "b"], 1, threads=4, tasks=4, lease=6) as crowd:
        eventually(lambda: all(len(crowd.grants[one]) > 5 for one in "ab"))
        for pair in ((0, 1), (2, 3)):
            with own.hung(*pair):
                time.sleep(1)
            time.sleep(0.5)
        own.servers[4].kill()
        paused = time.monotonic()
        eventually(lambda: len(crowd.since(paused)) == 2)
    assert (0, {}) == (crowd.over, crowd.errors), crowd.messages
    assert sum(map(len, crowd.grants.values())) > 20


@pytest.fixture
def shifting(start: Any, gather: Any, tmp_path: Any) -> tuple[Five, clock.Clock]:
    """Five servers, and the clock of the last one."""
    shim = clock.Clock(tmp_path)
    servers = start(Independent, count=4).servers
    return gather([*servers, start(RedisServer, environment=shim.environment)]), shim


def is_split(five: Five, name: str) -> bool:
    """Return True if two leases of `name` are each on two of the first four servers, whose clocks
    are correct. Each lease then has a majority only with the fifth server, whose clock jumped."""
    now, ends = time.time() * 1000, [end for some in five.ends(name)[:4] for end in some.items()]
    return [2, 2] == [*Counter(token for token, end in ends if end > now).values()]


class Jumped(Crowd):
    """A crowd that tolerates two leases if the server with the wrong clock granted both."""

    def __init__(self, five: Five) -> None:
        super().__init__(five.aliases, ["a", "b"], 1, threads=4, tasks=4, lease=6)
        self.five = five

    def excused(self, held: list[Any]) -> bool:
        return len(held) == 2 and is_split(self.five, held[0].name)


@needs_shim
@pytest.mark.parametrize("seconds", [60, -60], ids=["ahead", "behind"])
def test_quorum_stays_safe_when_the_clock_of_one_server_jumps(shifting, seconds: int) -> None:
    five, shim = shifting
    held = five.lock("held", timeout=50).acquire()
    with client(five.servers[4]) as mine, Jumped(five) as crowd:
        eventually(lambda: all(len(crowd.grants[one]) > 5 for one in "ab"))
        shim.shift(seconds)
        assert abs(mine.time()[0] - time.time() - seconds) < 5
        assert five.lock("held").acquire(blocking_timeout=0.5) is None
        assert held.held and held.owned()
        jumped = time.monotonic()
        eventually(lambda: all(len(g) > 20 for g in crowd.grants.values()), 60)
        shim.shift(0)
        eventually(lambda: len(crowd.since(jumped + 0.5)) == 2)
    assert crowd.over == 0
    # Each run moves the clock ahead once: by shift(60), or by shift(0) after shift(-60). This can
    # end one lease of each of the two names.
    assert set(crowd.errors) <= {"LeaseLost", "NotAcquired"}, crowd.messages
    assert sum(crowd.errors.values()) <= 2, crowd.messages
    held.release()


@needs_shim
def test_on_lost_is_called_when_a_clock_jump_ends_a_lease_of_a_bare_majority(
    shifting, losses
) -> None:
    five, shim = shifting

    def acquire(lock: Lock, *args: Any) -> Any:
        return Sync().run(answered(Sync(), lock, "acquire", *args))

    rivals = [Lock("x", using=alias).acquire() for alias in five.aliases[:2]]
    held = acquire(five.lock("x", timeout=18, renew=True, on_lost=losses))
    for rival in rivals:
        rival.release()
    assert five.holding("x") == [0, 0, 1, 1, 1]
    assert acquire(five.lock("x"), False) is None
    shim.shift(60)
    assert acquire(five.lock("x")) and is_split(five, "x")
    # The first renewal after the jump has to notice the loss. This renewal is due within a third of
    # the lease duration of 18 s.
    eventually(lambda: losses.of(held), 18 / 3 + 4)
    assert not held.held


def test_interrupted_thread_leaves_no_quorum_lease(five) -> None:
    first, ended = five.lock("interrupted").acquire(), list[Any]()

    def wait() -> None:
        try:
            five.lock("interrupted").acquire()
        except BaseException as error:
            ended.append(type(error))

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.3)
    for _ in range(20):  # repeat, because Python drops an exception that is raised in a destructor
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt)
        )
        thread.join(5)
        if not thread.is_alive():
            break
    assert [KeyboardInterrupt] == ended
    first.release()
    eventually(lambda: five.holding("interrupted") == [0] * 5, SOONER)
