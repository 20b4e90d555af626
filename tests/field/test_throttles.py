"""ConcurrencyThrottle limits the requests of an API after their authentication."""

import pytest
from django.contrib.auth.models import AnonymousUser
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.test import RequestFactory, override_settings
from django.urls import clear_url_caches, path
from rest_framework.settings import api_settings
from rest_framework.views import APIView

from django_redis_sync import Semaphore
from django_redis_sync.signals import acquire_rejected
from django_redis_sync.testing import filled, limits_disabled
from django_redis_sync.throttling import ConcurrencyThrottle
from tests.field import throttles
from tests.request_site.project import CLIENTS, MIDDLEWARE, call, outcomes, received
from tests.support.commands import locks

pytestmark = [
    pytest.mark.usefixtures("clean_redis"),
    pytest.mark.urls("tests.field.throttles"),
]


@pytest.fixture(autouse=True)
def project(settings):
    settings.MIDDLEWARE = [MIDDLEWARE]
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": {"one": {"limit": 1}}}
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "rest_framework"]


def get(view, asgi=False, token=None, **options):
    headers = {"X-Token": token, "Authorization": f"Bearer {token}"} if token else {}
    return call(f"/{view}/" if "/" not in view else f"/{view}", asgi, headers=headers, **options)


VIEWS = ["class", "initkwargs", "scoped", "function", "books/best/", "ninja/one"]


@CLIENTS
@pytest.mark.parametrize("view", VIEWS)
def test_throttle_holds_a_permit_until_the_request_has_ended(view, asgi):
    assert (200, 1) == ((found := get(view, asgi)).status_code, found.json()["one"])
    assert 0 == throttles.in_use()
    assert 200 == get(view, asgi).status_code
    assert {"granted": 2} == outcomes("one")


@CLIENTS
@pytest.mark.parametrize("view", VIEWS)
def test_throttle_rejects_a_request_as_the_framework_does(view, asgi):
    with Semaphore("one", 1), received(acquire_rejected) as rejections:
        rejected = get(view, asgi)
    assert 429 == rejected.status_code
    seconds = int(rejected["Retry-After"])
    assert 1 <= seconds <= 3
    if view.startswith("ninja"):
        assert {"detail": "Too many requests."} == rejected.json()
    else:
        detail = f"Request was throttled. Expected available in {seconds} second"
        assert rejected.json()["detail"].startswith(detail)
    kind = "application/problem+json" if view == "class" else "application/json"
    assert rejected["Content-Type"].startswith(kind)
    assert [("one", "full")] == [(r["policy"].name, r["rejection"].reason) for r in rejections]


def test_throttle_never_waits(settings):
    one = {"limit": 1, "blocking_timeout": 60}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": {"one": one}}
    with Semaphore("one", 1):
        assert 429 == get("class").status_code
    assert {"granted": 1, "rejected": 1} == outcomes("one")


@CLIENTS
@pytest.mark.parametrize("view", ["user", "ninja/mine"])
def test_throttle_counts_by_the_user_that_was_authenticated(view, asgi):
    found = get(view, asgi, "70").json()
    assert (70, 1) == (found["user"], found["mine"])
    with Semaphore("mine", 1, key="70"):
        assert 429 == get(view, asgi, "70").status_code
        assert 200 == get(view, asgi, "71").status_code


def test_throttle_takes_no_permit_of_a_request_that_is_not_permitted():
    anonymous = RequestFactory().get("/user/")
    anonymous.user = AnonymousUser()
    with filled("mine", 1, request=anonymous), received(acquire_rejected) as rejections:
        assert 403 == get("user").status_code
    assert [] == rejections


def test_throttle_of_DEFAULT_THROTTLE_CLASSES_limits_the_whole_api(monkeypatch):
    monkeypatch.setattr(throttles.View, "throttle_classes", [throttles.One])
    monkeypatch.setattr(throttles.Books, "throttle_classes", [throttles.One])
    for view in ("default", "books/"):
        assert 1 == get(view).json()["one"]
        with Semaphore("one", 1):
            assert 429 == get(view).status_code


def test_throttle_can_be_listed_in_DEFAULT_THROTTLE_CLASSES():
    classes = {"DEFAULT_THROTTLE_CLASSES": ["django_redis_sync.throttling.ConcurrencyThrottle"]}
    with override_settings(REST_FRAMEWORK=classes):
        assert [ConcurrencyThrottle] == api_settings.DEFAULT_THROTTLE_CLASSES


def test_throttle_without_a_scope_limits_only_views_with_a_throttle_scope():
    with Semaphore("one", 1):
        assert (200, 429) == (get("unscoped").status_code, get("scoped").status_code)


def test_scope_of_a_throttle_wins_over_the_throttle_scope_of_the_view(monkeypatch):
    monkeypatch.setattr(throttles.Scoped, "throttle_classes", (throttles.One,))
    monkeypatch.setattr(throttles.Scoped, "throttle_scope", "two")
    with Semaphore("two", 1):
        assert 200 == get("scoped").status_code, "the view's scope was used"
    with Semaphore("one", 1):
        assert 429 == get("scoped").status_code


def test_throttle_whose_class_has_no_scope_is_named_after_the_class():
    with Semaphore("tests.field.throttles.Unnamed", 1):
        assert 429 == get("unnamed").status_code
    assert 200 == get("unnamed").status_code


def test_callables_of_a_throttle_get_the_request():
    with filled("called", 1, request=requested("/called/", "a")):
        assert 429 == get("called", token="1").status_code
        assert 200 == get("called", token="2").status_code
        assert 405 == call("/called/", method="POST", headers={"X-Token": "1"}).status_code


def requested(at, _):
    return RequestFactory().get(at, headers={"X-Token": "1"})


def test_throttle_in_shadow_mode_admits_and_counts():
    with Semaphore("one", 1):
        assert 200 == get("shadow").status_code
    assert {"granted": 1, "shadow_rejected": 1} == outcomes("one")


def test_throttle_does_not_count_an_OPTIONS_request_that_drf_answers():
    with Semaphore("one", 1):
        assert 200 == call("/class/", method="OPTIONS").status_code


def test_throttle_and_ENDPOINTS_of_the_same_name_take_one_permit(settings):
    entry = {"ENDPOINTS": {"class": "one"}}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, **entry}
    assert (200, 1) == ((found := get("class")).status_code, found.json()["one"])
    assert {"granted": 1} == outcomes("one")


@pytest.mark.parametrize("view", ["denied", "early"])
def test_throttle_releases_its_permit_at_once_if_another_throttle_rejects(view):
    rejected = get(view)
    assert (429, "7") == (rejected.status_code, rejected["Retry-After"])
    assert "0" == rejected["X-In-Use"]
    assert 1 <= outcomes("one")["granted"]


def test_throttles_of_one_view_release_all_permits_if_one_rejects():
    with Semaphore("one", 1):
        assert 429 == get("both", token="70").status_code
    assert 0 == throttles.in_use("mine", "70")
    found = get("both", token="70").json()
    assert (1, 1) == (found["one"], found["mine"])


@CLIENTS
def test_ninja_releases_the_permit_if_another_throttle_rejects(asgi):
    assert 429 == get("ninja/denied", asgi).status_code
    assert 0 == throttles.in_use()


@pytest.mark.django_db  # the end of a response looks at connections
def test_throttle_holds_its_permit_until_a_stream_has_ended():
    response = get("stream")
    assert [b"1", b"1"] == [*response.streaming_content]
    response.close()
    assert 0 == throttles.in_use()


@CLIENTS
def test_throttle_of_an_async_operation_raises_and_names_the_decorator(asgi):
    with pytest.raises(ImproperlyConfigured, match="put @semaphore_required below"):
        get("ninja/async", asgi)


@pytest.mark.parametrize("view", ["class", "ninja/one"])
def test_throttle_without_the_middleware_raises(view, settings):
    settings.MIDDLEWARE = []
    with pytest.raises(ImproperlyConfigured, match="add it to MIDDLEWARE"):
        get(view)
    with limits_disabled():
        assert 200 == get(view).status_code
    assert 0 == throttles.in_use()


def test_throttle_without_a_limit_raises(settings):
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": {}}
    with pytest.raises(ImproperlyConfigured, match="The limit of 'one' is missing"):
        get("scoped")


def test_wrong_options_of_a_throttle_raise_TypeError():
    with pytest.raises(TypeError, match=r"no such argument: kye \(did you mean key\?\)"):
        ConcurrencyThrottle("one", limit=1, kye="user")
    with pytest.raises(TypeError, match="a throttle has no option blocking_timeout"):
        type("Patient", (ConcurrencyThrottle,), {"blocking_timeout": 3})


@CLIENTS
def test_paused_throttle_rejects_with_Retry_After(asgi):
    locks("pause", "one", "--create")
    paused = get("class", asgi)
    assert 429 == paused.status_code and int(paused["Retry-After"]) >= 1


# Checks


@pytest.fixture
def found(settings):
    def ids(*views, middleware=(MIDDLEWARE,), **semaphores):
        settings.ROOT_URLCONF = tuple(path(f"{n}/", v, name=f"v{n}") for n, v in enumerate(views))
        settings.MIDDLEWARE = [*middleware]
        settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": semaphores}
        clear_url_caches()
        messages = run_checks(tags=["redis_sync"])
        assert all(message.hint for message in messages)
        return [message.id.removeprefix("redis_sync.") for message in messages]

    yield ids
    clear_url_caches()


def throttled(*classes, **attributes):
    return type("V", (APIView,), {"throttle_classes": classes, **attributes}).as_view()


ONE = {"one": {"limit": 1}}


def test_check_accepts_a_throttle_that_is_listed_last(found):
    views = [throttled(throttles.Denies, throttles.Mine, throttles.One), throttled(throttles.One)]
    assert [] == found(*views, throttled(ConcurrencyThrottle), throttles.OnClass.as_view())


def test_check_names_a_throttle_without_the_middleware(found):
    assert ["E029"] == found(throttled(throttles.One), throttled(throttles.Mine), middleware=[])


def test_check_names_a_throttle_that_is_not_listed_last(found):
    assert ["W030"] == found(throttled(throttles.One, throttles.Denies))


def test_check_names_a_throttle_without_a_limit(found):
    view = throttled(ConcurrencyThrottle, throttle_scope="one")
    assert ["E013"] == found(view)
    assert [] == found(view, **ONE)
    assert ["E013"] == found(throttled(type("Bad", (ConcurrencyThrottle,), {"limit": 0})))


def test_check_names_the_mistakes_of_throttles_of_ninja(settings):
    settings.MIDDLEWARE = []
    clear_url_caches()
    found = {message.id.removeprefix("redis_sync."): message for message in run_checks()}
    assert {"E029", "E031", "W010", "W030"} <= found.keys()
    assert "Views: throttled:on_loop." in found["E031"].msg
    assert "throttled:mine" in found["W010"].msg
