"""The helpers for tests, in suites as projects have them: after outages, and with shares."""

import copy
import time

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import TestCase

from django_redis_sync import (
    Lock,
    ReadWriteLock,
    RLock,
    Semaphore,
    acquire_all,
    semaphore_required,
)
from django_redis_sync.engine.server import Server
from django_redis_sync.limits.breaker import breaker
from django_redis_sync.protocol.steps import Failure
from django_redis_sync.testing import filled, without_redis
from tests.behaviour.both import both, queued
from tests.behaviour.watching import View
from tests.request_site.project import OBEYING, call, respond_ok


@pytest.fixture
def shop(project):
    """Return a function that serves /shop/ with a limit. Its arguments are the limit's options."""

    def limit(**options):
        project.settings.MIDDLEWARE = [OBEYING]
        project.serve(shop=semaphore_required("shop", **{"limit": 2, **options})(respond_ok))

    return limit


def status(path="/shop/", **options):
    return call(path, **options).status_code


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_helpers_work_after_an_outage_that_an_earlier_test_has_seen(project, shop, asgi):
    shop(on_outage="open")
    project.lose_redis()
    assert 200 == status(asgi=asgi) and breaker("default").down
    with without_redis():
        with filled("shop"):
            assert 503 == status(asgi=asgi)
        assert 200 == status(asgi=asgi)
    assert 200 == status(asgi=asgi) and breaker("default").down


def test_filled_works_after_an_outage_that_an_earlier_test_has_seen(project, shop, raw):
    shop(on_outage="open")
    redis = breaker("default")
    redis.failed(redis.allow(), OSError("down"))
    assert redis.down and 200 == status()
    with filled("shop"):
        assert 503 == status()


@pytest.mark.parametrize("helper", [without_redis, None], ids=["without Redis", "with Redis"])
def test_filled_holds_all_permits_if_the_settings_have_a_share_limit(project, shop, raw, helper):
    shop(limit=10, share=lambda request: request.GET.get("tenant"))
    project.with_middleware(SEMAPHORES={"shop": {"limit": 10, "share_limit": 3}})
    with helper() if helper else filled("other", 1):
        with filled("shop") as lease:
            assert 10 == lease.permits
            assert [503, 503] == [status(), status("/shop/?tenant=a")]
            assert Semaphore("shop", share="b", blocking=False).acquire() is None
        with filled("shop", share="a") as lease:
            assert 3 == lease.permits
            assert [200, 429] == [status("/shop/?tenant=b"), status("/shop/?tenant=a")]


@both
async def test_callers_of_a_filled_name_do_not_wait_unless_asked(io, raw):
    with filled("code", 1):
        begin = time.monotonic()
        assert await io.do(Lock("code"), "acquire", blocking_timeout=900) is None
        assert await io.do(Lock("code", blocking_timeout=900), "acquire") is None
        assert time.monotonic() - begin < 450
    with filled("code", 1, wait=True):
        lock = Lock("code", blocking_timeout=900)
        waiting = await queued(io, lock, View(raw, "code"))
    assert (await io.result(waiting)).held


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_requests_of_a_filled_name_do_not_wait(project, shop, raw, asgi):
    shop(blocking_timeout=900)
    with filled("shop"):
        assert 503 == status(asgi=asgi)
    assert 200 == status(asgi=asgi)


@pytest.mark.parametrize(
    "text",
    [
        "Error running script: attempt to index global 'struct' (a nil value)",
        "unknown command 'evalsha', with args beginning with: ",
    ],
    ids=["no struct", "no Lua"],
)
def test_server_that_can_not_run_scripts_is_refused(project, shop, raw, monkeypatch, text):
    """fakeredis, for example, is such a server, with or without its extra `lua`."""
    from redis.exceptions import ResponseError

    def run(self, step, asking=False):
        raise Failure(ResponseError(text), time.monotonic(), "final")

    monkeypatch.setattr(Server, "run", run)
    shop()
    for call_it in (Lock("x").acquire, lambda: Lock("x").__enter__(), lambda: status()):
        with pytest.raises(ImproperlyConfigured, match=r"fakeredis.*without_redis\(\)"):
            call_it()
    assert not breaker("default").down


def _fake_async_client(alias):
    return pytest.importorskip("fakeredis").FakeAsyncRedis()


@pytest.mark.parametrize("backend", ["django-redis", "Django", "ASYNC_CLIENT"])
@both
async def test_fakeredis_is_refused_with_one_sentence(io, settings, backend):
    fakeredis = pytest.importorskip("fakeredis")
    name = "FakeRedisConnection" if hasattr(fakeredis, "FakeRedisConnection") else "FakeConnection"
    option = {"connection_class": getattr(fakeredis, name)}
    kind = "django_redis.cache.RedisCache"
    if backend == "Django":
        kind = "django.core.cache.backends.redis.RedisCache"
    else:
        option = {"CONNECTION_POOL_KWARGS": option}
    if backend == "ASYNC_CLIENT":
        path = f"{__name__}.{_fake_async_client.__name__}"
        settings.REDIS_SYNC = {**settings.REDIS_SYNC, "ASYNC_CLIENT": path}
    fake = {"BACKEND": kind, "LOCATION": f"redis://fake:6379/{len(backend)}", "OPTIONS": option}
    settings.CACHES = {**settings.CACHES, "fake": fake}
    for lock in (Lock("x", using="fake"), RLock("y", using="fake", blocking=False)):
        with pytest.raises(ImproperlyConfigured, match=r"fakeredis.*without_redis\(\)"):
            await io.do(lock, "acquire")


class LocksOfATestCase(TestCase):
    """Django copies the attributes that setUpTestData makes, for each test."""

    @classmethod
    def setUpTestData(cls):
        cls.lock, cls.semaphore = Lock("copied"), Semaphore("copied too", 2)
        cls.nested = {"locks": [RLock("r"), ReadWriteLock("rw")]}
        cls.several = acquire_all([Lock("a"), Lock("b")])
        cls.lease = Lock("held").acquire(blocking=False)

    @classmethod
    def tearDownClass(cls):
        cls.lease.release()
        super().tearDownClass()

    def test_each_test_can_use_them(self):
        self._use()

    def test_the_second_test_can_use_them(self):
        self._use()

    def _use(self):
        assert self.lease.held
        reader = self.nested["locks"][1].read
        for one in (self.lock, self.semaphore, self.nested["locks"][0], reader, self.several):
            with one:
                pass
            assert one.acquire()
            one.release()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copy_of_a_lock_or_a_lease_is_the_object_itself(raw, copied):
    lock, several = Lock("x"), acquire_all([Lock("y"), ReadWriteLock("z").read])
    lease = lock.acquire()
    for one in (lock, several, ReadWriteLock("z").write, lease):
        assert copied(one) is one
    copied(lock).release()
    assert not lock.locked()
    assert lease.ended
