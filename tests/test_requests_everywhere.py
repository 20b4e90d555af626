"""Limits on real servers other than uvicorn and gunicorn with threads.

Servers that are not installed are skipped. CI installs them.
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from django_redis_sync import Semaphore
from tests.behaviour.both import eventually
from tests.request_site import gate
from tests.request_site.server import ROOT, Site, SlowClient

MIDDLEWARE = "django_redis_sync.middleware.ConcurrencyLimitMiddleware"
ASYNC = ["daphne", "hypercorn", "granian"]
KINDS = [*ASYNC, "gevent", "granian_wsgi", "waitress", "uwsgi"]

pytestmark = pytest.mark.usefixtures("clean_redis")


def installed(kind: str) -> bool:
    return (
        find_spec({"granian_wsgi": "granian", "uwsgi": "uwsgidecorators"}.get(kind, kind))
        is not None
    )


@pytest.fixture(scope="module", params=KINDS)
def site(request, tmp_path_factory) -> Iterator[Site]:
    if not installed(request.param):
        pytest.skip(f"{request.param} is not installed")
    endpoints = {"quick": {"limit": 3, "blocking_timeout": 60}}
    requests = {"max_waiting_threads": None}
    sync = {"TIMEOUT": 3, "ENDPOINTS": endpoints, "REQUESTS": requests}
    options = {"middleware": [MIDDLEWARE], "sync": sync, "without_gc": True}
    with Site(
        request.param, tmp_path_factory.mktemp("site") / "log", threads=16, **options
    ) as site:
        yield site


def in_use() -> int:
    return Semaphore("one", 1).status().in_use


def waits(site: Site) -> str:
    """The path of a limited view that waits for a gate."""
    return "/alimited/" if site.kind in ASYNC else "/limited/"


def test_requests_keep_the_limit_and_all_are_admitted(site) -> None:
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda _: site.get("/quick/").status_code, range(80)))
    assert {200} == set(answers)
    assert 1 <= gate.peak("quick") <= 3


def test_permit_is_renewed_while_the_view_runs(site) -> None:
    """The view runs for more than twice the lease duration."""
    with ThreadPoolExecutor(1) as clients:
        running = clients.submit(site.get, f"{waits(site)}?gate=long")
        eventually(lambda: gate.now_inside("plain") == 1)
        end = time.monotonic() + 7
        while time.monotonic() < end:
            assert 503 == site.get(waits(site)).status_code
            time.sleep(0.1)
        gate.open_gate("long")
        assert 200 == running.result().status_code
    eventually(lambda: in_use() == 0)


def test_stream_holds_its_permit_until_its_client_disconnects(site) -> None:
    path = "/astream/" if site.kind in ASYNC else "/stream/"
    with site.connection(f"{path}?gate=never") as client:
        received = b""
        while b"first" not in received:
            received += client.recv(1000)
        assert 503 == site.get(path).status_code
    disconnected = time.monotonic()
    eventually(lambda: in_use() == 0)
    print(f"{site.kind}: {time.monotonic() - disconnected:.1f} s")
    with contextlib.suppress(httpx.TransportError):
        httpx.get(f"{site.url}{path}?fail", timeout=5)  # daphne leaves the connection open
    eventually(lambda: in_use() == 0)


@pytest.mark.parametrize("path", ["/gated/", "/slow_template/"])
def test_permit_is_released_when_the_view_ends_after_its_client_left(site, path: str) -> None:
    """The site collects no garbage and gets no further request."""
    with site.connection(f"{path}?gate=left"):
        eventually(lambda: gate.now_inside("plain") == 1)
    time.sleep(0.5)
    assert (1, 1) == (in_use(), gate.now_inside("plain"))
    gate.open_gate("left")
    eventually(lambda: (in_use(), gate.now_inside("plain")) == (0, 0))


def test_slowly_read_stream_ends_with_its_lease(site) -> None:
    path = "/aflood/" if site.kind in ASYNC else "/flood/"
    ended_before = site.log.read_text().count("was ended")
    with SlowClient(site, f"{path}?client=slow") as slow:
        eventually(lambda: gate.arrived("flood"))
        eventually(lambda: site.log.read_text().count("was ended") > ended_before)
        # With other servers, a thread is stuck in a write until its client reads.
        if site.kind in (*ASYNC, "gevent"):
            eventually(lambda: Semaphore("flood", 1).status().in_use == 0)
        assert 100_000_000 > slow.read_rest()  # the buffered bytes of 200 MB
    eventually(lambda: Semaphore("flood", 1).status().in_use == 0)
    assert ended_before + 1 == site.log.read_text().count("was ended")


def test_server_logs_no_error_from_start_to_end(site, tmp_path: Path) -> None:
    with Site(site.kind, tmp_path / "log", middleware=[MIDDLEWARE]) as other:
        assert 200 == other.get(waits(other)).status_code
    log = other.log.read_text()
    assert "redis" not in log and "Traceback" not in log, log


LATE = """
import django

django.setup()
from gevent import monkey

monkey.patch_all()
from django.apps import apps
{then}
"""
ACQUIRE = "from django_redis_sync import Lock; Lock('late').acquire(blocking=False).release()"
READY = "apps.get_app_config('django_redis_sync').ready()"


def stderr_of(script: str) -> str:
    """Return what a Python process writes to stderr while it runs `script`."""
    if not installed("gevent"):
        pytest.skip("gevent is not installed")
    words = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return done.stderr


@pytest.mark.parametrize(
    ("then", "times"),
    [(ACQUIRE, 1), (READY, 1), (f"{READY}; {ACQUIRE}", 1), ("", 0)],
)
def test_gevent_that_patches_too_late_is_logged(then, times) -> None:
    assert times == stderr_of(LATE.format(then=then)).count("gevent patched this process after")


def test_gevent_that_patches_first_is_not_logged() -> None:
    patch = "from gevent import monkey; monkey.patch_all()"
    assert "gevent" not in stderr_of(f"{patch}\nimport django; django.setup()\n{ACQUIRE}")
