"""The helpers for the tests of projects: filled, limits_disabled, and without_redis."""

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
    NotAcquired,
    ReadWriteLock,
    RLock,
    Semaphore,
    semaphore_required,
)
from django_redis_sync.engine.renewal import renewer
from django_redis_sync.engine.wire import clock
from django_redis_sync.limits import identity
from django_redis_sync.operators.actions import pause
from django_redis_sync.operators.names import names_in_use
from django_redis_sync.testing import filled, limits_disabled, without_redis

site = pytest.mark.urls("tests.request_site.urls")


@pytest.fixture
def no_redis(settings, monkeypatch):
    """Enter without_redis(). A connection to a Redis server fails."""
    from django_redis_sync.engine.server import AsyncServer, Server

    def fail(*args):
        raise AssertionError("the code connects to Redis")

    for kind in (Server, AsyncServer):
        monkeypatch.setattr(kind, "__init__", fail)
    with without_redis():
        yield


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


def test_filled_uses_the_highest_limit_of_settings_and_views(settings, no_redis) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": {"shop": {"limit": 1}}}
    with limited_site(None):
        assert 200 == Client().get("/x/").status_code
        with filled("shop") as lease:
            assert 2 == lease.permits
            assert 503 == Client().get("/x/").status_code


def test_filled_ignores_callable_limits(no_redis) -> None:
    limits = (lambda request: 5, 2)
    views = [semaphore_required("shop", limit=limit)(respond) for limit in limits]
    routes = (path("a/", views[0], name="a"), path("b/", views[1]))
    with override_settings(ROOT_URLCONF=routes), filled("shop") as lease:
        assert 2 == lease.permits


def test_filled_uses_the_cache_of_the_view(settings, no_redis) -> None:
    settings.CACHES = {**settings.CACHES, "other": settings.CACHES["default"]}
    with limited_site(None, using="other"):
        with filled("shop"):
            assert 503 == Client().get("/x/").status_code
        with filled("shop", request=RequestFactory().get("/x/")):
            assert 503 == Client().get("/x/").status_code
        with filled("shop", using="default"):
            assert 200 == Client().get("/x/").status_code


@site
@pytest.mark.django_db
def test_filled_with_a_user_takes_only_the_permits_of_that_user(clean_redis) -> None:
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


def limited_site(key, **options):
    """Override the URLconf: /x/ has the limit "shop" with 2 permits, /free/ has no limit."""
    view = semaphore_required("shop", limit=2, key=key, **options)(respond)
    return override_settings(ROOT_URLCONF=(path("x/", view, name="shop"), path("free/", respond)))


@pytest.mark.parametrize("key", ["ip", "user", by_tenant, f"{__name__}.by_tenant", None])
def test_filled_for_a_request_fills_the_semaphore_of_its_key(key, clean_redis) -> None:
    request = RequestFactory().get("/x/?tenant=7")
    request.user = AnonymousUser()
    with limited_site(key):
        status = 503 if key is None else 429
        with filled("shop", request=request) as lease:
            assert 2 == lease.permits
            assert status == Client().get("/x/?tenant=7").status_code
            other = Client(REMOTE_ADDR="10.9.8.7").get("/x/?tenant=8")
            assert (503 if key is None else 200) == other.status_code
        assert 200 == Client().get("/x/?tenant=7").status_code
        with filled("shop", 1, request=request) as lease:
            assert 1 == lease.permits


@pytest.mark.parametrize(
    ("key", "given"),
    [("ip", identity.digest("ip", "127.0.0.1")), (by_tenant, identity.of_value("7"))],
    ids=["ip", "callable"],
)
def test_filled_for_a_key_takes_the_key_as_it_is_in_redis(key, given, no_redis) -> None:
    with limited_site(key):
        assert 200 == Client().get("/x/?tenant=7").status_code
        by_request = {"request": RequestFactory().get("/x/?tenant=7")}
        for options in ({"key": given}, by_request):
            with filled("shop", 2, **options):
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
def test_filled_fails_when_the_view_would_use_another_key(key, given, clean_redis) -> None:
    with limited_site(key), pytest.raises(AssertionError, match="give filled a request") as caught:
        filled("shop", 2, **given).__enter__()
    if "user" not in given:
        by = "a callable" if callable(key) else f"key={key!r}"
        which = f"for {given['key']!r}" if given else "without a key"
        text = f"is limited by {by}, so it does not use the semaphore of 'shop' {which}:"
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("name", "method", "path", "message"),
    [
        ("other", "GET", "/x/", "'other', but by shop"),
        ("shop", "GET", "/free/", "/free/ is not limited by 'shop', but by nothing"),
        ("shop", "POST", "/x/", "does not limit POST"),
    ],
)
def test_filled_fails_for_a_request_that_is_not_limited(
    name, method, path, message, clean_redis
) -> None:
    request = RequestFactory().generic(method, path)
    with limited_site("ip", methods=["GET"]), pytest.raises(AssertionError, match=message):
        filled(name, request=request).__enter__()


def test_filled_fails_when_permits_are_in_use(clean_redis) -> None:
    with Lock("one"), pytest.raises(AssertionError, match="permits are in use"), filled("one", 1):
        pass


@site
@pytest.mark.django_db
def test_limits_disabled_admits_all_requests(clean_redis) -> None:
    with filled("one", 1):
        with limits_disabled():
            assert 200 == Client().get("/limited/").status_code
        assert 503 == Client().get("/limited/").status_code


@site
@pytest.mark.django_db
def test_limits_disabled_admits_all_requests_without_settings(settings) -> None:
    del settings.REDIS_SYNC
    with without_redis(), Lock("one"), limits_disabled():
        assert 200 == Client().get("/limited/").status_code


def test_limits_disabled_does_not_change_the_key_prefix(raw, settings) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "KEY_PREFIX": "mine"}
    with limits_disabled(), Lock("a"):
        assert [*raw.scan_iter("mine:{a}:*")]


# The helpers as decorators


def test_decorated_async_function_runs_inside_the_block(no_redis) -> None:
    @filled("x", 1)
    async def acquire() -> Lease | None:
        await asyncio.sleep(0)
        return await Lock("x").aacquire(blocking=False)

    for _ in range(2):
        assert asyncio.run(acquire()) is None
    assert not Lock("x").locked()


def test_decorated_test_case_runs_each_test_inside_its_own_block(no_redis) -> None:
    found = []

    @filled("x", 1)
    class Tests(unittest.IsolatedAsyncioTestCase):
        def setUp(self) -> None:
            self.addCleanup(lambda: found.append(Lock("x").locked()))

        def test_threads(self) -> None:
            found.append(Lock("x").acquire(blocking=False))

        async def test_tasks(self) -> None:
            found.append(await Lock("x").aacquire(blocking=False))

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Tests).run(result)
    assert (2, [], []) == (result.testsRun, result.errors, result.failures)
    assert [None, True] * 2 == found
    assert not Lock("x").locked()


def test_decorated_function_returns_its_result() -> None:
    async def later(value: int) -> int:
        return value

    assert 7 == limits_disabled()(lambda value: value)(7)
    assert 7 == asyncio.run(limits_disabled()(later)(7))


def test_decorating_a_generator_or_another_class_raises_type_error() -> None:
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


def test_statistics_are_not_kept_without_redis(clean_redis, caplog) -> None:
    housekeeper = renewer("default").housekeeper
    housekeeper.forget()
    with without_redis():
        with Lock("x"):
            pass
        assert housekeeper.statistics.events
        housekeeper.finish(clock() + 30)  # writes all entries
        assert not housekeeper.statistics.events
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


def test_lock_is_exclusive_and_its_fence_grows_without_redis(no_redis) -> None:
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


def in_another_thread(call):
    with ThreadPoolExecutor() as threads:
        return threads.submit(call).result()


def test_other_primitives_and_status_work_without_redis(no_redis) -> None:
    lock = RLock("r")
    with lock, lock:
        assert lock.locked()
    both = ReadWriteLock("rw", blocking=False)

    def read() -> None:
        with both.read:
            pass

    with both.read, both.read:
        assert in_another_thread(both.write.acquire) is None
        in_another_thread(read)
    with both.write:
        assert in_another_thread(both.read.acquire) is None
    with pytest.raises(TypeError), Lock("x"), ReadWriteLock("x").read:
        pass
    with Semaphore("s", 3) as lease:
        status = Semaphore("s", 3).status()
        assert (1, 3, lease.fence) == (status.in_use, status.limit, status.holders[0].fence)


def test_each_without_redis_block_starts_empty(no_redis) -> None:
    with Lock("x"), without_redis():
        assert not Lock("x").locked()


def test_handle_is_adopted_without_redis(no_redis) -> None:
    with Lock("moving") as lease:
        handle = lease.detach()
    adopted = Lease.from_handle(handle)
    assert Lock("moving").locked()
    adopted.release()
    assert not Lock("moving").locked()


def test_waiters_get_permits_in_order_of_arrival_without_redis(no_redis) -> None:
    order, held, leave = [], Lock("x").acquire(), threading.Event()
    assert held

    def work(number: int) -> None:
        with Lock("x", blocking_timeout=10):
            order.append(number)
            leave.wait(10)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for number, thread in enumerate(threads, 1):
        thread.start()
        while Lock("x").status().waiting < number:
            time.sleep(0.001)
    assert 3 == Lock("x").status().waiting
    held.release()
    assert Lock("x").acquire(blocking=False) is None
    leave.set()
    for thread in threads:
        thread.join()
    assert [0, 1, 2] == order


def test_limit_of_a_share_holds_without_redis(no_redis) -> None:
    first = Semaphore("x", 2, share="a", share_limit=1, blocking=False).acquire()
    assert first and not Semaphore("x", 2, share="a", share_limit=1, blocking=False).acquire()
    full = pytest.raises(NotAcquired, match="all permits of the share are in use")
    with full, Semaphore("x", 2, share="a", share_limit=1, blocking=False):
        pass
    waiting = Semaphore("x", 2, share="a", share_limit=1)
    with ThreadPoolExecutor(1) as thread:
        later = thread.submit(waiting.acquire, True, 30)
        while not Lock("x").status().waiting:
            time.sleep(0.001)
        assert Semaphore("x", 2, share="b", share_limit=1, blocking=False).acquire()
        first.release()
        assert later.result()


def test_waiter_that_times_out_leaves_the_queue_without_redis(no_redis) -> None:
    with Lock("x"):
        assert Lock("x", blocking_timeout=0.03).acquire() is None
        assert 0 == Lock("x").status().waiting
    assert Lock("x").acquire(blocking=False)


def test_lease_lasts_until_its_release_without_redis(no_redis) -> None:
    kept = Lock("x", timeout=0.05).acquire()
    time.sleep(0.1)
    assert Lock("x").locked()
    del kept
    with Lock("y") as lease:
        lease.renew()


def test_operator_functions_raise_not_implemented_error_without_redis(no_redis) -> None:
    for needs_a_server in (lambda: pause("x"), names_in_use):
        with pytest.raises(NotImplementedError, match="needs a Redis server"):
            needs_a_server()
