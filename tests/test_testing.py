"""The helpers for the tests of projects: filled, limits_disabled, and without_redis."""

import asyncio
import re
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError
from django.test import RequestFactory

from django_redis_sync import (
    Lease,
    Lock,
    NotAcquired,
    ReadWriteLock,
    RLock,
    Semaphore,
    semaphore_required,
)
from django_redis_sync.locks.jobs import Job, adopted, wait_for_handle
from django_redis_sync.testing import filled, limits_disabled, without_redis
from tests.behaviour.both import MAX_WAIT, Async, Sync, eventually
from tests.request_site.project import OBEYING, call, facts, key_in, respond_ok
from tests.support.commands import locks


@pytest.fixture
def no_redis(project):
    """Run the test inside without_redis(). No Redis server runs at the address of the cache."""
    project.lose_redis()
    with without_redis():
        yield


def by_tenant(request):
    return request.GET.get("tenant", "-")


@pytest.fixture
def shop(project):
    """Return a function that serves /shop/, with a limit of 2, and /free/, without a limit. The
    arguments of the function are options of the limit."""

    def limit(**options):
        project.settings.MIDDLEWARE = [OBEYING]
        limited = semaphore_required("shop", **{"limit": 2, **options})(respond_ok)
        project.serve(shop=limited, free=respond_ok)

    return limit


def status(path="/shop/", **options):
    return call(path, **options).status_code


# filled


def test_filled_takes_as_many_permits_as_the_highest_limit_in_settings_and_views(
    project, shop, no_redis
):
    shop()
    project.with_middleware(
        SEMAPHORES={"exports": {"limit": 3}, "shop": {"limit": 1}},
        ENDPOINTS={"free": {"limit": 2}, "other": {"name": "shop", "limit": 1}},
    )
    by_request = semaphore_required("shop", limit=lambda request: 9)(respond_ok)
    project.serve(by_request=by_request, mistake=semaphore_required("none")(respond_ok))
    for name, permits, path in (("exports", 3, ""), ("free", 2, "/free/"), ("shop", 2, "/shop/")):
        with filled(name) as lease:
            assert permits == lease.permits
            assert not path or [503, 503] == [status(path, asgi=asgi) for asgi in (False, True)]
            with pytest.raises(AssertionError, match="permits are in use"):
                filled(name).__enter__()
    with pytest.raises(ImproperlyConfigured):
        filled("unknown").__enter__()
    project.settings.ROOT_URLCONF = "no.such.module"
    with filled("shop") as lease:
        assert 1 == lease.permits


def test_filled_uses_the_cache_and_the_share_limit_of_the_view(project, shop, no_redis):
    caches = project.settings.CACHES
    project.settings.CACHES = {**caches, "other": caches["default"]}
    shop(using="other", limit=3, share=by_tenant, share_limit=2)
    request = {"request": RequestFactory().get("/shop/")}
    for options, permits, statuses in (
        ({}, 3, [503, 503]),
        (request, 3, [503, 503]),
        ({"share": "a"}, 2, [429, 200]),
        ({"share": "a", "share_limit": 9, "limit": 3}, 3, [429, 503]),
        ({"using": "default"}, 3, [200, 200]),
    ):
        with filled("shop", **options) as lease:
            assert permits == lease.permits
            assert statuses == [status(f"/shop/?tenant={tenant}") for tenant in "ab"], options


def test_waits_are_over_until_the_last_filled_of_a_name_ends(no_redis):
    exports = partial(Semaphore, "exports", 2, share_limit=1, thread_local=False)
    filled_share = partial(filled, "exports", 2, share_limit=1)
    wait = exports(share="a", blocking_timeout=3 * MAX_WAIT).acquire
    with ThreadPoolExecutor(1) as threads, filled_share(share="a"):
        with filled_share(share="b"):
            assert threads.submit(wait).result(MAX_WAIT) is None
        assert threads.submit(wait).result(MAX_WAIT) is None, "an inner block ended the outer one"


MINE, OTHER = "/shop/?user=7&tenant=7", "/shop/?user=8&tenant=8"


@pytest.mark.parametrize(
    ("key", "given", "permits"),
    [
        *((key, "request", 2) for key in ("ip", "user", by_tenant, f"{__name__}.by_tenant", None)),
        *((key, "request", 1) for key in ("ip", None)),
        *((key, "shown key", 2) for key in ("ip", "user", by_tenant)),
        ("user", "user", 2),
    ],
)
def test_filled_takes_only_the_permits_for_the_given_request_user_or_key(
    shop, clean_redis, key, given, permits
):
    shop(key=key, limit=permits)
    options = {"request": RequestFactory().get(MINE)} if given == "request" else {}
    if given == "request":
        options["request"].user = User(pk=7)
    elif given == "user":
        options["user"] = User(pk=7)
    else:  # pass the key that operators see
        assert 200 == status(MINE)
        options["key"] = key_in("shop")
    full, free = (503, 503) if key is None else (429, 200)
    with filled("shop", **options) as lease:
        assert permits == lease.permits
        assert [full, free] == [status(MINE), status(OTHER, REMOTE_ADDR="10.9.8.7")]
    assert 200 == status(MINE)
    if given == "request":
        with filled("shop", 1, **options) as lease:
            assert 1 == lease.permits


@pytest.mark.parametrize(
    ("key", "given", "message"),
    [
        ("ip", {}, "shop is limited by key='ip', so its requests don't use the semaphore 'shop' w"),
        ("ip", {"key": "127.0.0.1"}, "by key='ip', .* 'shop' for '127.0.0.1'"),
        (by_tenant, {"key": "7"}, "limited by a callable, .* for '7'"),
        (by_tenant, {}, "limited by a callable, .* without a key"),
        ("user", {}, "limited by key='user', .* without a key"),
        (None, {"key": "7"}, "limited by key=None, .* for '7'"),
        *(
            (key, {"user": User(pk=3)}, r"pass a request to filled\(\)")
            for key in ("ip", by_tenant, None)
        ),
        ("user", {"user": AnonymousUser()}, "anonymous users are limited by address"),
        ("ip", {"name": "other", "request": "GET /shop/"}, "by 'other'. Its policies: shop"),
        ("ip", {"request": "GET /free/"}, "/free/ is not limited by 'shop'. Its policies: none"),
        ("ip", {"request": "POST /shop/"}, "does not limit POST of /shop/"),
    ],
)
def test_filled_fails_when_the_view_would_use_another_semaphore(
    shop, no_redis, key, given, message
):
    shop(key=key, methods=["GET"])
    options = {"name": "shop", "limit": 2, **given}
    if "request" in given:
        options["request"] = RequestFactory().generic(*given["request"].split())
    with pytest.raises(AssertionError, match=message):
        filled(**options).__enter__()


# limits_disabled


def test_filled_takes_a_name_of_a_decorator_that_is_similar_to_another_name(
    project, shop, no_redis
):
    # The view of a framework calls this function, so no view of the URLconf has the decorator.
    limited = semaphore_required("exports-daily", limit=2)(respond_ok)
    project.settings.REDIS_SYNC = {"SEMAPHORES": {"export-daily": {"limit": 1}}}
    with pytest.raises(ImproperlyConfigured, match=r"Write filled\('exports-daily', limit\)"):
        filled("exports-daily").__enter__()
    with filled("exports-daily", 2):
        assert 503 == limited(RequestFactory().get("/")).status_code
    with (
        pytest.raises(AssertionError, match="did you mean 'exports-daily'"),
        filled("exports-dail", 2),
    ):
        pass


def test_helper_limits_disabled_admits_all_requests(project, shop, raw):
    project.configure(KEY_PREFIX="mine")
    shop()
    with filled("shop"):
        with limits_disabled(), Lock("a"):
            assert 200 == status()
            assert [*raw.scan_iter("mine:{a}:*")]
        assert 503 == status()
    del project.settings.REDIS_SYNC
    with without_redis(), Lock("shop"), limits_disabled():
        assert 200 == status()


# The helpers as decorators


def test_helper_as_a_decorator_is_in_force_while_the_function_runs(no_redis):
    @filled("x", 1)
    def held():
        return Lock("x").locked()

    @filled("x", 1)
    async def aheld():
        await asyncio.sleep(0)
        return await Lock("x").alocked()

    for _ in range(2):
        assert [True, True] == [held(), asyncio.run(aheld())]
    assert not Lock("x").locked()


def test_helper_as_decorator_of_a_test_case_is_in_force_in_each_of_its_tests(no_redis):
    found = []

    @filled("x", 1)
    class Tests(unittest.IsolatedAsyncioTestCase):
        def setUp(self):
            self.addCleanup(lambda: found.append(Lock("x").locked()))

        def test_sync_lock(self):
            found.append(Lock("x").acquire(blocking=False))

        async def test_async_lock(self):
            found.append(await Lock("x").aacquire(blocking=False))

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Tests).run(result)
    assert (2, [], []) == (result.testsRun, result.errors, result.failures)
    assert [None, True] * 2 == found
    assert not Lock("x").locked()


def test_helper_as_decorator_of_a_generator_or_plain_class_raises_type_error():
    def generated():
        yield

    async def agenerated():
        yield

    for decorated in (object, generated, agenerated):
        message = re.escape(f"this helper can't decorate {decorated!r}")
        with pytest.raises(TypeError, match=message):
            limits_disabled()(decorated)


# without_redis


def in_thread(call):
    with ThreadPoolExecutor() as threads:
        return threads.submit(call).result()


def test_limit_applies_to_threads_and_tasks_together_without_redis(no_redis):
    semaphore, inside, peaks = partial(Semaphore, "x", 2, blocking_timeout=30), [], []

    async def work(io):
        async with io.entered(semaphore()) as lease:
            inside.append(lease.fence)
            peaks.append(len({*inside}))
            await io.sleep(0.002)
            inside.remove(lease.fence)

    with ThreadPoolExecutor(2) as threads:
        for io in (Sync(), Async()):
            threads.submit(io.run, io.gather(*(work(io) for _ in range(20))))
    assert (40, 2) == (len(peaks), max(peaks))


def test_request_waits_until_its_turn_although_the_queue_is_full_without_redis(no_redis, shop):
    shop(limit=1, max_waiters=1, blocking_timeout=MAX_WAIT)
    holder = Semaphore("shop", 1, thread_local=False).acquire()
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(status)
        eventually(lambda: Semaphore("shop", 1).status().waiting == 1)
        assert 503 == status(), "max_waiters requests wait"
        holder.release()
        assert 200 == waits.result(2 * MAX_WAIT)


def test_locks_and_semaphores_work_without_redis(no_redis):
    lock, both = RLock("r"), ReadWriteLock("rw", blocking=False)
    with lock as first, lock:
        assert lock.locked()
    with lock as second:
        assert first.fence < second.fence
    with both.read, both.read:
        assert in_thread(both.write.acquire) is None
        in_thread(lambda: both.read.acquire().release())
    with both.write as lease:
        assert in_thread(both.read.acquire) is None
        lease.downgrade()
        in_thread(lambda: both.read.acquire().release())
    with Lock("x"), pytest.raises(TypeError, match="in use as a plain lock"):
        ReadWriteLock("x").read.acquire()
    with Semaphore("s", 3) as lease:
        status = Semaphore("s", 3).status()
        assert (1, 3, lease.fence) == (status.in_use, status.limit, status.holders[0].fence)
    with Lock("x"), without_redis():
        assert not Lock("x").locked(), "each block starts empty"


def test_lease_ends_at_its_timeout_and_can_be_adopted_without_redis(no_redis):
    assert Lock("x", timeout=0.05).acquire() is not None
    with Lock("x", blocking_timeout=60):
        pass
    with Lock("moving") as lease:
        lease.renew()
        handle = lease.detach()
    adopted = Lease.from_handle(handle)
    assert Lock("moving").locked()
    adopted.release()
    assert not Lock("moving").locked()


def test_job_of_a_task_queue_gets_its_permit_in_turn_without_redis(no_redis):
    semaphore, job = Semaphore("exports", 1), Job("shop.tasks.export", "1")
    handles = []
    with semaphore:
        waiting = threading.Thread(
            target=lambda: handles.append(wait_for_handle(semaphore, job, 0.0, lambda: None))
        )
        waiting.start()
        eventually(lambda: semaphore.status().waiting == 1)
        assert handles == []
    waiting.join(MAX_WAIT)
    with adopted(handles[0], semaphore) as lease:
        assert lease.held and not Semaphore("exports", 1).acquire(blocking=False)
    with semaphore:
        pass


def test_waiters_are_served_in_order_within_the_limit_of_their_share_without_redis(no_redis):
    def of(share, timeout=60):
        return Semaphore("x", 2, share=share, share_limit=1, blocking_timeout=timeout)

    order, leave = [], threading.Event()
    first = of("a").acquire()
    with pytest.raises(NotAcquired, match="all permits of the share are in use"), of("a", 0):
        pass
    assert of("a", 0.03).acquire() is None
    assert 0 == Lock("x").status().waiting, "a waiter that timed out is in the queue"

    def work(number):
        with of("a"):
            order.append(number)
            leave.wait(10)

    with ThreadPoolExecutor(3) as threads:
        for number in range(3):
            threads.submit(work, number)
            eventually(lambda number=number: Lock("x").status().waiting == number + 1)
        of("b", 0).acquire().release()
        first.release()
        assert of("a", 0).acquire() is None
        leave.set()
    assert [0, 1, 2] == order
    assert of("a", 0).acquire()


def test_operators_see_nothing_of_names_that_were_used_without_redis(clean_redis):
    with without_redis():
        with Lock("x"):
            pass
        for words in (("pause", "x", "--create"), ("status",), ("doctor",)):
            with pytest.raises(CommandError, match="needs a Redis server"):
                locks(*words)
    with Lock("y"):
        assert 1 == facts("y")[0]["ever"]["granted"]
    with pytest.raises(CommandError, match="Unknown name: x"):
        locks("status", "x")
