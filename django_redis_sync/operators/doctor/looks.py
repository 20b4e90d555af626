"""The names that the doctor looks at: all of them if it has the time, or else some. A look at all
names is recorded, so that a quick look later can say when all names were seen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ...engine.drivers import command
from ...engine.wire import batches, clock, whole
from ...protocol.keys import quote
from ..facts import Status, Unread, datetime_of
from ..families import Pair, families, pair_of
from ..names import Recent, count_keys, names_in_use, newest_keys, split_registry
from ..reads import read, server_time, where
from ..status import MAX_ROWS, readable

#: Max names of a quick look: those used last, and as many keys and names of families.
QUICK = 30
#: Max policies and families of which a quick look reads keys or names.
_MAX_KEYED = 20
#: Max names that are read in a round trip.
_BATCH = 500
#: Max names with a problem that a record lists. A quick look examines them again.
_MAX_ODD = 30
#: Age of a look at all names from which on the doctor no longer relies on it.
_VALID = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Look:
    """What the doctor has seen. `seen`, `every`: the numbers of names that were looked at, and of
    all names. `earlier`: when all names were last looked at, if this was within the last day."""

    found: Sequence[Status]
    unread: Sequence[Unread]
    seen: int
    every: int
    earlier: datetime | None = None


def look_at(alias: str, first: Sequence[Pair], seconds: float) -> Look:
    """Look at the names `first`, and at others: for up to `seconds`, or at a few with 0."""
    if seconds:
        return _whole_look(alias, first, seconds)
    pairs, every = _newest(alias)
    at, odd = _recorded(alias)
    found, unread = _read([*pairs, *first, *odd], alias)
    seen = len(found) + len(unread)
    return Look(found, unread, seen, max(seen, every), at)


def _whole_look(alias: str, first: Sequence[Pair], seconds: float) -> Look:
    found, unread = _read(first, alias)
    known, until, seen = {*first}, clock() + seconds, len({*first})
    others = [pair for pair in names_in_use(using=alias) if pair not in known]
    every = seen + len(others)
    for batch in batches(others, _BATCH):
        if clock() > until:
            return Look(found, unread, seen, every)
        some, bad = _read(batch, alias, rows=1)  # the limits of a name are not in its rows
        found += [status for status in some if status.conflicting_limit]
        unread += bad
        seen += len(batch)
    if every <= QUICK:  # a quick look sees all names, too
        return Look(found, unread, seen, every)
    odd = [(one.name, one.key) for one in [*found, *unread] if (one.name, one.key) not in known]
    at, key = int(server_time(alias) * 1000), _record_key(alias)
    command(alias, "HSET", key, "at", at, "odd", json.dumps(odd[:_MAX_ODD]))
    command(alias, "PEXPIRE", key, int(_VALID.total_seconds() * 1000))
    return Look(found, unread, seen, every)


def _record_key(alias: str) -> str:
    """Return the Redis key of a hash with the last look at all names: its time in server ms, and
    the names with a problem as JSON."""
    return f"{quote(where(alias)[1])}:looked"


def _recorded(alias: str) -> tuple[datetime | None, list[Pair]]:
    at, odd = read(alias, "HMGET", _record_key(alias), "at", "odd")
    try:
        names = [(str(name), key and str(key)) for name, key in json.loads(odd or "[]")]
    except (ValueError, TypeError):  # another program wrote this value
        names = []
    return (datetime_of(whole(at)) if at else None), names


def _read(
    pairs: Sequence[Pair], alias: str, rows: int = MAX_ROWS
) -> tuple[list[Status], list[Unread]]:
    return readable(dict.fromkeys(pairs), using=alias, rows=rows) if pairs else ([], [])


def _newest(alias: str) -> tuple[list[Pair], int]:
    """Return the names used last, with some of the keys of policies and names of families, and the
    number of all names."""
    recent, made = Recent(using=alias), {*families(using=alias)}
    names = recent[:QUICK]
    plain, policies = split_registry(names, using=alias)
    groups = count_keys([n for n in names if n in policies or n not in plain], using=alias)
    keyed = [name for name in names if groups.get(name)][:_MAX_KEYED]
    keys = newest_keys(dict.fromkeys(keyed, QUICK // max(1, len(keyed))), using=alias)
    single = [name for name in names if name in plain or not groups.get(name)]
    pairs: list[Pair] = [(name, None) for name in single]
    pairs += [pair_of(name, key, name in made) for name in keys for key in keys[name]]
    return pairs, len(recent) - (len(names) - len(single)) + sum(groups.values())
