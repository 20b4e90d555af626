"""Which names there are: in use, marked by an operator, or known from the setting; and the policies
that group them. KEYS and SCAN are never used, and no command reads more than CHUNK entries.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import overload

from .. import conf
from ..engine.commands import command, pipelined
from ..engine.names import names_key, policy_key
from ..protocol.keys import check_text, marks_key, quote, split, unquote
from .configured import configured
from .history import Counters
from .status import Status, Unread, readable
from .sums import Sums, sums_of
from .words import display

#: Entries of the registry that a command reads.
CHUNK = 1000

Pair = tuple[str, str | None]

_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class Group:
    """A policy: its plain name (None when that was never used) and its keyed children.

    A name without children is its own group. The sums are over all of them (those that were read
    have at least their present use, above the processes' sums of some seconds ago); `limit` is per
    child, so that `in_use` may lie above it when there are children. `keys`: how many children are
    known, of which `children` may be the most recently used only; `sums`: the processes' own sums
    over all children, where these are kept.
    """

    name: str
    own: Status | None
    children: tuple[Status, ...]
    keys: int = 0
    sums: Sums | None = None

    @classmethod
    def alone(cls, status: Status) -> Group:
        """A name, or a single child of a policy, as a group of its own."""
        return cls(status.display, status, ())

    @property
    def all(self) -> tuple[Status, ...]:
        return self.children if self.own is None else (self.own, *self.children)

    @property
    def whole(self) -> bool:
        """Whether the sums are of all children: else they are no more than that at least."""
        return self.sums is not None or self.keys <= len(self.children)

    @property
    def limit(self) -> int | None:
        limits = [s.limit for s in self.all if s.limit is not None]
        return max(limits, default=None)

    @property
    def in_use(self) -> int:
        return max(self.sums.in_use if self.sums else 0, sum(s.in_use for s in self.all))

    @property
    def holding(self) -> int:
        return sum(s.holding for s in self.all)

    @property
    def waiting(self) -> int:
        return max(self.sums.waiting if self.sums else 0, sum(s.waiting for s in self.all))

    @property
    def paused(self) -> bool:
        """Whether all of it is paused: its plain name is, which speaks for the children."""
        return self.own.paused if self.own is not None else all(s.paused for s in self.children)


def natural(text: str) -> tuple[list[str | int], str]:
    """A key that sorts numbers in a text by their value: `job 2` before `job 10`."""
    parts: list[str | int] = list(_DIGITS.split(text.casefold()))
    parts[1::2] = [int(digits) for digits in parts[1::2]]
    return parts, text


# The registry


def names_in_use(*, using: str | None = None, pattern: str | None = None) -> list[Pair]:
    """Names in use within the last day, most recent first, and all that an operator marked.

    `pattern`: a glob (`*`, `?`, `[seq]`) that must match the whole name, `exports@42` for a child.
    All there are, up to hundreds of thousands: the lists on screen read `Recent`. Unavailable when
    Redis can't be reached.
    """
    alias, prefix = _where(using)
    found: dict[str, None] = {}
    for quoted in _walk(alias, names_key(prefix)):
        if quoted.endswith("@"):
            keys = _walk(alias, policy_key(prefix, split(quoted)[0]))
            found |= dict.fromkeys(quoted + key for key in keys)
        else:
            found[quoted] = None
    found |= dict.fromkeys(_marked(alias, prefix))
    pairs = [split(quoted) for quoted in found if _is_ours(quoted)]
    if pattern is None:
        return pairs
    return [(name, key) for name, key in pairs if fnmatchcase(display(name, key), pattern)]


class Recent(Sequence[str]):
    """The plain names and policies that are known, or the keys of a `policy`, read as far as
    the caller iterates: those that only an operator's mark or the settings keep known, then the
    registry's, most recent first."""

    def __init__(self, policy: str | None = None, *, using: str | None = None) -> None:
        self._policy, self._using = policy, using
        if policy is None:
            others = sorted({name for name, _ in marked(using=using)} | configured().keys())
            listed = is_listed([(name, None) for name in others], using=using)
            counts = count_keys(others, using=using)
            length = count_names(using=using)
        else:
            others = [key for name, key in marked(using=using) if name == policy and key]
            listed = is_listed([(policy, key) for key in others], using=using)
            counts = {}
            length = count_keys([policy], using=using)[policy]
        self.others = [
            one
            for one, here in zip(others, listed, strict=True)
            if not (here or counts.get(one, 0))
        ]
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
        most = stop - max(start, before)
        more = self._newest(most, max(0, start - before)) if most > 0 else []
        return list(dict.fromkeys([*self.others[start:stop], *more]))

    def _newest(self, most: int, start: int) -> list[str]:
        if self._policy is None:
            return newest(most, start, using=self._using)
        return newest_keys({self._policy: most}, start, using=self._using)[self._policy]

    def every(self) -> list[str]:
        """All of them: that reads the whole registry, in chunks."""
        alias, prefix = _where(self._using)
        if self._policy is None:
            walked = dict.fromkeys(q.partition("@")[0] for q in _walk(alias, names_key(prefix)))
        else:
            walked = dict.fromkeys(_walk(alias, policy_key(prefix, self._policy)))
        return list(dict.fromkeys([*self.others, *map(unquote, walked)]))


def newest(most: int, start: int = 0, *, using: str | None = None) -> list[str]:
    """So many plain names and policies of the registry from a rank on, most recent first."""
    alias, prefix = _where(using)
    found = command(alias, "ZREVRANGE", names_key(prefix), start, start + most - 1)
    names = (split(one)[0] for one in dict.fromkeys(one.partition("@")[0] for one in found))
    return [name for name in names if _can_be(name, None)]


def marked(*, using: str | None = None) -> list[Pair]:
    """All that an operator paused or resized."""
    return [split(quoted) for quoted in _marked(*_where(using)) if _is_ours(quoted)]


def marked_keys(name: str, mark: str, *, using: str | None = None) -> list[str]:
    """The keys of a policy that were marked by themselves, or taken out of its mark; `mark`: p
    (paused) or l (resized)."""
    found = _marked(*_where(using))
    pairs = [split(quoted) for quoted, marks in found.items() if marks & {mark, f"x{mark}"}]
    return sorted(key for policy, key in pairs if policy == name and key is not None)


def marked_key(prefix: str) -> str:
    """Where version 0.1 lists the marked names: a sorted set of names, as between braces."""
    return f"{quote(prefix)}:marked"


def count_names(*, using: str | None = None) -> int:
    """How many plain names and policies the registry has."""
    alias, prefix = _where(using)
    return int(command(alias, "ZCARD", names_key(prefix)))


def newest_keys(
    wanted: Mapping[str, int], start: int = 0, *, using: str | None = None
) -> dict[str, list[str]]:
    """Of each policy, so many of its keys from a rank on, most recent first: in a round trip."""
    alias, prefix = _where(using)
    commands = [
        ("ZREVRANGE", policy_key(prefix, name), start, start + most - 1)
        for name, most in wanted.items()
    ]
    replies = pipelined(alias, commands) if commands else []
    return {name: _keys_of(reply) for name, reply in zip(wanted, replies, strict=True)}


def count_keys(names: Sequence[str], *, using: str | None = None) -> dict[str, int]:
    """How many keys of each are known, in a round trip; 0 for a name that is no policy."""
    alias, prefix = _where(using)
    commands = [("ZCARD", policy_key(prefix, name)) for name in names]
    replies = pipelined(alias, commands) if commands else []
    return dict(zip(names, map(int, replies), strict=True))


def is_listed(pairs: Sequence[Pair], *, using: str | None = None) -> list[bool]:
    """Whether each was used within the last day, in a round trip."""
    alias, prefix = _where(using)
    commands = [
        ("ZSCORE", names_key(prefix), quote(name))
        if key is None
        else ("ZSCORE", policy_key(prefix, name), quote(key))
        for name, key in pairs
    ]
    return [score is not None for score in (pipelined(alias, commands) if commands else [])]


def is_known(name: str, key: str | None = None, *, using: str | None = None) -> bool:
    """Whether it was used within the last day, has keys that were, is marked or configured."""
    alias, prefix = _where(using)
    own = quote(name) if key is None else f"{quote(name)}@{quote(key)}"
    if is_listed([(name, key)], using=using)[0] or own in _marked(alias, prefix):
        return True
    return key is None and (name in configured() or count_keys([name], using=using)[name] > 0)


def family(name: str, *, using: str | None = None) -> list[Pair]:
    """The plain name, and all of its keyed children that are known, most recent first."""
    keys = (key for key in Recent(name, using=using).every() if _can_be(name, key))
    return [(name, None), *((name, key) for key in keys)]


# Statuses of several


def groups_of(
    names: Sequence[str], most: int, *, using: str | None = None
) -> tuple[list[Group], list[Unread]]:
    """A group for each name, with no more than `most` children read in all of them together: each
    policy's newest ones, as many of each."""
    counts = count_keys(names, using=using)
    policies = [name for name in names if counts[name]]
    share = max(1, most // max(1, len(policies)))
    keys = newest_keys(dict.fromkeys(policies, share), using=using)
    pairs = [(name, key) for name in names for key in (None, *keys.get(name, ()))]
    found, unread = readable(pairs, using=using)
    by_name: dict[str, list[Status]] = {name: [] for name in names}
    for one in found:
        # Of a policy the name itself counts when it was used or marked.
        if one.key is not None or one.used or not counts[one.name]:
            by_name[one.name].append(one)
    sums = counted([name for name in policies if counts[name] > share], using=using)
    groups = [_group(name, some, counts[name]) for name, some in by_name.items() if some]
    return [replace(group, sums=sums.get(group.name)) for group in groups], unread


def counted(policies: Sequence[str], *, using: str | None = None) -> dict[str, Sums]:
    """The sums of those of which any are kept: not by processes of version 0.1."""
    found = sums_of(policies, using=using) if policies else []
    return {one.name: one for one in found if one.processes or one.history.ever != Counters()}


def grouped(found: Iterable[Status]) -> list[Group]:
    """Keyed children under their policy, in the order in which the policies first come."""
    by_name: dict[str, list[Status]] = {}
    for one in found:
        by_name.setdefault(one.name, []).append(one)
    return [_group(name, some, 0) for name, some in by_name.items()]


def _group(name: str, some: Sequence[Status], keys: int) -> Group:
    own = next((one for one in some if one.key is None), None)
    children = tuple(one for one in some if one.key is not None)
    return Group(name, own, children, max(keys, len(children)))


# Parts


def _where(using: str | None) -> tuple[str, str]:
    config = conf.current()
    alias = using or config.cache
    return alias, config.prefix(alias)


def _walk(alias: str, registry: str) -> Iterator[str]:
    """All members of a registry, most recent first; a moving member may come twice."""
    newest = command(alias, "ZREVRANGE", registry, 0, 0, "WITHSCORES")
    start, chunk = 0, [""] * CHUNK
    while len(chunk) == CHUNK:
        chunk = command(alias, "ZREVRANGE", registry, start, start + CHUNK - 1)
        start += CHUNK
        yield from chunk
    if start > CHUNK:
        # A name used since has moved to ranks that were read before it came there.
        since = _score(newest)
        words = ("+inf", since, "BYSCORE", "REV", "LIMIT", 0, CHUNK)
        yield from command(alias, "ZRANGE", registry, *words)


def _score(reply: Sequence[object]) -> str:
    """Of each member WITHSCORES, flat in RESP2 and a pair in RESP3."""
    last = reply[-1]
    return str(last[-1] if isinstance(last, (list, tuple)) else last)


def _marked(alias: str, prefix: str) -> dict[str, set[str]]:
    """Names that an operator marked, as between braces: "p" where paused, "l" where resized; "xp",
    "xl" where that is not so although it is for all others of the policy."""
    old, marks = pipelined(
        alias, [("ZRANGE", marked_key(prefix), 0, -1), ("HGETALL", marks_key(prefix))]
    )
    found = {quoted: {"p", "l"} for quoted in old}
    for entry in marks:
        mark, _, quoted = entry.partition(":")
        found.setdefault(quoted, set()).add(mark)
    return found


def _keys_of(quoted: Iterable[str]) -> list[str]:
    found = (split(f"@{one}")[1] for one in quoted)
    return [key for key in found if key is not None and _can_be("x", key)]


def _is_ours(quoted: str) -> bool:
    """Whether an entry of the registry can be a name: a foreign entry must not hide the others."""
    return _can_be(*split(quoted))


def _can_be(name: str, key: str | None) -> bool:
    try:
        check_text("a name", name)
        return key is None or bool(check_text("a key", key))
    except ValueError:
        return False
