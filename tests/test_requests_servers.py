"""Limits on real gunicorn and real uvicorn: streams, clients that leave, queues."""

import contextlib
import re
import socket
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
from tests.request_site.server import Site, Slow
from tests.support import worker_processes

MIDDLEWARE = "django_redis_sync.middleware.ConcurrencyLimitMiddleware"
SERVERS = ["gunicorn", "uvicorn"]

pytestmark = pytest.mark.usefixtures("clean_redis")


@pytest.fixture(scope="module")
def sites(tmp_path_factory) -> Iterator[dict[str, Site]]:
    """One site on each server, with the middleware."""
    folder = tmp_path_factory.mktemp("sites")
    options = {
        "middleware": [MIDDLEWARE],
        "sync": {
            "ENDPOINTS": {
                "reports:export": {"name": "one", "limit": 1},
                "reports:astream": {"name": "one", "limit": 1},
            },
            "REQUESTS": {"max_waiting_threads": None},
        },
    }
    with (
        Site("gunicorn", folder / "gunicorn.log", threads=64, **options) as gunicorn,
        Site("uvicorn", folder / "uvicorn.log", **options) as uvicorn,
    ):
        yield {"gunicorn": gunicorn, "uvicorn": uvicorn}


def in_use(name: str = "one") -> int:
    return Semaphore(name, 1).status().in_use


@contextlib.contextmanager
def client_inside(site: Site, path: str) -> Iterator[None]:
    """A client whose view is at the gate "left", and that leaves at the end of the block."""
    with socket.create_connection(("127.0.0.1", site.port)) as client:
        client.sendall(f"GET {path}?gate=left HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        eventually(lambda: gate.now_inside("plain") == 1)
        yield


def waiting(name: str) -> int:
    return len(Semaphore(name, 1).status().waiters)


# Streams. Under uvicorn Django reads a sync iterator whole before it sends a byte.

STREAMS = [
    ("gunicorn", "/stream/"),
    ("uvicorn", "/astream/"),
    ("uvicorn", "/reports/astream/"),
    ("gunicorn", "/astream/"),
    ("uvicorn", "/stream/"),
]


@pytest.mark.parametrize(("server", "path"), STREAMS[:3])
def test_a_stream_holds_its_permit_until_the_last_byte_left(sites, server, path) -> None:
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
def test_a_client_that_left_after_the_first_byte_frees_its_permit(sites, server, path) -> None:
    site = sites[server]
    with site.client() as client, client.stream("GET", f"{path}?gate=never") as response:
        body = response.iter_bytes()  # dropping it would hang up
        assert next(body).startswith(b"first")
        assert 503 == site.get(path).status_code
    eventually(lambda: site.get(path).status_code == 200)
    eventually(lambda: in_use() == 0)


@pytest.mark.parametrize(("server", "path"), STREAMS)
def test_a_stream_whose_source_fails_frees_its_permit(sites, server, path) -> None:
    site = sites[server]
    with contextlib.suppress(httpx.TransportError):
        site.get(f"{path}?fail")
    eventually(lambda: in_use() == 0)


@pytest.mark.parametrize("server", SERVERS)
def test_a_file_frees_its_permit_when_it_was_sent(sites, server) -> None:
    site = sites[server]
    for _ in range(3):
        assert 100_000 == len(site.get("/file/").content)
        eventually(lambda: in_use() == 0)


# Clients that read slowly


@pytest.mark.parametrize(
    ("server", "path"), [("gunicorn", "/flood/"), ("uvicorn", "/aflood/")], ids=SERVERS
)
def test_a_stream_that_is_read_slowly_ends_with_its_lease(sites, server, path) -> None:
    site = sites[server]
    said = len(site.log.read_text())

    def parts(who: str) -> int:
        return gate.arrived("flood").count(who)

    with Slow(site, f"{path}?who=slow") as slow:
        eventually(lambda: parts("slow") > 0)
        start = time.monotonic()
        with Slow(site, f"{path}?who=next") as next_one:
            while time.monotonic() < start + 1:
                assert slow.sips()
                assert 0 == parts("next")
                time.sleep(0.1)
            eventually(lambda: parts("next") > 0)
            assert 1.5 < time.monotonic() - start < 5
            assert 20_000_000 > slow.drains()  # what lay in the buffers, of 200 MB
            eventually(lambda: in_use("flood") == 0)  # its time is over as well
            assert 20_000_000 > next_one.drains()
    # Not one part was made for the first when the second had come in.
    assert sorted(gate.arrived("flood"), reverse=True) == gate.arrived("flood")
    eventually(lambda: in_use("flood") == 0)
    lines = site.log.read_text()[said:].splitlines()
    assert 2 == len([line for line in lines if f"the stream of {path} was ended" in line])
    assert 2 == len([line for line in lines if "flood" in line])


# Clients that leave while the view runs


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
def test_a_permit_is_held_exactly_while_the_view_runs_when_the_client_leaves(
    sites, server, path
) -> None:
    with client_inside(sites[server], path):
        assert 1 == in_use()
    # An async view is cancelled; a sync one runs on, in its thread, until the gate opens.
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
def test_an_async_class_based_view_holds_its_permit_while_its_body_runs(sites, server) -> None:
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
def test_tenant_that_floods_takes_nothing_from_the_others(sites, server, letter) -> None:
    """Two tenants ask one request after the other, and none of theirs is rejected."""
    site, others_are_done = sites[server], threading.Event()

    def answers(who: str, until: Callable[[int], bool]) -> list[httpx.Response]:
        found: list[httpx.Response] = []
        with site.client() as client:
            while not until(len(found)):
                found.append(client.get(f"/{letter}tenant/", params={"who": who}))
        return found

    with ThreadPoolExecutor(14) as threads:
        floods = [
            threads.submit(answers, "flood", lambda _: others_are_done.is_set()) for _ in range(12)
        ]
        eventually(lambda: gate.peak("tenant flood") == 2)
        others = [threads.submit(answers, who, lambda n: n == 25) for who in ("bolt", "core")]
        answered = [one.status_code for other in others for one in other.result()]
        others_are_done.set()
        flooded = [one for flood in floods for one in flood.result()]
    assert [200] * 50 == answered
    assert {200, 429} == {one.status_code for one in flooded}
    assert all(int(one.headers["Retry-After"]) >= 1 for one in flooded if one.status_code == 429)
    peaks = [gate.peak(f"tenant {who}") for who in ("flood", "bolt", "core")]
    assert [2, 1, 1] == peaks and gate.peak("tenants") <= 4
    eventually(lambda: in_use("tenants") == 0)


@pytest.mark.promise(32)
@SYNC_AND_ASYNC
def test_tenant_does_not_wait_behind_the_backlog_of_another(sites, server, letter) -> None:
    site, line = sites[server], []

    def ask(who: str, gate: str = "") -> httpx.Response:
        return site.get(f"/{letter}turn/", params={"who": who, "gate": gate})

    with ThreadPoolExecutor(12) as threads:
        line.append(threads.submit(ask, "flood", "first"))
        eventually(lambda: gate.now_inside("plain") == 1)
        for who in [*["flood"] * 8, "bolt", "core"]:
            line.append(threads.submit(ask, who))
            eventually(lambda: Semaphore("turns", 1).status().waiting == len(line) - 1)
        gate.open_gate("first")
        assert {200} == {one.result().status_code for one in line}
    assert ["flood", "flood", "bolt", "core"] == gate.arrived("plain")[:4]


# Responses that are dropped before they end. Neither site ever collects garbage, and no further
# request comes.


@pytest.fixture(scope="module", params=[True, False], ids=["with middleware", "without"])
def idle_sites(request, tmp_path_factory) -> Iterator[dict[str, Site]]:
    """Sites that never collect garbage, with and without ConcurrencyLimitMiddleware."""
    folder = tmp_path_factory.mktemp("idle")
    outer = "tests.request_site.middleware.failing_if_asked"
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
    """The view of the one runs, and the template of the other renders, after the client left."""
    with client_inside(idle_sites[server], path):
        pass
    time.sleep(0.5)
    assert in_use() != 0
    assert 1 == gate.now_inside("plain")
    gate.open_gate("left")
    eventually(lambda: gate.now_inside("plain") == 0)
    eventually(lambda: in_use() == 0, seconds=5)


def test_permit_of_the_first_request_is_released_though_its_client_left(tmp_path) -> None:
    """The first limited request of a process, before any other has ended."""
    with Site("uvicorn", tmp_path / "uvicorn.log", without_gc=True) as site:
        with client_inside(site, "/gated/"):
            pass
        time.sleep(1)
        assert in_use() != 0
        gate.open_gate("left")
        eventually(lambda: in_use() == 0, seconds=5)


@pytest.mark.parametrize("ours", [[], [MIDDLEWARE]], ids=["decorator", "middleware"])
def test_permit_is_released_when_the_client_leaves_between_view_and_stream(tmp_path, ours) -> None:
    """An outer middleware is awaiting when the client leaves."""
    lingering = "tests.request_site.middleware.lingering_if_asked"
    options = {"middleware": [lingering, *ours], "without_gc": True}
    sync = {"ENDPOINTS": {"reports:*": {"name": "one", "limit": 1}}}
    with Site("uvicorn", tmp_path / "uvicorn.log", sync=sync, **options) as site:
        for path in ("/stream/", "/astream/", "/reports/astream/")[: 3 if ours else 2]:
            with socket.create_connection(("127.0.0.1", site.port)) as client:
                client.sendall(f"GET {path}?linger HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                eventually(lambda: in_use() == 1)
                time.sleep(0.3)
            eventually(lambda: in_use() == 0, seconds=5)


# Many at once


@pytest.mark.parametrize("server", SERVERS)
def test_no_more_than_the_limit_are_ever_inside(sites, server) -> None:
    site = sites[server]
    path = "/limited/" if server == "gunicorn" else "/alimited/"
    with site.client() as client, ThreadPoolExecutor(16) as threads:
        statuses = list(threads.map(lambda _: client.get(path).status_code, range(200)))
    assert {200, 503} == {*statuses, 200, 503}
    assert 200 in statuses
    assert 1 == gate.peak("plain")
    assert 0 == in_use()


def test_a_queue_of_50_requests_is_served_first_come_first_served(sites) -> None:
    site = sites["gunicorn"]
    with ThreadPoolExecutor(60) as threads:
        asked = [threads.submit(site.get, "/line/?gate=line&who=0")]
        eventually(lambda: gate.now_inside("line") == 1)
        for number in range(1, 51):
            asked.append(threads.submit(site.get, f"/line/?who={number}"))
            eventually(lambda number=number: waiting("line") == number, seconds=30)
        gate.open_gate("line")
        assert {200} == {request.result().status_code for request in asked}
    assert [str(number) for number in range(51)] == gate.arrived("line")
    assert 1 == gate.peak("line")


# Transactions


def increments(site: Site, times: int) -> int:
    """Ask for so many; how many were counted."""
    with site.client() as client, ThreadPoolExecutor(8) as threads:
        asked = list(threads.map(lambda _: client.get("/counter/"), range(times)))
    assert {200} == {response.status_code for response in asked}
    return times


@pytest.fixture
def counter(tmp_path, monkeypatch) -> Callable[[], int]:
    """A database file with one row that counts."""
    import os
    import sqlite3

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


def test_with_atomic_requests_no_update_is_lost(tmp_path, counter) -> None:
    sync = {"REQUESTS": {"max_waiting_threads": None}}
    options = {"middleware": [MIDDLEWARE], "atomic": True, "sync": sync}
    with Site("gunicorn", tmp_path / "log", workers=2, threads=4, **options) as site:
        increments(site, 200)
    assert 200 == counter()


# Waiting requests and the workers

CLIENTS = 30


def test_requests_that_wait_leave_workers_to_the_others(tmp_path: Path) -> None:
    """By default, half of the eight threads may wait. Requests of another view use the others."""
    limited = {"limit": 1, "key": "ip", "blocking_timeout": 60}
    options = {"middleware": [MIDDLEWARE], "sync": {"ENDPOINTS": {"reports:export": limited}}}
    with (
        Site("gunicorn", tmp_path / "gunicorn.log", **options) as site,
        ThreadPoolExecutor(CLIENTS) as clients,
    ):
        crowd = [clients.submit(site.get, "/reports/export/?gate=crowd") for _ in range(CLIENTS)]
        eventually(lambda: sum(one.done() for one in crowd) == CLIENTS - 5)
        refused = [one.result() for one in crowd if one.done()]
        assert {429} == {one.status_code for one in refused}
        assert all(int(one.headers["Retry-After"]) >= 1 for one in refused)
        with site.client() as visitor:
            assert [200] * 20 == [visitor.get("/free/").status_code for _ in range(20)]
        assert CLIENTS - 5 == sum(one.done() for one in crowd)  # answered while those five wait
        gate.open_gate("crowd")
        assert 5 == sum(one.result().status_code == 200 for one in crowd)


def test_tasks_that_wait_are_many_and_bounded_too(tmp_path: Path) -> None:
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
