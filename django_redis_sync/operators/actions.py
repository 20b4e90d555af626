"""The actions of operators on a name: clear, pause, resume, resize, reset. They apply to all
processes. If an action changes something, it is recorded (see `audit`) with `by` (the operator; by
default the user of the process) and `reason` (a text by the operator).

Without a key, `pause` and `resize` override a policy. The override is stored once and applies to
all keys of the policy. This process applies it at once, and other processes within a second (see
engine/overrides.py). `resume` and `reset` of a single key exempt that key from the override.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ConnectionError

from .. import conf
from ..engine.drivers import command
from ..engine.overrides import operating, refresh
from ..engine.pools import retry_many_if_disconnected
from ..engine.quorum import Quorum
from ..engine.renewal import renewer
from ..engine.server import server_of
from ..engine.wire import ATTEMPT, clock
from ..exceptions import SyncError, WrongKind
from ..logs import logger
from ..protocol.keys import Keys, display, marks_key, pause_of, split
from ..protocol.scripts import MOST_PERMITS
from ..protocol.steps import Answer, Failure, Run
from .audit import MAX_IDS as MAX_IDS
from .audit import MAX_TEXT as MAX_TEXT
from .audit import acts as acts
from .audit import person, record
from .facts import Holder, Status, Waiter
from .names import alias_of, keys_for, overrides
from .reads import failed, server_time
from .status import status_of

#: Max duration of a pause in seconds: ten years.
MAX_PAUSE = 10 * 366 * 86_400
_BATCH = 500


@dataclass(frozen=True, slots=True)
class Cleared:
    """The outcome of `clear` for a holder or waiter. `done`: False if that had ended before."""

    id: str
    done: bool


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
    quorum may still have one of the leases. In that case, the other leases and waiters are cleared
    and recorded.
    """
    known = {text: one for one in status.everyone for text in (one.id, one.token)}
    chosen: dict[str, Holder | Waiter] = {}
    for token in tokens:
        if token not in known:
            raise ValueError(f"{status.display!r} shows no holder or waiter {token[:8]!r}")
        chosen[known[token].token] = known[token]
    alias = alias_of(status.name, using) if status.members else using or conf.current().cache
    keys = keys_for(status.name, status.key, alias)
    steps = [
        Run("clear", keys.declared, (token, keys.mark, keys.keep), ATTEMPT) for token in chosen
    ]
    outcomes, cleared = _ended(steps, alias), []
    for one, outcome in zip(chosen.values(), outcomes, strict=True):
        if isinstance(outcome, bool):
            cleared.append(Cleared(one.id, outcome))
            about = {k: one.label[k] for k in ("host", "pid", "user", "request") if k in one.label}
            _log("cleared", status.display, id=one.id, done=outcome, **about)
    ids = [one.id for one in cleared if one.done]
    if ids:
        amount = len(ids) if len(ids) > MAX_IDS else 0
        details = {"by": by or person(), "reason": reason, "ids": ids[:MAX_IDS], "amount": amount}
        record("clear", status.name, status.key, using, **details)
    for outcome in outcomes:
        if isinstance(outcome, SyncError):
            raise outcome
    return cleared


def _ended(steps: Sequence[Run], alias: str) -> list[bool | SyncError]:
    """Return a result for each `clear` step. It is True if the step ended a lease or removed a
    waiter, False if the lease or waiter had ended before, or the error of the step."""
    members = alias.aliases if isinstance(alias, Quorum) else [alias]
    needed = alias.need if isinstance(alias, Quorum) else 1
    by_member = [server_of(member).many(steps) for member in members]
    ended: list[bool | SyncError] = []
    for step, answers in zip(steps, zip(*by_member, strict=True), strict=True):
        good = [answer for answer in answers if not isinstance(answer, Failure)]
        if len(good) >= needed:
            ended.append(any(answer.reply[0] == "ok" for answer in good))
            continue
        failures = {m: a for m, a in zip(members, answers, strict=True) if isinstance(a, Failure)}
        failure = next(iter(failures.values()))
        if len(members) > 1:
            words = (
                f"{', '.join(failures)} did not answer: a majority of the quorum may still have it"
            )
            failure = Failure(ConnectionError(words), clock(), "unanswered")
        ended.append(failed(failure, step))
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
    Return the display names that were paused, or [] if nothing changed. Raise ValueError if
    `seconds` is not above 0 or above MAX_PAUSE, and Unavailable if Redis can't be reached.
    """
    if seconds is not None and not 0 < seconds <= MAX_PAUSE:
        raise ValueError(f"seconds must be above 0 and at most {MAX_PAUSE}, not {seconds!r}")
    change = _Change("pause", name, key, using)
    now = int(server_time(change.alias) * 1000)
    since = pause_of(change.stored)[0] or now
    if seconds is None:
        return change.make(str(since), by, reason)
    until = now + round(seconds * 1000)
    return change.make(f"{since} {until}", by, reason, until=until)


def resume(
    name: str, key: str | None = None, using: str | None = None, *, by: str = "", reason: str = ""
) -> list[str]:
    """Undo `pause()`, and admit waiters as far as the limit allows. Return the display names that
    were resumed, or [] if nothing was paused. Raise Unavailable if Redis can't be reached."""
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

    Return the display names that were resized, or [] if the limit is the same. Raise TypeError
    or ValueError for an invalid limit, WrongKind for a read/write lock or a quorum, and Unavailable
    if Redis can't be reached.
    """
    conf.whole("limit", limit, MOST_PERMITS)
    change = _Change("resize", name, key, using)
    if isinstance(change.alias, Quorum):
        raise WrongKind(f"{display(name, key)!r} is a lock on a quorum: its limit is 1")
    if status_of(name, key, using=using).kind != "plain":
        raise WrongKind(f"{display(name, key)!r} is a read/write lock: it has no limit")
    return change.make(str(limit), by, reason, limit=limit)


def reset(
    name: str, key: str | None = None, using: str | None = None, *, by: str = "", reason: str = ""
) -> list[str]:
    """Undo `resize()`, so that the callers' limit applies again. Return the display names that were
    reset, or [] if nothing was resized. Raise Unavailable if Redis can't be reached."""
    return _Change("reset", name, key, using).undo(by, reason)


class _Change:
    """A change of an override, which is a pause (field "p" of the registry) or a limit (field "l").

    `stored`: the present override of the name, or "".
    """

    def __init__(self, action: str, name: str, key: str | None, using: str | None) -> None:
        self.action, self.name, self.key, self._using = action, name, key, using
        self.alias = alias_of(name, using) if key is None else using or conf.current().cache
        self._field = "p" if action in ("pause", "resume") else "l"
        self._registry = marks_key(conf.current().prefix(self.alias))
        self._overrides = overrides(self.alias)
        own = keys_for(name, key, self.alias)
        self.stored = self._overrides.get(f"{self._field}:{own.quoted}", "")
        # For a policy, include its keys that have an override or an exemption of their own.
        entries = (entry.partition(":") for entry in self._overrides if key is None)
        fields, start = (self._field, f"x{self._field}"), f"{own.quoted}@"
        found = {q for field, _, q in entries if field in fields and q.startswith(start)}
        self._names = [own, *(keys_for(*split(q), self.alias) for q in sorted(found))]

    def make(
        self, value: str, by: str, reason: str, limit: int | None = None, until: int | None = None
    ) -> list[str]:
        """Set the override of the name, and remove the exemptions of its keys."""
        own = self._names[:1]
        exempt = [f"x{self._field}:{one.quoted}" for one in self._names]
        if value == self.stored and not any(entry in self._overrides for entry in exempt):
            return []
        # First write the override into the registry, so that lists show every paused name.
        command(self.alias, "HSET", self._registry, f"{self._field}:{own[0].quoted}", value)
        self._operate(own, value)
        command(self.alias, "HDEL", self._registry, *exempt)
        return self._done(own, by, reason, limit=limit, until=until)

    def undo(self, by: str, reason: str) -> list[str]:
        """Remove the overrides of the name and of its keys. For a single key, also exempt the key
        from the override of its policy."""
        own = self._names[0].quoted
        policy = own.partition("@")[0] if self.key is not None else ""
        by_policy, exemption = f"{self._field}:{policy}" in self._overrides, f"x{self._field}:{own}"
        entries = [f"{self._field}:{one.quoted}" for one in self._names]
        is_overridden = any(entry in self._overrides for entry in entries)
        if not is_overridden and (not by_policy or exemption in self._overrides):
            return []
        self._operate(self._names)
        command(self.alias, "HDEL", self._registry, *entries, *(f"x{one}" for one in entries))
        if by_policy:
            command(self.alias, "HSET", self._registry, exemption, 1)
        return self._done(self._names, by, reason)

    def _operate(self, names: Sequence[Keys], value: str = "") -> None:
        """Run the script for each name, or twice if a connection was lost. Raise Unavailable if it
        failed."""
        for start in range(0, len(names), _BATCH):
            steps = [operating(one, self.action, value) for one in names[start : start + _BATCH]]
            answers: list[Answer | Failure]
            answers = retry_many_if_disconnected(server_of(self.alias).many, steps)
            for step, answer in zip(steps, answers, strict=True):
                if isinstance(answer, Failure):
                    raise failed(answer, step)

    def _done(self, names: Sequence[Keys], by: str, reason: str, **details: Any) -> list[str]:
        # Apply the change in this process. Other processes read it within a second.
        server = server_of(self.alias)
        refresh(server, self._registry)
        renewer(self.alias).housekeeper.marks.poke(server)
        _log(self.action, self._names[0].display, names=len(names), **details)
        details |= {"by": by or person(), "reason": reason}
        record(self.action, self.name, self.key, self._using, **details)
        return [one.display for one in names]


def _log(event: str, name: str, **details: object) -> None:
    extra = {f"sync_{key}": value for key, value in details.items()}
    extra |= {"sync_event": event, "sync_name": name}
    logger.info("operator: %s %r", event, name, extra=extra)
