"""The checks and `filled` know the views of all URLconfs of a project."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from django.core.checks import run_checks
from django.test import RequestFactory
from django.urls import clear_url_caches, include, path

from django_redis_sync import semaphore_required
from django_redis_sync.testing import filled, without_redis
from tests.request_site.project import call, respond_ok

OURS = "django_redis_sync.middleware.ConcurrencyLimitMiddleware"
ROOT, SECOND = "tests_root_urlconf", "tests_second_urlconf"
HERE = __name__


def by_attribute(get_response: Any) -> Any:
    """A middleware that sets request.urlconf for the hosts whose names begin with "api."."""

    def middleware(request: Any) -> Any:
        if request.get_host().startswith("api."):
            request.urlconf = SECOND
        return get_response(request)

    return middleware


class BySetattr:
    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        setattr(request, "urlconf", SECOND)  # noqa: B010
        return self.get_response(request)


class Inherits(BySetattr):
    pass


Checked = Callable[..., list[str]]


@pytest.fixture
def checked(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Checked]:
    """Return a function that sets up a project with two URLconfs, and returns the ids of the
    messages of its system checks. The arguments are settings."""
    view = semaphore_required("there")(respond_ok)  # a limit is missing, which is a mistake
    for name, patterns in {
        ROOT: [path("", respond_ok, name="home")],
        SECOND: [path("", respond_ok, name="api"), path("there/", view, name="there")],
    }.items():
        module: Any = ModuleType(name)
        module.urlpatterns = patterns
        monkeypatch.setitem(sys.modules, name, module)
    hosts: Any = ModuleType("tests_hosts")
    hosts.host_patterns = [SimpleNamespace(urlconf=ROOT), SimpleNamespace(urlconf=SECOND)]
    monkeypatch.setitem(sys.modules, "tests_hosts", hosts)

    def of(middleware: str = f"{HERE}.by_attribute", sync: Any = (), **others: Any) -> list[str]:
        settings.ROOT_URLCONF = ROOT
        settings.MIDDLEWARE = [middleware, OURS]
        endpoints = {"home": {"limit": 1}, "api": {"limit": 1, "name": "api"}}
        settings.REDIS_SYNC = {**settings.REDIS_SYNC, "ENDPOINTS": endpoints, **dict(sync)}
        for name, value in others.items():
            setattr(settings, name, value)
        return sorted(one.id.partition(".")[2] for one in run_checks(tags=["redis_sync"]))

    yield of
    clear_url_caches()


@pytest.mark.promise(29)
@pytest.mark.parametrize(
    "given",
    [
        {"sync": {"URLCONFS": [SECOND]}},
        {"API_URLCONF": SECOND},
        {"SUBDOMAIN_URLCONFS": {None: ROOT, "api": SECOND}},
        {"HOST_URLCONFS": [SECOND]},
        {"ROOT_HOSTCONF": "tests_hosts"},
    ],
    ids=lambda given: next(iter(given)),
)
def test_checks_examine_the_views_of_all_urlconfs(checked: Checked, given: Any) -> None:
    assert ["E013"] == checked(**given), "the wrong limit in the second URLconf was not found"
    patterns = {"nowhere": {"limit": 1}}
    sync = {**given.get("sync", {}), "ENDPOINTS": patterns}
    assert ["E013", "W006"] == checked(**{**given, "sync": sync})


@pytest.mark.promise(29)
@pytest.mark.parametrize("middleware", ["by_attribute", "BySetattr", "Inherits"])
def test_checks_say_that_they_do_not_know_the_urlconfs_of_a_middleware(
    checked: Checked, middleware: str
) -> None:
    assert ["W028"] == checked(f"{HERE}.{middleware}"), "a false or a missing message"
    assert ["W028"] == checked(f"{HERE}.{middleware}", HOST_URLCONFS=[("api", SECOND)])
    # These middleware of Django read request.urlconf, and don't set it.
    for name in ("common.CommonMiddleware", "locale.LocaleMiddleware"):
        assert ["W006"] == checked(f"django.middleware.{name}")


@pytest.mark.promise(29)
def test_checks_name_the_error_of_a_urlconf_that_can_not_be_loaded(
    checked: Checked, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ["W027"] == checked(API_URLCONF="no.such.module")
    (message,) = run_checks(tags=["redis_sync"])
    assert "'no.such.module'" in message.msg and "ModuleNotFoundError" in message.msg
    assert ["E013", "W027"] == checked(API_URLCONF=["no.such.module", SECOND])
    assert ["W027"] == checked(API_URLCONF=None, ROOT_HOSTCONF="no.such.hosts")
    monkeypatch.setattr(sys.modules[ROOT], "urlpatterns", 3)
    clear_url_caches()
    assert ["E013", "W027"] == checked(API_URLCONF=SECOND, ROOT_HOSTCONF=None)


def test_filled_finds_the_view_of_a_request_in_each_urlconf(checked: Checked) -> None:
    checked(sync={"URLCONFS": [SECOND]})
    from_client = call("/", headers={"host": "api.example.com"}).wsgi_request
    own = RequestFactory().get("/")
    own.urlconf = SECOND
    without_redis_and_with_each = {"api": (from_client, own, RequestFactory().get("/"))}
    with without_redis():
        for name, requests in without_redis_and_with_each.items():
            for request in requests:
                with filled(name, request=request):
                    assert 503 == call("/", headers={"host": "api.example.com"}).status_code
                    assert 200 == call("/", headers={"host": "example.com"}).status_code
        with filled("home", request=RequestFactory().get("/")):
            assert 503 == call("/", headers={"host": "example.com"}).status_code
        with pytest.raises(AssertionError, match="no URLconf has a view for /nowhere/"):
            filled("home", request=RequestFactory().get("/nowhere/")).__enter__()
        with pytest.raises(AssertionError, match=r"not limited by 'home'.* api"):
            filled("home", request=own).__enter__()


def test_filled_names_the_error_of_a_urlconf_if_the_limit_is_unknown(
    checked: Checked, settings: Any
) -> None:
    checked(API_URLCONF="no.such.module")
    with without_redis():
        with filled("home") as lease:
            assert 1 == lease.permits
        with pytest.raises(ModuleNotFoundError):
            filled("only in the other URLconf").__enter__()


def test_checks_and_filled_do_not_compare_each_view_with_each_entry(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test counts function calls, because times depend on the load of the machine."""
    apps = [
        path(
            f"{app}/",
            include(([path(f"{n}/", respond_ok, name=f"view{n}") for n in range(50)], f"app{app}")),
        )
        for app in range(10)
    ]

    def calls(function: Callable[[], Any], entries: int) -> int:
        settings.ROOT_URLCONF = tuple(apps)
        exact = {f"app{n % 10}:view{n}": {"limit": 1, "name": f"n{n}"} for n in range(entries)}
        globs = {f"app{n % 10}:*x{n}": {"limit": 1, "name": f"g{n}"} for n in range(entries)}
        settings.REDIS_SYNC = {**settings.REDIS_SYNC, "ENDPOINTS": {**exact, **globs}}
        settings.MIDDLEWARE = [OURS]
        function()  # so that the URLconf and the entries are parsed
        counts = [0]

        def count(frame: Any, event: str, argument: Any) -> None:
            counts[0] += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            function()
        finally:
            sys.setprofile(None)
        return counts[0]

    def fill() -> None:
        with filled("n0"):
            pass

    with without_redis():
        for function in (fill, lambda: run_checks(tags=["redis_sync"])):
            few, many = calls(function, 5), calls(function, 100)
            # Each view has at most one entry, so a view costs a bounded number of calls, and an
            # entry, too. Comparing 500 views with 200 entries would take 100,000 calls.
            assert many - few < 50_000, (few, many)
