"""A streamed response. The request holds its permit until the last byte is sent."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

from django.http import HttpRequest, StreamingHttpResponse
from django.views.decorators.http import require_GET

from django_redis_sync import semaphore_required
from example_project.shop.asked import seconds_of
from example_project.shop.middleware import ARRIVED
from example_project.shop.witness import Visit, Witness

STREAM_LIMIT = 2
STREAM_SECONDS = 10.0  # default duration of a stream; see `seconds` in the query
LINES = 20

STREAMS = Witness("streams")


@require_GET
@semaphore_required("streams", limit=STREAM_LIMIT, blocking_timeout=0)
def stream(request: HttpRequest) -> StreamingHttpResponse:
    """Send lines for STREAM_SECONDS, or for the duration in a query such as `?seconds=30`. If two
    streams are already running, return a 503."""
    pause = seconds_of(request.GET, STREAM_SECONDS) / LINES
    return _response(_lines(request, pause))


@require_GET
@semaphore_required("streams", limit=STREAM_LIMIT, blocking_timeout=0)
async def async_stream(request: HttpRequest) -> StreamingHttpResponse:
    """Async version of `stream()`."""
    pause = seconds_of(request.GET, STREAM_SECONDS) / LINES
    return _response(_alines(request, pause))


def _lines(request: HttpRequest, pause: float) -> Iterator[str]:
    with STREAMS.watch(request.path, request.META[ARRIVED]) as visit:
        for number in range(1, LINES + 1):
            yield _line(visit, number)
            time.sleep(pause)


async def _alines(request: HttpRequest, pause: float) -> AsyncIterator[str]:
    with STREAMS.watch(request.path, request.META[ARRIVED]) as visit:
        for number in range(1, LINES + 1):
            yield _line(visit, number)
            await asyncio.sleep(pause)


def _line(visit: Visit, number: int) -> str:
    return f"worker {visit.pid}, number {visit.inside} inside: line {number} of {LINES}\n"


def _response(lines: Iterator[str] | AsyncIterator[str]) -> StreamingHttpResponse:
    return StreamingHttpResponse(lines, content_type="text/plain; charset=utf-8")
