"""Settings, decorators, mixins, and semaphores follow the tables of options in `defaults.py`."""

import math

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_redis_sync import Lock, Semaphore, SemaphoreRequiredMixin, semaphore_required
from django_redis_sync.defaults import ENTRY, NAMED, REQUESTS, SEMAPHORE, SETTINGS
from django_redis_sync.limits.policy import parse

pytestmark = pytest.mark.promise(29)

TABLES = {"SETTINGS": SETTINGS, "REQUESTS": REQUESTS, "ENTRY": ENTRY}
TABLES |= {"NAMED": NAMED, "SEMAPHORE": SEMAPHORE}
INF = math.inf

#: Each row: (options as "TABLE.option", {accepted value: stored value}, [rejected values]).
VALUES = [
    ("NAMED.max_hold NAMED.min_hold", {1: 1.0, 0.1: 0.1}, [0, -1, 1e9, INF, math.nan, True, "1"]),
    ("SETTINGS.timeout NAMED.timeout", {5: 5.0, INF: INF}, [0, -1, True, "5"]),
    ("ENTRY.timeout SETTINGS.max_hold", {5: 5.0, INF: INF}, [0, -1, True, "5"]),
    ("NAMED.blocking_timeout", {0: 0.0, 2: 2.0, INF: INF}, [-0.001, math.nan, False, "0"]),
    ("REQUESTS.blocking_timeout", {0: 0.0, 2: 2.0, None: 0.0}, [-0.001, INF]),
    ("SETTINGS.stats_hours", {0: 0.0, 6: 6.0}, [-1, 1e6, True, "6"]),
    ("SEMAPHORE.share_limit", {1: 1, 2**31 - 1: 2**31 - 1}, [0, -1, 2**31, True, 1.0, "1"]),
    ("ENTRY.limit ENTRY.share_limit", {1: 1, len: len}, [0, "3"]),
    ("REQUESTS.max_waiters ENTRY.trusted_proxies", {0: 0, 7: 7}, [-1, False, 0.0, "0"]),
    ("REQUESTS.max_waiting_tasks", {0: 0, 7: 7, None: None}, [-1, False, 0.0, "auto"]),
    ("REQUESTS.max_waiting_threads", {0: 0, "auto": "auto", None: None}, [-1, "all"]),
    ("REQUESTS.ipv6_prefix", {1: 1, 128: 128}, [0, 129, True]),
    ("REQUESTS.status", {400: 400, 599: 599}, [399, 600, True, "503"]),
    ("SETTINGS.enabled REQUESTS.fair", {True: True, False: False}, [0, 1, "yes"]),
    ("SEMAPHORE.label SETTINGS.key_prefix", {"": "", "a": "a"}, [1, b"a"]),
    ("SETTINGS.cache ENTRY.using", {"default": "default"}, [["a", "b"], 1]),
    ("SETTINGS.urlconfs", {(): (), ("a.b",): ("a.b",)}, ["a.b", [1], None]),
    ("SETTINGS.semaphores", {}, [[], None, "x"]),
    ("REQUESTS.on_outage", {"open": "open"}, ["shut", "OPEN"]),
    ("REQUESTS.on_full", {"raise": "raise"}, ["wait", "skip"]),
    ("ENTRY.key ENTRY.share", {"user": "user", "ip": "ip", len: len, "a.b": "a.b"}, ["host", 1]),
    ("ENTRY.when ENTRY.response", {len: len, "a.b": "a.b"}, ["ab", 1]),
    ("ENTRY.methods", {("get",): {"GET", "HEAD"}, ("POST", "put"): {"POST", "PUT"}}, ["GET", []]),
    ("ENTRY.methods", {("HEAD",): {"HEAD"}}, [[1], ["GE T"]]),
]  # fmt: skip


@pytest.mark.parametrize(("options", "stored", "rejected"), VALUES)
def test_option_accepts_valid_values_and_rejects_invalid_values(options, stored, rejected) -> None:
    for table, option in (name.split(".") for name in options.split()):
        row = TABLES[table][option]
        for given, expected in stored.items():
            found = row.checked(given)
            assert (expected, type(expected) is float) == (found, type(found) is float)
        for given in rejected:
            with pytest.raises((TypeError, ValueError), match=rf"\b{option}\b"):
                row.checked(given)


#: For each option of a policy, a value that differs from the default.
OTHER = {
    "timeout": 7.0, "min_hold": 2.0, "rate": "5/m",
    "blocking_timeout": 1.0, "max_hold": 60.0, "limit": 9,
    "max_waiters": 7, "trusted_proxies": 1, "ipv6_prefix": 56, "share_limit": 1, "status": 429,
    "methods": ["POST"], "when": len, "response": print, "key": "ip", "share": "user",
    "on_outage": "closed", "on_full": "raise", "close_connections": True, "fair": False,
    "enforce": False, "using": "other",
}  # fmt: skip


@pytest.fixture
def configure(settings):
    """Return a function that changes keys of REDIS_SYNC, and makes the library read them."""

    def change(**keys):
        settings.REDIS_SYNC = {**settings.REDIS_SYNC, **keys}
        Lock("x").alias()

    return change


@pytest.mark.parametrize("option", ENTRY)
def test_policy_option_can_be_set_in_the_settings_the_decorator_and_the_mixin(
    option: str, configure
) -> None:
    value, message = OTHER[option], rf"\b{option}\b"
    stored = ENTRY[option].checked(value)
    assert stored == getattr(parse("x", {"limit": 1, option: value}), option)
    semaphore_required("x", **{option: value})
    with pytest.raises((TypeError, ValueError), match=message):
        semaphore_required("x", **{option: object()})
    assert hasattr(SemaphoreRequiredMixin, f"semaphore_{option}")
    assert callable(getattr(SemaphoreRequiredMixin, f"get_semaphore_{option}"))
    if option in REQUESTS:
        configure(REQUESTS={option: value})
        assert stored == getattr(parse("x", {"limit": 1}), option)
    else:
        message = rf"\['REQUESTS'\] has unknown keys: {option} \(it belongs in an entry"
        with pytest.raises(ImproperlyConfigured, match=message):
            configure(REQUESTS={option: value})


@pytest.mark.parametrize("option", [*REQUESTS, *map(str.upper, SETTINGS)])
def test_settings_reject_an_unsuitable_value_of_each_option(option: str, configure) -> None:
    keys = {option: object()} if option.isupper() else {"REQUESTS": {option: object()}}
    with pytest.raises(ImproperlyConfigured, match=rf"REDIS_SYNC(\['REQUESTS'\])?: {option} must"):
        configure(**keys)


@pytest.mark.parametrize("option", [*NAMED, "limit", "share_limit", "max_waiters"])
def test_invalid_option_in_a_settings_entry_raises_when_the_semaphore_acquires(
    option: str, configure
) -> None:
    configure(SEMAPHORES={"x": {"limit": 1, option: "soon"}})
    with pytest.raises(ImproperlyConfigured, match=rf"\['SEMAPHORES'\]\['x'\]: {option}\b"):
        Semaphore("x").acquire()


@pytest.mark.parametrize("option", SEMAPHORE)
def test_semaphore_rejects_an_unsuitable_value_of_each_option(option: str) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"\b{option}\b"):
        Semaphore("x", 1, **{option: object()})


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (2, r"\['SEMAPHORES'\]\['x'\] must be a dict such as \{'limit': 2\}, not 2"),
        ({"limt": 3}, r"\['SEMAPHORES'\]\['x'\].* limt \(did you mean limit\?\)"),
    ],
)
def test_semaphore_and_policy_raise_when_their_settings_entry_is_invalid(
    entry, message: str, configure
) -> None:
    configure(SEMAPHORES={"x": entry})
    for take in (Semaphore("x", 1).acquire, lambda: parse("x", {"limit": 1})):
        with pytest.raises(ImproperlyConfigured, match=message):
            take()
