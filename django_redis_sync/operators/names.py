"""List the known names: those that are in use, are in the settings, or have an operator's override.
The commands KEYS and SCAN are never used, and no command reads more than CHUNK entries."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from .. import conf, values
from ..engine.drivers import command
from ..engine.indexes import holders_key, waiters_key
from ..engine.names import FAMILY, family_key, names_key, policy_key, quorums_key
from ..engine.overrides import reading, refresh
from ..engine.quorum import Quorum, quorum_of
from ..engine.server import server_of
from ..engine.wire import pairs_of
from ..protocol.keys import Keys, display, keys_of, overrides_key, quote, split, unquote
from ..protocol.steps import Failure
from .facts import Configured
from .families import Pair, can_be, families, families_of, registries_of, registry_of
from .reads import failed, read, read_each, where

#: Max entries of the registry that a command reads.
CHUNK = 1000
#: Max names that are read from the index of holders, and from that of waiters.
MAX_INDEXED = 1000
#: Max names of locks on a quorum that are read: those used last.
_MAX_QUORUMS = 1000


def keys_for(name: str, key: str | None, alias: str) -> Keys:
    """Return the Redis keys of a name, or of the key `key` of a policy."""
    config = conf.current()
    return keys_of(config.prefix(alias), name, key, config.keep(key))


# The registry


def names_in_use(*, using: str | None = None, pattern: str | None = None) -> list[Pair]:
    """Return the names used within the last day, most recent first. Then come the other names that
    are held or waited for, or that an operator paused or resized.

    `pattern`: a glob (`*`, `?`, `[seq]`). It must match the whole name or, for a key of a policy,
    the whole text `policy@key`. Raise Unavailable if Redis can't be reached.

    There may be hundreds of thousands of names. To read only a part of them, use `Recent`.
    """
    alias, prefix = where(using)
    found: dict[str, None] = {}
    for quoted in _walk(alias, names_key(prefix)):
        if quoted.endswith("@"):
            keys = _walk(alias, policy_key(prefix, split(quoted)[0]))
            found |= dict.fromkeys(quoted + key for key in keys)
        elif quoted.endswith(FAMILY):
            found |= dict.fromkeys(_walk(alias, family_key(prefix, unquote(quoted[:-1]))))
        else:
            found[quoted] = None
    others = *held_since(using=using), *waiting_since(using=using), *with_override(using=using)
    pairs = dict.fromkeys([*_valid(found), *others])
    return [pair for pair in pairs if pattern is None or fnmatchcase(display(*pair), pattern)]


def split_registry(names: Sequence[str], *, using: str | None = None) -> tuple[set[str], set[str]]:
    """Return two sets with those of `names` that are in the registry: the names used without a key,
    and the names used with keys, which are policies. A name can be in both sets."""
    alias, prefix = where(using)
    members = [*map(quote, names), *(f"{quote(name)}@" for name in names)]
    scores = read(alias, "ZMSCORE", names_key(prefix), *members) if members else []
    listed = [
        {n for n, score in zip(names, part, strict=True) if score is not None}
        for part in (scores[: len(names)], scores[len(names) :])
    ]
    return listed[0], listed[1]


def held_since(*, using: str | None = None) -> dict[Pair, int]:
    """Return the names with the oldest holders, the oldest first. The value of a name is the time
    of its oldest grant, in server ms. At most MAX_INDEXED names are read, from the index of holders
    (see `engine/indexes.py`). The index may contain names that are no longer held."""
    return _indexed(holders_key, using)


def waiting_since(*, using: str | None = None) -> dict[Pair, int]:
    """Return the names with the longest waits, the longest first. The value of a name is the time
    at which its first waiter asked, in server ms. At most MAX_INDEXED names are read, from the
    index of waiters. A name enters it within 4 s, and may stay in it for a while after."""
    return _indexed(waiters_key, using)


def _indexed(key: Callable[[str], str], using: str | None) -> dict[Pair, int]:
    alias, prefix = where(using)
    reply = read(alias, "ZRANGE", key(prefix), 0, MAX_INDEXED - 1, "WITHSCORES")
    since = {quoted: int(score) for quoted, score in pairs_of(reply)}
    return {split(quoted): since[quoted] for quoted in since if can_be(*split(quoted))}


def queued(pairs: Sequence[Pair], *, using: str | None = None) -> list[int]:
    """Return the number of waiters of each name, in one round trip. Some wait in the queue. The
    others are parked behind the first of their share, or because their share is full."""
    alias, prefix = where(using)
    keys = [keys_of(prefix, *pair) for pair in pairs]
    counts = read_each(alias, [("ZCARD", key) for one in keys for key in (one.queue, one.parked)])
    return [int(a) + int(b) for a, b in zip(counts[::2], counts[1::2], strict=True)]


class Recent:
    """All known plain names, policies, and families, or all known keys of `policy`. `policy` can
    also be a family, whose keys are its names. `recent[start:stop]` reads a part of them.

    First come the entries that are configured, paused, resized, held, or waited for, but not in the
    registry. Then come the entries of the registry, most recent first.
    """

    def __init__(self, policy: str | None = None, *, using: str | None = None) -> None:
        self._policy, self._using = policy, using
        known = [*with_override(using=using), *held_since(using=using)]
        known += waiting_since(using=using)
        if policy is None:
            others = sorted({name for name, _ in known} | configured().keys())
            length = count_names(using=using)
        elif policy in families(using=using):
            others, length = [], count_keys([policy], using=using)[policy]
        else:
            others = sorted({key for name, key in known if name == policy and key})
            length = count_keys([policy], using=using)[policy]
        listed = listed_of(policy, others, using=using)
        self.others = [one for one in others if one not in listed]
        self._length = len(self.others) + length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice) -> list[str]:
        start, stop, _ = part.indices(self._length)
        before = len(self.others)
        found, rank, limit = self.others[part], max(0, start - before), stop - max(start, before)
        if limit > 0 and self._policy is None:
            found += newest(limit, rank, using=self._using)
        elif limit > 0 and self._policy is not None:
            found += newest_keys({self._policy: limit}, rank, using=self._using)[self._policy]
        return list(dict.fromkeys(found))

    def every(self) -> list[str]:
        """Return all entries. This reads the whole registry, in chunks."""
        alias, prefix = where(self._using)
        if self._policy is None:
            walked = dict.fromkeys(map(_entry, _walk(alias, names_key(prefix))))
        else:
            walked = dict.fromkeys(_walk(alias, registry_of(self._policy, self._using)))
        return list(dict.fromkeys([*self.others, *map(unquote, walked)]))

    def inside(self, others: Collection[str] = ()) -> Iterator[str]:
        """Yield the names of all families except `others`. This reads their registries, in
        chunks."""
        alias, prefix = where(self._using)
        for family in families(using=self._using) if self._policy is None else ():
            if family not in others:
                yield from map(unquote, _walk(alias, family_key(prefix, family)))


def newest(limit: int, start: int = 0, *, using: str | None = None) -> list[str]:
    """Return up to `limit` plain names, policies, and families of the registry, most recent first.
    `start`: how many of the most recent ones to skip."""
    alias, prefix = where(using)
    found = command(alias, "ZREVRANGE", names_key(prefix), start, start + limit - 1)
    return [name for name, _ in _valid(dict.fromkeys(map(_entry, found)))]


def with_override(*, using: str | None = None) -> list[Pair]:
    """Return all names that an operator paused, resized, or exempted."""
    entries = overrides(where(using)[0])
    return list(_valid(dict.fromkeys(entry.partition(":")[2] for entry in entries)))


def overrides(alias: str) -> dict[str, str]:
    """Return all overrides on the server of `alias`, as the fields and values of a hash: see
    `overrides_key`. Also load these overrides into this process. Raise Unavailable if Redis can't
    be reached."""
    registry = overrides_key(conf.current().prefix(alias))
    try:
        answer = refresh(server_of(alias), registry)
    except Failure as failure:
        raise failed(failure, reading(registry)) from failure.cause
    return dict(zip(answer.reply[::2], answer.reply[1::2], strict=True))


def count_names(*, using: str | None = None) -> int:
    """Return the number of plain names, policies, and families in the registry."""
    alias, prefix = where(using)
    return int(read(alias, "ZCARD", names_key(prefix)))


def newest_keys(
    wanted: Mapping[str, int], start: int = 0, *, using: str | None = None
) -> dict[str, list[str]]:
    """Return recent keys of each policy, or names of each family, most recent first. `wanted`: for
    each policy, the max number of keys. `start`: how many of the most recent keys to skip."""
    alias, places = where(using)[0], registries_of(list(wanted), using)
    commands = [
        ("ZREVRANGE", places[name], start, start + limit - 1) for name, limit in wanted.items()
    ]
    replies = zip(wanted, read_each(alias, commands), strict=True)
    return {
        name: [one for one in map(unquote, reply) if can_be("x", one)] for name, reply in replies
    }


def count_keys(names: Sequence[str], *, using: str | None = None) -> dict[str, int]:
    """Return the number of known keys of each policy, and of known names of each family. It is 0
    for any other name."""
    alias, places = where(using)[0], registries_of(names, using)
    replies = read_each(alias, [("ZCARD", places[name]) for name in names])
    return dict(zip(names, map(int, replies), strict=True))


def is_listed(pairs: Sequence[Pair], *, using: str | None = None) -> list[bool]:
    """Return a bool for each pair: True if the name or key was used within the last day."""
    alias, prefix = where(using)
    members: dict[str, dict[Pair, str]] = {}
    for name, key in pairs:
        registry = names_key(prefix) if key is None else policy_key(prefix, name)
        members.setdefault(registry, {})[name, key] = quote(name if key is None else key)
    commands = [("ZMSCORE", registry, *some.values()) for registry, some in members.items()]
    scores = dict[Pair, Any]()
    for some, reply in zip(members.values(), read_each(alias, commands), strict=True):
        scores |= zip(some, reply, strict=True)
    others = [name for name, key in scores if key is None and scores[name, key] is None]
    made = families_of(others, using=using)
    return [scores[one] is not None or (one[1] is None and one[0] in made) for one in pairs]


def listed_of(policy: str | None, some: Sequence[str], *, using: str | None = None) -> set[str]:
    """Return which of these names, or of these keys of `policy`, were used within the last day. A
    family is listed if one of its names is."""
    if policy is None:
        listed = set[str]().union(*split_registry(some, using=using))
        listed |= {*families(using=using)} & {*some}
        return listed | families_of([one for one in some if one not in listed], using=using).keys()
    if policy in families(using=using):
        made = families_of(some, using=using)
        return {one for one in some if made.get(one) == policy}
    here = is_listed([(policy, key) for key in some], using=using)
    return {key for key, is_here in zip(some, here, strict=True) if is_here}


def is_known(name: str, key: str | None = None, *, using: str | None = None) -> bool:
    """Without `key`, return True if the name is configured, or if the name, one of its keys, or one
    of the names of this family was used within the last day, is held or waited for, or has an
    override. With `key`, return True if this applies to the key."""
    if is_listed([(name, key)], using=using)[0]:
        return True
    others = {*held_since(using=using), *waiting_since(using=using), *with_override(using=using)}
    if key is not None:
        return (name, key) in others
    known = {*configured(), *(one for one, _ in others)}
    return name in known or count_keys([name], using=using)[name] > 0


def with_keys(name: str, *, using: str | None = None) -> list[Pair]:
    """Return the plain name and all of its known keys, most recent first. For a family, return its
    names."""
    keys = [key for key in Recent(name, using=using).every() if can_be(name, key)]
    if name in families(using=using):
        return [(key, None) for key in keys]
    return [(name, None), *((name, key) for key in keys)]


# Locks on a quorum. A process that holds such a lock records the lock's name and the aliases of the
# quorum. It writes this record into the cache of REDIS_SYNC and into each server of the quorum. So
# a list of the names on any of these aliases can show the lock once, as one lock on several
# servers.


def quorums(using: str | None = None) -> dict[str, Quorum]:
    """Return the names that were lately held on a quorum, with the quorum of each name. If `using`
    is a quorum, return {}. Raise Unavailable if the cache can't be read."""
    alias, found = using or conf.current().cache, dict[str, Quorum]()
    if isinstance(alias, Quorum):
        return {}
    key = quorums_key(conf.current().prefix(alias))
    for entry in read(alias, "ZREVRANGE", key, 0, _MAX_QUORUMS - 1):
        try:
            quoted, aliases = json.loads(entry)
            if set(aliases) <= set(settings.CACHES):
                found.setdefault(unquote(quoted), quorum_of(aliases))
        except (ValueError, TypeError, AttributeError, ImproperlyConfigured):
            continue  # another program or project wrote this entry
    return found


def alias_of(name: str, using: str | None = None) -> str:
    """Return the alias on which to read or change `name`. It is a quorum if `name` was lately held
    on a quorum."""
    return quorums(using).get(name) or using or conf.current().cache


# The settings


def configured() -> dict[str, Configured]:
    """Return the names in the settings, and what the settings say about them. Entries that can't be
    a name are ignored; the system checks report them."""
    found: dict[str, Configured] = {}
    for name, entry in conf.current().entries():
        before = found.get(name, Configured())
        options = entry if isinstance(entry, Mapping) else {}
        limit, rate = _limit(options.get("limit")), _rate(options.get("rate"))
        found[name] = Configured(limit or before.limit, rate or before.rate)
    return {name: one for name, one in found.items() if can_be(name, None)}


def _limit(limit: Any) -> int | None:
    return limit if isinstance(limit, int) and not isinstance(limit, bool) else None


def _rate(rate: Any) -> str:
    try:
        return values.rate_in_ms(values.rate("rate", rate))
    except (TypeError, ValueError):
        return ""


# Parts


def _entry(quoted: str) -> str:
    """Return the quoted name, policy, or family of an entry in the registry."""
    return quoted.partition("@")[0].partition(FAMILY)[0]


def _walk(alias: str, registry: str) -> Iterator[str]:
    """Yield all members of a registry, most recent first. A member that is used during the walk may
    occur twice."""
    newest = command(alias, "ZREVRANGE", registry, 0, 0, "WITHSCORES")
    start, chunk = 0, [""] * CHUNK
    while len(chunk) == CHUNK:
        chunk = command(alias, "ZREVRANGE", registry, start, start + CHUNK - 1)
        start += CHUNK
        yield from chunk
    if start > CHUNK:
        # A name used during the walk moves to the front of the registry. So read the front again.
        since = int(pairs_of(newest)[0][1])
        words = ("+inf", since, "BYSCORE", "REV", "LIMIT", 0, CHUNK)
        yield from command(alias, "ZRANGE", registry, *words)


def _valid(quoted: Iterable[str]) -> Iterator[Pair]:
    """Yield a pair (name, key) for each entry in `quoted`. The entries are from a registry. Skip
    entries that can't be names: other programs wrote them."""
    return (pair for pair in map(split, quoted) if can_be(*pair))
