"""The text of verbs with a defect in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from django_redis_sync.protocol import scripts
from django_redis_sync.protocol.scripts import read, with_functions, with_numbers


def planted(verb: str, change: Callable[[str], str], constants: Mapping[str, int]) -> str:
    """As scripts.compose, of what `change` makes of the verb while its names are in it."""
    text = change(with_functions(read(verb)))
    return with_numbers(verb, text, {**scripts.PATTERNS, **constants})


def all_planted(lua: Mapping[str, str], constants: Mapping[str, int]) -> dict[str, str]:
    """The text of each verb with `lua` replaced: anchor -> what stands there instead. LookupError
    for an anchor that no verb has: such a defect can't be planted any more."""
    lost = set(lua)

    def change(text: str) -> str:
        for anchor, other in lua.items():
            if anchor in text:
                lost.discard(anchor)
            text = text.replace(anchor, other)
        return text

    texts = {verb: planted(verb, change, constants) for verb in scripts.NAME_SCRIPTS}
    if lost:
        raise LookupError(f"no verb holds {sorted(lost)}")
    return texts
