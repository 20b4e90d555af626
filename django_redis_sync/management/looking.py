"""The view of `locks status`: a list of names, or a single name with its keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..operators.export import as_json
from ..operators.history import histories_of
from ..operators.listing import Past, Selection
from ..operators.names import Group, Recent, counted
from ..operators.status import Unread, readable, status_of
from . import naming

#: Keys of a policy to sum up, the most recently used, where nothing keeps the sums.
MOST_SUMMED = 200


@dataclass(frozen=True, slots=True)
class Seen:
    """The names read. `found`: how many names, or keys of the policy, there are; `compared`: see
    operators.listing; `past`: the events of those that were read, in the last hour; `ordered`:
    an order was asked for."""

    groups: Sequence[Group]
    past: Past
    unread: Sequence[Unread]
    found: int
    compared: int | None = None
    ordered: bool = False

    def as_json(self) -> dict[str, Any]:
        return as_json(self.groups, self.past, self.unread, self.found, self.compared)


def at(name: str | None, key: str | None, order: str, top: int, using: str | None) -> Seen:
    """The list, or a single name. Unavailable when Redis can't be reached."""
    if name is None:
        return _list(order, top, using)
    pairs = naming.find(name, key, using, most=MOST_SUMMED)
    if len(pairs) > 1:
        return _policy(name, order, top, using)
    found, unread = readable(pairs, using=using)
    groups = [Group(one.name, one, ()) for one in found]
    past = {(h.name, h.key): h for h in histories_of(found, using=using)}
    return Seen(groups, past, unread, len(found))


def _list(order: str, top: int, using: str | None) -> Seen:
    selection = Selection(order, using=using)
    groups, unread = selection.read(0, top)
    return Seen(groups, selection.past, unread, selection.found, selection.compared)


def _policy(name: str, order: str, top: int, using: str | None) -> Seen:
    """A policy: its own marks, and the keys that are asked for or were used last."""
    own = status_of(name, using=using)
    many = len(Recent(name, using=using)) > MOST_SUMMED
    selection = Selection(order or ("use" if many else "recent"), policy=name, using=using)
    groups, unread = selection.read(0, top if order else MOST_SUMMED)
    children = tuple(one.children[0] for one in groups)
    if not order:
        children = tuple(sorted(children, key=lambda s: (-s.waiting, -s.in_use)))
    sums = counted([name], using=using) if selection.found > len(children) else {}
    group = Group(name, own if own.used else None, children, selection.found, sums.get(name))
    if group.own is not None:
        selection.past |= {(name, None): histories_of([own], using=using)[0]}
    compared = selection.compared
    return Seen([group], selection.past, unread, selection.found, compared, bool(order))
