"""What projects are given for their own tests."""

import asyncio
import re
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.test import Client, RequestFactory, override_settings
from django.urls import path

from django_redis_sync import (
    Lease,
    LeaseLost,
    Lock,
    ReadWriteLock,
    RLock,
    Semaphore,
    memory,
    semaphore_required,
)
from django_redis_sync.engine.keeper import keeper
from django_redis_sync.limits import identity
from django_redis_sync.memory import _VERBS, MemoryServer
from django_redis_sync.protocol.keys import keys_of
from django_redis_sync.protocol.plans import Run, Sleep, Wait
from django_redis_sync.protocol.scripts import ASIDE, VERBS
from django_redis_sync.testing import filled, limits_disabled, without_redis
from tests.request_site import gate  # noqa: F401 - the site's views import it

site = pytest.mark.urls("tests.request_site.urls")


@pytest.fixture
def no_redis(settings, monkeypatch):
    """Whoever asks a Redis fails."""
    from django_redis_sync.engine.server import AsyncServer, Server

    def refuse(*args):
        raise AssertionError("Redis was asked")

    for kind in (Server, AsyncServer):
        monkeypatch.setattr(kind, "__init__", refuse)
    with without_redis():
        yield


@site
@pytest.mark.django_db
def test_filled_makes_a_view_refuse(clean_redis) -> None:
    with filled("one", 1):
        assert 503 == Client().get("/limited/").status_code
    assert 200 == Client().get("/limited/").status_code


def test_locks_in_memory_are_adopted_once(no_redis) -> None:
    with Lock("moving") as lease:
        handle = lease.detach()
    adopted = Lease.from_handle(handle)
    with pytest.raises(LeaseLost, match="adopted before"):
        Lease.from_handle(handle)
    adopted.release()
    assert not Lock("moving").locked()


@site
@pytest.mark.django_db
def test_filled_takes_the_limit_from_the_settings(settings, clean_redis) -> None:
    settings.REDIS_SYNC = {
        **settings.REDIS_SYNC,
        "SEMAPHORES": {"exports": {"limit": 3}},
        "ENDPOINTS": {"free": {"limit": 2}},
    }
    settings.MIDDLEWARE = [
        *settings.MIDDLEWARE,
        "django_redis_sync.middleware.ConcurrencyLimitMiddleware",
    ]
    with filled("exports") as lease:
        assert 3 == lease.permits
    with filled("free") as lease:
        assert 2 == lease.permits
        assert 503 == Client().get("/free/").status_code
    with pytest.raises(ImproperlyConfigured), filled("unknown"):
        pass


def test_filled_is_full_for_a_view_that_says_more_than_the_settings(settings, no_redis) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": {"kept": {"limit": 1}}}
    with seen("kept", None):
        assert 200 == Client().get("/x/").status_code
        with filled("kept") as lease:
            assert 2 == lease.permits
            assert 503 == Client().get("/x/").status_code


def test_filled_needs_a_limit_that_is_a_number(no_redis) -> None:
    either = semaphore_required("kept", limit=lambda request: 5)(respond)
    routes = (
        path("a/", either, name="a"),
        path("b/", semaphore_required("kept", limit=2)(respond)),
    )
    with override_settings(ROOT_URLCONF=routes), filled("kept") as lease:
        assert 2 == lease.permits


def test_filled_fills_where_the_view_asks(settings, no_redis) -> None:
    settings.CACHES = {**settings.CACHES, "aside": settings.CACHES["default"]}
    with seen("kept", None, using="aside"):
        with filled("kept"):
            assert 503 == Client().get("/x/").status_code
        with filled("kept", request=RequestFactory().get("/x/")):
            assert 503 == Client().get("/x/").status_code
        with filled("kept", using="default"):
            assert 200 == Client().get("/x/").status_code


@site
@pytest.mark.django_db
def test_filled_for_a_user_leaves_others_alone(clean_redis) -> None:
    ann, bob = (User.objects.create_user(name) for name in ("ann", "bob"))
    client = Client()
    with filled("mine", 1, user=ann):
        client.force_login(ann)
        assert 429 == client.get("/mine/").status_code
        client.force_login(bob)
        assert 200 == client.get("/mine/").status_code


def by_tenant(request):
    return request.GET.get("tenant", "")


def respond(request):
    return HttpResponse()


def seen(name: str, key, **options):
    """Settings with one view, limited so."""
    view = semaphore_required(name, limit=2, key=key, **options)(respond)
    return override_settings(ROOT_URLCONF=(path("x/", view, name="shop"), path("free/", respond)))


@pytest.mark.parametrize("key", ["ip", "user", by_tenant, f"{__name__}.by_tenant", None])
def test_filled_fills_the_child_of_a_request(key, clean_redis) -> None:
    asked = RequestFactory().get("/x/?tenant=7")
    asked.user = AnonymousUser()
    with seen("kept", key):
        status = 503 if key is None else 429
        with filled("kept", request=asked) as lease:
            assert 2 == lease.permits
            assert status == Client().get("/x/?tenant=7").status_code
            others = Client(REMOTE_ADDR="10.9.8.7").get("/x/?tenant=8")
            assert (503 if key is None else 200) == others.status_code
        assert 200 == Client().get("/x/?tenant=7").status_code
        with filled("kept", 1, request=asked) as lease:
            assert 1 == lease.permits


@pytest.mark.parametrize(
    ("key", "child"),
    [("ip", identity.digest("ip", "127.0.0.1")), (by_tenant, identity.of_value("7"))],
    ids=["ip", "callable"],
)
def test_filled_fills_the_child_of_a_key_as_it_stands_in_redis(key, child, no_redis) -> None:
    with seen("kept", key), filled("kept", 2, key=child):
        assert 429 == Client().get("/x/?tenant=7").status_code


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("ip", {}),
        ("ip", {"key": "127.0.0.1"}),
        ("ip", {"user": User(pk=3)}),
        (by_tenant, {"key": "7"}),
        (by_tenant, {"user": User(pk=3)}),
        (by_tenant, {}),
        ("user", {}),
        ("user", {"user": AnonymousUser()}),
        (None, {"user": User(pk=3)}),
        (None, {"key": "7"}),
    ],
)
def test_filled_fails_when_the_view_would_use_another_child(key, given, clean_redis) -> None:
    with seen("kept", key), pytest.raises(AssertionError, match="give filled a request") as caught:
        filled("kept", 2, **given).__enter__()
    if "user" not in given:
        by = "a callable" if callable(key) else f"key={key!r}"
        other = repr(given["key"]) if given else "that without a key"
        assert f"is limited by {by}, and would use another child" in str(caught.value)
        assert f"of 'kept' than {other}:" in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"name": "other"}, "'other', but by kept"),
        ({"path": "/free/"}, "/free/ is not limited by 'kept', but by nothing"),
        ({"method": "POST"}, "does not limit POST"),
    ],
)
def test_filled_fails_for_a_request_that_nothing_limits(asked, said, clean_redis) -> None:
    request = RequestFactory().generic(asked.get("method", "GET"), asked.get("path", "/x/"))
    with seen("kept", "ip", methods=["GET"]), pytest.raises(AssertionError, match=said):
        filled(asked.get("name", "kept"), request=request).__enter__()


def test_filled_says_when_it_cannot(clean_redis) -> None:
    with Lock("one"), pytest.raises(AssertionError, match="permits are taken"), filled("one", 1):
        pass


@site
@pytest.mark.django_db
def test_limits_disabled_lets_all_in(clean_redis) -> None:
    with filled("one", 1):
        with limits_disabled():
            assert 200 == Client().get("/limited/").status_code
        assert 503 == Client().get("/limited/").status_code


@site
@pytest.mark.django_db
def test_limits_disabled_lets_all_in_without_settings(settings) -> None:
    del settings.REDIS_SYNC
    with without_redis(), Lock("one"), limits_disabled():
        assert 200 == Client().get("/limited/").status_code


def test_limits_disabled_changes_nothing_else(clean_redis, settings) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "KEY_PREFIX": "mine"}
    with limits_disabled(), Lock("a") as lease:
        assert "mine:{a}:leases" == lease.terms.keys.leases


def test_a_permit_stays_taken_from_the_grant_on_and_not_from_the_release(no_redis) -> None:
    with Lock("short", min_hold=0.01):
        time.sleep(0.03)
    assert not Lock("short").locked()
    with Lock("long", min_hold=100):
        pass
    assert Lock("long").locked()


def test_who_looks_again_within_two_seconds_keeps_its_place(monkeypatch) -> None:
    server, keys, now = MemoryServer(), keys_of("p", "x"), [1000.0]
    monkeypatch.setattr(memory, "time", SimpleNamespace(time=lambda: now[0]))

    def ask(token: str, how: str) -> list[str]:
        words = ("60000", how, "p 1", "1 1 - ", 0)
        return server.run(Run("acquire", keys.declared, (token, *words), 1.0)).reply

    for token in "abc":
        ask(token, "wait")
    now[0] += 0.99 * memory.PATIENCE
    assert [["wait", "1"], ["wait", "0"]] == [ask(token, "again")[::3] for token in "cb"]
    now[0] += 1.01 * memory.PATIENCE
    assert ["gone"] == ask("b", "again")


def test_a_waiter_in_memory_looks_again_often_for_nobody_wakes_it() -> None:
    assert memory.TICK == memory.pause(Wait(keys_of("p", "x"), "t", 60.0))
    assert 0.001 == memory.pause(Wait(keys_of("p", "x"), "t", 0.001))
    assert 60.0 == memory.pause(Sleep(60.0))


def said_in_memory(server: MemoryServer, verb: str, *argv: object) -> list:
    return server.run(Run(verb, keys_of("p", "x").declared, argv, 1.0)).reply


def test_an_operators_limit_in_memory_is_too_small_or_large_enough() -> None:
    server = MemoryServer()
    three = ("60000", "try", "p 2", "3 2 - ", 0)
    assert ["large", "2"] == said_in_memory(server, "acquire", "a", *three)
    for limit, reply in (("3", "ok"), ("1", "large")):
        said_in_memory(server, "operate", "", "resize", limit, "-", 0)
        assert reply == said_in_memory(server, "acquire", f"b{limit}", *three)[0]
    full = said_in_memory(server, "acquire", "c", "60000", "try", "p 1", "1 3 - ", 0)
    assert ["no", "full", "0", "", "1"] == full


def test_who_waits_in_memory_is_shown_since_when_and_until_when_it_is_believed_in() -> None:
    server, terms = MemoryServer(), ("p 1", "1 1 - ", 0)
    said_in_memory(server, "acquire", "a", "60000", "try", *terms)
    before = time.time()
    said_in_memory(server, "acquire", "b", "60000", "wait", *terms)
    token, since, until, _ = said_in_memory(server, "inspect", "", 9)[-1]
    assert "b" == token
    assert before - 1 <= int(since) / 10**6 <= time.time() + 1
    assert before + 1 < float(until) / 1000 <= time.time() + memory.PATIENCE + 1


def test_of_those_in_memory_as_many_are_shown_as_are_asked_for() -> None:
    server = MemoryServer()
    for token in "abcd":
        said_in_memory(server, "acquire", token, "60000", "wait", "p 2", "1 2 - ", 0)
    *_, used, held, queued, holders, waiters = said_in_memory(server, "inspect", "", 1)
    assert ("2", 2, 2) == (used, held, queued)
    assert (["a"], ["c"]) == (holders[::3], waiters[::4])


def test_a_fence_in_memory_grows_within_a_moment_too(monkeypatch) -> None:
    server, now = MemoryServer(), time.time()
    monkeypatch.setattr(memory.time, "time", lambda: now)
    fences = [
        int(said_in_memory(server, "acquire", token, "60000", "try", "p 3", "1 3 - ", 0)[1])
        for token in "abc"
    ]
    assert sorted(set(fences)) == fences


@pytest.mark.parametrize(("token", "off"), [("a", 1), ("b", 0)])
def test_a_lease_in_memory_is_lost_under_another_fence_or_token(token: str, off: int) -> None:
    server = MemoryServer()
    _, fence, _ = said_in_memory(server, "acquire", "a", "60000", "try", "p 1", "1 1 - ", 0)
    other = int(fence) + off
    assert ["lost"] == said_in_memory(server, "renew", token, other, "set", "9", 1, 0, 0)
    assert ["lost"] == said_in_memory(server, "release", token, other, 0)
    assert ["ok"] == said_in_memory(server, "release", "a", fence, 0)


def test_a_lease_in_memory_is_adopted_by_whoever_knows_its_last_renewal() -> None:
    server = MemoryServer()
    _, fence, _ = said_in_memory(server, "acquire", "a", "60000", "try", "p 1", "1 1 - ", 0)
    said = [("set", 3, 0), ("adopt", 4, 3), ("adopt", 4, 3), ("adopt", 5, 3)]
    replies = [
        said_in_memory(server, "renew", "a", fence, how, "60000", nth, known, 0)[0]
        for how, nth, known in said
    ]
    assert ["ok", "ok", "ok", "adopted"] == replies


def test_the_server_in_memory_knows_the_time_and_says_what_it_does_not_know() -> None:
    server = MemoryServer()
    before = time.time_ns() // 1000
    seconds, microseconds = map(int, server.command("TIME"))
    assert before <= seconds * 10**6 + microseconds <= time.time_ns() // 1000
    assert 0 <= microseconds < 10**6
    assert "PONG" == server.command("PING")
    with pytest.raises(NotImplementedError, match="DBSIZE"):
        server.command("DBSIZE")


# As decorators


def test_an_async_function_is_decorated_for_as_long_as_it_runs(no_redis) -> None:
    @filled("x", 1)
    async def ask() -> Lease | None:
        await asyncio.sleep(0)
        return await Lock("x").aacquire(blocking=False)

    for _ in range(2):
        assert asyncio.run(ask()) is None
    assert not Lock("x").locked()


def test_a_test_case_is_decorated_for_each_of_its_tests(no_redis) -> None:
    tries = []

    @filled("x", 1)
    class Tests(unittest.IsolatedAsyncioTestCase):
        def setUp(self) -> None:
            self.addCleanup(lambda: tries.append(Lock("x").locked()))

        def test_threads(self) -> None:
            tries.append(Lock("x").acquire(blocking=False))

        async def test_tasks(self) -> None:
            tries.append(await Lock("x").aacquire(blocking=False))

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Tests).run(result)
    assert (2, [], []) == (result.testsRun, result.errors, result.failures)
    assert [None, True] * 2 == tries
    assert not Lock("x").locked()


def test_what_a_decorated_function_returns_is_returned() -> None:
    async def later(value: int) -> int:
        return value

    assert 7 == limits_disabled()(lambda value: value)(7)
    assert 7 == asyncio.run(limits_disabled()(later)(7))


def test_whatever_would_run_outside_of_the_block_is_not_decorated() -> None:
    def generated():
        yield

    async def agenerated():
        yield

    for decorated in (object, generated, agenerated):
        with pytest.raises(
            TypeError, match=f"not {re.escape(repr(decorated))}: use it as a `with`"
        ):
            limits_disabled()(decorated)


# Without Redis


def test_every_verb_is_known_without_redis() -> None:
    assert {*VERBS, *ASIDE} == set(_VERBS)


@pytest.mark.parametrize("key", ["ip", by_tenant])
def test_keyed_limits_hold_without_redis(key, no_redis) -> None:
    asked = RequestFactory().get("/x/?tenant=7")
    with seen("kept", key):
        assert 200 == Client().get("/x/?tenant=7").status_code
        with filled("kept", request=asked):
            assert 429 == Client().get("/x/?tenant=7").status_code


def test_statistics_are_not_kept_without_redis(clean_redis, caplog) -> None:
    clerk = keeper("default").clerk
    clerk.forget()
    with without_redis():
        with Lock("x"):
            pass
        assert clerk.tally.events
        clerk._turn()
        clerk.tally.hurry()
        clerk._turn()
        with Lock("x"):
            pass
    assert not clerk.tally.events
    assert [] == caplog.messages


@site
@pytest.mark.django_db
def test_views_are_limited_without_redis(no_redis) -> None:
    assert 200 == Client().get("/limited/").status_code
    with filled("one", 1):
        assert 503 == Client().get("/limited/").status_code
        assert 503 == Client().get("/alimited/").status_code
    assert 0 == Semaphore("one", 1).status().in_use


def test_a_lock_excludes_waits_and_grows_its_fence_without_redis(no_redis) -> None:
    fences, inside = [], []

    def work() -> None:
        with Lock("x", blocking_timeout=10) as lease:
            inside.append(1)
            assert 1 == sum(inside)
            fences.append(lease.fence)
            time.sleep(0.002)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(set(fences)) == fences and 20 == len(fences)


def test_tasks_share_permits_with_threads_without_redis(no_redis) -> None:
    peak = []
    inside = 0

    async def work() -> None:
        nonlocal inside
        async with Semaphore("x", 2, blocking_timeout=10):
            inside += 1
            peak.append(inside)
            await asyncio.sleep(0.001)
            inside -= 1

    async def main() -> None:
        await asyncio.gather(*(work() for _ in range(20)))

    with Lock("y"):
        asyncio.run(main())
    assert 2 == max(peak)


def test_leases_expire_and_are_renewed_without_redis(no_redis) -> None:
    hard = Lock("x", timeout=0.2).acquire()
    assert Lock("x", blocking_timeout=5).acquire()
    with pytest.raises(LeaseLost):
        hard.renew()
    with Lock("y", timeout=2, renew=True) as kept:
        time.sleep(3)
        assert kept.held


def elsewhere(call):
    """What a call returns in another thread."""
    with ThreadPoolExecutor() as threads:
        return threads.submit(call).result()


def test_the_other_faces_work_without_redis(no_redis) -> None:
    lock = RLock("r")
    with lock, lock:
        assert lock.locked()
    both = ReadWriteLock("rw", blocking=False)

    def read() -> None:
        with both.read:
            pass

    with both.read, both.read:
        assert elsewhere(both.write.acquire) is None
        elsewhere(read)
    with both.write:
        assert elsewhere(both.read.acquire) is None
    with pytest.raises(TypeError), Lock("x"), ReadWriteLock("x").read:
        pass
    status = Semaphore("s", 3).status()
    with Semaphore("s", 3) as lease:
        status = Semaphore("s", 3).status()
        assert (1, 3, lease.fence) == (status.in_use, status.limit, status.holders[0].fence)


def test_each_block_without_redis_starts_empty(no_redis) -> None:
    with Lock("x"), without_redis():
        assert not Lock("x").locked()
