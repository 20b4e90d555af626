"""Data for operators' lists of names. The registry contains the names that were used lately. The
label of a lease describes its holder."""

from __future__ import annotations

import json
import math
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from .. import conf
from ..logs import logger
from ..protocol.keys import Keys, quote
from ..protocol.steps import Failure
from .server import Server, server_of
from .statistics import Use
from .wire import ROUND, clock

#: Seconds after which a name in use is written to the registry again.
REGISTER_EVERY = 60.0
#: Min seconds between two writes of new names.
REGISTER_AFTER = 0.3
#: Days without use after which a name is no longer listed.
KEPT_DAYS = 1
#: Max entries of a registry. The least recently used ones are removed.
MAX_REGISTERED = 100_000


def names_key(prefix: str) -> str:
    """Return the Redis key of the registry of names, a sorted set of quoted names. The score of a
    name is the server time of its last use, in ms. A policy has one entry, `POLICY@`, for all of
    its keys. The keys are listed in a separate registry: see `policy_key`."""
    return f"{quote(prefix)}:names"


def policy_key(prefix: str, name: str) -> str:
    """Return the Redis key of the registry that lists a policy's keys. The keys are not in the
    registry of names, because clients can make any number of keys, and so displace other names."""
    return f"{quote(prefix)}:{{{quote(name)}}}:keys"


def quorums_key(prefix: str) -> str:
    """Return the Redis key of a sorted set of the names that are locked on quorums. Each entry is
    JSON: `[quoted name, [alias, ...]]`. Its score is the server time of the last use, in ms."""
    return f"{quote(prefix)}:quorums"


class Names:
    """The housekeeping chore that writes the names in use to the registry. `uses`: a function that
    returns the leases and waiters of this process.

    `registered`: the names that don't have to be written again in the current minute.
    """

    # Invariant: while `registered` is not empty, `due` is at or before the end of the minute.
    def __init__(self, uses: Callable[[], Iterable[Use]]) -> None:
        self._uses = uses
        self.registered: set[str] = set()
        self.due = self._minute_ends = math.inf
        self._fresh: deque[Keys] = deque()  # names that are not yet written
        self._not_before = 0.0
        #: When to remove old entries next, by alias and registry.
        self._trim_at: dict[tuple[str, str], float] = {}

    def add(self, keys: Keys) -> None:
        if len(self.registered) < MAX_REGISTERED:
            now = clock()
            self.registered.add(keys.leases)
            self._fresh.append(keys)
            self._minute_ends = min(self._minute_ends, now + REGISTER_EVERY)
            self.due = min(self.due, max(now, self._not_before))

    def run(self, server: Server, now: float, leaving: bool) -> None:
        """Write the names that were added since the last run. Once a minute, write the names of all
        leases of this process again."""
        if now >= self._minute_ends and not leaving:
            self._minute_ends = math.inf
            self.registered.clear()
            for named, in_use, _ in self._uses():
                if in_use and named.keys.leases not in self.registered:
                    self.add(named.keys)
        self._not_before = now + REGISTER_AFTER
        fresh = [self._fresh.popleft() for _ in range(len(self._fresh))]
        try:
            self._write(server, fresh, now)
        except Failure:
            self._fresh.extend(fresh[: MAX_REGISTERED - len(self._fresh)])
            raise
        self.due = min(self._minute_ends, self._not_before if self._fresh else math.inf)

    def _write(self, server: Server, fresh: list[Keys], now: float) -> None:
        if not fresh:
            return
        seconds, _ = server.command("TIME", timeout=ROUND)
        ms = int(seconds) * 1000
        for registry, members in _by_registry(fresh).items():
            self._put(server, registry, list(members), ms, now)
        if quorum := getattr(server, "quorum", None):
            self._enter_quorum(quorum, [keys.quoted for keys in fresh], ms, now)

    def _enter_quorum(self, quorum: Any, names: list[str], ms: int, now: float) -> None:
        """Write the names of locks on a quorum to each server of the quorum, and to the cache that
        REDIS_SYNC names. Operators' lists of names are read from this cache."""
        config = conf.current()
        entries = [json.dumps([name, quorum.aliases]) for name in names]
        for alias in dict.fromkeys((config.cache, *quorum.aliases)):
            prefix = config.prefix(alias)
            try:
                self._put(server_of(alias), quorums_key(prefix), entries, ms, now)
                self._put(server_of(alias), names_key(prefix), names, ms, now)
            except Failure as failure:  # other servers of the quorum still list the names
                logger.debug("could not list names of a quorum on %r: %s", alias, failure)

    def _put(self, server: Server, registry: str, members: list[str], ms: int, now: float) -> None:
        """Add `members` to a registry, with the score `ms`. Once a minute, also remove the members
        that were not used for KEPT_DAYS days, and the oldest ones beyond MAX_REGISTERED."""
        for start in range(0, len(members), 1000):
            words = [word for member in members[start : start + 1000] for word in (ms, member)]
            server.command("ZADD", registry, *words, timeout=ROUND)
        if now >= self._trim_at.get((server.alias, registry), 0.0):
            kept = KEPT_DAYS * 86_400_000
            server.command("ZREMRANGEBYSCORE", registry, "-inf", ms - kept, timeout=ROUND)
            server.command("ZREMRANGEBYRANK", registry, 0, -1 - MAX_REGISTERED, timeout=ROUND)
            server.command("PEXPIRE", registry, 2 * kept, timeout=ROUND)
            if len(self._trim_at) >= MAX_REGISTERED:
                self._trim_at.clear()
            self._trim_at[server.alias, registry] = now + REGISTER_EVERY


def _by_registry(fresh: list[Keys]) -> dict[str, dict[str, None]]:
    """Return the entries to write for the names `fresh`, grouped by the registry's Redis key."""
    found: dict[str, dict[str, None]] = {}
    for keys in fresh:
        policy, at, key = keys.quoted.partition("@")
        found.setdefault(f"{keys.prefix}:names", {})[policy + at] = None
        if at:
            found.setdefault(f"{keys.prefix}:{{{policy}}}:keys", {})[key] = None
    return found


# Labels help operators to recognize holders. A label is JSON text of limited size. Other programs
# may write into Redis, so the code doesn't trust the content of a label.

#: Max characters of a field of a label.
MAX_LABEL = 200
LABEL_FIELDS = ("host", "pid", "thread", "label", "user", "request")


def _label(pid: int, thread: str, label: str, user: str, request: str) -> str:
    values = (socket.gethostname(), pid, thread, label, user, request)
    fields = {key: v for key, v in zip(LABEL_FIELDS, values, strict=True) if v != ""}
    return json.dumps(_cut(fields), separators=(",", ":"))


_cached_label = lru_cache(maxsize=1024)(_label)


def _cut(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: v[:MAX_LABEL] if isinstance(v, str) else v for key, v in fields.items()}


def write_label(label: str = "", user: str = "", request: str = "") -> str:
    """Return a label as ASCII JSON. It contains the host, the process, the thread, and those
    arguments that are not empty."""
    write = _label if request else _cached_label  # not cached: each request differs
    return write(os.getpid(), threading.current_thread().name, label, user, request)


def read_label(text: str) -> dict[str, Any]:
    """Return the fields of a label that `write_label` made. Return {} for any other text."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(values, dict):
        return {}
    return _cut({k: values[k] for k in LABEL_FIELDS if isinstance(values.get(k), (str, int))})
