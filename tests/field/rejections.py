"""An API of Django REST framework whose exception handler reads what DRF sets before it asks its
throttles."""

from django.db import connection
from django.http import HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from rest_framework.decorators import action, api_view
from rest_framework.parsers import JSONParser
from rest_framework.response import Response
from rest_framework.views import APIView, exception_handler
from rest_framework.viewsets import ViewSet

from django_redis_sync import Lock, SemaphoreRequiredMixin, semaphore_required

one = semaphore_required("one", limit=1)


def read(error, context):
    """An exception handler that reads the request and the view."""
    request, view = context["request"], context["view"]
    response = exception_handler(error, context)
    if response is not None:
        response.data = {
            "version": request.version,
            "scheme": type(request.versioning_scheme).__name__,
            "renderer": request.accepted_renderer.format,
            "media_type": request.accepted_media_type,
            "parsers": [type(parser).__name__ for parser in request.parsers],
            "authenticators": [type(one).__name__ for one in request.authenticators],
            "user": str(request.user),
            "data": request.data,
            "kwargs": view.kwargs,
            "action": getattr(view, "action", None),
            "format": view.format_kwarg,
        }
    return response


def fail(error, context):
    raise KeyError("no such field")


def decline(error, context):
    return None


def confuse(error, context):
    return {"detail": "not a response"}


class Plain(APIView):
    parser_classes = (JSONParser,)

    def get(self, request, **kwargs):
        return Response({"ok": True})

    def post(self, request, **kwargs):
        return Response({"ok": True, "data": request.data})


class Mixed(SemaphoreRequiredMixin, Plain):
    semaphore_name, semaphore_limit = "one", 1


class Decorated(Plain):
    get, post = method_decorator(one)(Plain.get), method_decorator(one)(Plain.post)


@method_decorator(one, name="dispatch")
class OnDispatch(Plain):
    pass


class Locks(Plain):
    """Its own lock raises NotAcquired after the body was read."""

    def post(self, request, **kwargs):
        assert request.data == {"a": 1}
        with Lock("one", blocking=False):
            return Response({"ok": True, "data": request.data})


class Books(ViewSet):
    def list(self, request, **kwargs):
        return Response({"ok": True})

    def create(self, request, **kwargs):
        return Response({"ok": True})

    @action(detail=False, methods=["post"])
    def publish(self, request, **kwargs):
        return Response({"ok": True})


@api_view(["GET", "POST"])
def function(request, **kwargs):
    return Response({"ok": True})


def query(request):
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return HttpResponse("ok")


urlpatterns = [
    path("<version>/plain/", Plain.as_view(), name="plain-endpoint"),
    path("<version>/mixed/", Mixed.as_view(), name="mixed"),
    path("<version>/decorated/", Decorated.as_view(), name="decorated"),
    path("<version>/dispatch/", OnDispatch.as_view()),
    path("<version>/locks/", Locks.as_view(), name="locks"),
    path(
        "<version>/books/", Books.as_view({"get": "list", "post": "create"}), name="books-endpoint"
    ),
    path("<version>/publish/", Books.as_view({"post": "publish"}), name="publish-endpoint"),
    path("<version>/function/", function, name="function-endpoint"),
    path("query/", query),
]
