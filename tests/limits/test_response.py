"""A request holds its permits until the response ends, or until the lease ends.

test_requests_servers tests real servers and clients that disconnect.
"""

import asyncio
import gc
import io
import itertools
import logging
import time
from types import SimpleNamespace

import pytest
from django.http import FileResponse, HttpResponse, StreamingHttpResponse
from django.template.response import TemplateResponse
from django.test import RequestFactory

from django_redis_sync import Lease, semaphore_required
from django_redis_sync.signals import lease_lost
from tests.behaviour.both import eventually
from tests.request_site.project import (
    BOTH,
    EVERYWHERE,
    OBEYING,
    arespond_ok,
    in_use,
    received,
    respond_ok,
)

pytestmark = [
    pytest.mark.promise(20),
    pytest.mark.usefixtures("clean_redis"),
    pytest.mark.django_db,  # Django closes old database connections after a response
]


# The response ends before the lease does


def stream(request):
    return StreamingHttpResponse(iter([b"first", b"last"]))


def file(request):
    return FileResponse(io.BytesIO(b"first\nlast"))


@EVERYWHERE
def test_template_response_holds_its_permit_until_it_is_rendered(project):
    template = SimpleNamespace(render=lambda *_: f"{in_use()} in use")
    project.limit(body=lambda request: TemplateResponse(request, template))
    assert (b"1 in use", 0) == (project.get().content, in_use())


@BOTH
def test_permits_of_all_limits_are_released_if_the_rendering_fails(project):
    """The limits do not wrap each other directly, so each of them holds its own permit."""
    during = []

    def fails(*_):
        during.extend(map(in_use, ("outer", "inner")))
        raise RuntimeError("no such template")

    inner = semaphore_required("inner", limit=1)(
        lambda request: TemplateResponse(request, SimpleNamespace(render=fails))
    )
    project.limit(name="outer", body=lambda request: inner(request))
    with pytest.raises(RuntimeError, match="no such template") as reference:
        project.get()
    assert [1, 1] == during
    eventually(lambda: [0, 0] == [in_use("outer"), in_use("inner")])
    assert reference  # the error keeps the response alive


def test_permit_of_a_stream_is_released_when_the_request_is_closed():
    request = RequestFactory().post("/x/", {"file": io.BytesIO(b"text")})
    response = semaphore_required("one", limit=1)(stream)(request)
    assert (1, False) == (in_use(), request.FILES["file"].closed)
    request.close()
    assert (0, True) == (in_use(), request.FILES["file"].closed)
    response.close()


@pytest.mark.parametrize("body", [stream, lambda request: HttpResponse()], ids=["stream", "plain"])
@pytest.mark.parametrize("place", [0, 1], ids=["outside", "inside"])
@pytest.mark.parametrize("outer", ["raise", "replace"])
@EVERYWHERE
def test_permit_is_released_when_another_middleware_drops_the_response(project, outer, place, body):
    project.settings.MIDDLEWARE.insert(place, OBEYING)
    project.limit(body=body)
    if outer == "raise":
        with pytest.raises(RuntimeError, match="a middleware failed"):
            project.get(outer=outer)
    else:
        assert 304 == project.status(outer=outer)
    eventually(lambda: in_use() == 0)


@pytest.mark.promise(6)
@pytest.mark.parametrize(
    "error", [ValueError, KeyboardInterrupt, SystemExit, asyncio.CancelledError]
)
@EVERYWHERE
def test_failing_view_releases_its_permit_and_raises_its_own_exception(project, raw, error):
    """An error reporter may keep the error, and with it the frames that hold the permit."""

    def fails(request):
        assert 1 == in_use()
        raise error

    def loses_its_permit(request):
        raw.flushdb()
        raise error

    for body in (fails, loses_its_permit):
        project.limit(body=body)
        with pytest.raises(error) as reference:
            project.get()
        eventually(lambda: in_use() == 0)
        assert reference


@BOTH
def test_failing_release_breaks_neither_the_response_nor_the_other_release(
    project, monkeypatch, caplog
):
    release, arelease = Lease.release, Lease.arelease

    def fails(lease):
        if lease.name == "two":
            raise ValueError("no release")
        release(lease)

    async def afails(lease):
        if lease.name == "two":
            raise ValueError("no release")
        await arelease(lease)

    monkeypatch.setattr(Lease, "release", fails)
    monkeypatch.setattr(Lease, "arelease", afails)
    view = arespond_ok if project.asgi else respond_ok
    for name in ("two", "one"):
        view = semaphore_required(name, limit=1)(view)
    project.serve(home=view)
    assert 200 == project.status()
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert ["releasing 'two' failed"] == lines
    assert [0, 1] == [in_use("one"), in_use("two")]


def test_lease_of_a_garbage_collected_response_expires():
    """If a response is never closed, its permit is in use until the lease expires."""
    response = semaphore_required("one", limit=1, timeout=1)(stream)(RequestFactory().get("/"))
    assert 1 == in_use()
    del response
    gc.collect()
    eventually(lambda: in_use() == 0)


# The lease ends before the response does


@BOTH
def test_view_continues_after_its_permit_is_lost_and_the_loss_is_reported(project, caplog):
    def body(request):
        eventually(lambda: in_use() == 0)
        return HttpResponse("done")

    project.limit(body=body, max_hold=1.5)
    with received(lease_lost) as lost:
        assert b"done" == project.get().content
        eventually(lambda: ["one"] == [signal["lease"].name for signal in lost])
    about = "lost its permit of 'one'"
    lines = eventually(lambda: [line for line in caplog.messages if about in line])
    assert ["a request to /home/ continues although"] == [line[:38] for line in lines]


short = semaphore_required("one", limit=1, max_hold=1.5)


def ended(caplog):
    return any("the stream of /x/ was ended" in message for message in caplog.messages)


def test_stream_raises_at_the_next_part_after_the_end_of_its_lease(caplog):
    """The test asks for the next part itself. A server does not ask for a part while its client
    reads slowly: see test_requests_servers."""
    endless = lambda request: StreamingHttpResponse(itertools.repeat(b"part"))  # noqa: E731
    parts = iter(short(endless)(RequestFactory().get("/x/")))
    assert b"part" == next(parts)
    eventually(lambda: ended(caplog))
    with pytest.raises(ConnectionResetError, match="max_hold"):
        next(parts)
    eventually(lambda: in_use() == 0)


def test_stream_ends_before_the_max_hold_since_the_grant_of_any_of_its_limits(caplog):
    """The view takes some time before it returns the stream, and the second limit ends first."""

    @semaphore_required("a", limit=1, max_hold=60)
    @semaphore_required("one", limit=1, max_hold=3)
    def slow(request):
        time.sleep(0.6)
        return StreamingHttpResponse(itertools.repeat(b"part"))

    response = slow(RequestFactory().get("/x/"))
    events = ("was ended", "lost its permit")
    seen = eventually(
        lambda: [word for line in caplog.messages for word in events if word in line], 20
    )
    assert "was ended" == seen[0], "the stream continued after its lease"
    response.close()
    assert [0, 0] == [in_use("a"), in_use("one")]


@pytest.mark.parametrize("body", [file, stream])
def test_file_or_closed_stream_is_not_cut_off_when_the_lease_ends(body, caplog):
    response = short(body)(RequestFactory().get("/x/"))
    assert 1 == in_use()
    if body is stream:
        assert [b"first", b"last"] == [*response]
        response.close()
        time.sleep(2)
    eventually(lambda: in_use() == 0)
    assert not ended(caplog)
    response.close()  # this use keeps the response alive until here
