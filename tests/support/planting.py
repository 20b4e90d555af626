"""The text of a verb with a defect in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from django_redis_sync.protocol import scripts
from django_redis_sync.protocol.sources import read, with_functions, with_numbers


def planted(verb: str, change: Callable[[str], str], constants: Mapping[str, int]) -> str:
    """As scripts.compose, of what `change` makes of the verb while its names are in it."""
    text = change(with_functions(read(verb)))
    return with_numbers(verb, text, {**scripts.PATTERNS, **constants})
