"""What an operator says of a keyed policy: kept once, in force for every key, fresh or not."""

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


def lasting(raw: redis.Redis) -> set[str]:
    """The keys that never expire."""

    def found() -> tuple[set[str]] | None:
        keys = {key.decode() for key in raw.keys(f"{PREFIX}*") if raw.ttl(key) == -1}
        # The clerk's lists have their expiry a moment after they are written.
        return None if any(k == names_key(PREFIX) or k.endswith(":keys") for k in keys) else (keys,)

    (settled,) = eventually(found)
    return settled


async def tries(io: Any, key: str, limit: int = 1, name: str = "api") -> bool:
    semaphore = Semaphore(name, limit, key=key)
    lease = await io.do(semaphore, "acquire", blocking=False)
    if lease is not None:
        await io.do(lease, "release")
    return lease is not None


@both
async def test_marks_that_cannot_be_read_hide_no_name(io: Any, raw: redis.Redis) -> None:
    raw.set(marks_key(PREFIX), "another program's")
    semaphore = Semaphore("api", 2, key="7")
    async with io.entered(semaphore):
        assert 1 == (await io.do(semaphore, "status")).in_use


@both
async def test_a_paused_policy_lets_no_fresh_key_in_and_leaves_nothing_behind(
    io: Any, raw: redis.Redis
) -> None:
    actions.pause("api")
    assert not any([await tries(io, f"key-{n}") for n in range(500)])
    assert {marks_key(PREFIX), keys_of(PREFIX, "api").info} == lasting(raw)
    assert ("api", "key-7") not in names_in_use()
    actions.resume("api")
    assert await tries(io, "key-7")
    assert set() == lasting(raw)


@both
async def test_a_child_is_shown_as_its_policy_is_by_a_process_that_never_asked_for_one(
    io: Any, raw: redis.Redis
) -> None:
    raw.hset(marks_key(PREFIX), mapping={"p:said-elsewhere": raw.time()[0] * 1000})
    for name, paused in (("said-elsewhere", True), ("api", False)):
        assert paused == (await io.do(Semaphore(name, 1, key="k"), "status")).paused


def test_a_list_shows_children_as_their_policies_are(raw: redis.Redis) -> None:
    raw.hset(marks_key(PREFIX), mapping={"p:never-asked": raw.time()[0] * 1000})
    found = statuses([("never-asked", "k"), ("api", "k")])
    assert [True, False] == [one.paused for one in found]


@both
async def test_a_process_heeds_from_its_first_ask_on_what_was_said_before(
    io: Any, raw: redis.Redis
) -> None:
    raw.hset(marks_key(PREFIX), mapping={"p:said-elsewhere": raw.time()[0] * 1000})
    assert not await tries(io, "k", name="said-elsewhere")
    assert await tries(io, "k")


@both
async def test_a_resized_policy_has_its_limit_for_every_key(io: Any, raw: redis.Redis) -> None:
    actions.resize("api", None, 2)
    semaphore = Semaphore("api", 1, key="fresh")
    first, second = [await io.do(semaphore, "acquire", blocking=False) for _ in range(2)]
    assert first and second
    assert not await tries(io, "fresh")
    assert (2, 2) == ((status := status_of("api", "fresh")).limit, status.override)
    await io.do(first, "release")
    await io.do(second, "release")
    assert {marks_key(PREFIX), keys_of(PREFIX, "api").info} == lasting(raw)


def test_a_mark_of_a_policy_is_no_mark_of_a_plain_name_or_another_policy(raw: redis.Redis) -> None:
    actions.pause("api")
    with Lock("other", key="1"), Lock("api-2", key="1"):
        pass
    assert not status_of("other", "1").paused and status_of("api", "unheard of").paused


def test_a_release_hands_nothing_over_while_the_policy_is_paused() -> None:
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


def test_waiters_of_a_policy_come_in_when_it_grows() -> None:
    with ThreadPoolExecutor(1) as threads, Semaphore("api", 1, key="k"):
        waiting = threads.submit(Semaphore("api", 1, key="k").acquire)
        eventually(lambda: status_of("api", "k").waiting == 1)
        actions.resize("api", None, 2)
        waiting.result(30).release()


@pytest.mark.parametrize("using", [None, "second"])
@pytest.mark.parametrize("mark", ["pause", "pause of others", "resize"])
def test_waiters_of_the_process_that_says_it_are_in_when_it_is_said(
    mark: str, using: str | None, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    second = {**settings.CACHES["default"], "KEY_PREFIX": "second"}
    settings.CACHES = {**settings.CACHES, "second": second}
    # The clerk's next look would let them in too.
    monkeypatch.setattr(
        overrides.OverridePoller, "tend", lambda book, *_: setattr(book, "due", math.inf)
    )

    def waiting() -> int:
        return status_of("api", "k", using=using).waiting

    with ThreadPoolExecutor(1) as threads:
        lease = Semaphore("api", 1, key="k", using=using).acquire()
        assert lease is not None
        waiter = threads.submit(Semaphore("api", 1, key="k", using=using).acquire)
        eventually(lambda: housekeeping._clerks[using or "default"].waiting)  # it knows
        if mark == "resize":
            actions.resize("api", None, 2, using)
        else:
            actions.pause("api", using=using)
            lease.release()
            assert waiting() == 1
            actions.resume("api", "k" if mark == "pause of others" else None, using)
        assert waiting() == 0  # before it asks again
        waiter.result(30).release()


@pytest.mark.parametrize("mark", ["pause", "resize"])
def test_a_mark_is_in_force_in_other_processes_and_taken_back_there(
    clean_redis: None, mark: str
) -> None:
    with Child("keyed", "api", "k") as child:
        assert ["waits"] == child.line()  # behind the lease that it has itself
        # Said here, and seen there: this process never asked for a child.
        if mark == "resize":
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
    """What of the marks was read, each time."""
    done: list[str] = []
    reading = overrides.reading

    def noted(registry: str) -> Run:
        done.append(registry)
        return reading(registry)

    monkeypatch.setattr(overrides, "reading", noted)
    monkeypatch.setattr(housekeeping, "reading", noted)
    return done


def test_marks_are_read_once_a_second_for_all_policies_and_never_when_idle(
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


def test_marks_that_are_as_they_were_call_for_no_look_before_its_time() -> None:
    policy = keys_of(PREFIX, "api", "k").policy
    assert policy is not None
    book = overrides.OverridePoller(list, list)
    assert book.needed(policy)
    said, due = [f"p:{policy.quoted}", "7"], book.due
    for reply, at in ((said, 0.0), (said, due), ([], 0.0), ([], due)):
        book.due = due
        book.read(policy.registry, Answer(reply, 0.0, 0.0))
        assert at == book.due


def test_plain_names_read_no_marks(clean_redis: None, reads: list[str]) -> None:
    for _ in range(20):
        with Lock("plain"):
            pass
    assert [] == reads
    assert renewer("default").housekeeper.marks.due == math.inf


def test_marks_that_cannot_be_read_stay_in_force_and_it_is_said_once(
    raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    actions.pause("api")
    assert Semaphore("api", 1, key="k").acquire(blocking=False) is None
    raw.rename(marks_key(PREFIX), f"{PREFIX}:elsewhere")
    raw.set(marks_key(PREFIX), "no hash")
    caplog.clear()
    policy = policies[marks_key(PREFIX), "api"]
    for _ in range(3):
        policy.due = 0.0
        assert Semaphore("api", 1, key="k").acquire(blocking=False) is None
    said = [r for r in caplog.records if "overrides can't be read" in r.message]
    assert [logging.WARNING] == [r.levelno for r in said]
    raw.rename(f"{PREFIX}:elsewhere", marks_key(PREFIX))  # read in between: the next time is new
    policy.due = 0.0
    assert Semaphore("api", 1, key="k").acquire(blocking=False) is None
    raw.set(marks_key(PREFIX), "no hash")
    policy.due = 0.0
    assert Semaphore("api", 1, key="k").acquire(blocking=False) is None
    said = [r for r in caplog.records if "overrides can't be read" in r.message]
    assert [logging.WARNING] * 2 == [r.levelno for r in said]


def test_a_child_keeps_a_mark_of_its_own_until_its_policy_takes_it_back(raw: redis.Redis) -> None:
    actions.resize("api", "vip", 5)
    actions.resize("api", None, 2)
    assert (5, 2) == (status_of("api", "vip").limit, status_of("api", "other").limit)
    assert ("api", "vip") in names_in_use()
    assert ["api", "api@vip"] == actions.reset("api")
    assert (None, None) == (status_of("api", "vip").override, status_of("api", "other").override)
    assert set() == lasting(raw)


@both
async def test_a_child_can_be_taken_out_of_what_its_policy_is(io: Any, raw: redis.Redis) -> None:
    actions.pause("api")
    actions.resize("api", None, 3)
    assert ["api@vip"] == actions.resume("api", "vip")
    assert ["api@vip"] == actions.reset("api", "vip")
    assert await tries(io, "vip") and not await tries(io, "other")
    assert (1, 3) == (status_of("api", "vip").limit, status_of("api", "other").limit)
    assert ("api", "vip") in names_in_use()
    actions.pause("api")  # all of it again
    assert not await tries(io, "vip")
    actions.resume("api")
    actions.reset("api")
    assert await tries(io, "vip") and await tries(io, "other")
    assert set() == lasting(raw)


def test_a_flood_of_fresh_keys_makes_no_renewal_late(
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
