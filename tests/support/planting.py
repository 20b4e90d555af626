"""Scripts with a defect."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from django_redis_sync.protocol import scripts
from django_redis_sync.protocol.scripts import read, with_functions, with_numbers


def planted(verb: str, change: Callable[[str], str], constants: Mapping[str, int]) -> str:
    """Compose a script like `scripts.compose`, but apply `change` before names become numbers."""
    text = change(with_functions(read(verb)))
    return with_numbers(verb, text, {**scripts.PATTERNS, **constants})


def all_planted(lua: Mapping[str, str], constants: Mapping[str, int]) -> dict[str, str]:
    """Return the text of each script, with each key of `lua` replaced by its value.

    Raise LookupError if no script contains a key, because the defect then needs a new anchor."""
    lost = set(lua)

    def change(text: str) -> str:
        for anchor, other in lua.items():
            if anchor in text:
                lost.discard(anchor)
            text = text.replace(anchor, other)
        return text

    texts = {verb: planted(verb, change, constants) for verb in scripts.NAME_SCRIPTS}
    if lost:
        raise LookupError(f"no script contains {sorted(lost)}")
    return texts
