"""Other users of the database, the names in it, and the server that runs this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext as _

from ... import conf
from ...engine.cluster import ClusterServer
from ...engine.commands import forget
from ...engine.server import Server, server_of
from ...engine.threads import uwsgi_runs_threads
from ...engine.wire import REDIS_ERRORS
from ...protocol.keys import quote
from ..names import Recent, marked, newest_keys
from ..status import Status, readable
from .findings import Finding
from .servers import allowed

#: Names that are looked at, the most recently used first: each with its newest key, if it has any.
MOST_NAMES = 50
_SHOWN = 5


def _shared(alias: str) -> Iterator[Finding]:
    own, server = _places(alias), server_of(alias)
    others = [other for other in settings.CACHES if other != alias and own & _places(other)]
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


def _places(alias: str) -> set[tuple[Any, ...]]:
    """The servers and databases that an alias names, without asking them; empty when it is no Redis
    of django-redis."""
    try:
        server = server_of(alias)
        if isinstance(server, ClusterServer):
            return {(None, _host(host), port, None, 0) for host, port in server.topology.addresses}
        pool = server.pool()
        own = pool.connection_kwargs
    except (*REDIS_ERRORS, ImproperlyConfigured, AttributeError, NotImplementedError, ValueError):
        forget(alias)
        return set()
    database = int(own.get("db") or 0)
    if (service := getattr(pool, "service_name", None)) is not None:
        asked = [s.connection_pool.connection_kwargs for s in pool.sentinel_manager.sentinels]
        return {(service, _host(k.get("host")), k.get("port"), None, database) for k in asked}
    return {(None, _host(own.get("host")), own.get("port", 6379), own.get("path"), database)}


def _host(name: str | None) -> str | None:
    return "127.0.0.1" if name == "localhost" else name


def _foreign(server: Server, prefix: str) -> bool:
    """Whether a few keys picked at random show another tenant."""
    keys = [allowed(server, "RANDOMKEY") for _i in range(10)]
    return any(key and not str(key).startswith(f"{quote(prefix)}:") for key in keys)


def _names(alias: str) -> Iterator[Finding]:
    names = Recent(using=alias)[:MOST_NAMES]
    keys = newest_keys(dict.fromkeys(names, 1), using=alias)
    pairs = [(name, None) for name in names] + [(n, key) for n in names for key in keys[n]]
    chosen = dict.fromkeys([*marked(using=alias)[:MOST_NAMES], *pairs])
    found, unread = readable(list(chosen)[: 2 * MOST_NAMES], using=alias)
    if unread:
        yield Finding(
            "unreadable",
            "error",
            _("There are names that can't be read"),
            _listed([one.display for one in unread]) + f": {unread[0].error}",
            _("Bring the node back that has them, or delete what another program wrote there."),
        )
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
    return Finding(id, "warning", title, detail % _listed([s.display for s in odd]), remedy)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    if len(names) > _SHOWN:
        shown += _(" and %d more") % (len(names) - _SHOWN)
    return shown


def _uwsgi(alias: str) -> Iterator[Finding]:
    fine = uwsgi_runs_threads()
    if fine is None:
        return
    yield Finding(
        "uwsgi",
        "ok" if fine else "error",
        _("uWSGI runs threads") if fine else _("uWSGI runs without threads"),
        _("Leases are renewed on a thread."),
        "" if fine else _("Start it with --enable-threads (and --py-call-uwsgi-fork-hooks)."),
    )


#: The looks done once, by the id of the finding when a look fails.
LOOKS: dict[str, Callable[[str], Iterator[Finding]]] = {
    "shared": _shared,
    "names": _names,
    "uwsgi": _uwsgi,
}
