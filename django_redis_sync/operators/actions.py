"""The acts of an operator: free, pause, resume, resize. Each takes effect in every process at once.

Each is recorded with `by` (the operator; by default the process's user) and `reason`.

A mark of a policy (`pause`, `resize` without a key) is kept once and holds for all of its keys: at
once in this process, within a second in the others (engine/marks.py). `resume` and `reset` of a
single key take that one out of it.

The a-twins run on a thread: people act seldom, and an act has a single implementation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async

from .. import conf
from ..engine.commands import command
from ..engine.drivers import error_of
from ..engine.keeper import keeper
from ..engine.marks import operating, refresh
from ..engine.pools import many_anew_if_cut
from ..engine.server import server_of
from ..engine.wire import ATTEMPT
from ..exceptions import WrongKind
from ..protocol.keys import Keys, keys_of, marks_key, split
from ..protocol.plans import Answer, Failure, Run
from ..protocol.scripts import MOST_PERMITS
from .audit import MOST_IDS, person, record
from .names import marked_key, marked_keys
from .status import Holder, Status, Waiter, status_of, statuses
from .words import display

logger = logging.getLogger("django_redis_sync")

_BATCH = 500


@dataclass(frozen=True, slots=True)
class Cleared:
    """The outcome for a holder or waiter. `done`: False when it had ended by itself."""

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
    """Take the lease, or the place in the queue, of those in `status` that `tokens` name.

    `tokens`: tokens or ids of `status.holders` and `status.waiters`. Later arrivals are not
    touched; the next waiter gets in at once; the evicted holder gets LeaseLost at its next renewal.
    ValueError for a token that `status` does not show, Unavailable when Redis can't be reached.
    """
    shown = {one.token: one for one in status.everyone}
    by_id = {one.id: one for one in shown.values()}
    chosen: dict[str, Holder | Waiter] = {}
    for token in tokens:
        one = shown.get(token) or by_id.get(token)
        if one is None:
            raise ValueError(f"{status.display!r} shows no holder or waiter {token[:8]!r}")
        chosen[one.token] = one
    keys = _keys(status.name, status.key, using)
    steps = [
        Run("clear", keys.declared, (token, keys.mark, keys.keep), ATTEMPT) for token in chosen
    ]
    cleared = []
    replies = _replies(steps, server_of(using or conf.current().cache).many(steps))
    for one, reply in zip(chosen.values(), replies, strict=True):
        cleared.append(Cleared(one.id, one, reply[0] == "ok", status.display))
        _log("cleared", status.display, id=one.id, done=reply[0] == "ok", **_who(one))
    ids = [one.id for one in cleared if one.done]
    if ids:
        said = {"by": by or person(), "reason": reason, "ids": ids[:MOST_IDS]}
        amount = len(ids) if len(ids) > MOST_IDS else None
        record("clear", status.name, status.key, using, **said, amount=amount)
    return cleared


def pause(
    name: str, key: str | None = None, using: str | None = None, *, by: str = "", reason: str = ""
) -> list[str]:
    """Grant nothing new, until `resume`; holders finish. The names paused, as people see them."""
    return _mark("pause", name, key, using, by, reason)


def resume(
    name: str, key: str | None = None, using: str | None = None, *, by: str = "", reason: str = ""
) -> list[str]:
    """Take `pause` back; waiters get in at once."""
    return _mark("resume", name, key, using, by, reason)


def resize(
    name: str,
    key: str | None,
    limit: int,
    using: str | None = None,
    *,
    by: str = "",
    reason: str = "",
) -> list[str]:
    """An operator's limit, above what the callers say, until `reset`. No holder is thrown out.

    TypeError or ValueError for no limit, WrongKind for a read/write lock, which has none.
    """
    conf.whole("limit", limit, MOST_PERMITS)
    if status_of(name, key, using=using).kind != "plain":
        raise WrongKind(f"{display(name, key)!r} is a read/write lock: it has no limit")
    return _mark("resize", name, key, using, by, reason, limit)


def reset(
    name: str, key: str | None = None, using: str | None = None, *, by: str = "", reason: str = ""
) -> list[str]:
    """Take `resize` back: the callers' limit rules again."""
    return _mark("reset", name, key, using, by, reason)


P = ParamSpec("P")
T = TypeVar("T")


def _twin(act: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """The act on a thread, for async code."""

    @wraps(act)
    async def twin(*args: P.args, **kwargs: P.kwargs) -> T:
        return await sync_to_async(act, thread_sensitive=False)(*args, **kwargs)

    twin.__name__ = twin.__qualname__ = f"a{act.__name__}"
    return twin


aclear, apause, aresume = _twin(clear), _twin(pause), _twin(resume)
aresize, areset = _twin(resize), _twin(reset)


def _mark(
    how: str,
    name: str,
    key: str | None,
    using: str | None,
    by: str,
    reason: str,
    value: int | None = None,
) -> list[str]:
    alias, keys = using or conf.current().cache, _keys(name, key, using)
    field = "p" if how in ("pause", "resume") else "l"
    # Of a policy, those of its children too that have a mark of their own or are taken out of its.
    own = marked_keys(name, field, using=using) if key is None else []
    names = [keys, *(_keys(name, one, using) for one in own)]
    if how in ("pause", "resize"):
        shown = names[:1]
        _set(alias, how, field, names, value)
    else:
        shown = names
        _take_back(alias, how, field, names)
        if key is not None and keys.marked(0, 0)["pl".index(field)]:  # by its policy
            _take_out(alias, field, keys)
    # At once in this process; the others see it within a second.
    keeper(alias).clerk.marks.poke(server_of(alias))
    _log(how, keys.display, names=len(shown), value=value)
    record(how, name, key, using, by=by or person(), reason=reason, limit=value)
    return [one.display for one in shown]


def _set(alias: str, how: str, field: str, names: Sequence[Keys], value: int | None) -> None:
    """Mark the first of `names`; the others are taken out of it no longer."""
    keys, registry = names[0], _marks(alias)
    # Listed before marked: nothing may stay paused that is not shown.
    since = int(command(alias, "TIME")[0]) * 1000
    command(alias, "HSET", registry, f"{field}:{keys.quoted}", value or since)
    _operate([operating(keys, how, value or "")], alias)
    command(alias, "HDEL", registry, *(f"x{field}:{one.quoted}" for one in names))
    refresh(server_of(alias), registry)


def _take_back(alias: str, how: str, field: str, names: Sequence[Keys]) -> None:
    for start in range(0, len(names), _BATCH):
        _operate([operating(one, how) for one in names[start : start + _BATCH]], alias)
    registry = _marks(alias)
    over = [f"{mark}:{one.quoted}" for one in names for mark in (field, f"x{field}")]
    command(alias, "HDEL", registry, *over)
    _unlist_marks_of_0_1(alias, names)
    refresh(server_of(alias), registry)


def _take_out(alias: str, field: str, keys: Keys) -> None:
    """Have the mark of its policy not speak of this key."""
    registry = _marks(alias)
    command(alias, "HSET", registry, f"x{field}:{keys.quoted}", 1)
    refresh(server_of(alias), registry)


def _unlist_marks_of_0_1(alias: str, names: Sequence[Keys]) -> None:
    """Version 0.1 listed marked names in a sorted set."""
    prefix = conf.current().prefix(alias)
    found = statuses([split(k.quoted) for k in names], using=alias, rows=1)
    over = [
        keys.quoted
        for keys, one in zip(names, found, strict=True)
        if not one.paused and one.override is None
    ]
    if over:
        command(alias, "ZREM", marked_key(prefix), *over)


def _marks(alias: str) -> str:
    """The hash of all marks."""
    return marks_key(conf.current().prefix(alias))


def _keys(name: str, key: str | None, using: str | None) -> Keys:
    config = conf.current()
    return keys_of(config.prefix(using or config.cache), name, key, config.keep(key))


def _operate(steps: list[Run], alias: str) -> None:
    """Steps of marks: they may be done twice. Unavailable when any of them failed."""
    _replies(steps, many_anew_if_cut(server_of(alias).many, steps))


def _replies(steps: Iterable[Run], answers: Iterable[Answer | Failure]) -> list[list[str]]:
    """In order. Unavailable when any of them failed; the others took effect."""
    replies = []
    for step, answer in zip(steps, answers, strict=True):
        if isinstance(answer, Failure):
            raise error_of(answer, step) from answer.cause
        replies.append(answer.reply)
    return replies


def _who(one: Holder | Waiter) -> dict[str, object]:
    return {key: one.label[key] for key in ("host", "pid", "user", "request") if key in one.label}


def _log(event: str, name: str, **details: object) -> None:
    extra = {f"sync_{key}": value for key, value in details.items()}
    extra |= {"sync_event": event, "sync_name": name}
    logger.info("operator: %s %r", event, name, extra=extra)
