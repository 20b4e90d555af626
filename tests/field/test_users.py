"""The user by whom a request is counted is the user that the view sees."""

import pytest
from asgiref.sync import async_to_sync
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.test import AsyncClient, Client

from django_redis_sync import Semaphore
from tests.request_site.project import CLIENTS, MIDDLEWARE, key_in

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.usefixtures("clean_redis"),
    pytest.mark.urls("tests.field.users"),
]
HERE = "tests.field.users"
VIEWS = pytest.mark.parametrize("view", ["sync", "async", "endpoint", "aendpoint"])


@pytest.fixture(autouse=True)
def limited(settings):
    by_user = {"name": "mine", "limit": 1, "key": "user"}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "ENDPOINTS": {"*endpoint": by_user}}
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, MIDDLEWARE]


@pytest.fixture
def add(settings):
    """Add a middleware before the library's."""

    def before(path):
        settings.MIDDLEWARE = [*settings.MIDDLEWARE[:-1], path, MIDDLEWARE]

    return before


def logged_in(backend="django.contrib.auth.backends.ModelBackend", **session):
    """Return the primary key of a new user, and the cookies of a session of that user. `session`:
    further data of the session."""
    user = User.objects.create(username="ann", is_staff=True, is_superuser=True)
    client = Client()
    client.force_login(user, backend)
    stored = client.session
    stored.update(session)
    stored.save()
    return user.pk, client.cookies


def get(view, asgi, cookies=None, **headers):
    client = AsyncClient() if asgi else Client()
    client.cookies.update(cookies or {})
    send = async_to_sync(client.get) if asgi else client.get
    return send(f"/{view}/", headers=headers)


def assert_counted(pk, response):
    """Assert that the view sees the user `pk`, and that its request was counted and labeled so."""
    assert 200 == response.status_code, response.content
    found = response.json()
    assert (pk, 1) == (found["sees"], found["counted"])
    assert {str(pk)} == {*found["who"]}
    assert found["share"] in (None, str(pk))


@CLIENTS
@VIEWS
def test_key_user_is_the_user_of_a_session(view, asgi):
    pk, cookies = logged_in()
    assert_counted(pk, get(view, asgi, cookies))


@CLIENTS
@VIEWS
def test_key_user_is_the_user_that_a_middleware_has_set(view, asgi, add):
    _, session = logged_in()
    add(f"{HERE}.by_token")
    for cookies in ({}, session):  # also if another user is logged in
        assert_counted(70, get(view, asgi, cookies, **{"X-Token": "70"}))
    with Semaphore("mine", 1, key="70"):
        rejected = get(view, asgi, **{"X-Token": "70"})
        others = get(view, asgi, **{"X-Token": "71"})
    assert (429, 200) == (rejected.status_code, others.status_code)


@CLIENTS
@VIEWS
def test_key_user_works_with_a_backend_that_has_only_authenticate_and_get_user(
    view, asgi, settings
):
    backend = f"{HERE}.Minimal"
    settings.AUTHENTICATION_BACKENDS = [backend]
    User.get_session_auth_hash, hash_of = lambda self: "x", User.get_session_auth_hash
    try:
        pk, cookies = logged_in(backend)
        assert_counted(pk, get(view, asgi, cookies))
    finally:
        User.get_session_auth_hash = hash_of


def test_key_user_and_the_view_share_one_query_for_the_user(django_assert_num_queries):
    pk, cookies = logged_in()
    with django_assert_num_queries(2):  # the session and the user
        assert_counted(pk, get("auser", True, cookies))


def test_key_user_is_the_user_of_auser_if_a_middleware_replaced_only_auser(add):
    add(f"{HERE}.by_auser_only")
    response = get("auser", True)
    assert 200 == response.status_code
    assert (4, 1) == (response.json()["sees"], response.json()["counted"])


@CLIENTS
@VIEWS
def test_user_that_is_not_authenticated_counts_as_anonymous(view, asgi, add):
    add(f"{HERE}.guests")
    assert 200 == get(view, asgi).status_code
    assert key_in("mine").startswith("ip-")


@CLIENTS
def test_user_without_a_primary_key_raises_an_error_that_asks_for_a_callable(asgi, add):
    add(f"{HERE}.without_pk")
    with pytest.raises(ImproperlyConfigured, match="Account has no attribute 'pk': set key to"):
        get("sync", asgi)


# Packages


@pytest.mark.parametrize("view", ["handler", "function"])
def test_key_user_is_the_user_that_drf_authenticated(view):
    assert_counted(70, get(view, False, **{"X-Token": "70"}))


@pytest.mark.parametrize("view", ["handler", "function"])
def test_key_user_counts_by_address_if_drf_has_no_user_for_anonymous_requests(view, monkeypatch):
    from rest_framework.settings import api_settings

    monkeypatch.setattr(api_settings, "UNAUTHENTICATED_USER", None)
    response = get(view, False)
    assert (200, None) == (response.status_code, response.json()["sees"])
    assert key_in("mine").startswith("ip-")
    assert "" == response.json()["share"]


@pytest.fixture
def admin_site():
    """Remove what an app has registered. Later tests must not find it, as the app is then gone."""
    before = {*admin.site._registry}
    yield admin.site
    for model in {*admin.site._registry} - before:
        admin.site.unregister(model)


@CLIENTS
@VIEWS
def test_key_user_is_the_user_that_django_impersonate_shows(view, asgi, add, settings, admin_site):
    pytest.importorskip("impersonate")
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "impersonate"]
    add("impersonate.middleware.ImpersonateMiddleware")
    other = User.objects.create(username="bob")
    _, cookies = logged_in(_impersonate=str(other.pk))
    assert_counted(other.pk, get(view, asgi, cookies))
