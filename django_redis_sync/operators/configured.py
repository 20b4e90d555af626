"""The names in the settings, for the list of names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import conf
from ..protocol.keys import check_text


def configured() -> dict[str, int | None]:
    """The names that the settings know, and their limits; None where that is none or a function.
    An entry that can't be a name is left to the checks."""
    config = conf.current()
    found = {name: _limit(entry) for name, entry in config.semaphores.items()}
    for endpoint, entry in config.endpoints.items():
        # A policy of an endpoint's own is named as its "name" says, or as the endpoint is.
        name = entry.get("name") or endpoint if isinstance(entry, Mapping) else entry
        if isinstance(name, str):
            found[name] = _limit(entry) or found.get(name)
    return {name: limit for name, limit in found.items() if _can_be(name)}


def _limit(entry: Any) -> int | None:
    limit = entry.get("limit") if isinstance(entry, Mapping) else None
    return limit if isinstance(limit, int) and not isinstance(limit, bool) else None


def _can_be(name: object) -> bool:
    try:
        return bool(check_text("a name", name))
    except (TypeError, ValueError):
        return False
