"""Limits on a real gunicorn and a real uvicorn, with streams, many requests, and clients that
disconnect.

test_requests_everywhere runs some of these tests on other servers.
"""

import contextlib
import os
import re
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.behaviour.both import eventually
from tests.request_site import gate
from tests.request_site.project import MIDDLEWARE, OBEYING, ONE, in_use, waiting
from tests.request_site.server import ASYNC, Site, SlowClient
from tests.support import worker_processes

pytestmark = pytest.mark.usefixtures("clean_redis")


def started(kind, folder, **sync):
    """Return a site with the middleware. Its processes never collect garbage."""
    endpoints = {"quick": {"limit": 3, "blocking_timeout": 60}, "reports:*": ONE}
    sync = {"ENDPOINTS": endpoints, "REQUESTS": {"max_waiting_threads": None}, **sync}
    options = {"middleware": [OBEYING, MIDDLEWARE], "without_gc": True, "sync": sync}
    return Site(kind, folder / "log", threads=64, **options)


@pytest.fixture(scope="module", params=["gunicorn", "uvicorn"])
def site(request, tmp_path_factory):
    with started(request.param, tmp_path_factory.mktemp("site")) as site:
        yield site


def suited(site, path):
    """Return the path of a view, or on servers for ASGI, of its async version.

    Under ASGI, Django would read a sync iterator to its end before it sends a byte."""
    *folder, name = path.strip("/").split("/")
    return "/".join(["", *folder, f"a{name}" if site.kind in ASYNC else name, ""])


# The end of a response

STREAMS = pytest.mark.parametrize("path", ["/stream/", "/reports/stream/"])


@pytest.mark.promise(20)
@STREAMS
def test_stream_holds_its_permit_until_its_last_byte_is_sent(site, path):
    path = suited(site, path)
    with site.client() as client, client.stream("GET", f"{path}?gate=last") as response:
        body = response.iter_bytes()
        assert next(body).startswith(b"first")
        for _ in range(3):
            assert 503 == site.get(path).status_code
            next(body)
        gate.open_gate("last")
        assert b"".join(body).endswith(b"last")
    eventually(lambda: in_use() == 0)
    assert 200 == site.get(path).status_code


@pytest.mark.promise(20)
@STREAMS
def test_permit_is_released_when_the_client_of_a_stream_disconnects(site, path):
    path = suited(site, path)
    with site.connection(f"{path}?gate=never") as client:
        received = b""
        while b"first" not in received:
            received += client.recv(1000)
        assert 503 == site.get(path).status_code
    eventually(lambda: in_use() == 0)


@pytest.mark.promise(20)
@pytest.mark.parametrize(
    "path",
    [
        *("/file/", "/file/?outer=raise", "/template/?outer=raise", "/broken_template/"),
        *("/stream/?fail", "/stream/?outer=raise", "/astream/?fail", "/astream/?outer=raise"),
        "/reports/astream/?fail",
    ],
)
def test_permit_is_released_when_the_response_ends_or_is_dropped(site, path):
    """Neither garbage collection nor a further request can release the permit."""
    with contextlib.suppress(httpx.TransportError):
        httpx.get(f"{site.url}{path}", timeout=5)  # daphne leaves the connection open
    eventually(lambda: in_use() == 0)


@pytest.mark.promise(20)
@pytest.mark.parametrize(
    "path",
    [
        *("/alimited/", "/adispatch/", "/amixed/", "/limited/", "/reports/export/"),
        *("/gated/", "/slow_template/"),  # a view of DRF; a template that waits
    ],
)
def test_permit_is_held_while_the_view_runs_after_its_client_left(site, path):
    with site.connection(f"{path}?gate=left"):
        eventually(lambda: gate.now_inside("plain") == 1)
        assert 1 == in_use()
    # Under ASGI, Django cancels async views. Other views continue until the gate opens.
    if site.kind in ASYNC and path in ("/alimited/", "/adispatch/", "/amixed/"):
        eventually(lambda: gate.now_inside("plain") == 0)
    else:
        time.sleep(0.5)
        assert (1, 1) == (in_use(), gate.now_inside("plain"))
        gate.open_gate("left")
    eventually(lambda: (0, 0) == (in_use(), gate.now_inside("plain")))


@pytest.mark.promise(20)
@pytest.mark.parametrize("middleware", [[], [MIDDLEWARE]], ids=["decorator", "middleware"])
def test_permit_is_released_when_the_client_leaves_between_view_and_stream(tmp_path, middleware):
    """The client disconnects while an outer middleware sleeps. Another client left before, when no
    limited request of the process had ended."""
    sleeping = "tests.request_site.middleware.sleeping"
    options = {"middleware": [sleeping, *middleware], "without_gc": True}
    with Site(
        "uvicorn", tmp_path / "log", sync={"ENDPOINTS": {"reports:*": ONE}}, **options
    ) as site:
        with site.connection("/gated/?gate=left"):
            eventually(lambda: gate.now_inside("plain") == 1)
        gate.open_gate("left")
        eventually(lambda: in_use() == 0)
        for path in ("/stream/", "/astream/", *(["/reports/astream/"] if middleware else [])):
            with site.connection(f"{path}?outer=sleep"):
                eventually(lambda: in_use() == 1)
                time.sleep(0.3)
            eventually(lambda: in_use() == 0)


@pytest.mark.promise(20)
def test_slowly_read_stream_ends_with_its_lease(site):
    path = suited(site, "/flood/")
    logged_before = len(site.log.read_text())

    def parts(client):
        return gate.arrived("flood").count(client)

    with SlowClient(site, f"{path}?client=slow") as slow:
        eventually(lambda: parts("slow") > 0)
        start = time.monotonic()
        with SlowClient(site, f"{path}?client=next") as next_client:
            while time.monotonic() < start + 1:
                assert slow.read_byte()
                assert 0 == parts("next")
                time.sleep(0.1)
            eventually(lambda: parts("next") > 0)
            assert 1.5 < time.monotonic() - start < 5
            assert 20_000_000 > slow.read_rest()  # only buffered parts of the 200 MB
            eventually(lambda: in_use("flood") == 0)  # the lease of the second stream ended, too
            assert 20_000_000 > next_client.read_rest()
    # Once the second stream had begun, the view sent no part of the first stream.
    assert sorted(gate.arrived("flood"), reverse=True) == gate.arrived("flood")
    eventually(lambda: in_use("flood") == 0)
    lines = [line for line in site.log.read_text()[logged_before:].splitlines() if "flood" in line]
    assert 2 == sum(f"the stream of {path} was ended" in line for line in lines) == len(lines)


# Many requests


@pytest.mark.promise(18)
def test_requests_keep_the_limit_and_all_are_admitted(site):
    with ThreadPoolExecutor(8) as threads:
        statuses = [*threads.map(lambda _: site.get("/quick/").status_code, range(80))]
    assert {200} == {*statuses}
    assert 1 <= gate.peak("quick") <= 3


@pytest.mark.promise(32)
def test_flood_of_one_tenant_causes_no_rejections_of_other_tenants(site):
    """One tenant sends 12 requests at a time. Two other tenants send one at a time."""
    path, others_are_done = suited(site, "/tenant/"), threading.Event()

    def responses(tenant, until):
        found = []
        with site.client() as client:
            while not until(len(found)):
                found.append(client.get(path, params={"client": tenant}))
        return found

    with ThreadPoolExecutor(14) as threads:
        floods = [
            threads.submit(responses, "flood", lambda _: others_are_done.is_set())
            for _ in range(12)
        ]
        eventually(lambda: gate.peak("tenant flood") == 2)
        others = [threads.submit(responses, name, lambda n: n == 25) for name in ("bolt", "core")]
        of_others = [one.status_code for other in others for one in other.result()]
        others_are_done.set()
        of_flood = [one for flood in floods for one in flood.result()]
    assert [200] * 50 == of_others
    assert {200, 429} == {one.status_code for one in of_flood}
    assert all(int(one.headers["Retry-After"]) >= 1 for one in of_flood if one.status_code == 429)
    peaks = [gate.peak(f"tenant {name}") for name in ("flood", "bolt", "core")]
    assert [2, 1, 1] == peaks and gate.peak("tenants") <= 4
    eventually(lambda: in_use("tenants") == 0)


@pytest.mark.promise(23)
def test_limited_view_loses_no_update_with_atomic_requests(tmp_path, monkeypatch):
    path = tmp_path / "site.sqlite3"
    monkeypatch.setenv("DJANGO_REDIS_SYNC_TEST_DB", str(path))
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.request_site.settings"}
    assert 0 == worker_processes.run("-m", "django", "migrate", "-v0", "auth", env=env).returncode
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("insert into auth_group (name) values ('count 0')")
    sync = {"REQUESTS": {"max_waiting_threads": None}}
    options = {"middleware": [MIDDLEWARE], "atomic": True, "sync": sync}
    with (
        Site("gunicorn", tmp_path / "log", workers=2, threads=4, **options) as site,
        site.client() as client,
        ThreadPoolExecutor(8) as threads,
    ):
        responses = threads.map(lambda _: client.get("/counter/"), range(200))
        assert {200} == {response.status_code for response in responses}
    with contextlib.closing(sqlite3.connect(path)) as database:
        (name,) = database.execute("select name from auth_group").fetchone()
    assert "200" == re.search(r"\d+", name)[0]


# Waiting requests and the workers

CLIENTS = 30


@pytest.mark.promise(19)
@pytest.mark.parametrize(
    ("kind", "path", "requests", "waiters"),
    [
        ("gunicorn", "export", {}, 2),
        ("uvicorn", "aexport", {"max_waiting_tasks": 10}, 10),
    ],
)
def test_waiting_requests_leave_threads_for_other_views(tmp_path, kind, path, requests, waiters):
    limited = {"name": "one", "limit": 1, "blocking_timeout": 60, "status": 429}
    sync = {"ENDPOINTS": {"reports:*export": limited}, "REQUESTS": requests}
    with (
        Site(kind, tmp_path / "log", middleware=[MIDDLEWARE], sync=sync) as site,
        ThreadPoolExecutor(CLIENTS) as clients,
    ):
        crowd = [clients.submit(site.get, f"/reports/{path}/?gate=crowd") for _ in range(CLIENTS)]
        rejected = CLIENTS - 1 - waiters
        eventually(lambda: rejected == sum(one.done() for one in crowd))
        assert waiters == waiting()
        assert {429} == {one.result().status_code for one in crowd if one.done()}
        with site.client() as visitor:
            assert [200] * 20 == [visitor.get("/free/").status_code for _ in range(20)]
        assert rejected == sum(one.done() for one in crowd)  # the waiting requests still wait
        gate.open_gate("crowd")
        assert 1 + waiters == sum(one.result().status_code == 200 for one in crowd)
