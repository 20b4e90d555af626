"""Operators' overrides of policies. Redis keys call them `marks`.

An override is stored once per policy, not once per key, because clients can make any number of
keys. Each acquire of a key sends the overrides of its policy, so that they apply to new keys too.

If this process hasn't used a policy lately, it reads the overrides before it acquires a key of the
policy. While policies are in use, the housekeeping thread reads all overrides every EVERY seconds,
with one command. If an override has changed, the thread sends it for each key for which this
process waits. The server then grants free permits to waiters. If the overrides can't be read, the
last known overrides stay in force.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress

from ..logs import logger
from ..protocol.keys import Keys, Policy, policies
from ..protocol.steps import Answer, Failure, Run
from .drivers import error_of
from .pools import retry_if_disconnected
from .server import Server
from .statistics import Use
from .wire import ATTEMPT, ROUND, clock

#: Seconds between two reads of the overrides while a policy is in use.
EVERY = 0.7
#: An acquire doesn't use overrides that were read more than this many seconds ago.
STALE = 1.0
#: Seconds without use after which the housekeeping thread stops reading a policy's overrides.
IDLE = 5.0
_BATCH = 200


def operating(keys: Keys, how: str, value: str | int = "") -> Run:
    """Return the step of an operator's action on a name. `how`: the action, as one of these words:

    - "pause": pause the name. `value`: start and end of the pause (see `pause_of`), or "" for a
      pause from now on, without an end.
    - "resume": end the pause.
    - "resize": set the limit to `value`.
    - "reset": remove the limit that "resize" set.
    - "poke": grant free permits to waiters, as far as the overrides of the policy allow.
    """
    return Run("operate", keys.declared, ("", how, value, keys.mark, keys.keep), ATTEMPT)


def reading(registry: str) -> Run:
    """Return the step that reads all overrides."""
    return Run("marks", (registry,), (), ROUND)


#: The overrides as last read, and the time of that read, by the Redis key of the overrides.
_read: dict[str, tuple[dict[str, str], float]] = {}


def take(registry: str, answer: Answer) -> bool:
    """Apply the overrides that were read from the Redis key `registry` to the policies of this
    process. `answer`: the answer to `reading`. Return True if the override of a policy changed."""
    _read[registry] = dict(zip(answer.reply[::2], answer.reply[1::2], strict=True)), answer.sent
    changed = [_learn(policy) for policy in _of(registry)]
    return any(changed)


def _learn(policy: Policy) -> bool:
    """Apply the overrides that were read last to a policy. Return True if its override changed."""
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
    """Read all overrides now. If they can't be read, the last known overrides stay in force, and
    the housekeeping thread reads them soon."""
    with suppress(Failure):
        take(registry, retry_if_disconnected(lambda: server.run(reading(registry))))


class OverridePoller:
    """The housekeeping job for overrides of an alias. `uses`: a function that returns the leases
    and waiters of this process."""

    def __init__(self, uses: Callable[[], Iterable[Use]]) -> None:
        self.due, self._uses, self._readable = math.inf, uses, True

    def needed(self, policy: Policy) -> bool:
        """Return True if the overrides must be read before a key of `policy` is acquired. Also
        schedule this job, which reads them from now on."""
        now = policy.used = clock()
        if self.due == math.inf:
            self.due = now + EVERY
        if policy.due == -math.inf:  # first use: its overrides may already be in _read
            _learn(policy)
        return policy.due <= now

    def read(self, registry: str, answer: Answer) -> None:
        """Apply the overrides in `answer` to policies. If an override changed, let the job run at
        once, so that it sends the change to waiters."""
        self._readable = True
        if take(registry, answer):
            self.due = 0.0

    def unreadable(self, registry: str, failure: Failure) -> None:
        """Keep the last known overrides in force. Log a warning for the first of several
        failures."""
        now = clock()
        for policy in _of(registry):
            # Without this delay, every acquire would read again and wait for the read's timeout.
            policy.due = now + STALE
        if self._readable:
            self._readable = False
            logger.warning(
                "operators' overrides can't be read: %s. The last known overrides stay in force",
                error_of(failure, reading(registry)),
            )

    def tend(self, server: Server, now: float, leaving: bool) -> None:
        """Read all overrides. If an override changed, send it to the waiters of this process."""
        if leaving:
            return
        registries = {policy.registry for policy in self._used(now)}
        for registry in registries:
            try:
                self.read(registry, server.run(reading(registry)))
            except Failure as failure:
                self.unreadable(registry, failure)
        self.due = now + EVERY if registries else math.inf
        self.poke(server)

    def poke(self, server: Server) -> None:
        """Grant free permits to waiters, because overrides have changed. For each key of such a
        policy for which this process has a waiter, send the server the new overrides."""
        stirred = {policy for policy in list(policies.values()) if policy.stirred}
        if not stirred:
            return
        waited_for = {named.keys for named, _, waiting in self._uses() if waiting}
        for policy in stirred:
            policy.stirred = False
        names = [keys for keys in waited_for if keys.policy in stirred]
        steps = [operating(keys, "poke")._replace(timeout=ROUND) for keys in names]
        for start in range(0, len(steps), _BATCH):
            server.many(steps[start : start + _BATCH])

    def _used(self, now: float) -> list[Policy]:
        """Return the policies with waiters, holders, or recent acquires in this process."""
        known = list(policies.values())
        for named, *_ in self._uses() if known else ():
            if named.keys.policy is not None:
                named.keys.policy.used = now
        return [policy for policy in known if now - policy.used < IDLE]


def _of(registry: str) -> list[Policy]:
    return [policy for (where, _), policy in list(policies.items()) if where == registry]
