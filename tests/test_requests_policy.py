"""Policies: the sources of options, the endpoint of a view, and the key of a request."""

import weakref
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import ImproperlyConfigured
from django.test import RequestFactory
from django.views import View

from django_redis_sync import SemaphoreRequiredMixin, semaphore_required
from django_redis_sync.limits import identity, policy
from django_redis_sync.limits.identity import key_of, run
from django_redis_sync.limits.policy import (
    Declared,
    Endpoint,
    Endpoints,
    Policy,
    endpoint_of,
    parse,
)
from django_redis_sync.limits.routes import Route, policies_of, routes


def request_of(view_name: str | None = None, user: object = None, **meta):
    request = RequestFactory().get("/", **meta)
    if view_name is not None:
        request.resolver_match = SimpleNamespace(view_name=view_name)
    request.user = user or AnonymousUser()
    return request


@pytest.fixture
def configure(settings):
    def change(**sync):
        settings.REDIS_SYNC = {**settings.REDIS_SYNC, **sync}

    return change


# Precedence


def test_options_come_from_decorator_endpoint_semaphore_requests_in_this_order(configure):
    configure(
        REQUESTS={"max_hold": 1, "max_waiters": 1, "on_outage": "open", "enforce": False},
        SEMAPHORES={
            "exports": {"limit": 2, "max_hold": 2, "max_waiters": 2, "on_outage": "closed"}
        },
        ENDPOINTS={"reports:export": {"name": "exports", "max_hold": 3, "max_waiters": 3}},
    )
    endpoint = endpoint_of(request_of("reports:export"))
    policy = endpoint.policy_of(Declared("exports", {"max_hold": 4}), "unused")
    assert (4, 3, "closed", False, 2) == (
        policy.max_hold,
        policy.max_waiters,
        policy.on_outage,
        policy.enforce,
        policy.limit,
    )
    assert 3 == endpoint.policy.max_hold


def test_endpoint_options_apply_only_to_the_semaphore_that_it_names(configure) -> None:
    configure(ENDPOINTS={"reports:export": {"name": "exports", "limit": 3, "max_waiters": 7}})
    endpoint = endpoint_of(request_of("reports:export"))
    other = endpoint.policy_of(Declared("other", {"limit": 1}), "unused")
    assert ("other", 1, 100) == (other.name, other.limit, other.max_waiters)
    unnamed = endpoint.policy_of(Declared(None, {}), "unused")
    assert ("exports", 3, 7) == (unnamed.name, unnamed.limit, unnamed.max_waiters)


def test_policy_is_immutable_and_its_defaults_are_those_of_the_settings() -> None:
    policy = parse("x", {"limit": 1})
    assert Policy("x", 1) == policy
    with pytest.raises(AttributeError):
        policy.limit = 2


def test_changed_endpoints_take_effect_at_once(configure) -> None:
    for limit in (1, 2):
        configure(ENDPOINTS={"free": {"limit": limit}})
        assert limit == endpoint_of(request_of("free")).policy.limit


@pytest.mark.parametrize(
    "entry",
    [
        *({"limit": 0}, {"limt": 1}, {}, "nowhere"),
        *({"limit": 1, "key": "no.such.function"}, {"limit": 1, "name": ""}),
    ],
)
def test_invalid_entry_in_endpoints_raises_improperly_configured(configure, entry) -> None:
    configure(ENDPOINTS={"free": entry})
    with pytest.raises(ImproperlyConfigured):
        endpoint_of(request_of("free"))


# Endpoints

ENTRIES = {
    "reports:export": "exact",
    "reports:*": "reports",
    "reports:ex*": "longer",
    "*": "all",
    "api:v?:list": "api",
}


@pytest.mark.parametrize(
    ("view", "name"),
    [
        ("reports:export", "exact"),
        ("reports:exports", "longer"),
        ("reports:list", "reports"),
        ("api:v1:list", "api"),
        ("api:v11:list", "all"),
        ("Reports:export", "all"),
    ],
)
def test_exact_name_then_the_longest_glob_selects_the_entry(view: str, name: str) -> None:
    assert name == Endpoints(ENTRIES).find(view).name


def test_only_patterns_with_wildcards_are_globs() -> None:
    patterns = {"a*": True, "a?": True, "a[bc]": True, "a:b": False, "a.b-c_d": False}
    assert patterns == {pattern: policy.is_glob(pattern) for pattern in patterns}


def test_view_without_an_entry_has_no_policy(configure) -> None:
    configure(ENDPOINTS={"reports:*": {"limit": 1}})
    assert endpoint_of(request_of("free")).policy is None
    assert endpoint_of(request_of(None)).policy is None


def test_view_name_is_matched_with_the_entries_only_once(configure, monkeypatch) -> None:
    matched = []
    find = Endpoints.find
    monkeypatch.setattr(
        Endpoints, "find", lambda self, name: matched.append(name) or find(self, name)
    )

    configure(ENDPOINTS={f"*v{number}": {"limit": 1} for number in range(1000)})
    request = request_of("unlimited")
    found = [endpoint_of(request) for _ in range(2000)]
    assert ["unlimited"] == matched
    assert {id(found[0])} == set(map(id, found))


class Text(str):
    """A string that can be referenced weakly."""


def test_endpoint_caches_policies_of_a_bounded_number_of_names() -> None:
    endpoint, references = Endpoint(None), []
    for n in range(1500):
        declared = Declared(Text(f"tenant-{n}"), {"limit": 3})
        assert f"tenant-{n}" == endpoint.policy_of(declared, "").name
        assert f"<Declared 'tenant-{n}' {{'limit': 3}}>" == repr(declared)
        references.append(weakref.ref(declared.name))
        del declared
    assert 0 < sum(reference() is not None for reference in references) <= 1000


def test_endpoint_is_found_when_the_request_has_its_own_urlconf(configure) -> None:
    configure(ENDPOINTS={"free": {"limit": 1}})
    request = request_of("free")
    request.urlconf = ["unhashable"]
    assert 1 == endpoint_of(request).policy.limit


# The key of a request


@pytest.mark.parametrize(
    ("proxies", "forwarded", "address"),
    [
        (0, "6.6.6.6", "10.0.0.1"),
        (0, None, "10.0.0.1"),
        (1, None, "10.0.0.1"),
        (1, "1.1.1.1", "1.1.1.1"),
        (1, "6.6.6.6, 1.1.1.1", "1.1.1.1"),
        (2, "6.6.6.6, 1.1.1.1, 2.2.2.2", "1.1.1.1"),
        (2, "1.1.1.1", "10.0.0.1"),
        (1, "nonsense", "10.0.0.1"),
        (1, "1.1.1.1:4711", "1.1.1.1"),
        (1, '"[2001:db8::1]:80"', "2001:db8::1"),
    ],
)
def test_address_is_read_only_from_trusted_proxies(proxies, forwarded, address) -> None:
    meta = {"REMOTE_ADDR": "10.0.0.1"}
    if forwarded:
        meta["HTTP_X_FORWARDED_FOR"] = forwarded
    assert address == identity.address(request_of(**meta), proxies)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8:0:0:ffff::1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:1.2.3.4", "1.2.3.4", True),
        ("1.2.3.4", "1.2.3.5", False),
        ("fe80::1%eth0", "fe80::2", True),
        ("64:ff9b::1.2.3.4", "64:ff9b::1.2.3.5", False),  # clients of IPv4 behind a NAT64
        ("64:ff9b::1.2.3.4", "1.2.3.4", True),
        ("64:ff9b:1::1.2.3.4", "64:ff9b:1::1.2.3.5", False),
        ("64:ff9b:1:7::1.2.3.4", "64:ff9b:1:7::1.2.3.5", False),
        ("64:ff9b:2::1.2.3.4", "64:ff9b:2::1.2.3.5", True),
        ("", "", True),
    ],
)
def test_addresses_of_one_network_have_the_same_digest(one, other, same) -> None:
    keys = [identity.of_address(request_of(REMOTE_ADDR=text), 0) for text in (one, other)]
    assert same == (keys[0] == keys[1])
    assert all(key.startswith("ip-") and (not one or one not in key) for key in keys)


@pytest.mark.parametrize(("prefix", "same"), [(128, False), (64, False), (56, True), (48, True)])
def test_ipv6_prefix_sets_the_network_that_counts_as_one_client(prefix, same, configure) -> None:
    configure(REQUESTS={"ipv6_prefix": prefix})
    policy = parse("x", {"limit": 1, "key": "ip"})
    keys = {
        run(key_of(policy, request, request))
        for request in (request_of(REMOTE_ADDR=f"2001:db8:0:{net}::1") for net in (1, 2))
    }
    assert same == (1 == len(keys))
    assert identity.possible_keys("2001:db8:0:1::1")[0] in keys  # what an operator types


def test_digest_uses_the_old_secret_key_while_it_is_a_fallback(settings) -> None:
    """Until then, old and new processes count the same keys, and overrides of keys apply."""
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "old", []
    old = identity.of_value("a")
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "new", ["old"]
    assert old == identity.of_value("a")
    settings.SECRET_KEY_FALLBACKS = []
    assert old != identity.of_value("a")
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "newest", ["new", "older"]
    new = identity.digest("key", "a", "new")
    assert {new, identity.digest("ip", "a", "newest")} <= set(identity.possible_keys("a"))


def test_possible_keys_contain_the_digests_of_all_secret_keys(settings) -> None:
    made = {}
    for secret in ("old", "new"):
        settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = secret, []
        made[secret] = {identity.of_value("10.0.0.1"), identity.digest("ip", "10.0.0.1")}
    settings.SECRET_KEY_FALLBACKS = ["old"]
    assert made["old"] | made["new"] <= {*identity.possible_keys("10.0.0.1")}


def test_digest_is_the_same_in_every_version(settings) -> None:
    """Processes of two versions count a client together, and overrides of keys still apply."""
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "secret", []
    assert "ip-6425c03138cd1d519405f734c4c29768" == identity.digest("ip", "10.0.0.1")
    assert "key-162bbc9c4afc2c6ff091660a41d75bd8" == identity.of_value("a")


@pytest.mark.parametrize("text", ["7", "k" * 101, "10.0.0.1", "2001:db8::1", "a b"])
def test_possible_keys_contain_the_text_itself(text: str) -> None:
    """Code may use any text as a key, also without a user or an address."""
    assert text in identity.possible_keys(text)


def test_requests_without_an_address_are_logged_once(caplog) -> None:
    identity._warn_of_no_address.cache_clear()
    without_address = request_of()
    del without_address.META["REMOTE_ADDR"]
    keys = [
        identity.of_address(request, proxies)
        for request in (request_of(REMOTE_ADDR=""), request_of(REMOTE_ADDR=None), without_address)
        for proxies in (0, 1)
    ]
    assert 1 == len(set(keys))
    (record,) = caplog.records
    assert "Unix socket" in record.getMessage()
    assert "trusted_proxies" in record.getMessage()


@pytest.mark.parametrize("pk", [7, "7", "a-uuid-like-pk", "k" * 100])
def test_primary_key_is_not_digested(pk) -> None:
    assert str(pk) == identity.of_user(pk)


@pytest.mark.parametrize("pk", ["k" * 101, "a\nb", ""])
def test_invalid_primary_key_is_digested(pk) -> None:
    assert identity.of_user(pk).startswith("user-")


def test_result_of_a_key_callable_is_digested() -> None:
    assert identity.of_value("x" * 10_000).startswith("key-")
    assert identity.of_value("a") != identity.of_value("b")
    assert identity.digest("key", "a") == identity.of_value("a")
    for value in (None, True, 1.5, b"x"):
        # The message does not contain the value.
        with pytest.raises(TypeError, match=f"must return a str, not {type(value).__name__}$"):
            identity.of_value(value)


def test_key_can_be_a_dotted_path() -> None:
    from tests.request_site.views import gate_of

    assert gate_of is parse("x", {"limit": 1, "key": "tests.request_site.views.gate_of"}).key


# The policies of the views in the URLconf


def test_project_without_urlconf_has_no_routes(settings) -> None:
    del settings.ROOT_URLCONF
    assert [] == routes()


@pytest.mark.parametrize(
    "wrong",
    [
        semaphore_required("exports")(print),
        *(
            type("Wrong", (SemaphoreRequiredMixin, View), {"semaphore_limit": limit}).as_view()
            for limit in ("3", 0)
        ),
    ],
    ids=["no limit", "wrong type", "out of bounds"],
)
def test_view_with_an_invalid_limit_has_no_policy(wrong) -> None:
    assert [] == [*policies_of(Route("reports", wrong))]
    known = semaphore_required("others", limit=3)(wrong)
    assert ["others"] == [policy.name for policy in policies_of(Route("reports", known))]


def test_invalid_entry_of_endpoints_has_no_policy(configure) -> None:
    configure(ENDPOINTS={"reports": {"limit": "3"}})
    assert [] == [*policies_of(Route("reports", semaphore_required("a", limit=3)(print)))]
