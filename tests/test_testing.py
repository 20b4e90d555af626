"""What projects are given for their own tests."""

import asyncio
import re
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.test import Client, RequestFactory, override_settings
from django.urls import path

from django_redis_sync import (
    Lease,
    Lock,
    ReadWriteLock,
    RLock,
    Semaphore,
    semaphore_required,
)
from django_redis_sync.engine.renewal import renewer
from django_redis_sync.limits import identity
from django_redis_sync.operators.actions import pause
from django_redis_sync.operators.names import names_in_use
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
        which = f"for {given['key']!r}" if given else "without a key"
        text = f"is limited by {by}, so it does not use the semaphore of 'kept' {which}:"
        assert text in str(caught.value)


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
    with Lock("one"), pytest.raises(AssertionError, match="permits are in use"), filled("one", 1):
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
        assert "mine:{a}:leases" == lease._settings.keys.leases


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


@pytest.mark.parametrize("key", ["ip", by_tenant])
def test_keyed_limits_hold_without_redis(key, no_redis) -> None:
    asked = RequestFactory().get("/x/?tenant=7")
    with seen("kept", key):
        assert 200 == Client().get("/x/?tenant=7").status_code
        with filled("kept", request=asked):
            assert 429 == Client().get("/x/?tenant=7").status_code


def test_statistics_are_not_kept_without_redis(clean_redis, caplog) -> None:
    housekeeper = renewer("default").housekeeper
    housekeeper.forget()
    with without_redis():
        with Lock("x"):
            pass
        assert housekeeper.statistics.events
        housekeeper._turn()
        housekeeper.statistics.hurry()
        housekeeper._turn()
        with Lock("x"):
            pass
    assert not housekeeper.statistics.events
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


def test_handle_is_adopted_without_redis(no_redis) -> None:
    with Lock("moving") as lease:
        handle = lease.detach()
    adopted = Lease.from_handle(handle)
    assert Lock("moving").locked()
    adopted.release()
    assert not Lock("moving").locked()


def test_waiters_get_permits_in_their_order_without_redis(no_redis) -> None:
    order, held = [], Lock("x").acquire()
    assert held

    def work(number: int) -> None:
        with Lock("x", blocking_timeout=10):
            order.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for number, thread in enumerate(threads, 1):
        thread.start()
        while Lock("x").status().waiting < number:
            time.sleep(0.001)
    assert 3 == Lock("x").status().waiting
    held.release()
    for thread in threads:
        thread.join()
    assert [0, 1, 2] == order


def test_the_limit_of_a_share_holds_without_redis(no_redis) -> None:
    first = Semaphore("x", 2, share="a", share_limit=1, blocking=False).acquire()
    assert first and not Semaphore("x", 2, share="a", share_limit=1, blocking=False).acquire()
    got = Semaphore("x", 2, share="a", share_limit=1, blocking=False)._take()
    assert "all permits of the share are in use" == str(got)
    waiting = Semaphore("x", 2, share="a", share_limit=1)
    with ThreadPoolExecutor(1) as thread:
        later = thread.submit(waiting.acquire, True, 30)
        while not Lock("x").status().waiting:
            time.sleep(0.001)
        assert Semaphore("x", 2, share="b", share_limit=1, blocking=False).acquire()
        first.release()
        assert later.result()


def test_waiter_that_gives_up_leaves_no_trace_without_redis(no_redis) -> None:
    with Lock("x"):
        assert Lock("x", blocking_timeout=0.03).acquire() is None
        assert 0 == Lock("x").status().waiting
    assert Lock("x").acquire(blocking=False)


def test_lease_is_renewed_and_outlives_its_timeout_without_redis(no_redis) -> None:
    lease = Lock("x", timeout=0.05).acquire()
    assert lease
    lease.renew()
    time.sleep(0.1)
    assert Lock("x").locked(), "a lease without Redis lasts until its release"


def test_operators_and_other_commands_are_refused_without_redis(no_redis) -> None:
    for needs_a_server in (lambda: pause("x"), names_in_use):
        with pytest.raises(NotImplementedError, match="needs a Redis server"):
            needs_a_server()
