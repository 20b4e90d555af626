"""Decorated functions and views keep their types; mypy reads it, nobody runs it."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.decorators import method_decorator
from django.views import View
from typing_extensions import assert_type

from django_redis_sync import semaphore_required, synchronized


@synchronized("invoice:{pk}", blocking_timeout=5)
def send_invoice(pk: int) -> str:
    return f"sent {pk}"


@synchronized("digest:{pk}", on_full="skip")
def send_digest(pk: int) -> str:
    return f"sent {pk}"


@synchronized("mailbox:{pk}")
async def sync_mailbox(pk: int) -> int:
    return pk


async def calls() -> None:
    assert_type(send_invoice(7), str)
    assert_type(send_digest(7), "str | None")
    assert_type(await sync_mailbox(7), int)


@semaphore_required("exports", limit=3, key="user")
def export(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse(str(pk))


@semaphore_required
async def live(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


def tenant(request: HttpRequest) -> str:
    return request.headers.get("X-Tenant", "")


@method_decorator(semaphore_required("reports", limit=2, key=tenant), name="dispatch")
class Report(View):
    @semaphore_required("reports:get", limit=1)
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


def views_keep_their_types(request: HttpRequest) -> None:
    assert_type(export(request, 7), HttpResponse)
