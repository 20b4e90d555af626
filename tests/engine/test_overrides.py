"""Overrides of a policy. An override is stored once, and applies to all keys, also to new ones."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from django.conf import settings as django_settings

from devtools.servers import RedisServer
from django_redis_sync import Lock, Semaphore
from django_redis_sync.engine.renewal import renewer
from tests.behaviour.both import MAX_WAIT, both, eventually
from tests.behaviour.child import Child
from tests.support.commands import locks
from tests.support.relays import Relay
from tests.support.renewers import fresh_renewer, listed  # noqa: F401 - a fixture

pytestmark = [pytest.mark.usefixtures("fresh_renewer"), pytest.mark.promise(26)]

PREFIX = django_settings.PREFIX
OVERRIDES, INFO = f"{PREFIX}:marks", f"{PREFIX}:{{api}}:info"


def operate(action: str, *words: str, **options: Any) -> None:
    """Pause, resume, or resize the policy `api`."""
    create = ["--create"] * (action != "resume")
    locks(action, "api", *words, *create, **options)


def permanent_keys(raw: redis.Redis) -> set[str]:
    """Return the Redis keys that never expire."""

    def found() -> tuple[set[str]] | None:
        keys = {key.decode() for key in raw.keys(f"{PREFIX}*") if raw.ttl(key) == -1}
        # The housekeeping thread sets the expiry of these keys shortly after it writes them.
        return None if any(key.endswith((":names", ":keys")) for key in keys) else (keys,)

    (settled,) = eventually(found)
    return settled


async def can_acquire(io: Any, key: str, name: str = "api") -> bool:
    lease = await io.do(Semaphore(name, 1, key=key), "acquire", blocking=False)
    if lease is not None:
        await io.do(lease, "release")
    return lease is not None


def shown(key: str) -> tuple[int | None, int | None]:
    """Return the limit in force for a key, and the limit that an operator set (or None)."""
    (found,) = json.loads(locks("status", "api", "--key", key, "--format", "json"))["names"]
    return found["limit"], found["override"]


@both
async def test_paused_policy_stores_no_data_for_rejected_callers_with_new_keys(
    io: Any, raw: redis.Redis
) -> None:
    operate("pause")
    assert not any([await can_acquire(io, f"key-{n}") for n in range(500)])
    assert {OVERRIDES, INFO} == permanent_keys(raw)
    assert not listed("api@key-7")
    operate("resume")
    assert await can_acquire(io, "key-7")
    assert set() == permanent_keys(raw)


@both
async def test_pause_stored_by_another_process_applies_only_to_the_paused_policy(
    io: Any, raw: redis.Redis
) -> None:
    raw.hset(OVERRIDES, mapping={"p:elsewhere": raw.time()[0] * 1000})
    for name, paused in (("elsewhere", True), ("elsewhere-2", False), ("api", False)):
        assert paused == (await io.do(Semaphore(name, 1, key="k"), "status")).paused
        assert paused != await can_acquire(io, "k", name)


@both
async def test_override_of_a_key_takes_precedence_over_the_override_of_the_policy(
    io: Any, raw: redis.Redis
) -> None:
    operate("resize", "5", "--key", "vip")
    operate("resize", "2")
    assert [(5, 5), (2, 2)] == [shown("vip"), shown("other")]
    leases = [await io.do(Semaphore("api", 1, key="k"), "acquire", False) for _ in range(3)]
    assert [True, True, False] == [bool(lease) for lease in leases]
    for lease in leases[:2]:
        await io.do(lease, "release")
    operate("pause")
    operate("resume", "--key", "half")
    assert await can_acquire(io, "half") and (2, 2) == shown("half"), (
        "the override of the limit ended, too"
    )
    operate("resume", "--key", "vip")
    operate("resize", "--reset", "--key", "vip")
    assert await can_acquire(io, "vip") and not await can_acquire(io, "other")
    assert [(1, None), (2, 2)] == [shown("vip"), shown("other")]
    assert listed("api@vip")
    operate("pause")  # ends the exemption of the key
    assert not await can_acquire(io, "vip")
    operate("resume")
    operate("resize", "--reset")
    assert await can_acquire(io, "vip") and await can_acquire(io, "other")
    assert [(1, None)] * 2 == [shown("vip"), shown("other")]
    assert set() == permanent_keys(raw)


# Waiters


@pytest.mark.parametrize("using", [None, "second"])
@pytest.mark.parametrize("action", ["resume", "exemption", "resize"])
def test_resume_or_resize_immediately_admits_waiters_in_the_same_process(
    action: str, using: str | None, raw: redis.Redis, settings: Any
) -> None:
    """Each of two keys has a waiter. Only the exemption is that of one key."""
    second = {**settings.CACHES["default"], "KEY_PREFIX": "second"}
    settings.CACHES = {**settings.CACHES, "second": second}
    options = {"using": using} if using else {}
    keys = [Semaphore("api", 1, key=key, using=using) for key in ("k", "other")]
    with ThreadPoolExecutor(2) as threads:
        leases = [semaphore.acquire() for semaphore in keys]
        waiters = [threads.submit(semaphore.acquire, True, MAX_WAIT) for semaphore in keys]
        eventually(lambda: sum(one["cmd"] == "blpop" for one in raw.client_list()) == 2)
        if action == "resize":
            operate("resize", "2", **options)
        else:
            operate("pause", **options)
            for lease in leases:
                assert lease is not None
                lease.release()
            time.sleep(0.2)
            waiting = [semaphore.status().waiting for semaphore in keys]
            assert [1, 1] == waiting, "a permit was handed off during the pause"
            operate("resume", *(("--key", "k") if action == "exemption" else ()), **options)
        waiting = [semaphore.status().waiting for semaphore in keys]
        left = 1 if action == "exemption" else 0
        assert [0, left] == waiting, "the action did not hand off the permits at once"
        if left:
            operate("resume", **options)
        for waiter in waiters:
            waiter.result(MAX_WAIT).release()


def test_override_applies_in_other_processes_until_it_is_removed(clean_redis: None) -> None:
    with Child("keyed", "api", "k") as child, Child("keyed", "api", "other") as other:
        # One thread of each child holds the only permit of a key. Another thread waits for it.
        assert [["waits"]] * 2 == [child.line(), other.line()]
        operate("pause")
        time.sleep(1.5)  # the processes read overrides once a second
        child.send_line("release")
        assert ["released"] == child.line()
        time.sleep(0.5)
        assert 1 == Semaphore("api", 1, key="k").status().waiting
        operate("resume")
        assert ["in"] == child.line()
        operate("resize", "2")
        assert ["in"] == other.line()


def test_waiter_of_an_otherwise_idle_process_notices_a_resume_in_another_process(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw.hset(OVERRIDES, "p:api", raw.time()[0] * 1000)
    with ThreadPoolExecutor(1) as threads:
        waiter = threads.submit(Semaphore("api", 1, key="k").acquire, True, MAX_WAIT)
        eventually(lambda: renewer("default").housekeeper.waiting)
        monkeypatch.setattr("django_redis_sync.engine.overrides.IDLE", 0.001)
        raw.hdel(OVERRIDES, "p:api")
        lease = waiter.result(2 * MAX_WAIT)
    assert lease is not None, "the process no longer read the overrides while it waited"
    lease.release()


# Reading


def test_process_reads_overrides_once_per_second_but_not_while_it_is_idle(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_redis_sync.engine.overrides.IDLE", 1.5)

    def reads() -> int:
        return len(relay.verbs("overrides"))

    for _ in range(20):
        with Lock("plain", using=relay.alias):
            pass
    assert 0 == reads(), "a name without a policy has no overrides"
    began, semaphores = time.monotonic(), [f"policy-{n}" for n in range(20)]
    while (took := time.monotonic() - began) < 2.2:
        for name in semaphores:
            Semaphore(name, 1, key="k", using=relay.alias).acquire(blocking=False).release()
    assert 2 <= reads() <= 4 + 2 * took
    eventually(lambda: (before := reads()) and not time.sleep(1.2) and before == reads(), 15)


def test_overrides_stay_in_force_while_they_cannot_be_read_from_redis(
    relay: Relay, caplog: pytest.LogCaptureFixture
) -> None:
    operate("pause", using=relay.alias)

    def levels_after(reads: int) -> list[int]:
        """Acquire until overrides were read `reads` more times. Return the levels of the log
        messages about reads that failed."""
        before = len(relay.verbs("overrides"))
        while len(relay.verbs("overrides")) < before + reads:
            assert Semaphore("api", 1, key="k", using=relay.alias).acquire(blocking=False) is None
            time.sleep(0.05)
        return [r.levelno for r in caplog.records if "overrides can't be read" in r.message]

    assert [] == levels_after(1)
    relay.answer("overrides", "-WRONGTYPE no")
    assert [logging.WARNING] == levels_after(3)
    assert 0 == Semaphore("api", 1, key="k", using=relay.alias).status().in_use
    relay.calm()
    assert [logging.WARNING] == levels_after(2)
    relay.answer("overrides", "-WRONGTYPE no")
    assert [logging.WARNING] * 2 == levels_after(3)


def test_lease_is_renewed_on_time_while_a_paused_policy_rejects_many_new_keys(
    new_server: Callable[..., RedisServer], settings: Any
) -> None:
    server = new_server()
    cache = {**settings.CACHES["default"], "LOCATION": server.url}
    settings.CACHES = {**settings.CACHES, "private": cache}
    operate("pause", using="private")
    with Lock("unrelated", timeout=3, renew=True, using="private") as lease:
        for n in range(5_000):
            assert not Semaphore("api", 1, key=f"{n}", using="private").acquire(blocking=False)
        assert lease.held and lease.owned()
    with redis.Redis.from_url(server.url) as client:
        assert {b":marks", b":info"} == {
            key[key.rindex(b":") :] for key in client.keys("*") if client.ttl(key) == -1
        }
