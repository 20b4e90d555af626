"""The least ACL of a Redis user: it suffices, and all of it is used."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from django.conf import settings

from devtools.servers import RedisServer
from django_redis_sync import Lease, Lock, ReadWriteLock, RLock, Semaphore, Unavailable
from django_redis_sync.operators import actions, doctor
from django_redis_sync.operators.doctor import permissions
from django_redis_sync.operators.history import histories
from django_redis_sync.operators.names import names_in_use
from django_redis_sync.operators.status import status_of
from tests.behaviour.both import eventually

#: Commands that the ACL allows and `core` doesn't use. The doctor sends INFO (without it, the
#: doctor lists what it can't check), a health check PING, and a database other than 0 SELECT.
#: EXISTS checks for a new holder that never claimed its permit. redis-py may send UNSUBSCRIBE. The
#: other commands trim the list of names once a minute.
BESIDE = {"EXISTS", "INFO", "PING", "SELECT", "UNSUBSCRIBE"}
BESIDE |= {"ZMSCORE"}  # lists names
BESIDE |= {"ZREMRANGEBYRANK", "ZREMRANGEBYSCORE", "PEXPIRE"}


@pytest.fixture
def limited(private: RedisServer, alias: Any) -> Iterator[Callable[[str], str]]:
    """Return a function that sets the ACL of the user `app`, and returns its cache alias."""
    with redis.Redis.from_url(private.url) as client:

        def make(rules: str) -> str:
            # Redis 6.2 gives every new user all channels.
            user = ["app", "reset", "resetchannels", "on", ">word", *rules.split()]
            client.execute_command("ACL", "SETUSER", *user)
            return alias(private.url.replace("redis://", "redis://app:word@"))

        yield make


def core(using: str) -> None:
    """Run each feature of the behaviour suite once, in sync and in async code."""
    with Semaphore("core", 2, using=using) as lease:
        lease.renew()
        assert lease.owned()
        first = Lock("wait", using=using).acquire()
        got: list[Lease | None] = []
        waiting = threading.Thread(
            target=lambda: got.append(Lock("wait", using=using).acquire(blocking_timeout=20))
        )
        waiting.start()
        eventually(lambda: status_of("wait", using=using).waiting == 1)
        time.sleep(2.5)  # a waiter asks again after a second
        assert first
        first.release()
        waiting.join(20)
        assert got[0]
        got[0].release()
    shared = {"share": "acme", "share_limit": 1, "using": using}
    with ThreadPoolExecutor(2) as pool:
        with Semaphore("shared", 2, **shared):
            others = [
                pool.submit(lambda: Semaphore("shared", 2, **shared).acquire().release())  # type: ignore[union-attr]
                for _ in range(2)
            ]
            eventually(lambda: status_of("shared", using=using).waiting == 2)
        assert [None, None] == [other.result(20) for other in others]
    assert Lock("wait", using=using, blocking=False, min_hold=0.1).acquire()
    assert Lock("wait", using=using).acquire(blocking_timeout=0.05) is None
    with RLock("reentrant", using=using) as outer, RLock("reentrant", using=using) as inner:
        assert outer is inner
    both = ReadWriteLock("both", using=using)
    with both.write:
        both.downgrade()
    adopted = Lease.from_handle(Lock("handle", using=using, timeout=20).acquire().detach())  # type: ignore[union-attr]
    adopted.release()
    asyncio.run(acore(using))
    held = Semaphore("policy", 2, key="42", using=using).acquire()
    assert held
    eventually(lambda: ("policy", "42") in names_in_use(using=using))
    actions.pause("policy", using=using)
    actions.resume("policy", using=using)
    actions.resize("policy", "42", 3, using=using)
    actions.reset("policy", "42", using=using)
    shown = status_of("policy", "42", using=using)
    assert [True] == [c.done for c in actions.clear(shown, [held.token], using=using)]
    assert histories([("core", None)], using=using)[0].total.granted


async def acore(using: str) -> None:
    lock = Lock("awaited", using=using)
    first = await lock.aacquire()
    assert first
    waiting = asyncio.create_task(Lock("awaited", using=using).aacquire(blocking_timeout=20))
    while not (await lock.astatus()).waiting:
        await asyncio.sleep(0.01)
    await first.arelease()
    second = await waiting
    assert second
    await second.arelease()


def used(client: redis.Redis) -> dict[str, int]:
    rows: dict[str, Any] = client.info("commandstats")
    return {name.removeprefix("cmdstat_").upper(): row["calls"] for name, row in rows.items()}


def test_core_works_with_the_least_acl_and_uses_all_of_it(
    private: RedisServer, limited: Callable[[str], str]
) -> None:
    rules = permissions.rules(settings.PREFIX)
    assert f"~{settings.PREFIX}:*" in rules and f"&{settings.PREFIX}:*" in rules
    using = limited(rules)
    with redis.Redis.from_url(private.url) as client:
        client.config_resetstat()
        core(using)
        seen = used(client)
        denied = {row["object"].upper() for row in client.acl_log() if row["reason"] != "auth"}
    # A client sends its name and version when it connects. Redis may deny this.
    assert denied <= {"CLIENT", "CLIENT|SETINFO", "CLIENT|MAINT_NOTIFICATIONS"}
    assert set(permissions.needed()) - set(seen) <= BESIDE


@pytest.mark.timeout(1300)
def test_behaviour_suite_passes_with_the_least_acl() -> None:
    """Run the suite again with connections of the user that has the least ACL."""
    root = Path(__file__).resolve().parents[2]
    own = {
        n: v for n, v in os.environ.items() if not n.startswith(("DJANGO_REDIS_SYNC_", "PYTEST_"))
    }
    suite = ["tests/behaviour", *sorted(map(str, root.glob("tests/test_locks_*.py")))]
    words = ["-q", "-p", "no:cacheprovider", "-n", "4", "--dist", "worksteal"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, *suite],
        cwd=root,
        env={**own, "DJANGO_REDIS_SYNC_TEST_ACL": "yes"},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert 0 == done.returncode, done.stdout[-5000:]


def test_waiters_without_channel_permissions_are_granted_and_doctor_reports_it(
    limited: Callable[[str], str],
) -> None:
    """Waiters get no wake-up, but get their grant when they ask again."""
    using = limited(f"~{settings.PREFIX}:* &other:* {commands()}")
    core(using)
    (finding,) = [f for f in doctor.examine(using=using) if f.id == "acl"]
    assert "error" == finding.level
    assert "PUBLISH" in finding.detail and "SUBSCRIBE" in finding.detail


def commands() -> str:
    """Return the rules without keys and channels."""
    words = permissions.rules(settings.PREFIX).split()
    return " ".join(word for word in words if word.startswith("+"))


def test_least_acl_denies_other_keys_channels_and_commands(
    private: RedisServer, limited: Callable[[str], str]
) -> None:
    """The library needs the key pattern. Keys and channels outside of the patterns are denied."""
    using = limited(f"~other:* &{settings.PREFIX}:* {commands()}")
    with pytest.raises(Unavailable, match=r"(?i)perm|acl|can't"):
        core(using)
    limited(permissions.rules(settings.PREFIX))
    url = private.url.replace("redis://", "redis://app:word@")
    with redis.Redis.from_url(url) as app:
        for words in (("ZADD", "other", 1, "x"), ("DEL", "session"), ("PUBLISH", "other", "x")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                app.execute_command(*words)
        for words in (("FLUSHDB",), ("KEYS", "*"), ("CONFIG", "GET", "*"), ("ACL", "LIST")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                app.execute_command(*words)
        with pytest.raises(redis.ResponseError):
            app.eval("return redis.call('FLUSHALL')", 1, f"{settings.PREFIX}:x")
