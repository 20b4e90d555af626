"""Operator overrides of a keyed policy: stored once, and applied to every key, also new ones."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from django.conf import settings

from devtools.servers import RedisServer
from django_redis_sync import Lock, Semaphore
from django_redis_sync.engine import housekeeping, overrides
from django_redis_sync.engine.names import names_key
from django_redis_sync.engine.renewal import renewer
from django_redis_sync.operators import actions
from django_redis_sync.operators.names import names_in_use
from django_redis_sync.operators.status import status_of, statuses
from django_redis_sync.protocol.keys import keys_of, marks_key, policies
from django_redis_sync.protocol.plans import Answer, Run
from tests.behaviour.both import both, eventually
from tests.behaviour.child import Child
from tests.support.keepers import fresh_keeper  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("fresh_keeper")

PREFIX = settings.PREFIX


def permanent_keys(raw: redis.Redis) -> set[str]:
    """Return the Redis keys that never expire."""

    def found() -> tuple[set[str]] | None:
        keys = {key.decode() for key in raw.keys(f"{PREFIX}*") if raw.ttl(key) == -1}
        # The housekeeping thread sets the expiry of its keys shortly after it writes them.
        return None if any(k == names_key(PREFIX) or k.endswith(":keys") for k in keys) else (keys,)

    (settled,) = eventually(found)
    return settled


async def can_acquire(io: Any, key: str, limit: int = 1, name: str = "api") -> bool:
    semaphore = Semaphore(name, limit, key=key)
    lease = await io.do(semaphore, "acquire", blocking=False)
    if lease is not None:
        await io.do(lease, "release")
    return lease is not None


@both
async def test_status_is_shown_when_overrides_cannot_be_read(io: Any, raw: redis.Redis) -> None:
    raw.set(marks_key(PREFIX), "a string, not a hash")
    semaphore = Semaphore("api", 2, key="7")
    async with io.entered(semaphore):
        assert 1 == (await io.do(semaphore, "status")).in_use


@both
async def test_paused_policy_rejects_new_keys_and_leaves_nothing_behind(
    io: Any, raw: redis.Redis
) -> None:
    actions.pause("api")
    assert not any([await can_acquire(io, f"key-{n}") for n in range(500)])
    assert {marks_key(PREFIX), keys_of(PREFIX, "api").info} == permanent_keys(raw)
    assert ("api", "key-7") not in names_in_use()
    actions.resume("api")
    assert await can_acquire(io, "key-7")
    assert set() == permanent_keys(raw)


@both
async def test_status_of_a_key_includes_overrides_set_by_another_process(
    io: Any, raw: redis.Redis
) -> None:
    raw.hset(marks_key(PREFIX), mapping={"p:paused-elsewhere": raw.time()[0] * 1000})
    for name, paused in (("paused-elsewhere", True), ("api", False)):
        assert paused == (await io.do(Semaphore(name, 1, key="k"), "status")).paused


def test_statuses_of_keys_include_the_overrides_of_their_policies(raw: redis.Redis) -> None:
    raw.hset(marks_key(PREFIX), mapping={"p:unused": raw.time()[0] * 1000})
    found = statuses([("unused", "k"), ("api", "k")])
    assert [True, False] == [status.paused for status in found]


@both
async def test_first_acquire_of_a_process_applies_earlier_overrides(
    io: Any, raw: redis.Redis
) -> None:
    raw.hset(marks_key(PREFIX), mapping={"p:paused-elsewhere": raw.time()[0] * 1000})
    assert not await can_acquire(io, "k", name="paused-elsewhere")
    assert await can_acquire(io, "k")


@both
async def test_resize_of_a_policy_applies_to_every_key(io: Any, raw: redis.Redis) -> None:
    actions.resize("api", None, 2)
    semaphore = Semaphore("api", 1, key="fresh")
    first, second = [await io.do(semaphore, "acquire", blocking=False) for _ in range(2)]
    assert first and second
    assert not await can_acquire(io, "fresh")
    assert (2, 2) == ((status := status_of("api", "fresh")).limit, status.override)
    await io.do(first, "release")
    await io.do(second, "release")
    assert {marks_key(PREFIX), keys_of(PREFIX, "api").info} == permanent_keys(raw)


def test_override_of_a_policy_does_not_apply_to_other_names(raw: redis.Redis) -> None:
    actions.pause("api")
    with Lock("other", key="1"), Lock("api-2", key="1"):
        pass
    assert not status_of("other", "1").paused and status_of("api", "unused").paused


def test_release_hands_nothing_off_while_the_policy_is_paused() -> None:
    with ThreadPoolExecutor(1) as threads:
        lease = Semaphore("api", 1, key="k").acquire()
        waiting = threads.submit(Semaphore("api", 1, key="k").acquire)
        eventually(lambda: status_of("api", "k").waiting == 1)
        actions.pause("api")
        lease.release()
        time.sleep(0.3)
        assert not waiting.done()
        actions.resume("api")
        waiting.result(30).release()


def test_resize_of_a_policy_admits_its_waiters() -> None:
    with ThreadPoolExecutor(1) as threads, Semaphore("api", 1, key="k"):
        waiting = threads.submit(Semaphore("api", 1, key="k").acquire)
        eventually(lambda: status_of("api", "k").waiting == 1)
        actions.resize("api", None, 2)
        waiting.result(30).release()


@pytest.mark.parametrize("using", [None, "second"])
@pytest.mark.parametrize("action", ["pause", "exemption", "resize"])
def test_operator_action_admits_waiters_of_its_own_process_at_once(
    action: str, using: str | None, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    second = {**settings.CACHES["default"], "KEY_PREFIX": "second"}
    settings.CACHES = {**settings.CACHES, "second": second}
    # The next run of the housekeeping job would admit the waiters, too.
    monkeypatch.setattr(
        overrides.OverridePoller, "tend", lambda job, *_: setattr(job, "due", math.inf)
    )

    def waiting() -> int:
        return status_of("api", "k", using=using).waiting

    with ThreadPoolExecutor(1) as threads:
        lease = Semaphore("api", 1, key="k", using=using).acquire()
        assert lease is not None
        waiter = threads.submit(Semaphore("api", 1, key="k", using=using).acquire)
        eventually(lambda: housekeeping._housekeepers[using or "default"].waiting)  # registered
        if action == "resize":
            actions.resize("api", None, 2, using)
        else:
            actions.pause("api", using=using)
            lease.release()
            assert waiting() == 1
            actions.resume("api", "k" if action == "exemption" else None, using)
        assert waiting() == 0  # before the waiter retries
        waiter.result(30).release()


@pytest.mark.parametrize("action", ["pause", "resize"])
def test_override_applies_in_other_processes_until_it_is_removed(
    clean_redis: None, action: str
) -> None:
    with Child("keyed", "api", "k") as child:
        assert ["waits"] == child.line()  # behind its own lease
        # This process sets the override; the child has to notice and apply it.
        if action == "resize":
            actions.resize("api", None, 2)
            assert ["in"] == child.line()
            return
        actions.pause("api")
        time.sleep(overrides.STALE + 0.5)
        child.send_line("release")
        assert ["released"] == child.line()
        time.sleep(0.5)
        assert status_of("api", "k").waiting == 1
        actions.resume("api")
        assert ["in"] == child.line()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The Redis key of the overrides, once for each time that they are read."""
    done: list[str] = []
    reading = overrides.reading

    def recorded(registry: str) -> Run:
        done.append(registry)
        return reading(registry)

    monkeypatch.setattr(overrides, "reading", recorded)
    monkeypatch.setattr(housekeeping, "reading", recorded)
    return done


def test_overrides_are_read_once_a_second_in_total_and_never_when_idle(
    clean_redis: None, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overrides, "IDLE", 1.5)
    for n in range(20):
        Semaphore(f"policy-{n}", 1, key="k").acquire(blocking=False).release()
    time.sleep(2.2)
    assert 2 <= len(reads) <= 12
    eventually(lambda: renewer("default").housekeeper.marks.due == math.inf, 10)
    before = len(reads)
    time.sleep(1.5)
    assert before == len(reads)


def test_unchanged_overrides_do_not_bring_the_next_run_forward() -> None:
    policy = keys_of(PREFIX, "api", "k").policy
    assert policy is not None
    poller = overrides.OverridePoller(list, list)
    assert poller.needed(policy)
    paused, due = [f"p:{policy.quoted}", "7"], poller.due
    for reply, at in ((paused, 0.0), (paused, due), ([], 0.0), ([], due)):
        poller.due = due
        poller.read(policy.registry, Answer(reply, 0.0, 0.0))
        assert at == poller.due


def test_plain_names_read_no_overrides(clean_redis: None, reads: list[str]) -> None:
    for _ in range(20):
        with Lock("plain"):
            pass
    assert [] == reads
    assert renewer("default").housekeeper.marks.due == math.inf


def test_unreadable_overrides_stay_in_force_and_are_logged_once(
    raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    actions.pause("api")
    assert Semaphore("api", 1, key="k").acquire(blocking=False) is None
    raw.rename(marks_key(PREFIX), f"{PREFIX}:elsewhere")
    raw.set(marks_key(PREFIX), "no hash")
    caplog.clear()

    def acquire_and_read() -> list[int]:
        """Return the levels of the messages so far."""
        policies[marks_key(PREFIX), "api"].due = 0.0
        assert Semaphore("api", 1, key="k").acquire(blocking=False) is None
        return [r.levelno for r in caplog.records if "overrides can't be read" in r.message]

    for _ in range(3):
        assert [logging.WARNING] == acquire_and_read()
    raw.rename(f"{PREFIX}:elsewhere", marks_key(PREFIX))  # readable again, so the next error is new
    assert [logging.WARNING] == acquire_and_read()
    raw.set(marks_key(PREFIX), "no hash")
    assert [logging.WARNING] * 2 == acquire_and_read()


def test_override_of_a_key_lasts_until_its_policy_is_reset(raw: redis.Redis) -> None:
    actions.resize("api", "vip", 5)
    actions.resize("api", None, 2)
    assert (5, 2) == (status_of("api", "vip").limit, status_of("api", "other").limit)
    assert ("api", "vip") in names_in_use()
    assert ["api", "api@vip"] == actions.reset("api")
    assert (None, None) == (status_of("api", "vip").override, status_of("api", "other").override)
    assert set() == permanent_keys(raw)


@both
async def test_key_can_be_exempted_from_the_overrides_of_its_policy(
    io: Any, raw: redis.Redis
) -> None:
    actions.pause("api")
    actions.resize("api", None, 3)
    assert ["api@vip"] == actions.resume("api", "vip")
    assert ["api@vip"] == actions.reset("api", "vip")
    assert await can_acquire(io, "vip") and not await can_acquire(io, "other")
    assert (1, 3) == (status_of("api", "vip").limit, status_of("api", "other").limit)
    assert ("api", "vip") in names_in_use()
    actions.pause("api")  # ends the exemption of the key
    assert not await can_acquire(io, "vip")
    actions.resume("api")
    actions.reset("api")
    assert await can_acquire(io, "vip") and await can_acquire(io, "other")
    assert set() == permanent_keys(raw)


def test_many_new_keys_of_a_paused_policy_delay_no_renewal(
    new_server: Callable[..., RedisServer], settings: Any
) -> None:
    server = new_server()
    settings.CACHES = {
        **settings.CACHES,
        "private": {**settings.CACHES["default"], "LOCATION": server.url},
    }
    actions.pause("api", using="private")
    with Lock("unrelated", timeout=3, renew=True, using="private") as lease:
        for n in range(5_000):
            assert not Semaphore("api", 1, key=f"{n}", using="private").acquire(blocking=False)
        assert lease.held and lease.owned()
    with redis.Redis.from_url(server.url) as client:
        assert {b":marks", b":info"} == {
            key[key.rindex(b":") :] for key in client.keys("*") if client.ttl(key) == -1
        }
