"""Views that a decorator or a mixin limits, and plain views, which tests limit with the setting
ENDPOINTS.

The query parameter `gate` names the gate at which a view waits, and `client` names the client. The
names of async versions begin with "a".
"""

import asyncio
import io
import time

from django.contrib.auth.decorators import login_required
from django.http import FileResponse, HttpResponse, StreamingHttpResponse
from django.template.response import TemplateResponse
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View

from django_redis_sync import SemaphoreRequiredMixin, semaphore_required
from tests.request_site import drf, gate

one = semaphore_required("one", limit=1)


def client_of(request):
    return request.GET.get("client", "")


def plain(request):
    """Wait at the gate that the query names, if any."""
    with gate.inside("plain", client_of(request)):
        for _ in gate.while_shut(request.GET.get("gate")):
            time.sleep(gate.TICK)
        return HttpResponse("ok")


async def aplain(request):
    with gate.inside("plain", client_of(request)):
        for _ in gate.while_shut(request.GET.get("gate")):
            await asyncio.sleep(gate.TICK)
        return HttpResponse("ok")


def quick(request):
    with gate.inside("quick"):
        time.sleep(0.005)
    return HttpResponse("ok")


# Responses that end after their view has returned


def parts(request):
    yield b"first"
    for _ in gate.while_shut(request.GET.get("gate")):
        yield b"." * 1000
    if "fail" in request.GET:
        raise OSError("the source of the stream failed")
    yield b"last"


def flood_parts(request):
    """Yield more than fits into the buffers between server and client."""
    for _ in range(1000):
        gate.record_arrival("flood", client_of(request))
        yield b"." * 200_000


def stream_of(parts, seconds=gate.TICK):
    def stream(request):
        def slowly():
            for part in parts(request):
                yield part
                time.sleep(seconds)

        return StreamingHttpResponse(slowly())

    async def astream(request):
        async def slowly():
            for part in parts(request):
                yield part
                await asyncio.sleep(seconds)

        return StreamingHttpResponse(slowly())

    return stream, astream


plain_stream, aplain_stream = stream_of(parts)
# Without these pauses, daphne would soon take all parts, even if its client reads none of them.
flood, aflood = map(
    semaphore_required("flood", limit=1, timeout=10, max_hold=4, blocking_timeout=30),
    stream_of(flood_parts, 0.005),
)


@one
def file(request):
    return FileResponse(io.BytesIO(b"x" * 100_000), filename="x.bin")


@one
def template(request):
    return TemplateResponse(request, "django_redis_sync/rejected.html", {"message": "rendered"})


class SlowTemplate:
    """A template whose rendering waits at the gate in the query."""

    def render(self, context, request):
        return plain(request).content.decode()


@one
def slow_template(request):
    return TemplateResponse(request, SlowTemplate())


@one
def broken_template(request):
    return TemplateResponse(request, "there/is/no/such/template.html")


# Class-based views


@method_decorator(one, name="dispatch")
class AsyncDispatch(View):
    async def get(self, request):
        return await aplain(request)


class Mixed(SemaphoreRequiredMixin, View):
    semaphore_name, semaphore_limit = "one", 1

    def get(self, request):
        return plain(request)


class AsyncMixed(SemaphoreRequiredMixin, View):
    def get_semaphore_name(self):
        return "one"

    def get_semaphore_limit(self):
        return 1

    async def get(self, request):
        return await aplain(request)


def served(**views):
    return [path(f"{name}/", view, name=name) for name, view in views.items()]


reports = served(
    export=plain, aexport=aplain, list=plain, stream=plain_stream, astream=aplain_stream
)
urlpatterns = [
    path("reports/", include((reports, "reports"))),
    *served(free=plain, quick=quick, limited=one(plain), alimited=one(aplain)),
    *served(stream=one(plain_stream), astream=one(aplain_stream), flood=flood, aflood=aflood),
    *served(file=file, template=template, slow_template=slow_template),
    *served(broken_template=broken_template, gated=drf.gated(plain)),
    *served(adispatch=AsyncDispatch.as_view()),
    *served(mixed=Mixed.as_view(), amixed=AsyncMixed.as_view(), members=login_required(one(plain))),
]
