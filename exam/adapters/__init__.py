"""The locks under examination. locks.ini lists them, and the modules of this folder use them."""

from __future__ import annotations

import configparser
import importlib
from collections import defaultdict
from functools import cache
from pathlib import Path

from ..adapter import LEASE, Adapter, Claims

_table = configparser.ConfigParser(interpolation=None)
_table.read(Path(__file__).with_name("locks.ini"), encoding="utf-8")
ADAPTERS = _table.sections()
#: The parts of the table, and the names of their locks.
GROUPS: dict[str, list[str]] = defaultdict(list)
for _key in ADAPTERS:
    GROUPS[_table[_key]["group"]].append(_key)


@cache
def load(key: str) -> type[Adapter]:
    """Return the adapter of a lock in locks.ini, with the attributes from its section."""
    words: dict[str, object] = {name: text.replace("\n", " ") for name, text in _table[key].items()}
    module, name = _table[key]["adapter"].split(":")
    adapter: type[Adapter] = getattr(importlib.import_module(f".{module}", __name__), name)
    names = words.keys() & vars(Claims()).keys() - {"limit"}
    words |= {"quotes": {name: words[name] for name in names}, "limit": int(words.get("limit", 1))}
    words["cannot"] = dict(
        line.split(": ") for line in _table[key].get("cannot", "").strip().splitlines()
    )
    if names and adapter.claims == Claims():
        words["claims"] = Claims(**{name: LEASE if name == "lease" else True for name in names})
    return type(name, (adapter,), words)
