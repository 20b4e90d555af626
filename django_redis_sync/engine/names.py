"""Data for operators' lists of names. The registry contains the names that were used lately. The
label of a lease describes its holder."""

from __future__ import annotations

import json
import math
import os
import socket
import threading
from asyncio import _get_running_loop as running_loop
from asyncio import current_task
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from json.encoder import encode_basestring_ascii
from typing import Any

from django.conf import settings

from .. import conf
from ..logs import logger
from ..protocol.keys import Keys, quote, shortened, unquote
from ..protocol.steps import Failure
from .mutex import Mutex
from .server import Server, server_of
from .statistics import Use
from .wire import ROUND, batches, clock, decoded, pairs_of

#: Seconds after which a name in use is written to the registry again.
REGISTER_EVERY = 60.0
#: Min seconds between two writes of new names.
REGISTER_AFTER = 0.3
#: Days without use after which a name is no longer listed.
KEPT_DAYS = 1
#: Max entries of a registry. The least recently used ones are removed.
MAX_REGISTERED = 100_000
#: From this many names with the same text before the first `:`, the names are listed as a family.
FOLD_FROM = 20
#: Max entries of a registry that a command reads or writes.
_CHUNK = 1000
#: Seconds between two searches of a process for names to fold, if the registry of names has more
#: than _CHUNK entries. Each search reads all of them.
_SEARCH_EVERY = 600.0
#: Max projects that are listed for a prefix.
MAX_PROJECTS = 20
#: The end of the entry of a family in the registry of names. No quoted name has this character.
FAMILY = "{"


def names_key(prefix: str) -> str:
    """Return the Redis key of the registry of names, a sorted set of quoted names. The score of a
    name is the server time of its last use, in ms. A policy has one entry, `POLICY@`, for all of
    its keys. The keys are listed in a separate registry: see `policy_key`."""
    return f"{quote(prefix)}:names"


def families_key(prefix: str) -> str:
    """Return the Redis key of a sorted set of the quoted families. A family is a group of names
    that are made from values: the names of a template of `synchronized`, or FOLD_FROM names and
    more with the same text before the first `:`. The score is the server time of the last use, in
    ms."""
    return f"{quote(prefix)}:families"


def family_key(prefix: str, family: str) -> str:
    """Return the Redis key of the registry that lists the names of a family. These names are not in
    the registry of names, where the family has one entry: its quoted text and FAMILY."""
    return f"{quote(prefix)}:{{{quote(family)}}}:made"


def family_of(name: str, template: str = "") -> str:
    """Return the family of a name, such as "invoice:{pk}" if `template` is given, or else
    "invoice:*". Return "" if a name can't be in a family."""
    begin, colon, _ = name.partition(":")
    found = template or (f"{begin}:*" if colon else "")
    return shortened(found) if found else ""


def projects_key(prefix: str) -> str:
    """Return the Redis key of a sorted set of the projects that use the prefix, each as `ID:NAME`.
    ID: see `project`. NAME: its ROOT_URLCONF. The score is the server time of the last use, in
    ms."""
    return f"{quote(prefix)}:projects"


def project() -> str:
    """Return an ID of the project: a digest that depends on its secret key. All processes of a
    project have the same."""
    return conf.digest("django_redis_sync.project", "")[:12]


def policy_key(prefix: str, name: str) -> str:
    """Return the Redis key of the registry that lists a policy's keys. The keys are not in the
    registry of names, because clients can make any number of keys, and so displace other names."""
    return f"{quote(prefix)}:{{{quote(name)}}}:keys"


def quorums_key(prefix: str) -> str:
    """Return the Redis key of a sorted set of the names that are locked on quorums. Each entry is
    JSON: `[quoted name, [alias, ...]]`. Its score is the server time of the last use, in ms."""
    return f"{quote(prefix)}:quorums"


#: A name that is not yet written to the registry, and its template.
Fresh = tuple[Keys, str]


class Names:
    """The housekeeping chore that writes the names in use to the registry. `uses`: a function that
    returns the leases and waiters of this process.

    `registered`: the names that don't have to be written again in the current minute. `families`:
    the families without a template that this process knows, as pairs (quoted prefix, quoted
    family).
    """

    # Invariant: while `registered` is not empty, `due` is at or before the end of the minute.
    def __init__(self, uses: Callable[[], Iterable[Use]]) -> None:
        self._uses = uses
        self._writing = Mutex()  # of the housekeeping thread, and of an operator's command
        self.registered: set[str] = set()
        self.families: set[tuple[str, str]] = set()
        self.due = self._minute_ends = math.inf
        self._fresh: deque[Fresh] = deque()  # names that are not yet written
        self._not_before = self._search_at = 0.0
        #: When to remove old entries next, by alias and registry.
        self._trim_at: dict[tuple[str, str], float] = {}

    def add(self, keys: Keys, template: str) -> None:
        if len(self.registered) < MAX_REGISTERED:
            now = clock()
            self.registered.add(keys.leases)
            self._fresh.append((keys, template))
            self._minute_ends = min(self._minute_ends, now + REGISTER_EVERY)
            self.due = min(self.due, max(now, self._not_before))

    def run(self, server: Server, now: float, leaving: bool) -> None:
        """Write the names that were added since the last run. Once a minute, write the names of all
        leases of this process again."""
        self._writing.run(partial(self._run, server, now, leaving))

    def _run(self, server: Server, now: float, leaving: bool) -> None:
        if now >= self._minute_ends and not leaving:
            self._minute_ends = math.inf
            self.registered.clear()
            for named, in_use, _ in self._uses():
                if in_use and named.keys.leases not in self.registered:
                    self.add(named.keys, named.template)
        self._not_before = now + REGISTER_AFTER
        fresh = [self._fresh.popleft() for _ in range(len(self._fresh))]
        try:
            self._write(server, fresh, now)
        except Failure:
            self._fresh.extend(fresh[: MAX_REGISTERED - len(self._fresh)])
            raise
        self.due = min(self._minute_ends, self._not_before if self._fresh else math.inf)

    def group(self, keys: Keys, template: str) -> str:
        """Return the quoted name of the group whose statistics include a name: its policy, or its
        family. Return "" if there is none."""
        if keys.policy is not None:
            return keys.policy.quoted
        if not template and not self.families:
            return ""
        family = quote(family_of(keys.display, template))
        return family if template or (keys.prefix, family) in self.families else ""

    def _write(self, server: Server, fresh: list[Fresh], now: float) -> None:
        if not fresh or not getattr(server, "lists_names", True):
            return
        seconds, _ = server.command("TIME", timeout=ROUND)
        ms = int(seconds) * 1000
        if quorum := getattr(server, "quorum", None):
            names = [keys.quoted for keys, _ in fresh]
            self._put(server, f"{fresh[0][0].prefix}:names", dict.fromkeys(names, ms), ms, now)
            self._enter_quorum(quorum, names, ms, now)
            return
        for prefix in {keys.prefix for keys, _ in fresh}:
            mine = [one for one in fresh if one[0].prefix == prefix]
            registry = _Registry(self, server, prefix, ms, now)
            if registry.enter(mine) and now >= self._search_at:
                is_large = registry.fold_newest() and registry.fold_all()
                self._search_at = now + _SEARCH_EVERY if is_large else 0.0

    def _enter_quorum(self, quorum: Any, names: list[str], ms: int, now: float) -> None:
        """Write the names of locks on a quorum to each server of the quorum, and to the cache that
        REDIS_SYNC names. Operators' lists of names are read from this cache."""
        config = conf.current()
        entries = [json.dumps([name, quorum.aliases]) for name in names]
        for alias in dict.fromkeys((config.cache, *quorum.aliases)):
            prefix = config.prefix(alias)
            try:
                server = server_of(alias)
                self._put(server, quorums_key(prefix), dict.fromkeys(entries, ms), ms, now)
                self._put(server, names_key(prefix), dict.fromkeys(names, ms), ms, now)
            except Failure as failure:  # other servers of the quorum still list the names
                logger.debug("could not list names of a quorum on %r: %s", alias, failure)

    def _enter_project(self, server: Server, prefix: str, ms: int, now: float) -> None:
        """Once a minute, list this project among those that use the prefix."""
        key = f"{prefix}:projects"
        if now >= self._trim_at.get((server.alias, key), 0.0):
            name = getattr(settings, "ROOT_URLCONF", "")
            self._put(server, key, {f"{project()}:{name}": ms}, ms, now)

    def _put(
        self, server: Server, registry: str, scores: Mapping[str, int], ms: int, now: float
    ) -> int:
        """Add members with their scores to a registry, and return how many of them are new. Once a
        minute, also remove the members that were not used for KEPT_DAYS days, and the oldest ones
        beyond MAX_REGISTERED. `ms`: the server time."""
        new = 0
        for some in batches(list(scores), _CHUNK):
            words = [word for member in some for word in (scores[member], member)]
            new += int(server.command("ZADD", registry, *words, timeout=ROUND))
        if now >= self._trim_at.get((server.alias, registry), 0.0):
            kept = KEPT_DAYS * 86_400_000
            server.command("ZREMRANGEBYSCORE", registry, "-inf", ms - kept, timeout=ROUND)
            server.command("ZREMRANGEBYRANK", registry, 0, -1 - MAX_REGISTERED, timeout=ROUND)
            server.command("PEXPIRE", registry, 2 * kept, timeout=ROUND)
            if len(self._trim_at) >= MAX_REGISTERED:
                self._trim_at.clear()
            self._trim_at[server.alias, registry] = now + REGISTER_EVERY
        return new


class _Registry:
    """The registry of names of one prefix, at the server time `ms`. Names that are made from values
    are moved out of it into the registries of their families."""

    def __init__(self, names: Names, server: Server, prefix: str, ms: int, now: float) -> None:
        self._names, self._server, self._prefix = names, server, prefix
        self._ms, self._now = ms, now
        self._key = f"{prefix}:names"

    def enter(self, fresh: list[Fresh]) -> bool:
        """Write names in use. Return True if the registry has new names that may have to be
        folded."""
        ms, own = self._ms, conf.current().names()
        plain, single, templates = dict[str, int](), dict[str, int](), set[str]()
        keyed, made = dict[str, dict[str, int]](), dict[str, dict[str, int]]()
        for keys, template in fresh:
            policy, at, key = keys.quoted.partition("@")
            family = "" if at or keys.display in own else quote(family_of(keys.display, template))
            if at:
                plain[policy + at] = ms
                keyed.setdefault(policy, {})[key] = ms
            elif family:
                made.setdefault(family, {})[keys.quoted] = ms
                templates |= {family} if template else set()
            else:
                plain[keys.quoted] = ms
        known = templates | self._known([one for one in made if one not in templates])
        has_folded = False
        for family, scores in made.items():
            if family in known or len(scores) >= FOLD_FROM:
                self._fold(family, scores)
                has_folded |= family not in known
            else:
                single |= scores
        for policy, scores in keyed.items():
            self._put(f"{self._prefix}:{{{policy}}}:keys", scores)
        self._put(self._key, plain)
        self._names._enter_project(self._server, self._prefix, ms, self._now)
        return bool(self._put(self._key, single)) or has_folded

    def _known(self, families: list[str]) -> set[str]:
        """Return those of `families` that are in the registry."""
        known = set[str]()
        for some in batches(families, _CHUNK):
            entries = [one + FAMILY for one in some]
            scores = self._server.command("ZMSCORE", self._key, *entries, timeout=ROUND)
            known |= {one for one, score in zip(some, scores, strict=True) if score is not None}
        self._names.families -= {(self._prefix, one) for one in families}
        self._names.families |= {(self._prefix, one) for one in known}
        return known

    def fold_newest(self) -> bool:
        """Fold the names among the newest _CHUNK entries. Return True if there are more entries."""
        found = self._read(0)
        self._fold_some(found)
        return len(found) == _CHUNK

    def fold_all(self) -> bool:
        """Fold the names among all entries. Return True."""
        found, start, chunk = dict[str, int](), 0, {"": 0}
        while chunk:
            chunk = self._read(start)
            found |= chunk
            start += _CHUNK
        self._fold_some(found)
        return True

    def _read(self, start: int) -> dict[str, int]:
        words = (self._key, start, start + _CHUNK - 1, "WITHSCORES")
        reply = decoded(self._server.command("ZREVRANGE", *words, timeout=ROUND))
        return {member: int(score) for member, score in pairs_of(reply)}

    def _fold_some(self, entries: Mapping[str, int]) -> None:
        """Fold the names in `entries`, with their scores, if there are FOLD_FROM names of the same
        family, or if `entries` has the family."""
        own, by_family = conf.current().names(), dict[str, dict[str, int]]()
        for quoted, score in entries.items():
            name = unquote(quoted)
            if "@" not in quoted and FAMILY not in quoted and name not in own:
                by_family.setdefault(quote(family_of(name)), {})[quoted] = score
        for family, scores in by_family.items():
            if family and (len(scores) >= FOLD_FROM or family + FAMILY in entries):
                self._fold(family, scores)
                self._remove(list(scores))

    def _fold(self, family: str, scores: Mapping[str, int]) -> None:
        """Write names into the registry of their family. If this process dies meanwhile, a name can
        be in two registries, but never in none."""
        last = max(scores.values())
        self._put(f"{self._prefix}:{{{family}}}:made", scores)
        self._put(f"{self._prefix}:families", {family: last})
        self._put(self._key, {family + FAMILY: last})
        self._names.families.add((self._prefix, family))

    def _remove(self, names: list[str]) -> None:
        for some in batches(names, _CHUNK):
            self._server.command("ZREM", self._key, *some, timeout=ROUND)

    def _put(self, registry: str, scores: Mapping[str, int]) -> int:
        if not scores:
            return 0
        return self._names._put(self._server, registry, scores, self._ms, self._now)


# Labels help operators to recognize holders. A label is JSON text of limited size. Other programs
# may write into Redis, so the code doesn't trust the content of a label.

#: Max characters of a field of a label.
MAX_LABEL = 200
LABEL_FIELDS = ("host", "pid", "thread", "label", "user", "request")


def _label(pid: int, label: str, user: str, request: str) -> str:
    values = (socket.gethostname(), pid, "", label, user, request)
    fields = {key: v for key, v in zip(LABEL_FIELDS, values, strict=True) if v != ""}
    return json.dumps(_cut(fields), separators=(",", ":"))


_cached_label = lru_cache(maxsize=1024)(_label)


def _cut(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: v[:MAX_LABEL] if isinstance(v, str) else v for key, v in fields.items()}


def write_label(label: str = "", user: str = "", request: str = "") -> str:
    """Return a label as ASCII JSON. It contains the host, the process, the name of the task or
    thread, and those arguments that are not empty."""
    write = _label if request else _cached_label  # not cached: each request differs
    loop = running_loop()
    task = None if loop is None else current_task(loop)
    name = threading.current_thread().name if task is None else task.get_name()
    # The name is added to a cached text, because each task has a name of its own.
    begin = write(os.getpid(), label, user, request)[:-1]
    return f'{begin},"thread":{encode_basestring_ascii(name[:MAX_LABEL])}}}'


def read_label(text: str) -> dict[str, Any]:
    """Return the fields of a label that `write_label` made. Return {} for any other text."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(values, dict):
        return {}
    return _cut({k: values[k] for k in LABEL_FIELDS if isinstance(values.get(k), (str, int))})
