"""With REDIS_SYNC["WITHOUT_REDIS"], a site works without Redis, and says so."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.test import Client

from django_redis_sync import LeaseLost, Lock, NotAcquired, Semaphore
from django_redis_sync.testing import filled, limits_disabled
from tests.request_site.project import BOTH
from tests.support import worker_processes
from tests.support.operators import failed
from tests.support.pages import LIST, get

ROOT = Path(__file__).parents[2]
LOCAL = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}


@pytest.fixture
def local(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site with a cache in the memory of the process, without Redis and single_flight."""
    if flights := sys.modules.get("django_redis_sync.locks.single_flight"):
        monkeypatch.setattr(flights, "aliases", {})  # those of other tests
    settings.CACHES = LOCAL
    settings.REDIS_SYNC = {"WITHOUT_REDIS": True}


def ids(deploy: bool = False) -> list[str]:
    found = run_checks(tags=["redis_sync"], include_deployment_checks=deploy)
    return sorted(one.id.partition(".")[2] for one in found)


@pytest.mark.promise(29)
def test_checks_warn_of_the_setting_and_refuse_it_in_production(local: None) -> None:
    assert ["W032"] == ids()
    assert ["E033", "W032"] == ids(deploy=True)


@pytest.mark.promise(29)
@pytest.mark.parametrize("sync", [{}, {"WITHOUT_REDIS": False}, {"ENABLED": False}])
def test_site_without_redis_is_never_inferred_from_the_class_of_the_cache(
    settings: Any, sync: dict[str, Any]
) -> None:
    settings.CACHES, settings.REDIS_SYNC = LOCAL, sync
    (message,) = run_checks(tags=["redis_sync"])
    assert message.id == "redis_sync.E003" and "WITHOUT_REDIS" in message.hint
    with pytest.raises(ImproperlyConfigured, match="LocMemCache"):
        Lock("x").acquire()


@BOTH
def test_limit_applies_to_all_requests_of_the_process(project: Any) -> None:
    project.settings.CACHES = LOCAL
    project.settings.REDIS_SYNC = {"WITHOUT_REDIS": True}
    project.limit()
    with filled("one", 1):
        assert 503 == project.status()
        with limits_disabled():  # the settings change, and the permits stay
            assert 200 == project.status()
        assert 503 == project.status()
    first = project.visit().entered()
    assert 503 == project.status()
    assert 200 == first.end()
    assert 200 == project.status()


def test_lease_ends_at_its_timeout_and_min_hold_keeps_the_permit(local: None) -> None:
    lease = Lock("hard", timeout=0.2).acquire()
    assert lease is not None
    with Lock("hard", blocking_timeout=60), pytest.raises(LeaseLost):
        lease.release()
    with Lock("kept", min_hold=0.3):
        began = time.monotonic()
    assert Lock("kept").locked()
    with Lock("kept", blocking_timeout=60):
        assert time.monotonic() - began > 0.25, "min_hold was ignored"
    with Lock("long", min_hold=0.3):
        time.sleep(0.4)
    assert not Lock("long").locked(), "min_hold counts from the release"
    with Lock("renewed", timeout=4, renew=True) as renewed:
        time.sleep(4.5)
        assert renewed.owned(), "the lease was not renewed"


def test_lease_that_nobody_can_release_ends(local: None) -> None:
    Lock("dropped", timeout=0.2, renew=True).acquire()
    with Lock("dropped", blocking_timeout=60):
        pass


def test_sync_and_async_code_share_the_permits_over_several_event_loops(local: None) -> None:
    async def take() -> bool:
        lease = await Semaphore("x", 1).aacquire(blocking=False)
        if lease is not None:
            await lease.arelease()
        return lease is not None

    with Semaphore("x", 1):
        assert [False, False] == [asyncio.run(take()) for _ in range(2)]
    assert [True, True] == [asyncio.run(take()) for _ in range(2)]

    async def wait() -> None:
        async with Semaphore("x", 1, blocking_timeout=60):
            pass

    with Semaphore("x", 1) as lease:

        async def both() -> None:
            waiting = asyncio.create_task(wait())
            while not (await Semaphore("x", 1).astatus()).waiting:
                await asyncio.sleep(0.01)
            await lease.arelease()
            await waiting

        asyncio.run(both())


def test_lock_on_a_quorum_is_a_lock_of_the_process(local: None) -> None:
    quorum = ["a", "b", "c"]
    with Lock("x", using=quorum):
        assert Lock("x", using=quorum).acquire(blocking=False) is None
        with Lock("x", blocking=False):
            pass
    with Lock("x", using=quorum, blocking=False):
        pass


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_process_has_none_of_its_parents_leases(local: None) -> None:
    with Lock("x"):
        pid = os.fork()
        if not pid:
            free = False
            try:
                free = Lock("x").acquire(blocking=False) is not None
            finally:
                os._exit(0 if free else 3)
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with pytest.raises(NotAcquired), Lock("x", blocking=False):
            pass


@pytest.mark.django_db
def test_operators_are_told_that_there_is_nothing_to_see(local: None, admin_client: Client) -> None:
    for words in (("status",), ("status", "x"), ("pause", "x", "--create"), ("doctor",)):
        code, text = failed(*words)
        assert code == 1 and "WITHOUT_REDIS" in text, words
    for page in ("", "x/change/"):
        assert "WITHOUT_REDIS" in get(admin_client, page, status=503).text
    assert 503 == admin_client.get(f"{LIST}data/").status_code
    assert 200 == admin_client.get("/admin/").status_code


def test_metrics_say_that_there_is_no_redis(local: None) -> None:
    prometheus = pytest.importorskip("prometheus_client")
    from django_redis_sync import metrics

    registry = prometheus.CollectorRegistry()
    metrics.register(registry=registry)
    assert b"redis_sync_up 0.0" in prometheus.generate_latest(registry)


SITE = """
SECRET_KEY = "only for this test"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_redis_sync"]
MIDDLEWARE = ["django_redis_sync.middleware.ConcurrencyLimitMiddleware"]
ROOT_URLCONF = "local_urls"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
REDIS_SYNC = {"WITHOUT_REDIS": True, "ENDPOINTS": {"home": {"limit": 1}}}
"""
URLS = """
from django.http import HttpResponse
from django.urls import path
urlpatterns = [path("", lambda request: HttpResponse("home"), name="home")]
"""
TESTS = """
from django.test import SimpleTestCase
from django_redis_sync import Lock
from django_redis_sync.testing import filled

class Home(SimpleTestCase):
    def test_home(self):
        with Lock("x", timeout=60), filled("home"):
            self.assertEqual(503, self.client.get("/").status_code)
        self.assertEqual(200, self.client.get("/").status_code)
"""


def test_commands_of_a_new_project_work_without_redis(tmp_path: Path) -> None:
    for name, text in {"local": SITE, "local_urls": URLS, "test_local": TESTS}.items():
        (tmp_path / f"{name}.py").write_text(text)
    paths = f"{tmp_path}{os.pathsep}{ROOT}"
    environment = {**os.environ, "PYTHONPATH": paths, "DJANGO_SETTINGS_MODULE": "local"}
    for words, said in {
        ("check", "--fail-level=ERROR"): 1,
        ("migrate", "--verbosity=0"): 1,
        ("test",): 1,
        ("locks", "run", "x", "--", "true"): 0,
        ("check", "--deploy"): 2,
    }.items():
        command = ("-W", "error", "-m", "django", *words)
        done = worker_processes.run(*command, cwd=tmp_path, env=environment, timeout=120)
        assert (1 if said == 2 else 0) == done.returncode, done.stderr
        assert said == done.stderr.count("REDIS_SYNC['WITHOUT_REDIS'] is True"), done.stderr
        assert "Traceback" not in done.stderr and "housekeeping" not in done.stderr, done.stderr
