"""Operators' marks on policies: read by the processes that use them, carried by their children.

A mark is kept once, on the policy: keys are made by clients, policies by their owner. An ask for
a permit of a child carries the marks of its policy, so that a child that was never
heard of is paused and resized like all others, and nothing is written for it.

A policy that this process did not use lately is read up before the first ask. While it is used the
clerk reads all marks once a second, with a single command, and lets waiters of this process in
where a mark was taken back or grew. Where they can't be read, those last known stay in force.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain

from ..logs import logger
from ..protocol.keys import Keys, Policy, policies
from ..protocol.steps import Answer, Failure, Run
from .drivers import error_of
from .pools import retry_if_disconnected
from .server import Server
from .wire import ATTEMPT, ROUND, clock

#: Seconds between two reads while a policy is used, after which a mark is too old to ask with,
#: and for which reading goes on after the last use.
EVERY, STALE, IDLE = 0.7, 1.0, 5.0
_BATCH = 200


def operating(keys: Keys, how: str, value: str | int = "") -> Run:
    """The step of an operator's mark: pause, resume, resize to `value`, or reset; or poke, which
    lets waiters in where marks allow it."""
    return Run("operate", keys.declared, ("", how, value, keys.mark, keys.keep), ATTEMPT)


def reading(registry: str) -> Run:
    """The step that reads all marks."""
    return Run("marks", (registry,), (), ROUND)


#: The marks read last, and when, by registry.
_read: dict[str, tuple[dict[str, str], float]] = {}


def take(registry: str, answer: Answer) -> bool:
    """Have this process' policies know their marks. Whether any changed."""
    _read[registry] = dict(zip(answer.reply[::2], answer.reply[1::2], strict=True)), answer.sent
    changed = [_learn(policy) for policy in _of(registry)]
    return any(changed)


def _learn(policy: Policy) -> bool:
    """Have a policy know its marks as they were read last. Whether they changed."""
    marks, sent = _read.get(policy.registry, ({}, -math.inf))
    paused, limit = (marks.get(f"{field}:{policy.quoted}", "0") for field in "pl")
    mark, exempt = _mark(paused, limit), dict[str, str]()
    for field in marks:
        out, _, quoted = field.partition(":")
        if out in ("xp", "xl") and quoted.startswith(f"{policy.quoted}@"):
            free = {of for of in "pl" if f"x{of}:{quoted}" in marks}
            exempt[quoted] = _mark("0" if "p" in free else paused, "0" if "l" in free else limit)
    policy.due = sent + STALE
    if (mark, exempt) == (policy.mark, policy.exempt):
        return False
    policy.mark, policy.exempt, policy.stirred = mark, exempt, True
    return True


def _mark(paused: str, limit: str) -> str:
    return "-" if paused == limit == "0" else f"{paused} {limit}"


def refresh(server: Server, registry: str) -> None:
    """Have this process see all marks now. Where they can't be read, those last known stay in
    force, and the clerk reads them soon."""
    with suppress(Failure):
        take(registry, retry_if_disconnected(lambda: server.run(reading(registry))))


class OverridePoller:
    """The clerk's book of marks, for an alias. `in_use`, `waiting`: names of the leases held now,
    and names that this process waits for."""

    unwritten = False  # it is only read

    def __init__(
        self, in_use: Callable[[], Iterable[Keys]], waiting: Callable[[], Iterable[Keys]]
    ) -> None:
        self.due = math.inf
        self._in_use, self._waiting, self._readable = in_use, waiting, True

    def hurry(self) -> None:
        """Nothing has to be done at the end of a process."""

    def needed(self, policy: Policy) -> bool:
        """Whether to read the marks before a child of `policy` is asked for. They are kept fresh
        from now on."""
        now = policy.used = clock()
        if self.due == math.inf:
            self.due = now + EVERY
        if policy.due == -math.inf:  # new here: the last read may have said something of it
            _learn(policy)
        return policy.due <= now

    def read(self, registry: str, answer: Answer) -> None:
        """Take the marks read. Changes are told to waiters with the clerk's next look."""
        self._readable = True
        if take(registry, answer):
            self.due = 0.0

    def unreadable(self, registry: str, failure: Failure) -> None:
        """The last known stay in force, and it is said once."""
        now = clock()
        for policy in _of(registry):
            policy.due = now + STALE  # else everybody would try, and wait as long
        if self._readable:
            self._readable = False
            logger.warning(
                "operators' marks can't be read, those last known stay in force: %s",
                error_of(failure, reading(registry)),
            )

    def tend(self, server: Server, now: float) -> None:
        """Read all marks anew, and let waiters of this process in where they changed."""
        registries = {policy.registry for policy in self._used(now)}
        self.due = now + EVERY if registries else math.inf
        for registry in registries:
            try:
                answer = server.run(reading(registry))
            except Failure as failure:
                self.unreadable(registry, failure)
            else:
                self._readable = True
                take(registry, answer)
        self.poke(server)

    def poke(self, server: Server) -> None:
        """Have the names for which this process waits look at the changes."""
        stirred = {policy for policy in list(policies.values()) if policy.stirred}
        if not stirred:
            return
        names = {keys for keys in self._waiting() if keys.policy in stirred}
        for policy in stirred:
            policy.stirred = False
        steps = [operating(keys, "poke")._replace(timeout=ROUND) for keys in names]
        for start in range(0, len(steps), _BATCH):
            server.many(steps[start : start + _BATCH])

    def _used(self, now: float) -> list[Policy]:
        """The policies with waiters, holders or recent asks in this process."""
        known = list(policies.values())
        busy = [self._waiting()]
        if any(now - policy.used >= IDLE for policy in known):
            busy.append(self._in_use())
        for keys in chain(*busy):
            if keys.policy is not None:
                keys.policy.used = now
        return [policy for policy in known if now - policy.used < IDLE]


def _of(registry: str) -> list[Policy]:
    return [policy for (where, _), policy in list(policies.items()) if where == registry]
