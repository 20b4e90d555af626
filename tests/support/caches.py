"""Caches with other prefixes than the cache of the test run."""

from __future__ import annotations

from typing import Any

#: The cache of the fixture `second`.
OTHER: dict[str, Any] = {"using": "other"}


def under_prefixes(settings: Any, **prefixes: str) -> None:
    """Replace CACHES by one cache for each alias, with the given key prefix."""
    like = settings.CACHES["default"]
    settings.REDIS_SYNC = {}
    settings.CACHES = {alias: {**like, "KEY_PREFIX": prefix} for alias, prefix in prefixes.items()}
