"""Operators' overrides of policies: pauses, changed limits, and changed rates. Redis keys call them
"marks".

An override is stored once per policy, not once per key, because clients can make any number of
keys. Each acquire of a key sends the overrides of its policy to the server. So the overrides apply
to new keys too.

If this process hasn't used a policy lately, it reads the overrides before it acquires a key of the
policy. While policies are in use, the housekeeping thread reads all overrides every EVERY seconds,
with one command. If an override has changed, the thread sends the change to the server for each key
that has a waiter in this process. The server then grants free permits to waiters. If the overrides
can't be read, the last known overrides stay in force.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from ..logs import logger
from ..protocol.keys import Keys, PolicyOverrides, policies
from ..protocol.steps import Answer, Failure, Run
from .drivers import error_of
from .pools import retry_if_disconnected
from .server import Server
from .statistics import Use
from .wire import ATTEMPT, ROUND, batches, clock

#: Seconds between two reads of the overrides while a policy is in use.
EVERY = 0.7
#: Max age of overrides in seconds. If they are older, an acquire first tries to read them again.
STALE = 1.0
#: Seconds without use after which the housekeeping thread stops reading a policy's overrides.
IDLE = 5.0
_BATCH = 200


def operating(keys: Keys, how: str, value: str | int = "") -> Run:
    """Return the step for an operator's action on a name. `how`: the action, as one of these words:

    - "pause": pause the name. `value`: start and end of the pause (see `pause_of`), or "" for a
      pause from now on, without an end.
    - "resume": end the pause.
    - "resize": set the limit to `value`. If `value` is "PERMITS/MS", set the rate.
    - "reset": remove the limit and the rate that "resize" set.
    - "cool": begin a cool-down. `value`: its ms, and the label of the caller.
    - "poke": grant free permits to waiters, as far as the overrides of the policy allow.
    """
    return Run("operate", keys.declared, ("", how, value, keys.overrides, keys.keep), ATTEMPT)


def reading(registry: str) -> Run:
    """Return the step that reads all overrides. `registry`: the Redis key that stores them."""
    return Run("overrides", (registry,), (), ROUND)


#: For each Redis key that stores overrides: the overrides as last read, and the time of that read.
_read: dict[str, tuple[dict[str, str], float]] = {}


def take(registry: str, answer: Answer) -> bool:
    """Apply overrides to the policies of this process. `registry`: the Redis key from which the
    overrides were read. `answer`: the answer to that read. Return True if an override changed."""
    _read[registry] = dict(zip(answer.reply[::2], answer.reply[1::2], strict=True)), answer.sent
    changed = [_learn(policy) for policy in _of(registry)]
    return any(changed)


def _learn(policy: PolicyOverrides) -> bool:
    """Apply the last read overrides to `policy`. Return True if this changed the policy."""
    found, sent = _read.get(policy.registry, ({}, -math.inf))
    own = {field: found.get(f"{field}:{policy.quoted}", "0") for field in "plr"}
    overrides, exemptions = _text(*own.values()), dict[str, str]()
    for field in found:
        out, _, quoted = field.partition(":")
        if out in ("xp", "xl", "xr") and quoted.startswith(f"{policy.quoted}@"):
            left = ("0" if f"x{of}:{quoted}" in found else own[of] for of in own)
            exemptions[quoted] = _text(*left)
    policy.due = sent + STALE
    if (overrides, exemptions) == (policy.overrides, policy.exemptions):
        return False
    policy.overrides, policy.exemptions, policy.changed = overrides, exemptions, True
    return True


def _text(paused: str, limit: str, rate: str) -> str:
    if paused == limit == rate == "0":
        return "-"
    return f"{paused} {limit}" if rate == "0" else f"{paused} {limit}/{rate}"


def refresh(server: Server, registry: str) -> Answer:
    """Read all overrides now, apply them, and return the answer. If they can't be read, the last
    known overrides stay in force: raise Failure."""
    answer = retry_if_disconnected(lambda: server.run(reading(registry)))
    take(registry, answer)
    return answer


class OverridePoller:
    """The housekeeping chore for overrides of an alias. `uses`: a function that returns the leases
    and waiters of this process."""

    def __init__(self, uses: Callable[[], Iterable[Use]]) -> None:
        self.due, self._uses, self._readable = math.inf, uses, True

    def needed(self, policy: PolicyOverrides) -> bool:
        """Return True if the overrides must be read before a key of `policy` is acquired. Also
        schedule this chore, so that it reads the overrides regularly from now on."""
        now = policy.used = clock()
        if self.due == math.inf:
            self.due = now + EVERY
        if policy.due == -math.inf:  # first use: earlier answers may contain its overrides
            _learn(policy)
        return policy.due <= now

    def read(self, registry: str, answer: Answer) -> None:
        """Apply the overrides in `answer` to policies. If an override changed, make this chore due
        now, so that it sends the change to the server."""
        self._readable = True
        if take(registry, answer):
            self.due = 0.0

    def unreadable(self, registry: str, failure: Failure) -> None:
        """Keep the last known overrides in force, because a read failed. Log a warning, unless the
        previous read failed too."""
        now = clock()
        for policy in _of(registry):
            # Don't read again for STALE seconds. Otherwise, each acquire would try to read the
            # overrides first, and wait for a timeout.
            policy.due = now + STALE
        if self._readable:
            self._readable = False
            logger.warning(
                "operators' overrides can't be read: %s. The last known overrides stay in force",
                error_of(failure, reading(registry)),
            )

    def run(self, server: Server, now: float, leaving: bool) -> None:
        """Read all overrides. If an override changed, send it to the server, which then grants free
        permits to waiters."""
        if leaving:
            return
        registries = {policy.registry for policy in self._used(now)}
        for registry in registries:
            try:
                self.read(registry, server.run(reading(registry)))
            except Failure as failure:
                self.unreadable(registry, failure)
        self.due = now + EVERY if registries else math.inf
        self.send_changes(server)

    def send_changes(self, server: Server) -> None:
        """Send changed overrides to the server, once for each key that has a waiter in this
        process. The server then grants the free permits of the key to waiters."""
        changed = {policy for policy in list(policies.values()) if policy.changed}
        if not changed:
            return
        waited_for = {named.keys for named, _, waiting in self._uses() if waiting}
        for policy in changed:
            policy.changed = False
        names = [keys for keys in waited_for if keys.policy in changed]
        steps = [operating(keys, "poke")._replace(timeout=ROUND) for keys in names]
        for batch in batches(steps, _BATCH):
            server.many(batch)

    def _used(self, now: float) -> list[PolicyOverrides]:
        """Return the policies with waiters, holders, or recent acquires in this process."""
        known = list(policies.values())
        for named, *_ in self._uses() if known else ():
            if named.keys.policy is not None:
                named.keys.policy.used = now
        return [policy for policy in known if now - policy.used < IDLE]


def _of(registry: str) -> list[PolicyOverrides]:
    return [policy for (where, _), policy in list(policies.items()) if where == registry]
