"""The record of operators' acts. Kept in Redis, beside the names it is about, so that the command
and the admin's pages write the same record on any host, however logging is set up there.
"""

from __future__ import annotations

import getpass
import json
import logging
import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .. import conf
from ..engine.drivers import command
from ..exceptions import SyncError
from ..protocol.keys import display, quote
from .formats import moment
from .names import pairs_of

logger = logging.getLogger("django_redis_sync")

#: Acts that are kept, the newest of all names together, and days after the last one.
MAX_KEPT, KEPT_DAYS = 1000, 365
#: Characters of a reason and of an operator's name; ids of those cleared.
MAX_TEXT, MAX_IDS = 200, 20


@dataclass(frozen=True, slots=True)
class Action:
    """An act. `what`: clear, pause, resume, resize or reset; `limit` of a resize; `ids` of those
    that a clear took the lease or the place of, MAX_IDS at the most, and their `amount` where
    these are not all; `by`: the operator; `reason`: in their words."""

    at: datetime
    what: str
    name: str
    key: str | None
    by: str
    reason: str = ""
    limit: int | None = None
    until: datetime | None = None
    ids: tuple[str, ...] = ()
    amount: int = 0

    @property
    def display(self) -> str:
        return display(self.name, self.key)

    @property
    def text(self) -> str:
        """The action in words."""
        words = {
            "pause": _("paused"),
            "resume": _("resumed"),
            "reset": _("limit reset"),
            "resize": _("limit set to %s") % self.limit,
        }
        if self.until is not None:
            words["pause"] = _("paused until %s") % moment(self.until)
        if self.what != "clear":
            return words.get(self.what, self.what)
        amount = self.amount or len(self.ids)
        shown = ", ".join(self.ids if amount == len(self.ids) else [*self.ids, "…"])
        return ngettext("cleared %d", "cleared %d", amount) % amount + f": {shown}"


def audit_key(prefix: str) -> str:
    """A sorted set of JSON texts, by server ms."""
    return f"{quote(prefix)}:acts"


def person() -> str:
    """The user of this process, and its host."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no such user in this container
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def record(act: str, name: str, key: str | None, using: str | None, **details: Any) -> None:
    """Keep an act that was done. If it can't be written it is logged: the act stands."""
    config = conf.current()
    alias = using or config.cache
    registry = audit_key(config.prefix(alias))
    text = {"by", "reason"}
    kept = {k: v[:MAX_TEXT] if k in text else v for k, v in details.items() if v}
    try:
        seconds, micros = command(alias, "TIME")
        now = int(seconds) * 1000 + int(micros) / 1000  # of several within a second, in their order
        entry = {"what": act, "name": name, "key": key, **kept, "n": secrets.token_hex(4)}
        command(alias, "ZADD", registry, now, json.dumps(entry, ensure_ascii=False))
        command(alias, "ZREMRANGEBYRANK", registry, 0, -1 - MAX_KEPT)
        command(alias, "PEXPIRE", registry, KEPT_DAYS * 86_400_000)
    except SyncError as error:
        logger.warning("could not record that an operator did %s to %r: %s", act, name, error)


def acts(
    name: str | None = None, key: str | None = None, *, limit: int = 100, using: str | None = None
) -> list[Action]:
    """Operators' acts, newest first: on all names, or on `name` and its keys. Unavailable when
    Redis can't be reached."""
    config = conf.current()
    alias = using or config.cache
    registry = audit_key(config.prefix(alias))
    reply = command(alias, "ZREVRANGE", registry, 0, MAX_KEPT - 1, "WITHSCORES")
    found = [act for text, score in pairs_of(reply) if (act := _act(text, score)) is not None]
    return [
        act
        for act in found
        if name is None or (act.name == name and (key is None or act.key in (None, key)))
    ][:limit]


def as_json(found: Sequence[Action]) -> list[dict[str, Any]]:
    return [
        {
            **asdict(act),
            "at": act.at.isoformat(),
            "until": act.until and act.until.isoformat(),
            "ids": list(act.ids),
        }
        for act in found
    ]


def _act(text: str, score: float) -> Action | None:
    """None for a value that is no record of ours."""
    try:
        entry = json.loads(text)
        entry.pop("n", None)
        at = datetime.fromtimestamp(score / 1000, tz=timezone.utc)
        ids = tuple(map(str, entry.pop("ids", ())))
        until = entry.pop("until", None)
        if until is not None:
            until = datetime.fromtimestamp(until / 1000, tz=timezone.utc)
        return Action(at, ids=ids, until=until, **{"by": "", **entry})
    except (ValueError, TypeError, AttributeError, OverflowError, OSError):
        return None
