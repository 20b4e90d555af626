"""Views with limits by decorator or mixin, and plain views, which tests limit by ENDPOINTS.

The query parameter `gate` names the gate at which a view waits, `client` names the client.
"""

import asyncio
import io
import time

from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import Group
from django.http import FileResponse, HttpResponse, StreamingHttpResponse
from django.template.response import TemplateResponse
from django.utils.decorators import method_decorator
from django.views import View

from django_redis_sync import SemaphoreRequiredMixin, semaphore_required
from tests.request_site import gate

one = semaphore_required("one", limit=1)


def gate_of(request) -> str:
    return request.GET.get("gate", "")


def client_of(request) -> str:
    return request.GET.get("client", "")


def while_shut(request):
    """Yield while the gate in the query is shut."""
    return gate.while_shut(gate_of(request)) if gate_of(request) else ()


def plain(request):
    """Wait at the gate in the query, if there is one."""
    with gate.inside("plain", client_of(request)):
        if gate_of(request):
            gate.wait(gate_of(request))
        return HttpResponse("ok")


async def aplain(request):
    with gate.inside("plain", client_of(request)):
        if gate_of(request):
            await gate.await_(gate_of(request))
        return HttpResponse("ok")


def quick(request):
    with gate.inside("quick"):
        time.sleep(0.005)
    return HttpResponse("ok")


limited = one(plain)
alimited = one(aplain)


def parts(request):
    yield b"first"
    for _ in while_shut(request):
        time.sleep(gate.TICK)
        yield b"." * 1000
    if "fail" in request.GET:
        raise OSError("the source of the stream failed")
    yield b"last"


async def aparts(request):
    yield b"first"
    for _ in while_shut(request):
        await asyncio.sleep(gate.TICK)
        yield b"." * 1000
    if "fail" in request.GET:
        raise OSError("the source of the stream failed")
    yield b"last"


def plain_stream(request):
    return StreamingHttpResponse(parts(request))


async def aplain_stream(request):
    return StreamingHttpResponse(aparts(request))


stream = one(plain_stream)
astream = one(aplain_stream)


@one
def file(request):
    return FileResponse(io.BytesIO(b"x" * 100_000), filename="x.bin")


@one
def template(request):
    return TemplateResponse(request, "django_redis_sync/rejected.html", {"message": "rendered"})


class SlowTemplate:
    """A template whose rendering waits at the gate in the query."""

    def render(self, context, request):
        with gate.inside("plain"):
            gate.wait(gate_of(request))
        return "rendered"


@one
def slow_template(request):
    return TemplateResponse(request, SlowTemplate())


@one
def broken_template(request):
    return TemplateResponse(request, "there/is/no/such/template.html")


@method_decorator(one, name="dispatch")
class AsyncDispatch(View):
    async def get(self, request):
        return await aplain(request)


class OnGet(View):
    @method_decorator(one)
    def get(self, request):
        return plain(request)

    @one
    def post(self, request):
        return HttpResponse("posted")


class Mixed(SemaphoreRequiredMixin, View):
    semaphore_name = "one"
    semaphore_limit = 1

    def get(self, request):
        return plain(request)


class AsyncMixed(SemaphoreRequiredMixin, View):
    def get_semaphore_name(self):
        return "one"

    def get_semaphore_limit(self):
        return 1

    async def get(self, request):
        return await aplain(request)


PART = b"." * 200_000
#: So that a client that reads slowly never gets all parts.
PARTS = 1000
short = semaphore_required("flood", limit=1, timeout=1, max_hold=2, blocking_timeout=10)


def flood_parts(request):
    for _ in range(PARTS):
        gate.record_arrival("flood", client_of(request))
        yield PART


async def aflood_parts(request):
    for part in flood_parts(request):
        yield part
        await asyncio.sleep(0.005)  # daphne takes all parts, even if its client does not read


@short
def flood(request):
    """Stream more than fits into the buffers between server and client."""
    return StreamingHttpResponse(flood_parts(request))


@short
async def aflood(request):
    return StreamingHttpResponse(aflood_parts(request))


members_only = login_required(one(plain))


tenants = semaphore_required("tenants", limit=4, share=client_of, share_limit=2)


@tenants
def tenant(request):
    with gate.inside("tenants"), gate.inside(f"tenant {client_of(request)}"):
        time.sleep(0.02)
    return HttpResponse("done")


@tenants
async def atenant(request):
    with gate.inside("tenants"), gate.inside(f"tenant {client_of(request)}"):
        await asyncio.sleep(0.02)
    return HttpResponse("done")


turns = semaphore_required("turns", limit=1, share=client_of, blocking_timeout=50)
turn, aturn = turns(plain), turns(aplain)


@semaphore_required("counter", limit=1, blocking_timeout=20, max_waiters=1000)
def counter(request):
    """Read a number, wait, and write the next one: concurrent requests would lose updates."""
    group = Group.objects.get(name__startswith="count")
    number = int(group.name.partition(" ")[2])
    time.sleep(0.001)
    group.name = f"count {number + 1}"
    group.save()
    return HttpResponse("counted")
