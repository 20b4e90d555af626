"""Is this Redis fit for locks? Each finding says the fact, why it matters, and the remedy.

Every check runs on every node, however the others end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from django.utils.translation import gettext as _
from redis.exceptions import ResponseError

from ... import conf
from ...engine.drivers import error_of
from ...engine.wire import RIGHTS, turned_away
from ...exceptions import Unavailable
from ...protocol.steps import Failure
from . import neighbours, servers
from .permissions import rules
from .servers import Finding, Level

__all__ = ["Finding", "Level", "combined", "examine"]

Subject = TypeVar("Subject")


def examine(*, using: str | None = None) -> list[Finding]:
    """Return all findings, of every level. If the server denies access, that is the only one. Raise
    Unavailable if Redis can't be reached.

    Of a Cluster every node with slots is asked. A node that does not answer is a finding, as long
    as another node answers.
    """
    config = conf.current()
    alias = using or config.cache
    by_node: list[tuple[str, list[Finding]]] = []
    try:
        nodes = servers.nodes_of(alias)
        for node in nodes:
            try:
                by_node.append((node.name, list(_checked(servers.CHECKS, node))))
            except (Failure, Unavailable) as error:
                by_node.append((node.name, [_unanswered(_cause(error))]))
        others = _checked(neighbours.CHECKS, alias, goes_on=len(nodes) > 1)
        return [*combined(by_node), *others]
    except (Failure, Unavailable) as error:
        why = turned_away(error)
        if why:
            return [_denied(_cause(error), rules(config.prefix(alias)) if why == RIGHTS else "")]
        raise (error_of(error) if isinstance(error, Failure) else error) from _cause(error)


def _checked(
    checks: Mapping[str, Callable[[Subject], Iterator[Finding]]],
    subject: Subject,
    goes_on: bool = False,
) -> Iterator[Finding]:
    """Yield the findings of each check. An error reply is a finding; with `goes_on`, so is no
    reply."""
    for id, check in checks.items():
        try:
            yield from check(subject)
        except (Failure, Unavailable) as error:
            cause = _cause(error)
            why = turned_away(error)
            # The check of permissions names missing rights. A user without access has no other.
            is_reply = isinstance(cause, ResponseError) or why == RIGHTS
            if not goes_on and (why not in ("", RIGHTS) or not is_reply):
                raise
            yield _failed(id, cause)


def _cause(error: Failure | Unavailable) -> BaseException:
    return (error.cause if isinstance(error, Failure) else error.__cause__) or error


def _failed(id: str, cause: BaseException) -> Finding:
    """Return the finding of a check that got an error: the other findings may name its reason."""
    return Finding(
        id,
        "error",
        _("Not everything could be examined (%s)") % id,
        _("The reply was: %s.") % str(cause).rstrip("."),
        _("See the other findings, and the server's log."),
    )


def _denied(cause: BaseException, rules: str = "") -> Finding:
    """Return the finding of a server that denies access. `rules`: the ACL that our user needs."""
    remedy = _(
        "Correct user, password, TLS or database number in LOCATION and OPTIONS of the cache."
    )
    if rules:
        remedy = _("Give the user what it needs: ACL SETUSER <user> %s") % rules
    reply = _("The reply was: %s.") % str(cause).rstrip(".")
    return Finding("access", "error", _("This Redis denies access"), reply, remedy)


def _unanswered(cause: BaseException) -> Finding:
    """Return the finding of a node that does not answer, while others do."""
    return Finding(
        "node",
        "error",
        _("A node does not answer"),
        _("Names in its slots can't be acquired: %s.") % str(cause).rstrip("."),
        _("Bring it back, or let a replica take over: see redis-cli --cluster check."),
    )


def combined(by_node: Sequence[tuple[str, Iterable[Finding]]]) -> list[Finding]:
    """Return each finding once: with the nodes it is about, unless it is about all."""
    nodes: dict[Finding, list[str]] = {}
    for node, findings in by_node:
        for finding in findings:
            nodes.setdefault(finding, []).append(node)
    order = list(dict.fromkeys(finding.id for finding in nodes))
    return [
        replace(finding, nodes=() if len(own) == len(by_node) else tuple(own))
        for finding, own in sorted(nodes.items(), key=lambda item: order.index(item[0].id))
    ]
