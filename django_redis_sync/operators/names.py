"""List the known names: those in use, with an operator's override, or in the settings. KEYS and
SCAN are never used, and no command reads more than CHUNK entries.

Reading commands of lists are sent here too, with a cache for pages that refresh themselves every
two seconds. Such a page reads holders and waiters each time. Counters, numbers of keys, and
indexes, which change slowly or are some seconds old anyway, are cached for half a minute.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from typing import Any, overload

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from .. import conf
from ..engine.drivers import command, error_of, pipelined
from ..engine.names import holders_key, names_key, policy_key, quorums_key
from ..engine.overrides import reading, take
from ..engine.pools import retry_if_disconnected
from ..engine.quorum import Quorum, quorum_of
from ..engine.server import server_of
from ..engine.wire import clock
from ..protocol.keys import check_text, display, marks_key, quote, split, unquote
from ..protocol.steps import Failure

#: Max entries of the registry that a command reads.
CHUNK = 1000
#: Max names that are read from the index of holders.
MAX_HELD = 1000
#: Max names on a quorum that are read: the last used ones.
_MAX_QUORUMS = 1000

#: A name, and a key or None.
Pair = tuple[str, str | None]

#: Seconds for which a reply is cached, and max cached replies.
_LIFE, _MAX_REPLIES = 30.0, 5000

Replies = dict[tuple[Any, ...], tuple[float, Any]]
_replies: Replies = {}
_memory: ContextVar[Replies | None] = ContextVar("_memory", default=None)

# Reads


@contextmanager
def remembered(*, live: bool = False) -> Iterator[None]:
    """Cache the replies of reading commands within the block. With `live`, also use replies that
    this process has cached within the last _LIFE seconds."""
    token = _memory.set(_replies if live else {})
    try:
        yield
    finally:
        _memory.reset(token)


def read_each(alias: str, several: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return the replies of several reading commands, in one round trip. Raise Unavailable if Redis
    can't be reached."""
    memory = _memory.get()
    if memory is None:
        return _sent(alias, several)
    now = clock()
    known = {words: memory.get((alias, *words), (-_LIFE, None)) for words in several}
    missing = [words for words, (at, _) in known.items() if now - at >= _LIFE]
    if missing:
        if len(memory) + len(missing) > _MAX_REPLIES:
            memory.clear()
        for words, reply in zip(missing, _sent(alias, missing), strict=True):
            place = (alias, *words)
            known[words] = memory[place] = now, reply
    return [known[words][1] for words in several]


def _sent(alias: str, several: Sequence[tuple[Any, ...]]) -> list[Any]:
    if len(several) == 1 and several[0][0] == "TIME":  # without a key, it can't be in a pipeline
        return [command(alias, "TIME")]
    return pipelined(alias, several) if several else []


def order_of(place: tuple[Any, ...], make: Callable[[], list[str]]) -> list[str]:
    """Return the list that `make` returns. It is cached as replies are, by `place`."""
    memory = _memory.get()
    if memory is None:
        return make()
    at, found = memory.get(place, (-_LIFE, []))
    if clock() - at >= _LIFE:
        found = make()
        memory[place] = clock(), found
    return list(found)


def read(alias: str, *words: Any) -> Any:
    """Return the reply of a reading command. Raise Unavailable if Redis can't be reached."""
    return read_each(alias, [words])[0]


# The registry


def names_in_use(*, using: str | None = None, pattern: str | None = None) -> list[Pair]:
    """Return the names used within the last day, most recent first, and then all others that an
    operator paused or resized.

    `pattern`: a glob (`*`, `?`, `[seq]`) that must match the whole name; for a key of a policy, it
    is `policy@key`. There may be hundreds of thousands of names, so lists use `Recent` instead.
    Raise Unavailable if Redis can't be reached.
    """
    alias, prefix = _where(using)
    found: dict[str, None] = {}
    for quoted in _walk(alias, names_key(prefix)):
        if quoted.endswith("@"):
            keys = _walk(alias, policy_key(prefix, split(quoted)[0]))
            found |= dict.fromkeys(quoted + key for key in keys)
        else:
            found[quoted] = None
    found |= dict.fromkeys(_marked(alias))
    pairs = [split(quoted) for quoted in found if _is_ours(quoted)]
    if pattern is None:
        return pairs
    return [(name, key) for name, key in pairs if fnmatchcase(display(name, key), pattern)]


def split_registry(names: Sequence[str], *, using: str | None = None) -> tuple[set[str], set[str]]:
    """Return the names that the registry has as plain names, and those that it has as policies."""
    alias, prefix = _where(using)
    if not names:
        return set(), set()
    members = [quote(name) + at for at in ("", "@") for name in names]
    scores = read(alias, "ZMSCORE", names_key(prefix), *members)
    here = [score is not None for score in scores]
    plain = {name for name, has in zip(names, here, strict=False) if has}
    return plain, {name for name, has in zip(names, here[len(names) :], strict=True) if has}


def held_since(*, using: str | None = None) -> dict[Pair, int]:
    """Return the names with the oldest holders, and the times of their grants in server ms, the
    oldest first. At most MAX_HELD are read from the index of holders (see `engine/names.py`), which
    may also contain names that are no longer held."""
    alias, prefix = _where(using)
    reply = read(alias, "ZRANGE", holders_key(prefix), 0, MAX_HELD - 1, "WITHSCORES")
    return {split(quoted): int(score) for quoted, score in pairs_of(reply) if _is_ours(quoted)}


class Recent(Sequence[str]):
    """The known plain names and policies, or the known keys of `policy`, as a sequence that is read
    in parts. First come those that are not in the registry (configured, paused, resized, or held),
    then those of the registry, most recent first."""

    def __init__(self, policy: str | None = None, *, using: str | None = None) -> None:
        self._policy, self._using = policy, using
        known = [*marked(using=using), *held_since(using=using)]
        if policy is None:
            others = sorted({name for name, _ in known} | configured().keys())
            plain, policies = split_registry(others, using=using)
            listed = [name in plain or name in policies for name in others]
            length = count_names(using=using)
        else:
            others = sorted({key for name, key in known if name == policy and key})
            listed = is_listed([(policy, key) for key in others], using=using)
            length = count_keys([policy], using=using)[policy]
        self.others = [one for one, here in zip(others, listed, strict=True) if not here]
        self._length = len(self.others) + length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, int):
            return self[at : at + 1][0]
        start, stop, _ = at.indices(self._length)
        before = len(self.others)
        limit = stop - max(start, before)
        more = self._newest(limit, max(0, start - before)) if limit > 0 else []
        return list(dict.fromkeys([*self.others[start:stop], *more]))

    def _newest(self, limit: int, start: int) -> list[str]:
        if self._policy is None:
            return newest(limit, start, using=self._using)
        return newest_keys({self._policy: limit}, start, using=self._using)[self._policy]

    def every(self) -> list[str]:
        """Return all entries. This reads the whole registry, in chunks."""
        alias, prefix = _where(self._using)
        if self._policy is None:
            walked = dict.fromkeys(q.partition("@")[0] for q in _walk(alias, names_key(prefix)))
        else:
            walked = dict.fromkeys(_walk(alias, policy_key(prefix, self._policy)))
        return list(dict.fromkeys([*self.others, *map(unquote, walked)]))


def newest(limit: int, start: int = 0, *, using: str | None = None) -> list[str]:
    """Return up to `limit` plain names and policies of the registry from a rank on, most recent
    first."""
    alias, prefix = _where(using)
    found = command(alias, "ZREVRANGE", names_key(prefix), start, start + limit - 1)
    names = (split(one)[0] for one in dict.fromkeys(one.partition("@")[0] for one in found))
    return [name for name in names if _can_be(name, None)]


def marked(*, using: str | None = None) -> list[Pair]:
    """Return all names that an operator paused or resized."""
    return [split(quoted) for quoted in _marked(_where(using)[0]) if _is_ours(quoted)]


def overrides(alias: str) -> dict[str, str]:
    """Return all overrides, with fields as in `marks_key`. Raise Unavailable if Redis can't be
    reached."""
    registry, server = marks_key(conf.current().prefix(alias)), server_of(alias)
    step = reading(registry)
    try:
        answer = retry_if_disconnected(lambda: server.run(step))
    except Failure as failure:
        raise error_of(failure, step) from failure.cause
    take(registry, answer)
    return dict(zip(answer.reply[::2], answer.reply[1::2], strict=True))


def count_names(*, using: str | None = None) -> int:
    """Return the number of plain names and policies in the registry."""
    alias, prefix = _where(using)
    return int(read(alias, "ZCARD", names_key(prefix)))


def newest_keys(
    wanted: Mapping[str, int], start: int = 0, *, using: str | None = None
) -> dict[str, list[str]]:
    """Return some keys of each policy from the rank `start` on, most recent first, in a round trip.
    `wanted`: the number of keys by policy."""
    alias, prefix = _where(using)
    commands = [
        ("ZREVRANGE", policy_key(prefix, name), start, start + limit - 1)
        for name, limit in wanted.items()
    ]
    replies = read_each(alias, commands)
    return {name: _keys_of(reply) for name, reply in zip(wanted, replies, strict=True)}


def count_keys(names: Sequence[str], *, using: str | None = None) -> dict[str, int]:
    """Return the number of known keys of each name, in a round trip: 0 if it is not a policy."""
    alias, prefix = _where(using)
    commands = [("ZCARD", policy_key(prefix, name)) for name in names]
    replies = read_each(alias, commands)
    return dict(zip(names, map(int, replies), strict=True))


def is_listed(pairs: Sequence[Pair], *, using: str | None = None) -> list[bool]:
    """Return for each pair True if it was used within the last day, in a round trip."""
    alias, prefix = _where(using)
    members: dict[str, dict[Pair, str]] = {}
    for name, key in pairs:
        registry = names_key(prefix) if key is None else policy_key(prefix, name)
        members.setdefault(registry, {})[name, key] = quote(name if key is None else key)
    commands = [("ZMSCORE", registry, *some.values()) for registry, some in members.items()]
    replies = read_each(alias, commands)
    found = {
        pair
        for some, scores in zip(members.values(), replies, strict=True)
        for pair, score in zip(some, scores, strict=True)
        if score is not None
    }
    return [pair in found for pair in pairs]


def is_known(name: str, key: str | None = None, *, using: str | None = None) -> bool:
    """Return True if the name or one of its keys was used within the last day, or if it has an
    override or is configured."""
    alias, _prefix = _where(using)
    own = quote(name) if key is None else f"{quote(name)}@{quote(key)}"
    if is_listed([(name, key)], using=using)[0] or own in _marked(alias):
        return True
    return key is None and (name in configured() or count_keys([name], using=using)[name] > 0)


def family(name: str, *, using: str | None = None) -> list[Pair]:
    """Return the plain name and all of its known keys, most recent first."""
    keys = (key for key in Recent(name, using=using).every() if _can_be(name, key))
    return [(name, None), *((name, key) for key in keys)]


# Locks on a quorum. Holders list their names, with the aliases of the servers, in the default cache
# and on each server. So the lock is shown as one lock for each of these aliases.


def quorums(using: str | None = None) -> dict[str, Quorum]:
    """Return the quorum of each name that was lately held on one. Raise Unavailable if the cache
    can't be read."""
    config = conf.current()
    alias = using or config.cache
    if isinstance(alias, Quorum):
        return {}
    found: dict[str, Quorum] = {}
    key = quorums_key(config.prefix(alias))
    for entry in read(alias, "ZREVRANGE", key, 0, _MAX_QUORUMS - 1):
        try:
            quoted, aliases = json.loads(entry)
            if set(aliases) <= set(settings.CACHES):
                found.setdefault(unquote(quoted), quorum_of(aliases))
        except (ValueError, TypeError, AttributeError, ImproperlyConfigured):
            continue  # a foreign value, or aliases of another project
    return found


def alias_of(name: str, using: str | None = None) -> str:
    """Return the alias on which to read or change `name`: a quorum if it was lately held there."""
    return quorums(using).get(name) or using or conf.current().cache


# The settings


def configured() -> dict[str, int | None]:
    """Return the names in the settings, and their limits. A limit is None if it is missing or a
    function. Entries that can't be a name are ignored; the system checks report them."""
    config = conf.current()
    found = {name: _limit(entry) for name, entry in config.semaphores.items()}
    for endpoint, entry in config.endpoints.items():
        # The name of a policy in ENDPOINTS is its "name", else the pattern of the endpoint.
        name = entry.get("name") or endpoint if isinstance(entry, Mapping) else entry
        if isinstance(name, str):
            found[name] = _limit(entry) or found.get(name)
    return {name: limit for name, limit in found.items() if _can_be(name, None)}


def _limit(entry: Any) -> int | None:
    limit = entry.get("limit") if isinstance(entry, Mapping) else None
    return limit if isinstance(limit, int) and not isinstance(limit, bool) else None


# Parts


def _where(using: str | None) -> tuple[str, str]:
    config = conf.current()
    alias = using or config.cache
    return alias, config.prefix(alias)


def _walk(alias: str, registry: str) -> Iterator[str]:
    """Yield all members of a registry, most recent first. A member that is used meanwhile may occur
    twice."""
    newest = command(alias, "ZREVRANGE", registry, 0, 0, "WITHSCORES")
    start, chunk = 0, [""] * CHUNK
    while len(chunk) == CHUNK:
        chunk = command(alias, "ZREVRANGE", registry, start, start + CHUNK - 1)
        start += CHUNK
        yield from chunk
    if start > CHUNK:
        # Names that were used meanwhile have moved to ranks that were read before.
        since = int(pairs_of(newest)[0][1])
        words = ("+inf", since, "BYSCORE", "REV", "LIMIT", 0, CHUNK)
        yield from command(alias, "ZRANGE", registry, *words)


def pairs_of(reply: Sequence[Any]) -> list[tuple[str, float]]:
    """Return the pairs of a reply WITHSCORES, which is flat in RESP2 and has pairs in RESP3."""
    if reply and isinstance(reply[0], (list, tuple)):
        return [(member, float(score)) for member, score in reply]
    return [(member, float(score)) for member, score in zip(reply[::2], reply[1::2], strict=True)]


def _marked(alias: str) -> list[str]:
    """Return the quoted names that have an override of their own, or an exemption."""
    return list(dict.fromkeys(entry.partition(":")[2] for entry in overrides(alias)))


def _keys_of(quoted: Iterable[str]) -> list[str]:
    found = (split(f"@{one}")[1] for one in quoted)
    return [key for key in found if key is not None and _can_be("x", key)]


def _is_ours(quoted: str) -> bool:
    """Return True if an entry of the registry can be a name. Foreign entries are ignored."""
    return _can_be(*split(quoted))


def _can_be(name: str, key: str | None) -> bool:
    try:
        check_text("a name", name)
        return key is None or bool(check_text("a key", key))
    except (TypeError, ValueError):
        return False
