"""The fair queue: two tills, and one queue for all customers, in all server processes."""

import asyncio
import time
from contextlib import nullcontext
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from django_redis_sync import NotAcquired, Semaphore
from example_project.shop.asked import seconds_of, text_of
from example_project.shop.middleware import ARRIVED
from example_project.shop.witness import Visit, Witness

TILLS = 2
MAX_WAIT = 30.0  # max seconds that a customer waits
SERVICE_SECONDS = 5.0  # default seconds per customer; the form can set another number

AT_THE_TILLS = Witness("tills")


def tills(customer: str = "") -> Any:
    """Return the semaphore of the tills. If locks are disabled, return a null context instead."""
    if settings.WITHOUT_LOCKS:
        return nullcontext()
    return Semaphore("tills", TILLS, blocking_timeout=MAX_WAIT, label=customer)


@require_http_methods(["GET", "POST"])
def queue(request: HttpRequest) -> HttpResponse:
    """GET shows the customers at the tills and those in the queue. POST adds a customer."""
    if request.method == "GET":
        return _page(request)
    customer = text_of(request, "customer")
    try:
        with tills(customer), AT_THE_TILLS.watch(customer, request.META[ARRIVED]) as visit:
            time.sleep(seconds_of(request.POST, SERVICE_SECONDS))
    except NotAcquired:
        return _gone(request)
    return _served(request, visit)


@require_http_methods(["GET", "POST"])
async def async_queue(request: HttpRequest) -> HttpResponse:
    """Async version of `queue()`."""
    if request.method == "GET":
        return await sync_to_async(_page)(request)
    customer = text_of(request, "customer")
    try:
        async with tills(customer):
            with AT_THE_TILLS.watch(customer, request.META[ARRIVED]) as visit:
                await asyncio.sleep(seconds_of(request.POST, SERVICE_SECONDS))
    except NotAcquired:
        return await sync_to_async(_gone)(request)
    return await sync_to_async(_served)(request, visit)


def _served(request: HttpRequest, visit: Visit) -> HttpResponse:
    return _page(request, f"Thank you, {visit.who}. You waited {visit.waited:.1f} s.")


def _gone(request: HttpRequest) -> HttpResponse:
    """Return the 503 for a customer that has waited too long."""
    response = _page(request, "The queue is too long. Please come again later.", status=503)
    response["Retry-After"] = "10"
    return response


def _page(request: HttpRequest, answer: str = "", status: int = 200) -> HttpResponse:
    context = {
        "answer": answer,
        "tills": TILLS,
        "patience": MAX_WAIT,
        "now": Semaphore("tills", TILLS).status(),
        "served": AT_THE_TILLS.visits()[-10:],
        "seconds": SERVICE_SECONDS,
    }
    return render(request, "shop/queue.html", context, status=status)
