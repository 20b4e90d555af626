"""The Redis server of a test run, and shared fixtures."""

import contextlib
import functools
import gc
import importlib
import logging
import math
import multiprocessing
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
import redis
from django.conf import settings
from hypothesis import settings as hypothesis_settings

from devtools.servers import NoServer, RedisServer, find_server, shared_server
from tests.support.relays import relay, relays  # noqa: F401 - fixtures

# True if the tests use the server of REDIS_URL, where they may delete only their own keys.
FOREIGN = bool(os.environ.get("REDIS_URL"))


# Turn off the time limit that Hypothesis sets for each example. A busy machine may exceed it.
hypothesis_settings.register_profile("no_deadline", deadline=None)
hypothesis_settings.load_profile("no_deadline")


def pytest_configure(config: pytest.Config) -> None:
    # `make test &` in a shell script ignores SIGINT. Child processes would inherit this.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # redis-py reads its version from a file for each new connection.
    metadata.version = functools.cache(metadata.version)
    # No cache has connected yet, so the address of the default cache can still be set.
    stack = contextlib.ExitStack()
    config.add_cleanup(stack.close)
    try:
        url = stack.enter_context(shared_server())
    except NoServer as error:
        raise pytest.UsageError(str(error)) from None
    if FOREIGN:
        url = _unused_database(url)
        stack.callback(_delete_keys_of_tests, url)
    location = _with_least_permissions(url) if os.environ.get("DJANGO_REDIS_SYNC_TEST_ACL") else url
    # Without a handler, threads that log between two tests would write into pytest's output.
    logging.getLogger("django_redis_sync").addHandler(logging.NullHandler())
    os.environ["DJANGO_REDIS_SYNC_TEST_RAW_URL"] = url
    os.environ["DJANGO_REDIS_SYNC_TEST_URL"] = location
    settings.CACHES["default"]["LOCATION"] = location


#: What `make deep` runs: tests that need many servers, minutes, or an idle machine.
DEEP = (
    *("topologies", "faults", "soak"),
    *("test_builds.py", "test_tutorial.py", "limits/test_everywhere.py"),
)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    # Ignore files whose tests are all deselected. Otherwise, each xdist worker would import them.
    return (
        True
        if config.option.markexpr.startswith("not deep") and _is_deep(collection_path)
        else None
    )


@functools.cache
def _is_deep(path: Path) -> bool:
    here = Path(__file__).parent
    return any(path.is_relative_to(here / part) for part in DEEP)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, before it starts its workers
def pytest_xdist_setupnodes() -> None:
    """Compile the test modules once. Otherwise, each worker would do this in a fresh clone."""
    here = Path(__file__).parent
    modules = [path for path in here.rglob("test_*.py") if not _is_deep(path)]
    names = [
        ".".join(path.relative_to(here.parent).with_suffix("").parts)
        for path in sorted(modules)
        if not _is_compiled(path)
    ]
    if len(names) > 10 and not sys.dont_write_bytecode:
        with multiprocessing.get_context("fork").Pool() as processes:
            processes.map(_import, names)


def _is_compiled(path: Path) -> bool:
    found = path.parent.glob(f"__pycache__/{path.stem}.{sys.implementation.cache_tag}-pytest*.pyc")
    return any(one.stat().st_mtime >= path.stat().st_mtime for one in found)


def _import(name: str) -> None:
    with contextlib.suppress(BaseException):  # the collection will report it
        importlib.import_module(name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _is_deep(item.path):
            item.add_marker(pytest.mark.deep)


def _docs(name: str) -> str:
    return (Path(__file__).parents[1] / "docs" / f"{name}.md").read_text(encoding="utf-8")


#: The texts of the promises in docs/promises.md, by number.
PROMISES = {
    int(number): " ".join(text.replace("**", "").split())
    for number, text in re.findall(
        r"^(\d+)\. (\*\*.+?)(?=^\d+\. |^#|\Z)",
        _docs("promises"),
        re.MULTILINE | re.DOTALL,
    )
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, object]:
    """If a test fails, extend its report by the text of each promise that the test proves."""
    report = yield
    if report.failed:
        for mark in item.iter_markers("promise"):
            for number in mark.args:
                report.sections.append((f"promise {number}", PROMISES[number]))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    # Exempt the test modules from garbage collection, because they are never freed.
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


@pytest.fixture(scope="session")
def redis_url() -> str:
    """The URL of the test run's server, for a user with all permissions."""
    return os.environ["DJANGO_REDIS_SYNC_TEST_RAW_URL"]


@pytest.fixture(autouse=True)
def nothing_of_earlier_tests() -> None:
    """Discard garbage-collected leases of earlier tests, and all leases and pending work of caches
    that are no longer in the settings.

    Without this, the threads of the library would log warnings about them during the test.
    """
    renewal = sys.modules.get("django_redis_sync.engine.renewal")
    for alias, renewer in list(renewal._renewers.items()) if renewal is not None else ():
        for token, (ref, _) in renewer._watched.copy().items():
            if ref() is None:
                renewer.forget(token)
        if alias not in settings.CACHES:
            renewer.clear()
            renewer.housekeeper.forget()


@pytest.fixture(autouse=True)
def names_of_this_test() -> None:
    """Forget the names that views of other tests have. `filled()` could find a name similar."""
    if decorator := sys.modules.get("django_redis_sync.limits.decorator"):
        decorator.names_given.clear()


@pytest.fixture(autouse=True)
def patient_requests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a request wait up to PATIENCE seconds for an answer of Redis, except in tests of
    outages."""
    semaphore = sys.modules.get("django_redis_sync.limits.semaphore")
    if semaphore is not None and request.node.get_closest_marker("outages") is None:
        monkeypatch.setattr(semaphore.RequestSemaphore, "_attempt", settings.PATIENCE)


@pytest.fixture
def clean_redis(redis_url: str) -> Iterator[None]:
    """Delete the library's keys before and after the test."""
    clean(redis_url)
    yield
    clean(redis_url)


@pytest.fixture
def raw(redis_url: str, clean_redis: None) -> redis.Redis:
    """A redis-py client with bytes as replies. At first, the server has no keys of the library."""
    return _client(redis_url)


@pytest.fixture
def view(raw: redis.Redis) -> Callable[[str], Any]:
    """Return a function that makes a `View`, which reads the state of a name from the server."""
    from tests.behaviour.watching import View

    return lambda name: View(raw, name)


@pytest.fixture
def rejections() -> Iterator[list[dict[str, Any]]]:
    """A list of the arguments of each `acquire_rejected` signal that is sent during the test."""
    from django_redis_sync.signals import acquire_rejected
    from tests.request_site.project import received

    with received(acquire_rejected) as rejections:
        yield rejections


@pytest.fixture
def project(
    request: pytest.FixtureRequest,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    clean_redis: None,
) -> Iterator[Any]:
    """A project with limited views. See tests/request_site/project.py."""
    from tests.request_site.project import Project

    with Project(settings, *getattr(request, "param", ())) as project:
        yield project


@pytest.fixture
def new_server() -> Iterator[Callable[..., RedisServer]]:
    """Return a function that starts a private server. Its arguments are those of `RedisServer`."""
    if find_server() is None:
        pytest.skip("this test starts a server of its own, and no redis-server was found")
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(RedisServer(**options))


@pytest.fixture
def second(settings: Any, raw: redis.Redis, new_server: Callable[..., RedisServer]) -> None:
    """Add a cache alias `other` with its own server and the key prefix `second`."""
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "KEY_PREFIX": None}
    first = {**settings.CACHES["default"], "KEY_PREFIX": settings.PREFIX}
    other = {**first, "LOCATION": new_server().url, "KEY_PREFIX": "second"}
    settings.CACHES = {**settings.CACHES, "default": first, "other": other}


@pytest.fixture
def elsewhere(settings: Any, raw: redis.Redis, new_server: Callable[..., RedisServer]) -> str:
    """Add a cache alias with its own server, and the key prefix of `default`. Return the alias."""
    other = {**settings.CACHES["default"], "LOCATION": new_server().url}
    settings.CACHES = {**settings.CACHES, "elsewhere": other}
    return "elsewhere"


def clean(url: str) -> None:
    """Delete the library's keys, and reset what this process has cached about them."""
    from django_redis_sync.engine import overrides, renewal
    from django_redis_sync.protocol.keys import policies

    forget_leases()
    chores = _running_chores()
    for renewer in list(renewal._renewers.values()):
        renewer.housekeeper.forget()  # discard pending writes; then wait for those that have begun
    until = time.monotonic() + 2
    while chores and time.monotonic() < until:
        time.sleep(0.001)
    overrides._read.clear()
    for policy in list(policies.values()):
        policy.overrides, policy.exemptions, policy.due = "-", {}, -math.inf
    if FOREIGN:
        _delete_keys_of_tests(url)
    else:
        _client(url).flushdb()


@functools.cache
def _running_chores() -> set[object]:
    """Return a set with one object for each chore that runs now, on any thread of this process.
    From now on, a thread runs no chore that its housekeeper has discarded.

    The stacks of the threads can't tell: Python 3.11 crashes if a thread returns from a function
    while another thread reads its stack.
    """
    from django_redis_sync.engine.housekeeping import Housekeeper

    running, run = set[object](), Housekeeper._run

    def noted(self: Any, chore: Any, *args: Any) -> None:
        running.add(mark := object())
        try:
            if chore in self._chores:
                run(self, chore, *args)
        finally:
            running.discard(mark)

    os.register_at_fork(after_in_child=running.clear)
    Housekeeper._run = noted  # type: ignore[method-assign]
    return running


def forget_leases(*aliases: str) -> None:
    """Stop renewing the leases of these cache aliases, or of all aliases if none is given."""
    from django_redis_sync.engine import renewal

    for alias, renewer in list(renewal._renewers.items()):
        if alias in aliases or not aliases:
            renewer.clear()


@functools.cache
def _client(url: str) -> redis.Redis:
    """Return the same client at each call, because redis-py reads a file for each new client."""
    return redis.Redis.from_url(url)


def _delete_keys_of_tests(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        for key in client.scan_iter(match=f"{settings.PREFIX}*", count=1000):
            client.delete(key)


def _with_least_permissions(url: str) -> str:
    """Create a Redis user with the documented permissions and those that the tests' journals need.

    Return the URL with which this user logs in."""
    shown = re.search(
        r"ACL SETUSER mysite on >PASSWORD (.*?)```", _docs("keys-and-permissions"), re.S
    )
    assert shown is not None
    rules = shown[1].replace("mysite:sync", settings.PREFIX).split()
    with redis.Redis.from_url(url) as client:
        own = ("reset", "on", ">word", *rules, "~*journal*", "+pttl")
        client.execute_command("ACL", "SETUSER", "app", *own)
    return url.replace("://", "://app:word@")


def _unused_database(url: str) -> str:
    """Return the URL of an empty database of the server. If there is none, return `url`."""
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
