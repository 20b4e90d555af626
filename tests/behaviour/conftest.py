"""Private servers and cache aliases for tests that break servers."""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from devtools.servers import HOST, RedisServer
from django_redis_sync import Lock
from tests.conftest import forget_leases
from tests.support.backends import cache_of
from tests.support.journal import Journal, journalling

from .both import Sync, answered
from .proxy import Proxy, proxied
from .watching import Losses, View

_numbers = itertools.count(1)

#: Seconds that an `Impatient` lock waits for an answer of the server. The time limit of a whole
#: call is twice as long.
ATTEMPT = 0.8


@pytest.fixture
def nothing_sent(settings: Any) -> Iterator[None]:
    """Fail if the test opens a connection to the server of its cache alias."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        location = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        unasked = {**settings.CACHES["default"], "LOCATION": location}
        settings.CACHES = {**settings.CACHES, "unasked": unasked}
        settings.REDIS_SYNC = {**settings.REDIS_SYNC, "CACHE": "unasked"}
        yield
        assert ([], [], []) == select.select([listener], [], [], 0)


class Impatient(Lock):
    _attempt = ATTEMPT


@pytest.fixture
def alias(settings: Any) -> Iterator[Callable[..., str]]:
    """Return a function that adds a cache alias for a Redis URL or for a Sentinel or Cluster
    topology. Each alias has a new name, so that the renewal thread of an earlier test doesn't
    interfere."""
    names = []

    def add(place: Any, **options: Any) -> str:
        name, url = f"private-{next(_numbers)}", getattr(place, "url", place)
        cache = place.cache(**options) if hasattr(place, "cache") else cache_of(url, **options)
        settings.CACHES = {**settings.CACHES, name: {**settings.CACHES["default"], **cache}}
        names.append(name)
        return name

    yield add
    forget_leases(*names)


@pytest.fixture
def private(new_server: Callable[..., RedisServer]) -> RedisServer:
    """A server that only this test uses."""
    return new_server()


class Bench:
    """A private server, a proxy in front of it, and a cache alias that uses the proxy."""

    def __init__(self, server: RedisServer, proxy: Proxy, alias: str, client: redis.Redis) -> None:
        self.server, self.proxy, self.alias, self.client = server, proxy, alias, client
        Sync().run(answered(Sync(), self, "load_scripts"))

    def load_scripts(self) -> None:
        """Run each script once, so that the faults of a test hit no request that loads a script."""
        with self.lock("warm") as lease:
            lease.renew()

    def lock(self, name: str = "x", **options: Any) -> Lock:
        return Impatient(name, using=self.alias, **options)

    def view(self, name: str = "x") -> View:
        return View(self.client, name)


@pytest.fixture
def new_bench(new_server: Any, alias: Any) -> Iterator[Callable[..., Bench]]:
    """Return a function that makes a Bench. The function's keyword arguments are the OPTIONS of the
    cache alias."""
    with contextlib.ExitStack() as stack:

        def make(server: RedisServer | None = None, **options: Any) -> Bench:
            server = server or new_server()
            proxy = stack.enter_context(proxied(HOST, server.port))
            client = stack.enter_context(redis.Redis.from_url(server.url))
            return Bench(server, proxy, alias(proxy.url, **options), client)

        yield make


@pytest.fixture
def journal(private: RedisServer) -> Iterator[Journal]:
    """A journal, which records all library scripts that run on the private server. After the test,
    a checker verifies that the recorded runs follow the rules of the protocol."""
    with journalling(private.url) as journal:
        yield journal
        if private.pid and journal.drain():
            journal.check()


@pytest.fixture
def bench(journal: Journal, private: RedisServer, new_bench: Any) -> Bench:
    """A Bench of the private server, with a journal. The socket timeouts of its alias are short, so
    that a failed attempt to connect ends early."""
    return new_bench(private, SOCKET_TIMEOUT=ATTEMPT, SOCKET_CONNECT_TIMEOUT=ATTEMPT)


@pytest.fixture
def losses() -> Iterator[Losses]:
    with Losses() as losses:
        yield losses


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Return a function that records figures for the table of `python -m tests.faults.report`.

    `recover`: seconds until everything worked again, or until the holder was notified of a loss.
    `lost`: number of grants that were lost. `said`: any further note."""

    def note(recover: float | None = None, lost: int | None = None, said: str = "") -> None:
        for word, value in (("recover", recover), ("lost", lost), ("said", said)):
            if value not in (None, ""):
                record_property(word, f"{value:.2f}" if isinstance(value, float) else value)

    return note
