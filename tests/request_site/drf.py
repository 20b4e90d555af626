"""Views of Django REST framework, which authenticates the user inside the view."""

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
    """Authentication that trusts the header X-User, which contains a user name."""

    def authenticate(self, request):
        name = request.headers.get("X-User")
        return (User.objects.get(username=name), None) if name else None


def held(request) -> Response:
    """Return the keys of the request's permits, and its user."""
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
    """Wait at the gate in the query."""

    @method_decorator(semaphore_required("one", limit=1))
    def get(self, request):
        views.plain(request._request)
        return Response({"ok": True})


class ByAddress(APIView):
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
    path("by-address/", ByAddress.as_view(), name="by-address"),
    path("function/", function, name="function"),
]


class Open(APIView):
    """A view without a decorator. Tests limit it by ENDPOINTS."""

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


def format_error(error, context):
    """An EXCEPTION_HANDLER of a project."""
    response = exception_handler(error, context)
    details = {"error": response.data["detail"], "code": error.get_codes()}
    response.data = {"ok": False, "action": getattr(context["view"], "action", None), **details}
    return response


urlpatterns += [
    path("open/", Open.as_view(), name="open"),
    path("mixed/", Mixed.as_view(), name="mixed"),
    path("set/", Set.as_view({"get": "list"}), name="set"),
    path("on-list/", OnList.as_view({"get": "list"}), name="on-list"),
    path("on-dispatch/", OnDispatch.as_view(), name="on-dispatch"),
]
