"""A holder that loses its lease is told before anybody else has it: by the order of events, as seen
from outside. Both ends read one machine's clock."""

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

#: As long as a project may have them: what is told in time must not depend on them.
PATIENT = {"SOCKET_TIMEOUT": 5, "SOCKET_CONNECT_TIMEOUT": 5}


class Path:
    """The way of one holder to a server of the test's own, which can be made to swallow all."""

    def __init__(self, server: RedisServer, proxy: Proxy, alias: str) -> None:
        self.server, self.proxy, self.alias = server, proxy, alias

    def swallow(self) -> None:
        """Whatever is sent over connections, old and new, is accepted and never answered."""
        self.proxy.harm("swallow", "", times=100_000)


@pytest.fixture
def path(new_server: Any, alias: Any) -> Iterator[Callable[[], Path]]:
    with contextlib.ExitStack() as stack:

        def make() -> Path:
            server = new_server()
            proxy = stack.enter_context(proxied(HOST, server.port))
            return Path(server, proxy, alias(proxy.url, **PATIENT))

        yield make


class Told:
    """When the holder was told, in both ways."""

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
        """Whether it was told by then: three threads wake for it, none of them sooner than this
        machine lets them."""
        return bool(self.both) and max(self.both) < granted + 3 * self.pulse.most


def granted_to_another(path: Path, name: str) -> list[float]:
    """When another client, whose way is free, gets the name: filled in by a thread."""
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
async def test_when_the_path_answers_nothing_it_is_told_before_another_has_it(
    io, path, alias
) -> None:
    async def is_told(seconds: float, mine: Path, free: str) -> None:
        name = f"x-{seconds}"
        told = Told(name)
        lock = Lock(name, timeout=seconds, renew=True, using=mine.alias, on_lost=told.lost)
        held = await io.do(lock, "acquire")
        await io.sleep(seconds / 2)  # it was renewed at least once
        mine.swallow()
        waiting = io.start(io.do(Lock(name, using=free), "acquire", blocking_timeout=20))
        with told.pulse:
            got = await io.result(waiting)
            granted = time.monotonic()
            assert got.fence > held.fence
            await until(io, lambda: len(told.both) == 2)
        assert told.before(granted)
        await io.do(got, "release")

    paths = [path(), path()]
    free = [alias(mine.server.url) for mine in paths]
    await io.gather(*(is_told(*one) for one in zip((3.0, 4.5), paths, free, strict=True)))


def test_another_alias_that_hangs_makes_nothing_late(path) -> None:
    mine, second, told = path(), path(), Told()
    options = {"timeout": 3, "renew": True}
    kept = [Lock(f"kept-{n}", using=second.alias, **options).acquire() for n in range(20)]
    lease = Lock("x", using=mine.alias, on_lost=told.lost, **options).acquire()
    assert lease and all(kept)
    time.sleep(1.2)
    second.swallow()
    mine.swallow()
    granted = granted_to_another(mine, "x")
    with told.pulse:
        eventually(lambda: granted and told.both, 20)
    assert told.before(granted[0])
    eventually(lambda: len(told.on_lost) + len(told.signal) == 2 + len(kept))


def test_a_receiver_that_takes_its_time_makes_no_other_late(path) -> None:
    mine, told = path(), Told()
    options = {"timeout": 3, "renew": True, "using": mine.alias}
    slow = [Lock(f"slow-{n}", on_lost=lambda _: time.sleep(2), **options).acquire() for n in "abc"]
    lease = Lock("x", on_lost=told.lost, **options).acquire()
    assert lease and all(slow)
    mine.swallow()
    granted = granted_to_another(mine, "x")
    with told.pulse:
        eventually(lambda: granted and told.both, 20)
    assert told.before(granted[0])


def test_what_the_server_took_away_is_told_within_a_third_of_the_lease(raw: redis.Redis) -> None:
    told = Told()
    held = Lock("x", timeout=6, renew=True, on_lost=told.lost).acquire()
    assert held
    View(raw, "x").clear()
    cleared = time.monotonic()
    eventually(lambda: len(told.both) == 2)
    # A third is 2 s; half of it would be 3.
    assert max(told.both) - cleared < 2.6


def test_a_receiver_that_ends_its_thread_ends_nothing_else(raw: redis.Redis) -> None:
    told: list[str] = []

    def receive(error: BaseException | None) -> Callable[[Lease], None]:
        def on_lost(lease: Lease) -> None:
            told.append(lease.name)
            if error is not None:
                raise error

        return on_lost

    ends = [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseException("any"), None]
    for number, error in enumerate(ends):
        name = f"n{number}"
        held = Lock(name, timeout=0.9, renew=True, on_lost=receive(error)).acquire()
        assert held
        View(raw, name).clear()
        eventually(lambda name=name: name in told)
    assert len(ends) == len(told)


def test_a_signals_receiver_that_ends_its_thread_ends_nothing_else(raw: redis.Redis) -> None:
    told: list[str] = []

    def end(lease: Lease, **_: Any) -> None:
        told.append(lease.name)
        raise SystemExit

    lease_lost.connect(end)
    try:
        for name in ("a", "b"):
            heard: list[Any] = []
            held = Lock(name, timeout=0.9, renew=True, on_lost=heard.append).acquire()
            assert held
            View(raw, name).clear()
            eventually(lambda: heard == [held])  # noqa: B023 - called before the loop goes on
        assert told == ["a", "b"]
    finally:
        lease_lost.disconnect(end)


def test_the_keeper_never_waits_for_what_renews(path, monkeypatch) -> None:
    """However long a renewal takes: the look at what is believed does not depend on it."""
    mine, told = path(), Told()
    lease = Lock("x", timeout=3, renew=True, using=mine.alias, on_lost=told.lost).acquire()
    assert lease
    hangs = threading.Event()

    def many(self: Any, steps: Any) -> list[Failure]:
        hangs.wait(20)
        return [Failure(OSError("late"), 0.0, "unanswered")] * len(steps)

    monkeypatch.setattr(serving.Server, "many", many)
    granted = granted_to_another(mine, "x")
    with told.pulse:
        eventually(lambda: granted and told.both, 20)
    hangs.set()
    assert told.before(granted[0])
