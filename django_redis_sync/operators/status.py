"""Read the status of names, in one round trip per batch, for the command, the admin pages, and
`status()`. A lock on a quorum is read from all of its servers, and shown as one lock."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from asgiref.sync import sync_to_async

from .. import conf
from ..engine.drivers import adrive, drive
from ..engine.overrides import reading, refresh, take
from ..engine.pools import retry_many_if_disconnected
from ..engine.quorum import Quorum
from ..engine.server import async_server_of, server_of
from ..engine.wire import ATTEMPT, batches, clock
from ..exceptions import SyncError
from ..protocol.keys import Keys, split
from ..protocol.steps import Failure, Plan, Run, run_once
from .facts import Holder, Member, Status, Unread, status_from
from .families import Pair
from .names import configured, keys_for, quorums
from .reads import failed

#: Max holders, and max waiters, that are read for a name.
MAX_ROWS = 200
#: Max names that are read in one round trip.
_BATCH = 500


def idle(name: str, alias: str) -> Status:
    """Return the status of a plain name that was never used, without reading Redis. The overrides
    are those that this process has read last."""
    keys = keys_for(name, "-", alias)  # any key: the status of a key has its policy's overrides
    reply = [str(int(time.time() * 1000)), "", "", "", "", "", "0", "0", "0", [], [], []]
    found = status_from(keys, reply, configured().get(name))
    return replace(found, key=None)


def status_of(name: str, key: str | None = None, *, using: str | None = None) -> Status:
    """Return the status of a name, or of the key `key` of a policy. Raise Unavailable if Redis
    can't be reached."""
    alias = using or conf.current().cache
    if isinstance(alias, Quorum):
        return _quorum_status(name, alias, MAX_ROWS)
    keys = keys_for(name, key, alias)
    return status_from(keys, drive(_look(keys), server_of(alias)), configured().get(name))


async def astatus_of(name: str, key: str | None = None, *, using: str | None = None) -> Status:
    """Async version of `status_of()`."""
    alias = using or conf.current().cache
    if isinstance(alias, Quorum):
        return await sync_to_async(status_of, thread_sensitive=False)(name, key, using=alias)
    keys = keys_for(name, key, alias)
    reply = await adrive(_look(keys), async_server_of(alias))
    return status_from(keys, reply, configured().get(name))


def _look(keys: Keys) -> Plan:
    if keys.policy is not None:
        with contextlib.suppress(Failure):  # if the read fails, use the overrides known so far
            take(keys.policy.registry, (yield reading(keys.policy.registry)))
    return (yield from run_once("inspect", keys, _arguments(keys, MAX_ROWS), ATTEMPT, clock()))


def _arguments(keys: Keys, rows: int) -> tuple[Any, ...]:
    """Return the arguments of the script `inspect`. Of the policy's overrides, the script needs the
    rate, to count what was used. `status_from` adds the others."""
    rate = keys.rate_override
    return ("", rows, f"0 0/{rate}") if rate else ("", rows)


def statuses(
    names: Iterable[Pair], *, using: str | None = None, rows: int = MAX_ROWS
) -> list[Status]:
    """Return the status of several names, in a round trip per _BATCH of them. Raise Unavailable if
    any name can't be read."""
    found = []
    for one in _read(names, using, rows):
        if isinstance(one, Unread):
            raise one.error from one.error.__cause__
        found.append(one)
    return found


def readable(
    names: Iterable[Pair], *, using: str | None = None, rows: int = MAX_ROWS
) -> tuple[list[Status], list[Unread]]:
    """Return two lists: the status of each name that can be read, and the names that can't be read.
    A name can't be read if a node is down or another program wrote a value into a key. Raise the
    first error if no name can be read."""
    every = list(_read(names, using, rows))
    found = [one for one in every if isinstance(one, Status)]
    unread = [one for one in every if isinstance(one, Unread)]
    if unread and not found:
        raise unread[0].error
    return found, unread


def _read(names: Iterable[Pair], using: str | None, rows: int) -> Iterator[Status | Unread]:
    alias, wanted = using or conf.current().cache, list(names)
    on_quorums = quorums(alias) if any(key is None for _, key in wanted) else {}
    if isinstance(alias, Quorum):
        on_quorums = dict.fromkeys((name for name, _ in wanted), alias)
    single = [keys_for(*pair, alias) for pair in wanted if pair[1] or pair[0] not in on_quorums]
    views = _views(single, alias, rows)
    for name, key in wanted:
        if key is None and name in on_quorums:
            try:
                yield _quorum_status(name, on_quorums[name], rows)
            except SyncError as error:
                yield Unread(name, key, error)
        else:
            yield next(views)


def _quorum_status(name: str, quorum: Quorum, rows: int) -> Status:
    """Read the status of a name on each server of a quorum, and combine them into one. Raise the
    first error if fewer than a majority answered.

    A token is shown as a holder if a majority of the servers may have it. A server without an
    answer may have every token. So a lock is shown as free only if that is certain.
    """
    keys = keys_for(name, None, quorum)
    views = {alias: view for alias in quorum.aliases for view in _views([keys], alias, rows)}
    seen = {alias: view for alias, view in views.items() if isinstance(view, Status)}
    errors = {alias: view.error for alias, view in views.items() if isinstance(view, Unread)}
    if len(seen) < quorum.need:
        raise next(iter(errors.values()))
    members = tuple(
        Member(alias, error=errors[alias])
        if alias in errors
        else Member(alias, tuple(h.id for h in seen[alias].holders), seen[alias].paused)
        for alias in quorum.aliases
    )
    holders = _holders([h for view in seen.values() for h in view.holders], quorum, len(errors))
    paused = [view for view in seen.values() if view.paused]
    is_paused = len(paused) + len(errors) > len(quorum.aliases) - quorum.need
    first = min(paused, key=lambda view: str(view.paused_since), default=None)
    return replace(
        max(seen.values(), key=lambda view: view.at),
        in_use=len(holders),
        holding=len(holders),
        holders=holders,
        limit=1,
        paused_since=first.paused_since if first and is_paused else None,
        paused_until=first.paused_until if first and is_paused else None,
        fence=max(view.fence for view in seen.values()),
        members=members,
    )


def _holders(found: Iterable[Holder], quorum: Quorum, silent: int) -> tuple[Holder, ...]:
    by_token: dict[str, list[Holder]] = {}
    for holder in found:
        by_token.setdefault(holder.token, []).append(holder)
    holders = []
    for same in by_token.values():
        if len(same) + silent >= quorum.need:
            # The lease ends when fewer than a majority of the servers have it.
            ends = sorted([h.ends_in for h in same] + [math.inf] * silent, reverse=True)
            ends_in = min(ends[quorum.need - 1], max(h.ends_in for h in same))
            holders.append(replace(same[0], ends_in=ends_in))
    return tuple(sorted(holders, key=lambda holder: holder.fence))


def _views(wanted: Sequence[Keys], alias: str, rows: int) -> Iterator[Status | Unread]:
    """Yield each name's Status on the server of `alias`, or an Unread if the read fails."""
    if not wanted:
        return
    server, limits = server_of(alias), configured()
    # Read the overrides of policies if they are out of date.
    policies = [keys.policy for keys in wanted if keys.policy is not None]
    for registry in {policy.registry for policy in policies if policy.due <= clock()}:
        with contextlib.suppress(Failure):
            refresh(server, registry)
    for batch in batches(wanted, _BATCH):
        steps = [Run("inspect", keys.declared, _arguments(keys, rows), ATTEMPT) for keys in batch]
        answers = retry_many_if_disconnected(server.many, steps)
        for keys, step, answer in zip(batch, steps, answers, strict=True):
            name, key = split(keys.quoted)
            if isinstance(answer, Failure):
                yield Unread(name, key, failed(answer, step))
            else:
                yield status_from(keys, answer.reply, limits.get(name))
