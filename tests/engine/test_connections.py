"""Connections of the project's pool: errors, lost and cached connections, and waiters."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from django.core.cache import caches
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured

from django_redis_sync import Lock, Unavailable
from django_redis_sync.exceptions import ForeignValue
from django_redis_sync.protocol import steps
from tests.behaviour.both import MAX_WAIT, both, eventually
from tests.behaviour.watching import View
from tests.support.backends import pool_of
from tests.support.interrupting import Interrupted
from tests.support.operators import failed
from tests.support.relays import CUT, SILENCE, Impatient, Relay

# Errors


@pytest.mark.parametrize(
    "reply",
    [
        "-LOADING Redis is loading the dataset in memory",
        "-BUSY Redis is busy running a script",
        "-READONLY You can't write against a read only replica.",
        "-TRYAGAIN Multiple keys request during rehashing of slot",
        "-CLUSTERDOWN Hash slot not served",
        "-MASTERDOWN Link with MASTER is down",
        "-UNBLOCKED force unblock",
        "-ERR max number of clients reached",
    ],
    ids=lambda reply: reply.split()[0],
)
@both
async def test_call_is_repeated_after_a_temporary_error(io, relay: Relay, reply: str) -> None:
    relay.answer("acquire", reply, times=1)
    lease = await io.do(Lock("x", using=relay.alias), "acquire", False)
    assert lease and lease.held
    assert 2 <= len(relay.verbs("acquire")) <= 3  # 3 if the script was not yet loaded


@pytest.mark.parametrize(
    ("reply", "error", "text"),
    [
        ("-WRONGTYPE Operation", ForeignValue, r"one of \S+:leases, \S+:queue, .*WRONGTYPE"),
        ("-OOM command not allowed", Unavailable, "^Redis: .*OOM|not allowed"),
        ("-NOPERM this user has no permissions", Unavailable, "least ACL"),
        ("-WRONGPASS invalid username-password pair", Unavailable, "invalid username"),
        ("-NOAUTH Authentication required.", Unavailable, "Authentication required"),
        ("-ERR DB index is out of range", Unavailable, "DB index"),
    ],
    ids=lambda value: str(value).split()[0],
)
@both
async def test_call_is_not_repeated_after_a_permanent_error(
    io, relay: Relay, reply: str, error: type[Exception], text: str
) -> None:
    relay.answer("acquire", reply)
    with pytest.raises(error, match=text):
        await io.do(Lock("x", using=relay.alias), "acquire")
    assert 1 == len(relay.verbs("acquire"))


@pytest.mark.promise(13)
@pytest.mark.parametrize(
    ("reply", "maybe"), [("down", False), ("-LOADING soon", False), (CUT, True), (SILENCE, True)]
)
@both
async def test_unavailable_error_shows_if_the_call_may_have_been_executed(
    io, relay: Relay, monkeypatch: pytest.MonkeyPatch, reply: Any, maybe: bool
) -> None:
    if reply == "down":
        relay.down()
    relay.answer("acquire", reply)
    # No try of the first two replies is shortened, because then it might not be answered in time.
    monkeypatch.setattr(steps, "BACKOFF", (0.0, 60.0))
    with pytest.raises(Unavailable) as caught:
        await io.do((Impatient if maybe else Lock)("x", using=relay.alias), "acquire", False)
    assert maybe == caught.value.maybe_executed
    assert str(caught.value).startswith("Redis: ")


def test_async_acquire_raises_an_error_if_a_connection_option_is_sync_only(relays: Any) -> None:
    (relay,) = relays(CONNECTION_POOL_KWARGS={"connection_class": redis.Connection})
    with pytest.raises(ImproperlyConfigured, match=r"include connection_class, .*ASYNC_CLIENT"):
        asyncio.run(Lock("x", using=relay.alias).aacquire())


@both
async def test_connections_ask_the_credential_provider_of_the_cache(io, relays: Any) -> None:
    """As with the managed Redis of cloud providers, whose passwords expire."""
    asked = []

    class Provider(redis.CredentialProvider):
        def get_credentials(self) -> tuple[str, str]:
            asked.append(True)
            return "default", "any password, because this user has none"

        async def get_credentials_async(self) -> tuple[str, str]:
            return self.get_credentials()

    (relay,) = relays(CONNECTION_POOL_KWARGS={"credential_provider": Provider()})
    async with io.entered(Lock("x", using=relay.alias)) as lease:
        assert lease.held and asked


class FailingProvider(redis.CredentialProvider):
    """Raises KeyError while `fails` is true."""

    fails = True

    def get_credentials(self) -> tuple[str, str]:
        if self.fails:
            raise KeyError("AWS_REGION")
        return "default", "any password, because this user has none"

    async def get_credentials_async(self) -> tuple[str, str]:
        return self.get_credentials()


@both
async def test_exception_of_the_credential_provider_reaches_the_caller(io, relays: Any) -> None:
    """It is no outage of Redis, so nothing is tried again. The next call finds no connection whose
    setup has begun, on which no database is selected."""

    provider = FailingProvider()
    _, relay = relays(2, CONNECTION_POOL_KWARGS={"credential_provider": provider})
    locks = [Lock(name, using=relay.alias) for name in "xy"]
    for lock in locks:
        with pytest.raises(KeyError, match="AWS_REGION"):
            await io.do(lock, "acquire")
    provider.fails = False
    async with io.entered(locks[0]):
        assert 1 == relay.view("x").holding, "it is in another database"


@pytest.mark.parametrize("count", [1, 3])
def test_exception_of_the_credential_provider_is_not_logged_by_asyncio(
    count: int, relays: Any, caplog: pytest.LogCaptureFixture
) -> None:
    found = relays(count, CONNECTION_POOL_KWARGS={"credential_provider": FailingProvider()})
    aliases = [relay.alias for relay in found]
    lock = Lock("x", using=aliases if 1 < count else aliases[0], blocking_timeout=0.1)
    with pytest.raises(KeyError):
        asyncio.run(lock.aacquire())
    gc.collect()
    logged = [one.getMessage() for one in caplog.records if one.name == "asyncio"]
    assert [] == logged, "asyncio logs the exception that the caller got"


def test_async_call_raises_the_error_of_an_option_that_its_connections_lack(relays: Any) -> None:
    (relay,) = relays(CONNECTION_POOL_KWARGS={"command_packer": None})
    with pytest.raises(TypeError, match="command_packer"):
        asyncio.run(Lock("x", using=relay.alias).aacquire())


#: A second source of the password.
TWICE = {"credential_provider": redis.UsernamePasswordCredentialProvider("me", "secret")}


@pytest.fixture
def wrong_cache(settings: Any) -> Iterator[Callable[..., None]]:
    """Define the cache `wrong`, of which no client can be made, and let locks be there."""

    def define(location: str, options: dict[str, Any]) -> None:
        cache = {**settings.CACHES["default"], "LOCATION": location, "OPTIONS": options}
        settings.CACHES = {**settings.CACHES, "wrong": cache}
        settings.REDIS_SYNC = {**settings.REDIS_SYNC, "CACHE": "wrong"}

    yield define
    # django-redis 6 makes a client to close a cache, so the next change of CACHES would fail.
    with contextlib.suppress(AttributeError):
        del caches["wrong"]


@pytest.mark.promise(29)
@pytest.mark.parametrize(
    ("location", "options", "cause"),
    [
        ("127.0.0.1:6379", {}, "ValueError"),
        ("redis://:a#secret@h:6379/1", {}, "ValueError"),
        ("redis://h/1?foo=1", {}, "unexpected keyword argument 'foo'"),
        ("redis://h/1", {"CONNECTION_POOL_CLASS": "nowhere.Pool"}, "No module named 'nowhere'"),
        ("", {}, "Missing connections string"),
        ("rediss://h/1?ssl_cert_reqs=bogus", {}, "Invalid SSL Certificate Requirements Flag"),
        ("redis://:secret@h/1", {"CONNECTION_POOL_KWARGS": TWICE}, "'credential_provider'"),
    ],
)
def test_settings_from_which_no_client_can_be_made_are_named(
    location: str, options: dict[str, Any], cause: str, wrong_cache: Any
) -> None:
    wrong_cache(location, options)
    with pytest.raises(ImproperlyConfigured) as caught:
        Lock("x").acquire()
    code, line = failed("status")
    (found,) = [one.msg for one in run_checks() if one.id == "redis_sync.E004"]
    assert 1 == code, "the command fails with one line, not with a traceback"
    for text in (str(caught.value), line, found):
        assert "'wrong'" in text and cause in text and "LOCATION or OPTIONS in CACHES" in text
        assert "secret" not in text, "no message contains a part of the password"


class SoftTimeLimit(Exception):
    """As the exception that Celery's signal handler raises, wherever the code is at that time."""


class InterruptedPool(redis.BlockingConnectionPool):
    def __init__(self, **options: Any) -> None:
        raise SoftTimeLimit


def test_exception_of_a_signal_handler_is_not_taken_for_a_wrong_setting(wrong_cache: Any) -> None:
    # django-redis makes one pool for each location.
    options = {"CONNECTION_POOL_CLASS": f"{__name__}.InterruptedPool"}
    wrong_cache("redis://interrupted/1", options)
    with pytest.raises(SoftTimeLimit):
        Lock("x").acquire()


class PoolWithoutServer(redis.BlockingConnectionPool):
    """Asks the server before it is used, as a pool of a project may."""

    def __init__(self, **options: Any) -> None:
        raise redis.ConnectionError("nobody listens")


def test_error_of_a_server_is_not_taken_for_a_wrong_setting(wrong_cache: Any) -> None:
    options = {"CONNECTION_POOL_CLASS": f"{__name__}.PoolWithoutServer"}
    wrong_cache("redis://unanswered/1", options)
    with pytest.raises(redis.ConnectionError, match="nobody listens"):
        Lock("x").acquire()


# Connections that are cached, lost, and returned


@pytest.mark.parametrize(
    ("reply", "connections"),
    [("-WRONGTYPE no", 1), ("-LOADING soon", 2), (SILENCE, 2), (CUT, 2)],
    ids=str,
)
@both
async def test_connection_is_used_again_only_if_its_reply_was_read(
    io, relay: Relay, reply: Any, connections: int
) -> None:
    lock = (Impatient if reply == SILENCE else Lock)("x", using=relay.alias)
    await io.do(await io.do(lock, "acquire"), "release")
    relay.received.clear()
    relay.answer("acquire", reply, times=1)
    for _ in range(3):
        with contextlib.suppress(ForeignValue):
            await io.do(await io.do(lock, "acquire"), "release")
    assert connections == relay.connections_of("acquire")


@pytest.mark.parametrize("idle", [0.0, 1.1], ids=["fresh", "idle"])
@both
async def test_call_works_after_the_server_closed_idle_connections(
    io, relay: Relay, idle: float
) -> None:
    lock = Lock("x", using=relay.alias)
    async with io.entered(lock):
        await io.do(lock, "status")
    relay.cut()
    await io.sleep(idle)
    async with io.entered(lock):
        assert 1 == (await io.do(lock, "status")).holding
        relay.cut()
        await io.sleep(idle)


#: Timeouts of the project's pool, in seconds. The library does not use a pool without timeouts.
#: Before redis-py 8, a pool has no timeouts by default.
TIMEOUTS = {"socket_timeout": 4, "socket_connect_timeout": 4}


def free_connections(alias: str) -> int:
    """Return the number of connections that other code can still get from the project's pool."""
    pool, taken = pool_of(alias), []
    with pytest.raises(redis.ConnectionError, match="Too many connections"):
        while True:
            taken.append(pool.get_connection())
    for connection in taken:
        pool.release(connection)
    return len(taken)


def use_ten_connections(relay: Relay) -> None:
    """Use ten connections, by an acquire in each of ten threads at the same time."""
    Lock("warm", using=relay.alias).acquire().release()
    together = threading.Barrier(10)
    relay.answer("acquire", lambda _, forward: together.wait(MAX_WAIT) >= 0 and forward())

    def cycle(n: int) -> None:
        Lock(f"x{n}", using=relay.alias).acquire().release()

    with ThreadPoolExecutor(10) as threads:
        list(threads.map(cycle, range(10)))
    relay.calm()


@pytest.mark.parametrize(("most", "kept"), [(160, 8), (64, 4), (16, 1), (15, 0)])
def test_library_caches_at_most_8_connections_and_at_most_a_16th_of_the_pool(
    most: int, kept: int, relays: Any
) -> None:
    (relay,) = relays(CONNECTION_POOL_KWARGS={**TIMEOUTS, "max_connections": most})
    use_ten_connections(relay)
    assert most - kept == free_connections(relay.alias)


def test_unused_cached_connections_return_to_the_pool_after_1_s(relays: Any, settings: Any) -> None:
    (relay,) = relays(CONNECTION_POOL_KWARGS={**TIMEOUTS, "max_connections": 64})
    use_ten_connections(relay)
    time.sleep(1.1)
    Lock("x", using=relay.alias).acquire().release()
    assert 63 == free_connections(relay.alias)
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "TIMEOUT": 20}
    assert 64 == free_connections(relay.alias)


class Strict(redis.Connection):
    """A project's connection class that rejects the arguments of newer versions of redis-py."""

    def __init__(self, **given: Any) -> None:
        if "driver_info" in given:
            raise TypeError("unexpected argument driver_info")
        super().__init__(**given)

    def read_response(self, disable_decoding: bool = False) -> Any:
        return super().read_response(disable_decoding)


def test_connection_class_of_the_project_gets_only_arguments_that_it_accepts(relays: Any) -> None:
    (relay,) = relays(CONNECTION_POOL_KWARGS={"connection_class": Strict})
    lease = Lock("x", using=relay.alias).acquire()
    for delay, message in ((100, "*-1"), (600, SILENCE)):
        relay.answer("acquire", ["wait", "0", delay, 0], times=1)
        relay.answer("blpop", message, times=1)
    with ThreadPoolExecutor(1) as thread:
        waiter = thread.submit(Lock("x", using=relay.alias).acquire, True, MAX_WAIT)
        eventually(lambda: 2 == len(relay.verbs("blpop")))
        lease.release()
        waiter.result(MAX_WAIT).release()


# Waiters


@pytest.mark.parametrize(
    ("socket_timeout", "delay", "asked"),
    [(5.0, 300, "0.300"), (5.0, 20_000, "4.000"), (1.0, 20_000, "0.500")],
)
def test_blpop_of_a_waiter_blocks_for_less_than_the_socket_timeout(
    relays: Any, socket_timeout: float, delay: int, asked: str
) -> None:
    (relay,) = relays(SOCKET_TIMEOUT=socket_timeout)
    lease = Lock("x", using=relay.alias).acquire()
    relay.answer("acquire", ["wait", "0", delay, 0], times=1)
    relay.answer("blpop", "*-1", times=1)
    with ThreadPoolExecutor(1) as thread:
        waiter = thread.submit(Lock("x", using=relay.alias).acquire, True, MAX_WAIT)
        eventually(lambda: relay.verbs("blpop"))
        lease.release()
        waiter.result(MAX_WAIT).release()
    assert asked == next(one for one in relay.received if one.verb == "blpop")[-1]


def test_number_of_connections_that_waiters_use_is_limited(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_redis_sync.engine.pools.MAX_WAITING", 1)
    lease = Lock("x", using=relay.alias).acquire()

    def wait_and_release(_: int) -> None:
        Lock("x", using=relay.alias).acquire(blocking_timeout=MAX_WAIT).release()

    with ThreadPoolExecutor(3) as threads:
        waiters = [threads.submit(wait_and_release, n) for n in range(3)]
        eventually(lambda: relay.view().waiting == 3 and relay.verbs("blpop"))
        time.sleep(0.2)
        assert 1 == sum(one["cmd"] == "blpop" for one in relay.raw.client_list())
        lease.release()
        for waiter in waiters:
            waiter.result(MAX_WAIT)


@pytest.mark.promise(6)
@pytest.mark.parametrize("error", [Interrupted, TimeoutError, ConnectionResetError])
def test_interrupted_waiter_leaves_the_queue(relay: Relay, error: Any) -> None:
    """While the waiter reads from Redis, a signal handler raises an exception, as Ctrl-C does. A
    TimeoutError is what many handlers of SIGALRM raise, and a socket raises it, too."""

    def interrupt(*_: Any) -> None:
        raise error

    def answer(command: Any, forward: Any) -> str:
        time.sleep(0.2)  # meanwhile the waiter begins to read
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        return SILENCE

    first, before = Lock("x", using=relay.alias).acquire(), signal.signal(signal.SIGUSR1, interrupt)
    relay.answer("blpop", answer)
    with pytest.raises(error):
        try:
            Lock("x", using=relay.alias).acquire(blocking_timeout=20)
        finally:
            signal.signal(signal.SIGUSR1, before)
            left = relay.verbs("release")
    assert left and 0 == relay.view().waiting, (
        "the interrupted caller did not leave the queue itself"
    )
    first.release()
    assert relay.view().empty


def test_error_of_a_handler_that_the_project_handles_is_not_raised_again(relay: Relay) -> None:
    """The project cleans up after the TimeoutError of a signal handler, and the connection of the
    release is lost. The TimeoutError is the context of redis-py's exception."""

    def interrupt(*_: Any) -> None:
        raise TimeoutError

    lease, before = Lock("x", using=relay.alias).acquire(), signal.signal(signal.SIGUSR1, interrupt)
    answers = [CUT]
    relay.answer("release", lambda command, forward: answers.pop() if answers else forward())
    try:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        time.sleep(MAX_WAIT)
    except TimeoutError:
        lease.release()  # is sent once more
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not answers
    assert relay.view().empty


@pytest.mark.parametrize("joint", [None, ",", ";"])
@both
async def test_first_location_of_djangos_own_cache_is_the_server_of_the_locks(
    io, settings: Any, raw: redis.Redis, joint: str | None
) -> None:
    places = [settings.CACHES["default"]["LOCATION"], "redis://127.0.0.1:1/0"]
    other = {
        "BACKEND": "tests.behaviour.test_configuration.SubclassedOfDjango",
        "LOCATION": joint.join(places) if joint else places,
        "OPTIONS": {"socket_timeout": 7, "client_name": f"own-{io!r}"},
    }
    settings.CACHES = {**settings.CACHES, "other": other}
    for _ in range(3):
        async with io.entered(Lock("x", using="other")) as lease:
            assert lease.held and await io.do(lease, "owned")
            assert View(raw, "x").holding == 1
            names = {each["name"] for each in raw.client_list()}
            assert f"own-{io!r}" in names, "a connection has not the OPTIONS of the cache"
