"""Code with wrong types. mypy must reject each line that has a comment `refused`, and no other."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from django_redis_sync import (
    Lock,
    ReadWriteLock,
    RLock,
    Semaphore,
    semaphore_required,
    synchronized,
)


def tenant(request: HttpRequest) -> str:
    return request.get_host()


async def size(request: HttpRequest) -> int:
    return 3


semaphore_required("x", 3, key="user", methods=["GET"], timeout=5, on_outage="open")
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
Lock("x", timeout=5, using=["a", "b", "c"], on_lost=print, release_on_commit=True)
Lock("x", limitt=3)  # refused
Lock("x", limit=3)  # refused
Lock("x", timeout="5")  # refused
Lock("x", blocking=None)  # refused
RLock("x", max_hold=60, renew=False)
RLock("x", max_hold="60")  # refused
ReadWriteLock("x", min_hold=5, label="prices")
ReadWriteLock("x", min_holt=5)  # refused
synchronized("x:{pk}", 3, on_full="skip", blocking_timeout=5, release_on_commit=True)
synchronized("x", limitt=3)  # refused
synchronized("x", timeout="5")  # refused
synchronized("x", on_full="maybe")  # refused


@semaphore_required("x", limit=3)
def export(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse(str(pk))


def calls(request: HttpRequest) -> None:
    export(request, "7")  # refused
    print(export(request, 7).status_code)
