"""With the middleware, the permits of a request outlive its transaction, wherever the limit is."""

import warnings

import pytest
from django.contrib.auth.models import Group
from django.db import connections, transaction
from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.test import RequestFactory
from django.views import View

from django_redis_sync import Lock, semaphore_required
from django_redis_sync.exceptions import TransactionRace
from tests.behaviour.both import eventually
from tests.request_site.project import CLIENTS, MIDDLEWARE, SYNC, arespond_ok, call, respond_ok

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.promise(23)]
in_transactions = pytest.mark.django_db(transaction=True)
ONE_STOCK = semaphore_required("stock", limit=1)


@pytest.fixture
def atomic_requests(monkeypatch):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)


def is_held():
    return Lock("stock").locked()


def use_database(request):
    Group.objects.count()
    return HttpResponse()


@SYNC
@in_transactions
def test_middleware_releases_the_permit_after_the_transaction_of_the_request(
    project, atomic_requests, held_at_end
):
    project.settings.DEBUG = True  # a release before the COMMIT would raise a warning
    project.with_middleware()
    project.limit(name="stock")
    assert 200 == project.status()
    assert [True] == held_at_end
    with Lock("stock"):
        assert 503 == project.status()
    assert [True] == held_at_end, "a transaction began for the rejected request"
    assert not is_held()


# Limited functions that the middleware doesn't find


class Base(View):
    @ONE_STOCK
    def dispatch(self, request):
        return super().dispatch(request)


class Derived(Base):
    def dispatch(self, request):
        return super().dispatch(request)

    def get(self, request):
        return use_database(request)


class Handler(View):
    @ONE_STOCK
    def get(self, request):
        return use_database(request)


class Helper(View):
    def get(self, request):
        self.write(request)
        return self.write(request)  # a request takes the permit of a name once

    @ONE_STOCK
    def write(self, request):
        return use_database(request)


def hidden(view):
    """Wrap a view without functools.wraps."""
    return lambda request: view(request)


def fail(request):
    raise Http404


def batch(request):
    """Call a limited view with other request objects, as a view for batches does. In between, send
    requests through all middleware."""
    for _ in range(2):
        response = ONE_STOCK(use_database)(RequestFactory().get("/"))
        assert 200 == call("/other/").status_code
    return response


#: Views whose limit the middleware doesn't find, with the method and the status of a request.
HIDDEN = {
    "base's dispatch": (Derived.as_view(), "GET", 200),
    "HEAD of a limited get": (Handler.as_view(), "HEAD", 200),
    "helper method": (Helper.as_view(), "GET", 200),
    "decorator without wraps": (hidden(ONE_STOCK(use_database)), "GET", 200),
    "error": (hidden(ONE_STOCK(fail)), "GET", 404),
    "requests of a batch": (batch, "GET", 200),
}


@in_transactions
@pytest.mark.parametrize(("view", "method", "status"), HIDDEN.values(), ids=HIDDEN)
def test_permit_of_a_hidden_limit_is_released_after_the_transaction_of_the_request(
    project, atomic_requests, held_at_end, view, method, status
):
    project.settings.DEBUG = True  # a release before the COMMIT would raise a warning
    project.with_middleware()
    project.serve(home=view, other=respond_ok)
    for _ in range(2):
        assert status == project.status(method=method)
        assert [True] == held_at_end
        assert not is_held()
        held_at_end.clear()
    with Lock("stock"):
        assert 503 == project.status(method=method)


@in_transactions
def test_stream_of_a_hidden_limit_holds_its_permit_after_the_transaction(project, atomic_requests):
    project.with_middleware()
    project.serve(home=hidden(ONE_STOCK(lambda request: StreamingHttpResponse([b"part"]))))
    response = project.get()
    assert is_held()
    assert b"part" == response.getvalue()
    response.close()
    assert not is_held()


@in_transactions
def test_limits_in_sequence_are_not_nested_without_a_transaction(project):
    held = []

    def view(request):
        response = ONE_STOCK(respond_ok)(request)
        held.append(is_held())
        return response

    project.with_middleware()
    project.serve(home=view)
    assert 200 == project.status()
    assert [False] == held


class Atomic:
    """A middleware of a project that begins a transaction. It has no async version."""

    sync_capable, async_capable = True, False

    def __init__(self, get_response):
        self.get_response = get_response

    def __call__(self, request):
        with transaction.atomic():
            return self.get_response(request)


@CLIENTS
@in_transactions
def test_async_view_holds_its_permit_until_the_transaction_of_a_middleware_has_ended(
    project, held_at_end, asgi
):
    project.asgi, project.settings.DEBUG = asgi, True
    project.settings.MIDDLEWARE = [MIDDLEWARE, f"{__name__}.Atomic"]
    project.serve(home=ONE_STOCK(arespond_ok))
    for _ in range(2):
        assert 200 == project.status()
    assert [True, True] == held_at_end
    assert not is_held()


@CLIENTS
@in_transactions
def test_middleware_inside_of_a_transaction_warns_that_it_ends_before_the_commit(
    project, held_at_end, asgi
):
    project.asgi, project.settings.DEBUG = asgi, True
    project.settings.MIDDLEWARE = [f"{__name__}.Atomic", MIDDLEWARE]
    project.serve(home=ONE_STOCK(respond_ok))
    with pytest.warns(TransactionRace, match="List it before the middleware that begins"):
        assert 200 == project.status()
    assert [False] == held_at_end


@in_transactions
def test_warning_that_is_an_error_leaves_no_permit(settings):
    settings.DEBUG = True
    view = ONE_STOCK(respond_ok)
    with transaction.atomic(), warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TransactionRace):
            view(RequestFactory().get("/"))
    eventually(lambda: not is_held())
