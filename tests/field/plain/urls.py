"""Views of Django alone, and how their limits are declared."""

from __future__ import annotations

import functools
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.syndication.views import Feed
from django.db import transaction
from django.http import HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt

from django_redis_sync import SemaphoreRequiredMixin, semaphore_required
from tests.field.proofs import sell

one = semaphore_required("one", limit=1)
till = semaphore_required("till", limit=1, blocking_timeout=50)


def buy(request: Any) -> HttpResponse:
    sell()
    return HttpResponse()


class Get(View):
    @till
    def get(self, request: Any) -> HttpResponse:
        return buy(request)


class Post(View):
    @till
    def post(self, request: Any) -> HttpResponse:
        return buy(request)


class Base(View):
    @till
    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return super().dispatch(request, *args, **kwargs)


class Derived(Base):
    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return super().dispatch(request, *args, **kwargs)

    def post(self, request: Any) -> HttpResponse:
        return buy(request)


class Helper(View):
    def post(self, request: Any) -> HttpResponse:
        return self.checkout(request)

    @till
    def checkout(self, request: Any) -> HttpResponse:
        return buy(request)


def unwrapped(view: Any) -> Any:
    def inner(request: Any) -> Any:
        return view(request)

    return inner


@till
async def abuy(request: Any) -> HttpResponse:
    await sync_to_async(transaction.atomic(sell))()
    return HttpResponse()


@till
async def bare(request: Any) -> HttpResponse:
    """Sell in the transaction that the middleware began."""
    await sync_to_async(sell)()
    return HttpResponse()


class News(Feed):
    title = link = description = "News"

    def items(self) -> list[Any]:
        return []


async def anews(request: Any) -> HttpResponse:
    return HttpResponse()


class Pages:
    @classmethod
    def of_class(cls, request: Any) -> HttpResponse:
        return HttpResponse()

    def of_instance(self, request: Any) -> HttpResponse:
        return HttpResponse()


@method_decorator(csrf_exempt, name="dispatch")
class Exempt(View):
    def post(self, request: Any) -> HttpResponse:
        return HttpResponse()


class LimitedExempt(SemaphoreRequiredMixin, Exempt):
    semaphore_name, semaphore_limit = "one", 1


def atomic(get_response: Any) -> Any:
    """A middleware without an async version."""

    def middleware(request: Any) -> Any:
        with transaction.atomic():
            return get_response(request)

    return middleware


urlpatterns = [
    path("async/", abuy),
    path("bare/", bare),
    path("feed/", one(News())),
    path("partial/", one(functools.partial(lambda request, status: HttpResponse(), status=200))),
    path("to_sync/", one(async_to_sync(anews))),
    path("classmethod/", one(Pages.of_class)),
    path("method/", one(Pages().of_instance)),
    path("exempt/", LimitedExempt.as_view()),
    path("function/", till(buy)),
    path("get/", Get.as_view()),
    path("post/", Post.as_view()),
    path("base/", Derived.as_view()),
    path("helper/", Helper.as_view()),
    path("unwrapped/", unwrapped(till(buy))),
]
