"""Is this Redis fit for locks? Each finding says what is, why it matters, and the remedy."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext as _
from redis.exceptions import ResponseError

from . import conf, inspection, permissions
from .asking import decoded
from .engine import connections
from .engine.drivers import error_of
from .engine.wire import clock
from .exceptions import SyncError, Unavailable
from .inspection import Status
from .protocol.keys import quote
from .protocol.plans import Failure

Level = Literal["ok", "warning", "error"]

OLDEST_VERSION = (6, 2)
#: Seconds: a clock that is further off, an answer that takes longer (warning, error).
MOST_OFFSET, SLOW, TOO_SLOW = 1.0, 0.01, 0.1
#: Names that are looked at, the most recently used first.
MOST_NAMES = 10_000
_SHOWN = 5
_PINGS = 10
_FULL = 0.9


@dataclass(frozen=True, slots=True)
class Finding:
    """`id` is stable, for scripts. `remedy` is empty when the level is ok."""

    id: str
    level: Level
    title: str
    detail: str
    remedy: str = ""


def examine(*, using: str | None = None) -> list[Finding]:
    """All findings, whatever their level. Unavailable when Redis can't be reached."""
    alias = using or conf.current().cache
    server = connections.server(alias)
    findings: list[Finding] = []
    looks: dict[str, Callable[[], Iterable[Finding]]] = {
        "latency": lambda: _latency(server),
        "clock": lambda: _clock(server),
        "acl": lambda: _permissions(server, alias),
        "info": lambda: _by_info(server),
        "shared": lambda: _shared(server, alias),
        "names": lambda: _names(alias),
        "uwsgi": _uwsgi,
    }
    for id, look in looks.items():
        try:
            findings += look()
        except (Failure, Unavailable) as error:
            cause = error.cause if isinstance(error, Failure) else error.__cause__
            if not isinstance(cause, ResponseError):
                raise _unavailable(error) from cause
            # It answers, if only with an error: the other findings may tell why.
            findings.append(_refused(id, cause))
    return findings


def _unavailable(error: Failure | Unavailable) -> SyncError:
    return error_of(error) if isinstance(error, Failure) else error


def _refused(id: str, cause: ResponseError) -> Finding:
    return Finding(
        id,
        "error",
        _("Not everything could be examined (%s)") % id,
        _("The server said: %s.") % str(cause).rstrip("."),
        _("See the other findings, and the server's log."),
    )


# The server


def _by_info(server: connections.Server) -> Iterator[Finding]:
    info = _info(server)
    if info is None:
        yield _blind()
        return
    for look in (_version, _role, _eviction, _persistence, _cluster):
        yield from look(server, info)


def _info(server: connections.Server) -> dict[str, str] | None:
    """What INFO says; None when this user may not ask."""
    reply = _allowed(server, "INFO")
    if reply is None:
        return None
    pairs = [line.partition(":") for line in str(reply).splitlines()]
    return {key: value.strip() for key, colon, value in pairs if colon}


def _allowed(server: connections.Server, *words: Any) -> Any:
    """The reply, or None when the server refuses the command. Failure when it can't be reached."""
    try:
        return decoded(server.command(*words))
    except Failure as failure:
        if failure.why != "final":
            raise
        return None


def _blind() -> Finding:
    return Finding(
        "info",
        "warning",
        _("The server can't be examined"),
        _("This user may not run INFO: version, memory and persistence are unknown."),
        _("Allow it: ACL SETUSER <user> +info. Or run the doctor with a user that may."),
    )


def _latency(server: connections.Server) -> Iterator[Finding]:
    spent = []
    for _i in range(_PINGS):
        start = clock()
        server.command("PING")
        spent.append(clock() - start)
    median = statistics.median(spent)
    level: Level = "error" if median > TOO_SLOW else "warning" if median > SLOW else "ok"
    yield Finding(
        "latency",
        level,
        _("Round trip: %.1f ms") % (median * 1000),
        _("The median of %d. Each acquire and each release takes one.") % _PINGS,
        _("Use a nearer server, or see SLOWLOG for what holds it up.") if level != "ok" else "",
    )


def _clock(server: connections.Server) -> Iterator[Finding]:
    before = time.time()
    seconds, micros = server.command("TIME")
    offset = int(seconds) + int(micros) / 1e6 - (before + time.time()) / 2
    off = abs(offset) > MOST_OFFSET
    yield Finding(
        "clock",
        "warning" if off else "ok",
        _("The server's clock is %+.1f s off this machine's") % offset
        if off
        else _("The server's clock agrees with this machine's"),
        _("No lease depends on it, but fences and times shown are the server's."),
        _("Have both follow NTP, and never set the server's clock back.") if off else "",
    )


def _permissions(server: connections.Server, alias: str) -> Iterator[Finding]:
    prefix = conf.current().prefix(alias)
    denied = permissions.denied(server, alias, prefix)
    if not denied:
        yield Finding(
            "acl", "ok", _("This user may do all that is needed"), _("Each command was tried.")
        )
        return
    yield Finding(
        "acl",
        "error",
        _("This user may not do all that is needed"),
        _("Refused: %s.") % ", ".join(denied),
        _("Give it at least: %s") % permissions.rules(prefix),
    )


def _version(server: connections.Server, info: Mapping[str, str]) -> Iterator[Finding]:
    text = info.get("redis_version", "")
    own = info.get("valkey_version")
    shown = f"Valkey {own}" if own else f"Redis {text}"
    try:
        version = tuple(int(part) for part in text.split(".")[:2])
    except ValueError:
        version = OLDEST_VERSION
    old = version < OLDEST_VERSION
    yield Finding(
        "version",
        "error" if old else "ok",
        _("Version: %s") % shown,
        _("Needed: Redis 6.2 or newer, or Valkey."),
        _("Upgrade the server.") if old else "",
    )


def _role(server: connections.Server, info: Mapping[str, str]) -> Iterator[Finding]:
    if info.get("role") == "slave":
        yield Finding(
            "role",
            "error",
            _("This server is a replica"),
            _("It takes no writes: nothing can be acquired here."),
            _("Have LOCATION name the primary, or use Sentinel, which finds it."),
        )


def _eviction(server: connections.Server, info: Mapping[str, str]) -> Iterator[Finding]:
    policy, most = info.get("maxmemory_policy", "noeviction"), int(info.get("maxmemory", 0))
    if policy != "noeviction":
        yield Finding(
            "eviction",
            "error" if most else "warning",
            _("Memory policy: %s") % policy,
            _("A full server evicts leases, and tells nobody: two holders at a time.")
            if most
            else _("There is no maxmemory yet. With one, a full server would evict leases."),
            _("Use a server of its own with maxmemory-policy noeviction."),
        )
        return
    used = int(info.get("used_memory", 0))
    if most and used > most * _FULL:
        yield Finding(
            "eviction",
            "warning",
            _("Memory is nearly full: %d %%") % (100 * used // most),
            _("A full server grants nothing more; releases still work."),
            _("Raise maxmemory, or move what else is on it elsewhere."),
        )
        return
    yield Finding("eviction", "ok", _("Memory policy: %s") % policy, _("No lease is ever evicted."))


def _persistence(server: connections.Server, info: Mapping[str, str]) -> Iterator[Finding]:
    if info.get("aof_enabled") == "1":
        failed = info.get("aof_last_write_status", "ok") != "ok"
        yield Finding(
            "persistence",
            "error" if failed else "ok",
            _("The append-only file can't be written") if failed else _("Persistence: AOF"),
            _("A restart keeps leases, fences and an operator's marks."),
            _("See the server's log: is its disk full?") if failed else "",
        )
        return
    saved = _allowed(server, "CONFIG", "GET", "save")
    points = dict(saved).get("save") if isinstance(saved, dict) else (saved or [None, None])[1]
    yield Finding(
        "persistence",
        "warning",
        _("Persistence: none") if points == "" else _("Persistence: no AOF"),
        _("A restart forgets leases: others get in while their holders still work.")
        + " "
        + _("Pauses and resized limits are forgotten too."),
        _("Set appendonly yes and appendfsync everysec."),
    )


def _cluster(server: connections.Server, info: Mapping[str, str]) -> Iterator[Finding]:
    if info.get("cluster_enabled") != "1":
        return
    reply = str(_allowed(server, "CLUSTER", "INFO") or "")
    state = dict(line.strip().split(":", 1) for line in reply.splitlines() if ":" in line)
    if not state:
        return
    failing = int(state.get("cluster_slots_fail", 0)) + int(state.get("cluster_slots_pfail", 0))
    down = state.get("cluster_state") != "ok"
    level: Level = "error" if down else "warning" if failing else "ok"
    words = {"nodes": state.get("cluster_known_nodes", "?"), "failing": failing}
    yield Finding(
        "cluster",
        level,
        _("Cluster: %s") % state.get("cluster_state", "?"),
        _("%(nodes)s nodes; %(failing)s slots on nodes that fail.") % words,
        _("See redis-cli --cluster check; names in failing slots can't be acquired.")
        if level != "ok"
        else "",
    )


# What else lives there


def _shared(server: connections.Server, alias: str) -> Iterator[Finding]:
    own = _place(alias)
    others = [other for other in settings.CACHES if other != alias and _place(other) == own]
    title, why = _("The database is shared"), ""
    if others:
        why = _("The cache %s uses the same database.") % ", ".join(map(repr, others))
    elif alias == "default":
        why = _("It is the project's default cache.")
    elif _foreign(server, conf.current().prefix(alias)):
        why = _("It holds keys that are none of ours.")
    if why:
        danger = _("cache.clear() empties the whole database: every lease with it.")
        yield Finding(
            "shared",
            "warning",
            title,
            f"{why} {danger}",
            _("Name an alias with a database and URL of its own in REDIS_SYNC['CACHE']."),
        )
        return
    yield Finding(
        "shared", "ok", _("The database is ours alone"), _("No other cache alias uses it.")
    )


def _place(alias: str) -> tuple[Any, ...] | None:
    """The server and database of an alias; None when it is no Redis of django-redis."""
    try:
        pool = connections.backend_of(alias).get_client(write=True).connection_pool
    except (ImproperlyConfigured, AttributeError, NotImplementedError):
        return None
    kwargs = pool.connection_kwargs
    host = {"localhost": "127.0.0.1"}.get(kwargs.get("host"), kwargs.get("host"))
    place = (getattr(pool, "service_name", None), host, kwargs.get("port", 6379))
    return (*place, kwargs.get("path"), int(kwargs.get("db") or 0))


def _foreign(server: connections.Server, prefix: str) -> bool:
    """Whether a few keys picked at random show another tenant."""
    keys = [_allowed(server, "RANDOMKEY") for _i in range(10)]
    return any(key and not str(key).startswith(f"{quote(prefix)}:") for key in keys)


def _names(alias: str) -> Iterator[Finding]:
    found = inspection.statuses(inspection.names(using=alias)[:MOST_NAMES], using=alias)
    day = timedelta(days=1)
    yield _about(
        "limits",
        [s for s in found if s.clash is not None and s.at - s.clash[1] < day],
        _("Callers disagree on the limit"),
        _("Within the last day: %s. The limit of whoever asks applies, so the larger one wins."),
        _("Give it one limit, in REDIS_SYNC['SEMAPHORES']; or set one: locks resize."),
        _("All callers of a name agree on its limit"),
    )
    yield _about(
        "permanent",
        [s for s in found if any(h.stuck for h in s.holders)],
        _("There are permanent holders"),
        _("Of %s. They hold until they release, even if they crashed long ago."),
        _("See who: locks status NAME. Free one: locks clear NAME --holder ID."),
        _("There are no permanent holders"),
    )
    yield _about(
        "marks",
        [s for s in found if s.key is None and (s.paused or s.override is not None)],
        _("An operator's marks are in force"),
        _("Paused or resized: %s."),
        _("When no longer meant: locks resume NAME, locks resize NAME --reset."),
        _("Nothing is paused or resized"),
    )


def _about(
    id: str, odd: Sequence[Status], title: str, detail: str, remedy: str, fine: str
) -> Finding:
    if not odd:
        return Finding(id, "ok", fine, "")
    shown = ", ".join(s.display for s in odd[:_SHOWN])
    if len(odd) > _SHOWN:
        shown += _(" and %d more") % (len(odd) - _SHOWN)
    return Finding(id, "warning", title, detail % shown, remedy)


def _uwsgi() -> Iterator[Finding]:
    uwsgi = sys.modules.get("uwsgi")
    if uwsgi is None:
        return
    options = {o.decode() if isinstance(o, bytes) else o for o in getattr(uwsgi, "opt", {})}
    fine = bool(options & {"enable-threads", "threads"})
    yield Finding(
        "uwsgi",
        "ok" if fine else "error",
        _("uWSGI runs threads") if fine else _("uWSGI runs without threads"),
        _("Leases are renewed on a thread."),
        "" if fine else _("Start it with --enable-threads (and --py-call-uwsgi-fork-hooks)."),
    )
