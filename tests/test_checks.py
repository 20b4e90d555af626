"""The system checks: what each finds, that sound projects are left alone, that none connects."""

import ast
import inspect
import math
import re
import socket
import sys
import threading
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import pytest
from django.apps import apps
from django.core.checks import run_checks
from django.db import connections, transaction
from django.http import HttpResponse
from django.test import override_settings
from django.urls import clear_url_caches, include, path, resolve
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache

from django_redis_sync import SemaphoreRequiredMixin, checks, conf, semaphore_required, synchronized
from django_redis_sync.limits import routes
from tests.request_site import urls
from tests.support.written import as_written

MIDDLEWARE = "django_redis_sync.middleware.ConcurrencyLimitMiddleware"

pytestmark = pytest.mark.urls("tests.request_site.urls")


@pytest.fixture(autouse=True)
def nothing_connects(monkeypatch) -> None:
    mine, connect = threading.current_thread(), socket.socket.connect

    def refuse(*args):
        if threading.current_thread() is mine:
            raise AssertionError("a check opened a connection")
        return connect(*args)

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def given(settings):
    """Sets REDIS_SYNC, and the middleware unless told otherwise."""

    def give(middleware=MIDDLEWARE, **sync):
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, *([middleware] if middleware else [])]
        settings.REDIS_SYNC = {**settings.REDIS_SYNC, **sync}

    return give


def found(deploy: bool = False) -> list[str]:
    return sorted(message.id.removeprefix("redis_sync.") for message in messages(deploy))


def told_of(pattern: str) -> set[str]:
    """What the pattern finds in each message."""
    return {found[1] for found in (re.search(pattern, one.msg) for one in messages()) if found}


def messages(deploy: bool = False) -> list:
    told = run_checks(tags=["redis_sync"], include_deployment_checks=deploy)
    assert all(message.hint for message in told), "a message says what helps"
    return told


def test_a_sound_project_is_left_alone(given) -> None:
    given(
        REQUESTS={"trusted_proxies": 1},
        SEMAPHORES={
            "exports": {"limit": 3},
            "lock": {"timeout": 60},
            "patient": {"blocking_timeout": math.inf},
        },
        ENDPOINTS={"reports:export": "exports", "free": {"limit": 1, "key": "user"}},
    )
    assert [] == found(deploy=True)


def test_every_mistake_is_told(given, monkeypatch) -> None:
    given(None, CACHE="unknown", ENDPOINTS={"nowhere": {"limit": 0}})
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    assert 5 == len(messages())


@pytest.mark.parametrize(
    "sync",
    [
        {"CASHE": "default"},
        {"REQUESTS": {"limits": 3}},
        {"TIMEOUT": -1},
        {"ENDPOINTS": {"free": 3}},
        {"ENDPOINTS": {3: "exports"}},
    ],
)
def test_settings_that_cannot_be_read(given, sync) -> None:
    given(**sync)
    assert ["E001"] == found(deploy=True)


def test_an_alias_that_is_missing(given) -> None:
    another = {"limit": 1, "using": "another"}
    given(CACHE="unknown", SEMAPHORES={"x": another}, ENDPOINTS={"free": {**another, "using": "a"}})
    assert ["E002"] * 3 == found()
    assert {"unknown", "another", "a"} == told_of(r"CACHES has no alias '(\w+)'")


def test_an_alias_that_is_not_of_django_redis(given, settings) -> None:
    backend = "django.core.cache.backends.locmem.LocMemCache"
    settings.CACHES = {**settings.CACHES, "memory": {"BACKEND": backend}}
    given(CACHE="memory")
    assert ["E003"] == found()
    assert {"memory"} == told_of(r"The cache '(\w+)' is a LocMemCache: .*django_redis")


def test_an_alias_that_is_sharded(given, settings) -> None:
    options = {"CLIENT_CLASS": "django_redis.client.ShardClient"}
    shards = {**settings.CACHES["default"], "OPTIONS": options}
    shards["LOCATION"] = ["redis://127.0.0.1:1/0", "redis://127.0.0.1:1/1"]
    settings.CACHES = {**settings.CACHES, "shards": shards}
    given(CACHE="shards")
    assert ["E004"] == found()
    assert {"shards"} == told_of(r"The cache '(\w+)' is sharded .*ShardClient")


@pytest.mark.parametrize(
    "sync",
    [
        {"ENDPOINTS": {"free": {"limit": 0}}},
        {"ENDPOINTS": {"free": {"limt": 1}}},
        {"ENDPOINTS": {"free": "without a limit"}},
        {"ENDPOINTS": {"free": {"limit": 1, "key": "nowhere.to_be_found"}}},
        {"SEMAPHORES": {"free": {"limit": -1}}},
        {"SEMAPHORES": {"free": {"limit": "3"}}},
        {"SEMAPHORES": {"": {"limit": 1}}},
        {"SEMAPHORES": {"free": {"blocking_timeout": -1}}},
        {"SEMAPHORES": {"free": {"max_hold": math.inf}}},
        {"SEMAPHORES": {"free": 3}},
    ],
)
def test_an_entry_that_cannot_be_a_policy(given, sync) -> None:
    given(**sync)
    assert ["E005"] == found()
    ((setting, entries),) = sync.items()
    (name,) = entries
    assert f"REDIS_SYNC[{setting!r}][{name!r}]" in messages()[0].msg


def test_a_view_that_the_urls_do_not_name_is_known_by_its_own_name(settings, monkeypatch) -> None:
    class Callable:
        def __call__(self, request):
            return HttpResponse()

    class Based(View):
        pass

    views = (urls.views.plain, Based.as_view(), Callable())
    settings.ROOT_URLCONF = tuple(path(f"{n}/", view) for n, view in enumerate(views))
    here = [f"{__name__}.{name}" for name in ("Based", "Callable")]
    assert [f"{urls.views.__name__}.plain", *here] == [route.name for route in routes.routes()]
    monkeypatch.setitem(sys.modules, "without_patterns", ModuleType("without_patterns"))
    for none in (None, "no.such.module", "without_patterns"):
        settings.ROOT_URLCONF = none
        assert [] == routes.routes()


def test_a_view_is_known_by_all_of_its_namespaces(settings) -> None:
    inner = path("c/", urls.views.plain, name="view")
    for space in ("inner", "outer"):
        inner = path(f"{space}/", include(([inner], space)))
    settings.ROOT_URLCONF = (inner,)
    assert ["outer:inner:view"] == [route.name for route in routes.routes()]
    assert "outer:inner:view" == resolve("/outer/inner/c/").view_name


@pytest.mark.parametrize("pattern", ["fre", "reports:nope", "other:*", "views.free"])
def test_an_endpoint_that_no_view_has(given, pattern) -> None:
    given(ENDPOINTS={pattern: {"limit": 1}, "free": {"limit": 1}, "reports:*": {"limit": 1}})
    assert ["W006"] == found()


@pytest.mark.parametrize("other", ["no.such.Middleware", "tests.test_checks.view"])
def test_a_middleware_that_is_not_there_or_a_function_is_left_to_django(given, other: str) -> None:
    given(other, ENDPOINTS={"free": {"limit": 1}})
    assert ["W007"] == found()


def test_endpoints_without_the_middleware(given) -> None:
    given(None, ENDPOINTS={"free": {"limit": 1}})
    (message,) = messages()
    assert ("redis_sync.W007", True) == (message.id, f"'{MIDDLEWARE}'" in message.hint)


def test_atomic_requests_without_the_middleware(given, settings, monkeypatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    given(None)
    (message,) = messages()
    assert "redis_sync.W008" == message.id
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, MIDDLEWARE]
    assert [] == found()


class Handled(View):
    """Its handlers are limited, and not the view that is made of it."""

    @semaphore_required("exports", 3)
    def get(self, request):
        return HttpResponse()


def test_atomic_requests_around_limited_handlers_of_a_class(given, monkeypatch) -> None:
    given(None)
    monkeypatch.setattr(urls, "urlpatterns", [path("", Handled.as_view(), name="handled")])
    clear_url_caches()
    assert [] == found()
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    (message,) = messages()
    assert ("redis_sync.W008", True) == (message.id, "handled" in message.msg)
    monkeypatch.undo()
    clear_url_caches()


@synchronized("stock")
def races(request):
    return HttpResponse()


@synchronized("stock", release_on_commit=True)
def waits(request):
    return HttpResponse()


class Races(View):
    @synchronized("stock")
    def get(self, request):
        return HttpResponse()


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (races, ["W014"]),
        (never_cache(races), ["W014"]),
        (Races.as_view(), ["W014"]),
        (waits, []),
        (transaction.non_atomic_requests(lambda request: races(request)), []),
    ],
)
def test_a_synchronized_view_that_atomic_requests_wraps(
    given, monkeypatch, view, expected: list[str]
) -> None:
    given()
    monkeypatch.setattr(urls, "urlpatterns", [path("", view, name="stock")])
    clear_url_caches()
    assert [] == found()
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    assert expected == found()
    monkeypatch.undo()
    clear_url_caches()


def test_the_middleware_before_those_that_turn_requests_away(given, settings) -> None:
    given()
    csrf = "django.middleware.csrf.CsrfViewMiddleware"
    settings.MIDDLEWARE = [MIDDLEWARE, "django.middleware.common.CommonMiddleware"]
    assert [] == found()
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, csrf]
    assert {csrf} == told_of("stands before (.*): it takes")
    settings.MIDDLEWARE = settings.MIDDLEWARE[1:]
    settings.MIDDLEWARE = [*settings.MIDDLEWARE[1:], MIDDLEWARE, MIDDLEWARE]
    assert ["W009"] == found()


@pytest.mark.urls("tests.request_site.drf")
def test_a_view_of_django_rest_framework_limited_by_user_from_outside(given) -> None:
    given(ENDPOINTS={"token": {"limit": 1, "key": "user"}, "marked": {"limit": 1}})
    assert ["W010"] == found()
    given(None, ENDPOINTS={"token": {"limit": 0, "key": "user"}})
    assert ["E005"] == found()


@pytest.mark.parametrize(
    "written",
    [str, lambda url: [url, "redis://127.0.0.1:1"], lambda url: f"{url},redis://127.0.0.1:1"],
    ids=["alone", "in a list", "in a text"],
)
def test_a_cache_that_shares_its_url(given, settings, written) -> None:
    own = settings.CACHES["default"]
    settings.CACHES = {**settings.CACHES, "pages": {**own, "LOCATION": written(own["LOCATION"])}}
    given(REQUESTS={"trusted_proxies": 1})
    assert [] == found()
    assert ["W011"] == found(deploy=True)


@semaphore_required("here")
def without_a_limit(request): ...


@semaphore_required("here", limit=1)
def limited(request): ...


def test_a_limit_that_is_missing_is_told_by_the_name_it_would_have(given) -> None:
    given()
    paths = (path("x/", semaphore_required(view), name="shop"),)
    with override_settings(ROOT_URLCONF=paths):
        (said,) = [one.msg for one in messages() if one.id == "redis_sync.E013"]
    assert f"{view.__module__}.view" in said and "It limits shop." in said


@pytest.mark.parametrize(
    ("check", "view", "middleware"),
    [
        ("E013", without_a_limit, MIDDLEWARE),
        ("W008", limited, None),
        ("W014", races, MIDDLEWARE),
    ],
)
def test_views_that_something_is_wrong_with_are_named_up_to_five(
    given, monkeypatch, check: str, view, middleware
) -> None:
    given(middleware)
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    for amount, named in ((1, 1), (5, 5), (7, 5)):
        paths = tuple(path(f"{n}/", view, name=f"view{n}") for n in range(amount))
        with override_settings(ROOT_URLCONF=paths):
            (said,) = [one.msg for one in messages() if one.id == f"redis_sync.{check}"]
        assert [f"view{n}" for n in range(named)] == re.findall(r"view\d", said)


@pytest.mark.parametrize(("most", "small"), [(1, True), (3, True), (4, False), (None, False)])
def test_a_pool_that_is_too_small(given, settings, most, small: bool) -> None:
    options = {"CONNECTION_POOL_KWARGS": {} if most is None else {"max_connections": most}}
    own = {**settings.CACHES["default"], "OPTIONS": options}
    settings.CACHES = {"default": settings.CACHES["default"], "locks": own}
    given(CACHE="locks")
    assert (["W012"] if small else []) == [one for one in found() if one == "W012"]
    told = [one for one in messages() if one.id.endswith("W012")]
    said = [f"The cache 'locks' has a pool of {most} connections" in one.msg for one in told]
    assert [True] * small == said
    assert all("to 4 at the least" in message.hint for message in told)


# What decorators and mixins say


def view(request):
    return HttpResponse()


class Plain(View):
    def get(self, request):
        return HttpResponse()


class Mixed(SemaphoreRequiredMixin, Plain):
    semaphore_name = "nowhere"


class ByTenant(Mixed):
    def get_semaphore_limit(self):
        return len(self.request.path)


class OnGet(View):
    @semaphore_required("nowhere")
    def get(self, request):
        return HttpResponse()


def limited(**attributes):
    return type("Limited", (Mixed,), attributes).as_view()


@pytest.mark.parametrize(
    "limited_view",
    [
        semaphore_required("nowhere")(view),
        semaphore_required(view),
        Mixed.as_view(),
        OnGet.as_view(),
        semaphore_required("nowhere")(Plain.as_view()),
        method_decorator(semaphore_required("nowhere"), name="get")(
            type("OfOneMethod", (Plain,), {})
        ).as_view(),
        limited(semaphore_limit=0),
        limited(semaphore_limit=3, semaphore_key="nobody"),
    ],
)
def test_a_view_whose_limit_is_missing_or_impossible(given, limited_view) -> None:
    given()
    with override_settings(ROOT_URLCONF=(path("x/", limited_view, name="shop"),)):
        (message,) = messages()
        assert "redis_sync.E013" == message.id
        assert "It limits shop." in message.msg
        assert message.hint


def test_a_mistake_of_many_views_is_told_once_with_some_of_them(given) -> None:
    given()
    wrong = semaphore_required("nowhere")(view)
    for many, said in ((2, "v0, v1"), (7, "v0, v1, v2, v3, v4")):
        urls = tuple(path(f"{n}/", wrong, name=f"v{n}") for n in range(many))
        with override_settings(ROOT_URLCONF=urls):
            (message,) = messages()
            assert message.msg.endswith(f"It limits {said}.")


def test_a_mistake_in_one_limit_hides_no_other(given) -> None:
    class Wrong(Mixed):
        semaphore_limit = "three"

    given()
    route = routes.Route("shop", semaphore_required("here", limit=3)(Wrong.as_view()))
    assert {"here"} == {policy.name for policy in routes.policies_of(route)}
    given(ENDPOINTS={"shop": {"limt": 3}})
    assert [] == [*routes.policies_of(route)]


def test_each_of_the_limits_of_a_view_is_checked(given) -> None:
    given()
    both = semaphore_required("nowhere")(semaphore_required("no place")(view))
    with override_settings(ROOT_URLCONF=(path("x/", both, name="shop"),)):
        said = {re.findall("limit of '(.*?)' is missing", one.msg)[0] for one in messages()}
        assert {"nowhere", "no place"} == said


@pytest.mark.parametrize(
    ("limited_view", "sync"),
    [
        (semaphore_required("here")(view), {"SEMAPHORES": {"here": {"limit": 3}}}),
        (semaphore_required("here", limit=3)(view), {}),
        (Mixed.as_view(semaphore_limit=3), {}),
        (ByTenant.as_view(), {}),
        (semaphore_required(view), {"ENDPOINTS": {"shop": {"name": "here", "limit": 3}}}),
        (semaphore_required("here", limit=3)(Plain.as_view()), {}),
    ],
)
def test_a_view_whose_limit_is_given_somewhere(given, limited_view, sync) -> None:
    given(**sync)
    with override_settings(ROOT_URLCONF=(path("x/", limited_view, name="shop"),)):
        assert [] == found()


def test_a_view_whose_limit_is_named_by_its_request_is_left_alone(given, settings) -> None:
    class Tenant(SemaphoreRequiredMixin, View):
        def get_semaphore_name(self):
            return self.kwargs["tenant"]

    given()
    settings.ROOT_URLCONF = (path("", Tenant.as_view()),)
    assert [] == found()


@pytest.mark.parametrize("key", ["ip", "user", None, lambda request: "x"])
@pytest.mark.parametrize("proxies", [0, 1])
def test_limits_by_address_that_trust_no_proxy(given, key, proxies) -> None:
    given(REQUESTS={"trusted_proxies": proxies})
    limited_view = semaphore_required("here", limit=3, key=key)(view)
    with override_settings(ROOT_URLCONF=(path("x/", limited_view, name="shop"),)):
        assert [] == found()
        expected = ["W015"] if key in ("ip", "user") and not proxies else []
        assert expected == found(deploy=True)
        assert all(one.msg.startswith("here: limited by address") for one in messages(deploy=True))


# Ids


def ids() -> dict[str, set[str]]:
    """The functions that give each id. E002 to E004 are of one, which counts."""
    places = defaultdict(set)
    for function in ast.parse(inspect.getsource(checks)).body:
        for identifier in re.findall(r"redis_sync\.([EW]\d{3})", ast.unparse(function)):
            places[identifier].add(getattr(function, "name", ""))
    return places | {f"E00{number}": {"_check_alias"} for number in (2, 3, 4)}


def test_an_id_is_of_a_single_check() -> None:
    """Silencing one must not silence another."""
    assert {} == {one: where for one, where in ids().items() if len(where) > 1}


def test_every_id_is_in_the_documentation() -> None:
    page = Path(checks.__file__).parents[1] / "docs" / "operations.md"
    rows = re.findall(r"^\| `redis_sync\.([EW]\d{3})` \|", page.read_text(), re.MULTILINE)
    assert sorted(ids()) == rows


# Hints


@pytest.mark.parametrize(
    ("sync", "said", "hint"),
    [
        ({"SEMAPHORE": {}}, "did you mean SEMAPHORES", "SEMAPHORES, ENDPOINTS"),
        ({"REQUESTS": {"max_waiter": 1}}, r"\['REQUESTS'\]", "What REQUESTS may say: .*fair"),
        ({"SEMAPHORES": {"x": 2}}, "such as {'limit': 2}, not 2", "What an entry may say: .*limit"),
        (
            {"SEMAPHORES": {"x": "2"}},
            "such as {'limit': 3}, not '2'",
            "What an entry may say: .*limit",
        ),
        ({"SEMAPHORES": {"x": {"limt": 2}}}, "limt .did you mean limit", "What an entry may say"),
        ({"SEMAPHORES": {"x": {"limit": 2, "status": 2}}}, "from 400 to", "status: HTTP status of"),
        ({"ENDPOINTS": {"free": {"limit": 2, "max_hold": -1}}}, "above 0", "max_hold: Seconds"),
        ({"ENDPOINTS": {"free": {"key": "ip"}}}, "limit of 'free' is missing", "such as {'limit'"),
        ({"ENDPOINTS": {"free": {"key": "ip"}}}, r"\['SEMAPHORES'\]\['free'\]\['limit'\]", ""),
        ({"ENDPOINTS": {"free": {"limit": 2, "key": "no.such"}}}, "No module", "What an entry"),
        (
            {"ENDPOINTS": {"free": 3}},
            "name of a semaphore or a dict",
            "What an entry may say: .*limit",
        ),
    ],
)
def test_a_message_says_what_helps_with_this_mistake(given, sync, said, hint) -> None:
    given(**sync)
    (message,) = messages()
    assert re.search(said, message.msg), message.msg
    assert re.search(hint, message.hint), message.hint


def test_an_app_that_is_not_installed_is_told_once(settings, caplog) -> None:
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if "redis_sync" not in app]
    conf.current.cache_clear()
    for _ in range(3):
        conf.current()
    (record,) = caplog.records
    assert "not in INSTALLED_APPS" in record.getMessage()


def test_a_process_is_looked_at_as_soon_as_the_app_is_ready(monkeypatch) -> None:
    looked: list[int] = []
    where = "django_redis_sync.engine.threads.warn_about_this_process"
    monkeypatch.setattr(where, lambda: looked.append(1))
    apps.get_app_config("django_redis_sync").ready()
    assert [1] == looked


DUMMY = "django.core.cache.backends.dummy.DummyCache"
CSRF = "django.middleware.csrf.CsrfViewMiddleware"


def test_what_is_wrong_and_what_helps_is_said_in_these_words(settings, monkeypatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    own = settings.CACHES["default"]
    small = {**own, "OPTIONS": {"CONNECTION_POOL_KWARGS": {"max_connections": 2}}}
    settings.CACHES = {"default": own, "none": {"BACKEND": DUMMY}, "pages": {**own}}
    settings.CACHES["small"] = {**small, "LOCATION": "redis://127.0.0.1:1"}
    by_all = semaphore_required("there", limit=3)(view)
    by_address = semaphore_required("there", limit=3, key="ip")(view)
    three, none, our = {"limit": 3}, [], [MIDDLEWARE]
    cases: list = [
        ({"TYPO": 1}, our, none),
        ({"REQUESTS": {"typo": 1}}, our, none),
        ({"ENDPOINTS": {"a": {"typo": 1}}}, our, none),
        ({"CACHE": "nowhere"}, our, none),
        ({"SEMAPHORES": {"a": {**three, "using": "none"}}}, our, none),
        ({"ENDPOINTS": {"a": {**three, "timeout": -1}}}, our, none),
        ({"ENDPOINTS": {"a": {}}}, our, none),
        ({"SEMAPHORES": {"a": {"limit": 0}}}, our, none),
        ({"ENDPOINTS": {"nowhere": three}}, none, none),
        ({"CACHE": "small"}, our, none),
        ({}, [*our, CSRF], none),
        ({}, [*our, *our], none),
        ({}, our, [without_a_limit]),
        ({}, none, [by_all, races]),
        ({}, our, [by_address]),
    ]
    said = []
    for given, middleware, views in cases:
        settings.REDIS_SYNC, settings.MIDDLEWARE = given, middleware
        settings.ROOT_URLCONF = tuple(path(f"{n}/", one) for n, one in enumerate(views))
        clear_url_caches()
        for one in messages(deploy=True):
            said.append(f"{type(one).__name__} {one.id}: {one.msg} {one.hint}")
    as_written("checks", sorted({*said}))
