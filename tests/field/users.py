"""A site whose users log in by a session, a token, impersonation, or a class of Django REST
framework. Each view reports which user it sees, and how its request was counted."""

from asgiref.sync import sync_to_async
from django.contrib.auth.models import AnonymousUser, User
from django.http import JsonResponse
from django.urls import path
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.decorators import api_view, authentication_classes
from rest_framework.response import Response
from rest_framework.views import APIView

from django_redis_sync import Semaphore, semaphore_required

by_user = semaphore_required("mine", limit=1, key="user")
by_share = semaphore_required("ours", limit=9, share="user")


def report(user):
    """Return what the view sees: the user's primary key, and how the request was counted."""
    pk = None if user is None else user.pk
    mine = Semaphore("mine", 1, key=str(pk)).status()
    (ours,) = Semaphore("ours", 9).status().holders or [None]
    return {
        "sees": pk,
        "counted": mine.in_use,
        "share": ours and ours.share,
        "who": [one.label.get("user", "") for one in (*mine.holders, *([ours] if ours else []))],
    }


def plain(request):
    return JsonResponse(report(request.user))


async def aplain(request):
    return JsonResponse(await sync_to_async(lambda: report(request.user))())


async def by_auser(request):
    user = await request.auser()
    return JsonResponse(await sync_to_async(report)(user))


class Header(BaseAuthentication):
    """Trusts the header X-Token, which contains a primary key."""

    def authenticate(self, request):
        pk = request.headers.get("X-Token")
        return (User(pk=int(pk)), None) if pk else None


class Handler(APIView):
    authentication_classes = (Header,)

    @by_user
    @by_share
    def get(self, request):
        return Response(report(request.user))


@api_view(["GET"])
@authentication_classes([Header])
@by_user
@by_share
def function(request):
    return Response(report(request.user))


@by_user
@by_share
@api_view(["GET"])
@authentication_classes([SessionAuthentication])
def session(request):
    return Response(report(request.user))


class Minimal:
    """A login backend that has only the two methods that Django's documentation asks for."""

    def authenticate(self, request, **credentials):
        return None

    def get_user(self, user_id):
        return User(pk=user_id)


def by_token(get_response):
    """Middleware that sets the user of the header X-Token, without a word to Django's sessions."""

    def call(request):
        if pk := request.headers.get("X-Token"):
            request.user = User(pk=int(pk))
        return get_response(request)

    return call


def without_pk(get_response):
    """Middleware that sets a user of another kind than Django's."""

    def call(request):
        request.user = type("Account", (), {"is_authenticated": True})()
        return get_response(request)

    return call


def guests(get_response):
    """Middleware that gives clients without a login a user with a primary key."""

    def call(request):
        request.user = AnonymousUser()
        request.user.id = request.user.pk = 0
        return get_response(request)

    return call


def by_auser_only(get_response):
    """Middleware that replaces request.auser, and leaves request.user alone."""

    async def user():
        return User(pk=4)

    async def call(request):
        request.auser = user
        return await get_response(request)

    return call


by_auser_only.sync_capable, by_auser_only.async_capable = False, True


urlpatterns = [
    path("sync/", by_user(by_share(plain)), name="sync"),
    path("async/", by_user(by_share(aplain)), name="async"),
    path("auser/", by_user(by_share(by_auser)), name="auser"),
    path("endpoint/", plain, name="endpoint"),
    path("aendpoint/", aplain, name="aendpoint"),
    path("handler/", Handler.as_view(), name="handler"),
    path("function/", function, name="function"),
    path("session/", session, name="session"),
]
