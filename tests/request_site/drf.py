"""Views of Django REST framework, whose user is only known inside them."""

from django.contrib.auth.models import User
from django.urls import path
from django.utils.decorators import method_decorator
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import api_view, authentication_classes
from rest_framework.response import Response
from rest_framework.views import APIView, exception_handler
from rest_framework.viewsets import ViewSet

from django_redis_sync import SemaphoreRequiredMixin, semaphore_required
from django_redis_sync.limits.response import note_of
from tests.request_site import views


class Header(BaseAuthentication):
    """Believes a header: X-User is a user's name."""

    def authenticate(self, request):
        name = request.headers.get("X-User")
        return (User.objects.get(username=name), None) if name else None


def held(request) -> Response:
    """The keys that the request holds."""
    keys = sorted(str(place.key) for place in note_of(request._request))
    return Response({"keys": keys, "user": request.user.pk})


class Token(APIView):
    authentication_classes = [Header]

    @method_decorator(semaphore_required("mine", limit=1, key="user"))
    def get(self, request):
        return held(request)

    @semaphore_required("mine", limit=1, key="user")
    def post(self, request):
        return held(request)


class Gated(APIView):
    """Waits for the gate in the query."""

    @method_decorator(semaphore_required("one", limit=1))
    def get(self, request):
        views.plain(request._request)
        return Response({"ok": True})


class Marked(APIView):
    @method_decorator(semaphore_required("mine", limit=1, key="ip"))
    def get(self, request):
        return held(request)


@api_view(["GET"])
@authentication_classes([Header])
@semaphore_required("mine", limit=1, key="user")
def function(request):
    return held(request)


urlpatterns = [
    path("token/", Token.as_view(), name="token"),
    path("marked/", Marked.as_view(), name="marked"),
    path("function/", function, name="function"),
]


class Open(APIView):
    """Limited from outside alone."""

    def get(self, request):
        return Response({"ok": True})


class Mixed(SemaphoreRequiredMixin, Open):
    semaphore_name, semaphore_limit = "one", 1


class Set(ViewSet):
    def list(self, request):
        return Response({"ok": True})


class OnList(ViewSet):
    @method_decorator(semaphore_required("one", limit=1))
    def list(self, request):
        return Response({"ok": True})


@method_decorator(semaphore_required("one", limit=1), name="dispatch")
class OnDispatch(Open):
    pass


def in_an_envelope(error, context):
    """What a project sets as EXCEPTION_HANDLER."""
    response = exception_handler(error, context)
    said = {"error": response.data["detail"], "code": error.get_codes()}
    response.data = {"ok": False, "action": getattr(context["view"], "action", None), **said}
    return response


urlpatterns += [
    path("open/", Open.as_view(), name="open"),
    path("mixed/", Mixed.as_view(), name="mixed"),
    path("set/", Set.as_view({"get": "list"}), name="set"),
    path("on-list/", OnList.as_view({"get": "list"}), name="on-list"),
    path("on-dispatch/", OnDispatch.as_view(), name="on-dispatch"),
]
