"""Decorated functions and views keep their types. mypy checks this, and no test runs this file."""

from __future__ import annotations

from contextlib import AsyncExitStack

from django.http import HttpRequest, HttpResponse
from django.utils.decorators import method_decorator
from django.views import View
from typing_extensions import assert_type

from django_redis_sync import Lease, Lock, semaphore_required, single_flight, synchronized


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


class Insight:
    pk = 7

    @single_flight("totals:{self.pk}:{year}", ttl=60)
    def totals(self, year: int) -> int:
        return year

    @single_flight("trend:{self.pk}", ttl=60)
    async def trend(self) -> str:
        return "up"

    @classmethod
    @single_flight("of-class:{year}", ignore="cls")
    def of_class(cls, year: int) -> int:
        return year

    def next(self) -> int:
        self.totals.forget(self, 2026)
        return self.totals(year=2026) + self.of_class(2026) + Insight.of_class(2026)

    async def next_trend(self) -> str:
        assert_type(self.totals(2026), int)
        return await self.trend()


async def in_a_stack() -> None:
    async with AsyncExitStack() as stack:
        assert_type(await stack.enter_async_context(Lock("nightly")), Lease)
