"""`check` names each view that is limited by user where the user is not known yet."""

import pytest
from django.core.checks import run_checks
from django.http import HttpResponse
from django.urls import clear_url_caches, include, path
from django.utils.decorators import method_decorator
from ninja import NinjaAPI, Router
from ninja.decorators import decorate_view
from ninja.security import HttpBearer, django_auth, django_auth_superuser
from rest_framework.authentication import (
    BasicAuthentication,
    SessionAuthentication,
    TokenAuthentication,
)
from rest_framework.decorators import api_view, authentication_classes
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_redis_sync import SemaphoreRequiredMixin, semaphore_required
from tests.request_site.project import MIDDLEWARE

AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
by_user = semaphore_required("mine", limit=1, key="user")
by_share = semaphore_required("mine", limit=1, share="user")
by_address = semaphore_required("mine", limit=1, key="ip")


def ok(request, **kwargs):
    return HttpResponse()


class View(APIView):
    authentication_classes = (BasicAuthentication,)

    def get(self, request, **kwargs):
        return HttpResponse()


class OfSession(View):
    authentication_classes = (SessionAuthentication,)


class OwnSession(SessionAuthentication):
    def authenticate(self, request):
        return None


class Chosen(View):
    """Chooses how to authenticate for each request."""

    authentication_classes = (SessionAuthentication,)

    def get_authenticators(self):
        return [TokenAuthentication()]


class OnDispatch(View):
    @method_decorator(by_user)
    def dispatch(self, request, *args, **kwargs):
        return super().dispatch(request, *args, **kwargs)


class Derived(OnDispatch):
    def dispatch(self, request, *args, **kwargs):
        return super().dispatch(request, *args, **kwargs)


class Mixed(SemaphoreRequiredMixin, View):
    semaphore_name, semaphore_limit, semaphore_key = "mine", 1, "user"


@method_decorator(by_user, name="list")
class OnList(ViewSet):
    def list(self, request):
        return HttpResponse()


@method_decorator(by_user, name="dispatch")
class Books(OnList):
    pass


@method_decorator(by_user, name="get")
class OnGet(View):
    pass


@method_decorator(by_user, name="dispatch")
class Named(View):
    pass


def drf(*decorators):
    """Return a function-based view of DRF. `decorators`: those above and below api_view."""

    def function(request):
        return HttpResponse()

    for decorator in decorators:
        function = decorator(function)
    return function


api, token = api_view(["GET"]), authentication_classes([TokenAuthentication])

EARLY = {
    "above api_view": drf(token, api, by_user),
    "a share above api_view": drf(token, api, by_share),
    "around as_view": by_user(View.as_view()),
    "around as_view with initkwargs": by_user(
        OfSession.as_view(authentication_classes=[TokenAuthentication])
    ),
    "mixin": Mixed.as_view(),
    "dispatch": OnDispatch.as_view(),
    "dispatch of a base": Derived.as_view(),
    "method_decorator": Named.as_view(),
    "view set": Books.as_view({"get": "list"}),
    "own session": by_user(View.as_view(authentication_classes=[OwnSession])),
    "get_authenticators": by_user(Chosen.as_view()),
}
IN_TIME = {
    "below api_view": drf(by_user, token, api),
    "by address above api_view": drf(token, api, by_address),
    "handler": OnGet.as_view(),
    "action": OnList.as_view({"get": "list"}),
    "the user of the session": by_user(OfSession.as_view()),
    "Django's view": by_user(ok),
}


@pytest.fixture
def found(settings):
    """Return a function that runs the checks on a project with these URLs, and returns messages."""

    def messages(*urls, **endpoints):
        settings.ROOT_URLCONF = urls
        settings.MIDDLEWARE = [AUTHENTICATION, MIDDLEWARE]
        settings.REDIS_SYNC = {**settings.REDIS_SYNC, "ENDPOINTS": endpoints}
        clear_url_caches()
        return run_checks(tags=["redis_sync"])

    yield messages
    clear_url_caches()


@pytest.mark.parametrize("view", EARLY)
def test_check_names_a_view_of_drf_that_is_limited_by_user_outside(view, found):
    (message,) = found(path("x/", EARLY[view], name="one"))
    assert "redis_sync.W010" == message.id
    assert "'mine' limits by user outside" in message.msg and "Views: one." in message.msg
    assert "below @api_view, or on the handler" in message.hint
    assert "or use ConcurrencyThrottle" in message.hint


@pytest.mark.parametrize("view", IN_TIME)
def test_check_accepts_a_view_that_is_limited_by_user_where_the_user_is_known(view, found):
    assert [] == found(path("x/", IN_TIME[view], name="one"))


@pytest.mark.parametrize("option", ["key", "share"])
def test_check_names_a_view_of_drf_that_ENDPOINTS_limits_by_user(option, found):
    router = SimpleRouter()
    router.register("books", OnList, "book")
    entry = {"limit": 1, option: "user"}
    (message,) = found(path("x/", View.as_view(), name="one"), *router.urls, **{"*": entry})
    assert "redis_sync.W010" == message.id and "Views: book-list, one." in message.msg
    assert [] == found(path("x/", OfSession.as_view(), name="one"), **{"*": entry})


# Django Ninja


class Bearer(HttpBearer):
    def authenticate(self, request, token):
        return token


def ninja(*decorators, auth, router_auth=None):
    """Return the URLs of an API with one operation. `decorators`: those below the operation's."""

    def view(request):
        return {}

    for decorator in decorators:
        view = decorator(view)
    api, router = NinjaAPI(auth=auth, urls_namespace=f"n{id(decorators)}"), Router(auth=router_auth)
    (router if router_auth else api).get("/one", url_name="one")(view)
    api.add_router("", router)
    return path("api/", include(([api.urls[0]][0], "api")))


@pytest.mark.parametrize("decorator", [by_user, by_share, decorate_view(by_user)])
@pytest.mark.parametrize("auth", [{"auth": Bearer()}, {"auth": None, "router_auth": [Bearer()]}])
def test_check_names_an_operation_of_ninja_whose_authenticator_sets_request_auth(
    decorator, auth, found
):
    (message,) = found(ninja(decorator, **auth))
    assert "redis_sync.W010" == message.id
    assert "sets request.auth, not request.user" in message.msg
    assert "callable as key or share" in message.hint and "Views: api:one." in message.msg


def test_check_names_an_operation_of_ninja_that_ENDPOINTS_limits_by_user(found):
    entry = {"limit": 1, "key": "user"}
    (message,) = found(ninja(auth=[django_auth, Bearer()]), **{"api:*": entry})
    assert "redis_sync.W010" == message.id


@pytest.mark.parametrize("auth", [None, django_auth, [django_auth_superuser]])
def test_check_accepts_an_operation_of_ninja_that_knows_the_user_of_the_session(auth, found):
    assert [] == found(ninja(by_user, auth=auth))
    assert [] == found(ninja(auth=auth), **{"api:*": {"limit": 1, "key": "user"}})


def test_check_accepts_a_key_that_reads_the_result_of_an_authenticator(found):
    by_auth = semaphore_required("mine", limit=1, key=lambda request: str(request.auth))
    assert [] == found(ninja(by_auth, auth=Bearer()))
