"""The doctor's findings, and how those of several nodes become a single list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from django.utils.translation import gettext as _

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`id` is stable, for scripts. `remedy` is empty when the level is ok.

    `nodes`: the nodes of a Cluster that it is about, by address; empty when it is about all.
    """

    id: str
    level: Level
    title: str
    detail: str
    remedy: str = ""
    nodes: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """`nodes` in words, or nothing."""
        return _("On %s.") % ", ".join(self.nodes) if self.nodes else ""


def failed(id: str, cause: BaseException) -> Finding:
    """A look that came to nothing: the other findings may tell why."""
    return Finding(
        id,
        "error",
        _("Not everything could be examined (%s)") % id,
        _("What came was: %s.") % str(cause).rstrip("."),
        _("See the other findings, and the server's log."),
    )


def refused(cause: BaseException) -> Finding:
    """The server is there, and a setting of ours does not let us in."""
    return Finding(
        "access",
        "error",
        _("This Redis turns us away"),
        _("What came was: %s.") % str(cause).rstrip("."),
        _("Mend user, password, TLS or database number in LOCATION and OPTIONS of the cache."),
    )


def silent(cause: BaseException) -> Finding:
    """A node that does not answer, while others do."""
    return Finding(
        "node",
        "error",
        _("A node does not answer"),
        _("Names in its slots can't be acquired: %s.") % str(cause).rstrip("."),
        _("Bring it back, or let a replica take over: see redis-cli --cluster check."),
    )


def together(by_node: Sequence[tuple[str, Iterable[Finding]]]) -> list[Finding]:
    """Each finding once: with the nodes it is about, unless it is about all."""
    nodes: dict[Finding, list[str]] = {}
    for node, findings in by_node:
        for finding in findings:
            nodes.setdefault(finding, []).append(node)
    order = list(dict.fromkeys(finding.id for finding in nodes))
    return [
        replace(finding, nodes=() if len(own) == len(by_node) else tuple(own))
        for finding, own in sorted(nodes.items(), key=lambda item: order.index(item[0].id))
    ]
