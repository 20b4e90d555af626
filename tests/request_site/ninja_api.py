"""An API of ninja with an envelope of its own for errors; limited within and from outside."""

from django.http import HttpResponse
from django.urls import path
from ninja import NinjaAPI
from ninja.errors import HttpError

from django_redis_sync import semaphore_required
from django_redis_sync.locks.callers import may_wait

api = NinjaAPI(urls_namespace="limited-api")
one = semaphore_required("one", limit=1)


@api.exception_handler(HttpError)
def in_an_envelope(request, error):
    said = {"ok": False, "error": str(error), "may_wait": may_wait()}
    return api.create_response(request, said, status=error.status_code)


@api.get("/within", url_name="within")
@one
def within(request):
    return {"ok": True}


@api.get("/awithin", url_name="awithin")
@one
async def awithin(request):
    return {"ok": True}


@api.get("/outside", url_name="outside")
def outside(request):
    return {"ok": True}


@api.get("/aoutside", url_name="aoutside")
async def aoutside(request):
    return {"ok": True}


def plain(request):
    return HttpResponse("plain")


urlpatterns = [path("api/", api.urls), path("plain/", plain, name="plain")]
