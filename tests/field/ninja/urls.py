"""Operations of django-ninja. Without ATOMIC_REQUESTS, the sales begin a transaction themselves."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.db import transaction
from django.urls import path
from ninja import NinjaAPI
from ninja.decorators import decorate_view

from django_redis_sync import semaphore_required
from tests.field.proofs import sell

till = semaphore_required("till", limit=1, blocking_timeout=50)
api, async_api = NinjaAPI(), NinjaAPI(version="async")
sell_atomically = transaction.atomic(sell)


@api.post("/buy")
@till
def buy(request: Any) -> dict[str, bool]:
    return {"sold": sell()}


@api.post("/view")
@decorate_view(till)
def view(request: Any) -> dict[str, bool]:
    return {"sold": sell()}


@async_api.post("/abuy")
@till
async def abuy(request: Any) -> dict[str, bool]:
    return {"sold": await sync_to_async(sell_atomically)()}


@async_api.post("/both")
@till
def both(request: Any) -> dict[str, bool]:
    return {"sold": sell_atomically()}


@async_api.get("/both")
async def read(request: Any) -> dict[str, bool]:
    return {}


urlpatterns = [path("sync/", api.urls), path("async/", async_api.urls)]
