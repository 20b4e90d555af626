"""The shop's pages, each as sync code and as async code."""

import asyncio
import time

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from django_redis_sync import NotAcquired, semaphore_required
from example_project.shop import sales
from example_project.shop.asked import seconds_of
from example_project.shop.middleware import ARRIVED
from example_project.shop.models import Sale, Ticket
from example_project.shop.witness import Visit, Witness

EXPORTS = Witness("exports")
SLOW_EXPORTS = Witness("slow-export")

EXPORT_LIMIT = 3
EXPORT_SECONDS = 0.15
MAX_WAIT = 15.0  # max seconds that a request waits for an export
SLOW_SECONDS = 15.0  # default seconds of a slow export; the query can set another number


@require_GET
def index(request: HttpRequest) -> HttpResponse:
    """Show links to all pages, and the requests that are inside the export views now."""
    context = {
        "sale": Sale.objects.order_by("-pk").first(),
        "exports": EXPORTS.present(),
        "export_limit": EXPORT_LIMIT,
        "slow_exports": SLOW_EXPORTS.present(),
    }
    return render(request, "shop/index.html", context)


# The flash sale


@require_POST
def new_sale(request: HttpRequest) -> HttpResponse:
    """Open a new sale and go back to its page."""
    sales.open_sale()
    return HttpResponseRedirect(reverse("flash-sale"))


@require_http_methods(["GET", "POST"])
def flash_sale(request: HttpRequest) -> HttpResponse:
    """GET shows the sale, POST buys one ticket."""
    if request.method == "GET":
        return _sale_page(request)
    try:
        ticket = sales.buy(_buyer(request))
    except NotAcquired:
        return _crowded(request)
    return _sale_answer(request, ticket)


@require_http_methods(["GET", "POST"])
async def async_flash_sale(request: HttpRequest) -> HttpResponse:
    """Async version of `flash_sale()`."""
    if request.method == "GET":
        return await sync_to_async(_sale_page)(request)
    try:
        ticket = await sales.abuy(_buyer(request))
    except NotAcquired:
        return await sync_to_async(_crowded)(request)
    return await sync_to_async(_sale_answer)(request, ticket)


def _buyer(request: HttpRequest) -> str:
    return request.POST.get("buyer", "").strip()[:100] or "somebody"


def _sale_answer(request: HttpRequest, ticket: Ticket | None) -> HttpResponse:
    """Return 200 with the ticket, or 409 if there is no ticket."""
    if ticket is None:
        return _sale_page(request, "Sorry, sold out.", status=409)
    return _sale_page(request, f"Ticket {ticket.number} is yours, {ticket.buyer}.")


def _crowded(request: HttpRequest) -> HttpResponse:
    """Return the 503 for a buyer that has waited too long."""
    response = _sale_page(request, "Too many buyers are waiting. Please try again.", status=503)
    response["Retry-After"] = "1"
    return response


def _sale_page(request: HttpRequest, answer: str = "", status: int = 200) -> HttpResponse:
    sale = Sale.objects.order_by("-pk").first()
    sold = sale.sold.order_by("pk") if sale else []
    context = {"sale": sale, "sold": sold, "answer": answer}
    return render(request, "shop/sale.html", context, status=status)


# Exports: at most three at once


@require_GET
@semaphore_required("exports", limit=EXPORT_LIMIT, blocking_timeout=0)
def export_now(request: HttpRequest) -> HttpResponse:
    """Return an export if a permit is free, or else a 503."""
    return _export(request)


@require_GET
@semaphore_required("exports", limit=EXPORT_LIMIT, blocking_timeout=MAX_WAIT)
def export_in_line(request: HttpRequest) -> HttpResponse:
    """Wait for a permit in the order of arrival, and return an export."""
    return _export(request)


@require_GET
@semaphore_required("exports", limit=EXPORT_LIMIT, blocking_timeout=0)
async def async_export_now(request: HttpRequest) -> HttpResponse:
    """Async version of `export_now()`."""
    return await _aexport(request)


@require_GET
@semaphore_required("exports", limit=EXPORT_LIMIT, blocking_timeout=MAX_WAIT)
async def async_export_in_line(request: HttpRequest) -> HttpResponse:
    """Async version of `export_in_line()`."""
    return await _aexport(request)


def _export(request: HttpRequest) -> HttpResponse:
    with EXPORTS.watch(request.path, request.META[ARRIVED]) as visit:
        time.sleep(EXPORT_SECONDS)
        return _export_page(request, visit)


async def _aexport(request: HttpRequest) -> HttpResponse:
    with EXPORTS.watch(request.path, request.META[ARRIVED]) as visit:
        await asyncio.sleep(EXPORT_SECONDS)
        return await sync_to_async(_export_page)(request, visit)


# Slow exports: at most one at once. A slow export leaves a user time to kill its worker


@require_GET
@semaphore_required("slow-export", limit=1, blocking_timeout=0)
def slow_export(request: HttpRequest) -> HttpResponse:
    """Hold the only permit for SLOW_SECONDS, or for the time in a query such as `?seconds=30`."""
    with SLOW_EXPORTS.watch(request.path, request.META[ARRIVED]) as visit:
        time.sleep(seconds_of(request.GET, SLOW_SECONDS))
        return _export_page(request, visit)


@require_GET
@semaphore_required("slow-export", limit=1, blocking_timeout=0)
async def async_slow_export(request: HttpRequest) -> HttpResponse:
    """Async version of `slow_export()`."""
    with SLOW_EXPORTS.watch(request.path, request.META[ARRIVED]) as visit:
        await asyncio.sleep(seconds_of(request.GET, SLOW_SECONDS))
        return await sync_to_async(_export_page)(request, visit)


def _export_page(request: HttpRequest, visit: Visit) -> HttpResponse:
    tickets = Ticket.objects.select_related("sale").order_by("-pk")[:20]
    return render(request, "shop/export.html", {"visit": visit, "tickets": tickets})
