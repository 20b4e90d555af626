"""Views limited by decorator, mixin or, plain, by ENDPOINTS. Gates are named after the query."""

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


def shut(request):
    """As often as it is looked at, for as long as the gate in the query is shut."""
    return gate.shut(gate_of(request)) if gate_of(request) else ()


def plain(request):
    """Waits for the gate in the query, if there is one."""
    who = request.GET.get("who", "")
    with gate.inside("plain", who):
        if gate_of(request):
            gate.wait(gate_of(request))
        return HttpResponse(f"{who} of {request.user.pk}")


async def aplain(request):
    with gate.inside("plain", request.GET.get("who", "")):
        if gate_of(request):
            await gate.await_(gate_of(request))
        return HttpResponse("ok")


def quick(request):
    """The least that a limited view may do, and some milliseconds of it."""
    with gate.inside("quick"):
        time.sleep(0.005)
    return HttpResponse("ok")


limited = one(plain)
alimited = one(aplain)


def parts(request):
    yield b"first"
    for _ in shut(request):
        time.sleep(gate.TICK)
        yield b"." * 1000
    if "fail" in request.GET:
        raise OSError("the source of the stream failed")
    yield b"last"


async def aparts(request):
    yield b"first"
    for _ in shut(request):
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
    """Takes as long to render as the gate in the query is shut."""

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


@one
def failing(request):
    raise ValueError("the view failed")


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
#: More than a client that reads a byte per second will ever take.
PARTS = 1000
short = semaphore_required("flood", limit=1, timeout=1, max_hold=2, blocking_timeout=10)


def flood_parts(request):
    for _ in range(PARTS):
        gate.note("flood", request.GET.get("who", ""))
        yield PART


async def aflood_parts(request):
    for part in flood_parts(request):
        yield part
        await asyncio.sleep(0.005)  # daphne takes all there is, whether its client reads or not


@short
def flood(request):
    """More than fits into the buffers on the way."""
    return StreamingHttpResponse(flood_parts(request))


@short
async def aflood(request):
    return StreamingHttpResponse(aflood_parts(request))


members_only = login_required(one(plain))


@semaphore_required("mine", limit=1, key="user")
def mine(request):
    return plain(request)


def tenant_of(request) -> str | None:
    return request.GET.get("who")


@semaphore_required("tenants", limit=4, share=tenant_of, share_limit=2)
def tenant(request):
    with gate.inside("tenants"), gate.inside(f"tenant {tenant_of(request)}"):
        time.sleep(0.02)
    return HttpResponse("done")


@semaphore_required("tenants", limit=4, share=tenant_of, share_limit=2)
async def atenant(request):
    with gate.inside("tenants"), gate.inside(f"tenant {tenant_of(request)}"):
        await asyncio.sleep(0.02)
    return HttpResponse("done")


turns = semaphore_required("turns", limit=1, share=tenant_of, blocking_timeout=50)
turn, aturn = turns(plain), turns(aplain)


@semaphore_required("counter", limit=1, blocking_timeout=20, max_waiters=1000)
def counter(request):
    """Reads, thinks and writes: loses updates when two do it at once."""
    group = Group.objects.get(name__startswith="count")
    number = int(group.name.partition(" ")[2])
    time.sleep(0.001)
    group.name = f"count {number + 1}"
    group.save()
    return HttpResponse("counted")


@semaphore_required("line", limit=1, blocking_timeout=20)
def line(request):
    with gate.inside("line", request.GET.get("who", "")):
        if gate_of(request):
            gate.wait(gate_of(request))
        return HttpResponse("served")
