"""Checks of REDIS_SYNC and of the caches that it names."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string
from redis.exceptions import RedisError

from .. import conf
from ..defaults import ENTRY, REQUESTS, SETTINGS
from ..engine.backends import UnknownBackend, backend_of, check_connection
from ..limits.policy import Policy, checked, endpoints
from ..protocol.keys import check_text

_OR_WITHOUT = (
    "set 'django_redis.cache.RedisCache'. For development and tests without Redis, set "
    "REDIS_SYNC['WITHOUT_REDIS'] = True."
)
_USABLE = (
    "Use a cache on one server, Sentinel, or Cluster, with a LOCATION and OPTIONS that redis-py "
    "accepts."
)
#: Min connections that a process needs: one each to acquire, to release, to renew, and to poll.
MIN_CONNECTIONS = 4


_WITHOUT_REDIS = (
    "REDIS_SYNC['WITHOUT_REDIS'] is True: each process counts its own permits. Other processes and "
    "hosts can get the same locks, and each process admits as many requests as the limit."
)
_USE_REDIS = "Use it in development and tests only. In production, remove it, and configure Redis."


def message(number: str, text: str, hint: str) -> CheckMessage:
    """Return a check message. `number`: "E" for an error or "W" for a warning, and three digits."""
    kind = Error if number.startswith("E") else Warning
    return kind(text, hint=hint, id=f"redis_sync.{number}")


def check_readable() -> Iterator[CheckMessage]:
    """Yield an error if REDIS_SYNC can't be read. In that case, no other check is run."""
    try:
        conf.current()
        endpoints()
    except ImproperlyConfigured as error:
        text = str(error)
        keys = REQUESTS if "['REQUESTS']" in text else map(str.upper, SETTINGS)
        hint = hint_for(text) if "['ENDPOINTS']" in text else f"Known keys: {', '.join(keys)}."
        yield message("E001", text, hint)


def check() -> Iterator[CheckMessage]:
    """Yield a message for each mistake in REDIS_SYNC and in the caches that it names."""
    if conf.current().without_redis:
        yield message("W032", _WITHOUT_REDIS, _USE_REDIS)
    else:
        for alias, where in _aliases().items():
            yield from _check_alias(alias, where)
            yield from _check_pool(alias)
    yield from _check_entries("SEMAPHORES", conf.current().semaphores, check_semaphore)
    yield from _check_entries("ENDPOINTS", conf.current().endpoints, check_endpoint)
    yield from _check_async_client()


def check_deployment() -> Iterator[CheckMessage]:
    """Yield an error if permits are not counted in Redis. Yield a warning if clearing another cache
    would delete the leases."""
    if conf.current().without_redis:
        yield message("E033", _WITHOUT_REDIS, _USE_REDIS)
        return
    mine = conf.current().cache
    urls = {alias: _location(cache).split(",")[0] for alias, cache in settings.CACHES.items()}
    if others := sorted(alias for alias in urls if alias != mine and urls[alias] == urls.get(mine)):
        yield message(
            "W011",
            f"The cache {mine!r} of REDIS_SYNC shares its LOCATION with {', '.join(others)}: "
            "cache.clear() of any of these caches deletes all leases, and they share one "
            "connection pool.",
            f"Give {mine!r} a database and a URL of its own.",
        )


# Caches


def _aliases() -> dict[str, str]:
    """Return the cache aliases that REDIS_SYNC uses, each with the setting that names it."""
    config = conf.current()
    aliases = {config.cache: "REDIS_SYNC['CACHE']"}
    for setting, entries in (("SEMAPHORES", config.semaphores), ("ENDPOINTS", config.endpoints)):
        for name, entry in entries.items():
            using = entry.get("using") if isinstance(entry, Mapping) else None
            if isinstance(using, str):
                aliases.setdefault(using, f"REDIS_SYNC[{setting!r}][{name!r}]")
    return aliases


def _check_alias(alias: str, where: str) -> Iterator[CheckMessage]:
    try:
        check_connection(alias)
    except (ImproperlyConfigured, RedisError, OSError) as error:
        if alias not in settings.CACHES:
            number, hint = "E002", "Give an alias from CACHES, preferably one for locks only."
        elif isinstance(error, UnknownBackend):
            given = settings.CACHES[alias].get("BACKEND")
            number, hint = "E003", f"BACKEND is {given!r}: {_OR_WITHOUT}"
        else:
            number, hint = "E004", _USABLE
        yield message(number, f"{where}: {error}", hint)


def _check_pool(alias: str) -> Iterator[CheckMessage]:
    """Yield a warning if the connection pool of the cache is so small that releases and renewals
    wait for a connection."""
    try:
        given = backend_of(alias).pool_options.get("max_connections")
    except ImproperlyConfigured:  # `_check_alias` yields a message
        return
    if given is None:
        cache = settings.CACHES[alias]
        query = parse_qs(urlsplit(_location(cache)).query)
        given = next((int(n) for n in query.get("max_connections", ()) if n.isdigit()), None)
    if isinstance(given, int) and given < MIN_CONNECTIONS:
        yield message(
            "W012",
            f"The cache {alias!r} has a pool of {given} connections: releases, renewals, and new "
            "acquires wait for each other.",
            f"Set max_connections to {MIN_CONNECTIONS} or more. A process needs 2 connections more "
            "than it has threads.",
        )


def _location(cache: Mapping[str, Any]) -> str:
    location = cache.get("LOCATION", "")
    return str(location[0] if isinstance(location, (list, tuple)) and location else location)


def _check_async_client() -> Iterator[CheckMessage]:
    path, problem = conf.current().async_client, ""
    try:
        if path is not None and not callable(import_string(path)):
            problem = "it is not callable"
    except ImportError as error:
        problem = str(error)
    if problem:
        yield message(
            "E016",
            f"REDIS_SYNC['ASYNC_CLIENT'] is {path!r}: {problem}.",
            "Give the path of a function that makes a redis.asyncio client for a cache alias.",
        )


# Entries


def _check_entries(
    setting: str, names: Iterable[Any], check: Callable[[Any], None]
) -> Iterator[CheckMessage]:
    for name in names:
        if problem := mistake(check, name):
            where = f"REDIS_SYNC[{setting!r}][{name!r}]"
            text = problem if where in problem else f"{where}: {problem}"
            yield message("E005", f"{text.removesuffix('.')}.", hint_for(problem))


def mistake(check: Callable[[Any], None], name: Any) -> str:
    """Call `check(name)`. Return the message of the error if the setting is wrong, else ""."""
    try:
        check(name)
    except (ImproperlyConfigured, TypeError, ValueError, ImportError) as error:
        return str(error)
    return ""


def hint_for(error: str) -> str:
    """Return a hint for `error`, the message about a wrong entry. If the value of an option is
    wrong, the hint is the purpose of the option. If the limit is missing, the hint asks for a
    limit. Otherwise the hint lists all options."""
    named = [row for row in ENTRY.values() if re.search(rf"\b{row.name} must\b", error)]
    if named:
        return f"{named[0].name}: {named[0].why}"
    if "limit" in error and "missing" in error:
        return "Give a limit, the max requests that run at the same time, such as {'limit': 3}."
    return f"Options of an entry: {', '.join(sorted(ENTRY))}."


def check_endpoint(pattern: str) -> None:
    """Raise an error if the entry `pattern` of ENDPOINTS is not a valid policy."""
    endpoints().policy(pattern)


def policy_of(pattern: str | None) -> Policy | None:
    """Return the policy of the entry `pattern` of ENDPOINTS. Return None if `pattern` is None, or
    if the entry is not a valid policy."""
    if pattern is None or mistake(check_endpoint, pattern):
        return None
    return endpoints().policy(pattern)


def check_semaphore(name: Any) -> None:
    """Raise an error if the entry of `name` in SEMAPHORES is wrong. Unlike an entry of ENDPOINTS,
    this entry may omit the limit, and its blocking_timeout may be infinite."""
    check_text("a name", name)
    for option, value in conf.current().named(name).items():
        if option != "blocking_timeout" or value != math.inf:
            checked(option, value)
