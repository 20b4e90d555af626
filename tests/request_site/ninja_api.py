"""An API of ninja with an envelope of its own for errors; limited within and from outside."""

from types import SimpleNamespace

from django.http import HttpResponse
from django.urls import path
from ninja import NinjaAPI
from ninja.errors import HttpError

from django_redis_sync import Lock, semaphore_required

api = NinjaAPI(urls_namespace="limited-api")
one = semaphore_required("one", limit=1)


@api.exception_handler(HttpError)
def in_an_envelope(request, error):
    with Lock("errors", blocking_timeout=5):  # as any code of a project's, which may wait here
        said = {"ok": False, "error": str(error)}
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


def of_no_ninja(thing):
    return lambda request: HttpResponse(str(thing))


migration = SimpleNamespace(operations=["an operation"])
schema = type("Schema", (), {"__module__": "ninja.schema"})()

urlpatterns = [
    path("api/", api.urls),
    path("migration/", of_no_ninja(migration), name="migration-outside"),
    path("schema/", of_no_ninja(schema), name="schema-outside"),
]
