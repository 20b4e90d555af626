"""What an operator means by a name, what is known of it, and what may be shown of an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from django.conf import settings
from django.utils.translation import gettext as _
from redis.exceptions import OutOfMemoryError, ResponseError

from .. import conf
from ..engine.wire import RIGHTS, turned_away
from ..exceptions import Unavailable
from ..limits import identity
from ..operators.facts import Status, Unread
from ..operators.formats import as_json, without_secrets
from ..operators.history import Counters, histories, histories_of
from ..operators.listing import Group, Past, Selection
from ..operators.names import Pair, Recent, family, is_known, is_listed, newest_keys
from ..operators.statistics import counted
from ..operators.status import readable, status_of
from ..protocol.keys import check_text, display
from .terminal import printable

#: Names that are looked at for ones that are written alike, the most recently used first.
_MAX_COMPARED = 1000


def find(name: str, key: str | None, using: str | None, max_keys: int | None = None) -> list[Pair]:
    """Return a name with its known keys: the last used ones, if there are more than `max_keys`.

    Return the key alone if `key` is given, or if `name` is written as a table shows a key and is
    not a name itself.
    """
    if key is not None:
        return [(name, _key(name, key, using))]
    policy, at, child = name.partition("@")
    if (
        at
        and policy
        and child
        and is_listed([(name, None), (policy, child)], using=using)
        == [
            False,
            True,
        ]
    ):
        return [(policy, child)]
    check_text("a name", name)
    if max_keys is None:
        return family(name, using=using)
    keys = newest_keys({name: max_keys}, using=using)[name]
    return [(name, None), *((name, one) for one in keys)]


def _key(name: str, key: str, using: str | None) -> str:
    """The form in keys of a key that an operator typed: an address is digested, say."""
    possible = [one for one in identity.possible_keys(key) if _fits(one)]
    here = is_listed([(name, one) for one in possible], using=using)
    known = [one for one, listed in zip(possible, here, strict=True) if listed]
    return [*known, *possible, key][0]


def _fits(key: str) -> bool:
    try:
        return bool(check_text("a key", key))
    except ValueError:
        return False


def unheard_of(found: Sequence[Status], using: str | None) -> str | None:
    """A text when nothing is known of any of these, as of a name with a typo; None otherwise.

    Known: a name that is held, waited for, marked, used within the last day, counted, or named in
    the settings.
    """
    if any(one.used for one in found):
        return None
    asked = [(one.name, one.key) for one in found]
    if is_known(*asked[0], using=using):
        return None
    if any(one.ever != Counters() for one in histories(asked, minutes=1, using=using)):
        return None
    said = _("Nothing is known of %s: nobody used it within the last day.")
    shown = found[0].display
    alike = get_close_matches(shown, _others(shown, using))
    hint = " " + _("Did you mean %s?") % printable(", ".join(alike)) if alike else ""
    return said % printable(shown) + hint


def _others(shown: str, using: str | None) -> list[str]:
    """Names that may be meant, and keys of those policies."""
    names = Recent(using=using)[:_MAX_COMPARED]
    policies = get_close_matches(shown.partition("@")[0], names)
    keys = newest_keys(dict.fromkeys(policies, _MAX_COMPARED), using=using)
    return [*names, *(display(name, key) for name in policies for key in keys[name])]


def unavailable(error: Unavailable, using: str | None) -> str:
    """Return a line for people: the failure and the remedy."""
    what = " ".join(without_secrets(str(error)).split()).rstrip(".")
    cause = error.__cause__
    if isinstance(cause, OutOfMemoryError) or "OOM" in what:
        return _("%s. The server's memory is full: raise maxmemory, see locks doctor.") % what
    why = turned_away(error)
    if why and why != RIGHTS:
        return (
            _(
                "%s. The server denies access: see user, password, TLS and database number in "
                "LOCATION and OPTIONS of the cache."
            )
            % what
        )
    if isinstance(cause, ResponseError):  # it runs, and denied the command
        return _("%s. See locks doctor.") % what
    location = settings.CACHES[using or conf.current().cache].get("LOCATION", "")
    if "rediss://" in str(location):
        return (
            _(
                "%s. Is the server running, and does it speak TLS there? Without TLS, LOCATION in "
                "CACHES starts with redis://."
            )
            % what
        )
    return _("%s. Is the server running, and is LOCATION in CACHES its address?") % what


#: Keys of a policy to sum up, the most recently used, where nothing keeps the sums.
MAX_SUMMED = 200


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
    indexed: bool = False

    def as_json(self) -> dict[str, Any]:
        return as_json(self.groups, self.past, self.unread, self.found, self.compared)


def seen(name: str | None, key: str | None, order: str, top: int, using: str | None) -> Seen:
    """The list, or a single name. Unavailable when Redis can't be reached."""
    if name is None:
        return _list(order, top, using)
    pairs = find(name, key, using, max_keys=MAX_SUMMED)
    if len(pairs) > 1:
        return _policy(name, order, top, using)
    found, unread = readable(pairs, using=using)
    groups = [Group(one.name, one, ()) for one in found]
    past = {(h.name, h.key): h for h in histories_of(found, using=using)}
    return Seen(groups, past, unread, len(found))


def _list(order: str, top: int, using: str | None) -> Seen:
    selection = Selection(order, using=using)
    groups, unread = selection.read(0, top)
    past, found, compared = selection.past, selection.found, selection.compared
    return Seen(groups, past, unread, found, compared, indexed=selection.indexed)


def _policy(name: str, order: str, top: int, using: str | None) -> Seen:
    """A policy: its own marks, and the keys that are asked for or were used last."""
    own = status_of(name, using=using)
    many = len(Recent(name, using=using)) > MAX_SUMMED
    selection = Selection(order or ("use" if many else "recent"), policy=name, using=using)
    groups, unread = selection.read(0, top if order else MAX_SUMMED)
    children = tuple(one.children[0] for one in groups)
    if not order:
        children = tuple(sorted(children, key=lambda s: (-s.waiting, -s.in_use)))
    statistics = counted([name], using=using) if selection.found > len(children) else {}
    group = Group(name, own if own.used else None, children, selection.found, statistics.get(name))
    if group.own is not None:
        selection.past |= {(name, None): histories_of([own], using=using)[0]}
    compared = selection.compared
    return Seen(
        [group], selection.past, unread, selection.found, compared, bool(order), selection.indexed
    )
