"""The Redis server of a test run, and the fixtures that reach it."""

import contextlib
import functools
import gc
import logging
import math
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
import redis
from django.conf import settings
from hypothesis import settings as hypothesis_settings

from devtools.servers import NoServer, RedisServer, find_server, shared_server

FOREIGN = bool(os.environ.get("REDIS_URL"))  # somebody else's server: touch only our own keys


# An example that takes long on a busy machine is no failure.
hypothesis_settings.register_profile("unhurried", deadline=None)
hypothesis_settings.load_profile("unhurried")


def pytest_configure(config: pytest.Config) -> None:
    # A shell's `make test &` starts us without: what we start would not hear Ctrl-C either.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # pytest-django has read the settings by now, but no cache is connected before the first use.
    stack = contextlib.ExitStack()
    config.add_cleanup(stack.close)
    try:
        url = stack.enter_context(shared_server())
    except NoServer as error:
        raise pytest.UsageError(str(error)) from None
    if FOREIGN:
        url = _unused_database(url)
        stack.callback(_delete_our_keys, url)
    location = _with_least_rights(url) if os.environ.get("DJANGO_REDIS_SYNC_TEST_ACL") else url
    # What threads say between two tests would stand among the dots.
    logging.getLogger("django_redis_sync").addHandler(logging.NullHandler())
    os.environ["DJANGO_REDIS_SYNC_TEST_RAW_URL"] = url
    os.environ["DJANGO_REDIS_SYNC_TEST_URL"] = location
    settings.CACHES["default"]["LOCATION"] = location


#: What takes many servers, minutes, or a machine that does nothing else: `make deep`.
DEEP = (
    *("topologies", "faults", "soak"),
    *("test_builds.py", "test_tutorial.py", "test_requests_everywhere.py"),
)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    # Each worker reads what it collects: most of what it would leave out is not even read.
    return (
        True
        if config.option.markexpr == "not deep and not tools" and _is_deep(collection_path)
        else None
    )


@functools.cache
def _is_deep(path: Path) -> bool:
    here = Path(__file__).parent
    return any(path.is_relative_to(here / part) for part in DEEP)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _is_deep(item.path):
            item.add_marker(pytest.mark.deep)


#: The numbered promises of the documentation, each with the sentence that states it.
PROMISES = {
    int(number): " ".join(text.replace("**", "").split())
    for number, text in re.findall(
        r"^(\d+)\. (\*\*.+?)(?=^\d+\. |^#|\Z)",
        (Path(__file__).parents[1] / "docs" / "promises.md").read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, object]:
    """Say which promise broke when a test of it fails."""
    report = yield
    if report.failed:
        for mark in item.iter_markers("promise"):
            for number in mark.args:
                report.sections.append((f"promise {number}", PROMISES[number]))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    # What is read here lives on: no collection of garbage looks at it, now or later.
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


@pytest.fixture(scope="session")
def redis_url() -> str:
    """Where the test run's server is, as a user who may do everything."""
    return os.environ["DJANGO_REDIS_SYNC_TEST_RAW_URL"]


@pytest.fixture(autouse=True)
def nothing_is_due_where_no_cache_is() -> None:
    """What the clerks of an earlier test's own caches have yet to write is gone as these are: in
    the midst of this test they would warn that there is no such cache."""
    housekeeper = sys.modules.get("django_redis_sync.engine.housekeeping")
    for alias, one in list(housekeeper._housekeepers.items()) if housekeeper is not None else ():
        if alias not in settings.CACHES:
            one.forget()


@pytest.fixture
def clean_redis(redis_url: str) -> Iterator[None]:
    """No key of ours before the test or after it."""
    clean(redis_url)
    yield
    clean(redis_url)


@pytest.fixture
def raw(redis_url: str, clean_redis: None) -> redis.Redis:
    """A plain client of the server, clean at the start, that answers in bytes."""
    return _client(redis_url)


@pytest.fixture
def rejections() -> Iterator[list[dict[str, Any]]]:
    """What receivers of `acquire_rejected` get."""
    from django_redis_sync.signals import acquire_rejected

    heard: list[dict[str, Any]] = []

    def receiver(**said: Any) -> None:
        heard.append(said)

    acquire_rejected.connect(receiver)
    yield heard
    acquire_rejected.disconnect(receiver)


@pytest.fixture
def new_server() -> Iterator[Callable[..., RedisServer]]:
    """Starts private servers, to break or to configure; takes what `RedisServer` takes."""
    if find_server() is None:
        pytest.skip("REDIS_URL is all there is, and this test needs a server of its own")
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(RedisServer(**options))


@pytest.fixture
def second(settings: Any, raw: redis.Redis, new_server: Callable[..., RedisServer]) -> None:
    """A cache `other` of another server, under another prefix."""
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "KEY_PREFIX": None}
    first = {**settings.CACHES["default"], "KEY_PREFIX": settings.PREFIX}
    other = {**first, "LOCATION": new_server().url, "KEY_PREFIX": "second"}
    settings.CACHES = {**settings.CACHES, "default": first, "other": other}


def clean(url: str) -> None:
    """No key of ours, and nothing remembered of any."""
    from django_redis_sync.engine import housekeeping, overrides, renewal
    from django_redis_sync.protocol.keys import policies

    for one in list(renewal._renewers.values()):  # of leases that a test dropped, no other is told
        one.clear()
    keepers = list(housekeeping._housekeepers.values())
    for each in keepers:  # what earlier tests have yet to write
        each.forget()
    until = time.monotonic() + 2
    while any(each._busy for each in keepers) and time.monotonic() < until:  # is writing it
        time.sleep(0.001)
    overrides._read.clear()
    for policy in list(policies.values()):  # what an earlier test marked is gone
        policy.mark, policy.exempt, policy.due = "-", {}, -math.inf
    if FOREIGN:
        _delete_our_keys(url)
    else:
        _client(url).flushdb()


@functools.cache
def _client(url: str) -> redis.Redis:
    """One for all tests: redis-py looks up its own version on disk for each that is made."""
    return redis.Redis.from_url(url)


def _delete_our_keys(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        for key in client.scan_iter(match=f"{settings.PREFIX}*", count=1000):
            client.delete(key)


def _with_least_rights(url: str) -> str:
    """As a user who may do what is documented as the least, and write the tests' journals."""
    from django_redis_sync.operators.doctor import permissions

    rules = [*permissions.rules(settings.PREFIX).split(), "~*journal*", "+pttl"]
    with redis.Redis.from_url(url) as client:
        client.execute_command("ACL", "SETUSER", "app", "reset", "on", ">word", *rules)
    return url.replace("://", "://app:word@")


def _unused_database(url: str) -> str:
    """The same server with an empty database, when it has one."""
    for number in range(15, 0, -1):
        other = _with_database(url, number)
        with contextlib.suppress(redis.ResponseError), redis.Redis.from_url(other) as client:
            if client.dbsize() == 0:
                return other
    return url


def _with_database(url: str, number: int) -> str:
    parts = urlsplit(url)
    query = {name: value for name, value in parse_qsl(parts.query) if name != "db"}
    if parts.scheme == "unix":
        return parts._replace(query=urlencode({**query, "db": number})).geturl()
    return parts._replace(path=f"/{number}", query=urlencode(query)).geturl()
