"""Which names an operator means, and the part of an error that may be shown."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from django.utils.translation import gettext as _
from redis.exceptions import OutOfMemoryError, ResponseError

from ..exceptions import Unavailable
from ..limits import identity
from ..operators.history import Counters, histories
from ..operators.names import Pair, Recent, family, is_known, is_listed, newest_keys
from ..operators.status import Status
from ..operators.words import display, without_secrets
from ..protocol.keys import check_text
from .terminal import printable

#: Names that are looked at for ones that are written alike, the most recently used first.
_MOST_COMPARED = 1000


def find(name: str, key: str | None, using: str | None, most: int | None = None) -> list[Pair]:
    """A name with its known keyed children, the most recently used ones if there are more than
    `most`; only the child when there is a key, or when `name` reads as a child does in a table and
    is nothing else."""
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
    if most is None:
        return family(name, using=using)
    keys = newest_keys({name: most}, using=using)[name]
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
    names = Recent(using=using)[:_MOST_COMPARED]
    policies = get_close_matches(shown.partition("@")[0], names)
    keys = newest_keys(dict.fromkeys(policies, _MOST_COMPARED), using=using)
    return [*names, *(display(name, key) for name in policies for key in keys[name])]


def unavailable(error: Unavailable) -> str:
    """A line for people: the failure and the remedy."""
    what = " ".join(without_secrets(str(error)).split()).rstrip(".")
    cause = error.__cause__
    if isinstance(cause, OutOfMemoryError) or "OOM" in what:
        return _("%s. The server's memory is full: raise maxmemory, see locks doctor.") % what
    if isinstance(cause, ResponseError):  # it runs, and said no
        return _("%s. See locks doctor.") % what
    return _("%s. Is the server running, and is LOCATION in CACHES its address?") % what
