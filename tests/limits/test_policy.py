"""Where a limit takes its options from, which endpoint applies, and the key of a request."""

import itertools
from types import SimpleNamespace
from uuid import UUID

import pytest
from django.contrib import admin
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.test import RequestFactory
from django.urls import path

from django_redis_sync import Semaphore, semaphore_required
from django_redis_sync.testing import filled
from tests.request_site.project import BOTH, facts, key_in, stay

REQUESTS = RequestFactory()

# Precedence


def test_options_of_the_decorator_take_precedence_over_those_in_the_settings(project, rejections):
    exports = {"limit": 2, "max_hold": 2, "max_waiters": 2, "on_outage": "closed"}
    of_exports = {"name": "exports", "max_hold": 3, "max_waiters": 3}
    named = {"name": "named", "limit": 3, "max_waiters": 3}
    project.configure(
        REQUESTS={"max_hold": 1, "max_waiters": 1, "on_outage": "open", "min_hold": 1},
        SEMAPHORES={"exports": exports},
        ENDPOINTS={"full": of_exports, "plain": of_exports, "other": named, "unnamed": named},
    )
    project.serve(
        full=semaphore_required("exports", max_hold=4)(stay),
        other=semaphore_required("other", limit=1)(stay),
        unnamed=semaphore_required(stay),
    )

    def applied(name, at):
        with filled(name):
            assert 503 == project.status(at)
        policy = rejections[-1]["policy"]
        options = ("limit", "max_hold", "max_waiters", "on_outage", "min_hold", "enforce")
        return tuple(getattr(policy, option) for option in options)

    assert (2, 4, 3, "closed", 1, True) == applied("exports", "full")
    # The options of the endpoint "other" are for the name "named", so they do not apply here.
    assert (1, 1, 1, "open", 1, True) == applied("other", "other")
    assert (3, 1, 3, "open", 1, True) == applied("named", "unnamed")
    project.with_middleware()
    project.serve(plain=stay)
    assert (2, 3, 3, "closed", 1, True) == applied("exports", "plain")


@pytest.mark.promise(30)
def test_changed_ENDPOINTS_setting_applies_to_the_next_request(project):
    project.serve(home=stay)
    project.with_middleware()
    with Semaphore("one", 1):
        for limit, status in ((1, 503), (2, 200), (1, 503)):
            project.configure(ENDPOINTS={"home": {"name": "one", "limit": limit}})
            assert status == project.status()


@pytest.mark.promise(29)
@pytest.mark.parametrize(
    "entry",
    [
        *({"limit": 0}, {"limt": 1}, {}, "nowhere", 3),
        *({"limit": 1, "key": path} for path in ("no.such.function", "os.sep")),
        *({"limit": 1, **more} for more in ({"name": ""}, {"fair": False, "share": "ip"})),
    ],
)
@BOTH
def test_middleware_raises_for_an_invalid_entry_of_ENDPOINTS_except_in_the_admin(project, entry):
    project.settings.MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
    ]
    project.with_middleware(ENDPOINTS={"*": entry})
    project.serve(home=stay)
    project.settings.ROOT_URLCONF += (path("admin/", admin.site.urls),)
    with pytest.raises(ImproperlyConfigured):
        project.get()
    paths = ("admin", "admin/auth/user", "admin/login")
    assert [302, 302, 200] == [project.status(path) for path in paths]


@pytest.mark.parametrize(
    ("view", "name"),
    [
        ("reports:export", "exact"),
        ("reports:exports", "longer"),
        ("reports:list", "reports:*"),
        ("api:v1:list", "one of a class"),
        ("api:v11:list", "*"),
        ("Reports:export", "*"),
    ],
)
def test_view_uses_the_entry_of_its_name_or_else_of_the_longest_matching_glob(project, view, name):
    exact, longer = ({"name": name, "limit": 1} for name in ("exact", "longer"))
    entries = {"reports:export": exact, "reports:ex*": longer, "api:v[0-9]:l?st": "one of a class"}
    others = {glob: {"limit": 1} for glob in ("reports:*", "*")}
    semaphores = {"one of a class": {"limit": 1}}
    project.with_middleware(SEMAPHORES=semaphores, ENDPOINTS={**entries, **others})
    project.serve(**{view: stay})
    assert 200 == project.status(view)
    with Semaphore(name, 1):
        assert 503 == project.status(view)


# The key of a request

numbers = itertools.count()


def key_of(key="ip", user=None, **meta):
    """Return the key of a request, as operators see it. `key`: the option of the limit."""
    name = f"keyed-{next(numbers)}"
    request = REQUESTS.get("/", **{"REMOTE_ADDR": "10.0.0.1", **meta})
    request.user = user
    assert 200 == semaphore_required(name, limit=1, key=key)(stay)(request).status_code
    return key_in(name)


@pytest.mark.parametrize(
    ("one", "other", "options", "same"),
    [
        # A request is [address], or (address, X-Forwarded-For header).
        (("10.0.0.1", "6.6.6.6"), ["10.0.0.1"], {}, True),
        (["10.0.0.1"], ["10.0.0.1"], {"trusted_proxies": 1}, True),
        (("10.0.0.1", "1.1.1.1"), ["1.1.1.1"], {"trusted_proxies": 1}, True),
        (("10.0.0.1", "6.6.6.6, 1.1.1.1"), ["1.1.1.1"], {"trusted_proxies": 1}, True),
        (("10.0.0.1", "6.6.6.6, 1.1.1.1, 2.2.2.2"), ["1.1.1.1"], {"trusted_proxies": 2}, True),
        (("10.0.0.1", "1.1.1.1"), ["10.0.0.1"], {"trusted_proxies": 2}, True),
        (("10.0.0.1", "nonsense"), ["10.0.0.1"], {"trusted_proxies": 1}, True),
        (("10.0.0.1", "1.1.1.1:4711"), ["1.1.1.1"], {"trusted_proxies": 1}, True),
        (("10.0.0.1", '"[2001:db8::1]:80"'), ["2001:db8::1"], {"trusted_proxies": 1}, True),
        (("10.0.0.1", "1.1.1.1"), ("10.0.0.1", "2.2.2.2"), {"trusted_proxies": 1}, False),
        # Addresses of one network
        (["2001:db8::1"], ["2001:db8:0:0:ffff::1"], {}, True),
        (["2001:db8::1"], ["2001:db8:0:1::1"], {}, False),
        (["2001:db8::1"], ["2001:db8:0:1::1"], {"ipv6_prefix": 56}, True),
        (["2001:db8::1"], ["2001:db8::2"], {"ipv6_prefix": 128}, False),
        (["::ffff:1.2.3.4"], ["1.2.3.4"], {}, True),
        (["1.2.3.4"], ["1.2.3.5"], {}, False),
        (["fe80::1%eth0"], ["fe80::2"], {}, True),
        (["64:ff9b::1.2.3.4"], ["64:ff9b::1.2.3.5"], {}, False),  # clients of IPv4 behind a NAT64
        (["64:ff9b::1.2.3.4"], ["1.2.3.4"], {}, True),
        (["64:ff9b:1::1.2.3.4"], ["64:ff9b:1::1.2.3.5"], {}, False),
        (["64:ff9b:1:7::1.2.3.4"], ["64:ff9b:1:7::1.2.3.5"], {}, False),
        (["64:ff9b:2::1.2.3.4"], ["64:ff9b:2::1.2.3.5"], {}, True),
        # Some servers put a port or brackets around REMOTE_ADDR.
        (["203.0.113.9:50001"], ["203.0.113.9:50002"], {}, True),
        (["203.0.113.9:50001"], ["203.0.113.9"], {}, True),
        (["203.0.113.9:50001"], ["203.0.113.8:50001"], {}, False),
        (["[2001:db8::1]:50001"], ["[2001:db8::2]:50002"], {}, True),
        (["[2001:db8::1]"], ["2001:db8::2"], {}, True),
        (["[2001:db8::1]:50001"], ["[2001:db8:1::1]:50001"], {}, False),
        (["2001:db8::1:50001"], ["2001:db8::1:50002"], {}, True),
        (["2001:db8:1:2:3:4:5:6:443"], ["2001:db8:1:2:3:4:5:6"], {}, True),
        (["[fe80::1%eth0]:50001"], ["fe80::1%eth0"], {}, True),
        (["::ffff:203.0.113.9:50001"], ["203.0.113.9"], {}, True),
        (["[::ffff:203.0.113.9]:50001"], ["203.0.113.9:50002"], {}, True),
        (["[203.0.113.9]:50001"], ["203.0.113.9"], {}, True),
        (("203.0.113.9:50001", "nonsense"), ["203.0.113.9:50002"], {"trusted_proxies": 1}, True),
        (("10.0.0.1", "2001:db8::1:50001"), ["2001:db8::1"], {"trusted_proxies": 1}, True),
        (("10.0.0.1", "[2001:db8::1%eth0]:5"), ["2001:db8::1"], {"trusted_proxies": 1}, True),
        (["unix:"], ["unix:"], {}, True),
        (["unix:a"], ["unix:b"], {}, False),
    ],
)
def test_key_ip_identifies_the_client_of_a_request_by_its_address(
    clean_redis, settings, one, other, options, same
):
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "REQUESTS": options}
    limited = semaphore_required("x", limit=1, key="ip")

    def request_of(address, forwarded=""):
        headers = {"X-Forwarded-For": forwarded} if forwarded else {}
        return REQUESTS.get("/", REMOTE_ADDR=address, headers=headers)

    def status_of_the_other(request):
        return HttpResponse(limited(stay)(request_of(*other)).status_code)

    response = limited(status_of_the_other)(request_of(*one))
    assert str(429 if same else 200) == response.content.decode()


@pytest.mark.promise(28)
def test_digest_of_a_key_is_the_same_in_all_versions_of_the_library(clean_redis, settings):
    """If versions made different digests of a client, each version would count the client
    separately, and an override of the client's key would apply in one version only."""
    expected = ("ip-6425c03138cd1d519405f734c4c29768", "key-162bbc9c4afc2c6ff091660a41d75bd8")

    def digests():
        return key_of(), key_of(lambda request: "a")

    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "secret", []
    assert expected == digests()
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "new", ["secret"]
    assert expected == digests()
    settings.SECRET_KEY_FALLBACKS = []
    assert not {*expected} & {*digests()}


@pytest.mark.parametrize("key", ["ip", lambda request: "10.0.0.1"], ids=["ip", "callable"])
def test_status_finds_a_key_by_its_text_even_if_SECRET_KEY_has_changed(clean_redis, settings, key):
    settings.SECRET_KEY = "old"
    view = semaphore_required("x", limit=1, key=key)(stay)
    assert 200 == view(REQUESTS.get("/", REMOTE_ADDR="10.0.0.1")).status_code
    for secret, fallbacks in (("old", []), ("new", ["old"]), ("new", ["older", "old"])):
        settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = secret, fallbacks
        (found,) = facts("x", "--key", "10.0.0.1")
        assert 1 == found["ever"]["granted"], (secret, fallbacks)


@pytest.mark.parametrize(
    ("pk", "key"),
    [
        *((pk, str(pk)) for pk in (7, "7", "a-uuid-like-pk", "k" * 100)),
        *((pk, "user-") for pk in ("k" * 101, "a\nb", "")),
        (None, "ip-"),  # anonymous users are counted by address
    ],
)
def test_key_user_is_the_primary_key_of_the_user_or_a_digest(clean_redis, pk, key):
    found = key_of("user", user=SimpleNamespace(pk=pk))
    assert (key == found) if not key.endswith("-") else found.startswith(key), found


def by_path(request):
    return "a"


@pytest.mark.promise(28)
def test_result_of_a_key_callable_is_digested(clean_redis):
    assert key_of(lambda request: "a").startswith("key-")
    assert key_of(by_path) == key_of(f"{__name__}.by_path")
    assert key_of(lambda request: 7) == key_of(lambda request: "7") != key_of(by_path)
    tenant = UUID(int=7)
    assert key_of(lambda request: tenant) == key_of(lambda request: str(tenant))
    for value in (None, True, 1.5, b"x"):
        # The error names the type but not the value, which may be a secret.
        kinds = "a str, int, UUID, date or Enum"
        message = f"must return {kinds}, not {type(value).__name__}; for a model, use its pk$"
        with pytest.raises(TypeError, match=message):
            key_of(lambda request, value=value: value)


def test_requests_without_an_address_count_as_one_client(clean_redis):
    assert key_of(REMOTE_ADDR="") == key_of(REMOTE_ADDR=None) != key_of()
