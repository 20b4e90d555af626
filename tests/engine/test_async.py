"""Async code: batches of commands, cancelled calls, wake-ups, and timeouts of an event loop."""

from __future__ import annotations

import asyncio
import functools
import gc
import math
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.cache import CacheConfig
from redis.retry import Retry

from django_redis_sync import Lock, Unavailable
from django_redis_sync.engine.loops import LoopTimeout
from django_redis_sync.engine.server import async_server_of
from django_redis_sync.exceptions import ForeignValue
from django_redis_sync.protocol.steps import Run
from tests.behaviour.both import MAX_WAIT, Async, eventually, until
from tests.behaviour.watching import living
from tests.support.backends import cache_of
from tests.support.relays import CUT, SILENCE, Impatient, Relay

HUB = "django_redis_sync.engine.hub"


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    return functools.wraps(test)(lambda **fixtures: asyncio.run(test(**fixtures)))


async def connected(relay: Relay) -> str:
    """Use a lock once, so that the event loop connects, loads the scripts, and subscribes. Return
    the cache alias of `relay`, a proxy of Redis."""
    async with Lock("warm", using=relay.alias) as lease:
        await lease.arenew()
    relay.received.clear()
    return relay.alias


async def waiting(relay: Relay, *names: str) -> list[asyncio.Task[Any]]:
    """For each name, start a task that acquires it. Return the tasks when all wait in queues."""
    tasks = [asyncio.create_task(Lock(one, using=relay.alias).aacquire()) for one in names]
    await until(Async(), lambda: all(relay.view(one).waiting == names.count(one) for one in names))
    return tasks


# Batches


@on_loop
async def test_commands_of_many_tasks_are_sent_in_few_batches(raw: redis.Redis) -> None:
    async with Lock("warm"):
        before = raw.info("stats")["total_reads_processed"]
    leases = await asyncio.gather(*(Lock(f"x{n}").aacquire() for n in range(200)))
    await asyncio.gather(*(lease.arelease() for lease in leases if lease))
    assert raw.info("stats")["total_reads_processed"] - before < 100, "too many batches"


@on_loop
async def test_answered_commands_are_freed_without_the_garbage_collector(relay: Relay) -> None:
    alias = await connected(relay)
    gc.collect()
    gc.disable()
    try:
        async with Lock("freed", using=alias):
            pass
        kept = [one for one in living(Run) if "{freed}" in one.keys[0]]
        verbs = [one.verb for one in kept if one.verb in ("acquire", "release")]
        assert [] == verbs, "answered commands wait for the garbage collector"
    finally:
        gc.enable()


@on_loop
async def test_batch_contains_the_source_of_a_script_once(relay: Relay) -> None:
    """The server has lost its scripts, as after a failover."""
    alias = await connected(relay)
    for flush in ("once", "again before the source is sent"):
        relay.raw.script_flush()
        if "again" in flush:
            relay.answer("acquire", "-NOSCRIPT none", times=100 + 99)
        names = [f"{flush} {n}" for n in range(100)]
        leases = await asyncio.gather(*(Lock(one, using=alias).aacquire() for one in names))
        assert names == [lease.name for lease in leases if lease]
        sources = [one for one in relay.received if one[0] == "EVAL" and one.verb == "acquire"]
        # 100 calls are sent as two batches.
        assert len(sources) <= 2 or "again" in flush
        await asyncio.gather(*(lease.arelease() for lease in leases if lease))


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ("-ERR no", Unavailable),
        ("-WRONGTYPE no", ForeignValue),
        ("-LOADING soon", None),
        ("-READONLY no", None),
        ("-NOSCRIPT none", None),
        (CUT, None),
    ],
    ids=str,
)
@on_loop
async def test_error_reply_in_a_batch_affects_no_other_call(
    relay: Relay, reply: Any, error: Any
) -> None:
    """The server answers two of four commands with an error."""
    alias, names = await connected(relay), {"{b}", "{c}"}

    def answer(command: Any, forward: Any) -> Any:
        named = [name for name in names if name in command[3]]
        names.difference_update(named)
        return reply if named else forward()

    relay.answer("acquire", answer)
    calls = [Lock(one, using=alias).aacquire(blocking=False) for one in "abcd"]
    got = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), MAX_WAIT)
    failed = [type(one) if isinstance(one, Exception) else None for one in got]
    assert [None, error, error, None] == failed, got
    assert [1, int(not error), int(not error), 1] == [relay.view(one).holding for one in "abcd"]
    await asyncio.gather(*(lease.arelease() for lease in got if not isinstance(lease, Exception)))


@on_loop
async def test_reply_to_a_cancelled_call_is_not_given_to_another_call(relay: Relay) -> None:
    alias = await connected(relay)
    lost, kept = (asyncio.create_task(Lock(one, using=alias).aacquire()) for one in "ab")
    await asyncio.sleep(0)
    lost.cancel()
    lease = await kept
    assert (1, "b", True) == (relay.view("b").holding, lease.name, await lease.aowned())


@on_loop
async def test_acquire_that_is_cancelled_before_its_script_is_loaded_is_undone(
    relay: Relay,
) -> None:
    alias, go = await connected(relay), threading.Event()
    relay.answer("acquire", lambda *_: go.wait(MAX_WAIT) and "-NOSCRIPT none", times=1)
    task = asyncio.create_task(Lock("x", using=alias).aacquire())
    await until(Async(), lambda: relay.received)
    task.cancel()
    await asyncio.sleep(0.01)
    go.set()
    await asyncio.wait([task])
    await until(Async(), lambda: len(relay.verbs("acquire", "release")) == 3)
    assert relay.view().empty


@on_loop
async def test_push_message_of_the_server_is_not_taken_for_a_reply(relays: Any) -> None:
    (relay,) = relays(CONNECTION_POOL_KWARGS={"protocol": 3})
    alias = await connected(relay)
    relay.answer("acquire", lambda _, forward: b">2\r\n+MOVING\r\n:7\r\n" + forward())
    leases = await asyncio.gather(*(Lock(one, using=alias).aacquire() for one in "abc"))
    assert [*"abc"] == [lease.name for lease in leases]


@on_loop
async def test_async_call_uses_the_project_socket_timeout_if_shorter_than_5_s(
    relays: Any,
) -> None:
    (relay,) = relays(SOCKET_TIMEOUT=0.3)
    alias = await connected(relay)
    relay.answer("acquire", SILENCE)
    task = asyncio.create_task(Lock("x", using=alias).aacquire(blocking=False))
    # With the library's own timeout of 5 s, the third try would be sent after more than 9 s.
    await until(Async(), lambda: len(relay.verbs("acquire")) > 2, 9)
    task.cancel()
    await asyncio.wait([task])


class Patient(Lock):
    """A lock that waits longer for an answer of Redis than a test waits for anything."""

    _attempt = 2 * MAX_WAIT


@on_loop
async def test_silent_server_has_the_shortest_time_limit_of_a_batch(relays: Any) -> None:
    (relay,) = relays(SOCKET_TIMEOUT=2 * MAX_WAIT)
    alias = await connected(relay)
    relay.answer("acquire", SILENCE, times=2)
    locks = Patient("a", using=alias), Impatient("b", using=alias)
    tasks = [asyncio.create_task(one.aacquire()) for one in locks]
    await until(Async(), lambda: all(task.done() for task in tasks))
    patient, impatient = await asyncio.gather(*tasks, return_exceptions=True)
    assert patient.held and isinstance(impatient, Unavailable), "0.5 s is all that `b` waits"


@on_loop
async def test_calls_do_not_wait_behind_a_silent_connection(relays: Any) -> None:
    """A call with a short time limit is not sent, because an earlier, patient one has no reply."""
    (relay,) = relays(SOCKET_TIMEOUT=2 * MAX_WAIT)
    alias = await connected(relay)
    relay.answer("acquire", SILENCE, times=1)
    patient = asyncio.create_task(Patient("a", using=alias).aacquire())
    await until(Async(), lambda: relay.verbs("acquire"))
    impatient = asyncio.create_task(Impatient("b", using=alias).aacquire())
    await until(Async(), lambda: patient.done() and impatient.done())
    assert patient.result().held and impatient.result().held


@on_loop
async def test_call_that_fails_while_the_connection_is_made_is_not_sent(relays: Any) -> None:
    """Nothing undoes a request that was not sent, so it must not be sent later. The connection is
    ready just after the last try has failed."""
    (relay,) = relays(SOCKET_TIMEOUT=2 * MAX_WAIT)
    go = threading.Event()
    for verb in ("hello", "client", "select"):  # what redis-py sends first over a new connection
        relay.answer(verb, lambda _, forward: go.wait(MAX_WAIT) and forward())
    task = asyncio.create_task(Impatient("x", using=relay.alias).aacquire(blocking=False))
    with pytest.raises(Unavailable) as caught:
        await task
    assert not caught.value.maybe_executed
    go.set()
    for _ in range(15):  # a busy event loop waits a little longer for a connection
        time.sleep(0.02)
        await asyncio.sleep(0)
    async with Lock("other", using=relay.alias):  # sent after it, if it is sent
        assert relay.view("x").empty
    sent = [one for one in relay.received if one.verb == "acquire" and "{x}" in one[3]]
    assert [] == sent, "it was sent, though its caller was told that it was not"


@on_loop
async def test_impatient_call_does_not_repeat_those_of_others_while_a_slow_server_replies(
    relays: Any,
) -> None:
    """The replies to a batch arrive one by one, and take longer than the time limit of one call."""
    (relay,) = relays(SOCKET_TIMEOUT=2 * MAX_WAIT)
    alias, gap, names = await connected(relay), threading.Event(), [f"n{i}" for i in range(30)]
    # 3 s in all: on a busy event loop, whose delays do not count, 0.5 s must pass meanwhile.
    relay.answer("acquire", lambda _, forward: gap.wait(0.1) or forward())
    locks = *(Patient(one, using=alias) for one in names), Impatient("late", using=alias)
    tasks = [asyncio.create_task(one.aacquire()) for one in locks]
    leases = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), MAX_WAIT)
    failed = [one for one in leases if not getattr(one, "held", False)]
    assert [] == failed, "the server answered all calls, so each has a lease"
    sent = [one for one in relay.received if one.verb == "acquire"]
    assert 1 == relay.connections_of("acquire"), "the connection was given up"
    times = [sum(f"{{{name}}}" in one[3] for one in sent) for name in names]
    assert [1] * 30 == times, "a patient call was sent again"
    assert 2 == sum("{late}" in one[3] for one in sent), "its first try was not ended in time"


@pytest.mark.parametrize(
    "option",
    [
        {"max_connections": 5},
        {"retry": Retry(NoBackoff(), 3)},
        {"retry_on_timeout": True},
        {"retry_on_error": [redis.TimeoutError]},
        {"timeout": 2.0},
        {"cache_config": CacheConfig(), "protocol": 3},
    ],
    ids=lambda option: next(iter(option)),
)
@on_loop
async def test_options_of_sync_pools_are_ignored_in_async_code(option: Any, relays: Any) -> None:
    pool = "redis.connection.BlockingConnectionPool"  # accepts all these options
    (relay,) = relays(CONNECTION_POOL_CLASS=pool, CONNECTION_POOL_KWARGS=option)
    async with Lock("x", using=relay.alias):
        assert 1 == relay.view().holding


@on_loop
async def test_sentinel_client_uses_the_configured_database_and_sentinel_password(
    settings: Any,
) -> None:
    options = {
        "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
        "SENTINELS": [("127.0.0.1", 1)],
        "SENTINEL_KWARGS": {"password": "of sentinel"},
    }
    for location, database in (("redis://mymaster/3", 3), ("redis://mymaster", 0)):
        cache = {**settings.CACHES["default"], **cache_of(location, **options)}
        settings.CACHES = {**settings.CACHES, "watched": cache}
        pool = async_server_of("watched").client.connection_pool
        assert ("mymaster", database) == (pool.service_name, pool.connection_kwargs["db"])
        (sentinel,) = pool.sentinel_manager.sentinels
        assert "of sentinel" == sentinel.connection_pool.connection_kwargs["password"]


def test_idle_event_loop_closes_its_connections_after_a_change_of_settings(
    relay: Relay, settings: Any
) -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(connected(relay), loop).result(MAX_WAIT)
    # Remove the alias of `relay` from CACHES, so that no thread connects to `relay` again.
    settings.CACHES = {"default": settings.CACHES["default"]}

    def closed() -> bool:
        # The housekeeping thread may also have a connection. Garbage collection of its discarded
        # pool closes this connection.
        gc.collect()
        return relay.connections == 0

    eventually(closed)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(MAX_WAIT)
    loop.close()


# Cancelled calls


@pytest.mark.promise(6, 13)
@pytest.mark.parametrize("method", ["aacquire", "arelease", "arenew"])
@on_loop
async def test_repeated_cancellations_do_not_prolong_a_call(relay: Relay, method: str) -> None:
    """The first cancellation sets a deadline for the call. Later cancellations don't move it."""
    alias = await connected(relay)
    lock = Lock("x", using=alias)
    thing = lock if method == "aacquire" else await lock.aacquire()
    for verb in ("acquire", "release", "renew"):
        relay.answer(verb, SILENCE)
    task, began = asyncio.create_task(getattr(thing, method)()), time.monotonic()
    await until(Async(), lambda: relay.verbs(method[1:]))
    while not task.done() and time.monotonic() - began < 10:
        task.cancel()
        await asyncio.sleep(0.02)
    assert task.cancelled(), "each cancellation moved the deadline"
    relay.calm()
    if method != "arenew":
        await until(Async(), lambda: relay.view().empty)


# Wake-ups


@pytest.fixture
def no_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn heartbeats off. A waiter then repeats its request only after a wake-up message, or after
    the delay that the last reply contained."""
    monkeypatch.setattr(f"{HUB}.HEARTBEAT_INTERVAL", 1e6)


@pytest.mark.usefixtures("no_heartbeats")
@on_loop
async def test_every_waiter_is_woken_when_many_wake_up_messages_arrive_together(
    relay: Relay,
) -> None:
    names, alias = [*"abcdefgh"], await connected(relay)
    held = [await Lock(one, using=alias).aacquire() for one in names]
    tasks = await waiting(relay, *names)
    before = len(relay.verbs("acquire"))
    await asyncio.gather(*(lease.arelease() for lease in held if lease))
    leases = await asyncio.gather(*tasks)
    assert names == [lease.name for lease in leases if lease.held]
    assert before == len(relay.verbs("acquire")), "a waiter was not woken by its message"


@pytest.mark.usefixtures("no_heartbeats")
@on_loop
async def test_wake_up_message_is_kept_until_its_waiter_begins_to_wait(relay: Relay) -> None:
    alias, go = await connected(relay), threading.Event()
    first = await Lock("x", using=alias).aacquire()

    def answer(command: Any, forward: Any) -> bytes:
        reply: bytes = forward()
        go.wait(MAX_WAIT)
        return reply

    relay.answer("acquire", answer, times=1)
    task = asyncio.create_task(Lock("x", using=alias).aacquire())
    await until(Async(), lambda: relay.view().waiting == 1)
    await asyncio.to_thread(first.release)  # before the waiter gets its delayed reply
    await asyncio.sleep(0.1)
    go.set()
    assert (await task).held
    assert 2 == len(relay.verbs("acquire")), "the early message was dropped"


@on_loop
async def test_one_waiter_sends_the_heartbeats_of_all_waiters_of_its_name(relay: Relay) -> None:
    """The test changes the delay in "wait" replies to 60 s. So each request that a waiter sends in
    the test is a heartbeat. The 20 waiters together must send about one heartbeat per second."""

    def deep(command: Any, forward: Any) -> Any:
        words = forward().split(b"\r\n")[1].decode().split(" ")
        return [*words[:2], 60_000, *words[3:]] if words[0] == "wait" else words

    alias = await connected(relay)
    lease = await Lock("x", using=alias).aacquire()
    relay.answer("acquire", deep)
    tasks = await waiting(relay, *["x"] * 20)
    before, began = len(relay.verbs("acquire")), time.monotonic()
    await asyncio.sleep(3)
    sent, took = len(relay.verbs("acquire")) - before, time.monotonic() - began
    assert took / 2 <= sent <= 2 + 2 * took, f"{sent} requests in {took:.1f} s"
    relay.calm()
    for task in tasks:
        task.cancel()
    await lease.arelease()
    await asyncio.wait(tasks)


@pytest.mark.promise(11)
@pytest.mark.parametrize("reply", ["-NOPERM no", SILENCE, CUT], ids=["denied", "silent", "cut"])
@on_loop
async def test_waiter_gets_its_permit_even_if_its_subscription_fails(
    relay: Relay, reply: Any
) -> None:
    relay.answer("subscribe", reply)
    first = await Lock("x", using=relay.alias).aacquire(blocking=False)
    task = asyncio.create_task(Impatient("x", using=relay.alias).aacquire())
    await until(Async(), lambda: relay.view().waiting == 1)
    await first.arelease()
    assert (await task).held
    relay.calm()
    relay.cut()
    await until(Async(), lambda: relay.raw.pubsub_channels("*wake*"))


@pytest.mark.usefixtures("no_heartbeats")
@on_loop
async def test_waiters_repeat_their_requests_after_a_subscription_is_restored(relay: Relay) -> None:
    alias = await connected(relay)
    lease = await Lock("x", using=alias).aacquire()
    (task,) = await waiting(relay, "x")
    before = len(relay.verbs("acquire"))
    relay.cut()
    await until(Async(), lambda: len(relay.verbs("acquire")) > before, 9)
    await lease.arelease()
    assert (await task).held


@on_loop
async def test_wake_up_channel_has_the_key_prefix_of_its_cache(relays: Any, settings: Any) -> None:
    (relay,) = relays()
    settings.REDIS_SYNC = {}
    cache = {**settings.CACHES[relay.alias], "KEY_PREFIX": "mine"}
    settings.CACHES = {**settings.CACHES, relay.alias: cache}
    async with Lock("x", using=relay.alias):
        (channel,) = relay.raw.pubsub_channels("*wake*")
    assert channel.startswith(b"mine:sync:wake:")


# LoopTimeout, a timeout that a busy event loop extends


async def seconds_until_timeout(seconds: float) -> float:
    began = time.monotonic()
    limit = LoopTimeout(seconds)
    with pytest.raises(asyncio.TimeoutError), limit:
        await asyncio.get_running_loop().create_future()
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("seconds", "blocked", "times", "at_least", "below"),
    [
        (0.0, 0.0, 0, 0.0, 5.0),
        (0.3, 0.0, 0, 0.3, 5.3),
        (0.3, 0.5, 3, 1.6, 10.0),
        (0.2, 0.1, math.inf, 0.2, 10.0),
    ],
)
@on_loop
async def test_async_timeout_is_extended_up_to_a_maximum_if_the_event_loop_was_blocked(
    seconds: float, blocked: float, times: float, at_least: float, below: float, monkeypatch: Any
) -> None:
    if times == math.inf:
        monkeypatch.setattr("django_redis_sync.engine.loops.MAX_LATE", 0.5)
    waiting = asyncio.ensure_future(seconds_until_timeout(seconds))
    while not waiting.done():
        await asyncio.sleep(0 if times == math.inf else 0.01)
        if times > 0:
            time.sleep(blocked)
            times -= 1
    assert at_least <= await waiting < below


@on_loop
async def test_with_statement_of_an_expired_async_timeout_raises_timeout_error() -> None:
    limit = LoopTimeout(0.02)
    await asyncio.sleep(0.1)
    with pytest.raises(asyncio.TimeoutError), limit:
        await asyncio.get_running_loop().create_future()
    if sys.version_info >= (3, 11):
        task = asyncio.current_task()
        assert task is not None and 0 == task.cancelling(), "a cancellation is left in the task"


@on_loop
async def test_cancelled_task_raises_cancelled_error_even_if_its_timeout_has_expired() -> None:
    limit, task = LoopTimeout(0.0), asyncio.current_task()
    await seconds_until_timeout(0.1)  # meanwhile the timeout of 0 s expires
    assert task is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError), limit:
        await asyncio.get_running_loop().create_future()


@on_loop
async def test_stopped_async_timeout_does_not_interrupt_its_with_block() -> None:
    limit = LoopTimeout(0.02)
    limit.stop()
    with limit:
        await asyncio.sleep(0.1)
