"""Write docs/settings.md from `django_redis_sync/defaults.py`."""

from __future__ import annotations

import collections.abc
import re
import sys
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from django_redis_sync.defaults import ENTRY, NAMED, REQUESTS, SEMAPHORE, SETTINGS, Row

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "settings.md"

_PAGE = """# Settings

The setting `REDIS_SYNC` is a dict. A key that is missing has its default. Values are read at each
acquire, so `override_settings` works at once. An unknown key is an error.

`python -m devtools.settings_page` makes this page from `django_redis_sync/defaults.py`.

## `REDIS_SYNC`

{settings}

## Options of requests

These are keys of an entry of `ENDPOINTS` or `SEMAPHORES`, arguments of `@semaphore_required(...)`,
and attributes `semaphore_...` of the mixin. If several places give an option, the first of these
wins: the decorator or mixin, `ENDPOINTS`, `SEMAPHORES`, `REQUESTS`. The column *REQUESTS* says
whether `REDIS_SYNC["REQUESTS"]` may give the default for all requests.

{requests}

## Options of semaphores in code

These are arguments of `Semaphore`, `Lock`, `RLock`, `ReadWriteLock`, and `@synchronized`. The
column *SEMAPHORES* says whether `REDIS_SYNC["SEMAPHORES"][name]` may give the default.

{code}
"""
_SIMPLE = {bool: "bool", int: "int", float: "number", str: "str", type(None): "None"}


def page() -> str:
    """Return the text of docs/settings.md."""
    requests = {"limit": ENTRY["limit"], **ENTRY, **REQUESTS}
    return _PAGE.format(
        settings=_table(("key",), ((f"`{row.name.upper()}`", row) for row in SETTINGS.values())),
        requests=_table(
            ("option", "REQUESTS"),
            ((f"`{row.name}`", _place(row, REQUESTS, ENTRY), row) for row in requests.values()),
        ),
        code=_table(
            ("option", "SEMAPHORES"),
            ((f"`{row.name}`", _place(row, NAMED, SEMAPHORE), row) for row in SEMAPHORE.values()),
        ),
    )


def _place(row: Row, here: Mapping[str, Row], elsewhere: Mapping[str, Row]) -> str:
    if row.name not in elsewhere:
        return "only there"
    return "yes" if row.name in here else "no"


def _table(head: tuple[str, ...], lines: Iterable[tuple[Any, ...]]) -> str:
    head = (*head, "type", "default", "what it is for")
    rows = [head, ("---",) * len(head)]
    rows += [(*first, _kind(row), _default(row), _cell(row.why)) for *first, row in lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _default(row: Row) -> str:
    if row.name == "limit":
        return "must be given"
    return f"`{dict(row.default) if isinstance(row.default, Mapping) else row.default!r}`"


def _kind(row: Row) -> str:
    return _cell(", ".join(dict.fromkeys(_words(row.kind))))


def _words(kind: Any) -> list[str]:
    if get_origin(kind) in (Union, types.UnionType):
        return [word for part in get_args(kind) for word in _words(part)]
    if get_origin(kind) is Literal:
        return [f'`"{word}"`' for word in get_args(kind)]
    if kind in _SIMPLE:
        return [_SIMPLE[kind]]
    origin = get_origin(kind)
    return [
        "callable"
        if origin is collections.abc.Callable
        else "dict"
        if origin is collections.abc.Mapping
        else "list"
    ]


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", r"\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE.relative_to(ROOT)} written\n")
