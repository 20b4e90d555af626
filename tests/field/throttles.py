"""APIs whose requests are limited by a throttle."""

from django.contrib.auth.models import User
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import path
from ninja import NinjaAPI
from ninja.security import HttpBearer
from ninja.throttling import BaseThrottle as NinjaThrottle
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import action, api_view, throttle_classes
from rest_framework.permissions import IsAuthenticated
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_redis_sync import Semaphore
from django_redis_sync.throttling import ConcurrencyThrottle


def in_use(name="one", key=None):
    return Semaphore(name, 1, key=key).status().in_use


class Header(BaseAuthentication):
    """Trusts the header X-Token, which contains a primary key."""

    def authenticate(self, request):
        pk = request.headers.get("X-Token")
        return (User(pk=int(pk)), None) if pk else None


class One(ConcurrencyThrottle):
    scope, limit = "one", 1


class Mine(ConcurrencyThrottle):
    scope, limit, key = "mine", 1, "user"


class Unnamed(ConcurrencyThrottle):
    limit = 1


class ByCallable(ConcurrencyThrottle):
    """Options that are functions of the class get the request, and not the throttle."""

    scope, limit = "called", 1

    def key(request):
        return request.headers["X-Token"]

    when = staticmethod(lambda request: request.method == "GET")


class Shadow(ConcurrencyThrottle):
    scope, limit, enforce = "one", 1, False


class Denies(BaseThrottle):
    """Rejects each request, and notes whether the permit was in use when DRF asked."""

    def allow_request(self, request, view):
        return False

    def wait(self):
        return 7


class View(APIView):
    authentication_classes = (Header,)

    def get(self, request):
        user = None if request.user is None else request.user.pk
        return Response({"one": in_use(), "mine": in_use("mine", str(user)), "user": user})


class Problem(JSONRenderer):
    media_type = "application/problem+json"


class OnClass(View):
    throttle_classes = (One,)
    renderer_classes = (Problem,)


class OfUser(View):
    throttle_classes = (Mine,)
    permission_classes = (IsAuthenticated,)


class Scoped(View):
    throttle_classes = (ConcurrencyThrottle,)
    throttle_scope = "one"


class Both(View):
    throttle_classes = (Mine, One)


class Denied(View):
    throttle_classes = (Denies, One, Shadow)

    def throttled(self, request, wait):
        self.seen = in_use()
        super().throttled(request, wait)

    def finalize_response(self, request, response, *args, **kwargs):
        response = super().finalize_response(request, response, *args, **kwargs)
        response["X-In-Use"] = str(self.seen)
        return response


class Early(Denied):
    """DRF asks the other throttle after ours."""

    throttle_classes = (One, Denies)


class Stream(View):
    throttle_classes = (One,)

    def get(self, request):
        return StreamingHttpResponse(str(in_use()) for _ in range(2))


class Books(ViewSet):
    authentication_classes = (Header,)

    def list(self, request):
        return Response({"one": in_use()})

    @action(detail=False, throttle_classes=[One])
    def best(self, request):
        return Response({"one": in_use()})


@api_view(["GET"])
@throttle_classes([One])
def function(request):
    return Response({"one": in_use()})


# Django Ninja


class Bearer(HttpBearer):
    """Sets request.user, as a project does that wants Django's conventions."""

    def authenticate(self, request, token):
        request.user = User(pk=int(token))
        return token


class NinjaDenies(NinjaThrottle):
    def allow_request(self, request):
        return False


ninja = NinjaAPI(urls_namespace="throttled")


@ninja.get("/one", throttle=[ConcurrencyThrottle("one", limit=1)])
def one(request):
    return {"one": in_use()}


@ninja.get("/mine", auth=Bearer(), throttle=ConcurrencyThrottle("mine", limit=1, key="user"))
def mine(request):
    return {"mine": in_use("mine", str(request.user.pk)), "user": request.user.pk}


@ninja.get("/denied", throttle=[NinjaDenies(), One()])
def denied(request):
    return {}


@ninja.get("/async", throttle=[One()])
async def on_loop(request):
    return {}


@ninja.get("/plain")
def without_throttle(request):
    return {"one": in_use()}


router = SimpleRouter()
router.register("books", Books, "book")

urlpatterns = [
    path("class/", OnClass.as_view(), name="class"),
    path("initkwargs/", View.as_view(throttle_classes=[One])),
    path("user/", OfUser.as_view(), name="user"),
    path("scoped/", Scoped.as_view(), name="scoped"),
    path("unscoped/", View.as_view(throttle_classes=[ConcurrencyThrottle])),
    path("unnamed/", View.as_view(throttle_classes=[Unnamed]), name="unnamed"),
    path("called/", View.as_view(throttle_classes=[ByCallable]), name="called"),
    path("shadow/", View.as_view(throttle_classes=[Shadow]), name="shadow"),
    path("both/", Both.as_view(), name="both"),
    path("denied/", Denied.as_view(), name="denied"),
    path("early/", Early.as_view(), name="early"),
    path("stream/", Stream.as_view(), name="stream"),
    path("function/", function, name="function"),
    path("default/", View.as_view(), name="default"),
    path("ninja/", ninja.urls),
    path("query/", lambda request: HttpResponse()),
    *router.urls,
]
