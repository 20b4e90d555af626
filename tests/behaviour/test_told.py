"""Holders are notified of a lost lease before the next grant, by the clock of one machine."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from devtools.servers import HOST, RedisServer
from django_redis_sync import Lease, Lock
from django_redis_sync.engine import server as serving
from django_redis_sync.protocol.plans import Failure
from django_redis_sync.signals import lease_lost

from .both import both, eventually, until
from .proxy import Proxy, proxied
from .watching import Pulse, View

pytestmark = pytest.mark.promise(7)

#: Long socket timeouts, on which the notification must not depend.
PATIENT = {"SOCKET_TIMEOUT": 5, "SOCKET_CONNECT_TIMEOUT": 5}


class Path:
    """A private server, and a proxy in front of it for the holder."""

    def __init__(self, server: RedisServer, proxy: Proxy, alias: str) -> None:
        self.server, self.proxy, self.alias = server, proxy, alias

    def swallow(self) -> None:
        """Discard all requests from now on, and keep the connections open."""
        self.proxy.harm("swallow", "", times=100_000)


@pytest.fixture
def path(new_server: Any, alias: Any) -> Iterator[Callable[[], Path]]:
    with contextlib.ExitStack() as stack:

        def make() -> Path:
            server = new_server()
            proxy = stack.enter_context(proxied(HOST, server.port))
            return Path(server, proxy, alias(proxy.url, **PATIENT))

        yield make


class Notifications:
    """Times at which `on_lost` and the signal `lease_lost` were called."""

    def __init__(self, name: str | None = None) -> None:
        self.name, self.on_lost = name, list[float]()
        self.signal: list[float] = []
        self.pulse = Pulse()
        lease_lost.connect(self._signal)

    def lost(self, lease: Lease) -> None:
        assert not lease.held
        self.on_lost.append(time.monotonic())

    def _signal(self, lease: Lease, **_: Any) -> None:
        if self.name in (None, lease.name):
            self.signal.append(time.monotonic())

    @property
    def both(self) -> list[float]:
        return [*self.on_lost[:1], *self.signal[:1]]

    def before(self, granted: float) -> bool:
        """Return True if both were called before `granted`, apart from the delay with which the
        three threads involved wake up on this machine."""
        return bool(self.both) and max(self.both) < granted + 3 * self.pulse.most


def granted_to_another(path: Path, name: str) -> list[float]:
    """Return a list to which a thread appends the time at which the server's lease ends.

    The thread connects to the server directly."""
    when: list[float] = []

    def wait() -> None:
        with redis.Redis.from_url(path.server.url) as client:
            view = View(client, name)
            while view.holding:
                time.sleep(0.002)
            when.append(time.monotonic())

    threading.Thread(target=wait, daemon=True).start()
    return when


@both
async def test_loss_is_reported_before_the_next_grant_when_the_network_drops_all(
    io, path, alias
) -> None:
    async def is_notified(seconds: float, mine: Path, free: str) -> None:
        name = f"x-{seconds}"
        notified = Notifications(name)
        lock = Lock(name, timeout=seconds, renew=True, using=mine.alias, on_lost=notified.lost)
        held = await io.do(lock, "acquire")
        await io.sleep(seconds / 2)  # the lease is renewed at least once
        mine.swallow()
        waiting = io.start(io.do(Lock(name, using=free), "acquire", blocking_timeout=20))
        with notified.pulse:
            got = await io.result(waiting)
            granted = time.monotonic()
            assert got.fence > held.fence
            await until(io, lambda: len(notified.both) == 2)
        assert notified.before(granted)
        await io.do(got, "release")

    paths = [path(), path()]
    free = [alias(mine.server.url) for mine in paths]
    await io.gather(*(is_notified(*each) for each in zip((3.0, 4.5), paths, free, strict=True)))


def test_loss_is_reported_in_time_while_another_alias_hangs(path) -> None:
    mine, second, notified = path(), path(), Notifications()
    options = {"timeout": 3, "renew": True}
    kept = [Lock(f"kept-{n}", using=second.alias, **options).acquire() for n in range(20)]
    lease = Lock("x", using=mine.alias, on_lost=notified.lost, **options).acquire()
    assert lease and all(kept)
    time.sleep(1.2)
    second.swallow()
    mine.swallow()
    granted = granted_to_another(mine, "x")
    with notified.pulse:
        eventually(lambda: granted and notified.both, 20)
    assert notified.before(granted[0])
    eventually(lambda: len(notified.on_lost) + len(notified.signal) == 2 + len(kept))


def test_loss_is_reported_in_time_while_other_callbacks_are_slow(path) -> None:
    mine, notified = path(), Notifications()
    options = {"timeout": 3, "renew": True, "using": mine.alias}
    slow = [Lock(f"slow-{n}", on_lost=lambda _: time.sleep(2), **options).acquire() for n in "abc"]
    lease = Lock("x", on_lost=notified.lost, **options).acquire()
    assert lease and all(slow)
    mine.swallow()
    granted = granted_to_another(mine, "x")
    with notified.pulse:
        eventually(lambda: granted and notified.both, 20)
    assert notified.before(granted[0])


def test_cleared_lease_is_reported_within_a_third_of_its_duration(raw: redis.Redis) -> None:
    notified = Notifications()
    held = Lock("x", timeout=6, renew=True, on_lost=notified.lost).acquire()
    assert held
    View(raw, "x").clear()
    cleared = time.monotonic()
    eventually(lambda: len(notified.both) == 2)
    # A third is 2 s; half of it would be 3.
    assert max(notified.both) - cleared < 2.6


def test_on_lost_that_raises_system_exit_stops_no_other_callback(raw: redis.Redis) -> None:
    notified: list[str] = []

    def receive(error: BaseException | None) -> Callable[[Lease], None]:
        def on_lost(lease: Lease) -> None:
            notified.append(lease.name)
            if error is not None:
                raise error

        return on_lost

    ends = [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseException("any"), None]
    for number, error in enumerate(ends):
        name = f"n{number}"
        held = Lock(name, timeout=0.9, renew=True, on_lost=receive(error)).acquire()
        assert held
        View(raw, name).clear()
        eventually(lambda name=name: name in notified)
    assert len(ends) == len(notified)


def test_signal_receiver_that_raises_system_exit_stops_no_other_callback(raw: redis.Redis) -> None:
    notified: list[str] = []

    def end(lease: Lease, **_: Any) -> None:
        notified.append(lease.name)
        raise SystemExit

    lease_lost.connect(end)
    try:
        for name in ("a", "b"):
            heard: list[Any] = []
            held = Lock(name, timeout=0.9, renew=True, on_lost=heard.append).acquire()
            assert held
            View(raw, name).clear()
            eventually(lambda: heard == [held])  # noqa: B023 - called before the loop goes on
        assert notified == ["a", "b"]
    finally:
        lease_lost.disconnect(end)


def test_loss_is_reported_in_time_while_renewals_hang(path, monkeypatch) -> None:
    """Checks of local expiry don't wait for renewals."""
    mine, notified = path(), Notifications()
    lease = Lock("x", timeout=3, renew=True, using=mine.alias, on_lost=notified.lost).acquire()
    assert lease
    hangs = threading.Event()

    def many(self: Any, steps: Any) -> list[Failure]:
        hangs.wait(20)
        return [Failure(OSError("late"), 0.0, "unanswered")] * len(steps)

    monkeypatch.setattr(serving.Server, "many", many)
    granted = granted_to_another(mine, "x")
    with notified.pulse:
        eventually(lambda: granted and notified.both, 20)
    hangs.set()
    assert notified.before(granted[0])
