"""Background work: registering names, repeating failed cleanups, and pending work at exit."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis
from django.conf import settings as django_settings

from django_redis_sync import Lock, Semaphore, Unavailable
from django_redis_sync.operators.statistics import statistics_of
from tests.behaviour.both import eventually
from tests.behaviour.watching import View
from tests.support import worker_processes
from tests.support.relays import SILENCE, Impatient, Relay

PREFIX, DAY = django_settings.PREFIX, 86_400
NAMES, KEYS = f"{PREFIX}:names", f"{PREFIX}:{{api}}:keys"


def use(relay: Relay, *names: str) -> None:
    for name in names:
        policy, at, key = name.partition("@")
        with Semaphore(policy, 1, key=key if at else None, using=relay.alias):
            pass


# Registering names


@pytest.mark.promise(12, 25)
def test_names_and_keys_in_use_are_registered_for_a_day(relay: Relay) -> None:
    now = relay.raw.time()[0] * 1000
    for registry in (NAMES, KEYS):
        relay.raw.zadd(registry, {"old": now - (DAY + 60) * 1000, "recent": now - 60_000})
    use(relay, "plain", "api@7", "api@8")
    expected = {NAMES: {b"recent", b"api@", b"plain"}, KEYS: {b"recent", b"7", b"8"}}
    eventually(lambda: expected == {one: {*relay.raw.zrange(one, 0, -1)} for one in expected})
    for registry in expected:
        eventually(lambda registry=registry: DAY < relay.raw.ttl(registry) <= 2 * DAY)
        written = relay.raw.zrange(registry, 1, -1, withscores=True)
        assert all(abs(score - now) < 60_000 for _, score in written)


def test_name_is_registered_at_most_once_a_minute(relay: Relay) -> None:
    for _ in range(50):
        use(relay, "x")
    use(relay, "y")
    eventually(lambda: relay.raw.zscore(NAMES, "y"))
    written = [one[3::2] for one in relay.received if one[:2] == ["ZADD", NAMES]]
    assert ["x", "y"] == sorted(name for names in written for name in names)


@pytest.mark.parametrize("reply", ["-LOADING soon", SILENCE], ids=["loading", "silent"])
def test_failed_registration_of_names_is_repeated_after_1_s(relay: Relay, reply: Any) -> None:
    """The housekeeping thread waits at most a second for a reply, because its other jobs wait
    meanwhile."""
    relay.answer("zadd", reply, times=1)
    use(relay, "x")
    eventually(lambda: relay.raw.zscore(NAMES, "x"), 5)


def test_failed_registration_is_logged(relay: Relay, caplog: pytest.LogCaptureFixture) -> None:
    relay.answer("zadd", "-WRONGTYPE no")
    use(relay, "x")
    message = f"housekeeping of {relay.alias!r} could not write: WRONGTYPE no"
    eventually(lambda: message in caplog.messages)


# Cleanups that failed


@pytest.mark.promise(6)
@pytest.mark.parametrize("reply", ["-ERR odd", "-LOADING soon", "-NOSCRIPT none", SILENCE], ids=str)
def test_release_that_failed_is_repeated_in_the_background(relay: Relay, reply: Any) -> None:
    leases = [Impatient(name, using=relay.alias).acquire() for name in "abc"]
    relay.answer("release", reply)
    for lease in leases:
        with pytest.raises(Unavailable):
            lease.release()
    relay.calm()
    for name in "abc":
        eventually(lambda name=name: relay.view(name).empty, 15)
    sent = len(relay.verbs("release"))
    time.sleep(1.2)
    assert sent == len(relay.verbs("release")), "a release that succeeded is repeated"


def test_release_is_not_repeated_after_it_has_failed_for_too_long(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("django_redis_sync.engine.queues.GIVE_UP", 0.5)
    lease = Lock("x", using=relay.alias).acquire()
    relay.answer("release", "-ERR odd")
    with pytest.raises(Unavailable):
        lease.release()
    message = f"a cleanup of {relay.view().keys.leases} is no longer retried: odd"
    eventually(lambda: message in caplog.messages)
    sent = len(relay.verbs("release"))
    time.sleep(1.2)
    assert (sent, 1) == (len(relay.verbs("release")), caplog.messages.count(message))


def test_pending_writes_and_cleanups_of_a_removed_cache_are_discarded(
    relay: Relay, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    relay.answer("zadd", "-LOADING soon")
    relay.answer("release", "-ERR odd")
    lease = Lock("x", using=relay.alias).acquire()
    with pytest.raises(Unavailable):
        lease.release()
    settings.CACHES = {"default": settings.CACHES["default"]}
    for message in (
        f"housekeeping of {relay.alias!r} discards its unwritten entries",
        f"a cleanup on {relay.alias!r} is discarded",
    ):
        eventually(lambda message=message: message in caplog.text)


# At exit

#: The program of a process in which no thread can start during the exit handler. Python 3.12
#: ensures this. On earlier versions, the handler makes thread starts fail.
PROGRAM = """if True:
    import atexit, sys, threading, time
    import django
    from django.conf import settings
    django.setup()
    for number, url in enumerate({urls}):
        settings.CACHES[f"q{{number}}"] = {{**settings.CACHES["default"], "LOCATION": url}}
    from django.core.management import call_command
    from django_redis_sync import Lock, Unavailable

    def refuse(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    def fails(call):
        try:
            call()
        except Unavailable:
            return
        raise AssertionError("it succeeded")

    def handler():
        if sys.version_info < (3, 12):
            threading.Thread.start = refuse
        {at_exit}

    atexit.register(handler)
    {body}
"""


def errors_of(body: str = "", at_exit: str = "", urls: tuple[str, ...] = ()) -> str:
    """Run `body` in a new process, and `at_exit` in its exit handler. Return the error output of
    the process. `urls`: the locations of additional caches q0, q1, and so on."""
    program = PROGRAM.format(body=body or "pass", at_exit=at_exit or "pass", urls=urls)
    done = worker_processes.run("-c", program)
    assert 0 == done.returncode, done.stderr
    return done.stderr


@pytest.mark.parametrize("at", ["body", "at_exit"])
def test_process_writes_names_and_statistics_before_it_exits(raw: redis.Redis, at: str) -> None:
    logged = errors_of(**{at: "Lock('x').acquire().release()"})
    (site,) = statistics_of([""])
    assert ("", [b"x"]) == (logged, raw.zrange(NAMES, 0, -1))
    assert (1, 0) == (site.history.total.granted, site.in_use)


@pytest.mark.parametrize("command", ["'pause', 'x'", "'status'"])
def test_no_error_is_logged_when_a_process_that_ran_a_locks_command_exits(
    raw: redis.Redis, command: str
) -> None:
    body = "Lock('x').acquire().release()"
    assert "" == errors_of(body, f"call_command('locks', {command})")


def test_pending_cleanup_is_sent_at_exit(relay: Relay) -> None:
    relay.answer("release", "-ERR odd", times=1)
    body = "lease = Lock('x', using='q0').acquire()"
    assert "" == errors_of(body, "fails(lease.release)", (relay.url,))
    assert 0 == relay.view().holding


def test_quorum_lock_works_in_an_exit_handler(raw: redis.Redis, relays: Any) -> None:
    urls = tuple(one.url for one in relays(3))
    cycle = "Lock('x', using=['q0', 'q1', 'q2']).acquire().release()"
    assert "" == errors_of(cycle, cycle, urls)
    assert View(raw, "x").empty
