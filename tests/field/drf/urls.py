"""Views of Django REST framework, limited in each way that its documentation suggests."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Group
from django.http import HttpResponse
from django.urls import include, path
from rest_framework.decorators import action, api_view
from rest_framework.generics import CreateAPIView, ListAPIView
from rest_framework.response import Response
from rest_framework.routers import DefaultRouter
from rest_framework.serializers import ModelSerializer
from rest_framework.views import APIView
from rest_framework.viewsets import ModelViewSet, ViewSet

from django_redis_sync import Lock, SemaphoreRequiredMixin, semaphore_required
from tests.field.proofs import sell

till = semaphore_required("till", limit=1, blocking_timeout=50)


class GroupSerializer(ModelSerializer):  # type: ignore[type-arg]
    class Meta:
        model = Group
        fields = ("id",)


@api_view(["POST"])
@till
def below(request: Any) -> Response:
    # A plain response: it is complete when the view returns.
    return HttpResponse(str(sell()))  # type: ignore[return-value]


@till
@api_view(["POST"])
def above(request: Any) -> Response:
    return Response({"sold": sell()})


class Groups(ListAPIView):  # type: ignore[type-arg]
    queryset, serializer_class = Group.objects.all(), GroupSerializer

    @till
    def list(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        sell()
        return HttpResponse(super().list(request, *args, **kwargs).data)


class Sales(ViewSet):
    @till
    def create(self, request: Any) -> Response:
        sell()
        return HttpResponse(status=201)  # type: ignore[return-value]

    @action(detail=False, methods=["post"])
    @till
    def buy(self, request: Any) -> Response:
        sell()
        return HttpResponse(status=201)  # type: ignore[return-value]


class Locked(CreateAPIView):  # type: ignore[type-arg]
    queryset, serializer_class = Group.objects.all(), GroupSerializer

    def perform_create(self, serializer: Any) -> None:
        with Lock("lock", release_on_commit=True, blocking_timeout=50):
            sell()


class Mixed(SemaphoreRequiredMixin, ModelViewSet):  # type: ignore[type-arg]
    semaphore_name, semaphore_limit, semaphore_blocking_timeout = "mixed", 1, 50
    queryset, serializer_class = Group.objects.all(), GroupSerializer

    def perform_create(self, serializer: Any) -> None:
        sell()


class Post(APIView):
    @till
    def post(self, request: Any) -> Response:
        sell()
        return HttpResponse(status=201)  # type: ignore[return-value]


router = DefaultRouter()
router.register("sales", Sales, basename="sales")
router.register("mixed", Mixed)

urlpatterns = [
    path("below/", below),
    path("above/", above),
    path("list/", Groups.as_view()),
    path("lock/", Locked.as_view()),
    path("post/", Post.as_view()),
    path("", include(router.urls)),
]
