"""A request holds its permits until its response has ended, or its lease has ended.

test_requests_servers tests real servers and clients that disconnect.
"""

import asyncio
import gc
import io
import logging
import socket
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from asgiref.sync import async_to_sync
from django.http import FileResponse, HttpResponse, StreamingHttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import AsyncRequestFactory, RequestFactory

from django_redis_sync import Lease, Semaphore, semaphore_required
from django_redis_sync.middleware import ConcurrencyLimitMiddleware
from tests.behaviour.both import eventually

pytestmark = [
    pytest.mark.usefixtures("clean_redis"),
    pytest.mark.django_db,
    pytest.mark.promise(20),
]
limited = semaphore_required("one", limit=1)
#: A lease that ends soon.
short = semaphore_required("one", limit=1, max_hold=1.5)


def in_use() -> int:
    return Semaphore("one", 1).status().in_use


def call(view, asgi: bool = False, **meta) -> HttpResponse:
    if asgi:
        return async_to_sync(view)(AsyncRequestFactory().get("/x/"))
    return view(RequestFactory().get("/x/", **meta))


def part_by_part(response: StreamingHttpResponse, asgi: bool) -> Callable[[], bytes]:
    """Return a function that returns the next part."""
    if not asgi:
        parts = iter(response)
        return lambda: next(parts)
    aparts = aiter(response)
    return lambda: async_to_sync(anext)(aparts)


# Until the end of the response


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_template_response_holds_its_permit_until_it_is_rendered(asgi: bool) -> None:
    def view(request):
        return TemplateResponse(request, engines["django"].from_string("rendered"))

    async def aview(request):
        return view(request)

    response = call(limited(aview if asgi else view), asgi)
    assert 1 == in_use()
    assert b"rendered" == response.render().content
    assert 0 == in_use()


def test_request_of_a_stream_closes_its_files_and_its_permit() -> None:
    request = RequestFactory().post("/x/", {"file": io.BytesIO(b"text")})
    response = limited(lambda request: StreamingHttpResponse(request.FILES["file"]))(request)
    assert (1, False) == (in_use(), request.FILES["file"].closed)
    request.close()
    assert (0, True) == (in_use(), request.FILES["file"].closed)
    response.close()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, KeyError])
@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_middleware_releases_when_the_view_raises(error, asgi: bool, settings) -> None:
    endpoints = {f"{__name__}.view": {"name": "one", "limit": 1}}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "ENDPOINTS": endpoints}

    def view(request):
        assert 1 == in_use()
        raise error

    match = SimpleNamespace(view_name=f"{__name__}.view", func=view)

    def get_response(request):
        request.resolver_match = match
        assert middleware.process_view(request, view, (), {}) is None
        return view(request)

    async def aget_response(request):
        request.resolver_match = match
        assert await middleware.process_view(request, view, (), {}) is None
        raise error if error is KeyError else asyncio.CancelledError

    middleware = ConcurrencyLimitMiddleware(aget_response if asgi else get_response)
    with pytest.raises((error, asyncio.CancelledError)):
        call(middleware, asgi)
    assert 0 == in_use()


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_failing_release_does_not_break_the_response(asgi: bool, monkeypatch, caplog) -> None:
    def fails(lease):
        raise ValueError("no release")

    async def afails(lease):
        fails(lease)

    async def aview(request):
        return HttpResponse("whole")

    monkeypatch.setattr(Lease, "release", fails)
    monkeypatch.setattr(Lease, "arelease", afails)
    view = limited(aview if asgi else lambda request: HttpResponse("whole"))
    assert b"whole" == call(view, asgi).content
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert ["releasing 'one' failed"] == lines


def test_lease_of_a_garbage_collected_response_expires(caplog) -> None:
    """Django closes responses. If a response is not closed, its lease expires."""
    view = semaphore_required("one", limit=1, timeout=1)(
        lambda request: StreamingHttpResponse([b"part"])
    )
    response = call(view)
    assert 1 == in_use()
    del response
    gc.collect()
    eventually(lambda: in_use() == 0)


# Until the end of the lease


def endless(request) -> StreamingHttpResponse:
    def parts():
        while True:
            yield b"part"

    return StreamingHttpResponse(parts())


async def aendless(request) -> StreamingHttpResponse:
    async def parts():
        while True:
            yield b"part"
            await asyncio.sleep(0.05)

    return StreamingHttpResponse(parts())


def ended(caplog) -> bool:
    return any("stream of /x/ was ended" in record.getMessage() for record in caplog.records)


def test_stream_in_a_thread_ends_at_its_next_part(caplog) -> None:
    parts = part_by_part(call(short(endless)), False)
    assert b"part" == parts()
    eventually(lambda: ended(caplog))
    with pytest.raises(ConnectionResetError, match="max_hold"):
        parts()
    eventually(lambda: in_use() == 0)


def test_stream_in_a_task_is_cancelled(caplog) -> None:
    async def read() -> int:
        response = await short(aendless)(AsyncRequestFactory().get("/x/"))
        return len([part async for part in response])

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(read())
    eventually(lambda: ended(caplog))
    eventually(lambda: in_use() == 0)


def test_stream_under_gunicorn_ends_with_a_closed_connection(caplog) -> None:
    """Only a closed connection frees a thread that is stuck in a write."""
    server, client = socket.socketpair()
    with server, client:
        parts = part_by_part(call(short(endless), **{"gunicorn.socket": server}), False)
        assert b"part" == parts()
        client.settimeout(20)
        assert b"" == client.recv(1)
    eventually(lambda: ended(caplog))


def test_file_response_is_not_ended_with_its_lease(caplog) -> None:
    response = call(short(lambda request: FileResponse(io.BytesIO(b"x"))))
    assert 1 == in_use()
    eventually(lambda: in_use() == 0)
    assert not ended(caplog)
    response.close()  # keeps a reference to the response until here


def test_closed_stream_is_not_ended_again(caplog) -> None:
    response = call(short(lambda request: StreamingHttpResponse([b"part"])))
    assert [b"part"] == [*response]
    response.close()
    time.sleep(2)
    assert not ended(caplog)


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_view_continues_after_its_permit_is_lost_and_this_is_logged(asgi: bool, caplog) -> None:
    def view(request):
        eventually(lambda: in_use() == 0)
        return HttpResponse("done")

    async def aview(request):
        return await asyncio.to_thread(view, request)

    assert b"done" == call(short(aview if asgi else view), asgi).content
    eventually(lambda: any("lost its permit of 'one'" in line for line in caplog.messages))
    (line,) = [line for line in caplog.messages if "lost its permit of 'one'" in line]
    assert line.startswith("a request to /x/ continues although")
