"""Error messages of `manage.py locks`."""

from __future__ import annotations

from collections.abc import Sequence

from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from redis.exceptions import OutOfMemoryError, ResponseError

from .. import conf
from ..engine.wire import RIGHTS, configuration_error
from ..exceptions import Unavailable
from ..operators.facts import Unread
from ..operators.formats import without_secrets
from .terminal import printable

#: Max unreadable names that an error message lists.
MAX_UNREAD = 5


def unread(found: Sequence[Unread]) -> str:
    """Return a text about the names that could not be read, or "" if there are none."""
    if not found:
        return ""
    text = ngettext(
        "%(n)d name can't be read: %(names)s. %(why)s",
        "%(n)d names can't be read: %(names)s. %(why)s",
        len(found),
    )
    names = [printable(one.display) for one in found[:MAX_UNREAD]]
    return text % {
        "n": len(found),
        "names": ", ".join(names + ["…"] * (len(found) > MAX_UNREAD)),
        "why": printable(without_secrets(str(found[0].error))),
    }


def unavailable(error: Unavailable, using: str | None) -> str:
    """Return a line with the error and the remedy."""
    what = " ".join(without_secrets(str(error)).split()).rstrip(".")
    cause, why = error.__cause__, configuration_error(error)
    location = settings.CACHES[using or conf.current().cache].get("LOCATION", "")
    text = _("%s. Is the server running, and is LOCATION in CACHES its address?")
    if isinstance(cause, OutOfMemoryError) or "OOM" in what:
        text = _("%s. The server's memory is full. Raise maxmemory, and run locks doctor.")
    elif why and why != RIGHTS:
        text = _(
            "%s. The server denies access. Check the user, password, TLS, and database number in "
            "LOCATION and OPTIONS of the cache."
        )
    elif isinstance(cause, ResponseError):  # the server denied the command
        text = _("%s. To find the cause, run locks doctor.")
    elif "rediss://" in str(location):
        text = _(
            "%s. Is the server running, and does it use TLS? If it doesn't use TLS, LOCATION in "
            "CACHES must start with redis://."
        )
    return text % what
