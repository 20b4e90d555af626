"""The ACL in docs/keys-and-permissions.md suffices for this library, and has no unneeded rule."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.conf import settings

from devtools.servers import RedisServer
from django_redis_sync import Lease, Lock, ReadWriteLock, RLock, Semaphore
from tests.behaviour.both import Async, Sync, eventually, queued
from tests.behaviour.watching import View, count_of
from tests.support.operators import locks

from .conftest import doctor

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "keys-and-permissions.md").read_text(encoding="utf-8")
#: The ACL rules in docs/keys-and-permissions.md: keys, channels, and commands.
RULES = re.findall(r"ACL SETUSER mysite on >PASSWORD ([^`]*)```", PAGE)[0].split()
KEYS, CHANNELS = (f"{sign}{settings.PREFIX}:*" for sign in "~&")
COMMANDS = " ".join(word for word in RULES if word.startswith("+"))
LEAST = f"{KEYS} {CHANNELS} {COMMANDS}"

#: Commands that the library needs, although a call of `core()` may not send them:
#: INFO: `locks doctor` sends it.
#: PING: health checks send it.
#: SELECT: clients of a database other than 0 send it.
#: EXISTS: a script calls it to detect a new holder that never claimed its permit.
#: UNSUBSCRIBE: redis-py may send it.
#: Others: the library sends them to read the name registry, or once a minute to shorten it.
BESIDE = {"EXISTS", "INFO", "PING", "SELECT", "UNSUBSCRIBE", "ZMSCORE"}
BESIDE |= {"ZREMRANGEBYRANK", "ZREMRANGEBYSCORE", "PEXPIRE"}


@pytest.fixture
def admin(private: RedisServer) -> Iterator[redis.Redis]:
    """A plain client of the private server."""
    with redis.Redis.from_url(private.url) as client:
        yield client


@pytest.fixture
def limited(private: RedisServer, admin: redis.Redis, alias: Any) -> Callable[[str], str]:
    """Return a function that sets the ACL rules of the Redis user `app`, and returns a cache alias
    for this user."""

    def make(rules: str) -> str:
        # In Redis 6.2, a new user may use all channels. So remove this permission.
        user = ["app", "reset", "resetchannels", "on", ">word", *rules.split()]
        admin.execute_command("ACL", "SETUSER", *user)
        return alias(private.url.replace("redis://", "redis://app:word@"))

    return make


def core(using: str, admin: redis.Redis) -> None:
    """Call each feature of the library once."""
    for io in (Sync(), Async()):
        io.run(primitives(io, using, admin))
    assert Lock("wait", using=using, blocking=False, min_hold=0.1).acquire()
    assert Lock("wait", using=using).acquire(blocking_timeout=0.05) is None
    with RLock("reentrant", using=using) as outer, RLock("reentrant", using=using) as inner:
        assert outer is inner
    both = ReadWriteLock("both", using=using)
    with both.write:
        both.downgrade()
    held = Semaphore("policy", 2, key="42", using=using).acquire()
    eventually(lambda: "policy" in locks("status", using=using))
    for words in (
        "pause policy",
        "resume policy",
        "resize policy 3 --key 42",
        "resize policy --reset",
    ):
        locks(*words.split(), using=using)
    locks("clear", "policy", "--key", "42", "--no-input", using=using)
    assert not held.owned() and count_of("core", "granted", using)


async def primitives(io: Any, using: str, admin: redis.Redis) -> None:
    async with io.entered(Semaphore("core", 2, using=using)) as lease:
        await io.do(lease, "renew")
        assert await io.do(lease, "owned")
    options: dict[str, Any] = {"using": using, "share": "acme", "share_limit": 1}
    for sem in (Lock("wait", using=using), Semaphore("shared", 2, **options)):
        first, view = await io.do(sem, "acquire"), View(admin, sem.name)
        waiting = [await queued(io, sem, view, place, blocking_timeout=20) for place in (1, 2)]
        assert 2 == (await io.do(sem, "status")).waiting
        await io.sleep(2.5)  # meanwhile, the waiters send their requests again
        await io.do(first, "release")
        for waiter in waiting:
            await io.do(await io.result(waiter), "release")
    lease = await io.do(Lock("handle", using=using, timeout=20), "acquire")
    await io.do(await io.do(Lease, "from_handle", await io.do(lease, "detach")), "release")


def used(client: redis.Redis) -> set[str]:
    return {name.removeprefix("cmdstat_").upper() for name in client.info("commandstats")}


def test_acl_with_the_least_permissions_allows_all_features(admin, limited) -> None:
    assert {"resetchannels", "~mysite:sync:*", "&mysite:sync:*"} == {*RULES} - {*COMMANDS.split()}
    using = limited(LEAST)
    admin.config_resetstat()
    core(using, admin)
    denied = {row["object"].upper() for row in admin.acl_log() if row["reason"] != "auth"}
    # A client sends its name and version when it connects. Redis may deny this.
    assert denied <= {"CLIENT", "CLIENT|SETINFO", "CLIENT|MAINT_NOTIFICATIONS"}
    assert {word[1:].upper() for word in COMMANDS.split()} - used(admin) <= BESIDE


@pytest.mark.timeout(1300)
def test_behaviour_suite_passes_with_the_least_acl() -> None:
    """Run tests/behaviour and tests/locks/test_*.py as a Redis user with the least ACL. Not those
    of single_flight: it stores results in a cache of the project, whose user may do more."""
    own = {
        n: v for n, v in os.environ.items() if not n.startswith(("DJANGO_REDIS_SYNC_", "PYTEST_"))
    }
    locks = sorted(map(str, ROOT.glob("tests/locks/test_*.py")))
    others = ("test_jobs_", "test_single_flight")
    suite = ["tests/behaviour", "--ignore=tests/behaviour/test_flights.py"]
    suite += [path for path in locks if not any(other in path for other in others)]
    words = ["-q", "-p", "no:cacheprovider", "-n", "4", "--dist", "worksteal"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, *suite],
        cwd=ROOT,
        env={**own, "DJANGO_REDIS_SYNC_TEST_ACL": "yes"},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert 0 == done.returncode, done.stdout[-5000:]


def test_doctor_reports_missing_channel_permissions_but_waiters_are_granted(admin, limited) -> None:
    """Without a wake-up, a waiter gets its grant when it asks again after a heartbeat interval."""
    using = limited(f"{KEYS} &other:* {COMMANDS}")
    core(using, admin)
    (finding,) = re.findall(r"error: .*\[acl\]\n(.*)", doctor(using))
    assert "PUBLISH" in finding and "SUBSCRIBE" in finding
