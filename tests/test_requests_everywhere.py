"""The servers beside gunicorn's threads and uvicorn: the same promises, each on the real one.

Those that are not installed are skipped in one line; CI installs them.
"""

import contextlib
import socket
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
from tests.request_site.server import ROOT, Site, Slow

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


def test_no_more_run_than_the_limit_and_all_get_their_turn(site) -> None:
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda _: site.get("/quick/").status_code, range(80)))
    assert {200} == set(answers)
    assert 1 <= gate.peak("quick") <= 3


def test_a_permit_is_renewed_while_the_view_runs(site) -> None:
    """Two leases long: threads of ours run beside the server's."""
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


def test_a_stream_holds_its_permit_and_a_client_that_leaves_gives_it_back(site) -> None:
    path = "/astream/" if site.kind in ASYNC else "/stream/"
    request = f"GET {path}?gate=never HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", site.port)) as client:
        client.sendall(request)
        client.settimeout(20)
        got = b""
        while b"first" not in got:
            got += client.recv(1000)
        assert 503 == site.get(path).status_code
    left = time.monotonic()
    eventually(lambda: in_use() == 0)
    print(f"{site.kind}: {time.monotonic() - left:.1f} s")
    with contextlib.suppress(httpx.TransportError):
        httpx.get(f"{site.url}{path}?fail", timeout=5)  # daphne leaves the connection open
    eventually(lambda: in_use() == 0)


@pytest.mark.parametrize("path", ["/gated/", "/slow_template/"])
def test_permit_is_released_when_the_view_ends_after_its_client_left(site, path: str) -> None:
    """Without garbage collections, and without a further request."""
    with socket.create_connection(("127.0.0.1", site.port)) as client:
        client.sendall(f"GET {path}?gate=left HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        eventually(lambda: gate.now_inside("plain") == 1)
    time.sleep(0.5)
    assert (1, 1) == (in_use(), gate.now_inside("plain"))
    gate.open_gate("left")
    eventually(lambda: (in_use(), gate.now_inside("plain")) == (0, 0))


def test_a_stream_that_is_read_slowly_ends_with_its_lease(site) -> None:
    path = "/aflood/" if site.kind in ASYNC else "/flood/"
    said = site.log.read_text().count("is ended")
    with Slow(site, f"{path}?who=slow") as slow:
        eventually(lambda: gate.arrived("flood"))
        eventually(lambda: site.log.read_text().count("is ended") > said)
        if site.kind in (
            *ASYNC,
            "gevent",
        ):  # a thread that is stuck in a write waits for its client
            eventually(lambda: Semaphore("flood", 1).status().in_use == 0)
        assert 100_000_000 > slow.drains()  # what lay in the buffers, of 200 MB
    eventually(lambda: Semaphore("flood", 1).status().in_use == 0)
    assert said + 1 == site.log.read_text().count("is ended")


def test_a_server_starts_works_and_ends_without_a_complaint(site, tmp_path: Path) -> None:
    with Site(site.kind, tmp_path / "log", middleware=[MIDDLEWARE]) as other:
        assert 200 == other.get(waits(other)).status_code
    said = other.log.read_text()
    assert "redis" not in said and "Traceback" not in said, said


LATE = """
import django

django.setup()
from gevent import monkey

monkey.patch_all()
from django.apps import apps
{then}
"""
TAKES = "from django_redis_sync import Lock; Lock('late').acquire(blocking=False).release()"
READY = "apps.get_app_config('django_redis_sync').ready()"


@pytest.mark.parametrize(
    ("then", "told"),
    [(TAKES, 1), (READY, 1), (f"{READY}; {TAKES}", 1), ("", 0)],
)
def test_gevent_that_patched_too_late_is_told_of_when_ours_starts(then, told) -> None:
    if not installed("gevent"):
        pytest.skip("gevent is not installed")
    words = [sys.executable, "-W", "ignore", "-c", LATE.format(then=then)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert told == done.stderr.count("gevent patched this process after"), done.stderr


def test_gevent_that_patched_first_is_not_told_of() -> None:
    if not installed("gevent"):
        pytest.skip("gevent is not installed")
    script = (
        f"from gevent import monkey; monkey.patch_all()\nimport django; django.setup()\n{TAKES}"
    )
    words = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert "gevent" not in done.stderr
