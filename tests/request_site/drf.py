"""Views of Django REST framework, which authenticates the user inside the view."""

from django.contrib.auth.models import User
from django.urls import path
from django.utils.decorators import method_decorator
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import api_view, authentication_classes
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response
from rest_framework.views import APIView, exception_handler
from rest_framework.viewsets import ViewSet

from django_redis_sync import SemaphoreRequiredMixin, semaphore_required

one = semaphore_required("one", limit=1)
mine = semaphore_required("mine", limit=1, key="user")


class Header(BaseAuthentication):
    """Authentication that trusts the header X-User, which contains a primary key."""

    def authenticate(self, request):
        pk = request.headers.get("X-User")
        return (User(pk=int(pk)), None) if pk else None


class Token(APIView):
    authentication_classes = (Header,)

    @method_decorator(mine)
    def get(self, request):
        return Response({"user": request.user.pk})

    @mine
    def post(self, request):
        return Response({"user": request.user.pk})


@api_view(["GET"])
@authentication_classes([Header])
@mine
def function(request):
    return Response({"user": request.user.pk})


class ByAddress(APIView):
    authentication_classes = (Header,)

    @method_decorator(semaphore_required("mine", limit=1, key="ip"))
    def get(self, request):
        return Response({"user": request.user.pk})


def gated(view):
    """Return a view of DRF with a request limit. It calls the plain view `view`."""

    class Gated(APIView):
        @method_decorator(one)
        def get(self, request):
            view(request._request)
            return Response({"ok": True})

    return Gated.as_view()


class Open(APIView):
    """A view without a decorator. Tests limit it with the setting ENDPOINTS."""

    def get(self, request):
        return Response({"ok": True})


class Mixed(SemaphoreRequiredMixin, Open):
    semaphore_name, semaphore_limit = "one", 1


class Set(ViewSet):
    def list(self, request):
        return Response({"ok": True})


class OnList(Set):
    list = method_decorator(one)(Set.list)


class OnDispatch(Open):
    dispatch = method_decorator(one)(Open.dispatch)


class Problem(JSONRenderer):
    media_type = "application/problem+json"


def format_error(error, context):
    """The EXCEPTION_HANDLER of a project that formats errors in its own way."""
    response = exception_handler(error, context)
    details = {"error": response.data["detail"], "code": error.get_codes()}
    response.data = {"ok": False, "action": getattr(context["view"], "action", None), **details}
    return response


urlpatterns = [
    path("token/", Token.as_view(), name="token"),
    path("by-address/", ByAddress.as_view(), name="by-address"),
    path("function/", function, name="function"),
    path("open/", Open.as_view(), name="open"),
    path("problem/", Open.as_view(renderer_classes=[Problem]), name="problem"),
    path("mixed/", Mixed.as_view(), name="mixed"),
    path("set/", Set.as_view({"get": "list"}), name="set"),
    path("on-list/", OnList.as_view({"get": "list"}), name="on-list"),
    path("on-dispatch/", OnDispatch.as_view(), name="on-dispatch"),
]
