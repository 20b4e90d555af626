"""The doctor checks whether a Redis server is fit for locks. Each finding has a title, the details,
and a remedy.

If a node answers a check with an error, the other checks still run on it and on all other nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext as _
from redis.exceptions import ResponseError

from ... import conf
from ...engine.backends import forget
from ...engine.cluster import ClusterServer
from ...engine.drivers import error_of
from ...engine.names import MAX_PROJECTS, project, projects_key
from ...engine.server import Server, server_of
from ...engine.threads import uwsgi_runs_threads
from ...engine.wire import REDIS_ERRORS, RIGHTS, configuration_error, is_imitation
from ...exceptions import Unavailable
from ...protocol.keys import quote
from ...protocol.steps import Failure
from ..facts import Status, Unread
from ..formats import moment, without_secrets
from ..listing import INDEX_AGE
from ..names import held_since, with_override
from ..reads import read
from . import servers
from .looks import look_at
from .permissions import rules
from .servers import Finding, Level, allowed
from .trials import trial

__all__ = ["Finding", "Level", "examine", "rules"]

Subject = TypeVar("Subject")

#: Max names with an override that the doctor checks.
MAX_NAMES = 30
#: The doctor also checks the names with the oldest holders: at most this number of names.
MAX_HELD = 30
#: Max names in the text of a finding.
_SHOWN = 5
#: The doctor reports a name if its callers used different limits within this time.
CLASH_AGE = timedelta(days=1)


def examine(*, using: str | None = None, seconds: float = 0.0) -> list[Finding]:
    """Return the findings of all checks, including findings of level "ok". If the server denies
    access, return one finding about that. Raise Unavailable if Redis can't be reached.

    `seconds`: for how long to look at names. With 0, only a few names are looked at.

    In a Cluster, every node with slots is checked. If only some nodes answer, each of the others
    gets a finding.
    """
    config = conf.current()
    alias = using or config.cache
    each = {**servers.CHECKS, "trial": trial}
    overall: dict[str, Callable[[str], Iterator[Finding]]]
    overall = {**OVERALL_CHECKS, "names": partial(_names, seconds=seconds)}
    by_node: list[tuple[str, list[Finding]]] = []
    try:
        nodes = servers.nodes_of(alias)
        for node in nodes:
            try:
                by_node.append((node.name, list(_checked(each, node))))
            except (Failure, Unavailable) as error:
                by_node.append((node.name, [_unanswered(error)]))
        others = _checked(overall, alias, goes_on=len(nodes) > 1)
        return [*_combined(by_node), *others]
    except (Failure, Unavailable) as error:
        why = configuration_error(error)
        if why:
            return [_denied(error, rules(config.prefix(alias)) if why == RIGHTS else "")]
        raise (error_of(error) if isinstance(error, Failure) else error) from _cause(error)


def _checked(
    checks: Mapping[str, Callable[[Subject], Iterator[Finding]]],
    subject: Subject,
    goes_on: bool = False,
) -> Iterator[Finding]:
    """Run the checks, and yield their findings. If the server answers a check with an error, yield
    a finding about the error. If the server denies all access or does not answer, raise Failure or
    Unavailable. With `goes_on`, yield a finding instead of raising an exception."""
    for id, check in checks.items():
        try:
            yield from check(subject)
        except (Failure, Unavailable) as error:
            why = configuration_error(error)
            # An error reply, such as a missing permission, affects only this check. If the server
            # denies all access or does not reply, no check can run, so raise the error.
            is_reply = isinstance(_cause(error), ResponseError) or why == RIGHTS
            if not goes_on and (why not in ("", RIGHTS) or not is_reply):
                raise
            title = _("The check “%s” could not be completed") % id
            remedy = _("See the other findings, and the server's log.")
            yield Finding(id, "error", title, _("The reply was: %s.") % _words(error), remedy)
        except ImproperlyConfigured as error:
            # An imitation of Redis, as the finding about the trial says. No further check can run.
            if not is_imitation(error.__cause__ or error):
                raise
            return


def _cause(error: Failure | Unavailable) -> BaseException:
    return (error.cause if isinstance(error, Failure) else error.__cause__) or error


def _words(error: Failure | Unavailable) -> str:
    """Return the text of the cause, without secrets."""
    return without_secrets(str(_cause(error))).rstrip(".")


def _denied(error: Failure | Unavailable, rules: str) -> Finding:
    """Return the finding of a server that denies access. `rules`: the ACL that the user needs."""
    remedy = _(
        "Correct the user, password, TLS, or database number in LOCATION and OPTIONS of the cache."
    )
    if rules:
        remedy = _("To grant the required permissions, run: ACL SETUSER <user> %s") % rules
    reply = _("The reply was: %s.") % _words(error)
    return Finding("access", "error", _("This Redis denies access"), reply, remedy)


def _unanswered(error: Failure | Unavailable) -> Finding:
    """Return the finding of a node that does not answer."""
    detail = _("Names in the slots of this node can't be acquired. Error: %s.") % _words(error)
    remedy = _("Restart the node, or let a replica take over. See redis-cli --cluster check.")
    return Finding("node", "error", _("A node does not answer"), detail, remedy)


def _combined(by_node: Sequence[tuple[str, Iterable[Finding]]]) -> list[Finding]:
    """Combine equal findings of several nodes into one. Its `nodes` are the nodes with the finding,
    or () if all nodes have it."""
    nodes: dict[Finding, list[str]] = {}
    for node, findings in by_node:
        for finding in findings:
            nodes.setdefault(finding, []).append(node)
    order = list(dict.fromkeys(finding.id for finding in nodes))
    return [
        replace(finding, nodes=() if len(own) == len(by_node) else tuple(own))
        for finding, own in sorted(nodes.items(), key=lambda item: order.index(item[0].id))
    ]


# Checks that run once, instead of once for each node


def _shared(alias: str) -> Iterator[Finding]:
    own, server = _places(alias), server_of(alias)
    others = [other for other in settings.CACHES if other != alias and own & _places(other)]
    why = ""
    if others:
        why = _("The cache %s uses the same database.") % ", ".join(map(repr, others))
    elif alias == "default":
        why = _("This is the project's default cache.")
    elif _foreign(server, conf.current().prefix(alias)):
        why = _("The database has keys with another prefix.")
    if not why:
        title = _("The database is not shared")
        yield Finding("shared", "ok", title, _("No other cache alias uses this database."))
        return
    danger = _("cache.clear() empties the whole database, including all leases.")
    remedy = _("Set REDIS_SYNC['CACHE'] to an alias with a separate database and URL.")
    title = _("The database is shared")
    yield Finding("shared", "warning", title, f"{why} {danger}", remedy)


def _places(alias: str) -> set[tuple[Any, ...]]:
    """Return the servers and the database that an alias is configured to use. Return an empty set
    if the alias is not a cache of django-redis."""
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
    """Return True if one or more of five random keys do not begin with `prefix`."""
    keys = [allowed(server, "RANDOMKEY") for _i in range(5)]
    return any(key and not str(key).startswith(f"{quote(prefix)}:") for key in keys)


def _names(alias: str, seconds: float = 0.0) -> Iterator[Finding]:
    overridden, held = with_override(using=alias), held_since(using=alias)
    first = [*overridden[:MAX_NAMES], *[*held][:MAX_HELD]]
    look = look_at(alias, first, seconds)
    found, unread = look.found, look.unread
    if unread:
        yield Finding(
            "unreadable",
            "error",
            _("There are names that can't be read"),
            _listed(unread) + ": " + without_secrets(str(unread[0].error)),
            _("Restart the node of these names, or delete values that other programs wrote."),
        )
    clashing = [
        s for s in found if s.conflicting_limit and s.at - s.conflicting_limit[1] < CLASH_AGE
    ]
    detail = _(
        "In the last day, callers used different limits for %s. Each call is checked against its "
        "own limit, so the largest limit takes effect."
    )
    yield _about(
        "limits", clashing, (look.seen, look.every),
        _("All callers of a name agree on its limit"),
        _("Callers disagree on the limit"), detail,
        _("Set one limit in REDIS_SYNC['SEMAPHORES'], or with locks resize."),
        look.earlier,
    )  # fmt: skip
    # The index of holders has all permanent leases older than INDEX_AGE, and `found` the oldest.
    permanent = [s for s in found if any(h.permanent for h in s.holders)]
    yield _about(
        "permanent", permanent, (min(len(held), MAX_HELD), len(held)),
        _("There are no permanent holders that are older than %d s") % INDEX_AGE,
        _("There are permanent holders"),
        _("Permits of %s stay in use until released, even if a holder's process has crashed."),
        _("To see the holders: locks status NAME. To end a lease: locks clear NAME --holder ID."),
    )  # fmt: skip
    changed = [s for s in found if (s.name, s.key) in overridden and (s.paused or s.resized)]
    yield _about(
        "overrides", changed, (min(len(overridden), MAX_NAMES), len(overridden)),
        _("Nothing is paused or resized"),
        _("An operator's overrides are in force"),
        _("Paused or resized: %s."),
        _("To end this, run: locks resume NAME, or locks resize NAME --reset."),
    )  # fmt: skip


def _projects(alias: str) -> Iterator[Finding]:
    """Yield the finding about other projects that use the same names."""
    prefix, own = conf.current().prefix(alias), project()
    listed = read(alias, "ZREVRANGE", projects_key(prefix), 0, MAX_PROJECTS - 1)
    others = [text for id, _colon, text in (one.partition(":") for one in listed) if id != own]
    if not others:
        yield Finding("projects", "ok", _("No other project uses these names"), "")
        return
    title, names = _("Other projects use the same names"), ", ".join(sorted({*others}))
    if conf.current().key_prefix is not None:
        # The prefix was chosen for the locks, so the projects probably share them on purpose.
        detail = _("REDIS_SYNC['KEY_PREFIX'] is also that of: %s.")
        yield Finding("projects", "ok", title, detail % names)
        return
    detail = _(
        "A lock here excludes callers there. The keys of both begin with %(prefix)s. In use by: "
        "%(names)s."
    )
    remedy = _(
        "Give each project a KEY_PREFIX of its own in CACHES. If they share locks on purpose, set "
        "REDIS_SYNC['KEY_PREFIX'] in all of them."
    )
    words = {"prefix": prefix, "names": names}
    yield Finding("projects", "warning", title, detail % words, remedy)


def _about(
    id: str, odd: Sequence[Status], seen: tuple[int, int], fine: str, title: str, detail: str,
    remedy: str, earlier: datetime | None = None,
) -> Finding:  # fmt: skip
    """Return a finding about names. `odd`: the names with a problem. If there are any, the finding
    is a warning with the title, the detail (%s: the names), and the remedy. Otherwise the finding
    has the title `fine`, and the level "ok", or "part" if not all names were checked. `seen`: the
    numbers of checked names and of all names. `earlier`: when a doctor has checked all names within
    the last day."""
    if odd:
        return Finding(id, "warning", title, detail % _listed(odd), remedy)
    if seen[0] >= seen[1]:
        return Finding(id, "ok", fine, _("All %d were checked.") % seen[1] if seen[1] else "")
    if earlier is not None:
        text = _("All names were checked at %(when)s, and %(seen)d of %(all)d again now.")
        words = {"when": moment(earlier), "seen": seen[0], "all": seen[1]}
        return Finding(id, "ok", fine, text % words)
    text = _("%(seen)d of %(all)d names were checked.") % {"seen": seen[0], "all": seen[1]}
    text += " " + _("To check all names, run: manage.py locks doctor.")
    return Finding(id, "part", fine + ", " + _("among the names that were checked"), text)


def _listed(found: Sequence[Status | Unread]) -> str:
    shown = ", ".join(one.display for one in found[:_SHOWN])
    return shown + (_(" and %d more") % (len(found) - _SHOWN) if len(found) > _SHOWN else "")


def _uwsgi(alias: str) -> Iterator[Finding]:
    fine = uwsgi_runs_threads()
    if fine is None:
        return
    title = _("uWSGI runs threads") if fine else _("uWSGI runs without threads")
    remedy = _("Start uWSGI with --enable-threads and --py-call-uwsgi-fork-hooks.")
    level: Level = "ok" if fine else "error"
    yield Finding.of("uwsgi", level, title, _("Leases are renewed on a thread."), remedy)


#: The checks that run once for all servers, by id. If a check fails to complete, a finding with
#: this id reports the failure.
OVERALL_CHECKS: dict[str, Callable[[str], Iterator[Finding]]] = {
    "shared": _shared,
    "projects": _projects,
    "names": _names,
    "uwsgi": _uwsgi,
}
