"""How long a request holds its permits: until its response has ended, and never longer than its
lease. Real servers and clients that leave are in test_requests_servers."""

import asyncio
import gc
import io
import logging
import socket
import time
from collections.abc import Callable

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


def ask(view, asgi: bool = False, **meta) -> HttpResponse:
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
    def answer(request):
        return TemplateResponse(request, engines["django"].from_string("rendered"))

    async def aanswer(request):
        return answer(request)

    response = ask(limited(aanswer if asgi else answer), asgi)
    assert 1 == in_use()
    assert b"rendered" == response.render().content
    assert 0 == in_use()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, KeyError])
@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_middleware_releases_when_the_view_raises(error, asgi: bool, settings) -> None:
    settings.REDIS_SYNC = {
        **settings.REDIS_SYNC,
        "ENDPOINTS": {f"{__name__}.view": {"name": "one", "limit": 1}},
    }

    def view(request):
        assert 1 == in_use()
        raise error

    def get_response(request):
        request.resolver_match = type("Match", (), {"view_name": f"{__name__}.view", "func": view})
        assert middleware.process_view(request, view, (), {}) is None
        return view(request)

    async def aget_response(request):
        request.resolver_match = type("Match", (), {"view_name": f"{__name__}.view", "func": view})
        assert await middleware.process_view(request, view, (), {}) is None
        raise error if error is KeyError else asyncio.CancelledError

    middleware = ConcurrencyLimitMiddleware(aget_response if asgi else get_response)
    with pytest.raises((error, asyncio.CancelledError)):
        ask(middleware, asgi)
    assert 0 == in_use()


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_release_that_fails_breaks_no_response(asgi: bool, monkeypatch, caplog) -> None:
    def fails(lease):
        raise ValueError("odd")

    async def afails(lease):
        fails(lease)

    async def aview(request):
        return HttpResponse("whole")

    monkeypatch.setattr(Lease, "release", fails)
    monkeypatch.setattr(Lease, "arelease", afails)
    odd = semaphore_required("odd", limit=1)
    view = odd(aview if asgi else lambda request: HttpResponse("whole"))
    assert b"whole" == ask(view, asgi).content
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert ["releasing 'odd' failed"] == lines


def test_response_that_is_collected_is_renewed_no_more(caplog) -> None:
    """Only where no handler closes it: its lease expires."""
    view = semaphore_required("one", limit=1, timeout=1)(
        lambda request: StreamingHttpResponse([b"part"])
    )
    response = ask(view)
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


def test_stream_of_a_thread_ends_at_its_next_part(caplog) -> None:
    parts = part_by_part(ask(short(endless)), False)
    assert b"part" == parts()
    eventually(lambda: ended(caplog))
    with pytest.raises(ConnectionResetError, match="max_hold"):
        parts()
    eventually(lambda: in_use() == 0)


def test_stream_of_a_task_is_cancelled(caplog) -> None:
    async def read() -> int:
        response = await short(aendless)(AsyncRequestFactory().get("/x/"))
        return len([part async for part in response])

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(read())
    eventually(lambda: ended(caplog))
    eventually(lambda: in_use() == 0)


def test_stream_of_gunicorn_loses_its_connection(caplog) -> None:
    """This alone frees a thread that is stuck in a write."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        parts = part_by_part(ask(short(endless), **{"gunicorn.socket": ours}), False)
        assert b"part" == parts()
        theirs.settimeout(20)
        assert b"" == theirs.recv(1)
    eventually(lambda: ended(caplog))


def test_file_that_the_server_sends_by_itself_is_not_ended(caplog) -> None:
    response = ask(short(lambda request: FileResponse(io.BytesIO(b"x"))))
    assert 1 == in_use()
    eventually(lambda: in_use() == 0)
    assert not ended(caplog)
    response.close()  # it lived until here


def test_stream_that_has_ended_is_not_ended_again(caplog) -> None:
    response = ask(short(lambda request: StreamingHttpResponse([b"part"])))
    assert [b"part"] == [*response]
    response.close()
    time.sleep(2)
    assert not ended(caplog)


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_view_goes_on_without_its_permit_and_the_log_says_so(asgi: bool, caplog) -> None:
    def view(request):
        eventually(lambda: in_use() == 0)
        return HttpResponse("done")

    async def aview(request):
        return await asyncio.to_thread(view, request)

    assert b"done" == ask(short(aview if asgi else view), asgi).content
    eventually(lambda: any("lost its permit of 'one'" in line for line in caplog.messages))
    (line,) = [line for line in caplog.messages if "lost its permit of 'one'" in line]
    assert line.startswith("a request to /x/ continues although")
