"""Views that report which user they see, and how their request was counted."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.sessions.backends.db import SessionStore
from django.http import HttpRequest
from django.urls import path
from django.utils import timezone
from ninja import NinjaAPI
from ninja.security import HttpBearer
from oauth2_provider.contrib.rest_framework import OAuth2Authentication
from oauth2_provider.models import AccessToken
from rest_framework.authentication import BasicAuthentication
from rest_framework.decorators import api_view, authentication_classes
from rest_framework.response import Response
from rest_framework.views import APIView

from django_redis_sync import Semaphore
from django_redis_sync.throttling import ConcurrencyThrottle
from tests.field.row import Row
from tests.field.users import aplain, by_user, plain, report


class Backend:
    """A login backend with the two methods that Django's documentation asks for."""

    def authenticate(self, request: Any, **credentials: Any) -> Any:
        return None

    def get_user(self, user_id: Any) -> Any:
        return get_user_model().objects.filter(pk=user_id).first()


class Handler(APIView):
    authentication_classes = (BasicAuthentication,)

    @by_user
    def get(self, request: Any) -> Response:
        return Response(report(request.user))


@api_view(["GET"])
@authentication_classes([OAuth2Authentication])
@by_user
def function(request: Any) -> Response:
    return Response(report(request.user))


class Mine(ConcurrencyThrottle):
    scope, limit, key = "mine", 1, "user"


class Throttled(APIView):
    authentication_classes = (BasicAuthentication,)
    throttle_classes = (Mine,)

    def get(self, request: Any) -> Response:
        return Response(report(request.user))


class Bearer(HttpBearer):
    def authenticate(self, request: HttpRequest, token: str) -> Any:
        request.user = get_user_model().objects.get(username=token)
        return token


ninja = NinjaAPI(auth=Bearer())


@ninja.get("/one")
@by_user
def one(request: Any) -> dict[str, Any]:
    return report(request.user)


@ninja.get("/two", throttle=[Mine()])
def two(request: Any) -> dict[str, Any]:
    return report(request.user)


urlpatterns = [
    path("sync/", by_user(plain)),
    path("async/", by_user(aplain)),
    path("endpoint/", plain, name="endpoint"),
    path("aendpoint/", aplain, name="aendpoint"),
    path("handler/", Handler.as_view()),
    path("function/", function),
    path("throttle/", Throttled.as_view()),
    path("ninja/", ninja.urls),
]


def headers_of(site: Any, name: str, kind: str) -> dict[str, str]:
    """Return the headers of a request of the user `name`. `kind`: how the user logs in."""
    user = site.user(name)
    if kind == "session":
        return site.login(name)  # type: ignore[no-any-return]
    if kind == "token":
        return {"X-Token": str(user.pk)}
    if kind == "basic":
        return {"Authorization": f"Basic {base64.b64encode(f'{name}:{name}'.encode()).decode()}"}
    if kind == "oauth":
        AccessToken.objects.filter(token=name).delete()
        soon = timezone.now() + timedelta(hours=1)
        AccessToken.objects.create(user=user, token=name, expires=soon, scope="read")
    if kind in ("oauth", "bearer"):
        return {"Authorization": f"Bearer {name}"}
    admin = site.user("admin")
    admin.is_superuser = admin.is_staff = True
    admin.save()
    cookie = site.login("admin")
    session = SessionStore(cookie["Cookie"].partition("=")[2])
    session["_impersonate"] = str(user.pk)
    session.save()
    return cookie  # type: ignore[no-any-return]


def counts_each_user(site: Any, row: Row) -> None:
    """The limit and WHO are those of the user that the view sees: a full limit of one user rejects
    only that user."""
    kind = row.arguments["as"]
    ann, bob = site.user("ann"), site.user("bob")
    for user in (ann, bob):
        reply = site.ask(row.path, headers=headers_of(site, user.username, kind))
        assert reply.status == 200, reply.body[:2000]
        found = reply.json()
        assert (user.pk, 1, [str(user.pk)]) == (found["sees"], found["counted"], found["who"])
    with Semaphore("mine", 1, key=str(ann.pk)):
        statuses = [
            site.ask(row.path, headers=headers_of(site, user.username, kind)).status
            for user in (ann, bob)
        ]
    assert [429, 200] == statuses


def counts_by_address(site: Any, row: Row) -> None:
    """Anonymous requests are counted by address."""
    reply = site.ask(row.path)
    assert (200, None) == (reply.status, reply.json()["sees"]), reply.body[:2000]
