"""Caches with prefixes of their own, beside that of the test run."""

from __future__ import annotations

from typing import Any

#: The cache of the fixture `second`.
OTHER: dict[str, Any] = {"using": "other"}


def under_prefixes(settings: Any, **prefixes: str) -> None:
    """The caches of these names and no others, each under its prefix."""
    like = settings.CACHES["default"]
    settings.REDIS_SYNC = {}
    settings.CACHES = {alias: {**like, "KEY_PREFIX": prefix} for alias, prefix in prefixes.items()}
