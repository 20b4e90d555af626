"""The actions of operators on a name: clear, pause, resume, resize, reset. They apply to all
processes. An action that changes something is recorded (see `audit`). For this record, `by` is the
operator, by default the user of the process, and `reason` is a text by the operator.

Without a key, `pause` and `resize` apply to all keys of a policy. Such an override is stored once,
for the policy. It applies at once in this process, and within a second in other processes (see
engine/overrides.py). `resume` and `reset` of a single key exempt the key from the override.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property

from redis.exceptions import ConnectionError

from .. import conf, values
from ..engine.drivers import command
from ..engine.overrides import operating, refresh
from ..engine.pools import retry_many_if_disconnected
from ..engine.quorum import Quorum
from ..engine.renewal import renewer
from ..engine.server import server_of
from ..engine.wire import ATTEMPT, batches, clock
from ..exceptions import SyncError, WrongKind
from ..logs import logger
from ..protocol.keys import Keys, overrides_key, pause_of, split
from ..protocol.scripts import MOST_PERMITS
from ..protocol.steps import Answer, Failure, Run
from .audit import MAX_IDS, person, record
from .facts import Holder, Status, Waiter
from .families import families
from .names import alias_of, keys_for, overrides
from .reads import failed, server_time
from .status import status_of

#: Max duration of a pause in seconds: ten years.
MAX_PAUSE = 10 * 366 * 86_400
_BATCH = 500


@dataclass(frozen=True, slots=True)
class Cleared:
    """The outcome of `clear` for a holder or waiter. `done`: False if the lease or the wait had
    ended before."""

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
    """End leases and remove waiters. Return a `Cleared` for each.

    `tokens`: tokens or ids of holders and waiters of `status`. The next waiters get the free
    permits at once. An evicted holder gets LeaseLost at its next renewal.

    Raise ValueError if `status` does not have one of the tokens. Raise Unavailable if Redis can't
    be reached, or if a majority of a quorum may still have one of the leases. Even then, the leases
    and waiters for which the request succeeded are cleared and recorded.
    """
    known = {text: one for one in status.everyone for text in (one.id, one.token)}
    chosen: dict[str, Holder | Waiter] = {}
    for token in tokens:
        if token not in known:
            raise ValueError(
                f"the status of {status.display!r} has no holder or waiter {token[:8]!r}"
            )
        chosen[known[token].token] = known[token]
    alias = alias_of(status.name, using) if status.members else using or conf.current().cache
    keys = keys_for(status.name, status.key, alias)
    steps = [
        Run("clear", keys.declared, (token, keys.overrides, keys.keep), ATTEMPT) for token in chosen
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
    """Return a result for each `clear` step: True if the step ended a lease or removed a waiter,
    and False if the lease or the wait had ended before. If a step failed, its result is the
    error."""
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
            words = f"{', '.join(failures)} did not answer, so a majority may still have the lease"
            failure = Failure(ConnectionError(words), clock(), "unanswered")
        ended.append(failed(failure, step))
    return ended


class Change:
    """A change to the overrides of a name, or of the key `key` of a policy. `until`: the end of the
    pause that `pause()` has set, by the server's clock, or None.

    Each method returns the display names of what was changed, or [] if nothing changed. Each method
    raises Unavailable if Redis can't be reached, and WrongKind for a family of names.
    """

    until: datetime | None = None

    def __init__(
        self, name: str, key: str | None, using: str | None = None, by: str = "", reason: str = ""
    ) -> None:
        if key is None and name in families(using=using):
            raise WrongKind(
                f"{name!r} stands for all names that are made like this: give one of these names"
            )
        self._name, self._key, self._using = name, key, using
        self._note = {"by": by or person(), "reason": reason}

    def pause(self, seconds: float | None = None) -> list[str]:
        """Grant no permits until `resume()`, or for `seconds` by the server's clock. Leases
        continue.

        If the name is paused already, the start of the pause stays, and `seconds` replaces its end.
        Raise ValueError if `seconds` is 0 or less, or more than MAX_PAUSE.
        """
        if seconds is not None and not 0 < seconds <= MAX_PAUSE:
            raise ValueError(f"seconds must be above 0 and at most {MAX_PAUSE}, not {seconds!r}")
        now = int(server_time(self._alias) * 1000)
        since = pause_of(self._overrides.get(f"p:{self._own.quoted}", ""))[0] or now
        if seconds is None:
            return self._make("pause", "p", str(since))
        until = now + round(seconds * 1000)
        self.until = datetime.fromtimestamp(until / 1000, timezone.utc)
        return self._make("pause", "p", f"{since} {until}", until=until)

    def resume(self) -> list[str]:
        """Undo `pause()`, end a cool-down of the name, and admit waiters as far as the limit
        allows."""
        return self._undo("resume", "p") or self._end_cool_down()

    def resize(self, limit: int | None = None, rate: str | None = None) -> list[str]:
        """Set a limit, a rate (such as "300/m"), or both. They replace those of the callers until
        `reset()`. Leases continue. Each key of a policy has the rate for itself, as with the limit.

        Raise TypeError or ValueError for an invalid limit or rate, or if both are missing. Raise
        WrongKind for a read/write lock or a quorum.
        """
        if limit is None and rate is None:
            raise TypeError("resize() needs a limit, a rate, or both")
        if limit is not None:
            conf.whole("limit", limit, MOST_PERMITS)
        if rate is not None:
            values.rate("rate", rate)
        if isinstance(self._alias, Quorum):
            raise WrongKind(f"{self._own.display!r} is a lock on a quorum: its limit is 1")
        if status_of(self._name, self._key, using=self._using).kind != "plain":
            raise WrongKind(f"{self._own.display!r} is a read/write lock: it has no limit")
        changed = list[str]()
        if limit is not None:
            changed += self._make("resize", "l", str(limit), limit=limit)
        if rate is not None:
            changed += self._make("resize", "r", values.rate_in_ms(rate), rate=rate)
        return list(dict.fromkeys(changed))

    def reset(self) -> list[str]:
        """Undo `resize()`, so that the callers' limit and rate apply again."""
        return self._undo("reset", "lr")

    # Private methods. Argument `field`: "p" for a pause, "l" for a limit, or "r" for a rate. The
    # entry of the override in the registry of names begins with `field`. `fields`: one or several.

    @cached_property
    def _alias(self) -> str:
        using = self._using
        return alias_of(self._name, using) if self._key is None else using or conf.current().cache

    @cached_property
    def _overrides(self) -> dict[str, str]:
        return overrides(self._alias)

    @property
    def _own(self) -> Keys:
        return keys_for(self._name, self._key, self._alias)

    @property
    def _registry(self) -> str:
        return overrides_key(conf.current().prefix(self._alias))

    def _names(self, fields: str) -> list[Keys]:
        """Return the name. For a policy, also return each of its keys with an override or an
        exemption of its own in one of `fields`."""
        own = self._own
        entries = (entry.partition(":") for entry in self._overrides if self._key is None)
        known, start = {*fields, *(f"x{field}" for field in fields)}, f"{own.quoted}@"
        found = {q for one, _, q in entries if one in known and q.startswith(start)}
        return [own, *(keys_for(*split(q), self._alias) for q in sorted(found))]

    def _make(self, action: str, field: str, value: str, **details: int | str | None) -> list[str]:
        """Set the override of the name, and end the exemptions of its keys. Return the changed
        names."""
        own, entry = self._own, f"{field}:{self._own.quoted}"
        exempt = [f"x{field}:{one.quoted}" for one in self._names(field)]
        is_same = value == self._overrides.get(entry, "")
        if is_same and not any(one in self._overrides for one in exempt):
            return []
        # First write the override into the registry, which the lists read. So if this process dies
        # meanwhile, no name has an override that the lists don't show.
        command(self._alias, "HSET", self._registry, entry, value)
        self._operate(action, [own], value)
        command(self._alias, "HDEL", self._registry, *exempt)
        details = {"limit": None, "rate": None, "until": None, **details}
        return self._done(action, [own], **details)

    def _undo(self, action: str, fields: str) -> list[str]:
        """Remove the overrides of the name and of its keys. For a single key, also exempt the key
        from the overrides of its policy. Return the changed names."""
        names, own = self._names(fields), self._own.quoted
        policy = own.partition("@")[0] if self._key is not None else ""
        exemptions = [f"x{of}:{own}" for of in fields if f"{of}:{policy}" in self._overrides]
        entries = [f"{of}:{one.quoted}" for of in fields for one in names]
        is_overridden = any(entry in self._overrides for entry in entries)
        if not is_overridden and all(one in self._overrides for one in exemptions):
            return []
        self._operate(action, names)
        command(self._alias, "HDEL", self._registry, *entries, *(f"x{one}" for one in entries))
        if exemptions:
            made = [word for one in exemptions for word in (one, 1)]
            command(self._alias, "HSET", self._registry, *made)
        return self._done(action, names)

    def _end_cool_down(self) -> list[str]:
        if status_of(self._name, self._key, using=self._using).cool_down is None:
            return []
        self._operate("resume", [self._own])
        return self._done("resume", [self._own])

    def _operate(self, action: str, names: Sequence[Keys], value: str = "") -> None:
        """Run the script `operate` with `action` for each name. If a connection was lost, send the
        script once more. Raise Unavailable if a step failed."""
        for batch in batches(names, _BATCH):
            steps = [operating(one, action, value) for one in batch]
            answers: list[Answer | Failure]
            answers = retry_many_if_disconnected(server_of(self._alias).many, steps)
            for step, answer in zip(steps, answers, strict=True):
                if isinstance(answer, Failure):
                    raise failed(answer, step)

    def _done(self, action: str, names: Sequence[Keys], **details: int | str | None) -> list[str]:
        # Apply the change in this process. Other processes read it within a second.
        server = server_of(self._alias)
        with suppress(Failure):
            refresh(server, self._registry)
        renewer(self._alias).housekeeper.overrides.send_changes(server)
        _log(action, names[0].display, names=len(names), **details)
        record(action, self._name, self._key, self._using, **details, **self._note)
        return [one.display for one in names]


def _log(event: str, name: str, **details: object) -> None:
    extra = {f"sync_{key}": value for key, value in details.items()}
    extra |= {"sync_event": event, "sync_name": name}
    logger.info("operator: %s %r", event, name, extra=extra)
