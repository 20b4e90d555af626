"""Decorated functions and views keep their types. mypy checks this, and no test runs this file."""

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
    assert_type(send_invoice(pk), str)
    assert_type(send_digest(pk), "str | None")
    return pk


@semaphore_required("exports", limit=3, key="user")
def export(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse(str(pk))


@semaphore_required
async def live(request: HttpRequest) -> HttpResponse:
    assert_type(await sync_mailbox(7), int)
    return HttpResponse()


@method_decorator(semaphore_required("reports", limit=2, key="user"), name="dispatch")
class Report(View):
    @semaphore_required("reports:get", limit=1)
    def get(self, request: HttpRequest) -> HttpResponse:
        assert_type(export(request, 7), HttpResponse)
        return HttpResponse()
