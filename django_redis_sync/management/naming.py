"""Which names an operator means, and what of an error may be shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

from django.utils.translation import gettext as _

from ..exceptions import Unavailable
from ..limits import identity
from ..operators.history import Counters, histories
from ..operators.names import known_names, names_in_use
from ..operators.status import Status
from ..operators.words import display
from ..protocol.keys import check_text
from .terminal import printable

Name = tuple[str, str | None]

#: Names that are looked at for ones that are written alike, the most recently used first.
_MOST_COMPARED = 10_000
_PASSWORD = re.compile(r"(\w+://)[^/\s]*@")


def find(name: str, key: str | None, using: str | None) -> list[Name]:
    """A name with its known keyed children; one child when there is a key, or when `name` reads as
    a child does in a table and is nothing else."""
    if key is not None:
        return [(name, _key(name, key, using))]
    known = names_in_use(using=using)
    policy, at, child = name.partition("@")
    if at and (name, None) not in known and (policy, child) in known:
        return [(policy, child)]
    check_text("a name", name)
    return [(name, None), *((n, k) for n, k in known if n == name and k is not None)]


def _key(name: str, key: str, using: str | None) -> str:
    """What stands in the keys for what an operator typed: an address is digested, say."""
    possible = keys_for(key)
    known = {k for n, k in names_in_use(using=using) if n == name}
    return next((one for one in possible if one in known), possible[0])


def keys_for(text: str) -> list[str]:
    """What request policies make of a pk, an address or a free-form value; likeliest first."""
    plain = identity.of_user(text)
    network = identity.network(text)
    address = identity.digest("ip", network)
    is_address = network != text or re.fullmatch(r"[0-9.]+\.[0-9.]+|[0-9a-fA-F]*:.*", text)
    others = [text, plain] if plain != text else [plain]
    return [*([address] if is_address else []), *others, identity.of_value(text), address]


def unheard_of(found: Sequence[Status], using: str | None) -> str | None:
    """What to say when of all these nothing is known, as of a name with a typo; None otherwise.

    Known is what holds, waits or is marked; what was used within the last day, or was counted; and
    what the settings name.
    """
    if any(one.used for one in found):
        return None
    known, asked = known_names(using=using), [(one.name, one.key) for one in found]
    if not set(asked).isdisjoint(known):
        return None
    if any(one.ever != Counters() for one in histories(asked, minutes=1, using=using)):
        return None
    said = _("Nothing is known of %s: nobody used it within the last day.")
    name = found[0].display
    others = [display(n, k) for n, k in known[:_MOST_COMPARED]]
    policies = [n for n, k in known[:_MOST_COMPARED] if k is not None]
    alike = get_close_matches(name, dict.fromkeys([*policies, *others]))
    hint = " " + _("Did you mean %s?") % printable(", ".join(alike)) if alike else ""
    return said % printable(name) + hint


def without_secrets(text: str) -> str:
    """`text` without the user and password of a URL."""
    return _PASSWORD.sub(r"\1***@", text)


def unavailable(error: Unavailable) -> str:
    """One line for people: what happened, and what to do."""
    what = " ".join(without_secrets(str(error)).split())
    return _("%s. Is the server running, and is LOCATION in CACHES its address?") % what.rstrip(".")
