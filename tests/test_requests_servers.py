"""Limits on a real gunicorn and a real uvicorn: streams, clients that disconnect, queues."""

import contextlib
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from django_redis_sync import Semaphore
from tests.behaviour.both import eventually
from tests.request_site import gate
from tests.request_site.server import Site, SlowClient
from tests.support import worker_processes

MIDDLEWARE = "django_redis_sync.middleware.ConcurrencyLimitMiddleware"
SERVERS = ["gunicorn", "uvicorn"]
ONE = {"name": "one", "limit": 1}

pytestmark = pytest.mark.usefixtures("clean_redis")


@pytest.fixture(scope="module")
def sites(tmp_path_factory) -> Iterator[dict[str, Site]]:
    """One site on each server, with the middleware."""
    folder = tmp_path_factory.mktemp("sites")
    endpoints = {"reports:export": ONE, "reports:astream": ONE}
    sync = {"ENDPOINTS": endpoints, "REQUESTS": {"max_waiting_threads": None}}
    options = {"middleware": [MIDDLEWARE], "sync": sync}
    with (
        Site("gunicorn", folder / "gunicorn.log", threads=64, **options) as gunicorn,
        Site("uvicorn", folder / "uvicorn.log", **options) as uvicorn,
    ):
        yield {"gunicorn": gunicorn, "uvicorn": uvicorn}


def in_use(name: str = "one") -> int:
    return Semaphore(name, 1).status().in_use


@contextlib.contextmanager
def client_inside(site: Site, path: str) -> Iterator[None]:
    """A client whose view waits at the gate "left". It disconnects at the end of the block."""
    with site.connection(f"{path}?gate=left"):
        eventually(lambda: gate.now_inside("plain") == 1)
        yield


def waiting(name: str) -> int:
    return Semaphore(name, 1).status().waiting


# Streams. Under uvicorn, Django reads a sync iterator to its end before it sends a byte.

STREAMS = [
    ("gunicorn", "/stream/"),
    ("uvicorn", "/astream/"),
    ("uvicorn", "/reports/astream/"),
    ("gunicorn", "/astream/"),
    ("uvicorn", "/stream/"),
]


@pytest.mark.parametrize(("server", "path"), STREAMS[:3])
def test_stream_holds_its_permit_until_its_last_byte_is_sent(sites, server, path) -> None:
    site = sites[server]
    with site.client() as client, client.stream("GET", f"{path}?gate=last") as response:
        body = response.iter_bytes()
        assert next(body).startswith(b"first")
        for _ in range(3):
            assert 503 == site.get(path).status_code
            next(body)
        gate.open_gate("last")
        assert b"".join(body).endswith(b"last")
    eventually(lambda: site.get(path).status_code == 200)
    eventually(lambda: in_use() == 0)


@pytest.mark.parametrize(("server", "path"), STREAMS[:3])
def test_permit_is_released_when_the_client_of_a_stream_disconnects(sites, server, path) -> None:
    site = sites[server]
    with site.client() as client, client.stream("GET", f"{path}?gate=never") as response:
        body = response.iter_bytes()  # without this reference, the client would disconnect
        assert next(body).startswith(b"first")
        assert 503 == site.get(path).status_code
    eventually(lambda: site.get(path).status_code == 200)
    eventually(lambda: in_use() == 0)


@pytest.mark.parametrize(("server", "path"), STREAMS)
def test_permit_is_released_when_the_source_of_a_stream_fails(sites, server, path) -> None:
    site = sites[server]
    with contextlib.suppress(httpx.TransportError):
        site.get(f"{path}?fail")
    eventually(lambda: in_use() == 0)


@pytest.mark.parametrize("server", SERVERS)
def test_permit_is_released_when_a_file_was_sent(sites, server) -> None:
    site = sites[server]
    for _ in range(3):
        assert 100_000 == len(site.get("/file/").content)
        eventually(lambda: in_use() == 0)


# Clients that read slowly


@pytest.mark.parametrize(
    ("server", "path"), [("gunicorn", "/flood/"), ("uvicorn", "/aflood/")], ids=SERVERS
)
def test_slowly_read_stream_ends_with_its_lease(sites, server, path) -> None:
    site = sites[server]
    logged_before = len(site.log.read_text())

    def parts(client: str) -> int:
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
            assert 20_000_000 > slow.read_rest()  # the buffered bytes of 200 MB
            eventually(lambda: in_use("flood") == 0)  # the second lease ended, too
            assert 20_000_000 > next_client.read_rest()
    # After the second stream began, the view sent no further part of the first one.
    assert sorted(gate.arrived("flood"), reverse=True) == gate.arrived("flood")
    eventually(lambda: in_use("flood") == 0)
    lines = site.log.read_text()[logged_before:].splitlines()
    assert 2 == len([line for line in lines if f"the stream of {path} was ended" in line])
    assert 2 == len([line for line in lines if "flood" in line])


# Clients that disconnect while the view runs


@pytest.mark.parametrize(
    ("server", "path"),
    [
        ("uvicorn", "/alimited/"),
        ("uvicorn", "/adispatch/"),
        ("uvicorn", "/amixed/"),
        ("uvicorn", "/limited/"),
        ("uvicorn", "/reports/export/"),
        ("gunicorn", "/limited/"),
    ],
)
def test_permit_is_held_while_the_view_runs_after_its_client_left(sites, server, path) -> None:
    with client_inside(sites[server], path):
        assert 1 == in_use()
    # Django cancels an async view. A sync view continues in its thread until the gate opens.
    if path in ("/alimited/", "/adispatch/", "/amixed/"):
        eventually(lambda: gate.now_inside("plain") == 0)
    else:
        time.sleep(0.3)
        assert in_use() != 0
        assert 1 == gate.now_inside("plain")
        gate.open_gate("left")
    eventually(lambda: in_use() == 0)
    assert 0 == gate.now_inside("plain")


@pytest.mark.parametrize("server", SERVERS)
def test_async_class_based_view_holds_its_permit_while_its_body_runs(sites, server) -> None:
    site = sites[server]
    with ThreadPoolExecutor() as threads:
        first = threads.submit(site.get, "/adispatch/?gate=body")
        eventually(lambda: gate.now_inside("plain") == 1)
        assert 1 == in_use()
        assert 503 == site.get("/adispatch/").status_code
        gate.open_gate("body")
        assert 200 == first.result().status_code
    assert 0 == in_use()


# Tenants

SYNC_AND_ASYNC = pytest.mark.parametrize(
    ("server", "letter"),
    [("gunicorn", ""), ("gunicorn", "a"), ("uvicorn", ""), ("uvicorn", "a")],
    ids=["gunicorn", "gunicorn-async", "uvicorn", "uvicorn-async"],
)


@pytest.mark.promise(32)
@SYNC_AND_ASYNC
def test_flood_of_one_tenant_causes_no_rejections_of_other_tenants(sites, server, letter) -> None:
    """Two other tenants send one request at a time, and none of these requests is rejected."""
    site, others_are_done = sites[server], threading.Event()

    def responses(tenant: str, until: Callable[[int], bool]) -> list[httpx.Response]:
        found: list[httpx.Response] = []
        with site.client() as client:
            while not until(len(found)):
                found.append(client.get(f"/{letter}tenant/", params={"client": tenant}))
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


@pytest.mark.promise(32)
@SYNC_AND_ASYNC
def test_tenant_does_not_wait_for_the_queue_of_another_tenant(sites, server, letter) -> None:
    site, requests = sites[server], []

    def ask(tenant: str, gate: str = "") -> httpx.Response:
        return site.get(f"/{letter}turn/", params={"client": tenant, "gate": gate})

    with ThreadPoolExecutor(12) as threads:
        requests.append(threads.submit(ask, "flood", "first"))
        eventually(lambda: gate.now_inside("plain") == 1)
        for tenant in [*["flood"] * 8, "bolt", "core"]:
            requests.append(threads.submit(ask, tenant))
            eventually(lambda: waiting("turns") == len(requests) - 1)
        gate.open_gate("first")
        assert {200} == {one.result().status_code for one in requests}
    assert ["flood", "flood", "bolt", "core"] == gate.arrived("plain")[:4]


# Responses that are dropped before they end. The sites collect no garbage and get no further
# request.


@pytest.fixture(scope="module", params=[True, False], ids=["with middleware", "without"])
def idle_sites(request, tmp_path_factory) -> Iterator[dict[str, Site]]:
    """Sites that never collect garbage, with and without ConcurrencyLimitMiddleware."""
    folder = tmp_path_factory.mktemp("idle")
    outer = "tests.request_site.middleware.failing_on_request"
    middleware = [outer, MIDDLEWARE] if request.param else [outer]
    options = {"middleware": middleware, "without_gc": True}
    with (
        Site("gunicorn", folder / "gunicorn.log", **options) as gunicorn,
        Site("uvicorn", folder / "uvicorn.log", **options) as uvicorn,
    ):
        yield {"gunicorn": gunicorn, "uvicorn": uvicorn}


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize(
    "path",
    ["/broken_template/", "/template/?outer", "/stream/?outer", "/astream/?outer", "/file/?outer"],
)
def test_permit_is_released_when_the_response_is_dropped(idle_sites, server, path) -> None:
    assert 500 == idle_sites[server].get(path).status_code
    eventually(lambda: in_use() == 0, seconds=5)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("path", ["/gated/", "/slow_template/"])
def test_permit_is_released_when_the_view_ends_after_its_client_left(
    idle_sites, server, path
) -> None:
    """/gated/ runs its view, and /slow_template/ renders its template, after the client left."""
    with client_inside(idle_sites[server], path):
        pass
    time.sleep(0.5)
    assert in_use() != 0
    assert 1 == gate.now_inside("plain")
    gate.open_gate("left")
    eventually(lambda: gate.now_inside("plain") == 0)
    eventually(lambda: in_use() == 0, seconds=5)


def test_permit_of_the_first_request_is_released_after_its_client_left(tmp_path) -> None:
    """No limited request of the process has ended before."""
    with Site("uvicorn", tmp_path / "uvicorn.log", without_gc=True) as site:
        with client_inside(site, "/gated/"):
            pass
        time.sleep(1)
        assert in_use() != 0
        gate.open_gate("left")
        eventually(lambda: in_use() == 0, seconds=5)


@pytest.mark.parametrize("middleware", [[], [MIDDLEWARE]], ids=["decorator", "middleware"])
def test_permit_is_released_when_the_client_leaves_between_view_and_stream(
    tmp_path, middleware
) -> None:
    """An outer middleware sleeps when the client disconnects."""
    sleeping = "tests.request_site.middleware.sleeping_on_request"
    options = {"middleware": [sleeping, *middleware], "without_gc": True}
    sync = {"ENDPOINTS": {"reports:*": ONE}}
    with Site("uvicorn", tmp_path / "uvicorn.log", sync=sync, **options) as site:
        for path in ("/stream/", "/astream/", "/reports/astream/")[: 3 if middleware else 2]:
            with site.connection(f"{path}?sleep"):
                eventually(lambda: in_use() == 1)
                time.sleep(0.3)
            eventually(lambda: in_use() == 0, seconds=5)


# Many requests at once


@pytest.mark.parametrize("server", SERVERS)
def test_number_of_requests_inside_never_exceeds_the_limit(sites, server) -> None:
    site = sites[server]
    path = "/limited/" if server == "gunicorn" else "/alimited/"
    with site.client() as client, ThreadPoolExecutor(16) as threads:
        statuses = list(threads.map(lambda _: client.get(path).status_code, range(200)))
    assert {200, 503} == {*statuses, 200, 503}
    assert 200 in statuses
    assert 1 == gate.peak("plain")
    assert 0 == in_use()


def test_queue_of_50_requests_is_served_in_order_of_arrival(sites) -> None:
    site = sites["gunicorn"]
    with ThreadPoolExecutor(60) as threads:
        requests = [threads.submit(site.get, "/line/?gate=line&client=0")]
        eventually(lambda: gate.now_inside("line") == 1)
        for number in range(1, 51):
            requests.append(threads.submit(site.get, f"/line/?client={number}"))
            eventually(lambda number=number: waiting("line") == number, seconds=30)
        gate.open_gate("line")
        assert {200} == {request.result().status_code for request in requests}
    assert [str(number) for number in range(51)] == gate.arrived("line")
    assert 1 == gate.peak("line")


# Transactions


@pytest.fixture
def counter(tmp_path, monkeypatch) -> Callable[[], int]:
    """Create a database file with one row that counts. Return a function that reads the number."""
    path = tmp_path / "site.sqlite3"
    monkeypatch.setenv("DJANGO_REDIS_SYNC_TEST_DB", str(path))
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.request_site.settings"}
    assert 0 == worker_processes.run("-m", "django", "migrate", "-v0", "auth", env=env).returncode
    with sqlite3.connect(path) as database:
        database.execute("insert into auth_group (name) values ('count 0')")
    database.close()

    def read() -> int:
        database = sqlite3.connect(path)
        (name,) = database.execute("select name from auth_group").fetchone()
        database.close()
        return int(re.search(r"\d+", name)[0])

    return read


def test_limited_view_loses_no_update_with_atomic_requests(tmp_path, counter) -> None:
    sync = {"REQUESTS": {"max_waiting_threads": None}}
    options = {"middleware": [MIDDLEWARE], "atomic": True, "sync": sync}
    with (
        Site("gunicorn", tmp_path / "log", workers=2, threads=4, **options) as site,
        site.client() as client,
        ThreadPoolExecutor(8) as threads,
    ):
        responses = threads.map(lambda _: client.get("/counter/"), range(200))
        assert {200} == {response.status_code for response in responses}
    assert 200 == counter()


# Waiting requests and the workers

CLIENTS = 30


def test_waiting_requests_leave_threads_for_other_views(tmp_path: Path) -> None:
    """By default, half of the eight threads may wait. Requests of other views use the rest."""
    limited = {"limit": 1, "key": "ip", "blocking_timeout": 60}
    options = {"middleware": [MIDDLEWARE], "sync": {"ENDPOINTS": {"reports:export": limited}}}
    with (
        Site("gunicorn", tmp_path / "gunicorn.log", **options) as site,
        ThreadPoolExecutor(CLIENTS) as clients,
    ):
        crowd = [clients.submit(site.get, "/reports/export/?gate=crowd") for _ in range(CLIENTS)]
        eventually(lambda: sum(one.done() for one in crowd) == CLIENTS - 5)
        rejected = [one.result() for one in crowd if one.done()]
        assert {429} == {one.status_code for one in rejected}
        assert all(int(one.headers["Retry-After"]) >= 1 for one in rejected)
        with site.client() as visitor:
            assert [200] * 20 == [visitor.get("/free/").status_code for _ in range(20)]
        assert CLIENTS - 5 == sum(one.done() for one in crowd)  # the other five still wait
        gate.open_gate("crowd")
        assert 5 == sum(one.result().status_code == 200 for one in crowd)


def test_max_waiting_tasks_bounds_the_waiting_tasks(tmp_path: Path) -> None:
    limited = {"name": "one", "limit": 1, "blocking_timeout": 15}
    sync = {"ENDPOINTS": {"reports:aexport": limited}, "REQUESTS": {"max_waiting_tasks": 10}}
    with (
        Site("uvicorn", tmp_path / "uvicorn.log", middleware=[MIDDLEWARE], sync=sync) as site,
        ThreadPoolExecutor(CLIENTS) as clients,
    ):
        crowd = [clients.submit(site.get, "/reports/aexport/?gate=tasks") for _ in range(CLIENTS)]
        eventually(lambda: sum(one.done() for one in crowd) == CLIENTS - 11)
        assert 10 == waiting("one")
        gate.open_gate("tasks")
        assert 11 == sum(one.result().status_code == 200 for one in crowd)
