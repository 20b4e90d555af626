"""The log of operators' actions. It is stored in Redis, so that all hosts show the same actions."""

from __future__ import annotations

import getpass
import json
import os
import secrets
import socket
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..engine.drivers import command
from ..engine.wire import pairs_of
from ..exceptions import SyncError
from ..logs import logger
from ..protocol.keys import quote
from .facts import FactsOfName, datetime_of
from .formats import moment
from .reads import server_time, where

#: Max recorded actions, of all names together. Older actions are removed.
MAX_KEPT = 1000
#: Days after the last action until Redis deletes the log.
KEPT_DAYS = 365
#: Max characters of a reason and of an operator's name.
MAX_TEXT = 200
#: Max ids of holders and waiters that the log stores for one `clear`.
MAX_IDS = 20


@dataclass(frozen=True, slots=True)
class Action(FactsOfName):
    """A recorded action. `what`: clear, pause, resume, resize, or reset. `by`: the operator.
    `reason`: a text by the operator. `limit`, `rate`: what a resize has set; the other is None.
    `until`: the end of a pause, or None. `ids`: the ids of the cleared holders and waiters,
    at most MAX_IDS. `amount`: the number of cleared holders and waiters, or 0 if `ids` has all of
    them."""

    at: datetime
    what: str
    by: str = ""
    reason: str = ""
    limit: int | None = None
    until: datetime | None = None
    ids: tuple[str, ...] = ()
    amount: int = 0
    rate: str | None = None

    @property
    def text(self) -> str:
        """The action in words, for operators."""
        if self.what == "clear":
            amount = self.amount or len(self.ids)
            shown = ", ".join(self.ids if amount == len(self.ids) else [*self.ids, "…"])
            return ngettext("cleared %d", "cleared %d", amount) % amount + f": {shown}"
        until = self.until
        words = {
            "pause": _("paused") if until is None else _("paused until %s") % moment(until),
            "resume": _("resumed"),
            "reset": _("limit and rate reset"),
            "resize": _("rate set to %s") % self.rate
            if self.rate
            else _("limit set to %s") % self.limit,
        }
        return words.get(self.what, self.what)


def person() -> str:
    """Return the user and the host of this process as "user@host"."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no such user in this container
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def record(act: str, name: str, key: str | None, using: str | None, **details: Any) -> None:
    """Record an action that was carried out. If it can't be recorded, log a warning."""
    alias, registry = _place(using)
    kept = {k: v[:MAX_TEXT] if isinstance(v, str) else v for k, v in details.items() if v}
    entry = {"what": act, "name": name, "key": key, **kept, "n": secrets.token_hex(4)}
    try:
        at = server_time(alias) * 1000
        command(alias, "ZADD", registry, at, json.dumps(entry, ensure_ascii=False))
        command(alias, "ZREMRANGEBYRANK", registry, 0, -1 - MAX_KEPT)
        command(alias, "PEXPIRE", registry, KEPT_DAYS * 86_400_000)
    except SyncError as error:
        logger.warning("could not record the operator action %s on %r: %s", act, name, error)


def acts(
    name: str | None = None, key: str | None = None, *, limit: int = 100, using: str | None = None
) -> list[Action]:
    """Return the recorded actions on all names, or on `name` and its keys, newest first. `key`:
    return only the actions on this key and on the whole policy. Raise Unavailable if Redis can't be
    reached."""
    alias, registry = _place(using)
    reply = command(alias, "ZREVRANGE", registry, 0, MAX_KEPT - 1, "WITHSCORES")
    found = [act for text, score in pairs_of(reply) if (act := _act(text, score)) is not None]
    if name is not None:
        found = [
            one for one in found if one.name == name and (key is None or one.key in (None, key))
        ]
    return found[:limit]


def _place(using: str | None) -> tuple[str, str]:
    """Return the cache alias and the Redis key of the log. The log is a sorted set: its members are
    actions as JSON, and their scores are server times in ms."""
    alias, prefix = where(using)
    return alias, f"{quote(prefix)}:acts"


def _act(text: str, score: float) -> Action | None:
    """Return the action of an entry of the log, or None if another program wrote the entry."""
    try:
        entry = json.loads(text)
        entry.pop("n", None)
        until = entry.pop("until", None)
        return Action(
            at=datetime_of(score),
            ids=tuple(map(str, entry.pop("ids", ()))),
            until=None if until is None else datetime_of(until),
            **entry,
        )
    except (ValueError, TypeError, AttributeError):
        return None
