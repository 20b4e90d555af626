"""Limits on a real gunicorn and a real uvicorn, with streams, many requests, and clients that
disconnect.

test_requests_everywhere runs some of these tests on other servers.
"""

import contextlib
import re
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.behaviour.both import eventually
from tests.request_site import gate
from tests.request_site.project import MIDDLEWARE, OBEYING, ONE, in_use
from tests.request_site.server import ASYNC, Site, read_rest

pytestmark = pytest.mark.usefixtures("clean_redis")


def started(kind, folder, **sync):
    """Start a Site with the middleware, in a process without garbage collection. Return the Site.

    `sync`: options of REDIS_SYNC."""
    endpoints = {"quick": {"limit": 3, "blocking_timeout": 60}, "reports:*": ONE}
    sync = {"ENDPOINTS": endpoints, "REQUESTS": {"max_waiting_threads": None}, **sync}
    options = {"middleware": [OBEYING, MIDDLEWARE], "without_gc": True, "sync": sync}
    return Site(kind, folder / "log", **options)


@pytest.fixture(scope="module", params=["gunicorn", "uvicorn"])
def site(request, tmp_path_factory):
    with started(request.param, tmp_path_factory.mktemp("site")) as site:
        yield site


def suited(site, path):
    """Return `path` or, on an ASGI server, the path of the async version of the view.

    A sync view can't stream under ASGI, because Django reads the whole iterator before it sends a
    byte."""
    return re.sub(r"(\w+/(\?|$))", r"a\1", path) if site.kind in ASYNC else path


# The end of a response


@pytest.mark.promise(20)
@pytest.mark.parametrize("path", ["/stream/", "/reports/stream/"])
@pytest.mark.parametrize("query", [{}, {"outer": "wrap"}], ids=["", "wrapped"])
def test_stream_holds_its_permit_until_its_last_byte_is_sent(site, path, query):
    path = suited(site, path)
    with (
        site.client() as client,
        client.stream("GET", path, params={"gate": "last", **query}) as response,
    ):
        body = response.iter_bytes()
        assert next(body).lower().startswith(b"first")
        for _ in range(3):
            assert 503 == site.get(path).status_code
            next(body)
        gate.open_gate("last")
        assert b"".join(body).lower().endswith(b"last")
    eventually(lambda: in_use() == 0)
    assert 200 == site.get(path).status_code


@pytest.mark.promise(20)
@pytest.mark.parametrize("path", ["/stream/", "/reports/stream/"])
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
    """The processes never collect garbage and get no further request that could free the permit."""
    with contextlib.suppress(httpx.TransportError):
        # daphne keeps the connection open until the timeout.
        httpx.get(f"{site.url}{path}", timeout=5)
    eventually(lambda: in_use() == 0)


@pytest.mark.promise(20)
@pytest.mark.parametrize(
    "path",
    [
        *("/alimited/", "/adispatch/", "/amixed/", "/limited/", "/reports/export/"),
        *("/gated/", "/slow_template/"),  # a view of DRF, and a template that waits
    ],
)
def test_permit_is_held_until_the_view_ends_even_if_the_client_has_left(site, path):
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
def test_permit_is_released_if_the_client_leaves_before_the_stream_begins(tmp_path, middleware):
    """The first client disconnects during the first limited view of the process. Other clients
    disconnect after their views have returned, while a middleware sleeps."""
    sleeping = "tests.request_site.middleware.sleeping"
    options = {"middleware": [sleeping, *middleware], "without_gc": True}
    sync = {"ENDPOINTS": {"reports:*": ONE}}
    with Site("uvicorn", tmp_path / "log", sync=sync, **options) as site:
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
def test_stream_to_a_slow_client_is_cut_off_when_the_lease_ends(site):
    path = suited(site, "/flood/")
    logged_before = len(site.log.read_text())

    def parts(client):
        return gate.arrived("flood").count(client)

    with site.connection(f"{path}?client=slow", 4096) as slow:
        eventually(lambda: parts("slow") > 0)
        start = time.monotonic()
        with site.connection(f"{path}?client=next", 4096) as next_client:
            while time.monotonic() < start + 1:
                assert slow.recv(1)
                assert 0 == parts("next")
                time.sleep(0.1)
            eventually(lambda: parts("next") > 0)
            assert 3 < time.monotonic() - start, "the permit was passed on long before max_hold"
            assert 20_000_000 > read_rest(slow)  # the view would send 200 MB
            eventually(lambda: in_use("flood") == 0)  # the lease of the second stream ended, too
            assert 20_000_000 > read_rest(next_client)
    # All parts of the first stream came before the first part of the second stream.
    assert sorted(gate.arrived("flood"), reverse=True) == gate.arrived("flood")
    eventually(lambda: in_use("flood") == 0)
    lines = [line for line in site.log.read_text()[logged_before:].splitlines() if "flood" in line]
    assert 2 == sum(f"the stream of {path} was ended" in line for line in lines) == len(lines)


# Many requests


@pytest.mark.promise(18)
def test_server_admits_all_requests_but_never_more_in_parallel_than_the_limit(site):
    with ThreadPoolExecutor(8) as threads:
        statuses = [*threads.map(lambda _: site.get("/quick/").status_code, range(80))]
    assert {200} == {*statuses}
    assert 1 <= gate.peak("quick") <= 3
