"""APIs that sell tickets, and whose requests a throttle limits."""

from __future__ import annotations

from typing import Any

from django.urls import include, path
from ninja import NinjaAPI
from rest_framework.decorators import api_view
from rest_framework.response import Response
from rest_framework.routers import DefaultRouter
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_redis_sync.throttling import ConcurrencyThrottle
from tests.field.proofs import sell
from tests.field.throttled.throttles import Till


class OnClass(APIView):
    throttle_classes = (Till,)

    def post(self, request: Any) -> Response:
        return Response({"sold": sell()})


class Scoped(OnClass):
    throttle_classes = (ConcurrencyThrottle,)
    throttle_scope = "till"


@api_view(["POST"])
def function(request: Any) -> Response:
    return Response({"sold": sell()})


class Sales(ViewSet):
    def create(self, request: Any) -> Response:
        return Response({"sold": sell()}, status=201)


ninja, router = NinjaAPI(), DefaultRouter()
router.register("sales", Sales, basename="sales")


@ninja.post("/buy", throttle=[ConcurrencyThrottle("till")])
def buy(request: Any) -> dict[str, bool]:
    return {"sold": sell()}


urlpatterns = [
    path("class/", OnClass.as_view()),
    path("scope/", Scoped.as_view()),
    path("function/", function),
    path("ninja/", ninja.urls),
    path("", include(router.urls)),
]
