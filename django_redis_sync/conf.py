"""The REDIS_SYNC setting, parsed once and again whenever it changes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from .defaults import DEFAULTS, REQUESTS

SETTING = "REDIS_SYNC"
#: Minutes of history that a keyed child keeps at the most.
MOST_FOR_CHILDREN = 60


_KINDS: dict[str, Any] = {
    "ENABLED": bool,
    "CACHE": str,
    "KEY_PREFIX": (str, type(None)),
    "SEMAPHORES": Mapping,
    "ENDPOINTS": Mapping,
    "STATS": bool,
    "STATS_HOURS": (int, float),
    "ASYNC_CLIENT": (str, type(None)),
}


@dataclass(frozen=True, slots=True)
class Config:
    """The setting with its defaults filled in; the keys are DEFAULTS' in lower case."""

    enabled: bool
    cache: str
    key_prefix: str | None
    timeout: float
    blocking_timeout: float | None
    max_hold: float | None
    requests: Mapping[str, Any]
    semaphores: Mapping[str, Mapping[str, Any]]
    endpoints: Mapping[str, str | Mapping[str, Any]]
    stats: bool
    stats_hours: float
    async_client: str | None

    def keep(self, key: str | None = None) -> int:
        """Minutes of history of a name; fewer for a child, of which there may be very many."""
        minutes = int(self.stats_hours * 60) if self.stats else 0
        return minutes if key is None else min(minutes, MOST_FOR_CHILDREN)

    def prefix(self, alias: str) -> str:
        """What all keys in this cache start with."""
        if self.key_prefix is not None:
            return self.key_prefix
        own = settings.CACHES.get(alias, {}).get("KEY_PREFIX")
        return f"{own}:sync" if own else "sync"


def positive(what: str, value: object, *, infinite: bool = False) -> float:
    """`value` as seconds above 0 and below 1e9 (or inf). TypeError or ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what} must be a number of seconds, not {type(value).__name__}")
    if infinite and value == math.inf:
        return math.inf
    if not 0 < value < 1e9:
        raise ValueError(f"{what} must be above 0 and below 1e9 seconds, not {value!r}")
    return float(value)


def not_negative(what: str, value: object) -> float:
    """`value` as seconds of waiting: 0 tries once, inf waits as long as it takes."""
    return (
        0.0 if value == 0 and not isinstance(value, bool) else positive(what, value, infinite=True)
    )


def whole(what: str, value: object, most: int) -> int:
    """`value` as an int from 1 to `most`. TypeError or ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}")
    if not 1 <= value <= most:
        raise ValueError(f"{what} must be from 1 to {most}, not {value}")
    return value


def unknown(given: Mapping[str, Any], known: Mapping[str, Any]) -> list[str]:
    return sorted(str(key) for key in given if key not in known)


@cache
def current() -> Config:
    """The configuration in force. ImproperlyConfigured for unknown keys and impossible values."""
    given = getattr(settings, SETTING, {})
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(f"{SETTING} must be a dict.")
    values = {**DEFAULTS, **given}
    requests = values["REQUESTS"]
    if not isinstance(requests, Mapping):
        raise ImproperlyConfigured(f"{SETTING}['REQUESTS'] must be a dict.")
    wrong = unknown(given, DEFAULTS) + unknown(requests, REQUESTS)
    if wrong:
        raise ImproperlyConfigured(f"{SETTING} has unknown keys: {', '.join(wrong)}.")
    values["REQUESTS"] = {**REQUESTS, **requests}
    for key, kind in _KINDS.items():
        if not isinstance(values[key], kind):
            raise ImproperlyConfigured(f"{SETTING}[{key!r}] can't be {values[key]!r}.")
    try:
        values["TIMEOUT"] = positive("TIMEOUT", values["TIMEOUT"], infinite=True)
        for key in ("BLOCKING_TIMEOUT", "MAX_HOLD"):
            if values[key] is not None:
                values[key] = not_negative(key, values[key])
    except (TypeError, ValueError) as error:
        raise ImproperlyConfigured(f"{SETTING}: {error}.") from error
    return Config(**{key.lower(): value for key, value in values.items()})


def _forget(*, setting: str, **_: Any) -> None:
    if setting in (SETTING, "CACHES"):
        current.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_redis_sync.conf")
