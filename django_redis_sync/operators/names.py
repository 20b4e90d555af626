"""Which names there are: in use, marked by an operator, or known from the setting; and the policies
that group them. KEYS and SCAN are never used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from .. import conf
from ..engine.commands import command
from ..engine.names import marked_key, names_key
from ..protocol.keys import check_text, split
from .status import Status
from .words import display


@dataclass(frozen=True, slots=True)
class Group:
    """A policy: its plain name (None when that was never used) and its keyed children.

    A name without children is a group of one. The sums are over all of them; `limit` is each
    one's own, so that `in_use` may lie above it when there are children.
    """

    name: str
    own: Status | None
    children: tuple[Status, ...]

    @property
    def all(self) -> tuple[Status, ...]:
        return self.children if self.own is None else (self.own, *self.children)

    @property
    def limit(self) -> int | None:
        limits = [s.limit for s in self.all if s.limit is not None]
        return max(limits, default=None)

    @property
    def in_use(self) -> int:
        return sum(s.in_use for s in self.all)

    @property
    def holding(self) -> int:
        return sum(s.holding for s in self.all)

    @property
    def waiting(self) -> int:
        return sum(s.waiting for s in self.all)

    @property
    def paused(self) -> bool:
        """Whether all of it is paused: its plain name is, which speaks for the children."""
        return self.own.paused if self.own is not None else all(s.paused for s in self.children)


def names_in_use(
    *, using: str | None = None, pattern: str | None = None
) -> list[tuple[str, str | None]]:
    """Names in use within the last day, most recent first, and all that an operator marked.

    `pattern`: a glob (`*`, `?`, `[seq]`) that must match the whole name, `exports@42` for a child.
    Unavailable when Redis can't be reached.
    """
    config = conf.current()
    alias = using or config.cache
    prefix = config.prefix(alias)
    recent = command(alias, "ZREVRANGE", names_key(prefix), 0, -1)
    marked = command(alias, "ZRANGE", marked_key(prefix), 0, -1)
    found = [split(quoted) for quoted in dict.fromkeys([*recent, *marked]) if _is_ours(quoted)]
    if pattern is None:
        return found
    return [(name, key) for name, key in found if fnmatchcase(display(name, key), pattern)]


def configured() -> set[str]:
    """The names that the setting knows; what can't be one is left to the checks."""
    config = conf.current()
    found: list[object] = [*config.semaphores]
    for endpoint, entry in config.endpoints.items():
        # A policy of an endpoint's own is named as its "name" says, or as the endpoint is.
        own = entry.get("name") or endpoint if isinstance(entry, Mapping) else entry
        found.append(own)
    return {name for name in found if isinstance(name, str) and _can_be(name, None)}


def known_names(*, using: str | None = None) -> list[tuple[str, str | None]]:
    """As names_in_use, and then those of the setting that nobody used yet."""
    found = names_in_use(using=using)
    used = {name for name, _key in found}
    return found + [(name, None) for name in sorted(configured() - used)]


def family(name: str, *, using: str | None = None) -> list[tuple[str, str | None]]:
    """The plain name, and its keyed children that are known, most recent first."""
    children = [
        (own, key) for own, key in names_in_use(using=using) if own == name and key is not None
    ]
    return [(name, None), *children]


def grouped(found: Iterable[Status]) -> list[Group]:
    """Keyed children under their policy, in the order in which the policies first come."""
    own: dict[str, Status | None] = {}
    children: dict[str, list[Status]] = {}
    for one in found:
        own.setdefault(one.name, None)
        if one.key is None:
            own[one.name] = one
        else:
            children.setdefault(one.name, []).append(one)
    return [Group(name, plain, tuple(children.get(name, ()))) for name, plain in own.items()]


def _is_ours(quoted: str) -> bool:
    """Whether an entry of the registry can be a name: one that can't must not hide the others."""
    return _can_be(*split(quoted))


def _can_be(name: str, key: str | None) -> bool:
    try:
        check_text("a name", name)
        return key is None or bool(check_text("a key", key))
    except ValueError:
        return False
