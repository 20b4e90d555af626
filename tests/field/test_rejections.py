"""A rejected request of Django REST framework looks as DRF's own throttle leaves it."""

import pytest
from django.db import connection, connections, transaction
from django.test import RequestFactory
from rest_framework.settings import api_settings
from rest_framework.versioning import URLPathVersioning

from django_redis_sync import Semaphore
from tests.field import rejections
from tests.request_site.project import CLIENTS, MIDDLEWARE, ONE, call

pytestmark = [
    pytest.mark.usefixtures("clean_redis"),
    pytest.mark.urls("tests.field.rejections"),
]
VIEWS = ("plain", "mixed", "decorated", "dispatch", "locks", "books", "function")
BROKEN = (rejections.fail, rejections.decline, rejections.confuse)


@pytest.fixture(autouse=True)
def limited(settings, monkeypatch):
    settings.MIDDLEWARE = [MIDDLEWARE]
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "ENDPOINTS": {"*-endpoint": ONE}}
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "rest_framework"]
    for view in (rejections.Plain, rejections.Books, rejections.function.cls):
        monkeypatch.setattr(view, "versioning_class", URLPathVersioning)


@pytest.fixture
def handler(monkeypatch):
    """Set the EXCEPTION_HANDLER of the project."""
    return lambda function: monkeypatch.setattr(api_settings, "EXCEPTION_HANDLER", function)


def post(view, asgi=False, version="v2", **headers):
    return call(
        f"/{version}/{view}/",
        asgi,
        "POST",
        data='{"a": 1}',
        content_type="application/json",
        headers=headers,
    )


@CLIENTS
@pytest.mark.parametrize("view", VIEWS)
def test_exception_handler_finds_what_drf_sets_before_its_throttles(view, asgi, handler, caplog):
    handler(rejections.read)
    assert (200, True) == (post(view, asgi).status_code, post(view, asgi).json()["ok"])
    with Semaphore("one", 1):
        rejected = post(view, asgi)
    assert 503 == rejected.status_code and int(rejected["Retry-After"]) >= 1
    own = view not in ("books", "function")
    assert {
        "version": "v2",
        "scheme": "URLPathVersioning",
        "renderer": "json",
        "media_type": "application/json",
        "parsers": ["JSONParser"] if own else ["JSONParser", "FormParser", "MultiPartParser"],
        "authenticators": ["SessionAuthentication", "BasicAuthentication"],
        "user": "AnonymousUser",
        "data": {"a": 1},
        "kwargs": {"version": "v2"},
        "action": "create" if view == "books" else None,
        "format": None,
    } == rejected.json()
    assert [] == [one for one in caplog.records if one.levelname == "ERROR"]


@CLIENTS
@pytest.mark.parametrize("view", ["plain", "mixed"])
@pytest.mark.parametrize("asks", [{"accept": "audio/ogg"}, {"version": "v9"}])
def test_request_is_rejected_if_drf_finds_no_renderer_or_version(
    view, asgi, asks, handler, monkeypatch
):
    handler(rejections.read)
    monkeypatch.setattr(URLPathVersioning, "allowed_versions", ["v2"])
    with Semaphore("one", 1):
        rejected = post(view, asgi, **asks)
    assert (503, "application/json") == (rejected.status_code, rejected["Content-Type"])
    assert (None if "version" in asks else "v2") == rejected.json()["version"]


@pytest.mark.parametrize(
    ("view", "methods"),
    [
        ("plain", {"GET", "POST", "HEAD", "OPTIONS"}),
        ("mixed", {"GET", "POST", "HEAD", "OPTIONS"}),
        ("books", {"GET", "POST", "HEAD", "OPTIONS"}),
        ("publish", {"POST", "OPTIONS"}),
        ("function", {"GET", "POST", "OPTIONS"}),
    ],
)
def test_Allow_of_a_rejection_names_the_methods_of_the_view(view, methods):
    allowed = {*post(view)["Allow"].split(", ")}
    with Semaphore("one", 1):
        rejected = {*post(view)["Allow"].split(", ")}
    assert (methods, methods) == (allowed | {"HEAD"} & methods, rejected | {"HEAD"} & methods)


@CLIENTS
@pytest.mark.parametrize(
    ("broken", "view"),
    [
        *((fails, view) for fails in BROKEN for view in VIEWS if view != "locks"),
        (rejections.decline, "locks"),  # the others handle NotAcquired themselves
    ],
)
def test_exception_handler_that_fails_leads_to_the_plain_response_and_one_error(
    broken, view, asgi, handler, caplog
):
    handler(broken)
    assert 200 == post(view, asgi).status_code
    with Semaphore("one", 1):
        rejected = post(view, asgi)
    assert 503 == rejected.status_code and int(rejected["Retry-After"]) >= 1
    assert 503 == rejected.json()["status"]
    (error,) = [one for one in caplog.records if one.levelname == "ERROR"]
    assert f"the exception handler for /v2/{view}/ failed" in error.getMessage()


# Transactions


@pytest.fixture
def atomic_requests(monkeypatch):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)


@CLIENTS
@pytest.mark.django_db
@pytest.mark.parametrize("view", VIEWS)
def test_rejection_leaves_the_transaction_of_a_test_alone(view, asgi, atomic_requests):
    with Semaphore("one", 1):
        assert 503 == post(view, asgi).status_code
    assert not connection.needs_rollback
    assert 200 == call("/query/", asgi).status_code


@pytest.mark.django_db
@pytest.mark.parametrize("view", [rejections.Decorated, rejections.Mixed])
def test_rejection_leaves_the_transaction_of_a_test_alone_without_a_handler(view, atomic_requests):
    """The test calls the view itself, so ATOMIC_REQUESTS begins no transaction."""
    request = RequestFactory().get("/v2/decorated/")
    request.resolver_match = None
    with Semaphore("one", 1):
        assert 503 == view.as_view()(request, version="v2").status_code
    assert not connection.needs_rollback


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("view", VIEWS)
def test_rejection_leaves_the_transaction_of_a_middleware_alone(view, atomic_requests, settings):
    settings.MIDDLEWARE = [f"{__name__}.in_a_transaction", MIDDLEWARE]
    with Semaphore("one", 1):
        assert 503 == post(view).status_code
    assert [False] == marked
    assert 200 == post(view).status_code


marked: list[bool] = []


def in_a_transaction(get_response):
    def call(request):
        with transaction.atomic():
            response = get_response(request)
            marked[:] = [connection.needs_rollback]
        return response

    return call
