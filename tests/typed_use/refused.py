"""What type checkers refuse: every line marked so, and no other. Nobody runs it."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from django_redis_sync import Semaphore, semaphore_required


def tenant(request: HttpRequest) -> str:
    return request.get_host()


def heavy(request: HttpRequest) -> bool:
    return "all" in request.GET


async def size(request: HttpRequest) -> int:
    return 3


semaphore_required("x", 3, key="user", methods=["GET"], when=heavy, timeout=5, on_outage="open")
semaphore_required("x", limit=size, key=tenant, when="shop.limits.heavy", status=429, max_hold=None)
semaphore_required(name="x", limit=3)
semaphore_required("x", limitt=3)  # refused
semaphore_required("x", limit="3")  # refused
semaphore_required("x", limit=3, timeout="5")  # refused
semaphore_required("x", limit=3, on_outage="maybe")  # refused
semaphore_required("x", limit=3, on_full="skip")  # refused
semaphore_required("x", limit=3, fair="yes")  # refused
semaphore_required("x", limit=3, max_waiter=3)  # refused
semaphore_required("x", limit=3, key=7)  # refused
semaphore_required(3)  # refused
Semaphore("x", 3, timeout="5")  # refused
Semaphore("x", 3, timeot=5)  # refused


@semaphore_required("x", limit=3)
def export(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse(str(pk))


@semaphore_required
def report(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse(str(pk))


def calls(request: HttpRequest) -> None:
    export(request, "7")  # refused
    report(request, "7")  # refused
    print(report(request, 7).status_code)
