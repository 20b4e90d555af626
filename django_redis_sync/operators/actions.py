"""The actions of operators on a name: clear, pause, resume, resize, reset. They apply to all
processes.

Each action that changes something is recorded with `by` (the operator; by default the user of the
process) and `reason`. The record is in Redis, so that the command and the admin pages share it on
all hosts.

An override of a policy (`pause`, `resize` without a key) is stored once and applies to all of its
keys: at once in this process, and within a second in the others (see engine/overrides.py). `resume`
and `reset` of a single key exempt that key.
"""

from __future__ import annotations

import getpass
import json
import os
import secrets
import socket
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from redis.exceptions import ConnectionError

from .. import conf
from ..engine.drivers import command, error_of
from ..engine.overrides import operating, refresh
from ..engine.pools import retry_many_if_disconnected
from ..engine.quorum import Quorum
from ..engine.renewal import renewer
from ..engine.server import server_of
from ..engine.wire import ATTEMPT, clock
from ..exceptions import SyncError, WrongKind
from ..logs import logger
from ..protocol.keys import Keys, display, keys_of, marks_key, pause_of, quote, unquote
from ..protocol.scripts import MOST_PERMITS
from ..protocol.steps import Answer, Failure, Run
from .facts import Holder, Status, Waiter
from .formats import moment
from .names import alias_of, overrides, pairs_of
from .status import status_of

#: Max duration of a pause in seconds: ten years.
MAX_PAUSE = 10 * 366 * 86_400
_BATCH = 500
#: Max recorded actions, of all names together: the newest.
MAX_KEPT = 1000
#: Days after the last action for which the record is stored.
KEPT_DAYS = 365
#: Max characters of a reason and of an operator's name.
MAX_TEXT = 200
#: Max ids of cleared holders and waiters in the record of an action.
MAX_IDS = 20


@dataclass(frozen=True, slots=True)
class Cleared:
    """The outcome of `clear` for a holder or waiter. `done`: False if it had ended before. `shown`:
    its state before. `name`: the display name."""

    id: str
    shown: Holder | Waiter
    done: bool
    name: str = field(default="")


def clear(
    status: Status,
    tokens: Iterable[str],
    *,
    using: str | None = None,
    by: str = "",
    reason: str = "",
) -> list[Cleared]:
    """End leases and remove waiters. Return the outcome for each.

    `tokens`: tokens or ids of `status.holders` and `status.waiters`. Waiters are admitted at once,
    and an evicted holder gets LeaseLost at its next renewal. Raise ValueError for a token that
    `status` does not have. Raise Unavailable if Redis can't be reached, or if a majority of a
    quorum may still have the lease.
    """
    shown = {one.token: one for one in status.everyone}
    by_id = {one.id: one for one in shown.values()}
    chosen: dict[str, Holder | Waiter] = {}
    for token in tokens:
        one = shown.get(token) or by_id.get(token)
        if one is None:
            raise ValueError(f"{status.display!r} shows no holder or waiter {token[:8]!r}")
        chosen[one.token] = one
    alias = using or conf.current().cache
    if status.members:
        alias = alias_of(status.name, alias)
    keys = _keys(status.name, status.key, alias)
    steps = [
        Run("clear", keys.declared, (token, keys.mark, keys.keep), ATTEMPT) for token in chosen
    ]
    ended = _ended(steps, alias)
    cleared = []
    for one, done in zip(chosen.values(), ended, strict=True):
        cleared.append(Cleared(one.id, one, done, status.display))
        _log("cleared", status.display, id=one.id, done=done, **_labels(one))
    ids = [one.id for one in cleared if one.done]
    if ids:
        details = {"by": by or person(), "reason": reason, "ids": ids[:MAX_IDS]}
        amount = len(ids) if len(ids) > MAX_IDS else None
        record("clear", status.name, status.key, using, **details, amount=amount)
    return cleared


def _ended(steps: Sequence[Run], alias: str) -> list[bool]:
    """Return for each `clear` step True if it ended a lease or removed a waiter."""
    if not isinstance(alias, Quorum):
        replies = _replies(steps, server_of(alias).many(steps))
        return [reply[0] == "ok" for reply in replies]
    by_member = [server_of(member).many(steps) for member in alias.aliases]
    ended = []
    for step, answers in zip(steps, zip(*by_member, strict=True), strict=True):
        good = [answer for answer in answers if not isinstance(answer, Failure)]
        if len(good) < alias.need:
            failed = [m for m, a in zip(alias.aliases, answers, strict=True) if a not in good]
            silent = f"{', '.join(failed)} did not answer"
            words = f"{silent}: a majority of the quorum may still have it"
            raise error_of(Failure(ConnectionError(words), clock(), "unanswered"), step)
        ended.append(any(answer.reply[0] == "ok" for answer in good))
    return ended


def pause(
    name: str,
    key: str | None = None,
    using: str | None = None,
    *,
    seconds: float | None = None,
    by: str = "",
    reason: str = "",
) -> list[str]:
    """Grant no permits until `resume()`, or for `seconds` by the server's clock. Leases continue.

    If the name is paused already, the start of the pause stays, and `seconds` replaces its end.
    Return the display names of what was paused, or [] if nothing changed. Raise ValueError if
    `seconds` is not above 0 or above MAX_PAUSE, and Unavailable if Redis can't be reached.
    """
    if seconds is not None and not 0 < seconds <= MAX_PAUSE:
        raise ValueError(f"seconds must be above 0 and at most {MAX_PAUSE}, not {seconds!r}")
    return _Change("pause", name, key, using).make(by, reason, seconds=seconds)


def resume(
    name: str, key: str | None = None, using: str | None = None, *, by: str = "", reason: str = ""
) -> list[str]:
    """Undo `pause()`, and admit waiters as far as the limit allows. Return the display names of
    what was resumed, or [] if nothing was paused. Raise Unavailable if Redis can't be reached."""
    return _Change("resume", name, key, using).undo(by, reason)


def resize(
    name: str,
    key: str | None,
    limit: int,
    using: str | None = None,
    *,
    by: str = "",
    reason: str = "",
) -> list[str]:
    """Set a limit that replaces the callers' limit until `reset()`. Leases continue.

    Return the display names of what was resized, or [] if it had this limit before. Raise TypeError
    or ValueError for an invalid limit, WrongKind for a read/write lock or a quorum, and Unavailable
    if Redis can't be reached.
    """
    conf.whole("limit", limit, MOST_PERMITS)
    change = _Change("resize", name, key, using)
    if isinstance(change.alias, Quorum):
        raise WrongKind(f"{display(name, key)!r} is a lock on a quorum: its limit is 1")
    if status_of(name, key, using=using).kind != "plain":
        raise WrongKind(f"{display(name, key)!r} is a read/write lock: it has no limit")
    return change.make(by, reason, limit=limit)


def reset(
    name: str, key: str | None = None, using: str | None = None, *, by: str = "", reason: str = ""
) -> list[str]:
    """Undo `resize()`, so that the callers' limit applies again. Return the display names of what
    was reset, or [] if nothing was resized. Raise Unavailable if Redis can't be reached."""
    return _Change("reset", name, key, using).undo(by, reason)


class _Change:
    """A change of an override: the pause (field "p" of the registry) or the limit ("l")."""

    def __init__(self, verb: str, name: str, key: str | None, using: str | None) -> None:
        self.verb, self.name, self.key, self._using = verb, name, key, using
        self.alias = alias_of(name, using) if key is None else using or conf.current().cache
        self._field = "p" if verb in ("pause", "resume") else "l"
        self._keys = _keys(name, key, self.alias)
        self._registry = marks_key(conf.current().prefix(self.alias))
        self._stored = overrides(self.alias)
        # For a policy, also its keys with an override of their own or an exemption.
        self._names = [self._keys]
        if key is None:
            fields, start = (self._field, f"x{self._field}"), f"{self._keys.quoted}@"
            found = {
                quoted.removeprefix(start)
                for which, _, quoted in (entry.partition(":") for entry in self._stored)
                if which in fields and quoted.startswith(start)
            }
            self._names += [_keys(name, unquote(one), self.alias) for one in sorted(found)]

    def make(
        self, by: str, reason: str, seconds: float | None = None, limit: int | None = None
    ) -> list[str]:
        """Set the override of the name, and remove the exemptions of its keys."""
        stored = self._stored.get(f"{self._field}:{self._keys.quoted}", "")
        exempt = [f"x{self._field}:{one.quoted}" for one in self._names]
        until = None
        if limit is not None:
            value = str(limit)
        else:
            second, micros = map(int, command(self.alias, "TIME"))
            now = second * 1000 + micros // 1000
            since = pause_of(stored)[0] or now
            until = None if seconds is None else now + round(seconds * 1000)
            value = str(since) if until is None else f"{since} {until}"
        if value == stored and not any(entry in self._stored for entry in exempt):
            return []
        # Registered before it takes effect, so that every paused name is shown.
        command(self.alias, "HSET", self._registry, f"{self._field}:{self._keys.quoted}", value)
        self._operate(self._names[:1], value)
        command(self.alias, "HDEL", self._registry, *exempt)
        return self._done(self._names[:1], by, reason, limit=limit, until=until)

    def undo(self, by: str, reason: str) -> list[str]:
        """Remove the overrides of the name and of its keys. Exempt a single key from that of its
        policy."""
        policy = self._keys.quoted.partition("@")[0] if self.key is not None else ""
        entries = [f"{self._field}:{one.quoted}" for one in self._names]
        exemption = f"x{self._field}:{self._keys.quoted}"
        by_policy = f"{self._field}:{policy}" in self._stored and exemption not in self._stored
        if not by_policy and not any(entry in self._stored for entry in entries):
            return []
        self._operate(self._names)
        command(self.alias, "HDEL", self._registry, *entries, *(f"x{one}" for one in entries))
        if f"{self._field}:{policy}" in self._stored:
            command(self.alias, "HSET", self._registry, exemption, 1)
        return self._done(self._names, by, reason)

    def _operate(self, names: Sequence[Keys], value: str = "") -> None:
        """Run the steps, which may run twice. Raise Unavailable if any of them failed."""
        for start in range(0, len(names), _BATCH):
            steps = [operating(one, self.verb, value) for one in names[start : start + _BATCH]]
            _replies(steps, retry_many_if_disconnected(server_of(self.alias).many, steps))

    def _done(self, names: Sequence[Keys], by: str, reason: str, **details: Any) -> list[str]:
        # Apply it in this process. The others read it within a second.
        server = server_of(self.alias)
        refresh(server, self._registry)
        renewer(self.alias).housekeeper.marks.poke(server)
        _log(self.verb, self._keys.display, names=len(names), **details)
        record(
            self.verb, self.name, self.key, self._using, by=by or person(), reason=reason, **details
        )
        return [one.display for one in names]


def _keys(name: str, key: str | None, alias: str) -> Keys:
    config = conf.current()
    return keys_of(config.prefix(alias), name, key, config.keep(key))


def _replies(steps: Iterable[Run], answers: Iterable[Answer | Failure]) -> list[list[str]]:
    """Return the replies in order. Raise Unavailable if any failed; the others took effect."""
    replies = []
    for step, answer in zip(steps, answers, strict=True):
        if isinstance(answer, Failure):
            raise error_of(answer, step) from answer.cause
        replies.append(answer.reply)
    return replies


def _labels(one: Holder | Waiter) -> dict[str, object]:
    return {key: one.label[key] for key in ("host", "pid", "user", "request") if key in one.label}


def _log(event: str, name: str, **details: object) -> None:
    extra = {f"sync_{key}": value for key, value in details.items()}
    extra |= {"sync_event": event, "sync_name": name}
    logger.info("operator: %s %r", event, name, extra=extra)


# The record


@dataclass(frozen=True, slots=True)
class Action:
    """A recorded action. `what`: clear, pause, resume, resize, or reset. `by`: the operator.
    `reason`: a text by the operator. `limit`: that of a resize. `until`: the end of a pause, or
    None. `ids`: the holders and waiters of a clear, at most MAX_IDS. `amount`: their number if
    there were more, else 0."""

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
    """Return the key of the record of actions: a sorted set of JSON texts by server ms."""
    return f"{quote(prefix)}:acts"


def person() -> str:
    """Return the user of this process, and its host, as "user@host"."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no such user in this container
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def record(act: str, name: str, key: str | None, using: str | None, **details: Any) -> None:
    """Record an action that was done. If it can't be recorded, log a warning."""
    config = conf.current()
    alias = using or config.cache
    registry = audit_key(config.prefix(alias))
    kept = {k: v[:MAX_TEXT] if isinstance(v, str) else v for k, v in details.items() if v}
    try:
        seconds, micros = command(alias, "TIME")
        now = int(seconds) * 1000 + int(micros) / 1000  # keeps the order within a millisecond
        entry = {"what": act, "name": name, "key": key, **kept, "n": secrets.token_hex(4)}
        command(alias, "ZADD", registry, now, json.dumps(entry, ensure_ascii=False))
        command(alias, "ZREMRANGEBYRANK", registry, 0, -1 - MAX_KEPT)
        command(alias, "PEXPIRE", registry, KEPT_DAYS * 86_400_000)
    except SyncError as error:
        logger.warning("could not record an operator's %s of %r: %s", act, name, error)


def acts(
    name: str | None = None, key: str | None = None, *, limit: int = 100, using: str | None = None
) -> list[Action]:
    """Return the recorded actions on all names, or on `name` and its keys, newest first. `key`:
    only those on this key and on the whole policy. Raise Unavailable if Redis can't be reached."""
    config = conf.current()
    alias = using or config.cache
    registry = audit_key(config.prefix(alias))
    reply = command(alias, "ZREVRANGE", registry, 0, MAX_KEPT - 1, "WITHSCORES")
    found = [act for text, score in pairs_of(reply) if (act := _act(text, score)) is not None]
    if name is not None:
        found = [
            one for one in found if one.name == name and (key is None or one.key in (None, key))
        ]
    return found[:limit]


def as_json(found: Sequence[Action]) -> list[dict[str, Any]]:
    """Return actions for JSON, with times in ISO 8601."""
    return [
        asdict(act) | {"at": act.at.isoformat(), "until": act.until and act.until.isoformat()}
        for act in found
    ]


def _act(text: str, score: float) -> Action | None:
    """Return a recorded action, or None for a foreign value."""
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
