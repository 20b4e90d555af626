"""A Ninja API with its own error format. Decorators or ENDPOINTS limit its views."""

from django.urls import path
from ninja import NinjaAPI
from ninja.errors import HttpError

from django_redis_sync import Lock, semaphore_required

api = NinjaAPI(urls_namespace="limited-api")
one = semaphore_required("one", limit=1)


@api.exception_handler(HttpError)
def format_error(request, error):
    with Lock("errors", blocking_timeout=5):  # a project's exception handler may acquire a lock
        body = {"ok": False, "error": str(error)}
    return api.create_response(request, body, status=error.status_code)


@api.get("/decorated", url_name="decorated")
@one
def decorated(request):
    return {"ok": True}


@api.get("/adecorated", url_name="adecorated")
@one
async def adecorated(request):
    return {"ok": True}


@api.get("/endpoint", url_name="endpoint")
def endpoint(request):
    return {"ok": True}


@api.get("/aendpoint", url_name="aendpoint")
async def aendpoint(request):
    return {"ok": True}


urlpatterns = [path("api/", api.urls)]
